/* progress.h - shows the progress of a training run or an evaluation.
 *
 * On a terminal it redraws one line with a bar. Otherwise it prints a line with a timestamp every log.every steps, at evaluations and at
 * the end. If quiet, it prints nothing.
 */
#ifndef LS_CLI_PROGRESS_H
#define LS_CLI_PROGRESS_H

#include "train/run/trainer.h"

struct progress {
    bool quiet, terminal, drawn; /* drawn: the cursor's line shows a bar */
    double seconds;              /* smoothed seconds of a step; 0: none yet */
    double loss;                 /* smoothed loss */
    double began, drawn_at;      /* base_now() at these events */
};

void progress_begin(struct progress *p, bool quiet);
/* Callbacks of struct trainer_watch; ctx is the struct progress. */
void progress_fixed(void *ctx, const struct trainer *t, const char *line);
void progress_stepped(void *ctx, const struct trainer *t, const struct metrics *m);
void progress_saved(void *ctx, const struct trainer *t, const char *path);
/* Callback of struct evaluate_watch: draws a line with a bar on a terminal, and nothing elsewhere. */
void progress_evaluating(void *ctx, size_t done, size_t all);
void progress_clear(void *ctx); /* erases the bar; called before anything else is printed */

/* Writes the shares of these seconds, "compute 71%  exposed comm 12%  bubble 9%  optimizer 6%  data 0%  other 2%", into out, without the
 * parts that this run cannot have. False, with an empty out, for a single rank that does not wait for data. */
enum { PROGRESS_TIME = 128 };
bool progress_time(char out[PROGRESS_TIME], const struct trainer *t, const double time[METRICS_TIMES]);
/* Writes "1:02:03" or "2:05" into out and returns it. */
char *progress_duration(char out[24], double seconds);

#endif
