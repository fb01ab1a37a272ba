/* evaluate.c - the validation loss. */
#include "train/evaluate.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"

static ls_status build(struct evaluation *e, const struct step *s, bool plan_only)
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
    return ls_program_compile(e->program, &o);
}

ls_status evaluation_open(const struct step *s, const ls_sampler *sampler, size_t batches, struct evaluation *out)
{
    struct evaluation e = { .sampler = *sampler,
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
    ls_status st = e.tokens && e.targets ? build(&e, s, false) : LS_ENOMEM;
    if (st == LS_OK) *out = e;
    else evaluation_close(&e);
    return st;
}

ls_status evaluation_plan(const struct step *s, size_t *activations)
{
    struct evaluation e = { 0 };
    ls_status st = build(&e, s, true);

    if (st == LS_OK) *activations = ls_program_cost(e.program).activations;
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

ls_status evaluation_run(struct evaluation *e, double *loss)
{
    size_t t = e->sampler.seq_len, count = e->batch * t;
    float denominator = (float)(e->samples * t), part;
    double sum = 0;

    for (size_t k = 0; k < e->batches; k++) {
        LS_TRY(fill(e, k * e->batch));
        LS_TRY(ls_program_write(e->program, "tokens", e->tokens, LS_I32, count));
        LS_TRY(ls_program_write(e->program, "targets", e->targets, LS_I32, count));
        LS_TRY(ls_program_write(e->program, "denominator", &denominator, LS_F32, 1));
        LS_TRY(ls_program_run(e->program, LS_FORWARD));
        LS_TRY(ls_program_read(e->program, "loss", &part, LS_F32, 1));
        sum += part;
    }
    *loss = sum;
    return LS_OK;
}
