/* async.h - parallel.method=async: rank 0 serves parameters, the other ranks work on stale ones.
 *
 * Each worker computes the gradient of its samples of a step, sends it to rank 0 and receives parameters. Rank 0 updates with each gradient
 * as it comes and answers with the parameters after that update. So a step of K workers makes K updates. The number of other workers'
 * updates between reading the parameters for a gradient and applying it is the gradient's staleness. No worker waits for a slower one until
 * that is LEAD steps behind; before an evaluation and a checkpoint all workers finish the same step and receive the same parameters.
 *
 * A gradient is that of the mean loss over its worker's tokens; the learning rate is that of its step. Adam counts updates.
 * See Dean et al. 2012, Large Scale Distributed Deep Networks (Downpour SGD), with the bound of Ho et al. 2013 (stale synchronous
 * parallel).
 */
#ifndef LS_TRAIN_RUN_ASYNC_H
#define LS_TRAIN_RUN_ASYNC_H

#include "train/run/trainer.h"

/* Runs steps up to the next evaluation or checkpoint, or to the run's last step, `steps`. Collective. */
ls_status async_advance(struct trainer *t, const struct trainer_watch *w, uint64_t steps);
/* Bytes of gradients or parameters that this rank sends in one step; *calls: number of messages. */
size_t async_sent(const struct step *s, size_t *calls);

#endif
