/* train_state.h - checks a state before it is written. */
#ifndef LS_CHECKPOINT_TRAIN_STATE_H
#define LS_CHECKPOINT_TRAIN_STATE_H

#include "lockstep/checkpoint.h"

/* Checks that numbers fit a manifest and that strings end inside their fields. */
ls_status train_state_check(const ls_train_state *s);

#endif
