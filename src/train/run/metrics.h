/* metrics.h - the figures of a step, and their line in metrics.jsonl.
 *
 * Each line is a JSON object with these keys, in this order:
 *     step               updates done, 1, 2, ...
 *     loss               mean over the step's valid tokens, nats
 *     grad_norm          norm of the gradient of all parameters, before clipping
 *     lr                 learning rate of this update
 *     tokens             valid tokens of this step
 *     tokens_per_second  tokens / step_seconds
 *     step_seconds       from fetching the batch to the end of the update
 *     mfu hfu            FLOPs per second that the model needs, and that are executed (recomputation included), as a share of
 *                        what matmuls reach on this machine in the compute type
 *     memory             bytes by category, the most held at once during the step: parameters gradients optimizer
 *                        activations communication offload other; and peak, the largest sum
 *     comm               {op: {calls bytes seconds exposed}} of the step, for the operations that were called: bytes that one rank
 *                        sent, seconds from start to end, and the seconds that the rank waited
 *     offload            {loaded saved waited} of the step, if something is offloaded: bytes that a rank moved, and the seconds that it
 *                        waited for them, which are part of compute and optimizer
 *     time               {compute exposed bubble optimizer data other}: how step_seconds was spent, in seconds that add up to it.
 *                        exposed: waiting for communication; bubble: waiting for other pipeline stages; other: everything else
 *     axis               {dp cp tp pp ep: seconds}: exposed communication by axis of the mesh, for axes with more than one rank
 *     bubble             with a pipeline: idle share of ranks x seconds, between the step's first forward and last backward
 *     expert_load        with experts: tokens of this step routed to each expert, a list per layer
 *     staleness          with parallel.method=async: {updates mean most}: updates of this step, and how many other updates were applied
 *                        between reading the weights for a gradient and applying it. loss is computed from these weights, grad_norm is
 *                        the mean norm, step_seconds the time between the ends of two steps, time the workers' mean
 *     save_seconds       seconds that the checkpoint took that was saved since the step before this one; left out if there was none
 *     skipped            true if the update was skipped because loss or grad_norm is not finite (then null): train.non_finite=skip
 *     tokens_seen        valid tokens of all steps so far
 *     val_loss           loss of the evaluation after this step, if there was one
 *     run                only in the first line of every start: {"hosts": [...]}, the machine of each rank
 * On several ranks, loss, tokens and tokens_per_second are those of all ranks; memory, comm, offload and axis are the largest rank's;
 * step_seconds and time are means over the ranks.
 */
#ifndef LS_TRAIN_RUN_METRICS_H
#define LS_TRAIN_RUN_METRICS_H

#include <stdbool.h>
#include "base/json.h"
#include "base/mem.h"
#include "lockstep/comm.h"
#include "runtime/store.h"

enum metrics_time { METRICS_COMPUTE, METRICS_EXPOSED, METRICS_BUBBLE, METRICS_OPTIMIZER, METRICS_DATA, METRICS_OTHER, METRICS_TIMES };
enum metrics_axis { METRICS_DP, METRICS_CP, METRICS_TP, METRICS_PP, METRICS_EP, METRICS_AXES };

struct metrics {
    uint64_t step, tokens, tokens_seen;
    double loss, grad_norm, lr, tokens_per_second, step_seconds, mfu, hfu;
    struct mem_stats memory;
    ls_comm_count comm[LS_COLLECTIVES];
    struct offload_count offload;
    double time[METRICS_TIMES]; /* seconds */
    double axis[METRICS_AXES];  /* seconds; below 0: the axis has one rank */
    const double *load;         /* [layers,experts], borrowed; NULL: no experts */
    size_t layers, experts;
    double bubble;                /* below 0: no pipeline */
    uint64_t updates, stale_most; /* with method async: updates of this step, else 0; the largest staleness of their gradients */
    double stale;                 /* its mean */
    double save_seconds;          /* seconds of the checkpoint before this step; 0: there was none */
    bool skipped;                 /* the update was skipped: loss or grad_norm is not finite */
    bool evaluated;
    double val_loss;
    const char *hosts; /* [ranks][host_bytes], borrowed; NULL unless this is the first line of a start */
    size_t host_bytes;
    int ranks;
};

const char *metrics_time_name(enum metrics_time i);

/* Puts one object, without a line feed, into out, which is zeroed or emptied. */
void metrics_put_json(const struct metrics *m, struct json_out *out);
/* Adds the member "memory": {...} to an open object. */
void metrics_put_memory(const struct mem_stats *m, struct json_out *out);

/* Removes the lines of steps after `last`, and everything that is not a line of metrics, from the file of an earlier start: those steps
 * will run again and must not appear twice. A missing file is LS_OK. */
ls_status metrics_rewind(const char *path, uint64_t last);

#endif
