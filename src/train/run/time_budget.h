/* time_budget.h - how many steps a run has time for: pure functions of seconds that trainer_budget.c measures.
 *
 * A run of N steps takes
 *
 *     spent + N step + evaluations(N) evaluation + saves(N) save
 *
 * seconds, where evaluations(N) = ceil(N / eval_every) and saves(N) = ceil(N / save_every): the last step always has one of each. A
 * twentieth of the seconds left when training starts is kept in reserve, because the median does not account for the slowest steps.
 */
#ifndef LS_TRAIN_RUN_TIME_BUDGET_H
#define LS_TRAIN_RUN_TIME_BUDGET_H

#include <stddef.h>
#include <stdint.h>

#define TIME_BUDGET_RESERVE 0.05

struct time_budget {
    double seconds;                  /* the budget of the run */
    double spent;                    /* seconds before the first step: start-up and trial */
    double step, evaluation, save;   /* seconds of each; evaluation 0: there are no evaluations */
    uint64_t eval_every, save_every; /* steps; 0: only at the end */
    uint64_t most;                   /* largest number of steps */
};

uint64_t time_budget_steps(const struct time_budget *b);    /* 0: there is not enough time for one step */
uint64_t time_budget_times(uint64_t every, uint64_t steps); /* number of evaluations or saves in so many steps */
double time_budget_least(const struct time_budget *b);      /* the smallest budget, in seconds, that one step fits into */

/* "78.3 ms", "5.21 s" into out; returns out. */
char *time_budget_text(char out[24], double seconds);

#endif
