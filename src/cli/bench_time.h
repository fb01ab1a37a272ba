/* bench_time.h - how a rank spent the timed steps: in kernels, waiting for communication, or elsewhere; for a pipeline, also its idle
 * time. */
#ifndef LS_CLI_BENCH_TIME_H
#define LS_CLI_BENCH_TIME_H

#include "train/run/step.h"

struct bench_time {
    double wall;      /* seconds of the steps; the caller adds them up */
    double kernels;   /* seconds in instructions that do not communicate */
    double exposed;   /* seconds in calls of comms and waiting for them */
    double busy, run; /* pipeline: seconds in actions; seconds from a step's first action to its last */
    double *stage;    /* [3, stages * chunks]: seconds in the forward, backward and weights instructions of each virtual stage */
    double bubble;    /* idle share of ranks x seconds of the slowest rank */
    double played;    /* the same in a simulation of the schedule with each stage's mean seconds and messages that take no time */
    double equal;     /* the same for equal stages, by the closed form; NaN: the schedule has none */
};

ls_status bench_time_open(const struct step *s, struct bench_time *out);
void bench_time_close(struct bench_time *t);
/* Call bench_time_begin() before the timed steps, bench_time_step() after each of them, then bench_time_end() and bench_time_sync(), which
 * is collective. */
void bench_time_begin(const struct step *s, struct bench_time *t);
void bench_time_step(const struct step *s, struct bench_time *t);
void bench_time_end(const struct step *s, struct bench_time *t);
ls_status bench_time_sync(const struct step *s, int64_t steps, struct bench_time *t);
/* Share of the time spent neither in kernels nor in communication. */
double bench_time_overhead(const struct bench_time *t);

#endif
