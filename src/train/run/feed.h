/* feed.h - one micro-batch on its way into a program's inputs.
 *
 * A program of a layout has some of the inputs only (a pipeline's middle stage sees no tokens), and over cp this rank's slices of the
 * sequence. What a program doesn't have isn't written.
 */
#ifndef LS_TRAIN_RUN_FEED_H
#define LS_TRAIN_RUN_FEED_H

#include "train/run/ranks.h"

struct feed {
    size_t batch, seq_len; /* B, T: of the whole sequences */
    int slices;            /* of T that this rank has: 1, 2 */
    size_t begin[2], end[2];
    size_t local;  /* tokens of a sample that this rank has */
    int32_t *part; /* [B,local]; NULL: the whole */
    size_t pixels; /* of a picture; 0: tokens */
};

struct micro_batch {
    const int32_t *tokens, *targets; /* [B,T] */
    const float *pixels;             /* instead of tokens */
    float denominator;
    int64_t site[2];        /* the update, and samples of the step before this micro-batch */
    size_t samples, global; /* that count here; in the whole step */
};

ls_status feed_open(const struct ranks *ranks, ls_context context, size_t batch, size_t seq_len, size_t pixels, struct feed *out);
size_t feed_bytes(const struct feed *f); /* that it holds */
void feed_close(struct feed *f);
ls_status feed_write(const struct feed *f, ls_program *p, const struct micro_batch *m);

#endif
