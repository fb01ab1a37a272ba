/* xent.h - rows of cross-entropy, compiled per instruction set. */
#ifndef LS_KERNELS_CPU_XENT_H
#define LS_KERNELS_CPU_XENT_H

#include <stdbool.h>
#include <stddef.h>

struct xent_rows {
    /* ln sum exp of logits[V]. */
    float (*lse)(const float *logits, size_t V);
    /* In place: logits[v] = factor (exp(logits[v] - lse) - [v == y]); bf16: as bf16, from the row's first byte on. */
    void (*gradient)(float *logits, size_t V, float lse, size_t y, float factor, bool bf16);
};
extern const struct xent_rows xent_rows_avx2, xent_rows_avx512; /* simd/xent.c */

#endif
