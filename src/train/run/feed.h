/* feed.h - writes a micro-batch into a program's inputs.
 *
 * A rank's program may have only some of the inputs (a middle stage of a pipeline reads no tokens), and with context parallelism only this
 * rank's shard of the sequences. Inputs that a program does not have are skipped.
 */
#ifndef LS_TRAIN_RUN_FEED_H
#define LS_TRAIN_RUN_FEED_H

#include "train/run/ranks.h"
#include "train/task/task.h"

struct feed {
    size_t batch, seq_len; /* B, T: of complete sequences */
    int ranges;            /* ranges of T that this rank has: 1 or 2 */
    size_t begin[2], end[2];
    size_t local;  /* tokens of a sample that this rank has */
    int32_t *part; /* [B,local] buffer for this rank's shard; NULL: this rank has the complete sequences */
    size_t values; /* values of a sample's input */
};

struct micro_batch {
    const void *input;      /* [B,values] */
    const int32_t *targets; /* [B,T] */
    float denominator;
    int64_t site[2];        /* index of the step; number of the step's samples before this micro-batch: together they key dropout */
    size_t samples, global; /* samples that count in this micro-batch; in the step, over all ranks */
};

ls_status feed_open(const struct ranks *ranks, ls_cp_method cp_method, size_t batch, size_t seq_len, size_t values, struct feed *out);
size_t feed_bytes(const struct feed *f); /* bytes that the feed holds */
void feed_close(struct feed *f);
ls_status feed_write(const struct feed *f, const struct task *task, ls_program *p, const struct micro_batch *m);

/* For tasks: this rank's shard of each of the sequences [B,T], valid until the next call. */
const int32_t *feed_shard(const struct feed *f, const int32_t *sequences);
/* Writes an input if the program has it. */
ls_status feed_put(ls_program *p, const char *name, const void *data, ls_dtype type, size_t count);

#endif
