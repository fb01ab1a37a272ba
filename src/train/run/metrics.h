/* metrics.h - what is known about a step, and the line of metrics.jsonl that says so.
 *
 * One JSON object a line. Keys, in this order:
 *     step               updates done, 1, 2, ...
 *     loss               mean over the step's valid tokens, nats
 *     grad_norm          of the whole gradient, before clipping
 *     lr                 of this update
 *     tokens             valid tokens of this step
 *     tokens_per_second  tokens / step_seconds
 *     step_seconds       from fetching the batch to the end of the update
 *     mfu hfu            FLOPs that the model needs, FLOPs executed (recomputation included) per second, as a share of
 *                        what this machine's matmuls reach in the compute type
 *     memory             bytes by category, most held at once during the step: parameters gradients optimizer
 *                        activations communication offload other; and peak, the most of their sum
 *     comm               {op: {calls bytes seconds exposed}} of the step, for the ops that were called: bytes that one rank
 *                        put on the wire, seconds from start to end, and the part of them that it waited
 *     time               {compute exposed bubble optimizer data other}: where step_seconds went, in seconds; their sum is step_seconds.
 *                        exposed: communication waited for; bubble: a pipeline's wait for other stages; other: the rest
 *     axis               {dp cp tp pp ep: seconds}: exposed communication by the axis of the mesh that it was over; those with ranks
 *     bubble             of a pipeline: share of ranks x seconds, from the first forward to the last backward of any, in which a rank has
 * nothing to do expert_load        of a model with experts: a list a layer of the tokens of this step that chose each skipped true, of a
 * step whose loss or grad_norm is not finite (null then) and train.non_finite=skip tokens_seen        valid tokens of all steps so far
 *     val_loss           of the evaluation after this step, where there was one
 *     run                of the first line of every start alone: {"hosts": [...]}, the machine of each rank
 * On several ranks loss, tokens and their rate are of all of them, memory, comm and axis each the largest rank's, step_seconds and time the
 * mean of the ranks.
 */
#ifndef LS_TRAIN_RUN_METRICS_H
#define LS_TRAIN_RUN_METRICS_H

#include <stdbool.h>
#include "base/json.h"
#include "base/mem.h"
#include "lockstep/comm.h"

enum metrics_time { METRICS_COMPUTE, METRICS_EXPOSED, METRICS_BUBBLE, METRICS_OPTIMIZER, METRICS_DATA, METRICS_OTHER, METRICS_TIMES };
enum metrics_axis { METRICS_DP, METRICS_CP, METRICS_TP, METRICS_PP, METRICS_EP, METRICS_AXES };

struct metrics {
    uint64_t step, tokens, tokens_seen;
    double loss, grad_norm, lr, tokens_per_second, step_seconds, mfu, hfu;
    struct mem_stats memory;
    ls_comm_count comm[LS_COLLECTIVES];
    double time[METRICS_TIMES]; /* seconds */
    double axis[METRICS_AXES];  /* seconds; below 0: no ranks along it */
    const double *load;         /* [layers,experts], borrowed; NULL: no experts */
    size_t layers, experts;
    double bubble; /* below 0: no pipeline */
    bool skipped;  /* no update: loss or grad_norm is not finite */
    bool evaluated;
    double val_loss;
    const char *hosts; /* [ranks][host_bytes], borrowed: of the first line of a start; NULL: another line */
    size_t host_bytes;
    int ranks;
};

const char *metrics_time_name(enum metrics_time i);

/* One object without a line feed, into out (zeroed or emptied). */
void metrics_put_json(const struct metrics *m, struct json_out *out);
/* Members "memory": {...} of an open object. */
void metrics_put_memory(const struct mem_stats *m, struct json_out *out);

/* Drops the lines of steps after `last`, and what is no such line, from a file that a stopped run left behind: steps
 * that will be made again must not stand there twice. A missing file is LS_OK. */
ls_status metrics_rewind(const char *path, uint64_t last);

#endif
