/* step.h - one training step: a program over a store, run micro-batch by micro-batch.
 *
 *     gradients = 0
 *     for each of `accumulate` micro-batches: forward, backward (adds into the gradients)
 *     norm, clip, update
 *
 * The loss of every micro-batch is divided by the valid tokens of the whole step, so the losses and gradients of the
 * micro-batches add up to those of the step. Nothing is allocated after step_open().
 */
#ifndef LS_TRAIN_STEP_H
#define LS_TRAIN_STEP_H

#include "lockstep/optim.h"
#include "train/config.h"

struct step {
    ls_model     model;
    ls_store    *store;
    ls_program  *program;
    ls_optimizer optimizer;
    size_t batch, seq_len, accumulate;  /* B, T, micro-batches */
    int32_t *tokens, *targets;          /* [accumulate,B,T] of the step that runs next; the caller fills them */
};

/* Declares the model's parameters in a new store and compiles the step. plan_only: priced, not allocated. */
ls_status step_open(const struct config *c, const ls_model *model, bool plan_only, struct step *out);
void      step_close(struct step *s);  /* of a zeroed struct a no-op */

/* The loss and gradients of the step; `index` (0, 1, ...) keys dropout. *valid: tokens that count. A loss that is not
 * finite is LS_EINVAL; parameters are as they were. */
ls_status step_gradients(struct step *s, uint64_t index, double *loss, size_t *valid);
/* Update number t (1, 2, ...). *norm: of the whole gradient before clipping; not finite: LS_EINVAL. */
ls_status step_update(struct step *s, double lr, uint64_t t, double *norm);

/* FLOPs of one step: what the model needs (MFU counts it), and what is executed, recomputation included (HFU). */
double step_model_flops(const struct step *s);
double step_executed_flops(const struct step *s);

#endif
