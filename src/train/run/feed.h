/* feed.h - one micro-batch on its way into a program's inputs.
 *
 * A program of a layout has some of the inputs only (a pipeline's middle stage sees no tokens), and over cp this rank's slices of the
 * sequence. What a program doesn't have isn't written.
 */
#ifndef LS_TRAIN_RUN_FEED_H
#define LS_TRAIN_RUN_FEED_H

#include "train/run/ranks.h"
#include "train/task/task.h"

struct feed {
    size_t batch, seq_len; /* B, T: of the whole sequences */
    int slices;            /* of T that this rank has: 1, 2 */
    size_t begin[2], end[2];
    size_t local;  /* tokens of a sample that this rank has */
    int32_t *part; /* [B,local]; NULL: the whole */
    size_t values; /* of a sample's input */
};

struct micro_batch {
    const void *input;      /* [B,values] */
    const int32_t *targets; /* [B,T] */
    float denominator;
    int64_t site[2];        /* the update, and samples of the step before this micro-batch */
    size_t samples, global; /* that count here; in the whole step */
};

ls_status feed_open(const struct ranks *ranks, ls_cp_method context, size_t batch, size_t seq_len, size_t values, struct feed *out);
size_t feed_bytes(const struct feed *f); /* that it holds */
void feed_close(struct feed *f);
ls_status feed_write(const struct feed *f, const struct task *task, ls_program *p, const struct micro_batch *m);

/* For tasks. This rank's slices of each sample, one after another; lasts until the next call. */
const int32_t *feed_slices(const struct feed *f, const int32_t *whole);
/* Writes the input, where the program has it. */
ls_status feed_put(ls_program *p, const char *name, const void *data, ls_dtype type, size_t count);

#endif
