/* cost.h - what the steps of a run cost, as counted and measured: seconds, bytes by pair of ranks, memory of each rank. A run with a method
 * other than allreduce compares them with those of its reference. */
#ifndef LS_TRAIN_RUN_COST_H
#define LS_TRAIN_RUN_COST_H

#include "base/json.h"
#include "train/run/metrics.h"
#include "train/run/ranks.h"

enum { COST_SECONDS = 1024 };

struct cost {
    struct ranks ranks;           /* borrowed; size 1: nothing is counted */
    uint64_t *to, *before;        /* [ranks] bytes sent to each rank in the steps; the comm's counters when the step began */
    bool running;                 /* before[] was read at the end of the last step */
    uint64_t steps;               /* steps counted */
    double seconds[COST_SECONDS]; /* seconds of the last COST_SECONDS of them */
    size_t peak;                  /* most bytes that this rank held in a step */
    uint64_t after;               /* the step whose loss is compared */
    double loss;                  /* loss of that step; NaN: it was not run */
    uint64_t updates, stale_most; /* with method async: number of updates; the largest staleness */
    double stale;                 /* sum of the updates' staleness */
};

/* The same over all ranks. */
struct cost_figures {
    uint64_t steps, after, updates, stale_most;
    double seconds;        /* median seconds of a step; NaN: there was no step */
    double sent, received; /* bytes per step of the rank that moves the most */
    int busiest;           /* that rank */
    size_t first, others;  /* peak bytes of rank 0; largest peak of any other rank */
    double loss;           /* loss of step `after` */
    double stale;          /* mean staleness, in updates; NaN: not async */
};

ls_status cost_open(const struct ranks *ranks, uint64_t after, struct cost *out);
void cost_close(struct cost *c);
/* Waits for the communication that the steps have started and counts it; nothing more is counted until the next step. Call it before an
 * evaluation or a checkpoint. */
ls_status cost_settle(struct cost *c, ls_store *store);
/* Call them around each step; m: the figures of this rank, before they are combined over all ranks. */
void cost_begin(struct cost *c);
void cost_end(struct cost *c, const struct metrics *m);
ls_status cost_share(const struct cost *c, struct cost_figures *out); /* collective */
void cost_put_json(const struct cost_figures *f, const char *name, struct json_out *out);

#endif
