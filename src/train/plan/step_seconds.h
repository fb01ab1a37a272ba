/* step_seconds.h - how long a training step takes on a machine that need not be here: the programs that `train` would run, instruction by
 * instruction (plan/seconds.h), and the pipeline's schedule with what its stages take.
 *
 * One rank of each stage is planned: the last along every other axis, whose shards are the largest. Its kernels run one after the other. A
 * collective runs beside them from where the program starts it, after those of the same group that were started before, and is exposed as
 * far as the program waits for it; an exchange of routed rows is waited for at once. Every micro-batch but the last takes the same time;
 * gradients are reduced in the last.
 */
#ifndef LS_TRAIN_PLAN_STEP_SECONDS_H
#define LS_TRAIN_PLAN_STEP_SECONDS_H

#include "plan/seconds.h"
#include "train/plan/plan.h"

/* Seconds of a step. The parts, but for `recomputed` and `hidden`, are those of the stage that is busy longest and add up to `step`. */
struct step_seconds {
    double step;
    double kernels[SECONDS_KINDS]; /* forward and backward, with what is recomputed */
    double optimizer;              /* its kernels */
    double exposed[LS_AXES];       /* collectives that are waited for, by axis */
    double bubble;                 /* of the pipeline: waits for other stages, and messages between them */
    double recomputed;             /* of the kernels: forward instructions that are repeated for the backward */
    double hidden[LS_AXES];        /* collectives beside kernels; not part of the step */
    double model_flops;            /* of the step on all ranks, as MFU counts them */
};

ls_status step_seconds_of(const struct plan_job *j, const ls_layout *layout, const struct cluster *c, struct step_seconds *out);

#endif
