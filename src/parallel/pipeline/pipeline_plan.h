/* pipeline_plan.h - what one rank does in one run of a schedule, computed in advance: receives, actions, slots.
 *
 * Activations arrive from a rank in the order of its list, and so, independently, do gradients. Receives are posted in that order, as
 * early as possible: an activation needs a free slot of its chunk, which is taken then and released by the micro-batch's last action; a
 * gradient uses the slot of its forward. A gradient therefore always finds its receive posted, whatever this rank is waiting for. Hence
 * a list that completes when sends do not block also completes here, where a send is waited for before its buffer is written again. (Of
 * the forward-only lists this holds for "forward" and "forward-v".) Neighboring stages on one rank hand over by a copy: activations
 * when the next stage begins, gradients as soon as they are available.
 */
#ifndef LS_PARALLEL_PIPELINE_PIPELINE_PLAN_H
#define LS_PARALLEL_PIPELINE_PIPELINE_PLAN_H

#include <stdbool.h>
#include "lockstep/pipeline.h"

struct plan_step {
    bool receive; /* true: a receive is posted for action; false: the action runs */
    ls_action action;
    int slot;         /* slot of the action's chunk */
    int from, to;     /* ranks of the message; -1: none, or the neighbor is on this rank */
    int chunk, other; /* chunk: the neighboring chunk on this rank from which (FORWARD) or to whose slot `other` (BACKWARD) data is copied;
                         -1: none */
    bool last;        /* last of its kind and chunk */
};

struct pipeline_plan {
    struct plan_step *step;
    int n;
    int *slots; /* [chunks] */
};

/* For a schedule that ls_pipeline_schedule_check() has passed. */
ls_status pipeline_plan_make(const ls_pipeline_schedule *s, int rank, struct pipeline_plan *out);
void pipeline_plan_free(struct pipeline_plan *p);

#endif
