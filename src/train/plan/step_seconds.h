/* step_seconds.h - how long a training step takes on any machine that a file describes: the programs that `train` would run, instruction by
 * instruction (plan/seconds.h), and the pipeline's schedule with the seconds of its stages.
 *
 * One rank of each stage is planned: the last along every other axis, whose shards are the largest. Its programs are played as in tape.h.
 * Every micro-batch but the last takes the same time; gradients are reduced in the last. Optimizers begin when all stages have reduced.
 */
#ifndef LS_TRAIN_PLAN_STEP_SECONDS_H
#define LS_TRAIN_PLAN_STEP_SECONDS_H

#include "parallel/pipeline/sequence.h"
#include "train/plan/plan.h"
#include "train/plan/tape.h"

/* Seconds of a step. The parts are those of the stage that is busy longest and add up to `step`, except `recomputed` and `hidden`. */
struct step_seconds {
    double step;
    double kernels[SECONDS_KINDS]; /* forward and backward, with what is recomputed */
    double optimizer;              /* kernels of the optimizer */
    double exposed[SECONDS_WAITS]; /* waits for collectives, by axis, and for loads and saves of what is offloaded */
    double bubble;                 /* pipeline bubble: waits for other stages, and messages between them */
    double recomputed;             /* part of `kernels`: forward instructions that are repeated for the backward */
    double hidden[SECONDS_WAITS];  /* communication that overlaps kernels; not part of the step */
    double model_flops;            /* FLOPs of the step on all ranks, as MFU counts them */
};

/* Prepares a config that is planned for machine c, before it is checked: automatic options take the values for c. The programs are those of
 * the cpu; unless c is a cpu too (c->serial: its collectives occupy the processor), they consist of reference kernels, so that no number
 * depends on the machine that plans. */
void step_seconds_settle(struct config *config, const struct cluster *c);

ls_status step_seconds_of(const struct plan_job *j, const ls_layout *layout, const struct cluster *c, struct step_seconds *out);

/* Bytes that the machine's communication library holds for the groups of the layout. */
double group_buffers_of(const struct cluster *c, const ls_layout *l);

/* ---- parts of step_seconds_of(), for a search ---- */

/* The seconds of each virtual stage's actions, by kind; owned. */
struct stage_actions {
    double *micro[3],
        *last[3]; /* [pp * vpp] seconds in a micro-batch before the last, and in the last; the three arrays of each are contiguous */
};
ls_status stage_actions_new(int stages, struct stage_actions *out);
void stage_actions_free(struct stage_actions *a);
/* split: weight gradients are separate actions of the schedule. */
void stage_actions_put(const struct stage_actions *a, int stage, const struct tape_seconds *x, bool split);

/* Seconds in which the busiest of pp stages computes and waits for collectives: a lower bound of the step. */
double step_seconds_least(int pp, int micro_batches, const struct tape_seconds *stages);
/* The step from its stages. The schedule's sequence and a are used if pp > 1. model_flops is 0. */
void step_seconds_join(struct sequence *sequence, int pp, int micro_batches, const struct tape_seconds *stages,
                       const struct stage_actions *a, struct step_seconds *out);

#endif
