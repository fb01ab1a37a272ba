/* alg_tree.c - the binomial tree: for small buffers, where the number of rounds dominates the cost.
 *
 * Ranks are counted from the root: v = rank - root. The parent of v is v without its lowest bit; its children are v + d for
 * the powers of two d below that bit (for the root: below n). A broadcast goes down the tree, farthest child first; a reduction goes up,
 * nearest child first. All-reduce: up to rank 0, and down again.
 * Source: as in Thakur et al., "Optimization of collective communication operations in MPICH", 2005.
 * Cost (see alg_ring.c): broadcast ceil(log2 n) (a + D b); all_reduce twice that + ceil(log2 n) D s. The root sends D bytes
 * to each of ceil(log2 n) ranks.
 */
#include "comm/algorithms/alg.h"

static int lowest_bit(int v, int n)
{
    int d = 1;

    while (d < n && !(v & d)) d *= 2;
    return d;
}

static ls_status down(const struct shape_of_call *c, int root, struct step_list *l)
{
    int v = rank_at(c->rank - root, c->n), bit = lowest_bit(v, c->n);
    struct span all = { IN_RECV, 0, c->at[c->n] };

    if (v > 0) LS_TRY(steps_copy(l, -1, span_none(), rank_at(root + v - bit, c->n), all));
    for (int d = bit / 2; d >= 1; d /= 2)
        if (v + d < c->n) LS_TRY(steps_copy(l, rank_at(root + v + d, c->n), all, -1, span_none()));
    return LS_OK;
}

ls_status tree_broadcast(const struct shape_of_call *c, struct step_list *l) { return down(c, c->root, l); }

ls_status tree_all_reduce(const struct shape_of_call *c, struct step_list *l)
{
    int v = c->rank, n = c->n, bit = lowest_bit(v, n);
    struct span all = { IN_RECV, 0, c->at[n] };

    LS_TRY(steps_local(l, (struct span){ IN_SEND, 0, all.len }, all, n == 1));
    for (int d = 1; d < bit && v + d < n; d *= 2) LS_TRY(steps_reduce(l, -1, span_none(), v + d, all, v == 0 && 2 * d >= n));
    if (v > 0) LS_TRY(steps_copy(l, v - bit, all, -1, span_none()));
    return down(c, 0, l);
}
