/* step_sim.h - a step simulated on all ranks of a layout: processors differ in speed, vary from moment to moment, and connections collide
 * on shared links.
 *
 * Each rank of a stage has the tape (tape.h) of the stage's last rank, and a clock of its own. A collective begins when the last rank of
 * its group has started it and the group's previous one has ended; a message between stages arrives its own duration after it was sent.
 * Ranks of a pipeline follow the schedule. Without variation a step takes what step_seconds_of() returns, except that a pipeline's
 * optimizers do not have to begin together, and that collectives may overlap the next chunk's action.
 *
 * Ranks that cannot differ are played once: the ranks are divided into classes, so that all ranks of a class have the same speed and
 * communicate with the same classes (the coarsest such division, by refinement). Folded and unfolded results are bitwise equal. Jitter
 * makes every rank a class of its own.
 */
#ifndef LS_TRAIN_PLAN_STEP_SIM_H
#define LS_TRAIN_PLAN_STEP_SIM_H

#include "train/plan/step_seconds.h"

struct variation {
    uint64_t seed;
    double spread; /* standard deviation of the processors' seconds relative to the mean, the same in all steps */
    double jitter; /* the same of the seconds of the kernels between two collectives, drawn anew each time */
    int slow;      /* number of slow ranks, which are drawn at random, */
    double slower; /* and the factor by which they are slower; 1 or more */
    bool collide;  /* connections between pods are placed on the cluster's paths at random */
    bool unfolded; /* plays every rank separately, for comparison */
};

/* What a rank did in a part of a step, for pictures; begin, end: seconds from the start of the step. */
struct sim_event {
    enum { SIM_KERNELS, SIM_COLLECTIVE, SIM_COPY, SIM_WAIT, SIM_MESSAGE } kind;
    int stage, rank;  /* rank: one of its class */
    int action;       /* ls_action_kind; 3: the optimizer */
    int chunk, micro; /* chunk and micro-batch of the action */
    ls_collective op; /* SIM_COLLECTIVE */
    int wait;         /* SIM_COLLECTIVE, SIM_WAIT: ls_axis, or SECONDS_OFFLOAD */
    bool save;        /* SIM_COPY: to the host; else from it */
    double begin, end;
};

/* The times of a step. Means are over ranks. */
struct sim_step {
    double seconds;
    double kernels, exposed, bubble; /* mean seconds: kernels, waits for collectives, waits for other stages and for the last rank */
};

struct step_sim;

/* Compiles the programs of one rank of each stage. Borrows the cluster. */
ls_status step_sim_open(const struct plan_job *j, const ls_layout *l, const struct cluster *c, const struct variation *v,
                        struct step_sim **out);
void step_sim_close(struct step_sim **s);
int step_sim_classes(const struct step_sim *s);       /* ranks that are played */
double step_sim_collisions(const struct step_sim *s); /* factor on the time of the slowest group's bytes; 1: no collisions */
int step_sim_stages(const struct step_sim *s);
bool step_sim_splits(const struct step_sim *s); /* weight gradients are separate actions of the schedule */
/* Plays step `index` (0, 1, ...), which keys its jitter. watch may be NULL. */
ls_status step_sim_play(struct step_sim *s, int index, void (*watch)(void *ctx, const struct sim_event *e), void *ctx,
                        struct sim_step *out);

#endif
