/* plan_seconds.h - how `lockstep plan --machine NAME` shows the seconds of a step. */
#ifndef LS_CLI_PLAN_SECONDS_H
#define LS_CLI_PLAN_SECONDS_H

#include "base/json.h"
#include "train/plan/plan_layout.h"

/* unit: "tokens", or "samples", which plan.tokens then counts. ranks: processors that compute the step. */
struct seconds_shown {
    const struct cluster *cluster;
    const struct step_seconds *seconds;
    ls_plan plan;
    const ls_layout *layout;
    const char *unit;
    int ranks;
};

void plan_seconds_print(const struct seconds_shown *x);
void plan_seconds_json(const struct seconds_shown *x, struct json_out *j); /* an object "seconds" */

#endif
