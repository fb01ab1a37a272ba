/* step_sim_parts.h - the data of a simulated step: step_sim_make.c makes it, step_sim.c plays it. */
#ifndef LS_TRAIN_PLAN_STEP_SIM_PARTS_H
#define LS_TRAIN_PLAN_STEP_SIM_PARTS_H

#include "train/plan/sim_groups.h"
#include "train/plan/step_sim.h"

struct activity {
    enum { ACTIVITY_KERNELS, ACTIVITY_START, ACTIVITY_COPY, ACTIVITY_WAIT, ACTIVITY_SHUFFLE } kind;
    double seconds; /* planned seconds of kernels */
    struct tape_entry entry;
};

/* The activities of a program: those of segment s, in the last micro-batch or in one before it. */
struct sim_program {
    struct activity *activity;
    int transfers;
    bool carries; /* some gathers of its update are carried */
    int begin[2][SEGMENTS + 1];
    double *end; /* [transfers][classes] when the transfer ends */
    int *posted; /* [transfers] number of the post that it waits for, plus 1; 0: a collective within the stage */
};

/* Collectives with other stages, in the order in which the stage starts them: the clocks of its classes. */
enum cross { CROSS_WORLD, CROSS_ENDS, CROSSES };
struct posts {
    double **at;
    int count, room;
};

/* A stage while it is played. */
struct player {
    int action, segment, at;     /* the next activity; action: index in the schedule's list */
    bool begun;                  /* what the action receives is there */
    struct sim_program *program; /* [programs] */
    int programs;
    struct tape_place place;
    double *now, *kernels, *exposed;   /* [classes] */
    double *idle_from[TAPE_QUEUES][2]; /* [classes] */
    struct posts posts[CROSSES];
    uint64_t drawn;
};

struct step_sim {
    const struct cluster *cluster;
    struct variation variation;
    struct sim_ranks ranks;
    ls_pipeline_schedule schedule; /* pp > 1 */
    int stages, micros, chunks;
    unsigned used;
    double message;
    struct player *stage;
    double **message_at;  /* [2][virtual stages][micros]: clocks of the sender's classes */
    double *top, *normal; /* [ranks of a stage] scratch */
    /* while it plays */
    int index;
    void (*watch)(void *ctx, const struct sim_event *e);
    void *ctx;
};

/* An action of a stage; kind 3 is the optimizer. */
struct acting {
    int kind, chunk, micro;
};

/* Plays the next activity of an action on all classes of a stage; *done false: it waits for another stage. */
ls_status activity_run(struct step_sim *s, int stage, struct sim_program *program, const struct acting *a, const struct activity *x,
                       bool *done);
/* Calls s->watch for every class whose clock has moved. */
void sim_watch(const struct step_sim *s, int stage, const struct acting *a, const struct sim_event *like, const double *begin,
               const double *end);

#endif
