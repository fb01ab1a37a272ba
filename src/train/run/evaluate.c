/* evaluate.c - the validation loss. */
#include "train/run/evaluate.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"

enum { TIMED_ROUNDS = 4 }; /* rounds that evaluation_run_part() runs at most */

struct making {
    struct evaluation *e;
    const struct step *s;
};

static ls_status build_stage(void *ctx, ls_program *p, const ls_stage *stage)
{
    const struct making *m = ctx;
    const struct step *s = m->s;
    struct distributing how = { &s->layout, &s->ranks, &s->model };

    ls_output(p, "loss", task_loss(p, &s->model, s->batch, s->seq_len, false));
    LS_TRY(ls_program_status(p));
    return step_distribute(&how, p, stage);
}

/* Number of micro-batches that each of the dp ranks runs. */
static size_t evaluation_rounds(const struct evaluation *e)
{
    size_t n = (size_t)ls_mesh_size(e->ranks.mesh, LS_GROUP_DP);

    return (e->batches + n - 1) / n;
}

static ls_status build_pipeline(struct making *m, const ls_compile_options *compile)
{
    const struct step *s = m->s;
    struct evaluation *e = m->e;
    ls_pipeline_options o = {
        .schedule = &e->schedule, .begin = ls_pipeline_begin(s->pipeline), .build = build_stage, .ctx = m, .compile = *compile
    };

    LS_TRY(ls_pipeline_schedule_make(s->schedule.order == LS_STAGES_V ? "forward-v" : "forward", s->schedule.stages, s->schedule.chunks,
                                     (int)evaluation_rounds(e), &e->schedule));
    return ls_pipeline_open(s->store, s->ranks.mesh, &o, &e->pipeline);
}

static ls_status evaluate_build(struct evaluation *e, const struct step *s, bool plan_only)
{
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    struct making m = { e, s };

    o.plan_only = plan_only;
    if (s->pipeline) return build_pipeline(&m, &o);
    LS_TRY(ls_program_new(s->store, &e->program));
    LS_TRY(build_stage(&m, e->program, NULL));
    return ls_program_compile(e->program, &o);
}

static ls_status evaluate_allocate(struct evaluation *e, size_t values)
{
    e->targets = mem_array(MEM_OTHER, e->batch * e->seq_len, sizeof *e->targets);
    e->inputs = mem_array(MEM_OTHER, e->batch * values, TASK_VALUE_BYTES);
    return e->inputs && e->targets ? LS_OK : LS_ENOMEM;
}

ls_status evaluation_open(const struct step *s, const struct task_samples *from, size_t batches, struct evaluation *out)
{
    struct evaluation e = {
        .ranks = s->ranks,
        .task = s->model.task,
        .from = *from,
        .batch = s->batch,
        .seq_len = s->seq_len,
        .samples = from->count,
    };

    if (batches && batches < e.samples / s->global) e.samples = batches * s->global;
    e.batches = (e.samples + e.batch - 1) / e.batch;
    ls_status st = evaluate_allocate(&e, s->feed.values);
    if (st == LS_OK) st = feed_open(&s->ranks, s->layout.cp_method, e.batch, e.seq_len, s->feed.values, &e.feed);
    if (st == LS_OK) st = evaluate_build(&e, s, false);
    if (st == LS_OK)
        *out = e;
    else
        evaluation_close(&e);
    return st;
}

ls_status evaluation_plan(const struct step *s, ls_cost *out)
{
    struct evaluation e = { .ranks = s->ranks, .batches = (size_t)ls_mesh_size(s->ranks.mesh, LS_GROUP_DP) };
    ls_status st = evaluate_build(&e, s, true);

    if (st == LS_OK) *out = evaluation_cost(&e);
    evaluation_close(&e);
    return st;
}

ls_cost evaluation_cost(const struct evaluation *e)
{
    ls_cost cost = { 0 };

    if (e->program) return ls_program_cost(e->program);
    for (int i = 0; e->pipeline && i < ls_pipeline_chunks(e->pipeline); i++) {
        ls_cost chunk = ls_program_cost(ls_pipeline_program(e->pipeline, i));

        cost.activations += chunk.activations;
        cost.communication += chunk.communication;
    }
    return cost;
}

bool evaluation_is_open(const struct evaluation *e) { return e->program || e->pipeline; }

void evaluation_close(struct evaluation *e)
{
    readback_close(&e->readback);
    ls_program_release(&e->program);
    ls_pipeline_close(&e->pipeline);
    ls_pipeline_schedule_free(&e->schedule);
    feed_close(&e->feed);
    mem_free(e->inputs);
    mem_free(e->targets);
    *e = (struct evaluation){ 0 };
}

/* Rows beyond the last sample repeat it, with targets that do not count. */
static ls_status evaluate_fill(struct evaluation *e, size_t first)
{
    size_t t = e->seq_len, bytes = e->feed.values * TASK_VALUE_BYTES;

    for (size_t row = 0; row < e->batch; row++) {
        bool counts = first + row < e->samples;
        size_t sample = counts ? first + row : e->samples - 1;

        LS_TRY(e->task->get_sample(&e->from, sample, (char *)e->inputs + row * bytes, e->targets + row * t));
        if (!counts) memset(e->targets + row * t, 0xff, t * sizeof *e->targets);
    }
    return LS_OK;
}

/* A rank that has no micro-batch left in the last round runs one whose targets do not count, because programs may communicate. */
static ls_status evaluate_before(void *ctx, ls_program *p, int chunk, int micro)
{
    struct evaluation *e = ctx;
    size_t n = (size_t)ls_mesh_size(e->ranks.mesh, LS_GROUP_DP), k = (size_t)micro * n + (size_t)ls_mesh_index(e->ranks.mesh, LS_GROUP_DP);
    struct micro_batch m = {
        .input = e->inputs, .targets = e->targets, .denominator = (float)(e->samples * e->seq_len), .global = e->samples
    };

    if (chunk == 0 && e->watch.fn) e->watch.fn(e->watch.ctx, MIN((size_t)micro * n * e->batch, e->samples), e->samples);
    m.samples = k * e->batch < e->samples ? MIN(e->batch, e->samples - k * e->batch) : 0;
    LS_TRY(evaluate_fill(e, k * e->batch));
    return feed_write(&e->feed, e->task, p, &m);
}

static ls_status evaluate_after(void *ctx, ls_program *p, int chunk, int micro)
{
    struct evaluation *e = ctx;

    (void)chunk;
    (void)micro;
    return ls_program_has(p, "loss") ? readback_add(&e->readback, p, "loss", &e->loss, 1) : LS_OK;
}

/* Enqueues the first n rounds; a pipeline always runs all rounds of its schedule. */
static ls_status enqueue_rounds(struct evaluation *e, size_t n)
{
    if (e->pipeline) return ls_pipeline_run(e->pipeline, evaluate_before, evaluate_after, e);
    for (size_t round = 0; round < n; round++) {
        LS_TRY(evaluate_before(e, e->program, 0, (int)round));
        LS_TRY(ls_program_run(e->program, LS_FORWARD));
        LS_TRY(evaluate_after(e, e->program, 0, (int)round));
    }
    return LS_OK;
}

/* Runs the first n rounds and adds up their losses. */
static ls_status run_rounds(struct evaluation *e, size_t n)
{
    e->loss = 0;
    ls_status st = enqueue_rounds(e, n);

    if (st == LS_OK) return readback_finish(&e->readback);
    readback_drop(&e->readback);
    return st;
}

ls_status evaluation_run_part(struct evaluation *e, double *times)
{
    size_t n = evaluation_rounds(e), part = e->pipeline ? n : MIN(n, (size_t)TIMED_ROUNDS);

    *times = (double)n / (double)part;
    return run_rounds(e, part);
}

ls_status evaluation_run(struct evaluation *e, double *loss)
{
    LS_TRY(run_rounds(e, evaluation_rounds(e)));
    if (ls_mesh_index(e->ranks.mesh, LS_GROUP_TP) > 0) e->loss = 0; /* all tp ranks have the same loss; the first one counts it */
    LS_TRY(ranks_sum(&e->ranks, &e->loss, 1));
    *loss = e->loss;
    return LS_OK;
}
