/* plan_seconds.h - how `lockstep plan --machine NAME` shows the seconds of a step. */
#ifndef LS_CLI_PLAN_SECONDS_H
#define LS_CLI_PLAN_SECONDS_H

#include "base/json.h"
#include "train/plan/step_seconds.h"

/* units: tokens per step, or samples; unit: "tokens". ranks: processors that compute it. executed: FLOPs of a step on all of them. */
struct seconds_shown {
    const struct cluster *cluster;
    const struct step_seconds *seconds;
    ls_dtype compute;
    const ls_layout *layout;
    double units, executed;
    const char *unit;
    int ranks;
};

void plan_seconds_print(const struct seconds_shown *x);
void plan_seconds_json(const struct seconds_shown *x, struct json_out *j); /* an object "seconds" */

#endif
