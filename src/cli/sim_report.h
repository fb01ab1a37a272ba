/* sim_report.h - what `lockstep sim` prints. */
#ifndef LS_CLI_SIM_REPORT_H
#define LS_CLI_SIM_REPORT_H

#include "plan/goodput.h"
#include "train/plan/step_sim.h"

struct sim_shown {
    const struct cluster *cluster;                 /* its name is empty without a machine */
    char model[TASK_TEXT], layout[LS_LAYOUT_TEXT]; /* empty if no step was planned */
    bool offloads;                                 /* waits for communication include those for loads and saves */
    double ranks, nodes;
    double planned;       /* seconds of a step without variation; 0: no step was planned */
    struct sim_step step; /* means over the simulated steps */
    int steps_played, classes, slow;
    double slower, collisions;
    double units, peak, model_flops; /* tokens per step; peak FLOP/s of a processor; model FLOPs per step */
    const char *unit;
    double checkpoint_bytes; /* 0: not known */
    struct goodput_job job;
    double between, daly; /* seconds between stops; Daly's interval */
    int64_t best;         /* steps between checkpoints, by simulation */
    struct goodput *result;
    int runs;
};

void sim_report_print(const struct sim_shown *x);
ls_status sim_report_json(const struct sim_shown *x);

#endif
