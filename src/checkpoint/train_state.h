/* train_state.h - what a state must be before it is written. */
#ifndef LS_CHECKPOINT_TRAIN_STATE_H
#define LS_CHECKPOINT_TRAIN_STATE_H

#include "lockstep/checkpoint.h"

/* Numbers fit a manifest, texts end inside their fields. */
ls_status train_state_check(const ls_train_state *s);

#endif
