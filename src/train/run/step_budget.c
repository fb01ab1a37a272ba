/* step_budget.c - chooses how many blocks each rank recomputes so that its activations fit into recompute.mode=budget:SIZE.
 *
 * The ranks of a pipeline stage must recompute the same blocks, because recomputation repeats a block's collectives. Stages may differ,
 * because the budget is per rank. So each rank plans the steps of those ranks of its stage that may differ from each other, without
 * communication, and finds by bisection the least number of blocks (of each of the rank's chunks) with which all of them fit. All ranks of
 * a stage plan the same ranks, so they find the same number, and so does `lockstep plan`. Each plan is of the complete step, with
 * everything that distribution adds to it.
 */
#include "train/run/step_budget.h"

#include <string.h>
#include "base/base.h"
#include "base/fewest.h"
#include "base/text.h"
#include "base/threads.h"
#include "kernels/kernel.h"

enum { PLACES = 10, PLACES_CP = 8 };

struct choosing {
    const struct task_model *model;
    struct step_options options;
    ls_layout layout;
    int stage, blocks; /* blocks: the most that a program of the stage has; known after the first plan */
};

static ls_status budget_rank_bytes(struct choosing *c, int rank, size_t *bytes)
{
    struct ranks ranks;
    struct step s;
    ls_program *p;

    LS_TRY(ranks_plan(&c->layout, rank, &ranks));
    ls_status st = step_open(c->model, &c->layout, &c->options, &ranks, true, &s);
    if (st == LS_OK) {
        *bytes = step_cost(&s).activations;
        for (int i = 0; (p = step_program(&s, i)); i++) c->blocks = MAX(c->blocks, p->nblocks - 1);
        step_close(&s);
    }
    ranks_close(&ranks);
    return st;
}

/* The positions along an axis of n ranks whose plans may differ: the first `first` and the last. */
static int budget_places(int n, int first, int out[PLACES])
{
    int count = 0;

    for (int r = 0; r < n; r++)
        if (r < first || r == n - 1) out[count++] = r;
    return count;
}

/* Bytes of activations of the rank of the stage that has the most, with the first n blocks recomputed. */
static ls_status budget_stage_bytes(void *ctx, int n, size_t *most)
{
    struct choosing *c = ctx;
    const ls_layout *l = &c->layout;
    int dp[PLACES], cp[PLACES], tp[PLACES];
    int ndp = budget_places(l->dp, 1, dp), ncp = budget_places(l->cp, PLACES_CP, cp), ntp = budget_places(l->tp, 1, tp);

    c->layout.every = n;
    *most = 0;
    for (int k = 0; k < ndp * ncp * ntp; k++) {
        int rank = ((c->stage * l->dp + dp[k / ntp / ncp]) * l->cp + cp[k / ntp % ncp]) * l->tp + tp[k % ntp];
        size_t bytes;

        LS_TRY(budget_rank_bytes(c, rank, &bytes));
        *most = MAX(*most, bytes);
    }
    return LS_OK;
}

/* The latest choice, which is reused: a plan opens the steps of many ranks of one layout in turn. threads, isa: what the programs were
 * compiled for, since kernels' scratch depends on both. */
static _Thread_local struct {
    struct task_model model;
    struct step_options options;
    ls_layout layout;
    int stage, blocks, threads;
    enum isa isa;
    bool set;
} chosen;

static bool is_chosen(const struct task_model *model, const struct step_options *o, const ls_layout *l, int stage)
{
    return chosen.set && chosen.stage == stage && chosen.threads == threads_count() && chosen.isa == isa_best() &&
           memcmp(&chosen.layout, l, sizeof *l) == 0 && memcmp(&chosen.options, o, sizeof *o) == 0 &&
           memcmp(&chosen.model, model, sizeof *model) == 0;
}

ls_status step_budget_choose(const struct task_model *model, const struct step_options *o, int rank, ls_layout *layout)
{
    struct choosing c = { .model = model, .options = *o, .layout = *layout };
    char needed[16];
    size_t least;
    int n;

    if (layout->recompute != LS_RECOMPUTE_BUDGET) return LS_OK;
    c.stage = rank / (layout->dp * layout->cp * layout->tp);
    c.options.non_finite = (struct value_fault){ 0 }; /* a fault of one rank, which is checked when that rank's step is opened */
    c.layout.recompute = LS_RECOMPUTE_FIRST;
    if (!is_chosen(model, o, layout, c.stage)) {
        LS_TRY(budget_stage_bytes(&c, 0, &least)); /* sets c.blocks */
        LS_TRY(fewest_within(budget_stage_bytes, &c, c.blocks, layout->budget, &n, &least));
        if (n < 0)
            return ls_fail(
                LS_EINVAL,
                "recompute.mode: the budget of %zu bytes cannot be met: the activations of a rank need at least %zu bytes (%s); use "
                "a larger budget",
                layout->budget, least, text_bytes(needed, least));
        chosen.set = true;
        chosen.stage = c.stage;
        chosen.threads = threads_count();
        chosen.isa = isa_best();
        chosen.blocks = n;
        memcpy(&chosen.model, model, sizeof *model);
        memcpy(&chosen.options, o, sizeof *o);
        memcpy(&chosen.layout, layout, sizeof *layout);
    }
    layout->recompute = LS_RECOMPUTE_FIRST;
    layout->every = chosen.blocks;
    return LS_OK;
}

ls_status step_budget_check(const struct step *s, size_t budget)
{
    size_t bytes = step_cost(s).activations;
    char needed[16];

    if (bytes <= budget) return LS_OK;
    return ls_fail(LS_EINVAL, "recompute.mode: the budget of %zu bytes cannot be met: rank %d needs %zu bytes (%s); use a larger budget",
                   budget, s->ranks.rank, bytes, text_bytes(needed, bytes));
}
