/* operations.c - the public calls: check arguments, make a request with its block borders and signature, and pass it to the engine.
 *
 * Every error names the call and the numbers. Nothing is sent before all of a call's arguments have been checked.
 */
#include "comm/engine/engine.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "base/mem.h"
#include "device/device.h"

/* ---- operations as objects ---- */

static ls_work *work_new(ls_comm *c)
{
    ls_work *w = c->spare;
    size_t borders = 2 * ((size_t)c->n + 1) * sizeof(size_t);

    if (w) {
        c->spare = w->next;
    } else {
        if (!(w = mem_alloc(MEM_OTHER, sizeof *w + borders))) return NULL;
        w->made = c->made;
        c->made = w;
    }
    ls_work *made = w->made;
    memset((char *)w + offsetof(ls_work, comm), 0, sizeof *w - offsetof(ls_work, comm) + borders); /* the borders follow it */
    w->comm = c;
    w->borders = (size_t *)(void *)(w + 1);
    w->made = made;
    return w;
}

void work_drop(ls_work *w)
{
    w->next = w->comm->spare;
    w->comm->spare = w;
}

void works_free(ls_comm *c)
{
    while (c->made) {
        ls_work *w = c->made;

        c->made = w->made;
        mem_free(w);
    }
}

/* ---- checks ---- */

static const char *call_name(const struct call_args *a)
{
    static const char *const v[] = { [LS_COLLECTIVE_ALL_GATHER] = "all_gather_v",
                                     [LS_COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter_v",
                                     [LS_COLLECTIVE_ALL_TO_ALL] = "all_to_all_v" };

    return a->v && (size_t)a->op < COUNT_OF(v) && v[a->op] ? v[a->op] : ls_collective_name(a->op);
}

static bool operations_is_message(const struct call_args *a) { return a->op == LS_COLLECTIVE_SEND || a->op == LS_COLLECTIVE_RECV; }
static bool reduces(const struct call_args *a) { return a->op == LS_COLLECTIVE_ALL_REDUCE || a->op == LS_COLLECTIVE_REDUCE_SCATTER; }
static bool has_root(const struct call_args *a) { return a->op == LS_COLLECTIVE_BROADCAST || operations_is_message(a); }

static bool one_block(const struct call_args *a)
{
    return a->op == LS_COLLECTIVE_ALL_REDUCE || a->op == LS_COLLECTIVE_BROADCAST || operations_is_message(a);
}

static ls_status check_words(const ls_comm *c, const struct call_args *a)
{
    if ((unsigned)a->type >= LS_DTYPES) return ls_fail(LS_EINVAL, "%s: %d is not a valid dtype", call_name(a), (int)a->type);
    if (a->v && (!a->counts || (a->op == LS_COLLECTIVE_ALL_TO_ALL && !a->recv_counts)))
        return ls_fail(LS_EINVAL, "%s: counts is NULL", call_name(a));
    if (reduces(a) && (unsigned)a->redop >= LS_REDOPS)
        return ls_fail(LS_EINVAL, "%s: %d is not a valid operator", call_name(a), (int)a->redop);
    if (reduces(a) && a->redop == LS_AVG && !ls_dtype_is_float(a->type))
        return ls_fail(LS_EINVAL, "%s: the average of %s is not an integer; use a sum, and divide where it is used", call_name(a),
                       ls_dtype_name(a->type));
    if (has_root(a) && (a->root < 0 || a->root >= c->n))
        return ls_fail(LS_EINVAL, "%s: rank %d is out of range: the comm has %d ranks", call_name(a), a->root, c->n);
    if (operations_is_message(a) && a->root == c->rank)
        return ls_fail(LS_EINVAL, "%s: rank %d cannot exchange messages with itself", call_name(a), a->root);
    return LS_OK;
}

/* at[n + 1] = borders of blocks of counts[n], or of count each. */
static ls_status borders(const ls_comm *c, const struct call_args *a, const size_t *counts, size_t *at)
{
    size_t bytes;

    at[0] = 0;
    for (int i = 0; i < c->n; i++)
        if (!size_add(at[i], counts ? counts[i] : a->count, &at[i + 1]))
            return ls_fail(LS_EINVAL, "%s: the counts of %d ranks overflow size_t", call_name(a), c->n);
    if (!size_mul(at[c->n], ls_dtype_bytes(a->type), &bytes) || bytes > PTRDIFF_MAX)
        return ls_fail(LS_EINVAL, "%s: %zu elements of %s overflow size_t", call_name(a), at[c->n], ls_dtype_name(a->type));
    return LS_OK;
}

static ls_status one_block_borders(const ls_comm *c, const struct call_args *a, size_t *at)
{
    size_t bytes;

    if (!size_mul(a->count, ls_dtype_bytes(a->type), &bytes) || bytes > PTRDIFF_MAX)
        return ls_fail(LS_EINVAL, "%s: %zu elements of %s overflow size_t", call_name(a), a->count, ls_dtype_name(a->type));
    for (int i = 0; i <= c->n; i++) at[i] = block_at(a->count, i, c->n);
    return LS_OK;
}

static ls_status make_borders(ls_work *w, const struct call_args *a)
{
    const ls_comm *c = w->comm;
    size_t *at = w->borders, *recv_at = at + c->n + 1;

    if (a->op == LS_COLLECTIVE_BARRIER) return LS_OK;
    w->request.at = at;
    if (one_block(a)) return one_block_borders(c, a, at);
    LS_TRY(borders(c, a, a->counts, at));
    if (a->op != LS_COLLECTIVE_ALL_TO_ALL) return LS_OK;
    w->request.recv_at = recv_at;
    return borders(c, a, a->recv_counts, recv_at);
}

/* ---- buffers ---- */

struct buffers operation_buffers(const ls_work *w)
{
    const ls_comm *c = w->comm;
    const size_t *at = w->borders, *recv_at = at + c->n + 1;
    size_t size = ls_dtype_bytes(w->request.type), all = at[c->n] * size, own = at[c->rank] * size;
    size_t block = at[c->rank + 1] * size - own;

    switch (w->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return (struct buffers){ all, all, 0 };
    case LS_COLLECTIVE_ALL_GATHER: return (struct buffers){ block, all, own };
    case LS_COLLECTIVE_REDUCE_SCATTER: return (struct buffers){ all, block, own };
    case LS_COLLECTIVE_ALL_TO_ALL: return (struct buffers){ all, recv_at[c->n] * size, 0 };
    case LS_COLLECTIVE_SEND: return (struct buffers){ all, 0, 0 };
    case LS_COLLECTIVE_RECV:
    case LS_COLLECTIVE_BROADCAST: return (struct buffers){ 0, all, 0 };
    default: return (struct buffers){ 0, 0, 0 };
    }
}

static bool in_place(const ls_work *w, const struct buffers *b)
{
    uintptr_t send = (uintptr_t)w->request.send, recv = (uintptr_t)w->request.recv;
    size_t n = (size_t)w->comm->n + 1;

    switch (w->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return send == recv;
    case LS_COLLECTIVE_ALL_GATHER: return send == recv + b->own;
    case LS_COLLECTIVE_REDUCE_SCATTER: return recv == send + b->own;
    case LS_COLLECTIVE_ALL_TO_ALL: return send == recv && !memcmp(w->borders, w->borders + n, n * sizeof *w->borders);
    default: return false;
    }
}

static ls_status check_buffers(const ls_work *w, const struct call_args *a)
{
    struct buffers b = operation_buffers(w);
    uintptr_t send = (uintptr_t)a->send, recv = (uintptr_t)a->recv;

    if (b.send && !send) return ls_fail(LS_EINVAL, "%s: the send buffer is NULL, but %zu bytes are to be sent", call_name(a), b.send);
    if (b.recv && !recv)
        return ls_fail(LS_EINVAL, "%s: the receive buffer is NULL, but %zu bytes are to be received", call_name(a), b.recv);
    if (b.send && b.recv && send < recv + b.recv && recv < send + b.send && !in_place(w, &b))
        return ls_fail(LS_EINVAL, "%s: send [%p, %zu bytes) and recv [%p, %zu bytes) overlap, but not as an in-place call (at offset %zu)",
                       call_name(a), a->send, b.send, a->recv, b.recv, b.own);
    return LS_OK;
}

/* ---- requests ---- */

static uint64_t hash_counts(const size_t *counts, int n)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (int i = 0; i < n; i++) h = (h ^ counts[i]) * 0x100000001b3u;
    return h | 1;
}

/* The same on all ranks, except for all_to_all_v, where each rank has its own counts. */
static struct signature sign(const ls_work *w, const struct call_args *a)
{
    const ls_comm *c = w->comm;
    bool own = a->v && a->op == LS_COLLECTIVE_ALL_TO_ALL, sums = a->v && !own;

    return (struct signature){
        .count = own || a->op == LS_COLLECTIVE_BARRIER ? 0
                 : sums                                ? w->borders[c->n]
                                                       : a->count,
        .group = c->group,
        .counts = own    ? 1
                  : sums ? hash_counts(a->counts, c->n)
                         : 0,
        .op = (int32_t)a->op,
        .type = (int32_t)a->type,
        .redop = reduces(a) ? (int32_t)a->redop : -1,
        .root = has_root(a) ? a->root : -1,
    };
}

ls_status operation_work(ls_comm *c, const struct call_args *a, ls_work **out)
{
    ls_work *w;
    ls_status st;

    LS_TRY(check_words(c, a));
    if (!(w = work_new(c))) return LS_ENOMEM;
    w->op = a->op;
    w->hidden = a->hidden;
    w->request.send = a->send;
    w->request.recv = a->recv;
    w->request.count = a->v ? 0 : a->count;
    w->request.type = a->type;
    w->request.redop = a->redop;
    w->request.root = a->root;
    if ((st = make_borders(w, a)) < 0) goto drop_work;
    w->request.signature = sign(w, a);
    *out = w;
    return LS_OK;

drop_work:
    work_drop(w);
    return st;
}

/* ---- running ---- */

static void run_alone(ls_work *w)
{
    struct buffers b = operation_buffers(w);
    const struct request *r = &w->request;

    if (b.send && b.recv && r->send != r->recv) memcpy(r->recv, r->send, b.recv);
    w->started = w->finished = base_now();
    recorder_update(w->call, CALL_DONE, 0, w->finished);
    atomic_store(&w->ended, true);
}

static void number(ls_work *w)
{
    ls_comm *c = w->comm;
    struct signature *s = &w->request.signature;
    bool message = w->op == LS_COLLECTIVE_SEND || w->op == LS_COLLECTIVE_RECV;

    s->sequence = message ? ++c->pair_sequence[(w->op == LS_COLLECTIVE_RECV ? c->n : 0) + w->request.root] : ++c->sequence;
}

comm_call_fault_fn *comm_call_fault;

/* True if an injected fault skips the call. */
static bool is_skipped(ls_work *w, const struct call_args *a)
{
    comm_call_fault_fn *fault = __atomic_load_n(&comm_call_fault, __ATOMIC_ACQUIRE);

    return fault && !a->hidden && fault(w->comm, &w->request.signature);
}

static ls_status reap(ls_work *w, double exposed)
{
    ls_comm *c = w->comm;
    ls_status st = w->status;

    if (st < 0) ls_fail(st, "%s", c->job->line);
    count_reaped(w, exposed);
    work_drop(w);
    return st;
}

ls_status operation_run(ls_comm *c, const struct call_args *a, ls_work **work)
{
    ls_status st = (ls_status)atomic_load(&c->job->status);
    ls_work *w;

    if (work)
        *work = NULL;
    else
        LS_TRY(device_settle());
    if (st < 0) return ls_fail(st, "%s", c->job->line);
    LS_TRY(operation_work(c, a, &w));
    if ((st = check_buffers(w, a)) < 0) goto drop_work;
    if (c->n > 1 && !c->transport->start) {
        st = ls_fail(LS_EUNSUPPORTED, "%s: a comm of \"%s:\" cannot communicate", call_name(a), c->transport->name);
        goto drop_work;
    }
    if (is_skipped(w, a)) goto drop_work;
    number(w);
    w->queued = base_now();
    w->call = recorder_begin(&w->request.signature, c->name, w->queued);
    if (c->n == 1)
        run_alone(w);
    else if (!work)
        engine_run(w);
    else if ((st = engine_post(w)) < 0)
        goto drop_work;
    if (!work) return reap(w, w->finished - w->queued);
    if (!w->lazy) count_exposed(w, base_now() - w->queued); /* a lazy one has only been queued */
    *work = w;
    return LS_OK;

drop_work:
    work_drop(w);
    return st;
}

ls_status operation_native(ls_comm *c, const struct call_args *a, ls_work **out)
{
    ls_status st = (ls_status)atomic_load(&c->job->status);
    ls_work *w;

    if (st < 0) return ls_fail(st, "%s", c->job->line);
    LS_TRY(operation_work(c, a, &w));
    if ((st = check_buffers(w, a)) < 0) {
        work_drop(w);
        return st;
    }
    w->native = true;
    *out = NULL;
    if (is_skipped(w, a)) {
        work_drop(w);
        return LS_OK;
    }
    *out = w;
    return LS_OK;
}

ls_status operation_post_native(ls_work *w)
{
    number(w);
    w->queued = base_now();
    w->call = recorder_begin(&w->request.signature, w->comm->name, w->queued);
    return engine_post(w);
}

ls_status ls_work_test(ls_work **work)
{
    ls_work *w = *work;

    if (!w) return LS_OK;
    if (!engine_test(w)) return LS_BUSY;
    *work = NULL;
    return reap(w, 0);
}

ls_status ls_work_wait(ls_work **work)
{
    ls_work *w = work ? *work : NULL;

    if (!w) return LS_OK;
    device_settle(); /* the device reports its failure */
    double began = atomic_load(&w->ended) ? INFINITY : base_now();
    engine_wait(w);
    *work = NULL;
    return reap(w, MAX(w->finished - began, 0));
}

int comm_wait_any(ls_work *const *works, int n)
{
    double began = base_now();

    device_settle();
    int first = engine_wait_any(works, n);
    count_exposed(works[first], base_now() - began);
    return first;
}

/* ---- the calls ---- */

ls_status ls_all_reduce(ls_comm *comm, const void *send, void *recv, size_t count, ls_dtype type, ls_redop op, ls_work **work)
{
    return operation_run(
        comm, &(struct call_args){ .op = LS_COLLECTIVE_ALL_REDUCE, .send = send, .recv = recv, .count = count, .type = type, .redop = op },
        work);
}

ls_status ls_all_gather(ls_comm *comm, const void *send, void *recv, size_t count, ls_dtype type, ls_work **work)
{
    return operation_run(
        comm, &(struct call_args){ .op = LS_COLLECTIVE_ALL_GATHER, .send = send, .recv = recv, .count = count, .type = type }, work);
}

ls_status ls_all_gather_v(ls_comm *comm, const void *send, void *recv, const size_t *counts, ls_dtype type, ls_work **work)
{
    return operation_run(
        comm, &(struct call_args){ .op = LS_COLLECTIVE_ALL_GATHER, .send = send, .recv = recv, .v = true, .counts = counts, .type = type },
        work);
}

ls_status ls_reduce_scatter(ls_comm *comm, const void *send, void *recv, size_t count, ls_dtype type, ls_redop op, ls_work **work)
{
    return operation_run(
        comm,
        &(struct call_args){ .op = LS_COLLECTIVE_REDUCE_SCATTER, .send = send, .recv = recv, .count = count, .type = type, .redop = op },
        work);
}

ls_status ls_reduce_scatter_v(ls_comm *comm, const void *send, void *recv, const size_t *counts, ls_dtype type, ls_redop op, ls_work **work)
{
    return operation_run(
        comm,
        &(struct call_args){
            .op = LS_COLLECTIVE_REDUCE_SCATTER, .send = send, .recv = recv, .v = true, .counts = counts, .type = type, .redop = op },
        work);
}

ls_status ls_all_to_all(ls_comm *comm, const void *send, void *recv, size_t count, ls_dtype type, ls_work **work)
{
    return operation_run(
        comm, &(struct call_args){ .op = LS_COLLECTIVE_ALL_TO_ALL, .send = send, .recv = recv, .count = count, .type = type }, work);
}

ls_status ls_all_to_all_v(ls_comm *comm, const void *send, const size_t *send_counts, void *recv, const size_t *recv_counts, ls_dtype type,
                          ls_work **work)
{
    return operation_run(comm,
                         &(struct call_args){ .op = LS_COLLECTIVE_ALL_TO_ALL,
                                              .send = send,
                                              .recv = recv,
                                              .v = true,
                                              .counts = send_counts,
                                              .recv_counts = recv_counts,
                                              .type = type },
                         work);
}

ls_status ls_broadcast(ls_comm *comm, void *buf, size_t count, ls_dtype type, int root, ls_work **work)
{
    return operation_run(
        comm, &(struct call_args){ .op = LS_COLLECTIVE_BROADCAST, .recv = buf, .count = count, .type = type, .root = root }, work);
}

ls_status ls_send(ls_comm *comm, const void *buf, size_t count, ls_dtype type, int to, ls_work **work)
{
    return operation_run(comm, &(struct call_args){ .op = LS_COLLECTIVE_SEND, .send = buf, .count = count, .type = type, .root = to },
                         work);
}

ls_status ls_recv(ls_comm *comm, void *buf, size_t count, ls_dtype type, int from, ls_work **work)
{
    return operation_run(comm, &(struct call_args){ .op = LS_COLLECTIVE_RECV, .recv = buf, .count = count, .type = type, .root = from },
                         work);
}

ls_status ls_barrier(ls_comm *comm) { return operation_run(comm, &(struct call_args){ .op = LS_COLLECTIVE_BARRIER, .type = LS_U8 }, NULL); }
