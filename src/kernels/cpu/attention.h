/* attention.h - blocked attention: shared by the kernels and their parts per instruction set.
 *
 * The T x S matrix is never formed: a block of queries visits one block of keys after the other. Forward keeps for each query the largest
 * score so far, the sum of exponentials relative to it, and the unnormalized output. Backward recomputes the probabilities from lse. Heads
 * h of one group of H/G share keys and values.
 */
#ifndef LS_KERNELS_CPU_ATTENTION_H
#define LS_KERNELS_CPU_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/dtype.h"

struct attention_drop;

/* [B, rows, heads, D]; the last dim is contiguous; strides in elements. */
struct heads {
    void *data;
    ls_dtype type;
    ptrdiff_t batch, row, head;
};

/* Dropout of the probabilities, with the step's numbers. attr NULL: none. */
struct attention_mask {
    const struct attention_drop *attr;
    uint64_t stream, sample; /* sample: number of b = 0 in the step */
    uint32_t threshold;      /* a probability is kept if its bits are at least this */
    float kept;              /* 1 / (1 - p) */
};

struct attention {
    size_t B, T, H, S, G, D; /* S: number of keys */
    bool causal;             /* query t sees keys [0, t + S - T] */
    float scale;
    bool pairs; /* matmuls on pairs of bf16: all operands are bf16 */
    struct heads q, k, v, o;
    float *lse;                  /* [B, H, T] */
    struct heads go, dq, dk, dv; /* backward; go is the gradient of o */
    struct attention_mask mask;
};

/* The functions compiled per instruction set. */
struct attention_blocks {
    size_t queries; /* queries per block of the forward */
    /* Bytes of scratch of one thread. */
    size_t (*forward_scratch)(const struct attention *a);
    size_t (*backward_scratch)(const struct attention *a);
    /* Computes block i of the queries of head h. */
    void (*forward)(const struct attention *a, size_t b, size_t h, size_t i, void *scratch);
    /* Computes all gradients of the heads of group g, in order: dk and dv have one writer. */
    void (*backward)(const struct attention *a, size_t b, size_t g, void *scratch);
};
extern const struct attention_blocks attention_blocks_avx2, attention_blocks_avx512; /* simd/attention.c */

#endif
