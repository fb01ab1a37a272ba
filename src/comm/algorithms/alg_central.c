/* alg_central.c - all-reduce through one node: never chosen, kept for comparison with the others (claim C3).
 *
 * Every rank sends its buffer to rank 0, which adds them in rank order and sends the sum to each. Rank 0 receives (n-1) D bytes
 * and sends as many, while 2 D (n-1)/n would do.
 * Cost (see alg_ring.c): 2 (n-1) (a + D b) + (n-1) D s, all of it at rank 0.
 */
#include "comm/algorithms/alg.h"

ls_status central_all_reduce(const struct shape_of_call *c, struct step_list *l)
{
    size_t count = c->at[c->n];
    struct span mine = { IN_SEND, 0, count }, sum = { IN_SCRATCH, 0, count }, all = { IN_RECV, 0, count };

    if (c->rank > 0) {
        LS_TRY(steps_copy(l, 0, mine, -1, span_none()));
        return steps_copy(l, -1, span_none(), 0, all);
    }
    if (c->n == 1) return steps_local(l, mine, all, true);
    l->scratch = count;
    l->wide = true;
    LS_TRY(steps_local(l, mine, sum, false));
    for (int i = 1; i < c->n; i++) LS_TRY(steps_reduce(l, -1, span_none(), i, sum, i == c->n - 1));
    LS_TRY(steps_local(l, sum, all, false));
    for (int i = 1; i < c->n; i++) LS_TRY(steps_copy(l, i, all, -1, span_none()));
    return LS_OK;
}
