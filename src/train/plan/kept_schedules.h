/* kept_schedules.h - a cache of pipeline schedules, which a search needs again and again. It is emptied when it is full. */
#ifndef LS_TRAIN_PLAN_KEPT_SCHEDULES_H
#define LS_TRAIN_PLAN_KEPT_SCHEDULES_H

#include "lockstep/layout.h"
#include "parallel/pipeline/sequence.h"

struct kept_schedules;

struct kept_schedule {
    const char *name; /* a constant */
    int pp, vpp, micro_batches;
    int *slots;               /* [pp][vpp] slots of every rank's chunks */
    struct sequence sequence; /* empty until it is needed */
};

ls_status kept_schedules_open(struct kept_schedules **out);
void kept_schedules_close(struct kept_schedules **k); /* NULL is a no-op */

/* The layout's schedule, pp > 1; owned by k, until the next call. */
ls_status kept_schedule_of(struct kept_schedules *k, const ls_layout *l, struct kept_schedule **out);
/* The same with its sequence, to be played. */
ls_status kept_schedule_with_sequence(struct kept_schedules *k, const ls_layout *l, struct kept_schedule **out);

#endif
