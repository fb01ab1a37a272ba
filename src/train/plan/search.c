/* search.c - see search.h. */
#include "train/plan/search.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "parallel/layout.h"
#include "train/plan/prices.h"

int search_uses(const ls_layout *l)
{
    return (l->tp > 1 ? SEARCH_USES_TP : 0) | (l->cp > 1 ? SEARCH_USES_CP : 0) | (l->pp > 1 ? SEARCH_USES_PP : 0) |
           (l->ep > 1 ? SEARCH_USES_EP : 0);
}

/* Per set of axes, the layouts with the lowest prices are kept: if one does not fit when it is compiled, the next takes its place. */
enum { CANDIDATES = 4 };
struct candidates {
    struct search_found at[CANDIDATES];
    int n;
};

struct search {
    const struct plan_job *job;
    const struct cluster *cluster;
    const struct search_space *space;
    struct prices *prices;
    struct search_result *out;
    double room;                /* the space's room plus SEARCH_SLACK / 2 of it, because prices are approximate */
    struct block_seconds block; /* seconds of a block with the micro-batch that is tried now */
    int smaller;                /* the next smaller micro-batch; 0: none */
    bool larger;                /* a larger micro-batch may fit: one with this micro-batch did, or was not tried */
    struct candidates with[SEARCH_USES];
    ls_layout dropped[SEARCH_KEPT]; /* [drops] layouts that do not fit once compiled */
    int drops;
};

/* ---- results ---- */

static double worst_kept(const struct search_result *r) { return r->found < SEARCH_KEPT ? INFINITY : r->best[SEARCH_KEPT - 1].price; }

/* Puts x into list[0 .. *n - 1], which is in order of price and has room for `most`. */
static void put_found(struct search_found *list, int *n, int most, const struct search_found *x)
{
    int at = MIN(*n, most - 1);

    if (*n == most && x->price >= list[most - 1].price) return;
    *n = MIN(*n + 1, most);
    for (; at > 0 && list[at - 1].price > x->price; at--) list[at] = list[at - 1];
    list[at] = *x;
}

static void keep(struct search *s, const struct search_found *x)
{
    struct candidates *with = &s->with[search_uses(&x->layout)];

    put_found(with->at, &with->n, CANDIDATES, x);
    put_found(s->out->best, &s->out->found, SEARCH_KEPT, x);
}

static double slack_of(const ls_layout *l) { return l->offload_parameters ? SEARCH_SLACK_LOADED : SEARCH_SLACK; }

/* Seconds beyond which a layout cannot be among the best. */
static double too_long(const struct search *s, const ls_layout *l) { return worst_kept(s->out) * (1 + slack_of(l)); }

/* True if a layout with these axes that takes at least `seconds` need not be priced. */
static bool leave_out(struct search *s, const ls_layout *l, double seconds)
{
    double *bound = &s->out->bound[search_uses(l)];

    if (seconds <= too_long(s, l)) return false;
    *bound = MIN(*bound, seconds);
    return true;
}

/* A lower bound of a step's seconds: the busiest rank computes its share of the work, and the last rank waits for the forwards of the first
 * micro-batch on earlier ranks, with 1f1b and interleaved also for a backward (pipeline.h). schedule NULL: under any schedule. */
static double least_seconds(const struct search *s, const ls_layout *l, const struct block_seconds *block)
{
    double layers = (double)s->job->model->transformer.layers, wait = block->forward;

    if (l->schedule && !layout_splits(l)) wait = block->all;
    return (l->micro_batches * (layers * block->all + block->ends) + (l->pp - 1) * wait * layers / l->vpp) / l->pp;
}

static int smallest_factor(int n)
{
    int f = 2;

    while (n % f) f++;
    return f;
}

/* The same layout with the next smaller group: half of cp, or of tp. */
static ls_layout smaller_group(const ls_layout *l)
{
    ls_layout out = *l;

    if (l->cp > 1)
        out.cp /= smallest_factor(l->cp);
    else
        out.tp /= smallest_factor(l->tp);
    if (out.cp == 1) out.cp_method = LS_CP_RING;
    if (out.tp == 1) out.sp = 0;
    return out;
}

/* Sets s->block to the layout's block seconds, or *slow if it takes too long under any schedule. A larger group does not do less work in
 * total, so smaller groups are tried first, and most large ones need not be compiled. */
static ls_status find_block(struct search *s, const ls_layout *l, bool *slow)
{
    enum { LONGEST = 40 };
    ls_layout chain[LONGEST] = { *l }, any = *l;
    int n = 0;

    any.vpp = SEARCH_VPP_MOST;
    any.schedule = NULL;
    for (; chain[n].tp * chain[n].cp > 1 && n < LONGEST - 1; n++) chain[n + 1] = smaller_group(&chain[n]);
    for (*slow = false; n >= 0 && !*slow; n--) {
        double share = (double)(chain[n].tp * chain[n].cp) / (l->tp * l->cp);
        struct block_seconds b;

        LS_TRY(prices_block(s->prices, &chain[n], &b));
        s->block = (struct block_seconds){ share * b.forward, share * b.all, share * b.ends };
        *slow = leave_out(s, l, least_seconds(s, &any, &s->block));
    }
    return LS_OK;
}

/* The bytes that the buffers of a layout's communicators leave. */
static double room_of(const struct search *s, const ls_layout *l, double room) { return room - group_buffers_of(s->cluster, l); }

/* Sets *too_much if the layout is known not to fit without compiling more: its lower bound exceeds the room, or it does not fit even with
 * more recomputation or with the next smaller micro-batch. */
static ls_status holds_too_much(const struct search *s, const ls_layout *l, double least, bool *too_much)
{
    ls_layout less = *l;
    double bytes = 0;

    *too_much = least > room_of(s, l, s->room) && least > s->out->least; /* the smallest lower bound is reported if nothing fits */
    if (*too_much) return LS_OK;
    if (l->recompute != LS_RECOMPUTE_FULL && !(s->space->fixed & SEARCH_RECOMPUTE)) {
        less.recompute = l->recompute == LS_RECOMPUTE_NONE ? LS_RECOMPUTE_SELECTIVE : LS_RECOMPUTE_FULL;
        LS_TRY(prices_bytes_if_made(s->prices, &less, &bytes));
        *too_much = bytes > room_of(s, &less, s->room);
    }
    if (*too_much || s->smaller == 0) return LS_OK;
    less = *l;
    less.micro_batch = s->smaller;
    less.micro_batches = l->micro_batch * l->micro_batches / s->smaller;
    LS_TRY(prices_bytes_if_made(s->prices, &less, &bytes));
    *too_much = bytes > room_of(s, &less, s->room);
    return LS_OK;
}

/* When the array is full, every second point is dropped, and from then on only every second new one is added. */
static void put_point(struct search_result *r, const ls_layout *l, const struct price *price)
{
    if (r->points == SEARCH_POINTS) {
        for (int i = 0; i < SEARCH_POINTS / 2; i++) r->point[i] = r->point[2 * i];
        r->points /= 2;
        r->point_every *= 2;
    }
    r->point_every = MAX(r->point_every, 1);
    if (r->fit % r->point_every == 0) r->point[r->points++] = (struct search_point){ price->seconds, price->bytes, search_uses(l) };
}

/* least: lower bound of its bytes. *fits: the layout does not need to offload more. */
static ls_status price_layout(struct search *s, const ls_layout *l, double least, bool *fits)
{
    struct search_result *r = s->out;
    struct price price;
    bool too_much;

    *fits = false;
    LS_TRY(holds_too_much(s, l, least, &too_much));
    if (too_much) return LS_OK;
    r->priced++;
    LS_TRY(prices_price(s->prices, l, room_of(s, l, s->room), too_long(s, l), &price));
    if (price.host > plan_host_room(s->job)) return LS_OK;
    if (price.bytes < r->least) r->least = price.bytes, r->least_layout = *l;
    *fits = price.bytes <= room_of(s, l, s->room);
    if (!*fits) return LS_OK;
    s->larger = true;
    r->fit++;
    if (!price.bounded) put_point(r, l, &price);
    if (price.bounded)
        leave_out(s, l, price.seconds);
    else
        keep(s, &(struct search_found){ .layout = *l, .price = price.seconds, .bytes = price.bytes });
    return LS_OK;
}

static bool is_fixed(const struct search *s, unsigned choice) { return s->space->fixed & choice; }

/* Levels of offloading to the host, from nothing to everything. Each is slower than the previous one, so it is tried only if that does not
 * fit. */
static const struct {
    ls_offload state, parameters;
} offload_level[] = { { LS_OFFLOAD_NONE, LS_OFFLOAD_NONE }, { LS_OFFLOAD_CPU, LS_OFFLOAD_NONE }, { LS_OFFLOAD_CPU, LS_OFFLOAD_CPU } };

static size_t offload_levels(const struct search *s)
{
    return is_fixed(s, SEARCH_OFFLOAD) || s->cluster->serial || s->cluster->offload.bandwidth == 0 ? 1 : COUNT_OF(offload_level);
}

/* Least seconds of the optimizer's loads and saves after backward at a level, for all its state except what stays on the processor. */
static double least_copies(const struct search *s, const ls_layout *l)
{
    ls_layout kept = *l;

    if (l->offload != LS_OFFLOAD_CPU) return 0;
    kept.offload = LS_OFFLOAD_NONE;
    return 2 * seconds_of_copy(s->cluster, (struct seconds_copy){ 0 }, plan_least_state(s->job, &kept) - plan_least_state(s->job, l));
}

/* Raises the lower bound of the seconds to that of the layout's own stages, and computes the lower bound of the bytes. */
static ls_status find_least(struct search *s, const ls_layout *l, struct price *least)
{
    double blocks = least->seconds;

    LS_TRY(prices_least(s->prices, l, least));
    least->seconds = MAX(least->seconds, blocks);
    return LS_OK;
}

static ls_status try_layout(struct search *s, const ls_layout *l)
{
    size_t levels = offload_levels(s);
    bool fits = false;

    if (task_check_layout(s->job->model, l) < 0) return LS_OK;
    for (size_t k = 0; k < levels && !fits; k++) {
        ls_layout x = *l;
        struct price least = { .seconds = least_seconds(s, l, &s->block) };

        if (levels > 1) x.offload = offload_level[k].state, x.offload_parameters = offload_level[k].parameters;
        if (k > 0 && task_check_layout(s->job->model, &x) < 0) continue;
        s->out->checked++;
        if (least.seconds <= too_long(s, &x)) LS_TRY(find_least(s, &x, &least));
        if (leave_out(s, &x, least.seconds + least_copies(s, &x))) {
            s->larger = true;
            return LS_OK;
        }
        LS_TRY(price_layout(s, &x, least.bytes, &fits));
    }
    return LS_OK;
}

/* ---- the layouts ---- */

/* False if the layout is invalid with every micro-batch, schedule and ZeRO stage. */
static bool axes_are_possible(const struct search *s, const ls_layout *axes)
{
    ls_layout l = *axes;

    l.pp = l.vpp = 1;
    l.schedule = NULL;
    l.zero = 0;
    l.replicate = 1;
    l.micro_batch = l.micro_batches = 1;
    return task_check_layout(s->job->model, &l) == LS_OK;
}

static ls_status try_chunks(struct search *s, ls_layout l, int least, int most)
{
    int layers = (int)s->job->model->transformer.layers;

    for (l.vpp = least; l.vpp <= most && l.vpp * l.pp <= layers; l.vpp++)
        if (!is_fixed(s, SEARCH_VPP) || l.vpp == s->space->base.vpp) LS_TRY(try_layout(s, &l));
    return LS_OK;
}

/* Tries the schedules of a pipeline; without one there is nothing to choose. */
static ls_status try_schedules(struct search *s, ls_layout l)
{
    static const struct {
        const char *name;
        int least, most;
    } schedule[] = { { "1f1b", 1, 1 }, { "interleaved", 2, SEARCH_VPP_MOST }, { "zb-h1", 1, 1 }, { "zb-v", 2, 2 } };

    l.vpp = 1;
    if (l.pp == 1) l.schedule = NULL;
    if (l.pp == 1) return try_layout(s, &l);
    if (is_fixed(s, SEARCH_SCHEDULE)) return try_chunks(s, l, layout_least_chunks(&l), SEARCH_VPP_MOST);
    for (size_t i = 0; i < COUNT_OF(schedule); i++) {
        l.schedule = schedule[i].name;
        LS_TRY(try_chunks(s, l, schedule[i].least, schedule[i].most));
    }
    return LS_OK;
}

static ls_status try_zero(struct search *s, ls_layout l)
{
    const ls_layout *base = &s->space->base;
    int sharing = l.dp * l.cp, inside = MAX(s->cluster->processors / (l.tp * l.cp), 1); /* dp ranks of a node */
    int copies[] = { 1, l.dp % inside == 0 && inside > 1 ? l.dp / inside : 1 };

    for (l.zero = 0; l.zero <= (sharing > 1 ? 3 : 0); l.zero++) {
        if (is_fixed(s, SEARCH_ZERO) && sharing > 1 && l.zero != base->zero) continue;
        for (int i = 0; i < (l.zero && copies[1] > 1 ? 2 : 1); i++) {
            l.replicate = is_fixed(s, SEARCH_REPLICATE) && l.zero ? base->replicate : copies[i];
            LS_TRY(try_schedules(s, l));
            if (is_fixed(s, SEARCH_REPLICATE)) break;
        }
    }
    return LS_OK;
}

/* Tries micro-batches in ascending order: if one does not fit, no larger one does. *most: the largest to try; if one does not fit, the one
 * before it. */
static ls_status try_micro_batches(struct search *s, ls_layout l, int *most)
{
    const struct search_space *space = s->space;
    int samples = (int)(space->global / (size_t)l.dp);

    s->smaller = 0;
    for (l.micro_batch = 1; l.micro_batch <= MIN(samples, *most); l.micro_batch++) {
        if (samples % l.micro_batch || (is_fixed(s, SEARCH_MICRO_BATCH) && l.micro_batch != space->base.micro_batch)) continue;
        l.micro_batches = samples / l.micro_batch;
        LS_TRY(find_block(s, &l, &s->larger));
        if (!s->larger) LS_TRY(try_zero(s, l));
        s->smaller = l.micro_batch;
        if (!s->larger) *most = l.micro_batch - 1;
    }
    return LS_OK;
}

/* A layout that does not fit with more recomputation does not fit with less. */
static ls_status try_recompute(struct search *s, ls_layout l)
{
    static const ls_recompute mode[] = { LS_RECOMPUTE_FULL, LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_NONE };
    int most = INT_MAX;

    if (is_fixed(s, SEARCH_RECOMPUTE)) return try_micro_batches(s, l, &most);
    for (size_t i = 0; i < COUNT_OF(mode); i++) {
        l.recompute = mode[i];
        LS_TRY(try_micro_batches(s, l, &most));
    }
    return LS_OK;
}

/* Tries the choices within the axes: sequence parallelism, and the context-parallel method of attention. */
static ls_status try_axes(struct search *s, ls_layout l)
{
    const ls_layout *base = &s->space->base;
    bool sp = is_fixed(s, SEARCH_SP), method = is_fixed(s, SEARCH_CP_METHOD);

    for (int i = 0; i < (l.tp > 1 && !sp ? 2 : 1); i++)
        for (int k = 0; k < (l.cp > 1 && !method ? 2 : 1); k++) {
            l.sp = l.tp == 1 ? 0 : sp ? base->sp : i;
            l.cp_method = method ? base->cp_method : k ? LS_CP_ALL_TO_ALL : LS_CP_RING;
            if (axes_are_possible(s, &l)) LS_TRY(try_recompute(s, l));
        }
    return LS_OK;
}

static bool may_be(const struct search *s, unsigned choice, int value, int base) { return !is_fixed(s, choice) || value == base; }

static ls_status try_experts(struct search *s, ls_layout l)
{
    int experts = (int)s->job->model->transformer.experts;

    for (l.ep = 1; l.ep <= MAX(experts, 1); l.ep++)
        if (l.dp * l.cp % l.ep == 0 && experts % l.ep == 0 && may_be(s, SEARCH_EP, l.ep, s->space->base.ep)) LS_TRY(try_axes(s, l));
    return LS_OK;
}

/* The base without what the search chooses itself. */
static ls_layout base_of(const struct search *s)
{
    ls_layout l = s->space->base;

    l.stages = NULL;
    if (!is_fixed(s, SEARCH_OFFLOAD)) l.offload = l.offload_parameters = LS_OFFLOAD_NONE;
    return l;
}

/* Tries all tp and cp whose product is `size`, with every pp. */
static ls_status try_size(struct search *s, int size)
{
    const struct search_space *space = s->space;
    ls_layout l = base_of(s);
    int rest = space->ranks / size;

    for (l.tp = 1; l.tp <= size; l.tp++) {
        l.cp = size / l.tp;
        if (size % l.tp || !may_be(s, SEARCH_TP, l.tp, space->base.tp) || !may_be(s, SEARCH_CP, l.cp, space->base.cp)) continue;
        for (l.pp = 1; l.pp <= MIN(rest, (int)s->job->model->transformer.layers); l.pp++) {
            l.dp = rest / l.pp;
            if (rest % l.pp || space->global % (size_t)l.dp) continue;
            if (may_be(s, SEARCH_PP, l.pp, space->base.pp) && may_be(s, SEARCH_DP, l.dp, space->base.dp)) LS_TRY(try_experts(s, l));
        }
    }
    return LS_OK;
}

/* Tries small groups first: their results bound the others. */
static ls_status try_all(struct search *s)
{
    for (int size = 1; size <= s->space->ranks; size++)
        if (s->space->ranks % size == 0) LS_TRY(try_size(s, size));
    return LS_OK;
}

/* ---- the best layouts, compiled completely ---- */

static int compare_found(const void *a, const void *b)
{
    const struct search_found *x = a, *y = b;

    if (x->exact != y->exact) return x->exact ? -1 : 1;
    double left = x->exact ? x->seconds.step : x->price, right = y->exact ? y->seconds.step : y->price;
    return (left > right) - (left < right);
}

/* Lowers *excess to the bytes by which the programs, and everything outside the step, exceed the price, if these are fewer. */
static ls_status compile_found(const struct search *s, struct search_found *x, bool *fits, double *excess)
{
    struct plan_job job = *s->job;

    LS_TRY(step_seconds_of(&job, &x->layout, s->cluster, &x->seconds));
    LS_TRY(plan_of_places(&job, &x->layout, &x->plan, NULL));
    *fits = plan_fits(&job, &x->plan, room_of(s, &x->layout, s->space->room));
    if (!*fits) *excess = MIN(*excess, (double)(x->plan.total + x->plan.other) - x->bytes);
    x->exact = *fits;
    return LS_OK;
}

/* Compiles layouts in ascending order of price until the next can't be better than the two best. A layout that turns out not to fit is
 * dropped. */
static ls_status settle(struct search *s, double *excess)
{
    struct search_result *r = s->out;
    double best = INFINITY, second = INFINITY;
    int kept = 0;

    for (int i = 0; i < r->found; i++) {
        struct search_found x = r->best[i];
        bool fits = true;

        if (x.price * (1 - slack_of(&x.layout)) <= second) LS_TRY(compile_found(s, &x, &fits, excess));
        if (!fits) {
            s->dropped[s->drops++] = x.layout;
            continue;
        }
        if (x.exact) second = MIN(second, MAX(best, x.seconds.step)), best = MIN(best, x.seconds.step);
        r->exact += x.exact;
        r->best[kept++] = x;
    }
    r->found = kept;
    qsort(r->best, (size_t)kept, sizeof *r->best, compare_found);
    return LS_OK;
}

static bool is_dropped(const struct search *s, const struct search_found *x)
{
    for (int k = 0; k < s->drops; k++)
        if (memcmp(&s->dropped[k], &x->layout, sizeof x->layout) == 0) return true;
    return false;
}

static const struct search_found *best_with(const struct search_result *r, int uses)
{
    for (int i = 0; i < r->found; i++)
        if (search_uses(&r->best[i].layout) == uses) return &r->best[i];
    return NULL;
}

/* Chooses for each set of axes the first candidate that is not known not to fit, or else the best of those that were kept. If there is
 * none, nothing is known about the layouts after the candidates. */
static void settle_axes(struct search *s)
{
    struct search_result *r = s->out;

    for (int uses = 0; uses < SEARCH_USES; uses++) {
        const struct candidates *with = &s->with[uses];
        const struct search_found *best = best_with(r, uses);
        int i = 0;

        while (i < with->n && is_dropped(s, &with->at[i])) i++;
        if (i < with->n)
            r->with[uses] = with->at[i];
        else if (best)
            r->with[uses] = *best;
        else if (i == CANDIDATES)
            r->bound[uses] = MIN(r->bound[uses], with->at[CANDIDATES - 1].price);
    }
}

static void forget_found(struct search *s)
{
    struct search_result *r = s->out;

    for (int i = 0; i < SEARCH_USES; i++) s->with[i].n = 0;
    s->drops = 0;
    *r = (struct search_result){ .least = INFINITY };
    for (int i = 0; i < SEARCH_USES; i++) r->with[i].price = r->bound[i] = INFINITY;
}

/* If prices are too low by more than the slack, as for tiny models, it may be that none of the best fits. Then the search is repeated with
 * that many bytes less. */
static ls_status search_all(struct search *s)
{
    double excess = 0;

    s->room = s->space->room * (1 + SEARCH_SLACK / 2);
    do {
        s->room -= excess;
        excess = INFINITY;
        forget_found(s);
        LS_TRY(try_all(s));
        bool found = s->out->found > 0;
        LS_TRY(settle(s, &excess));
        settle_axes(s);
        if (s->out->found || !found) return LS_OK;
        excess = MAX(excess - (s->space->room - s->room), s->space->room * SEARCH_SLACK);
    } while (s->room > 0);
    return LS_OK;
}

ls_status search_layouts(const struct plan_job *j, const struct cluster *c, const struct search_space *space, struct search_result *out)
{
    struct plan_job job = *j;
    struct search s = { .job = &job, .cluster = c, .space = space, .out = out };

    if (!task_transformer(j->model))
        return ls_fail(LS_EINVAL, "a search is over layouts of a transformer; other models have only parallel.dp");
    LS_TRY(search_check_base(&j->model->transformer, &space->base));
    ls_layout base = base_of(&s);
    LS_TRY(plan_check_seconds(&base, c));
    job.cluster = c;
    s.prices = space->prices;
    if (!s.prices) LS_TRY(prices_open(&job, c, space->base.seq_len, &s.prices));
    int before = prices_compiled(s.prices);
    ls_status st = search_all(&s);
    out->compiled = prices_compiled(s.prices) - before;
    if (!space->prices) prices_close(&s.prices);
    if (st == LS_OK && out->checked == 0)
        st = ls_fail(LS_EINVAL, "no layout of %d ranks is possible with %zu samples per step and the given options", space->ranks,
                     space->global);
    return st;
}
