/* balance.c - divides blocks into stages so that the most expensive stage is as cheap as possible.
 *
 * most[k][j] = cost of the most expensive of k stages over the first j blocks = min over i of max(most[k-1][i], blocks i .. j-1 as a
 * stage). Among the divisions with that cost, the one with the least sum of squares is chosen, which evens out the other stages.
 */
#include "lockstep/pipeline.h"

#include <math.h>
#include "base/base.h"
#include "base/mem.h"

struct split {
    int blocks, stages;
    double before, after;
    double *sum;            /* [blocks + 1] prefix sums of cost */
    double *most, *squares; /* [stages + 1][blocks + 1] */
    int *from;              /* [stages + 1][blocks + 1] where the last stage begins */
};

/* The cost of blocks [i, j) as stage k (1 .. stages). */
static double stage_cost(const struct split *c, int k, int i, int j)
{
    return c->sum[j] - c->sum[i] + (k == 1 ? c->before : 0) + (k == c->stages ? c->after : 0);
}

static size_t cell(const struct split *c, int k, int j) { return (size_t)k * (size_t)(c->blocks + 1) + (size_t)j; }

static double pace(struct split *c)
{
    for (int k = 1; k <= c->stages; k++)
        for (int j = k; j <= c->blocks; j++) {
            double best = INFINITY;

            for (int i = k - 1; i < j; i++) {
                if (k == 1 && i > 0) break;
                best = fmin(best, fmax(k == 1 ? 0 : c->most[cell(c, k - 1, i)], stage_cost(c, k, i, j)));
            }
            c->most[cell(c, k, j)] = best;
        }
    return c->most[cell(c, c->stages, c->blocks)];
}

/* The least sum of squares among divisions with no stage above `most`. */
static void even(struct split *c, double most)
{
    for (int j = 0; j <= c->blocks; j++) c->squares[cell(c, 0, j)] = j ? INFINITY : 0;
    for (int k = 1; k <= c->stages; k++)
        for (int j = 0; j <= c->blocks; j++) {
            double best = INFINITY;

            for (int i = k - 1; i < j; i++) {
                double cost = stage_cost(c, k, i, j), share = most > 0 ? cost / most : 0,
                       squares = c->squares[cell(c, k - 1, i)] + share * share;

                if (cost > most || squares >= best) continue;
                best = squares;
                c->from[cell(c, k, j)] = i;
            }
            c->squares[cell(c, k, j)] = best;
        }
}

static ls_status costs_check(int blocks, const double *cost, double before, double after, int stages)
{
    if (stages < 1) return ls_fail(LS_EINVAL, "balance: %d stages; use at least 1", stages);
    if (blocks < stages)
        return ls_fail(LS_EINVAL, "balance: %d blocks cannot be divided into %d stages: every stage needs a block; use at most %d stages",
                       blocks, stages, blocks);
    for (int i = 0; i < blocks; i++)
        if (!(cost[i] >= 0) || isinf(cost[i]))
            return ls_fail(LS_EINVAL, "balance: block %d costs %g; it must be a finite number >= 0", i, cost[i]);
    if (!(before >= 0) || isinf(before) || !(after >= 0) || isinf(after))
        return ls_fail(LS_EINVAL, "balance: costs before and after the blocks are %g and %g; they must be finite numbers >= 0", before,
                       after);
    return LS_OK;
}

ls_status ls_pipeline_balance(int blocks, const double *cost, double before, double after, int stages, int *begin)
{
    LS_TRY(costs_check(blocks, cost, before, after, stages));
    struct split c = { .blocks = blocks, .stages = stages, .before = before, .after = after };
    size_t cells = cell(&c, stages + 1, 0);
    ls_status st = LS_ENOMEM;

    c.sum = mem_array(MEM_OTHER, (size_t)blocks + 1, sizeof *c.sum);
    c.most = mem_array(MEM_OTHER, cells, sizeof *c.most);
    c.squares = mem_array(MEM_OTHER, cells, sizeof *c.squares);
    c.from = mem_array(MEM_OTHER, cells, sizeof *c.from);
    if (!c.sum || !c.most || !c.squares || !c.from) goto free_split;
    for (int i = 0; i < blocks; i++) c.sum[i + 1] = c.sum[i] + cost[i];
    even(&c, pace(&c));
    begin[stages] = blocks;
    for (int k = stages; k > 0; k--) begin[k - 1] = c.from[cell(&c, k, begin[k])];
    st = LS_OK;
free_split:
    mem_free(c.from);
    mem_free(c.squares);
    mem_free(c.most);
    mem_free(c.sum);
    return st;
}
