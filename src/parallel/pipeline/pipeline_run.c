/* pipeline_run.c - runs a pipeline: executes this rank's plan step by step.
 *
 * A message's buffer is the slot's own "stage.in", "out", "din" or "dout"; the comm owns it from post to wait. A receive is waited for by
 * the action that needs it, a send before its buffer is written again and at the end of the run.
 */
#include "parallel/pipeline/pipeline.h"

#include <stdio.h>
#include "comm/comm.h"

struct run {
    ls_pipeline *l;
    ls_pipeline_feed *before, *after;
    void *ctx;
};

/* Makes work queued on streams from here on wait for the message; without streams, waits for the message itself. */
static ls_status wait_end(ls_pipeline *l, int chunk, int slot, enum end e)
{
    struct chunk_end *x = &l->chunk[chunk].end[e];

    if (!x->count) return LS_OK;
    if (!l->streams->device->immediate) {
        l->streams->stream[STREAM_COMPUTE].busy = true;
        return l->streams->device->event_wait(x->message[slot], l->streams->stream[STREAM_COMPUTE].stream);
    }
    if (!x->work[slot]) return LS_OK;
    double began = base_now();
    ls_status st = ls_work_wait(&x->work[slot]);
    l->spent.waiting += base_now() - began;
    return st;
}

/* Queues the message on its stream, after everything that this rank has computed so far. */
static ls_status queue_message(ls_pipeline *l, struct chunk_end *x, int slot, ls_comm *comm, const struct call_args *call)
{
    const struct device *d = l->streams->device;
    int index;

    LS_TRY(stream_set_join(l->streams));
    LS_TRY(stream_set_find(l->streams, stream_key_of(comm, call->op, call->root), true, &index));
    struct device_stream *stream = l->streams->stream[index].stream;
    struct set_stream *compute = &l->streams->stream[STREAM_COMPUTE];
    LS_TRY(d->event_record(compute->end, compute->stream));
    LS_TRY(d->event_wait(compute->end, stream));
    LS_TRY(comm_enqueue(comm, d, stream, call));
    return d->event_record(x->message[slot], stream);
}

static ls_status message(ls_pipeline *l, const struct plan_step *s, enum end e, ls_collective op, int peer)
{
    struct chunk_end *x = &l->chunk[s->action.chunk].end[e];
    ls_comm *comm = l->comm[s->action.kind];
    bool sends = op == LS_COLLECTIVE_SEND;
    struct call_args call = { .op = op,
                              .send = sends ? x->data[s->slot] : NULL,
                              .recv = sends ? NULL : x->data[s->slot],
                              .count = x->count,
                              .type = x->type,
                              .root = peer };

    return l->streams->device->immediate ? operation_run(comm, &call, &x->work[s->slot]) : queue_message(l, x, s->slot, comm, &call);
}

static ls_status receive(ls_pipeline *l, const struct plan_step *s)
{
    return message(l, s, s->action.kind == LS_ACTION_FORWARD ? END_IN : END_DOUT, LS_COLLECTIVE_RECV, s->from);
}

static ls_status send(ls_pipeline *l, const struct plan_step *s, enum end e)
{
    return s->to < 0 ? LS_OK : message(l, s, e, LS_COLLECTIVE_SEND, s->to);
}

/* Copies from one chunk to another on this rank. */
static ls_status copy_chunk(ls_pipeline *l, const struct chunk_end *from, int slot, const struct chunk_end *to, int into)
{
    ASSERT(from->count == to->count && from->type == to->type);
    LS_TRY(stream_set_join(l->streams));
    l->streams->stream[STREAM_COMPUTE].busy = true;
    return l->streams->device->copy(l->streams->stream[STREAM_COMPUTE].stream, to->data[into], from->data[slot],
                                    from->count * ls_dtype_bytes(from->type));
}

static ls_status pipeline_run_forward(const struct run *r, const struct plan_step *s)
{
    ls_pipeline *l = r->l;
    int chunk = s->action.chunk;
    struct chunk *c = &l->chunk[chunk];

    LS_TRY(wait_end(l, chunk, s->slot, END_IN));
    LS_TRY(wait_end(l, chunk, s->slot, END_OUT));
    if (s->chunk >= 0) LS_TRY(copy_chunk(l, &l->chunk[s->chunk].end[END_OUT], s->other, &c->end[END_IN], s->slot));
    if (r->before) LS_TRY(r->before(r->ctx, c->program, chunk, s->action.micro));
    LS_TRY(ls_program_run(c->program, LS_FORWARD));
    if (r->after && !l->fused) LS_TRY(r->after(r->ctx, c->program, chunk, s->action.micro));
    return send(l, s, END_OUT);
}

static ls_status backward(const struct run *r, const struct plan_step *s)
{
    ls_pipeline *l = r->l;
    int chunk = s->action.chunk;
    struct chunk *c = &l->chunk[chunk];

    LS_TRY(wait_end(l, chunk, s->slot, END_DOUT));
    LS_TRY(wait_end(l, chunk, s->slot, END_DIN));
    LS_TRY(ls_program_run(c->program, LS_BACKWARD | (s->last ? LS_LAST : 0)));
    if (r->after && l->fused) LS_TRY(r->after(r->ctx, c->program, chunk, s->action.micro));
    if (s->chunk >= 0) LS_TRY(copy_chunk(l, &c->end[END_DIN], s->slot, &l->chunk[s->chunk].end[END_DOUT], s->other));
    return send(l, s, END_DIN);
}

static ls_status play(const struct run *r, const struct plan_step *s)
{
    ls_program *p = r->l->chunk[s->action.chunk].program;
    ls_pipeline_spent *t = &r->l->spent;
    double began = base_now(), waited = t->waiting, *sum;
    ls_status st;

    r->l->streams->program = NULL; /* messages and copies are ordered before all of its streams */
    LS_TRY(ls_program_select(p, s->slot));
    switch (s->action.kind) {
    case LS_ACTION_FORWARD:
        st = pipeline_run_forward(r, s);
        sum = &t->forward;
        break;
    case LS_ACTION_BACKWARD:
        st = backward(r, s);
        sum = &t->backward;
        break;
    default:
        st = ls_program_run(p, LS_WEIGHTS | (s->last ? LS_LAST : 0));
        sum = &t->weights;
        break;
    }
    *sum += base_now() - began - (t->waiting - waited);
    return st;
}

/* What remains of each chunk after its last micro-batch: waits for the reductions of its gradients. */
static ls_status finish_programs(ls_pipeline *l)
{
    for (int c = 0; c < l->schedule.chunks; c++) {
        ls_program *p = l->chunk[c].program;

        l->streams->program = NULL;
        if (p->list[SEG_OPTIMIZER].n) LS_TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
    }
    return LS_OK;
}

/* Waits for everything in flight, even after a failure; returns the first failure. */
static ls_status pipeline_run_finish(ls_pipeline *l)
{
    ls_status first = LS_OK;

    for (int c = 0; c < l->schedule.chunks; c++)
        for (int e = 0; e < ENDS; e++)
            for (int s = 0; s < l->plan.slots[c]; s++) {
                ls_status st = wait_end(l, c, s, (enum end)e);

                first = first < 0 ? first : st;
            }
    return first;
}

/* Abandons the run. The comm owns buffers until their messages end, and some would never arrive because a failed rank sends nothing more.
 * The first message is kept. */
static ls_status give_up(ls_pipeline *l, ls_status st)
{
    char message[512];

    snprintf(message, sizeof message, "%s", ls_errmsg());
    if (l->world) comm_fail(l->world, st);
    pipeline_run_finish(l);
    return ls_fail(st, "%s", message);
}

ls_status ls_pipeline_run(ls_pipeline *l, ls_pipeline_feed *before, ls_pipeline_feed *after, void *ctx)
{
    struct run r = { l, before, after, ctx };
    double began = base_now();
    ls_status st = LS_OK;

    if (!l->runnable) return ls_fail(LS_EINVAL, "pipeline: it was opened with plan_only and cannot run");
    l->spent = (ls_pipeline_spent){ 0 };
    for (int k = 0; st == LS_OK && k < l->plan.n; k++)
        st = l->plan.step[k].receive ? receive(l, &l->plan.step[k]) : play(&r, &l->plan.step[k]);
    if (st == LS_OK) st = finish_programs(l);
    st = st == LS_OK ? pipeline_run_finish(l) : give_up(l, st);
    l->spent.total = base_now() - began;
    return st;
}
