/* pipeline_plan.h - what one rank does in one run of a schedule, written down before: receives, actions, slots.
 *
 * Activations, and apart from them gradients, arrive from a rank in the order of its list, and receives are posted in that order: as
 * early as can be. An activation wants a free slot of its chunk, which is taken then and given back by the micro-batch's last action; a
 * gradient wants the slot of its forward. So a gradient finds its receive posted whatever this rank waits for, and lists that end when
 * sends don't wait end here too, where a send's buffer is waited for when it is written again (of lists of forwards alone: those of
 * "forward" and "forward-v"). Chunks of neighbouring stages on one rank hand over by a copy: forwards when the
 * next stage begins, gradients as soon as they are there.
 */
#ifndef LS_PARALLEL_PIPELINE_PIPELINE_PLAN_H
#define LS_PARALLEL_PIPELINE_PIPELINE_PLAN_H

#include <stdbool.h>
#include "lockstep/pipeline.h"

struct plan_step {
    bool receive; /* a receive is posted for action; else it runs */
    ls_action action;
    int slot;         /* of the action's chunk */
    int from, to;     /* ranks of a message; -1: none, or a neighbour on this rank */
    int chunk, other; /* the neighbouring chunk on this rank from (FORWARD) or to (BACKWARD) whose slot `other` a copy goes; -1 */
    bool last;        /* of its kind and chunk */
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
