/* plan_print.h - how `lockstep plan` shows the bytes, the work and the communication of a rank's step. */
#ifndef LS_CLI_PLAN_PRINT_H
#define LS_CLI_PLAN_PRINT_H

#include <stdbool.h>
#include "plan/cluster.h"
#include "train/plan/plan.h"
#include "train/plan/step_seconds.h"
#include "train/run/dataset.h"

/* The plan of a rank, and its assumptions. */
struct plan_shown {
    const struct config *config;
    struct plan_job job;
    ls_layout layout;
    const struct step *step; /* the rank's step */
    struct plan_bytes bytes;
    const struct dataset *data;
    const struct cluster *cluster; /* the machine of --machine NAME; without a name: this one */
    bool asked;                    /* the user chose the rank; otherwise it is the one with the most bytes */
    int local;                     /* number of ranks on each machine */
    size_t limit;                  /* memory limit of the rank; 0: unknown */
    size_t host;                   /* config_host_limit() */
    struct step_seconds seconds;   /* seconds on the machine of --machine NAME */
    struct remedy remedy[REMEDIES];
    int remedies;
};

size_t plan_print_group_buffers(const struct plan_shown *p); /* bytes that the communication library takes for the groups of a rank */
bool plan_print_fits(const struct plan_shown *p);
void plan_print_table(const struct plan_shown *p);
ls_status plan_print_json(const struct plan_shown *p); /* LS_EIO: standard output cannot be written */

#endif
