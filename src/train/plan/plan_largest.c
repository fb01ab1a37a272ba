/* plan_largest.c - finds the rank that holds the most bytes; plan.h says which ranks are planned for that. */
#include "train/plan/plan.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "parallel/layout.h"
#include "parallel/pipeline/stage.h"
#include "parallel/sharding/partition.h"

enum { PLACES = 10, PLACES_CP = 8 };

/* Lists, in ascending order, the places along an axis of n ranks that may hold the most: the first and the last; returns how many. */
static int places_of(int n, int out[PLACES])
{
    out[0] = 0;
    out[1] = n - 1;
    return n > 1 ? 2 : 1;
}

/* The same for cp: the first, the one with the most tokens, and the last; of a ring the first ones, each of which sends and receives in
 * another order. */
static int places_of_cp(const ls_layout *l, int out[PLACES])
{
    int n = l->cp, best = 0, count = 0;
    bool ring = n > 1 && l->cp_method == LS_CP_RING;
    size_t T = (size_t)l->seq_len;

    for (int r = 1; r < n; r++)
        if (shard_size(T, 1, ring, r, n) > shard_size(T, 1, ring, best, n)) best = r;
    for (int r = 0; r < n; r++)
        if (r == 0 || (ring && r < PLACES_CP) || r == best || r == n - 1) out[count++] = r;
    return count;
}

/* The rank with the largest total so far, and the largest total + other of any rank. */
struct largest {
    struct plan_bytes best;
    size_t most;
    int compiled;
};

/* A rank that is planned, and perhaps another one that may hold more. */
struct tried {
    int rank, plans;
    struct plan_bytes plan[2];
};

struct trial {
    const struct plan_job *job;
    const ls_layout *layout;
    struct tried *tried;
    int n;
    bool alone; /* ranks that may hold more are in the list already */
    int *begin; /* receives the first plan's stage boundaries, unless NULL */
};

static ls_status trial_rank(void *ctx, int i)
{
    const struct trial *t = ctx;
    struct tried *x = &t->tried[i];
    int better;

    LS_TRY(plan_rank(t->job, t->layout, x->rank, &x->plan[0], &better, i ? NULL : t->begin));
    x->plans = 1;
    if (t->alone || better == x->rank) return LS_OK;
    LS_TRY(plan_rank(t->job, t->layout, better, &x->plan[1], NULL, NULL));
    x->plans = 2;
    return LS_OK;
}

/* Plans the ranks at the same time; the trial is empty then. */
static ls_status trial_run(struct trial *t, struct largest *l)
{
    int n = t->n;

    t->n = 0;
    LS_TRY(plan_tasks(t->job, n, trial_rank, t));
    t->begin = NULL;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < t->tried[i].plans; k++) {
            const struct plan_bytes *one = &t->tried[i].plan[k];

            bool lower = one->total == l->best.total && one->rank < l->best.rank;

            if (l->best.rank < 0 || one->total > l->best.total || lower) l->best = *one;
            l->most = MAX(l->most, one->total + one->other);
            l->compiled++;
        }
    return LS_OK;
}

static void take_largest(const struct largest *l, struct plan_bytes *out, int *compiled)
{
    *out = l->best;
    out->other = l->most - l->best.total;
    if (compiled) *compiled = l->compiled;
}

/* True if an earlier stage has the same programs and as many micro-batches in flight, or more. */
static bool holds_no_more(const ls_layout *l, const ls_pipeline_schedule *s, const int *begin, int stage)
{
    int twin = stage > 0 ? stage_twin(l, s, begin, stage) : stage;

    for (int k = 0; twin != stage && k < s->chunks; k++)
        if (ls_pipeline_schedule_slots(s, twin, k) < ls_pipeline_schedule_slots(s, stage, k)) return false;
    return twin != stage;
}

/* The places along the axes of a layout's mesh. */
enum place_axis { AXIS_TP, AXIS_CP, AXIS_DP, PLACE_AXES };
struct places {
    int at[PLACE_AXES][PLACES], n[PLACE_AXES];
};
enum { PLACES_MOST = 2 * PLACES * 2 }; /* of a stage */

static struct places places_of_layout(const ls_layout *l)
{
    struct places p = { 0 };

    p.n[AXIS_DP] = places_of(l->dp, p.at[AXIS_DP]);
    p.n[AXIS_CP] = places_of_cp(l, p.at[AXIS_CP]);
    p.n[AXIS_TP] = places_of(l->tp, p.at[AXIS_TP]);
    ASSERT(p.n[AXIS_DP] * p.n[AXIS_CP] * p.n[AXIS_TP] <= PLACES_MOST);
    return p;
}

/* The rank at the places of that number, tp running fastest. moved: along how many axes it is not the first. */
static int place_rank(const ls_layout *l, const struct places *p, int stage, int number, int *moved)
{
    int k[PLACE_AXES];

    *moved = 0;
    for (int a = 0; a < PLACE_AXES; a++) {
        k[a] = number % p->n[a];
        number /= p->n[a];
        *moved += k[a] > 0;
    }
    return ((stage * l->dp + p->at[AXIS_DP][k[AXIS_DP]]) * l->cp + p->at[AXIS_CP][k[AXIS_CP]]) * l->tp + p->at[AXIS_TP][k[AXIS_TP]];
}

/* Adds the places of a stage that are not the first along `least` to `most` axes. */
static void trial_add_stage(struct trial *t, const struct places *p, int stage, int least, int most)
{
    for (int k = 0; k < p->n[AXIS_TP] * p->n[AXIS_CP] * p->n[AXIS_DP]; k++) {
        int moved, rank = place_rank(t->layout, p, stage, k, &moved);

        if (moved >= least && moved <= most) t->tried[t->n++] = (struct tried){ .rank = rank };
    }
}

/* True if the first n plans hold the same, and no other rank may hold more. */
static bool plans_are_equal(const struct trial *t, int n)
{
    for (int i = 0; i < n; i++) {
        const struct tried *x = &t->tried[i];

        if (x->plans > 1 || memcmp(&x->plan[0].cost, &t->tried[0].plan[0].cost, sizeof x->plan[0].cost) != 0) return false;
    }
    return true;
}

ls_status plan_of_places(const struct plan_job *j, const ls_layout *m, struct plan_bytes *out, int *compiled)
{
    struct largest l = { .best = { .rank = -1 } };
    struct trial t = { .job = j, .layout = m };
    struct places p = places_of_layout(m);
    ls_pipeline_schedule s = { 0 };
    int *begin = mem_array(MEM_OTHER, (size_t)(m->pp * MAX(m->vpp, 1)) + 1, sizeof *begin), n = 0, most = PLACE_AXES;
    ls_status st = LS_ENOMEM;

    t.tried = mem_array(MEM_OTHER, (size_t)m->pp * PLACES_MOST, sizeof *t.tried);
    if (begin && t.tried) st = m->pp > 1 ? ls_layout_schedule(m, &s) : LS_OK;
    t.begin = begin; /* stage 0 says where the others begin */
    if (st == LS_OK) {
        trial_add_stage(&t, &p, 0, 0, 1);
        n = t.n;
        st = trial_run(&t, &l);
    }
    if (st == LS_OK && plans_are_equal(&t, n))
        most = m->zero ? 1 : 0; /* other stages have parameters of their own, whose shards may be uneven */
    else if (st == LS_OK)
        trial_add_stage(&t, &p, 0, 2, PLACE_AXES);
    for (int i = 1; st == LS_OK && i < m->pp; i++)
        if (!holds_no_more(m, &s, begin, i)) trial_add_stage(&t, &p, i, 0, most);
    if (st == LS_OK) st = trial_run(&t, &l);
    if (st == LS_OK) take_largest(&l, out, compiled);
    ls_pipeline_schedule_free(&s);
    mem_free(t.tried);
    mem_free(begin);
    return st;
}

ls_status plan_of_largest(const struct plan_job *j, const ls_layout *layout, struct plan_bytes *out, int *compiled)
{
    enum { EVERY_RANK = 32 }; /* up to this many ranks are all planned */
    struct largest l = { .best = { .rank = -1 } };
    struct tried tried[EVERY_RANK];
    struct trial t = { .job = j, .layout = layout, .tried = tried, .alone = true };

    LS_TRY(task_check_layout(j->model, layout));
    if (ls_layout_ranks(layout) > EVERY_RANK) return plan_of_places(j, layout, out, compiled);
    for (; t.n < ls_layout_ranks(layout); t.n++) tried[t.n] = (struct tried){ .rank = t.n };
    LS_TRY(trial_run(&t, &l));
    take_largest(&l, out, compiled);
    return LS_OK;
}
