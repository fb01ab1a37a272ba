/* step_seconds.c - see step_seconds.h. */
#include "train/plan/step_seconds.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "parallel/pipeline/stage.h"

void step_seconds_settle(struct config *config, const struct cluster *c)
{
    if (config->run.device == 0) config->run.device = 1; /* the processor: row 0 of DEVICE_MAP */
    if (config->run.isa == CONFIG_ISA_BEST && !c->serial) config->run.isa = CONFIG_ISA_ANY;
    if (config->precision.compute == COMPUTE_AUTO) config->precision.compute = c->flops[LS_BF16] > 0 ? COMPUTE_BF16 : COMPUTE_FP32;
}

/* ---- a stage ---- */

static ls_status play_program(const struct cluster *c, const struct step *s, const ls_program *p, const struct tape_place *place,
                              struct tape_seconds *out)
{
    struct tape t;

    *out = (struct tape_seconds){ 0 };
    LS_TRY(tape_make(c, s, p, &t));
    tape_play(&t, c, place, out);
    tape_free(&t);
    return LS_OK;
}

void stage_actions_put(const struct stage_actions *a, int stage, const struct tape_seconds *x, bool split)
{
    for (int s = SEG_FORWARD; s <= SEG_WEIGHTS; s++) a->micro[s][stage] = x->action[s], a->last[s][stage] = x->final[s];
    if (split) return;
    a->micro[SEG_BACKWARD][stage] += x->action[SEG_WEIGHTS];
    a->last[SEG_BACKWARD][stage] += x->final[SEG_WEIGHTS];
}

static ls_status time_step(const struct cluster *c, const struct step *s, int stage, const struct stage_actions *a,
                           struct tape_seconds *out)
{
    struct tape_place place = tape_place_of(c, &s->layout, s->ranks.rank);
    int chunks = s->pipeline ? ls_pipeline_chunks(s->pipeline) : 0;
    struct tape_chunk *chunk = mem_array(MEM_OTHER, (size_t)chunks + 1, sizeof *chunk);
    const ls_program *p;
    ls_status st = chunk ? LS_OK : LS_ENOMEM;

    *out = (struct tape_seconds){ 0 };
    for (int i = 0; st == LS_OK && (p = step_program(s, i)); i++) {
        struct tape_seconds one;
        double message = out->message;

        if ((st = play_program(c, s, p, &place, &one)) < 0) break;
        tape_seconds_add(out, &one, 1);
        out->message = MAX(message, one.message);
        if (i >= chunks) continue;
        chunk[i] = tape_chunk_of(&one);
        stage_actions_put(a, ls_pipeline_stage(&s->schedule, stage, i), &one, s->schedule.split);
    }
    if (st == LS_OK && chunks) tape_hide_chunks(c, &s->layout, chunk, out);
    mem_free(chunk);
    return st;
}

/* A layout's stages while they are timed. */
struct stages_timed {
    const struct plan_job *job;
    const ls_layout *layout;
    const struct cluster *cluster;
    ls_pipeline_schedule schedule; /* set if pp > 1 */
    const struct stage_actions *actions;
    struct tape_seconds *seconds; /* [pp] */
    int *begin;                   /* [pp * vpp + 1] known after stage 0 has been timed */
    int *other;                   /* [pp] the stages that are timed in parallel */
    double model_flops;
};

/* The rank of a stage that is planned: the last, because no rank's shard is larger. */
static int planned_rank(const ls_layout *l, int stage) { return (int)(ls_layout_ranks(l) / l->pp) * (stage + 1) - 1; }

static ls_status time_stage(struct stages_timed *t, int stage)
{
    const ls_layout *l = t->layout;
    struct ranks ranks;
    struct step s;

    pulse();
    LS_TRY(ranks_plan(l, planned_rank(l, stage), &ranks));
    ls_status st = step_open(t->job->model, l, &t->job->step, &ranks, true, &s);
    if (st == LS_OK) {
        st = time_step(t->cluster, &s, stage, t->actions, &t->seconds[stage]);
        if (stage == 0) t->model_flops = step_model_flops(&s);
        if (stage == 0 && s.pipeline) memcpy(t->begin, ls_pipeline_begin(s.pipeline), ((size_t)(l->pp * l->vpp) + 1) * sizeof *t->begin);
        step_close(&s);
    }
    ranks_close(&ranks);
    return st;
}

static ls_status time_other(void *timed, int i)
{
    struct stages_timed *t = timed;

    return time_stage(t, t->other[i]);
}

/* The first stage that has the same programs and whose groups span the same nodes and pods; else this stage. */
static int timed_twin(const struct stages_timed *t, int stage)
{
    const ls_layout *l = t->layout;
    int twin = stage > 0 ? stage_twin(l, &t->schedule, t->begin, stage) : stage;

    if (twin == stage) return stage;
    struct tape_place here = tape_place_of(t->cluster, l, planned_rank(l, stage)),
                      there = tape_place_of(t->cluster, l, planned_rank(l, twin));
    struct hash_words a = tape_place_words(&here), b = tape_place_words(&there);
    return a.low == b.low && a.high == b.high ? twin : stage;
}

static void time_as(struct stages_timed *t, int stage, int twin)
{
    const ls_layout *l = t->layout;

    t->seconds[stage] = t->seconds[twin];
    for (int k = 0; k < l->vpp; k++) {
        int to = ls_pipeline_stage(&t->schedule, stage, k), from = ls_pipeline_stage(&t->schedule, twin, k);

        for (int kind = 0; kind < 3; kind++) {
            t->actions->micro[kind][to] = t->actions->micro[kind][from];
            t->actions->last[kind][to] = t->actions->last[kind][from];
        }
    }
}

/* Times the stages without an identical earlier one, in parallel. Stage 0 has been timed, which determined where the others begin. */
static ls_status time_others(struct stages_timed *t)
{
    int pp = t->layout->pp;

    t->other = mem_array(MEM_OTHER, (size_t)pp, sizeof *t->other);
    if (!t->other) return LS_ENOMEM;
    int n = 0;
    for (int i = 1; i < pp; i++)
        if (timed_twin(t, i) == i) t->other[n++] = i;
    LS_TRY(plan_tasks(t->job, n, time_other, t));
    for (int i = 1; i < pp; i++) {
        int twin = timed_twin(t, i);

        if (twin != i) time_as(t, i, twin);
    }
    return LS_OK;
}

/* ---- the step ---- */

static double stage_busy(const struct tape_seconds *x, int micros) { return micros * x->micro.all + x->last.all + x->optimizer.all; }

/* The parts of the stage that is busy longest. */
static void put_parts(const struct tape_seconds *x, int micros, struct step_seconds *out)
{
    struct tape_parts sum = { 0 };

    tape_parts_add(&sum, &x->micro, micros);
    tape_parts_add(&sum, &x->last, 1);
    memcpy(out->kernels, sum.kernels, sizeof out->kernels);
    for (int k = 0; k < SECONDS_KINDS; k++) out->optimizer += x->optimizer.kernels[k];
    tape_parts_add(&sum, &x->optimizer, 1);
    memcpy(out->exposed, sum.exposed, sizeof out->exposed);
    memcpy(out->hidden, sum.hidden, sizeof out->hidden);
    out->recomputed = sum.recomputed;
}

double step_seconds_least(int pp, int micro_batches, const struct tape_seconds *stages)
{
    double most = 0;

    for (int i = 0; i < pp; i++) most = MAX(most, stage_busy(&stages[i], micro_batches));
    return most;
}

void step_seconds_join(struct sequence *sequence, int pp, int micro_batches, const struct tape_seconds *stages,
                       const struct stage_actions *a, struct step_seconds *out)
{
    double most = step_seconds_least(pp, micro_batches, stages), message = 0, rest = 0;
    int slowest = 0;

    while (stage_busy(&stages[slowest], micro_batches) < most) slowest++;
    *out = (struct step_seconds){ .step = most };
    put_parts(&stages[slowest], micro_batches, out);
    if (pp == 1) return;
    for (int i = 0; i < pp; i++) {
        message = MAX(message, stages[i].message);
        rest = MAX(rest, stages[i].optimizer.all);
    }
    out->step = sequence_play(sequence, (const double *const[]){ a->micro[0], a->last[0] }, message) + rest;
    out->bubble = out->step - most;
}

ls_status stage_actions_new(int stages, struct stage_actions *out)
{
    size_t n = (size_t)stages;

    double *all = mem_array(MEM_OTHER, 6 * n, sizeof *all);

    for (size_t k = 0; all && k < 3; k++) out->micro[k] = all + k * n, out->last[k] = all + (k + 3) * n;
    return all ? LS_OK : LS_ENOMEM;
}

void stage_actions_free(struct stage_actions *a) { mem_free(a->micro[0]); }

static ls_status time_stages(struct stages_timed *t, struct step_seconds *out)
{
    const ls_layout *l = t->layout;
    struct sequence sequence = { 0 };
    ls_status st = LS_OK;

    LS_TRY(time_stage(t, 0));
    LS_TRY(time_others(t));
    if (l->pp > 1) st = sequence_make(&t->schedule, &sequence);
    if (st == LS_OK) step_seconds_join(&sequence, l->pp, l->micro_batches, t->seconds, t->actions, out);
    out->model_flops = t->model_flops;
    sequence_free(&sequence);
    return st;
}

double group_buffers_of(const struct cluster *c, const ls_layout *l)
{
    return c->group_buffers * ((l->pp > 1) + (l->dp > 1) + (l->cp > 1) + (l->tp > 1) + (l->ep > 1));
}

ls_status step_seconds_of(const struct plan_job *j, const ls_layout *layout, const struct cluster *c, struct step_seconds *out)
{
    struct stage_actions a = { 0 };
    struct stages_timed t = { .job = j, .layout = layout, .cluster = c, .actions = &a };
    int stages = layout->pp * MAX(layout->vpp, 1);

    LS_TRY(task_check_layout(j->model, layout));
    LS_TRY(plan_check_seconds(layout, c));
    if (layout->pp > 1) LS_TRY(ls_layout_schedule(layout, &t.schedule));
    t.seconds = mem_array(MEM_OTHER, (size_t)layout->pp, sizeof *t.seconds);
    t.begin = mem_array(MEM_OTHER, (size_t)stages + 1, sizeof *t.begin);
    ls_status st = t.seconds && t.begin ? stage_actions_new(stages, &a) : LS_ENOMEM;
    if (st == LS_OK) st = time_stages(&t, out);
    stage_actions_free(&a);
    mem_free(t.other);
    mem_free(t.begin);
    mem_free(t.seconds);
    ls_pipeline_schedule_free(&t.schedule);
    return st;
}
