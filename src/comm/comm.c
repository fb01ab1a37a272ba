/* comm.c - opening, splitting and closing comms, and their accessors. */
#include "comm/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

#define TIMEOUT 60.0

const char *ls_collective_name(ls_collective c)
{
    static const char *const names[] = {
#define COLLECTIVE_NAME(id, name) [LS_COLLECTIVE_##id] = name,
        LS_COLLECTIVE_MAP(COLLECTIVE_NAME)
#undef COLLECTIVE_NAME
    };

    return (unsigned)c < LS_COLLECTIVES ? names[c] : "unknown";
}

/* ---- the table of transports ---- */

static bool comm_is_named(const char *where, const char *name)
{
    size_t n = strlen(name);

    return !strncmp(where, name, n) && where[n] == ':';
}

ls_status transport_find(const char *where, const struct transport **out)
{
    static const struct {
        const char *name;
        const struct transport *row; /* NULL: a module has it */
        ls_status (*load)(const struct transport **out);
    } table[] = {
        { "shm", &transport_shm, NULL },
        { "mpi", NULL, transport_mpi },
        { "plan", &transport_plan, NULL },
    };

    for (size_t i = 0; i < COUNT_OF(table); i++) {
        if (!comm_is_named(where, table[i].name)) continue;
        if (!table[i].row) return table[i].load(out);
        *out = table[i].row;
        return LS_OK;
    }
    return ls_fail(LS_EINVAL, "comm: \"%s\" is not one of shm:NAME, shm:fd:N, mpi:, plan:", where);
}

/* ---- making and ending ---- */

/* On failure the caller keeps the link. */
static ls_status comm_new(struct link *link, int rank, int n, struct job *job, ls_comm **out)
{
    ls_comm *c = mem_zalloc(MEM_OTHER, sizeof *c);

    if (!c) return LS_ENOMEM;
    c->pair_sequence = mem_array(MEM_OTHER, 2 * (size_t)n, sizeof *c->pair_sequence);
    c->pairs = mem_array(MEM_OTHER, 2 * (size_t)n, sizeof *c->pairs);
    c->to = mem_array(MEM_OTHER, (size_t)n, sizeof *c->to);
    if (!c->pair_sequence || !c->pairs || !c->to) goto free_comm;
    c->link = link;
    c->transport = link ? link_base(link)->transport : NULL;
    c->rank = rank;
    c->n = n;
    c->timeout = TIMEOUT;
    c->job = job;
    c->place = board_join(job->board, link ? link_base(link)->group : 0);
    job->comms++;
    *out = c;
    return LS_OK;

free_comm:
    mem_free(c->pair_sequence);
    mem_free(c->pairs);
    mem_free(c->to);
    mem_free(c);
    return LS_ENOMEM;
}

static void job_drop(struct job *job)
{
    if (--job->comms > 0) return;
    mem_free(job->sighted);
    mem_free(job);
}

ls_status comm_open_within(const char *where, int rank, int n, double seconds, ls_comm **out)
{
    const struct transport *t = NULL;
    struct link *link = NULL;
    struct job *job;
    ls_status st;

    if (n < 1 || rank < 0 || rank >= n) return ls_fail(LS_EINVAL, "comm: rank %d of %d: ranks are numbered from 0", rank, n);
    if (n > 1) LS_TRY(transport_find(where, &t));
    if (!(job = mem_zalloc(MEM_OTHER, sizeof *job))) return LS_ENOMEM;
    engine_enter();
    if (t && (st = t->open(strchr(where, ':') + 1, rank, n, seconds, &link)) < 0) goto free_job;
    if (link && t->here) job->here = t->here(link);
    if (link && t->board) board_open(job->board = t->board(link));
    if ((st = comm_new(link, rank, n, job, out)) < 0) goto close_link;
    (*out)->group = link ? link_base(link)->group : 1;
    engine_add(*out);
    comm_name(*out, "world");
    engine_leave();
    return LS_OK;

close_link:
    board_close(job->board);
    if (link) t->close(&link);
free_job:
    engine_leave();
    mem_free(job);
    return st;
}

ls_status ls_comm_open(const char *where, int rank, int n, ls_comm **out) { return comm_open_within(where, rank, n, TIMEOUT, out); }

void ls_comm_close(ls_comm **comm)
{
    ls_comm *c = comm ? *comm : NULL;

    if (!c) return;
    native_close(c);
    engine_drain(c);
    while (c->blocks_n) ls_comm_free(c, c->blocks[c->blocks_n - 1].at);
    engine_enter();
    engine_remove(c);
    board_leave(c->job->board, c->place);
    if (c->job->comms == 1) board_close(c->job->board);
    if (c->link) c->transport->close(&c->link);
    engine_leave();
    works_free(c);
    lists_free(c);
    job_drop(c->job);
    mem_free(c->blocks);
    mem_free(c->pair_sequence);
    mem_free(c->pairs);
    mem_free(c->to);
    mem_free(c);
    *comm = NULL;
}

/* ---- splitting ---- */

struct member {
    int64_t color, key, rank;
};

static int by_key(const void *a, const void *b)
{
    const struct member *x = a, *y = b;

    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

/* The same on all ranks of a group, and different for every group of the job. */
static uint64_t group_id(const ls_comm *c, int64_t color)
{
    uint64_t h = 0xcbf29ce484222325u;
    const uint64_t words[] = { c->group, c->splits, (uint64_t)color };

    for (size_t i = 0; i < COUNT_OF(words); i++) h = ((h ^ words[i]) * 0x100000001b3u) ^ (h >> 29);
    return h;
}

/* members[k] in their order, this rank at `me`. */
static ls_status split_to(ls_comm *c, int k, const int *members, int me, int64_t color, ls_comm **out)
{
    uint64_t group = group_id(c, color);
    struct link *link = NULL;
    char name[2 * NAME_ROOM];
    ls_status st;

    engine_enter();
    if (k > 1 && (st = c->transport->split(c->link, k, members, me, group, &link)) < 0) goto leave;
    if ((st = comm_new(link, me, k, c->job, out)) < 0) {
        if (link) c->transport->close(&link);
        goto leave;
    }
    (*out)->group = group;
    (*out)->timeout = c->timeout;
    snprintf(name, sizeof name, "%s/%d", c->name, (int)color);
    engine_add(*out);
    comm_name(*out, name);
leave:
    engine_leave();
    return st;
}

/* Ranks of a color below 0 are in no group. */
static ls_status split_to_color(ls_comm *c, int k, const int *members, int64_t color, ls_comm **out)
{
    int me = 0;

    c->splits++;
    *out = NULL;
    if (color < 0) return LS_OK;
    while (members[me] != c->rank) me++;
    return split_to(c, k, members, me, color, out);
}

/* all[n] by rank; it is overwritten. */
static ls_status split_by_table(ls_comm *c, struct member *all, ls_comm **out)
{
    int64_t color = all[c->rank].color;
    int k = 0, *members = mem_array(MEM_OTHER, (size_t)c->n, sizeof *members);

    if (!members) return LS_ENOMEM;
    for (int i = 0; i < c->n; i++)
        if (all[i].color == color) all[k++] = all[i];
    qsort(all, (size_t)k, sizeof *all, by_key);
    for (int i = 0; i < k; i++) members[i] = (int)all[i].rank;
    ls_status st = split_to_color(c, k, members, color, out);
    mem_free(members);
    return st;
}

ls_status ls_comm_split(ls_comm *comm, int color, int key, ls_comm **out)
{
    struct member *all = mem_array(MEM_OTHER, (size_t)comm->n, sizeof *all);

    if (!all) return LS_ENOMEM;
    all[comm->rank] = (struct member){ color, key, comm->rank };
    ls_status st = operation_run(
        comm,
        &(struct call_args){
            .op = LS_COLLECTIVE_ALL_GATHER, .send = &all[comm->rank], .recv = all, .count = 3, .type = LS_I64, .hidden = true },
        NULL);
    if (st >= 0) st = split_by_table(comm, all, out);
    mem_free(all);
    return st;
}

/* No rank waits in split() for one that still waits for our message. */
static ls_status split_meet(ls_comm *c)
{
    if (c->n == 1 || !c->transport->start) return LS_OK;
    return operation_run(c, &(struct call_args){ .op = LS_COLLECTIVE_BARRIER, .type = LS_U8, .hidden = true }, NULL);
}

ls_status comm_split_by(ls_comm *c, comm_color_fn *color, void *ctx, ls_comm **out)
{
    int *members = mem_alloc(MEM_OTHER, (size_t)c->n * sizeof *members), mine = color(ctx, c->rank), k = 0;

    if (!members) return LS_ENOMEM;
    for (int i = 0; i < c->n && mine >= 0; i++)
        if (color(ctx, i) == mine) members[k++] = i;
    ls_status st = split_meet(c);
    if (st >= 0) st = split_to_color(c, k, members, mine, out);
    mem_free(members);
    return st;
}

ls_status comm_split_regular(ls_comm *c, int first, int stride, int size, ls_comm **out)
{
    int *members = mem_alloc(MEM_OTHER, (size_t)size * sizeof *members);

    if (!members) return LS_ENOMEM;
    for (int i = 0; i < size; i++) members[i] = first + i * stride;
    ls_status st = split_meet(c);
    if (st >= 0) st = split_to_color(c, size, members, size > 1 ? first : -1, out);
    mem_free(members);
    return st;
}

/* ---- accessors and settings ---- */

int ls_comm_rank(const ls_comm *comm) { return comm->rank; }
int ls_comm_size(const ls_comm *comm) { return comm->n; }
const char *ls_comm_transport(const ls_comm *comm) { return comm->transport ? comm->transport->name : "self"; }

bool comm_has_memory(const ls_comm *c) { return c->transport && c->transport->alloc; }
bool comm_has_collectives(const ls_comm *c) { return c->transport && c->transport->begin; }

void ls_comm_set_timeout(ls_comm *comm, double seconds)
{
    engine_enter();
    comm->timeout = seconds;
    engine_set_timeout(comm->job, seconds);
    engine_leave();
}

void comm_name(ls_comm *c, const char *name)
{
    snprintf(c->name, sizeof c->name, "%.*s", NAME_ROOM - 1, name);
    if (c->link) memcpy(link_base(c->link)->name, c->name, sizeof c->name);
}

/* ---- memory ---- */

static ls_status blocks_grow(ls_comm *c)
{
    size_t room = c->blocks_room ? 2 * c->blocks_room : 16;
    struct comm_block *blocks;

    if (c->blocks_n < c->blocks_room) return LS_OK;
    if (!(blocks = mem_resize(c->blocks, room * sizeof *blocks))) return LS_ENOMEM;
    c->blocks = blocks;
    c->blocks_room = room;
    return LS_OK;
}

void *ls_comm_alloc(ls_comm *comm, size_t bytes)
{
    void *p;

    if (blocks_grow(comm) < 0) return NULL;
    if (comm_has_memory(comm)) {
        engine_enter();
        p = comm->transport->alloc(comm->link, bytes);
        engine_leave();
    } else {
        p = mem_alloc(MEM_COMMUNICATION, bytes);
    }
    if (p) comm->blocks[comm->blocks_n++] = (struct comm_block){ p, bytes };
    return p;
}

void ls_comm_free(ls_comm *comm, void *p)
{
    size_t i = 0;

    if (!p) return;
    while (i < comm->blocks_n && comm->blocks[i].at != p) i++;
    ASSERT(i < comm->blocks_n);
    comm->blocks[i] = comm->blocks[--comm->blocks_n];
    if (comm_has_memory(comm)) {
        engine_enter();
        comm->transport->free(comm->link, p);
        engine_leave();
    } else {
        mem_free(p);
    }
}

void comm_fail(ls_comm *c, ls_status st)
{
    if (!c->transport || !c->transport->fail) return;
    engine_enter();
    run_fail(c, st);
    engine_leave();
}

bool comm_has_failed(const ls_comm *c) { return c->job && atomic_load(&c->job->status); }
