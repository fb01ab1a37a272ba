/* prices.c - see prices.h. */
#include "train/plan/prices.h"

#include <limits.h>
#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "parallel/layout.h"
#include "parallel/pipeline/stage.h"
#include "train/plan/kept_plays.h"
#include "train/plan/kept_schedules.h"
#include "train/plan/patterns.h"

struct prices {
    const struct plan_job *job;
    const struct cluster *cluster;
    struct patterns *patterns;
    int seq_len;
    double block, before, after; /* forward FLOPs of a block, and before and after the blocks, for balancing stages */
    int *given;                  /* first blocks of stages that a layout names */
    int **begin;                 /* [layers + 1] at k: first blocks of k balanced stages; NULL: not computed yet */
    struct kept_schedules *schedules;
    struct kept_plays *plays;
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
    if (p->begin) st = kept_schedules_open(&p->schedules);
    if (st == LS_OK) st = kept_plays_open(&p->plays);
    if (st == LS_OK) st = patterns_open(j, c, &p->patterns);
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
    kept_schedules_close(&p->schedules);
    mem_free(p->given);
    mem_free(p->begin);
    kept_plays_close(&p->plays);
    mem_free(p);
}

int prices_compiled(const struct prices *p) { return patterns_compiled(p->patterns); }

/* ---- the blocks of a layout's stages ---- */

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

/* begin[stages + 1] of the layout: the stages that it names, which may have no blocks, or balanced ones; owned by p, valid until the next
 * call. */
static ls_status stages_of(struct prices *p, const ls_layout *l, const int **out)
{
    int stages = l->pp * l->vpp, count;

    if (!l->stages || !*l->stages) return balanced(p, stages, out);
    mem_free(p->given);
    p->given = mem_array(MEM_OTHER, (size_t)stages + 1, sizeof *p->given);
    if (!p->given) return LS_ENOMEM;
    LS_TRY(layout_read_stages(l, 0, INT_MAX / stages, p->given, &count));
    if (count != stages) return ls_fail(LS_EINVAL, "parallel.stages=%s: expected %d numbers, the layers of each stage", l->stages, stages);
    *out = p->given;
    return LS_OK;
}

static enum pattern_place prices_place_of(int stage, int stages)
{
    return stages == 1 ? PLACE_ONLY : stage == 0 ? PLACE_FIRST : stage == stages - 1 ? PLACE_LAST : PLACE_MIDDLE;
}

/* Virtual stage of a rank's chunk. */
static int prices_stage_of(const ls_layout *l, int rank, int chunk)
{
    return chunk && layout_is_v(l) ? 2 * l->pp - 1 - rank : chunk * l->pp + rank;
}

/* ---- bytes ---- */

/* As pattern_bytes, but `all` includes communication. */
struct bytes_sum {
    double all, parameters, gradients, optimizer, communication, slot, host;
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
        out->parameters += t->times * tape_quantity_at(&b->parameters, &at);
        out->gradients += t->times * tape_quantity_at(&b->gradients, &at);
        out->optimizer += t->times * tape_quantity_at(&b->optimizer, &at);
        out->slot += t->times * tape_quantity_at(&b->slot, &at);
        out->host += t->times * tape_quantity_at(&b->host, &at);
        communication[t->role] += t->share * tape_quantity_at(&b->communication, &at);
    }
    out->communication = MAX(communication[ROLE_OWN], communication[ROLE_MORE]);
    out->all += out->communication;
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

/* Stages of the same place and size have the same bytes and seconds. Stages beyond this many kinds are computed one by one. */
enum { KINDS = 8 };

struct stage_kind {
    enum pattern_place place;
    int blocks;
    struct bytes_sum sum;
};

static struct stage_kind prices_kind_of(const ls_layout *l, const int *begin, int stage)
{
    return (struct stage_kind){ .place = prices_place_of(stage, l->pp * l->vpp), .blocks = begin[stage + 1] - begin[stage] };
}

static int find_kind(const struct stage_kind *kind, int kinds, const struct stage_kind *x)
{
    int i = 0;

    while (i < kinds && (kind[i].place != x->place || kind[i].blocks != x->blocks)) i++;
    return i;
}

/* evaluation: NULL: without it. */
static ls_status kind_bytes(struct prices *p, const ls_layout *l, const ls_layout *evaluation, struct stage_kind *x)
{
    struct pattern_stage s = { l, x->place, x->blocks, false };
    struct bytes_sum held = { 0 };

    LS_TRY(stage_bytes(p, &s, &x->sum));
    s.layout = evaluation;
    s.evaluation = true;
    if (evaluation) LS_TRY(stage_bytes(p, &s, &held));
    x->sum.all += held.all;
    return LS_OK;
}

/* The kinds of a layout's stages, and one stage of each, followed by that of the evaluation if it counts too. */
struct kinds {
    struct stage_kind kind[KINDS];
    struct pattern_stage stage[2 * KINDS];
    int kinds, stages;
};

static void find_kinds(const ls_layout *l, const ls_layout *evaluation, const int *begin, struct kinds *out)
{
    out->kinds = out->stages = 0;
    for (int i = 0; i < l->pp * l->vpp && out->kinds < KINDS; i++) {
        struct stage_kind x = prices_kind_of(l, begin, i);

        if (find_kind(out->kind, out->kinds, &x) < out->kinds) continue;
        out->kind[out->kinds++] = x;
        out->stage[out->stages++] = (struct pattern_stage){ l, x.place, x.blocks, false };
        if (evaluation) out->stage[out->stages++] = (struct pattern_stage){ evaluation, x.place, x.blocks, true };
    }
}

static ls_status bytes_of_kinds(struct prices *p, const ls_layout *l, const ls_layout *evaluation, struct kinds *k)
{
    LS_TRY(patterns_prepare(p->patterns, k->stage, k->stages));
    for (int i = 0; i < k->kinds; i++) LS_TRY(kind_bytes(p, l, evaluation, &k->kind[i]));
    return LS_OK;
}

static bool kinds_are_made(const struct prices *p, const struct kinds *k)
{
    int i = 0;

    while (i < k->stages && patterns_made(p->patterns, &k->stage[i])) i++;
    return i == k->stages;
}

/* The weights with which the parts of a stage's bytes count. */
struct counted {
    double parameters, gradients, optimizer, communication;
};
static const struct counted count_all = { 1, 1, 1, 1 };

static double counted_bytes(const struct bytes_sum *x, const struct counted *c)
{
    return x->all - (1 - c->parameters) * x->parameters - (1 - c->gradients) * x->gradients - (1 - c->optimizer) * x->optimizer -
           (1 - c->communication) * x->communication;
}

/* Bytes of the layout's ranks. kinds: find_kinds() has filled it. */
static ls_status ranks_bytes(struct prices *p, const ls_layout *l, const ls_layout *evaluation, const int *begin, struct kinds *kinds,
                             const struct counted *counted, struct price *out)
{
    struct kept_schedule *schedule = NULL;

    if (l->pp > 1) LS_TRY(kept_schedule_of(p->schedules, l, &schedule));
    LS_TRY(bytes_of_kinds(p, l, evaluation, kinds));
    for (int r = 0; r < l->pp; r++) {
        double sum = 0, host = 0;

        for (int k = 0; k < l->vpp; k++) {
            struct stage_kind x = prices_kind_of(l, begin, prices_stage_of(l, r, k));
            int i = find_kind(kinds->kind, kinds->kinds, &x);

            if (i < kinds->kinds)
                x = kinds->kind[i];
            else
                LS_TRY(kind_bytes(p, l, evaluation, &x));
            sum += counted_bytes(&x.sum, counted) + (schedule ? schedule->slots[r * l->vpp + k] * x.sum.slot : 0);
            host += x.sum.host;
        }
        out->bytes = MAX(out->bytes, sum);
        out->host = MAX(out->host, host);
    }
    return LS_OK;
}

/* if_made: only if the patterns of the first kinds of stages are compiled; else out->bytes is 0. */
static ls_status layout_bytes(struct prices *p, const ls_layout *l, const int *begin, bool if_made, struct price *out)
{
    ls_layout evaluated = evaluation_layout(l), *evaluation = p->job->evaluates ? &evaluated : NULL;
    struct kinds kinds;

    out->bytes = out->host = 0;
    find_kinds(l, evaluation, begin, &kinds);
    if (if_made && !kinds_are_made(p, &kinds)) return LS_OK;
    return ranks_bytes(p, l, evaluation, begin, &kinds, &count_all, out);
}

/* ---- seconds ---- */

static ls_status stage_seconds(struct prices *p, const struct pattern_stage *s, const struct tape_place *where, struct tape_seconds *out)
{
    struct pattern_sum sum;
    struct tape_place at = *where;
    struct hash_words place = tape_place_words(where);

    *out = (struct tape_seconds){ 0 };
    LS_TRY(patterns_sum(p->patterns, s, &sum));
    for (int i = 0; i < sum.n; i++) {
        struct tape_seconds played;

        at.samples = sum.term[i].samples;
        LS_TRY(kept_play_of(p->plays, p->patterns, sum.term[i].pattern, p->cluster, &at, place, &played));
        tape_seconds_add(out, &played, sum.term[i].times);
    }
    return LS_OK;
}

/* The stages of a layout while it is timed. */
struct timing {
    struct prices *p;
    const ls_layout *layout, *place; /* place: the layout in whose groups they communicate */
    const int *begin;
    struct {
        enum pattern_place place;
        int blocks;
        struct tape_seconds seconds;
    } kind[KINDS];
    int kinds;
    struct tape_seconds *rank; /* [pp] */
    struct tape_chunk *chunk;  /* [vpp] of one rank */
    struct stage_actions actions;
};

static ls_status time_kind(struct timing *t, int stage, int rank, struct tape_seconds *out)
{
    const ls_layout *l = t->layout;
    struct pattern_stage s = { l, prices_place_of(stage, l->pp * l->vpp), t->begin[stage + 1] - t->begin[stage], false };

    for (int i = 0; i < t->kinds; i++) {
        *out = t->kind[i].seconds;
        if (t->kind[i].place == s.place && t->kind[i].blocks == s.blocks) return LS_OK;
    }
    struct tape_place where = tape_place_of(t->p->cluster, t->place, (int)(ls_layout_ranks(t->place) / l->pp) * (rank + 1) - 1);
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
            int stage = prices_stage_of(l, r, k);
            struct tape_seconds one;

            LS_TRY(time_kind(t, stage, r, &one));
            t->chunk[k] = tape_chunk_of(&one);
            message = MAX(message, one.message);
            tape_seconds_add(&t->rank[r], &one, 1);
            stage_actions_put(&t->actions, stage, &one, layout_splits(l));
        }
        t->rank[r].message = message;
        tape_hide_chunks(t->p->cluster, l, t->chunk, &t->rank[r]);
    }
    return LS_OK;
}

static ls_status join(struct timing *t, double most, struct price *out)
{
    const ls_layout *l = t->layout;
    struct kept_schedule *schedule;
    struct step_seconds seconds;

    out->seconds = step_seconds_least(l->pp, l->micro_batches, t->rank);
    out->bounded = l->pp > 1 && out->seconds > most;
    if (l->pp == 1 || out->bounded) return LS_OK;
    LS_TRY(kept_schedule_with_sequence(t->p->schedules, l, &schedule));
    step_seconds_join(&schedule->sequence, l->pp, l->micro_batches, t->rank, &t->actions, &seconds);
    out->seconds = seconds.step;
    return LS_OK;
}

ls_status prices_bytes_if_made(struct prices *p, const ls_layout *l, double *bytes)
{
    struct price price;
    const int *begin;

    LS_TRY(stages_of(p, l, &begin));
    LS_TRY(layout_bytes(p, l, begin, true, &price));
    *bytes = price.bytes;
    return LS_OK;
}

static ls_status timing_ranks(struct timing *t)
{
    const ls_layout *l = t->layout;

    LS_TRY(stage_actions_new(l->pp * l->vpp, &t->actions));
    t->rank = mem_array(MEM_OTHER, (size_t)l->pp, sizeof *t->rank);
    t->chunk = mem_array(MEM_OTHER, (size_t)l->vpp, sizeof *t->chunk);
    return t->rank && t->chunk ? time_ranks(t) : LS_ENOMEM;
}

static void timing_free(struct timing *t)
{
    mem_free(t->chunk);
    mem_free(t->rank);
    stage_actions_free(&t->actions);
}

ls_status prices_price(struct prices *p, const ls_layout *l, double room, double most, struct price *out)
{
    struct timing t = { .p = p, .layout = l, .place = l };

    *out = (struct price){ .seconds = INFINITY };
    LS_TRY(stages_of(p, l, &t.begin));
    LS_TRY(layout_bytes(p, l, t.begin, false, out));
    if (out->bytes > room) return LS_OK;
    ls_status st = timing_ranks(&t);
    if (st == LS_OK) st = join(&t, most, out);
    timing_free(&t);
    return st;
}

/* A rank waits for the forwards of the first micro-batch on earlier ranks and, if backwards are not split, for the backwards of its last
 * micro-batch there. */
static double least_of_ranks(const struct timing *t)
{
    const ls_layout *l = t->layout;
    double waited = 0, most = 0;

    for (int r = 0; r < l->pp; r++) {
        most = MAX(most, waited + l->micro_batches * t->rank[r].micro.all);
        waited += t->actions.micro[SEG_FORWARD][r] + (layout_splits(l) ? 0 : t->actions.micro[SEG_BACKWARD][r]);
    }
    return most;
}

/* The least shares of an unsharded rank's bytes (dp 1) that a rank of the layout holds. */
static struct counted counted_of(const struct prices *p, const ls_layout *l)
{
    double share = 1 / pattern_sharing(l);
    struct counted c = { .parameters = l->zero >= 3 ? share : 1,
                         .gradients = l->zero >= 2 ? share : 1,
                         .optimizer = l->zero >= 1 ? share : 1 };

    if (l->offload) c.optimizer = 0;
    if (l->offload_parameters) c.parameters = c.gradients = 0;
    if (p->job->step.optimizer.in_backward) c.gradients = 0;
    return c;
}

ls_status prices_least(struct prices *p, const ls_layout *layout, struct price *out)
{
    ls_layout l = *layout;
    struct timing t = { .p = p, .layout = &l, .place = layout };
    struct counted counted = counted_of(p, layout);
    struct kinds kinds;

    *out = (struct price){ .bounded = true };
    l.zero = 0;
    l.replicate = 1;
    l.offload = l.offload_parameters = LS_OFFLOAD_NONE;
    l.dp = l.ep;
    LS_TRY(stages_of(p, &l, &t.begin));
    find_kinds(&l, NULL, t.begin, &kinds);
    LS_TRY(ranks_bytes(p, &l, NULL, t.begin, &kinds, &counted, out));
    ls_status st = timing_ranks(&t);
    if (st == LS_OK) out->seconds = least_of_ranks(&t);
    timing_free(&t);
    return st;
}

/* A layout without dp and what is sharded over it. Two micro-batches, because the first reduces no gradients. */
ls_status prices_block(struct prices *p, const ls_layout *layout, struct block_seconds *out)
{
    ls_layout l = *layout;
    struct pattern_stage stage[] = { { .layout = &l, .blocks = BLOCKS_BASE }, { .layout = &l, .blocks = BLOCKS_MOST } };
    struct tape_seconds less, more;

    l.pp = l.vpp = l.replicate = 1;
    l.schedule = NULL;
    l.zero = 0;
    l.dp = l.ep;
    l.micro_batches = 2;
    struct tape_place where = tape_place_of(p->cluster, &l, (int)ls_layout_ranks(&l) - 1);
    LS_TRY(patterns_prepare(p->patterns, stage, COUNT_OF(stage)));
    LS_TRY(stage_seconds(p, &stage[0], &where, &less));
    LS_TRY(stage_seconds(p, &stage[1], &where, &more));
    out->all = more.micro.all - less.micro.all;
    out->ends = less.micro.all - BLOCKS_BASE * out->all;
    out->forward = more.action[SEG_FORWARD] - less.action[SEG_FORWARD];
    return LS_OK;
}
