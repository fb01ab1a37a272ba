/* prices.c - see prices.h. */
#include "train/plan/prices.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "parallel/pipeline/stage.h"
#include "train/plan/patterns.h"

/* Slots of every rank's chunks under a schedule. */
struct in_flight {
    const char *schedule; /* a constant */
    int pp, vpp, micro_batches;
    int *slots; /* [pp][vpp] */
};

struct prices {
    const struct plan_job *job;
    const struct cluster *cluster;
    struct patterns *patterns;
    int seq_len;
    double block, before, after; /* FLOPs of a forward, for balancing stages */
    int **begin;                 /* [layers + 1] first blocks of so many balanced stages; NULL: not asked for yet */
    struct in_flight *in_flight;
    int flights, flight_room;
};

/* ---- opening ---- */

/* FLOPs of a block, and of what comes before and after the blocks. */
static ls_status measure_blocks(struct prices *p)
{
    struct task_model model = *p->job->model;
    ls_store_options options = { .type = LS_F32, .device = p->job->step.device };
    double cost[2];
    ls_store *store = NULL;
    ls_program *program = NULL;

    model.transformer.layers = 2;
    LS_TRY(ls_store_new(&options, &store));
    ls_status st = ls_program_new(store, &program);
    if (st == LS_OK) {
        task_loss(program, &model, 1, (size_t)p->seq_len, true);
        st = ls_program_status(program);
    }
    if (st == LS_OK) {
        stage_costs(program, cost, &p->before, &p->after);
        p->block = cost[0];
    }
    ls_program_release(&program);
    ls_store_release(&store);
    return st;
}

ls_status prices_open(const struct plan_job *j, const struct cluster *c, int seq_len, struct prices **out)
{
    struct prices *p = mem_array(MEM_OTHER, 1, sizeof *p);
    ls_status st = LS_ENOMEM;

    if (!p) return LS_ENOMEM;
    *p = (struct prices){ .job = j, .cluster = c, .seq_len = seq_len };
    p->begin = mem_array(MEM_OTHER, j->model->transformer.layers + 1, sizeof *p->begin);
    if (p->begin) st = patterns_open(j, c, &p->patterns);
    if (st == LS_OK) st = measure_blocks(p);
    if (st == LS_OK)
        *out = p;
    else
        prices_close(&p);
    return st;
}

void prices_close(struct prices **out)
{
    struct prices *p = *out;

    *out = NULL;
    if (!p) return;
    patterns_close(&p->patterns);
    for (size_t i = 0; p->begin && i <= p->job->model->transformer.layers; i++) mem_free(p->begin[i]);
    for (int i = 0; i < p->flights; i++) mem_free(p->in_flight[i].slots);
    mem_free(p->begin);
    mem_free(p->in_flight);
    mem_free(p);
}

int prices_compiled(const struct prices *p) { return patterns_compiled(p->patterns); }

/* ---- what a layout's stages are made of ---- */

/* begin[stages + 1] of balanced stages; owned by p. */
static ls_status balanced(struct prices *p, int stages, const int **out)
{
    int layers = (int)p->job->model->transformer.layers, **begin = &p->begin[stages];
    double *cost;

    *out = *begin;
    if (*begin) return LS_OK;
    *begin = mem_array(MEM_OTHER, (size_t)stages + 1, sizeof **begin);
    cost = mem_array(MEM_OTHER, (size_t)layers, sizeof *cost);
    if (!*begin || !cost) {
        mem_free(cost);
        return LS_ENOMEM;
    }
    for (int i = 0; i < layers; i++) cost[i] = p->block;
    ls_status st = ls_pipeline_balance(layers, cost, p->before, p->after, stages, *begin);
    mem_free(cost);
    *out = *begin;
    return st;
}

/* Slots [pp][vpp] of the layout's schedule; owned by p. */
static ls_status slots_of(struct prices *p, const ls_layout *l, const int **out)
{
    struct in_flight x = { l->schedule, l->pp, l->vpp, l->micro_batches, NULL };
    ls_pipeline_schedule s;

    for (int i = p->flights - 1; i >= 0; i--) {
        const struct in_flight *f = &p->in_flight[i];

        *out = f->slots;
        if (f->schedule == x.schedule && f->pp == x.pp && f->vpp == x.vpp && f->micro_batches == x.micro_batches) return LS_OK;
    }
    if (p->flights == p->flight_room) {
        struct in_flight *grown = mem_resize(p->in_flight, (size_t)(2 * p->flights + 16) * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        p->in_flight = grown;
        p->flight_room = 2 * p->flights + 16;
    }
    LS_TRY(ls_layout_schedule(l, &s));
    x.slots = mem_array(MEM_OTHER, (size_t)(l->pp * l->vpp), sizeof *x.slots);
    for (int r = 0; x.slots && r < l->pp; r++)
        for (int k = 0; k < l->vpp; k++) x.slots[r * l->vpp + k] = ls_pipeline_schedule_slots(&s, r, k);
    ls_pipeline_schedule_free(&s);
    if (!x.slots) return LS_ENOMEM;
    *out = x.slots;
    p->in_flight[p->flights++] = x;
    return LS_OK;
}

static enum pattern_place place_of(int stage, int stages)
{
    return stages == 1 ? PLACE_ONLY : stage == 0 ? PLACE_FIRST : stage == stages - 1 ? PLACE_LAST : PLACE_MIDDLE;
}

/* Virtual stage of a rank's chunk. */
static int stage_of(const ls_layout *l, int rank, int chunk)
{
    bool v = l->pp > 1 && l->schedule && strcmp(l->schedule, "zb-v") == 0;

    return v && chunk ? 2 * l->pp - 1 - rank : chunk * l->pp + rank;
}

/* ---- bytes ---- */

struct bytes_sum {
    double all, slot;
};

static ls_status stage_bytes(struct prices *p, const struct pattern_stage *s, struct bytes_sum *out)
{
    double communication[ROLES] = { 0 };
    struct pattern_sum sum;

    LS_TRY(patterns_sum(p->patterns, s, &sum));
    for (int i = 0; i < sum.n; i++) {
        const struct pattern_term *t = &sum.term[i];
        const struct pattern_bytes *b = &patterns_at(p->patterns, t->pattern)->bytes;
        struct tape_place at = { .samples = t->samples, .ranks = pattern_sharing(s->layout) };

        out->all += t->times * tape_quantity_at(&b->all, &at);
        out->slot += t->times * tape_quantity_at(&b->slot, &at);
        communication[t->role] += t->share * tape_quantity_at(&b->communication, &at);
    }
    out->all += MAX(communication[ROLE_OWN], communication[ROLE_MORE]);
    return LS_OK;
}

/* The layout whose evaluation is the same: it has no backward and no optimizer, and gathers parameters if they are sharded. */
static ls_layout evaluation_layout(const ls_layout *l)
{
    ls_layout out = *l;

    out.recompute = LS_RECOMPUTE_NONE;
    out.zero = l->zero == 3 ? 3 : 0;
    out.replicate = out.zero ? l->replicate : 1;
    out.schedule = NULL;
    return out;
}

static ls_status layout_bytes(struct prices *p, const ls_layout *l, const int *begin, double *most)
{
    ls_layout evaluation = evaluation_layout(l);
    const int *slots = NULL;

    *most = 0;
    if (l->pp > 1) LS_TRY(slots_of(p, l, &slots));
    for (int r = 0; r < l->pp; r++) {
        double sum = 0;

        for (int k = 0; k < l->vpp; k++) {
            int stage = stage_of(l, r, k);
            struct pattern_stage s = { l, place_of(stage, l->pp * l->vpp), begin[stage + 1] - begin[stage], false };
            struct bytes_sum step = { 0 }, held = { 0 };

            LS_TRY(stage_bytes(p, &s, &step));
            s.layout = &evaluation;
            s.evaluation = true;
            if (p->job->evaluates) LS_TRY(stage_bytes(p, &s, &held));
            sum += step.all + held.all + (slots ? slots[r * l->vpp + k] * step.slot : 0);
        }
        *most = MAX(*most, sum);
    }
    return LS_OK;
}

/* ---- seconds ---- */

static ls_status stage_seconds(struct prices *p, const struct pattern_stage *s, const struct tape_place *where, struct tape_seconds *out)
{
    struct pattern_sum sum;

    *out = (struct tape_seconds){ 0 };
    LS_TRY(patterns_sum(p->patterns, s, &sum));
    for (int i = 0; i < sum.n; i++) {
        struct pattern *x = patterns_at(p->patterns, sum.term[i].pattern);
        struct tape_place at = *where;
        struct tape_seconds played = { 0 };

        at.samples = sum.term[i].samples;
        for (int k = 0; k < x->tapes; k++) tape_play(&x->tape[k], p->cluster, &at, &played);
        tape_seconds_add(out, &played, sum.term[i].times);
    }
    return LS_OK;
}

/* The stages of a layout while it is timed. Stages of the same place and size take the same time. */
enum { KINDS = 8 };
struct timing {
    struct prices *p;
    const ls_layout *layout;
    const int *begin;
    struct {
        enum pattern_place place;
        int blocks;
        struct tape_seconds seconds;
    } kind[KINDS];
    int kinds;
    struct tape_seconds *rank; /* [pp] */
    struct stage_actions actions;
};

static ls_status time_kind(struct timing *t, int stage, int rank, struct tape_seconds *out)
{
    const ls_layout *l = t->layout;
    struct pattern_stage s = { l, place_of(stage, l->pp * l->vpp), t->begin[stage + 1] - t->begin[stage], false };

    for (int i = 0; i < t->kinds; i++) {
        *out = t->kind[i].seconds;
        if (t->kind[i].place == s.place && t->kind[i].blocks == s.blocks) return LS_OK;
    }
    struct tape_place where = tape_place_of(t->p->cluster, l, (int)(ls_layout_ranks(l) / l->pp) * (rank + 1) - 1);
    LS_TRY(stage_seconds(t->p, &s, &where, out));
    if (t->kinds == KINDS) return LS_OK;
    t->kind[t->kinds].place = s.place;
    t->kind[t->kinds].blocks = s.blocks;
    t->kind[t->kinds++].seconds = *out;
    return LS_OK;
}

static ls_status time_ranks(struct timing *t)
{
    const ls_layout *l = t->layout;

    for (int r = 0; r < l->pp; r++) {
        double message = 0;

        for (int k = 0; k < l->vpp; k++) {
            int stage = stage_of(l, r, k);
            struct tape_seconds one;

            LS_TRY(time_kind(t, stage, r, &one));
            message = MAX(message, one.message);
            tape_seconds_add(&t->rank[r], &one, 1);
            stage_actions_put(&t->actions, stage, &one, pattern_splits(l));
        }
        t->rank[r].message = message;
    }
    return LS_OK;
}

static ls_status join(struct timing *t, double most, struct price *out)
{
    const ls_layout *l = t->layout;
    ls_pipeline_schedule schedule = { 0 };
    struct step_seconds seconds;

    out->seconds = step_seconds_least(l->pp, l->micro_batches, t->rank);
    out->bounded = l->pp > 1 && out->seconds > most;
    if (l->pp == 1 || out->bounded) return LS_OK;
    LS_TRY(ls_layout_schedule(l, &schedule));
    ls_status st = step_seconds_join(&schedule, l->pp, l->micro_batches, t->rank, &t->actions, &seconds);
    ls_pipeline_schedule_free(&schedule);
    out->seconds = seconds.step;
    return st;
}

ls_status prices_bytes(struct prices *p, const ls_layout *l, double *bytes)
{
    const int *begin;

    LS_TRY(balanced(p, l->pp * l->vpp, &begin));
    return layout_bytes(p, l, begin, bytes);
}

ls_status prices_price(struct prices *p, const ls_layout *l, double room, double most, struct price *out)
{
    struct timing t = { .p = p, .layout = l };

    *out = (struct price){ .seconds = INFINITY };
    LS_TRY(balanced(p, l->pp * l->vpp, &t.begin));
    LS_TRY(layout_bytes(p, l, t.begin, &out->bytes));
    if (out->bytes > room) return LS_OK;
    LS_TRY(stage_actions_new(l->pp * l->vpp, &t.actions));
    t.rank = mem_array(MEM_OTHER, (size_t)l->pp, sizeof *t.rank);
    ls_status st = t.rank ? time_ranks(&t) : LS_ENOMEM;
    if (st == LS_OK) st = join(&t, most, out);
    mem_free(t.rank);
    stage_actions_free(&t.actions);
    return st;
}

/* dp and what is sharded over it are left out. Two micro-batches, because the first of them reduces no gradients. */
ls_status prices_block(struct prices *p, const ls_layout *layout, struct block_seconds *out)
{
    ls_layout l = *layout;
    struct pattern_stage base = { .layout = &l, .blocks = BLOCKS_BASE }, next = { .layout = &l, .blocks = BLOCKS_MOST };
    struct tape_seconds less, more;

    l.pp = l.vpp = l.replicate = 1;
    l.schedule = NULL;
    l.zero = 0;
    l.dp = l.ep;
    l.micro_batches = 2;
    struct tape_place where = tape_place_of(p->cluster, &l, (int)ls_layout_ranks(&l) - 1);
    LS_TRY(stage_seconds(p, &base, &where, &less));
    LS_TRY(stage_seconds(p, &next, &where, &more));
    out->all = more.micro.all - less.micro.all;
    out->ends = less.micro.all - BLOCKS_BASE * out->all;
    out->forward = more.action[SEG_FORWARD] - less.action[SEG_FORWARD];
    return LS_OK;
}
