/* pipeline_run.c - one run of a pipeline: this rank's plan, step by step.
 *
 * A message's buffer is a slot's own "stage.in", "out", "din" or "dout": it is the comm's from post to wait. Receives are waited for
 * by the action that needs them, sends before their buffer is written again and at the end of the run.
 */
#include "parallel/pipeline.h"

#include <stdio.h>
#include <string.h>
#include "comm/comm.h"

struct run { ls_pipeline *l; ls_pipeline_feed *before, *after; void *ctx; };

static ls_status wait_end(ls_pipeline *l, int chunk, int slot, enum end e)
{
    struct chunk_end *x = &l->chunk[chunk].end[e];
    double began;
    ls_status st;

    if (!x->count || !x->work[slot])
        return LS_OK;
    began = base_now();
    st = ls_work_wait(&x->work[slot]);
    l->spent.waiting += base_now() - began;
    return st;
}

static ls_status receive(ls_pipeline *l, const struct plan_step *s)
{
    struct chunk_end *x = &l->chunk[s->action.chunk].end[s->action.kind == LS_ACTION_FORWARD ? END_IN : END_DOUT];

    return ls_recv(l->comm[s->action.kind], x->data[s->slot], x->count, x->type, s->from, &x->work[s->slot]);
}

static ls_status send(ls_pipeline *l, const struct plan_step *s, enum end e)
{
    struct chunk_end *x = &l->chunk[s->action.chunk].end[e];

    if (s->to < 0)
        return LS_OK;
    return ls_send(l->comm[s->action.kind], x->data[s->slot], x->count, x->type, s->to, &x->work[s->slot]);
}

/* From one chunk to another on this rank. */
static void hand_over(const struct chunk_end *from, int slot, const struct chunk_end *to, int into)
{
    ASSERT(from->count == to->count && from->type == to->type);
    memcpy(to->data[into], from->data[slot], from->count * ls_dtype_bytes(from->type));
}

static ls_status forward(const struct run *r, const struct plan_step *s)
{
    ls_pipeline *l = r->l;
    int chunk = s->action.chunk;
    struct chunk *c = &l->chunk[chunk];

    LS_TRY(wait_end(l, chunk, s->slot, END_IN));
    LS_TRY(wait_end(l, chunk, s->slot, END_OUT));
    if (s->chunk >= 0)
        hand_over(&l->chunk[s->chunk].end[END_OUT], s->other, &c->end[END_IN], s->slot);
    if (r->before)
        LS_TRY(r->before(r->ctx, c->program, chunk, s->action.micro));
    LS_TRY(ls_program_run(c->program, LS_FORWARD));
    if (r->after && !l->fused)
        LS_TRY(r->after(r->ctx, c->program, chunk, s->action.micro));
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
    if (r->after && l->fused)
        LS_TRY(r->after(r->ctx, c->program, chunk, s->action.micro));
    if (s->chunk >= 0)
        hand_over(&c->end[END_DIN], s->slot, &l->chunk[s->chunk].end[END_DOUT], s->other);
    return send(l, s, END_DIN);
}

static ls_status play(const struct run *r, const struct plan_step *s)
{
    ls_program *p = r->l->chunk[s->action.chunk].program;
    ls_pipeline_spent *t = &r->l->spent;
    double began = base_now(), waited = t->waiting, *sum;
    ls_status st;

    LS_TRY(ls_program_select(p, s->slot));
    switch (s->action.kind) {
    case LS_ACTION_FORWARD:
        st = forward(r, s);
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

/* Everything under way, whatever comes of it; the first failure. */
static ls_status finish(ls_pipeline *l)
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

/* Buffers are the comm's until their messages are over, and some would never come: nobody waits for a rank that has failed. The
 * first message stays. */
static ls_status give_up(ls_pipeline *l, ls_status st)
{
    char message[512];

    snprintf(message, sizeof message, "%s", ls_errmsg());
    if (l->world)
        comm_fail(l->world, st);
    finish(l);
    return ls_fail(st, "%s", message);
}

ls_status ls_pipeline_run(ls_pipeline *l, ls_pipeline_feed *before, ls_pipeline_feed *after, void *ctx)
{
    struct run r = { l, before, after, ctx };
    double began = base_now();
    ls_status st = LS_OK;

    if (!l->runnable)
        return ls_fail(LS_EINVAL, "pipeline: it was opened with plan_only");
    l->spent = (ls_pipeline_spent){ 0 };
    for (int k = 0; st == LS_OK && k < l->plan.n; k++)
        st = l->plan.step[k].receive ? receive(l, &l->plan.step[k]) : play(&r, &l->plan.step[k]);
    st = st == LS_OK ? finish(l) : give_up(l, st);
    l->spent.total = base_now() - began;
    return st;
}
