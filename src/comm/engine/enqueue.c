/* enqueue.c - a collective or message in a device's queue: it starts when its stream reaches it, on the addresses that the device gives,
 * and the stream continues when it has ended.
 */
#include "comm/engine/engine.h"

#include <string.h>
#include "base/mem.h"
#include "device/device.h"

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

ls_status comm_enqueue(ls_comm *c, const struct device *d, struct device_stream *s, const struct call_args *a)
{
    size_t n = (size_t)c->n, bytes = sizeof(struct queued_call) + 2 * n * sizeof(size_t);
    struct queued_call *q;
    struct buffers b;
    ls_status st;

    LS_TRY(check_arguments(c, a, &b));
    if (!(q = mem_zalloc(MEM_OTHER, bytes))) return LS_ENOMEM;
    *q = (struct queued_call){ .comm = c, .args = *a };
    if (a->counts) memcpy(q->counts, a->counts, n * sizeof *q->counts);
    if (a->recv_counts) memcpy(q->counts + n, a->recv_counts, n * sizeof *q->counts);

    struct device_operation o = { .name = ls_collective_name(a->op), .run = queued_call_run, .args = q, .bytes = bytes };

    add_buffer(&o, offsetof(struct queued_call, args.send), (struct device_access){ .data = a->send, .bytes = b.send });
    add_buffer(&o, offsetof(struct queued_call, args.recv),
               (struct device_access){ .data = a->recv,
                                       .bytes = b.recv,
                                       .write = true,
                                       .whole = a->op != LS_COLLECTIVE_BROADCAST }); /* the root of a broadcast sends from there */
    st = d->enqueue(s, &o);
    mem_free(q);
    return st;
}
