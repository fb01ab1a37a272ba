/* fault_kinds.h - the options of single kinds of faults, for faults.c and fault_rules.c. */
#ifndef LS_TRAIN_FAULTS_FAULT_KINDS_H
#define LS_TRAIN_FAULTS_FAULT_KINDS_H

#include "train/config/config.h"
#include "train/faults/faults.h"

/* Whether the option is well formed, and its fault changes something in this run. Not given: LS_OK. */
ls_status fault_slow_check(const struct config *c);  /* fault_slow.c */
ls_status fault_value_check(const struct config *c); /* fault_values.c: the form alone */
/* Arms the slow part of this rank, if that happens now. */
void fault_slow_arm(const struct config *c, enum fault_when when, int rank);
void fault_slow_disarm(void);

#endif
