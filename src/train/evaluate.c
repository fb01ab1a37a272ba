/* evaluate.c - the validation loss. */
#include "train/evaluate.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"

static ls_value build_loss(struct evaluation *e, const struct step *s)
{
    size_t size[2] = { s->batch, s->seq_len }, pixels[4] = { s->batch, s->picture.channels, s->picture.height, s->picture.width };
    ls_value targets = ls_input(e->program, "targets", LS_I32, 2, size);
    ls_value denominator = ls_input(e->program, "denominator", LS_F32, 1, (size_t[]){ 1 });
    ls_model m = s->model;

    m.dropout = 0;
    if (s->image)
        return ls_image_loss(e->program, &s->picture,
                             ls_cast(e->program, ls_input(e->program, "images", LS_F32, 4, pixels), ls_store_settings(s->store).type),
                             ls_reshape(e->program, targets, 1, &s->batch), denominator, 0);
    return ls_model_loss(e->program, &m, ls_input(e->program, "tokens", LS_I32, 2, size), targets, denominator, LS_NONE);
}

static ls_status build(const struct config *c, struct evaluation *e, const struct step *s, bool plan_only)
{
    ls_compile_options o = LS_COMPILE_DEFAULTS;

    LS_TRY(ls_program_new(s->store, &e->program));
    o.plan_only = plan_only;
    ls_output(e->program, "loss", build_loss(e, s));
    LS_TRY(ls_program_status(e->program));
    LS_TRY(step_spread(c, &s->ranks, e->program));
    return ls_program_compile(e->program, &o);
}

static ls_status allocate(struct evaluation *e, const struct step *s)
{
    e->targets = mem_array(MEM_OTHER, e->batch * e->seq_len, sizeof *e->targets);
    if (s->image) e->pixels = mem_array(MEM_OTHER, e->batch * step_pixels(s), sizeof *e->pixels);
    else e->tokens = mem_array(MEM_OTHER, e->batch * e->seq_len, sizeof *e->tokens);
    return (e->tokens || e->pixels) && e->targets ? LS_OK : LS_ENOMEM;
}

ls_status evaluation_open(const struct config *c, const struct step *s, const ls_sampler *sampler, size_t batches,
                          struct evaluation *out)
{
    struct evaluation e = { .ranks = s->ranks, .batch = s->batch, .seq_len = s->seq_len };

    if (s->image) e.images = config_images(c, &s->picture, true);
    else e.sampler = *sampler;
    e.samples = s->image ? e.images.samples : e.sampler.samples;
    if (batches && batches < e.samples / s->global) e.samples = batches * s->global;
    e.batches = (e.samples + e.batch - 1) / e.batch;
    ls_status st = allocate(&e, s);
    if (st == LS_OK) st = build(c, &e, s, false);
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
    mem_free(e->pixels);
    *e = (struct evaluation){ 0 };
}

/* Rows past the last sample repeat the one before, with targets that do not count. */
static ls_status fill(struct evaluation *e, size_t first)
{
    size_t t = e->seq_len, pixels = e->images.channels * e->images.height * e->images.width;

    for (size_t row = 0; row < e->batch; row++) {
        bool counts = first + row < e->samples;
        size_t sample = counts ? first + row : e->samples - 1;

        if (e->pixels) ls_images_get(&e->images, sample, e->pixels + row * pixels, e->targets + row);
        else LS_TRY(ls_sampler_get(&e->sampler, sample, e->tokens + row * t, e->targets + row * t));
        if (!counts) memset(e->targets + row * t, 0xff, t * sizeof *e->targets);
    }
    return LS_OK;
}

static ls_status run_batch(struct evaluation *e, size_t k, float denominator, double *sum)
{
    size_t count = e->batch * e->seq_len, pixels = e->batch * e->images.channels * e->images.height * e->images.width;
    float part;

    LS_TRY(fill(e, k * e->batch));
    if (e->pixels) LS_TRY(ls_program_write(e->program, "images", e->pixels, LS_F32, pixels));
    else LS_TRY(ls_program_write(e->program, "tokens", e->tokens, LS_I32, count));
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
    float denominator = (float)(e->samples * e->seq_len);
    size_t n = (size_t)e->ranks.size, turns = (e->batches + n - 1) / n;
    double sum = 0;

    for (size_t turn = 0; turn < turns; turn++)
        LS_TRY(run_batch(e, turn * n + (size_t)e->ranks.rank, denominator, &sum));
    LS_TRY(ranks_sum(&e->ranks, &sum, 1));
    *loss = sum;
    return LS_OK;
}
