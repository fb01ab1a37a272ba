/* save_plan.h - decides which rank writes which part of a store that several ranks save.
 *
 * A rank claims the range that it holds of each value and state whose box it owns. If several ranks claim the same, the lowest writes it.
 * All ranks see all claims, so each knows what is written where before anything is written.
 */
#ifndef LS_CHECKPOINT_SAVE_PLAN_H
#define LS_CHECKPOINT_SAVE_PLAN_H

#include "checkpoint/boxes.h"
#include "lockstep/comm.h"
#include "lockstep/store.h"

enum { CLAIM_KIND = 24 };

struct claim {
    uint64_t param, rank;
    uint64_t order; /* 0: the parameter; 1 ..: its states, in the store's order */
    struct box box;
    uint64_t from, to;     /* elements of the box, row-major */
    uint64_t type;         /* ls_dtype */
    char kind[CLAIM_KIND]; /* "parameter", "m" */
};

struct claims {
    struct claim *item;
    size_t n;
};

/* Sorted by: parameters before states, rank, parameter, order. comm NULL: one rank. Collective; all ranks return the same status. Free with
 * mem_free(out->item), on failure, too. */
ls_status claims_of(ls_comm *comm, const ls_store *store, struct claims *out);

#endif
