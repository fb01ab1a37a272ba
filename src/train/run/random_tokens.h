/* random_tokens.h - a step's samples without data: pure functions of (seed, step, global sample), the same whatever the ranks. */
#ifndef LS_TRAIN_RUN_RANDOM_TOKENS_H
#define LS_TRAIN_RUN_RANDOM_TOKENS_H

#include "train/run/step.h"

/* Fills inputs and targets of this rank's share of step `index`. ignored: share of the targets that do not count (-1). */
void random_tokens(struct step *s, uint64_t index, double ignored);

#endif
