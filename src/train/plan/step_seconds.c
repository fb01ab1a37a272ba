/* step_seconds.c - see step_seconds.h. */
#include "train/plan/step_seconds.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"

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
    const ls_program *p;

    *out = (struct tape_seconds){ 0 };
    for (int i = 0; (p = step_program(s, i)); i++) {
        struct tape_seconds one;
        double message = out->message;

        LS_TRY(play_program(c, s, p, &place, &one));
        tape_seconds_add(out, &one, 1);
        out->message = MAX(message, one.message);
        if (s->pipeline && i < ls_pipeline_chunks(s->pipeline))
            stage_actions_put(a, ls_pipeline_stage(&s->schedule, stage, i), &one, s->schedule.split);
    }
    return LS_OK;
}

static ls_status time_stage(const struct plan_job *j, const ls_layout *l, const struct cluster *c, int stage, const struct stage_actions *a,
                            struct tape_seconds *out, double *model_flops)
{
    int rank = (int)(ls_layout_ranks(l) / l->pp) * (stage + 1) - 1; /* the last: no shard is larger than its */
    struct ranks ranks;
    struct step s;
    ls_status st;

    pulse();
    LS_TRY(ranks_plan(l, rank, &ranks));
    st = step_open(j->model, l, &j->step, &ranks, true, &s);
    if (st == LS_OK) {
        st = time_step(c, &s, stage, a, out);
        *model_flops = step_model_flops(&s);
        step_close(&s);
    }
    ranks_close(&ranks);
    return st;
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

static ls_status time_stages(const struct plan_job *j, const ls_layout *l, const struct cluster *c, const struct stage_actions *a,
                             struct tape_seconds *stages, struct step_seconds *out)
{
    ls_pipeline_schedule schedule = { 0 };
    struct sequence sequence = { 0 };
    double model_flops = 0;
    ls_status st = LS_OK;

    for (int i = 0; i < l->pp; i++) LS_TRY(time_stage(j, l, c, i, a, &stages[i], &model_flops));
    if (l->pp > 1) {
        LS_TRY(ls_layout_schedule(l, &schedule));
        st = sequence_make(&schedule, &sequence);
    }
    if (st == LS_OK) step_seconds_join(&sequence, l->pp, l->micro_batches, stages, a, out);
    out->model_flops = model_flops;
    sequence_free(&sequence);
    ls_pipeline_schedule_free(&schedule);
    return st;
}

double group_buffers_of(const struct cluster *c, const ls_layout *l)
{
    return c->group_buffers * ((l->pp > 1) + (l->dp > 1) + (l->cp > 1) + (l->tp > 1) + (l->ep > 1));
}

ls_status step_seconds_of(const struct plan_job *j, const ls_layout *layout, const struct cluster *c, struct step_seconds *out)
{
    struct tape_seconds *stages;
    struct stage_actions a = { 0 };
    ls_status st;

    LS_TRY(ls_layout_check(task_transformer(j->model), layout));
    LS_TRY(plan_check_seconds(layout));
    LS_TRY(stage_actions_new(layout->pp * MAX(layout->vpp, 1), &a));
    stages = mem_array(MEM_OTHER, (size_t)layout->pp, sizeof *stages);
    st = stages ? time_stages(j, layout, c, &a, stages, out) : LS_ENOMEM;
    mem_free(stages);
    stage_actions_free(&a);
    return st;
}
