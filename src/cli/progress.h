/* progress.h - shows the progress of a training run or an evaluation.
 *
 * On a terminal: one line that is redrawn, with a bar. Elsewhere: a line with a timestamp every log.every steps, at
 * evaluations and at the end. Quiet: nothing.
 */
#ifndef LS_CLI_PROGRESS_H
#define LS_CLI_PROGRESS_H

#include "train/run/trainer.h"

struct progress {
    bool quiet, terminal, drawn; /* drawn: there is a bar on the cursor's line */
    double seconds;              /* of a step, smoothed; 0: none yet */
    double loss;                 /* smoothed */
    double began, drawn_at;      /* base_now() */
};

void progress_begin(struct progress *p, bool quiet);
/* Callbacks of struct trainer_watch; ctx is the struct progress. */
void progress_fixed(void *ctx, const struct trainer *t, const char *line);
void progress_stepped(void *ctx, const struct trainer *t, const struct metrics *m);
void progress_saved(void *ctx, const struct trainer *t, const char *path);
/* Of struct evaluate_watch: on a terminal a line with a bar, elsewhere nothing. */
void progress_evaluating(void *ctx, size_t done, size_t all);
void progress_clear(void *ctx); /* erases the bar; also called before anything else is printed */

/* "compute 71%  exposed comm 12%  bubble 9%  optimizer 6%  data 0%  other 2%" of these seconds, without what this run cannot have. False,
 * with nothing in out: one rank that computes. */
enum { PROGRESS_TIME = 128 };
bool progress_time(char out[PROGRESS_TIME], const struct trainer *t, const double time[METRICS_TIMES]);
/* "1:02:03", "2:05" into out; returns out. */
char *progress_duration(char out[24], double seconds);

#endif
