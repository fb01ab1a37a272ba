/* alg_direct.c - direct exchange between all pairs: n-1 exchanges, and every sum on one rank, in rank order, rounded once.
 *
 * In exchange i rank r sends to r + i and receives from r - i. Reduce-scatter: rank r collects the n parts of block r in scratch and adds
 * them 0 + 1 + .. + n-1: the sum of an element depends on neither the blocks nor its place in them, and half types are summed in f32.
 * All-gather: each rank sends its block to each other rank.
 * Source: the linear exchange of every MPI; bytes as in the ring.
 * Cost (see alg_ring.c): reduce_scatter, all_gather (n-1) a + D (n-1)/n b [+ D (n-1)/n s]; all_reduce both. Scratch: n chunks.
 */
#include "comm/algorithms/alg.h"

enum { CHUNK = 1 << 16 }; /* elements if the call names no chunk; scratch holds n of them */

static size_t alg_direct_chunk(const struct shape_of_call *c)
{
    size_t chunk = steps_chunk(c);

    return c->chunk || chunk < CHUNK ? chunk : CHUNK;
}

/* Sums chunk k of this rank's block into its place in `mine`. */
static ls_status reduce_chunk(const struct shape_of_call *c, size_t k, struct span mine, struct step_list *l)
{
    int n = c->n, r = c->rank;
    size_t chunk = steps_chunk(c);
    struct span own = span_part(span_block(c, IN_SEND, r), k * chunk, chunk), part = { IN_SCRATCH, 0, own.len };

    for (int i = 1; i < n; i++) {
        int to = rank_at(r + i, n), from = rank_at(r - i, n);

        part.at = (size_t)from * chunk;
        LS_TRY(steps_copy(l, to, span_part(span_block(c, IN_SEND, to), k * chunk, chunk), from, part));
    }
    part.at = (size_t)r * chunk;
    LS_TRY(steps_local(l, own, part, false));
    for (int i = 1; i < n; i++) {
        part.at = (size_t)i * chunk;
        LS_TRY(steps_local_reduce(l, part, (struct span){ IN_SCRATCH, 0, own.len }, i == n - 1));
    }
    part.at = 0;
    return steps_local(l, part, span_part(mine, k * chunk, chunk), false);
}

static ls_status alg_direct_reduce(const struct shape_of_call *c, struct span mine, struct step_list *l)
{
    struct shape_of_call cut = *c;

    if (c->n == 1) return steps_local(l, span_block(c, IN_SEND, 0), mine, true);
    cut.chunk = alg_direct_chunk(c);
    l->scratch = (size_t)c->n * steps_chunk(&cut);
    l->wide = true;
    for (size_t k = 0, chunks = steps_chunks(&cut); k < chunks; k++) LS_TRY(reduce_chunk(&cut, k, mine, l));
    return LS_OK;
}

/* Sends this rank's block, `mine`, to all others, and receives theirs. */
static ls_status alg_direct_gather(const struct shape_of_call *c, struct span mine, struct step_list *l)
{
    for (int i = 1; i < c->n; i++)
        LS_TRY(steps_copy(l, rank_at(c->rank + i, c->n), mine, rank_at(c->rank - i, c->n), span_block(c, IN_RECV, c->rank - i)));
    return LS_OK;
}

ls_status direct_all_reduce(const struct shape_of_call *c, struct step_list *l)
{
    struct span mine = span_block(c, IN_RECV, c->rank);

    LS_TRY(alg_direct_reduce(c, mine, l));
    return alg_direct_gather(c, mine, l);
}

ls_status direct_reduce_scatter(const struct shape_of_call *c, struct step_list *l)
{
    return alg_direct_reduce(c, (struct span){ IN_RECV, 0, span_block(c, IN_SEND, c->rank).len }, l);
}

ls_status direct_all_gather(const struct shape_of_call *c, struct step_list *l)
{
    struct span mine = span_block(c, IN_RECV, c->rank);

    LS_TRY(steps_local(l, (struct span){ IN_SEND, 0, mine.len }, mine, false));
    return alg_direct_gather(c, mine, l);
}

ls_status direct_broadcast(const struct shape_of_call *c, struct step_list *l)
{
    struct span all = { IN_RECV, 0, c->at[c->n] };

    if (c->rank != c->root) return steps_copy(l, -1, span_none(), c->root, all);
    for (int i = 1; i < c->n; i++) LS_TRY(steps_copy(l, rank_at(c->root + i, c->n), all, -1, span_none()));
    return LS_OK;
}
