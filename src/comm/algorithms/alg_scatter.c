/* alg_scatter.c - broadcasts for large buffers.
 *
 * scatter_ring: the buffer is divided into n blocks; a binomial tree delivers block v to the v-th rank from the root (each inner node gets
 * the blocks of its subtree), and a ring all-gathers them.
 * chain: the buffer passes along the chain root, root + 1, .. in chunks, and each rank forwards one while the next one arrives.
 * Sources: van de Geijn's broadcast, in Thakur et al., "Optimization of collective communication operations in MPICH", 2005;
 * the chain is the textbook pipeline.
 * Cost (see alg_ring.c): scatter_ring (ceil(log2 n) + n - 1) a + 2 D (n-1)/n b; chain of p chunks (n - 2 + p) (a + D/p b).
 */
#include "comm/algorithms/alg.h"

enum { CHAIN_CHUNKS = 16 }; /* if the call names no chunk */

/* Blocks [v, v + blocks), counted from the root, limited to n. */
static struct span alg_scatter_blocks(const struct shape_of_call *c, int v, int many)
{
    size_t count = c->at[c->n];
    int end = v + many < c->n ? v + many : c->n;

    return (struct span){ IN_RECV, block_at(count, v, c->n), block_at(count, end, c->n) - block_at(count, v, c->n) };
}

/* The span of block i (mod n) of the ring. */
static struct span block(const struct shape_of_call *c, int i) { return alg_scatter_blocks(c, rank_at(i, c->n), 1); }

static ls_status scatter(const struct shape_of_call *c, int v, struct step_list *l)
{
    int n = c->n, bit = 1;

    while (bit < n && !(v & bit)) bit *= 2;
    if (v > 0) LS_TRY(steps_copy(l, -1, span_none(), rank_at(c->root + v - bit, n), alg_scatter_blocks(c, v, bit)));
    for (int d = bit / 2; d >= 1; d /= 2)
        if (v + d < n) LS_TRY(steps_copy(l, rank_at(c->root + v + d, n), alg_scatter_blocks(c, v + d, d), -1, span_none()));
    return LS_OK;
}

ls_status scatter_broadcast(const struct shape_of_call *c, struct step_list *l)
{
    int n = c->n, v = rank_at(c->rank - c->root, n), next = rank_at(c->rank + 1, n), prev = rank_at(c->rank - 1, n);

    LS_TRY(scatter(c, v, l));
    for (int hop = 0; hop < n - 1; hop++) LS_TRY(steps_copy(l, next, block(c, v - hop), prev, block(c, v - 1 - hop)));
    return LS_OK;
}

ls_status chain_broadcast(const struct shape_of_call *c, struct step_list *l)
{
    int n = c->n, v = rank_at(c->rank - c->root, n);
    int prev = v > 0 ? rank_at(c->rank - 1, n) : -1, next = v + 1 < n ? rank_at(c->rank + 1, n) : -1;
    struct span all = { IN_RECV, 0, c->at[n] };
    size_t chunk = c->chunk ? c->chunk : all.len / CHAIN_CHUNKS + 1, chunks = (all.len + chunk - 1) / chunk;

    for (size_t k = 0; k <= chunks; k++) {
        struct span out = k > 0 ? span_part(all, (k - 1) * chunk, chunk) : span_none();

        LS_TRY(steps_copy(l, next, out, prev, span_part(all, k * chunk, chunk)));
    }
    return LS_OK;
}
