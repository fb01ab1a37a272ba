/* time_budget.h - how many steps a run has time for. Pure: seconds in, steps out; trainer_budget.c measures the seconds.
 *
 * A run of N steps takes
 *
 *     spent + N step + evaluations(N) evaluation + saves(N) save
 *
 * seconds, where evaluations(N) and saves(N) count one for every eval_every and save_every steps begun, so that the last step of a run
 * always has one of each. Of the seconds left when training starts a twentieth is kept in reserve: a median says nothing about the steps
 * that are slower than most.
 */
#ifndef LS_TRAIN_RUN_TIME_BUDGET_H
#define LS_TRAIN_RUN_TIME_BUDGET_H

#include <stddef.h>
#include <stdint.h>

#define TIME_BUDGET_RESERVE 0.05

struct time_budget {
    double seconds;                  /* of the whole run */
    double spent;                    /* before the first step: start-up and measuring */
    double step, evaluation, save;   /* of one; evaluation 0: there is none */
    uint64_t eval_every, save_every; /* steps; 0: only at the end */
    uint64_t most;                   /* steps, however much time there is */
};

uint64_t time_budget_steps(const struct time_budget *b);    /* 0: there is no time for even one */
uint64_t time_budget_times(uint64_t every, uint64_t steps); /* evaluations or saves of so many steps */
double time_budget_least(const struct time_budget *b);      /* the seconds with which there is time for one step */
/* Of count > 0 numbers, which it sorts; of an even count the mean of the middle two. */
double time_budget_median(double *x, size_t count);

/* "78.3 ms", "5.21 s" into out; returns out. */
char *time_budget_text(char out[24], double seconds);

#endif
