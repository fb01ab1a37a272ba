/* goodput.h - simulates days of a training job, from event to event (steps, checkpoints, failures, restarts), and what share of the time is
 * spent on training.
 *
 * Failures come at the rates of their kinds, at all times (a Poisson process). A failure is noticed `detect` seconds later; a failed
 * processor, network link or host takes its node away for `repair` seconds, and a spare replaces it, or the job waits for the first
 * repaired node. Then the job starts (`restart`), reads its newest complete checkpoint, and does the steps since then again. A failure
 * before the first step makes it start again. A planned stop comes after the current step and a checkpoint, and loses nothing.
 *
 * Every `every` steps a checkpoint is taken: training waits for `stall` seconds, and the checkpoint is complete `write` seconds later,
 * while training continues. A checkpoint waits for the one before it.
 */
#ifndef LS_PLAN_GOODPUT_H
#define LS_PLAN_GOODPUT_H

#include <stdint.h>
#include "plan/cluster.h"

struct goodput_job {
    double seconds;        /* how long the job runs */
    double step;           /* seconds of a step */
    int64_t every;         /* steps between checkpoints, 1 or more */
    double stall, write;   /* seconds of a checkpoint */
    double read;           /* seconds that reading one takes */
    double rate[FAILURES]; /* failures per second of all processors together */
    double detect, restart, repair;
    int spares;    /* spare nodes; -1: always enough */
    uint64_t seed; /* determines the failures, whatever the other fields */
};

enum goodput_event { EVENT_STOP, EVENT_NODE, EVENT_START, EVENT_CHECKPOINT };
const char *goodput_event_name(enum goodput_event e); /* "stop", "node", "start", "checkpoint" */
/* Something happened `at` seconds after the beginning, with so many steps done. EVENT_STOP: a failure of that kind; EVENT_NODE: a node that
 * the job waited for is back; EVENT_START: the first step begins; EVENT_CHECKPOINT: one was taken. */
typedef void goodput_watch(void *ctx, enum goodput_event e, enum failure_kind kind, double at, int64_t steps);

/* Where the time went. The seconds add up to the job's. */
struct goodput {
    double trained; /* steps that count */
    double again;   /* lost steps and parts of steps, which are repeated */
    double saved;   /* waits for checkpoints */
    double down;    /* from a failure to the first step, without waiting for nodes */
    double waited;  /* waits for nodes */
    int64_t steps;  /* steps done at the end */
    int stops[FAILURES];
    int64_t checkpoints;
    int out; /* most nodes in repair at once */
};

/* watch may be NULL. LS_EINVAL if a value is impossible. */
ls_status goodput_play(const struct goodput_job *j, goodput_watch *watch, void *ctx, struct goodput *out);

/* Seconds between checkpoints at which least time is lost, by the formula of Daly 2006 (A higher order estimate of the optimum checkpoint
 * interval for restart dumps), with stall seconds per checkpoint and a failure every `between` seconds; infinite without failures. */
double goodput_daly(double stall, double between);
/* The same by simulation: steps between checkpoints, the best mean over `runs` seeds from j->seed on. j->every is
 * not read. */
ls_status goodput_best_every(const struct goodput_job *j, int runs, int64_t *every);

#endif
