/* plan_remedies.c - finds changes that make a step fit into memory.
 *
 * Changes are tried in the order of `changes`: the cheapest in time first. First each alone, as often as it applies. If none is enough, one
 * after another on top of each other; then those that turn out not to be needed are taken back, the most expensive first. If that is not
 * enough either, the same on twice as many ranks, and so on, each with as much memory as now.
 */
#include "train/plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"

/* ---- the changes ---- */

static char SELECTIVE[] = "selective", FULL[] = "full";

static bool raise_zero(struct config *c, int64_t zero)
{
    if (c->parallel.dp * c->parallel.cp <= 1 || c->parallel.zero >= zero) return false;
    c->parallel.zero = zero;
    return true;
}

static bool zero_1(struct config *c) { return raise_zero(c, 1); }
static bool zero_2(struct config *c) { return raise_zero(c, 2); }
static bool zero_3(struct config *c) { return raise_zero(c, 3); }

static bool recompute_selective(struct config *c)
{
    if (strcmp(c->recompute.mode, "none") != 0) return false;
    c->recompute.mode = SELECTIVE;
    return true;
}

static bool recompute_full(struct config *c)
{
    if (strcmp(c->recompute.mode, FULL) == 0) return false;
    c->recompute.mode = FULL;
    return true;
}

static bool halve_micro_batch(struct config *c)
{
    if (c->train.micro_batch <= 1) return false;
    c->train.micro_batch /= 2;
    return true;
}

static bool sequence_parallel(struct config *c)
{
    if (c->parallel.tp <= 1 || c->parallel.sp) return false;
    c->parallel.sp = true;
    return true;
}

/* Ranks from dp to another axis. */
static bool trade(struct config *c, int64_t *axis)
{
    if (c->parallel.dp % 2 || c->parallel.dp / 2 % c->parallel.replicate) return false;
    c->parallel.dp /= 2;
    *axis *= 2;
    if (c->parallel.dp * c->parallel.cp == 1) c->parallel.zero = 0;
    return true;
}

static bool more_tp(struct config *c) { return trade(c, &c->parallel.tp); }
static bool more_pp(struct config *c) { return trade(c, &c->parallel.pp); }

static bool offload_file(struct config *c)
{
    if (c->optim.offload == OFFLOAD_FILE) return false;
    c->optim.offload = OFFLOAD_FILE;
    return true;
}

static bool (*const changes[])(struct config *c) = {
    zero_1, zero_2, recompute_selective, halve_micro_batch, recompute_full, zero_3, sequence_parallel, more_tp, more_pp, offload_file,
};
enum { CHANGES = COUNT_OF(changes), TIMES_MOST = 16, DOUBLINGS = 10 }; /* the last change is for the ranks that there are */

/* ---- trying ---- */

struct trial {
    const struct config *base;
    const struct task_model *model;
    size_t limit;
    int doublings;
};
struct counts {
    int times[CHANGES];
}; /* how often each change is made */

/* False: the config is impossible, which is no failure. The rest of the batch is micro-batches. */
static bool settle(const struct trial *t, struct config *c)
{
    bool same = c->train.micro_batch == t->base->train.micro_batch && c->parallel.dp == t->base->parallel.dp;

    if (!same) c->train.accumulate = -1;
    if (c->train.global_batch < c->parallel.dp) c->train.global_batch = -1;
    return config_check_ranks(c) == LS_OK && config_check_batch(c) == LS_OK && config_check_fit(c) == LS_OK;
}

/* The base with these changes; false: it is not possible, or a change does not apply. */
static bool plan_remedies_make(const struct trial *t, const struct counts *n, struct config *out)
{
    struct config c = *t->base;

    for (int i = 0; i < t->doublings; i++) {
        c.parallel.dp *= 2;
        c.launch.ranks *= 2;
    }
    for (int i = 0; i < CHANGES; i++)
        for (int k = 0; k < n->times[i]; k++)
            if (!changes[i](&c)) return false;
    *out = c;
    return settle(t, out);
}

/* One rank is looked at first: most trials fail by it. */
static bool plan_remedies_fits(const struct trial *t, const struct counts *n, struct config *c, struct plan_bytes *most)
{
    if (!plan_remedies_make(t, n, c)) return false;
    return plan_of_rank(c, t->model, 0, most) == LS_OK && most->total + most->other <= t->limit &&
           plan_of_largest(c, t->model, most, NULL) == LS_OK && most->total + most->other <= t->limit;
}

/* ---- what it is called ---- */

static void put_int(char *out, const char *name, int64_t was, int64_t is)
{
    size_t at = strlen(out);

    if (was != is) snprintf(out + at, REMEDY_ROOM - at, "%s--%s=%" PRId64, at ? " " : "", name, is);
}

static void put_word(char *out, const char *name, const char *word)
{
    size_t at = strlen(out);

    snprintf(out + at, REMEDY_ROOM - at, "%s--%s=%s", at ? " " : "", name, word);
}

static struct remedy remedy_of(const struct config *a, const struct config *b, const struct plan_bytes *most)
{
    struct remedy r = { .total = most->total, .ranks = (int)b->launch.ranks };

    put_int(r.options, "launch.ranks", a->launch.ranks, b->launch.ranks);
    put_int(r.options, "parallel.dp", a->parallel.dp, b->parallel.dp);
    put_int(r.options, "parallel.tp", a->parallel.tp, b->parallel.tp);
    put_int(r.options, "parallel.pp", a->parallel.pp, b->parallel.pp);
    put_int(r.options, "parallel.zero", a->parallel.zero, b->parallel.zero);
    if (a->parallel.sp != b->parallel.sp) put_word(r.options, "parallel.sp", "true");
    if (strcmp(a->recompute.mode, b->recompute.mode) != 0) put_word(r.options, "recompute.mode", b->recompute.mode);
    put_int(r.options, "train.micro_batch", a->train.micro_batch, b->train.micro_batch);
    put_int(r.options, "train.accumulate", a->train.accumulate, b->train.accumulate);
    put_int(r.options, "train.global_batch", a->train.global_batch, b->train.global_batch);
    if (a->optim.offload != b->optim.offload) put_word(r.options, "optim.offload", "file");
    return r;
}

/* ---- the search ---- */

static void try_alone(const struct trial *t, struct remedy out[REMEDIES], int *count)
{
    struct plan_bytes most;
    struct config c;

    for (int i = 0; i < CHANGES && *count < REMEDIES; i++) {
        struct counts n = { { 0 } };

        for (n.times[i] = 1; n.times[i] <= TIMES_MOST && plan_remedies_make(t, &n, &c); n.times[i]++)
            if (plan_remedies_fits(t, &n, &c, &most)) {
                out[(*count)++] = remedy_of(t->base, &c, &most);
                break;
            }
    }
}

/* A change that is impossible on top of the others is left out. */
static bool pile_up(const struct trial *t, struct counts *n)
{
    struct plan_bytes most;
    struct config c;

    if (plan_remedies_fits(t, n, &c, &most)) return true;
    for (int i = 0; i < CHANGES - (t->doublings > 0); i++)
        while (n->times[i] < TIMES_MOST) {
            n->times[i]++;
            if (!plan_remedies_make(t, n, &c)) {
                n->times[i]--;
                break;
            }
            if (plan_remedies_fits(t, n, &c, &most)) return true;
        }
    return false;
}

static void take_back(const struct trial *t, struct counts *n)
{
    struct plan_bytes most;
    struct config c;

    for (int i = CHANGES - 1; i >= 0; i--)
        while (n->times[i] > 0) {
            n->times[i]--;
            if (plan_remedies_fits(t, n, &c, &most)) continue;
            n->times[i]++;
            break;
        }
}

ls_status plan_remedies(const struct config *c, const struct task_model *model, size_t limit, struct remedy out[REMEDIES], int *count)
{
    struct trial t = { c, model, limit, 0 };

    *count = 0;
    try_alone(&t, out, count);
    for (t.doublings = 0; *count == 0 && t.doublings <= DOUBLINGS && (c->launch.ranks << t.doublings) <= LS_MESH_RANKS_MOST;
         t.doublings++) {
        struct counts n = { { 0 } };
        struct plan_bytes most;
        struct config fit;

        if (!pile_up(&t, &n)) continue;
        take_back(&t, &n);
        if (plan_remedies_fits(&t, &n, &fit, &most)) out[(*count)++] = remedy_of(c, &fit, &most);
    }
    return LS_OK;
}
