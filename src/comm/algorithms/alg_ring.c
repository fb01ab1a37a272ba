/* alg_ring.c - the ring: every rank sends to the next and receives from the previous one, n-1 hops per phase.
 *
 * Reduce-scatter: block b starts at rank b+1 and is passed on; each rank on the way adds its own part, and rank b gets the complete sum.
 * All-gather: the finished blocks go around once. All-reduce is both in sequence (claim C1).
 * Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
 * Cost, with D bytes in the big buffer, a seconds a message, b seconds a byte, s seconds to add a byte:
 *     reduce_scatter, all_gather   (n-1) a + D (n-1)/n b   [+ D (n-1)/n s]
 *     all_reduce                   both: 2 (n-1) a + 2 D (n-1)/n b + D (n-1)/n s: the minimum of bytes
 * Blocks of a hop are sent in chunks, so that a runtime can add one while the next one arrives.
 */
#include "comm/algorithms/alg.h"

/* work holds this rank's complete buffer; afterwards its block `rank` is the sum. */
static ls_status reduce_hops(const struct shape_of_call *c, enum place work, struct step_list *l)
{
    int next = rank_at(c->rank + 1, c->n), prev = rank_at(c->rank - 1, c->n);
    size_t chunk = steps_chunk(c), chunks = steps_chunks(c);

    for (int hop = 0; hop < c->n - 1; hop++)
        for (size_t k = 0; k < chunks; k++) {
            struct span out = span_part(span_block(c, work, c->rank - 1 - hop), k * chunk, chunk);
            struct span in = span_part(span_block(c, work, c->rank - 2 - hop), k * chunk, chunk);

            LS_TRY(steps_reduce(l, next, out, prev, in, hop == c->n - 2));
        }
    return LS_OK;
}

/* Block `rank` of recv is finished; afterwards all are. */
static ls_status gather_hops(const struct shape_of_call *c, struct step_list *l)
{
    int next = rank_at(c->rank + 1, c->n), prev = rank_at(c->rank - 1, c->n);

    for (int hop = 0; hop < c->n - 1; hop++)
        LS_TRY(steps_copy(l, next, span_block(c, IN_RECV, c->rank - hop), prev, span_block(c, IN_RECV, c->rank - 1 - hop)));
    return LS_OK;
}

ls_status ring_all_reduce(const struct shape_of_call *c, struct step_list *l)
{
    LS_TRY(steps_local(l, (struct span){ IN_SEND, 0, c->at[c->n] }, (struct span){ IN_RECV, 0, c->at[c->n] }, c->n == 1));
    LS_TRY(reduce_hops(c, IN_RECV, l));
    return gather_hops(c, l);
}

ls_status ring_all_gather(const struct shape_of_call *c, struct step_list *l)
{
    struct span mine = span_block(c, IN_RECV, c->rank);

    LS_TRY(steps_local(l, (struct span){ IN_SEND, 0, mine.len }, mine, false));
    return gather_hops(c, l);
}

/* Holds the partial sum of one block at a time: it is received into one half of the scratch and added to this rank's part, while the
 * previous one is sent from the other half. The last sum is formed in recv. */
ls_status ring_reduce_scatter(const struct shape_of_call *c, struct step_list *l)
{
    int n = c->n, r = c->rank, next = rank_at(r + 1, n), prev = rank_at(r - 1, n);
    size_t chunk = steps_chunk(c), chunks = steps_chunks(c), room = n > 2 ? chunk * chunks : 0;

    l->scratch = 2 * room;
    if (n == 1) return steps_local(l, span_block(c, IN_SEND, 0), (struct span){ IN_RECV, 0, c->at[1] }, true);
    for (int hop = 0; hop < n - 1; hop++) {
        bool last = hop == n - 2;
        struct span mine = span_block(c, IN_SEND, r - 2 - hop), out = span_block(c, IN_SEND, r - 1 - hop), in = mine;

        if (hop > 0) out.in = IN_SCRATCH, out.at = (size_t)(hop % 2) * room;
        in.in = last ? IN_RECV : IN_SCRATCH;
        in.at = last ? 0 : (size_t)((hop + 1) % 2) * room;
        for (size_t k = 0; k < chunks; k++) {
            struct span part = span_part(in, k * chunk, chunk);

            LS_TRY(steps_local(l, span_part(mine, k * chunk, chunk), part, false));
            LS_TRY(steps_reduce(l, next, span_part(out, k * chunk, chunk), prev, part, last));
        }
    }
    return LS_OK;
}
