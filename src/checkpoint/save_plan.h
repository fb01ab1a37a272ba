/* save_plan.h - which rank writes what of a store that is saved by several.
 *
 * A rank claims the stretch that it holds of each value and state for whose box it speaks. Where ranks claim the same the lowest
 * writes it. All ranks see all claims, so all know what is written where before anything is.
 */
#ifndef LS_CHECKPOINT_SAVE_PLAN_H
#define LS_CHECKPOINT_SAVE_PLAN_H

#include "checkpoint/slices.h"
#include "lockstep/comm.h"
#include "lockstep/store.h"

enum { CLAIM_KIND = 24 };

struct claim {
    uint64_t param, rank;
    uint64_t order; /* 0: the parameter; 1 ..: its states, in the store's order */
    struct slice box;
    uint64_t from, to;     /* elements of the box, row-major */
    uint64_t type;         /* ls_dtype */
    char kind[CLAIM_KIND]; /* "parameter", "m" */
};

struct claims {
    struct claim *item;
    size_t n;
};

/* Sorted by: parameters before states, rank, parameter, order. comm NULL: one rank. Collective, one outcome. *out is freed with
 * mem_free(out->item), on failure too. */
ls_status claims_of(ls_comm *comm, const ls_store *store, struct claims *out);

#endif
