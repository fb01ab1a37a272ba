/* alg_pairwise.c - all-to-all by exchanges, and the barrier.
 *
 * all_to_all: in exchange i rank r sends its block r + i to that rank and receives from r - i: every link of the machine is used once per
 * round, in both directions. In place, a block would be overwritten before it is sent, so the complete buffer is copied to scratch first.
 * Cost (see alg_ring.c): (n-1) a + D (n-1)/n b, D the bytes that a rank sends.
 *
 * barrier: in the round of distance d = 1, 2, 4, .. rank r notifies r + d that it, and every rank it knows of, has arrived, and gets the
 * same from r - d; after ceil(log2 n) rounds all ranks have arrived. A message is one element of scratch.
 *
 * Sources: the pairwise exchange of every MPI; Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
 */
#include "comm/algorithms/alg.h"

ls_status pairwise_all_to_all(const struct shape_of_call *c, struct step_list *l)
{
    int n = c->n, r = c->rank;
    const size_t *to_at = c->at, *from_at = c->recv_at;
    enum place held = c->in_place && n > 1 ? IN_SCRATCH : IN_SEND;
    struct span all = { IN_SEND, 0, to_at[n] };

    if (held == IN_SCRATCH) {
        l->scratch = all.len;
        LS_TRY(steps_local(l, all, (struct span){ IN_SCRATCH, 0, all.len }, false));
    }
    for (int i = 0; i < n; i++) {
        int to = rank_at(r + i, n), from = rank_at(r - i, n);
        struct span out = { held, to_at[to], to_at[to + 1] - to_at[to] };
        struct span in = { IN_RECV, from_at[from], from_at[from + 1] - from_at[from] };

        LS_TRY(i == 0 ? steps_local(l, out, in, false) : steps_copy(l, to, out, from, in));
    }
    return LS_OK;
}

ls_status dissemination_barrier(const struct shape_of_call *c, struct step_list *l)
{
    const struct span out = { IN_SCRATCH, 0, 1 }, in = { IN_SCRATCH, 1, 1 };

    l->scratch = c->n > 1 ? 2 : 0;
    for (int d = 1; d < c->n; d *= 2) LS_TRY(steps_copy(l, rank_at(c->rank + d, c->n), out, rank_at(c->rank - d, c->n), in));
    return LS_OK;
}
