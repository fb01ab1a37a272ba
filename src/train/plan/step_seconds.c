/* step_seconds.c - see step_seconds.h. */
#include "train/plan/step_seconds.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "ir/op_info.h"

/* Seconds of a list of instructions, by what they are. */
struct parts {
    double all; /* from the first instruction to the end of the last */
    double kernels[SECONDS_KINDS], recomputed, exposed[LS_AXES], hidden[LS_AXES];
};

/* A rank's clock. Collectives of a group follow each other, what is received beside what is sent; end[slot]: when an exchange is over. */
struct clock {
    const struct cluster *cluster;
    const struct step *step;
    ls_mesh_shape shape;
    double now, idle_from[LS_GROUPS][2];
    double *end; /* [slots of the program] */
    struct parts *parts;
};

/* The group of a program's comm: one of the mesh's. */
static ls_group group_of(const struct clock *t, const ls_comm *comm)
{
    int g = 0;

    while (g < LS_GROUPS && ls_mesh_comm(t->step->ranks.mesh, (ls_group)g) != comm) g++;
    ASSERT(g < LS_GROUPS);
    return (ls_group)g;
}

static double group_seconds(const struct clock *t, ls_group g, ls_collective op, double bytes)
{
    struct mesh_position at = mesh_position_of(&t->shape, g, t->step->ranks.rank);
    struct seconds_group where = seconds_group_of(t->cluster, &at);

    return seconds_of_collective(t->cluster, &where, op, bytes);
}

static double exchange_seconds(const struct clock *t, const ls_program *p, const struct instruction *i, ls_group g)
{
    const struct exchange *e = instruction_exchange(i);
    ls_value v = i->nin && i->in[0].id ? i->in[0] : i->out[0];

    return group_seconds(t, g, e->op, (double)e->total * (double)ls_dtype_bytes(p->values[v.id].dtype));
}

static void clock_start(struct clock *t, const ls_program *p, const struct instruction *i)
{
    const struct exchange *e = instruction_exchange(i);
    ls_group g = group_of(t, e->comm);
    double *idle_from = &t->idle_from[g][e->op == LS_COLLECTIVE_RECV], seconds = exchange_seconds(t, p, i, g);

    t->end[e->slot] = *idle_from = MAX(t->now, *idle_from) + seconds;
    t->parts->hidden[e->axis] += seconds;
}

/* Routed rows, or their counts, are exchanged while nothing else runs. shuffle_bytes() is what leaves the rank, of n shares n - 1. */
static void clock_shuffle(struct clock *t, const ls_program *p, const struct instruction *i)
{
    const ls_comm *comm = instruction_shuffle(i)->comm;
    double n = ls_comm_size(comm), bytes = op_run_kind(i->op) == RUN_SHUFFLE ? (double)shuffle_bytes(p, i) * n / (n - 1) : 0;
    double seconds = group_seconds(t, group_of(t, comm), LS_COLLECTIVE_ALL_TO_ALL, bytes);

    t->now += seconds;
    t->parts->exposed[LS_AXIS_EP] += seconds;
}

static void clock_wait(struct clock *t, const struct instruction *i)
{
    const struct exchange *e = instruction_exchange(i);
    double waited = t->end[e->slot] - t->now;

    if (waited <= 0) return;
    t->now = t->end[e->slot];
    t->parts->exposed[e->axis] += waited;
    t->parts->hidden[e->axis] -= waited;
}

static void clock_kernel(struct clock *t, const ls_program *p, const struct instruction *i)
{
    enum seconds_kind kind;
    double seconds = seconds_of_kernel(t->cluster, p, i, &kind);

    t->now += seconds;
    t->parts->kernels[kind] += seconds;
    if (i->phase == LS_PHASE_RECOMPUTE) t->parts->recomputed += seconds;
}

/* Runs a segment in the last micro-batch, or in one before it. */
static void clock_segment(struct clock *t, const ls_program *p, enum segment s, bool last)
{
    double begin = t->now;

    for (int n = 0; n < p->list[s].n; n++) {
        const struct instruction *i = &p->list[s].at[n];

        if (i->when == (last ? LS_WHEN_NOT_LAST : LS_WHEN_LAST)) continue;
        if (op_payload(i->op) == PAYLOAD_shuffle && instruction_shuffle(i)->comm)
            clock_shuffle(t, p, i);
        else if (!instruction_is_exchange(i))
            clock_kernel(t, p, i);
        else if (instruction_is_start(i))
            clock_start(t, p, i);
        else
            clock_wait(t, i);
    }
    t->parts->all += t->now - begin;
}

/* ---- a stage ---- */

/* What the programs of one rank take. micro: a micro-batch before the last; last: what the last one takes in addition. */
struct stage {
    struct parts micro, last, optimizer;
    double message, model_flops;
};

/* The seconds of each virtual stage's actions; zero where there is no pipeline. */
struct actions {
    double *forward, *backward, *weights;
};

static void parts_add(struct parts *to, const struct parts *x, double times)
{
    to->all += times * x->all;
    to->recomputed += times * x->recomputed;
    for (int k = 0; k < SECONDS_KINDS; k++) to->kernels[k] += times * x->kernels[k];
    for (int a = 0; a < LS_AXES; a++) {
        to->exposed[a] += times * x->exposed[a];
        to->hidden[a] += times * x->hidden[a];
    }
}

static ls_status clock_open(const struct cluster *c, const struct step *s, const ls_program *p, struct clock *t)
{
    *t = (struct clock){ .cluster = c, .step = s, .shape = ls_layout_mesh(&s->layout) };
    t->end = mem_array(MEM_OTHER, (size_t)p->slots + 1, sizeof *t->end);
    return t->end ? LS_OK : LS_ENOMEM;
}

static void clock_close(struct clock *t) { mem_free(t->end); }

/* One micro-batch; seconds[3], if given: of its forward, its backward and its weight gradients. */
static void clock_micro(struct clock *t, const ls_program *p, bool last, struct parts *parts, double *seconds)
{
    t->parts = parts;
    for (int s = SEG_FORWARD; s <= SEG_WEIGHTS; s++) {
        double begin = t->now;

        clock_segment(t, p, (enum segment)s, last);
        if (seconds) seconds[s] = t->now - begin;
    }
}

static ls_status time_program(const struct cluster *c, const struct step *s, const ls_program *p, double seconds[3], struct stage *out)
{
    struct parts micro = { 0 }, last = { 0 };
    struct clock t;

    LS_TRY(clock_open(c, s, p, &t));
    clock_micro(&t, p, false, &micro, seconds);
    clock_micro(&t, p, true, &last, NULL);
    t.parts = &out->optimizer;
    clock_segment(&t, p, SEG_OPTIMIZER, true);
    clock_close(&t);
    parts_add(&out->micro, &micro, 1);
    parts_add(&out->last, &last, 1);
    parts_add(&out->last, &micro, -1);
    return LS_OK;
}

/* Seconds of the activation that a stage sends to the next. */
static double message_seconds(const struct cluster *c, const struct step *s, const ls_program *p)
{
    ls_mesh_shape shape = ls_layout_mesh(&s->layout);
    struct mesh_position at = mesh_position_of(&shape, LS_GROUP_PP, s->ranks.rank);
    struct seconds_group where;
    const struct value *v = &p->values[p->stage.out.id];

    if (!p->stage.out.id) return 0;
    at.size = 2; /* a stage and the next, the pair that is furthest apart */
    where = seconds_group_of(c, &at);
    return seconds_of_collective(c, &where, LS_COLLECTIVE_SEND, (double)value_count(v) * (double)ls_dtype_bytes(v->dtype));
}

static ls_status time_step(const struct cluster *c, const struct step *s, int stage, const struct actions *a, struct stage *out)
{
    const ls_program *p;

    *out = (struct stage){ .model_flops = step_model_flops(s) };
    for (int i = 0; (p = step_program(s, i)); i++) {
        double seconds[3] = { 0 };

        LS_TRY(time_program(c, s, p, seconds, out));
        if (!s->pipeline || i >= ls_pipeline_chunks(s->pipeline)) continue;
        int at = ls_pipeline_stage(&s->schedule, stage, i);
        a->forward[at] = seconds[SEG_FORWARD];
        a->backward[at] = seconds[SEG_BACKWARD] + (s->schedule.split ? 0 : seconds[SEG_WEIGHTS]);
        a->weights[at] = s->schedule.split ? seconds[SEG_WEIGHTS] : 0;
        out->message = MAX(out->message, message_seconds(c, s, p));
    }
    return LS_OK;
}

static ls_status time_stage(const struct plan_job *j, const ls_layout *l, const struct cluster *c, int stage, const struct actions *a,
                            struct stage *out)
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
        step_close(&s);
    }
    ranks_close(&ranks);
    return st;
}

/* ---- the step ---- */

static double stage_busy(const struct stage *x, int micros) { return micros * x->micro.all + x->last.all + x->optimizer.all; }

/* The parts of the stage that is busy longest. */
static void put_parts(const struct stage *x, int micros, struct step_seconds *out)
{
    struct parts sum = { 0 };

    parts_add(&sum, &x->micro, micros);
    parts_add(&sum, &x->last, 1);
    memcpy(out->kernels, sum.kernels, sizeof out->kernels);
    for (int k = 0; k < SECONDS_KINDS; k++) out->optimizer += x->optimizer.kernels[k];
    parts_add(&sum, &x->optimizer, 1);
    memcpy(out->exposed, sum.exposed, sizeof out->exposed);
    memcpy(out->hidden, sum.hidden, sizeof out->hidden);
    out->recomputed = sum.recomputed;
    out->model_flops = x->model_flops;
}

/* From the first forward to the end of the last backward of all stages, as the schedule has them. */
static ls_status play(const ls_layout *l, const struct actions *a, double message, double *seconds)
{
    ls_pipeline_times times = { a->forward, a->backward, a->weights, message };
    ls_pipeline_schedule schedule;
    ls_pipeline_timeline played;
    ls_status st;

    LS_TRY(ls_layout_schedule(l, &schedule));
    st = ls_pipeline_play(&schedule, &times, &played);
    if (st == LS_OK) {
        *seconds = played.seconds;
        ls_pipeline_played_free(&schedule, &played);
    }
    ls_pipeline_schedule_free(&schedule);
    return st;
}

static ls_status time_stages(const struct plan_job *j, const ls_layout *l, const struct cluster *c, const struct actions *a,
                             struct stage *stages, struct step_seconds *out)
{
    int slowest = 0, micros = l->micro_batches;
    double message = 0, most = 0, rest = 0, played = 0;

    for (int i = 0; i < l->pp; i++) {
        LS_TRY(time_stage(j, l, c, i, a, &stages[i]));
        if (stage_busy(&stages[i], micros) > most) most = stage_busy(&stages[i], micros), slowest = i;
        message = MAX(message, stages[i].message);
        rest = MAX(rest, stages[i].last.all + stages[i].optimizer.all);
    }
    *out = (struct step_seconds){ .step = most };
    put_parts(&stages[slowest], micros, out);
    if (l->pp == 1) return LS_OK;
    LS_TRY(play(l, a, message, &played));
    out->step = played + rest;
    out->bubble = out->step - most;
    return LS_OK;
}

ls_status step_seconds_of(const struct plan_job *j, const ls_layout *layout, const struct cluster *c, struct step_seconds *out)
{
    size_t n = (size_t)layout->pp * (size_t)MAX(layout->vpp, 1);
    struct stage *stages;
    struct actions a;
    ls_status st;

    LS_TRY(ls_layout_check(task_transformer(j->model), layout));
    stages = mem_array(MEM_OTHER, (size_t)layout->pp, sizeof *stages);
    a.forward = mem_array(MEM_OTHER, 3 * n, sizeof *a.forward);
    if (!stages || !a.forward) {
        st = LS_ENOMEM;
    } else {
        a.backward = a.forward + n;
        a.weights = a.backward + n;
        st = time_stages(j, layout, c, &a, stages, out);
    }
    mem_free(a.forward);
    mem_free(stages);
    return st;
}
