/* evaluate.c - the validation loss. */
#include "train/evaluate.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"

static ls_status build(const struct config *c, struct evaluation *e, const struct step *s, bool plan_only)
{
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    size_t size[2] = { s->batch, s->seq_len };
    ls_model m = s->model;

    LS_TRY(ls_program_new(s->store, &e->program));
    m.dropout = 0;
    o.plan_only = plan_only;
    ls_value tokens = ls_input(e->program, "tokens", LS_I32, 2, size),
             targets = ls_input(e->program, "targets", LS_I32, 2, size);
    ls_value denominator = ls_input(e->program, "denominator", LS_F32, 1, (size_t[]){ 1 });
    ls_output(e->program, "loss", ls_model_loss(e->program, &m, tokens, targets, denominator, LS_NONE));
    LS_TRY(ls_program_status(e->program));
    LS_TRY(step_spread(c, &s->ranks, e->program));
    return ls_program_compile(e->program, &o);
}

ls_status evaluation_open(const struct config *c, const struct step *s, const ls_sampler *sampler, size_t batches,
                          struct evaluation *out)
{
    struct evaluation e = { .ranks = s->ranks,
                            .sampler = *sampler,
                            .batch = s->batch,
                            .samples = sampler->samples };
    size_t count = e.batch * s->seq_len;

    e.batches = (e.samples + e.batch - 1) / e.batch;
    if (batches && batches < e.batches) {
        e.batches = batches;
        e.samples = batches * e.batch;
    }
    e.tokens = mem_array(MEM_OTHER, count, sizeof *e.tokens);
    e.targets = mem_array(MEM_OTHER, count, sizeof *e.targets);
    ls_status st = e.tokens && e.targets ? build(c, &e, s, false) : LS_ENOMEM;
    if (st == LS_OK) *out = e;
    else evaluation_close(&e);
    return st;
}

ls_status evaluation_plan(const struct config *c, const struct step *s, ls_cost *out)
{
    struct evaluation e = { 0 };
    ls_status st = build(c, &e, s, true);

    if (st == LS_OK) *out = ls_program_cost(e.program);
    evaluation_close(&e);
    return st;
}

void evaluation_close(struct evaluation *e)
{
    ls_program_release(&e->program);
    mem_free(e->tokens);
    mem_free(e->targets);
    *e = (struct evaluation){ 0 };
}

/* Rows past the last sample repeat the one before, with targets that do not count. */
static ls_status fill(struct evaluation *e, size_t first)
{
    size_t t = e->sampler.seq_len;

    for (size_t row = 0; row < e->batch; row++) {
        bool counts = first + row < e->samples;
        size_t sample = counts ? first + row : e->samples - 1;

        LS_TRY(ls_sampler_get(&e->sampler, sample, e->tokens + row * t, e->targets + row * t));
        if (!counts) memset(e->targets + row * t, 0xff, t * sizeof *e->targets);
    }
    return LS_OK;
}

static ls_status run_batch(struct evaluation *e, size_t k, float denominator, double *sum)
{
    size_t count = e->batch * e->sampler.seq_len;
    float part;

    LS_TRY(fill(e, k * e->batch));
    LS_TRY(ls_program_write(e->program, "tokens", e->tokens, LS_I32, count));
    LS_TRY(ls_program_write(e->program, "targets", e->targets, LS_I32, count));
    LS_TRY(ls_program_write(e->program, "denominator", &denominator, LS_F32, 1));
    LS_TRY(ls_program_run(e->program, LS_FORWARD));
    LS_TRY(ls_program_read(e->program, "loss", &part, LS_F32, 1));
    *sum += part;
    return LS_OK;
}

/* A rank whose turn comes behind the last micro-batch runs one without weight: programs may communicate. */
ls_status evaluation_run(struct evaluation *e, double *loss)
{
    float denominator = (float)(e->samples * e->sampler.seq_len);
    size_t n = (size_t)e->ranks.size, turns = (e->batches + n - 1) / n;
    double sum = 0;

    for (size_t turn = 0; turn < turns; turn++)
        LS_TRY(run_batch(e, turn * n + (size_t)e->ranks.rank, denominator, &sum));
    LS_TRY(ranks_sum(&e->ranks, &sum, 1));
    *loss = sum;
    return LS_OK;
}
