/* counts.c - counters of calls and bytes, and the bytes that a call would send.
 *
 * A step list's bytes are those of its messages. A transport's native collective is counted by what the peers read from this rank: for an
 * all-reduce its share of each peer's block, and its own finished block once per peer.
 */
#include "comm/engine/engine.h"

#include <pthread.h>

/* Counters of the process. */
static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;
static ls_comm_count counts_total[LS_COLLECTIVES];
static comm_watch_fn *watch;
static void *watch_ctx;

void comm_watch(comm_watch_fn *fn, void *ctx)
{
    pthread_mutex_lock(&counts_lock);
    watch = fn;
    watch_ctx = ctx;
    pthread_mutex_unlock(&counts_lock);
}

ls_comm_count comm_counted(ls_collective c)
{
    pthread_mutex_lock(&counts_lock);
    ls_comm_count n = counts_total[c];
    pthread_mutex_unlock(&counts_lock);
    return n;
}

static void counts_add(ls_comm_count *n, const ls_work *w, double began, double exposed)
{
    n->calls++;
    n->bytes += w->bytes;
    n->seconds += w->finished - began;
    n->exposed += exposed;
}

static struct comm_seen seen(const ls_work *w, double began)
{
    const struct signature *s = &w->request.signature;
    bool message = w->op == LS_COLLECTIVE_SEND || w->op == LS_COLLECTIVE_RECV;

    return (struct comm_seen){ .comm = w->comm,
                               .name = w->comm->name,
                               .op = w->op,
                               .bytes = w->bytes,
                               .group = s->group,
                               .sequence = s->sequence,
                               .rank = w->comm->rank,
                               .peer = message ? w->request.root : -1,
                               .queued = w->queued,
                               .started = began,
                               .ended = w->finished };
}

void count_exposed(ls_work *w, double seconds)
{
    if (w->hidden) return;
    w->comm->count[w->op].exposed += seconds;
    pthread_mutex_lock(&counts_lock);
    counts_total[w->op].exposed += seconds;
    pthread_mutex_unlock(&counts_lock);
}

void count_reaped(ls_work *w, double exposed)
{
    double began = w->started > 0 ? w->started : w->queued;

    if (w->hidden) return;
    counts_add(&w->comm->count[w->op], w, began, exposed);
    pthread_mutex_lock(&counts_lock);
    counts_add(&counts_total[w->op], w, began, exposed);
    if (watch) {
        struct comm_seen e = seen(w, began);

        watch(watch_ctx, &e);
    }
    pthread_mutex_unlock(&counts_lock);
}

uint64_t count_transport(const ls_work *w, int peer)
{
    const ls_comm *c = w->comm;
    const struct request *r = &w->request;
    const size_t *at = r->at;
    size_t elements = 0;

    switch (w->op) {
    case LS_COLLECTIVE_ALL_REDUCE: elements = at[peer + 1] - at[peer] + at[c->rank + 1] - at[c->rank]; break;
    case LS_COLLECTIVE_ALL_GATHER: elements = at[c->rank + 1] - at[c->rank]; break;
    case LS_COLLECTIVE_REDUCE_SCATTER:
    case LS_COLLECTIVE_ALL_TO_ALL: elements = at[peer + 1] - at[peer]; break;
    case LS_COLLECTIVE_BROADCAST: elements = c->rank == r->root ? at[c->n] : 0; break;
    default: break;
    }
    return (uint64_t)elements * ls_dtype_bytes(r->type);
}

ls_comm_count ls_comm_counters(const ls_comm *comm, ls_collective c)
{
    if ((unsigned)c >= LS_COLLECTIVES) return (ls_comm_count){ 0 };
    return comm->count[c];
}

uint64_t ls_comm_bytes_to(const ls_comm *comm, int peer)
{
    if (peer < 0 || peer >= comm->n) return 0;
    engine_enter();
    uint64_t bytes = comm->to[peer];
    engine_leave();
    return bytes;
}

/* Bytes that this rank sends when it runs the list. */
static uint64_t list_bytes(ls_work *w)
{
    struct cached_list *l;
    uint64_t bytes = 0;

    if (list_for(w, &l) == LS_OK) bytes = (uint64_t)steps_sent(&l->list) * ls_dtype_bytes(w->request.type);
    return bytes;
}

uint64_t ls_comm_bytes_of(const ls_comm *comm, ls_collective c, size_t count, const size_t *counts, ls_dtype type)
{
    struct call_args ask = { .op = c, .count = count, .v = counts, .counts = counts, .recv_counts = counts, .type = type, .hidden = true };
    uint64_t bytes = 0;
    ls_work *w;

    if (comm->n == 1 || c == LS_COLLECTIVE_RECV || (unsigned)c >= LS_COLLECTIVES || (unsigned)type >= LS_DTYPES) return 0;
    if (c == LS_COLLECTIVE_SEND) return (uint64_t)count * ls_dtype_bytes(type);
    if (operation_work((ls_comm *)(uintptr_t)comm, &ask, &w) < 0) return 0; /* not const: its lists are a cache */
    engine_enter();
    if (transport_preferred(w))
        for (int peer = 0; peer < comm->n; peer++) bytes += peer == comm->rank ? 0 : count_transport(w, peer);
    else
        bytes = list_bytes(w);
    engine_leave();
    work_drop(w);
    return bytes;
}
