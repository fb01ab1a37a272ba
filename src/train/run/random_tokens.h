/* random_tokens.h - random samples: pure functions of (seed, step, index of the sample in the global batch), the same on any number of
 * ranks. */
#ifndef LS_TRAIN_RUN_RANDOM_TOKENS_H
#define LS_TRAIN_RUN_RANDOM_TOKENS_H

#include "train/run/step.h"

/* Fills inputs and targets of this rank's share of step `index`. ignored: share of the targets that are -1 and do not count. */
void random_tokens(struct step *s, uint64_t index, double ignored);

#endif
