/* enqueue.c - a collective or message in a device's queue: it starts when its stream reaches it; the stream continues when it has ended.
 *
 * Native where the comm has a group of the device's library for it (native.c): the call is posted to the engine when its stream has come to
 * it and ended when the stream is past it, so the boards of the ranks and the verdicts are those of any other call. Else it is staged: the
 * engine makes the call, on the addresses that the device gives.
 */
#include "comm/engine/engine.h"

#include <string.h>
#include "base/mem.h"
#include "device/collectives.h"
#include "device/device.h"

/* ---- staged ---- */

/* counts[2 * n]: a copy of the counts of args, whose own pointers are the caller's. */
struct queued_call {
    ls_comm *comm;
    ls_work *work;
    bool begun;
    struct call_args args;
    size_t counts[];
};

static ls_status queued_call_run(void *args)
{
    struct queued_call *q = args;

    if (!q->begun) {
        if (q->args.counts) q->args.counts = q->counts;
        if (q->args.recv_counts) q->args.recv_counts = q->counts + q->comm->n;
        q->begun = true;
        LS_TRY(operation_run(q->comm, &q->args, &q->work));
    }
    return ls_work_test(&q->work);
}

static void queued_call_waits(void *args, bool on)
{
    struct queued_call *q = args;

    engine_show_wait(q->comm, on ? q->work : NULL);
}

static void add_buffer(struct device_operation *o, size_t at, struct device_access a)
{
    if (!a.bytes) return;
    o->pointer[o->pointers++] = at;
    o->access[o->accesses++] = a;
}

/* The bytes of a call whose arguments are valid. */
static ls_status check_arguments(ls_comm *c, const struct call_args *a, struct buffers *out)
{
    ls_work *w;

    LS_TRY(operation_work(c, a, &w));
    *out = operation_buffers(w);
    work_drop(w);
    return LS_OK;
}

static ls_status enqueue_staged(ls_comm *c, const struct device *d, struct device_stream *s, const struct call_args *a)
{
    size_t n = (size_t)c->n, bytes = sizeof(struct queued_call) + 2 * n * sizeof(size_t);
    struct queued_call *q;
    struct buffers b;

    LS_TRY(check_arguments(c, a, &b));
    if (!(q = mem_zalloc(MEM_OTHER, bytes))) return LS_ENOMEM;
    *q = (struct queued_call){ .comm = c, .args = *a };
    if (a->counts) memcpy(q->counts, a->counts, n * sizeof *q->counts);
    if (a->recv_counts) memcpy(q->counts + n, a->recv_counts, n * sizeof *q->counts);

    struct device_operation o = {
        .name = ls_collective_name(a->op), .run = queued_call_run, .waits = queued_call_waits, .args = q, .bytes = bytes
    };

    add_buffer(&o, offsetof(struct queued_call, args.send), (struct device_access){ .data = a->send, .bytes = b.send });
    add_buffer(&o, offsetof(struct queued_call, args.recv),
               (struct device_access){ .data = a->recv,
                                       .bytes = b.recv,
                                       .write = true,
                                       .overwrites = a->op != LS_COLLECTIVE_BROADCAST }); /* the root of a broadcast sends from there */
    ls_status st = d->enqueue(s, &o);
    mem_free(q);
    return st;
}

/* ---- native ---- */

struct native_call {
    ls_comm *comm;
    ls_work *work; /* NULL: it has ended */
    bool posted;
};

static ls_status native_call_run(void *data)
{
    struct native_call *q = data;

    if (!q->posted) {
        q->posted = true;
        LS_TRY(operation_post_native(q->work));
    }
    return engine_ask(&q->work);
}

static void native_call_over(void *data, bool ended)
{
    struct native_call *q = data;

    if (q->work && q->posted) engine_passed(q->work, ended);
    if (q->work && !q->posted) work_drop(q->work);
}

static ls_status native_call_broken(void *data, ls_status st)
{
    struct native_call *q = data;

    return engine_broken(q->comm, st);
}

static void native_call_waits(void *data, bool on)
{
    struct native_call *q = data;

    engine_show_wait(q->comm, on ? q->work : NULL);
}

static const enum device_collective device_op[] = {
    [LS_COLLECTIVE_ALL_REDUCE] = DEVICE_ALL_REDUCE,
    [LS_COLLECTIVE_ALL_GATHER] = DEVICE_ALL_GATHER,
    [LS_COLLECTIVE_REDUCE_SCATTER] = DEVICE_REDUCE_SCATTER,
    [LS_COLLECTIVE_BROADCAST] = DEVICE_BROADCAST,
    [LS_COLLECTIVE_ALL_TO_ALL] = DEVICE_ALL_TO_ALL,
    [LS_COLLECTIVE_SEND] = DEVICE_SEND,
    [LS_COLLECTIVE_RECV] = DEVICE_RECV,
};
static const enum device_redop device_redop[LS_REDOPS] = { [LS_SUM] = DEVICE_SUM, [LS_AVG] = DEVICE_AVG, [LS_MAX] = DEVICE_MAX };

static struct device_call native_arguments(const struct call_args *a)
{
    return (struct device_call){ .op = device_op[a->op],
                                 .send = a->send,
                                 .recv = a->recv,
                                 .count = a->count,
                                 .type = a->type,
                                 .redop = device_redop[a->redop],
                                 .root = a->root };
}

/* The group that takes the call: the same decision on all ranks that are in it. NULL: it is staged. */
static struct device_group *native_group(const ls_comm *c, const struct call_args *a)
{
    const struct native *v = &c->native;

    if (!v->table || (size_t)a->op >= COUNT_OF(device_op) || (unsigned)a->type >= LS_DTYPES || (unsigned)a->redop >= LS_REDOPS) return NULL;
    struct device_call call = native_arguments(a);
    if (!v->table->takes(&call)) return NULL;
    if (a->op == LS_COLLECTIVE_SEND) return a->root == (c->rank + v->spec.step + c->n) % c->n ? v->out : NULL;
    if (a->op == LS_COLLECTIVE_RECV) return a->root == (c->rank - v->spec.step + c->n) % c->n ? v->in : NULL;
    return a->op == LS_COLLECTIVE_ALL_TO_ALL && !v->spec.exchanges ? NULL : v->all;
}

static ls_status enqueue_native(ls_comm *c, struct device_group *g, struct device_stream *s, const struct call_args *a)
{
    struct device_call call = native_arguments(a);
    struct native_call q = { .comm = c };

    LS_TRY(operation_native(c, a, &q.work));
    if (!q.work) return LS_OK;
    call.at = q.work->request.at;
    call.recv_at = q.work->request.recv_at;
    return c->native.table->enqueue(g, s, &call,
                                    &(struct device_watch){ .data = &q,
                                                            .bytes = sizeof q,
                                                            .run = native_call_run,
                                                            .over = native_call_over,
                                                            .broken = native_call_broken,
                                                            .waits = native_call_waits });
}

ls_status comm_enqueue(ls_comm *c, const struct device *d, struct device_stream *s, const struct call_args *a)
{
    struct device_group *g = native_group(c, a);

    return g ? enqueue_native(c, g, s, a) : enqueue_staged(c, d, s, a);
}
