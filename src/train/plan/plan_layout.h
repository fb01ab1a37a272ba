/* plan_layout.h - the plan of a layout as one struct (lockstep/plan.h), for any task: what commands print and programs read. */
#ifndef LS_TRAIN_PLAN_PLAN_LAYOUT_H
#define LS_TRAIN_PLAN_PLAN_LAYOUT_H

#include "lockstep/plan.h"
#include "train/plan/step_seconds.h"

/* The parts of a plan. seconds is zeroed if the job has no cluster. limit: bytes that a rank may hold; 0: unlimited. */
struct plan_parts {
    const struct plan_bytes *bytes;
    const struct step_seconds *seconds;
    const struct step *step; /* the step of that rank */
    size_t limit;
};
/* Of a task whose samples have no tokens, tokens are samples. */
ls_plan plan_of_parts(const struct plan_job *j, const struct plan_parts *x);
ls_status plan_layout(const struct plan_job *j, const ls_layout *l, size_t limit, ls_plan *out);

/* What a processor of the cluster can have: its memory without what its runtime takes. */
size_t plan_limit_of(const struct cluster *c);

#endif
