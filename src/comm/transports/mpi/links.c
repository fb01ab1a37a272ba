/* links.c - opening, splitting and closing links: their ranks and the tags that they use. */
#include "comm/transports/mpi/world.h"

/* Waits for a message of an agreement until the job fails or the deadline passes. */
static ls_status await(MPI_Request *r, double deadline, int rank, const char *doing)
{
    double sleep = 20e-6;

    for (;;) {
        int done = 0, code = MPI_Test(r, &done, MPI_STATUS_IGNORE);

        if (code != MPI_SUCCESS) return mpi_refused(code, doing);
        if (done) return LS_OK;
        look();
        if (mpi.failed) return verdict();
        if (host->now() > deadline) break;
        nap(sleep);
        sleep = MIN(sleep * 1.5, 1e-3);
    }
    return end_job(LS_ETIMEOUT, "rank %d did not respond to rank %d within the timeout: %s", rank, mpi.rank, doing);
}

static int first_free(const uint64_t *used)
{
    for (int i = 0; i < TAG_RANGES; i++)
        if (!(used[i / 64] >> (i % 64) & 1)) return i;
    return -1;
}

static ls_status gather_offers(const int *members, int n, uint64_t group, double deadline, const char *doing)
{
    MPI_Request r;

    for (int i = 1; i < n; i++) {
        MPI_Irecv(&mpi.offered, sizeof mpi.offered, MPI_BYTE, members[i], TAG_AGREE, mpi.data, &r);
        LS_TRY(await(&r, deadline, members[i], doing));
        if (mpi.offered.group != group)
            return end_job(LS_EPEER, "rank %d of the job opens another group of ranks than rank %d: they split in different orders",
                           members[i], mpi.rank);
        for (int k = 0; k < WORDS; k++) mpi.offer.used[k] |= mpi.offered.used[k];
    }
    return LS_OK;
}

/* Finds a range of tags that is free on all members; the first member chooses it. Returns when all have called. */
static ls_status agree(const int *members, int n, int me, uint64_t group, double timeout, int *range)
{
    const char *doing = me ? "joining a group" : "opening a group";
    double deadline = host->now() + timeout;
    MPI_Request r;

    mpi.offer = (struct offer){ .group = group };
    for (const struct link *l = mpi.links; l; l = l->next) mpi.offer.used[l->range / 64] |= (uint64_t)1 << (l->range % 64);
    if (me == 0) {
        LS_TRY(gather_offers(members, n, group, deadline, doing));
        mpi.choice = (struct choice){ group, first_free(mpi.offer.used) };
        for (int i = 1; i < n; i++) {
            MPI_Isend(&mpi.choice, sizeof mpi.choice, MPI_BYTE, members[i], TAG_CHOICE, mpi.data, &r);
            LS_TRY(await(&r, deadline, members[i], doing));
        }
    } else {
        MPI_Isend(&mpi.offer, sizeof mpi.offer, MPI_BYTE, members[0], TAG_AGREE, mpi.data, &r);
        LS_TRY(await(&r, deadline, members[0], doing));
        MPI_Irecv(&mpi.choice, sizeof mpi.choice, MPI_BYTE, members[0], TAG_CHOICE, mpi.data, &r);
        LS_TRY(await(&r, deadline, members[0], doing));
    }
    if (mpi.choice.range < 0) return host->fail(LS_EUNSUPPORTED, "mpi: too many groups of ranks are open at once: at most %d", TAG_RANGES);
    *range = (int)mpi.choice.range;
    return LS_OK;
}

/* members NULL: the whole world. */
ls_status link_open(int n, const int *members, int me, uint64_t group, const char *name, double timeout, struct link **out)
{
    struct link *l = host->zalloc(MEM_OTHER, sizeof *l);
    ls_status st = LS_ENOMEM;

    if (!l) return LS_ENOMEM;
    l->base = (struct link_base){ .transport = &row, .rank = me, .n = n, .group = group, .world_n = mpi.n };
    snprintf(l->base.name, sizeof l->base.name, "%s", name);
    l->timeout = timeout;
    if (!(l->members = host->zalloc(MEM_OTHER, (size_t)n * sizeof *l->members))) goto free_link;
    for (int i = 0; i < n; i++) l->members[i] = members ? members[i] : i;
    l->base.member = l->members;
    if ((st = agree(l->members, n, me, group, timeout, &l->range)) < 0) goto free_members;
    *out = l;
    return LS_OK;

free_members:
    host->free(l->members);
free_link:
    host->free(l);
    return st;
}

ls_status row_split(struct link *parent, int n, const int *members, int me, uint64_t group, struct link **out)
{
    int *world = host->zalloc(MEM_OTHER, (size_t)n * sizeof *world);

    if (!world) return LS_ENOMEM;
    for (int i = 0; i < n; i++) world[i] = parent->members[members[i]];
    ls_status st = link_open(n, world, me, group, parent->base.name, parent->timeout, out);
    if (st == LS_OK) {
        (*out)->next = mpi.links;
        mpi.links = *out;
    }
    host->free(world);
    return st;
}

void link_free(struct link *l)
{
    messages_abandon(l);
    for (struct pending *f = l->spare, *next; f; f = next) {
        next = f->next;
        host->free(f);
    }
    host->free(l->members);
    host->free(l);
}

void row_close(struct link **out)
{
    struct link *l = *out, **at = &mpi.links;

    if (!l) return;
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    link_free(l);
    *out = NULL;
}
