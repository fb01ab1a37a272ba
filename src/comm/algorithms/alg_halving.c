/* alg_halving.c - recursive doubling and halving on a circle: ceil(log2 n) rounds, any n, minimal bytes.
 *
 * Doubling (all-gather): rank r begins with block r. In the round of distance m = 1, 2, 4, .. it holds the m blocks from r on around the
 * circle, and gets the next min(m, n - m) of them from rank r + m, while rank r - m gets those of r. Blocks are stored at their final place
 * in recv, so a message is one span, or two where the circle wraps around. If n is a power of two, r + m and r - m are both r ^ m, and the
 * blocks held are the m of an aligned group: always one span.
 * Halving (reduce-scatter) is the same in reverse, m = .., 4, 2, 1: what came from r + m goes to it, as partial sums, and is added there;
 * each block travels to its rank along the tree on which doubling distributed it.
 * Sources: Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997;
 * Rabenseifner's all-reduce, in Thakur et al., "Optimization of collective communication operations in MPICH", 2005, with the
 * circle of Bar-Noy et al. and Traff (2024) in place of its hypercube: no extra steps if n is not a power of two.
 * Cost (see alg_ring.c): all_gather ceil(log2 n) a + D (n-1)/n b; reduce_scatter + D (n-1)/n s; all_reduce both. At most twice the messages
 * if n is not a power of two, because of spans that wrap around.
 */
#include "comm/algorithms/alg.h"

/* Blocks [first, first + blocks) round the circle: part 0 up to the end of the buffer, part 1 from its start. */
static struct span arc(const struct shape_of_call *c, enum place in, int first, int blocks, int part)
{
    int lo = rank_at(first, c->n), hi = lo + blocks, n = c->n;

    if (part == 0)
        hi = hi < n ? hi : n;
    else
        lo = 0, hi = hi > n ? hi - n : 0;
    return (struct span){ in, c->at[lo], c->at[hi] - c->at[lo] };
}

/* Doubling of distance m: blocks [mine, mine + blocks) go to rank `to`, [its, its + blocks) come from rank `from`. */
struct round {
    int to, from, mine, its, blocks;
};

static struct round round_of(const struct shape_of_call *c, int m)
{
    int r = c->rank, n = c->n;

    if ((n & (n - 1)) == 0) return (struct round){ r ^ m, r ^ m, r & -m, (r ^ m) & -m, m };
    return (struct round){ rank_at(r - m, n), rank_at(r + m, n), r, r + m, m < n - m ? m : n - m };
}

static int largest_round(int n)
{
    int m = 1;

    while (2 * m < n) m *= 2;
    return m;
}

/* The round of distance m of halving: out of `from`, into `work`. */
static ls_status halving_round(const struct shape_of_call *c, int m, enum place from, enum place work, struct step_list *l)
{
    struct round d = round_of(c, m);

    for (int part = 0; part < 2; part++)
        LS_TRY(steps_reduce(l, d.from, arc(c, from, d.its, d.blocks, part), d.to, arc(c, work, d.mine, d.blocks, part), m == 1));
    return LS_OK;
}

static ls_status doubling_rounds(const struct shape_of_call *c, struct step_list *l)
{
    for (int m = 1; m < c->n; m *= 2)
        for (int part = 0; part < 2; part++) {
            struct round d = round_of(c, m);

            LS_TRY(steps_copy(l, d.to, arc(c, IN_RECV, d.mine, d.blocks, part), d.from, arc(c, IN_RECV, d.its, d.blocks, part)));
        }
    return LS_OK;
}

ls_status halving_all_reduce(const struct shape_of_call *c, struct step_list *l)
{
    LS_TRY(steps_local(l, (struct span){ IN_SEND, 0, c->at[c->n] }, (struct span){ IN_RECV, 0, c->at[c->n] }, c->n == 1));
    for (int m = largest_round(c->n); c->n > 1 && m >= 1; m /= 2) LS_TRY(halving_round(c, m, IN_RECV, IN_RECV, l));
    return doubling_rounds(c, l);
}

/* Partial sums are in scratch as they would in the big buffer; what the first round sends is this rank's own and goes
 * straight from send. */
ls_status halving_reduce_scatter(const struct shape_of_call *c, struct step_list *l)
{
    int n = c->n, top = largest_round(n), first = round_of(c, top).mine;
    struct span sum = span_block(c, IN_SCRATCH, c->rank), mine = { IN_RECV, 0, sum.len };

    if (n == 1) return steps_local(l, span_block(c, IN_SEND, 0), mine, true);
    l->scratch = c->at[n];
    for (int part = 0; part < 2; part++)
        LS_TRY(steps_local(l, arc(c, IN_SEND, first, top, part), arc(c, IN_SCRATCH, first, top, part), false));
    for (int m = top; m >= 1; m /= 2) LS_TRY(halving_round(c, m, m == top ? IN_SEND : IN_SCRATCH, IN_SCRATCH, l));
    return steps_local(l, sum, mine, false);
}

ls_status doubling_all_gather(const struct shape_of_call *c, struct step_list *l)
{
    struct span mine = span_block(c, IN_RECV, c->rank);

    LS_TRY(steps_local(l, (struct span){ IN_SEND, 0, mine.len }, mine, false));
    return doubling_rounds(c, l);
}
