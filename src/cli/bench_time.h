/* bench_time.h - where the seconds of timed steps went on this rank: kernels, exchanges waited for, the rest; of a pipeline, how long its
 * ranks had nothing to do. */
#ifndef LS_CLI_BENCH_TIME_H
#define LS_CLI_BENCH_TIME_H

#include "train/run/step.h"

struct bench_time {
    double wall;      /* seconds of the steps; the caller adds them up */
    double kernels;   /* in instructions that exchange nothing */
    double exposed;   /* in calls of comms and waiting for them */
    double busy, run; /* of a pipeline: in its actions; from the first of a step to the last */
    double *stage;    /* [3][stages*chunks] forward, backward, weights: seconds in their instructions */
    double bubble;    /* share of ranks x seconds of the longest rank in which a rank does nothing */
    double played;    /* the same of the schedule with the mean seconds of each stage's actions and messages that take none */
    double equal;     /* the same of equal stages by the closed form; NaN: there is none */
};

ls_status bench_time_open(const struct step *s, struct bench_time *out);
void bench_time_close(struct bench_time *t);
/* Around the steps that count; after each of them; and after all, which all ranks call, in this order. */
void bench_time_begin(const struct step *s, struct bench_time *t);
void bench_time_step(const struct step *s, struct bench_time *t);
void bench_time_end(const struct step *s, struct bench_time *t);
ls_status bench_time_sync(const struct step *s, int64_t steps, struct bench_time *t);
/* Share of the steps that is neither kernels nor exchanges. */
double bench_time_overhead(const struct bench_time *t);

#endif
