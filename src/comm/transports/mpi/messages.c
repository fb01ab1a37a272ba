/* messages.c - payload with its signature: a head, and the payload in the head or in chunks after it. */
#include "comm/transports/mpi/world.h"

static struct pending *pending_take(struct link *l)
{
    struct pending *f = l->spare;

    if (f)
        l->spare = f->next;
    else if (!(f = host->zalloc(MEM_OTHER, sizeof *f)))
        return NULL;
    f->head = f->body = MPI_REQUEST_NULL;
    f->head_over = false;
    f->next = l->active;
    l->active = f;
    return f;
}

static void pending_give(struct link *l, struct pending *f)
{
    struct pending **at = &l->active;

    while (*at != f) at = &(*at)->next;
    *at = f->next;
    f->next = l->spare;
    l->spare = f;
}

/* The chunk of the payload that starts at t->done. */
static int start_chunk(struct link *l, struct transfer *t, struct pending *f)
{
    char *at = (char *)t->data + t->done;
    int bytes = (int)MIN(t->bytes - t->done, (size_t)CHUNK), peer = l->members[t->peer];
    int tag = l->range * TAGS + 2 * t->channel + 1;

    return t->sending ? MPI_Isend(at, bytes, MPI_BYTE, peer, tag, mpi.data, &f->body)
                      : MPI_Irecv(at, bytes, MPI_BYTE, peer, tag, mpi.data, &f->body);
}

ls_status row_start(struct link *l, struct transfer *t)
{
    int peer = l->members[t->peer], tag = l->range * TAGS + 2 * t->channel, code;
    struct pending *f;

    if (mpi.failed) return verdict();
    if (!(f = pending_take(l))) return LS_ENOMEM;
    t->done = 0;
    t->request = f;
    if ((f->sending = t->sending)) {
        size_t with = t->bytes <= INLINE_BYTES ? t->bytes : 0;

        f->message.head = (struct head){ *t->signature, t->bytes };
        if (with) memcpy(f->message.data, t->data, with);
        code = MPI_Isend(&f->message, (int)(sizeof(struct head) + with), MPI_BYTE, peer, tag, mpi.data, &f->head);
    } else {
        code = MPI_Irecv(&f->message, sizeof f->message, MPI_BYTE, peer, tag, mpi.data, &f->head);
    }
    if (code == MPI_SUCCESS && t->bytes > INLINE_BYTES) code = start_chunk(l, t, f);
    return code == MPI_SUCCESS ? LS_OK : mpi_refused(code, "starting a message");
}

/* The message must have the expected signature and length. */
static ls_status check_head(struct link *l, struct transfer *t, struct pending *f, int came)
{
    const struct head *h = &f->message.head;
    size_t with = t->bytes <= INLINE_BYTES ? t->bytes : 0;

    if (came >= (int)sizeof *h && !host->agrees(t->signature, &h->signature)) {
        ls_status st = host->mismatch(&l->base, l->base.rank, t->signature, t->peer, &h->signature);
        return end_job(st, "%s", host->message());
    }
    if (came < (int)sizeof *h || h->bytes != t->bytes || (size_t)came != sizeof *h + with)
        return end_job(LS_EPEER, "mpi: %s: rank %d sent a message of %llu bytes where rank %d expects %zu", l->base.name, t->peer,
                       came < (int)sizeof *h ? 0ull : (unsigned long long)h->bytes, l->base.rank, t->bytes);
    if (with) memcpy(t->data, f->message.data, with);
    return LS_OK;
}

static ls_status poll_head(struct link *l, struct transfer *t, struct pending *f)
{
    MPI_Status s;
    int done = 0, came = 0, code = MPI_Test(&f->head, &done, &s);

    if (code != MPI_SUCCESS) return mpi_refused(code, t->sending ? "sending a message" : "receiving a message");
    if (!done) return LS_BUSY;
    f->head_over = true;
    if (t->sending) return LS_OK;
    MPI_Get_count(&s, MPI_BYTE, &came);
    return check_head(l, t, f, came);
}

ls_status row_poll(struct link *l, struct transfer *t)
{
    struct pending *f = t->request;

    if (mpi.failed) return verdict();
    if (!f->head_over) {
        ls_status st = poll_head(l, t, f);
        if (st != LS_OK) return st;
        if (t->bytes <= INLINE_BYTES) t->done = t->bytes;
    }
    while (t->done < t->bytes) {
        int done = 0, code = MPI_Test(&f->body, &done, MPI_STATUS_IGNORE);

        if (code == MPI_SUCCESS && !done) return LS_BUSY;
        t->done += MIN(t->bytes - t->done, (size_t)CHUNK);
        if (code == MPI_SUCCESS && t->done < t->bytes) code = start_chunk(l, t, f);
        if (code != MPI_SUCCESS) return mpi_refused(code, t->sending ? "sending a message" : "receiving a message");
    }
    pending_give(l, f);
    t->request = NULL;
    return LS_OK;
}

/* MPI does not signal messages: sleeps briefly, unless one is there. */
ls_status row_idle(struct link *l, double seconds)
{
    look();
    if (mpi.failed) return verdict();
    for (struct pending *f = l->active; f; f = f->next) {
        int done = 0;

        MPI_Request_get_status(f->head_over ? f->body : f->head, &done, MPI_STATUS_IGNORE);
        if (done) return LS_OK;
    }
    nap(seconds);
    return verdict();
}

/* Cancels receives that are no longer needed; if MPI does not release one at once, its memory is never freed. */
void messages_abandon(struct link *l)
{
    double deadline = host->now() + 0.2;

    for (struct pending *f = l->active, *next; f; f = next) {
        next = f->next;
        if (!f->sending) {
            if (f->head != MPI_REQUEST_NULL) MPI_Cancel(&f->head);
            if (f->body != MPI_REQUEST_NULL) MPI_Cancel(&f->body);
        }
        while (!(over(&f->head) && over(&f->body)) && host->now() < deadline) nap(100e-6);
        f->next = mpi.abandoned;
        mpi.abandoned = f;
    }
}
