/* method.c - the ways in which gradients become an update: what each of them changes in the pass.
 *
 * In a rooted method rank 0 holds every element of what a ZeRO stage shards. So the stages' own instructions do its work: where all of a
 * buffer belongs to rank 0, a reduce-scatter is the sum of all gradients on rank 0, an all-gather is rank 0 sending the parameters to all,
 * and the optimizer updates on rank 0 alone. DATAPARALLEL takes the placement of stage 3 (in each micro-batch parameters are received and
 * gradients are sent), SERVER and ASYNC that of stage 1.
 */
#include "parallel/zero/zero.h"

static const struct method methods[LS_METHODS] = {
    [LS_METHOD_ALLREDUCE] = { .rooted = false },
    [LS_METHOD_DATAPARALLEL] = { .rooted = true, .zero = 3, .keeps = true },
    [LS_METHOD_SERVER] = { .rooted = true, .zero = 1 },
    [LS_METHOD_ASYNC] = { .rooted = true, .zero = 1, .apart = true },
};

const struct method *method_of(ls_method m) { return &methods[m]; }

size_t *unit_counts_of_ranks(struct pass *a, const struct unit *u)
{
    const struct store_unit *g = unit_stored(a, u);

    return g->rooted ? program_rooted_counts(a->p, g->total, ls_comm_size(g->comm)) : NULL;
}
