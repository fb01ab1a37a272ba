/* plan_remedies.c - finds layouts under which a step fits into memory.
 *
 * Changes are tried in the order of `changes`: those that cost the least time come first. Each change is tried alone first, as often as it
 * applies. If none is enough, changes are added up one after another until the step fits; then those that are not needed are removed again,
 * the most expensive first. If that is not enough either, the same is tried with twice as many ranks, and so on, each rank with as much
 * memory as now.
 */
#include "train/plan/plan.h"

#include <stdatomic.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "parallel/layout.h"

/* ---- the changes: false if one does not apply ---- */

static bool raise_zero(ls_layout *l, int zero)
{
    if (l->dp * l->cp <= 1 || l->zero >= zero || l->method != LS_METHOD_ALLREDUCE) return false;
    l->zero = zero;
    return true;
}

static bool zero_1(ls_layout *l) { return raise_zero(l, 1); }
static bool zero_2(ls_layout *l) { return raise_zero(l, 2); }
static bool zero_3(ls_layout *l) { return raise_zero(l, 3); }

static bool recompute_selective(ls_layout *l)
{
    if (l->recompute != LS_RECOMPUTE_NONE) return false;
    l->recompute = LS_RECOMPUTE_SELECTIVE;
    return true;
}

static bool recompute_full(ls_layout *l)
{
    if (l->recompute == LS_RECOMPUTE_FULL) return false;
    l->recompute = LS_RECOMPUTE_FULL;
    return true;
}

static bool halve_micro_batch(ls_layout *l)
{
    if (l->micro_batch <= 1) return false;
    l->micro_batch /= 2;
    return true;
}

static bool sequence_parallel(ls_layout *l)
{
    if (l->tp <= 1 || l->sp) return false;
    l->sp = 1;
    return true;
}

/* Halves dp and doubles another axis. */
static bool halve_dp(ls_layout *l, int *axis)
{
    if (l->dp % 2 || l->dp / 2 % l->replicate || l->method != LS_METHOD_ALLREDUCE) return false;
    l->dp /= 2;
    *axis *= 2;
    if (l->dp * l->cp == 1) l->zero = 0;
    return true;
}

static bool more_tp(ls_layout *l) { return halve_dp(l, &l->tp); }
static bool more_pp(ls_layout *l) { return halve_dp(l, &l->pp); }

/* Frees memory only if the host's memory is separate from the processor's. */
static bool offload_host(ls_layout *l)
{
    if (l->offload) return false;
    l->offload = LS_OFFLOAD_CPU;
    return true;
}

static bool offload_file(ls_layout *l)
{
    if (l->offload == LS_OFFLOAD_FILE) return false;
    l->offload = LS_OFFLOAD_FILE;
    return true;
}

static bool (*const changes[])(ls_layout *l) = {
    zero_1,  zero_2,  recompute_selective, halve_micro_batch, recompute_full, zero_3, sequence_parallel,
    more_tp, more_pp, offload_host,        offload_file,
};
enum { CHANGES = COUNT_OF(changes), TIMES_MOST = 16, DOUBLINGS = 10 }; /* the last change is not combined with more ranks */

/* ---- trials ---- */

struct trial {
    const struct plan_job *job;
    const ls_layout *base;
    size_t limit;
    int doublings;
};
struct counts {
    int times[CHANGES];
}; /* how often each change is applied */

/* Recomputes the number of micro-batches if the micro-batch or dp changed. A global batch with fewer samples than dp grows. False: the
 * layout is impossible, so the trial is skipped. */
static bool settle_layout(const struct trial *t, struct remedy *r)
{
    ls_layout *l = &r->layout;
    bool same = l->micro_batch == t->base->micro_batch && l->dp == t->base->dp, grows = r->global < (size_t)l->dp;
    int64_t micro = grows ? layout_usual_micro_batches(l->pp) : layout_micro_batches((int64_t)r->global, l->dp, l->micro_batch);

    const struct cluster *elsewhere = t->job->cluster;

    if (l->offload != t->base->offload && elsewhere && plan_check_seconds(l, elsewhere) < 0) return false;
    if (l->offload == LS_OFFLOAD_CPU && !t->base->offload && plan_host_room(t->job) == 0) return false;
    if (!same && micro > INT32_MAX) return false;
    if (!same) l->micro_batches = (int)micro;
    if (grows) r->global = (size_t)l->micro_batch * (size_t)l->micro_batches * (size_t)l->dp;
    return task_check_layout(t->job->model, l) == LS_OK;
}

/* *out: the base with these changes. False: the layout is impossible, or a change does not apply. */
static bool plan_remedies_make(const struct trial *t, const struct counts *n, struct remedy *out)
{
    struct remedy r = { .layout = *t->base, .global = t->job->step.global };

    r.layout.dp <<= t->doublings;
    for (int i = 0; i < CHANGES; i++)
        for (int k = 0; k < n->times[i]; k++)
            if (!changes[i](&r.layout)) return false;
    *out = r;
    return settle_layout(t, out);
}

double plan_least_state(const struct plan_job *j, const ls_layout *l)
{
    const ls_model *m = task_transformer(j->model);
    const ls_optimizer *o = &j->step.optimizer;
    double elements = m ? (double)ls_model_parameters(m) / ((double)l->tp * l->pp * l->ep) : 0, shards = (double)l->dp * l->cp;
    int state = ls_optimizer_facts_of(o->kind)->moments ? 8 : o->momentum > 0 ? 4 : 0;

    if (l->master && ls_dtype_bytes(l->compute) < 4) state += 4;
    return (l->offload_parameters ? 0 : elements * (double)ls_dtype_bytes(l->compute) / (l->zero >= 3 ? shards : 1)) +
           (l->offload ? 0 : elements * state / (l->zero >= 1 ? shards : 1));
}

/* Plans rank 0 first, because it does not fit in most trials that fail. */
static bool plan_remedies_fits(const struct trial *t, const struct counts *n, struct remedy *r)
{
    struct plan_job job = *t->job;
    struct plan_bytes most;

    if (!plan_remedies_make(t, n, r) || plan_least_state(&job, &r->layout) > (double)t->limit) return false;
    job.step.global = r->global;
    if (plan_of_rank(&job, &r->layout, 0, &most) < 0 || !plan_fits(&job, &most, (double)t->limit)) return false;
    if (plan_of_largest(&job, &r->layout, &most, NULL) < 0 || !plan_fits(&job, &most, (double)t->limit)) return false;
    r->total = most.total;
    return true;
}

/* Writes the suggestion as options. */
static ls_status put_options(const struct trial *t, struct remedy *r)
{
    struct text out = { 0 };
    ls_status st = config_layout_options(t->base, &r->layout, &out);

    if (r->global != t->job->step.global) text_put(&out, "%s--train.global_batch=%zu", out.bytes ? " " : "", r->global);
    if (st == LS_OK) st = text_status(&out);
    ASSERT(st < 0 || out.bytes < sizeof r->options);
    if (st == LS_OK && out.data) memcpy(r->options, out.data, out.bytes + 1);
    text_free(&out);
    return st;
}

/* ---- the search ---- */

/* Each change for itself, several at the same time. */
struct changes_alone {
    const struct trial *trial;
    struct remedy found[CHANGES];
    atomic_bool fits[CHANGES];
};

static ls_status try_change_alone(void *ctx, int i)
{
    struct changes_alone *a = ctx;
    struct counts n = { { 0 } };
    struct remedy *r = &a->found[i];
    int before = 0;

    for (int k = 0; k < i; k++) before += atomic_load(&a->fits[k]);
    if (before >= REMEDIES) return LS_OK;
    for (n.times[i] = 1; n.times[i] <= TIMES_MOST && plan_remedies_make(a->trial, &n, r); n.times[i]++)
        if (plan_remedies_fits(a->trial, &n, r)) {
            atomic_store(&a->fits[i], true);
            break;
        }
    return LS_OK;
}

static ls_status try_changes_alone(const struct trial *t, struct remedy out[REMEDIES], int *count)
{
    struct changes_alone a = { .trial = t };

    LS_TRY(plan_tasks(t->job, CHANGES, try_change_alone, &a));
    for (int i = 0; i < CHANGES && *count < REMEDIES; i++) {
        if (!a.fits[i]) continue;
        LS_TRY(put_options(t, &a.found[i]));
        out[(*count)++] = a.found[i];
    }
    return LS_OK;
}

/* Tries several at the same time; the result is the first in their order that fits. */
struct candidates {
    const struct trial *trial;
    struct counts n[1 + CHANGES * TIMES_MOST];
    int count;
    atomic_int first; /* index of the first that fits; count: none so far */
};

static ls_status try_candidate(void *ctx, int i)
{
    struct candidates *c = ctx;
    struct remedy r;
    int first = atomic_load(&c->first);

    if (i > first || !plan_remedies_fits(c->trial, &c->n[i], &r)) return LS_OK;
    while (i < first && !atomic_compare_exchange_weak(&c->first, &first, i)) {
    }
    return LS_OK;
}

/* Adds up changes until the step fits. A change that is impossible in addition to the others is left out. */
static bool add_changes(const struct trial *t, struct counts *out)
{
    struct candidates c = { .trial = t, .count = 1 };
    struct counts n = { { 0 } };
    struct remedy r;

    for (int i = 0; i < CHANGES - (t->doublings > 0); i++)
        while (n.times[i] < TIMES_MOST) {
            n.times[i]++;
            if (!plan_remedies_make(t, &n, &r)) {
                n.times[i]--;
                break;
            }
            c.n[c.count++] = n;
        }
    atomic_store(&c.first, c.count);
    if (plan_tasks(t->job, c.count, try_candidate, &c) < 0 || c.first == c.count) return false;
    *out = c.n[c.first];
    return true;
}

static void remove_unneeded(const struct trial *t, struct counts *n)
{
    struct remedy r;

    for (int i = CHANGES - 1; i >= 0; i--)
        while (n->times[i] > 0) {
            n->times[i]--;
            if (plan_remedies_fits(t, n, &r)) continue;
            n->times[i]++;
            break;
        }
}

ls_status plan_remedies(const struct plan_job *j, const ls_layout *layout, size_t limit, struct remedy out[REMEDIES], int *count)
{
    struct trial t = { j, layout, limit, 0 };
    int64_t ranks = ls_layout_ranks(layout);

    *count = 0;
    LS_TRY(try_changes_alone(&t, out, count));
    for (t.doublings = 0; *count == 0 && t.doublings <= DOUBLINGS && ranks << t.doublings <= LS_MESH_RANKS_MOST; t.doublings++) {
        struct counts n = { { 0 } };
        struct remedy r;

        if (!add_changes(&t, &n)) continue;
        remove_unneeded(&t, &n);
        if (!plan_remedies_fits(&t, &n, &r)) continue;
        LS_TRY(put_options(&t, &r));
        out[(*count)++] = r;
    }
    return LS_OK;
}
