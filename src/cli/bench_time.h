/* bench_time.h - how this rank spent the time of the timed steps: kernels, waiting for communication, the rest; for a pipeline, also the
 * idle time. */
#ifndef LS_CLI_BENCH_TIME_H
#define LS_CLI_BENCH_TIME_H

#include "train/run/step.h"

struct bench_time {
    double wall;      /* seconds of the steps; the caller adds them up */
    double kernels;   /* in instructions without communication */
    double exposed;   /* in calls of comms and waiting for them */
    double busy, run; /* of a pipeline: in its actions; from the first of a step to the last */
    double *stage;    /* [3][stages*chunks] forward, backward, weights: seconds in their instructions */
    double bubble;    /* idle share of ranks x seconds of the longest rank */
    double played;    /* the same in a simulation of the schedule with the mean seconds of each stage's actions and free messages */
    double equal;     /* the same for equal stages by the closed form; NaN: there is none */
};

ls_status bench_time_open(const struct step *s, struct bench_time *out);
void bench_time_close(struct bench_time *t);
/* Call before the timed steps, after each of them, and after all of them; the last is collective. */
void bench_time_begin(const struct step *s, struct bench_time *t);
void bench_time_step(const struct step *s, struct bench_time *t);
void bench_time_end(const struct step *s, struct bench_time *t);
ls_status bench_time_sync(const struct step *s, int64_t steps, struct bench_time *t);
/* Share of the time that is neither kernels nor communication. */
double bench_time_overhead(const struct bench_time *t);

#endif
