/* step_budget.h - recompute.mode=budget:SIZE on the ranks of a mesh. */
#ifndef LS_TRAIN_RUN_STEP_BUDGET_H
#define LS_TRAIN_RUN_STEP_BUDGET_H

#include "train/run/step.h"

/* If *layout has a budget, replaces it by the smallest number of blocks to recompute with which the activations of every rank of this
 * rank's pipeline stage fit; LS_EINVAL with the bytes that are needed: there is none. */
ls_status step_budget_choose(const struct task_model *model, const struct step_options *o, int rank, ls_layout *layout);
/* LS_EINVAL if the activations of this rank's step exceed the budget. */
ls_status step_budget_check(const struct step *s, size_t budget);

#endif
