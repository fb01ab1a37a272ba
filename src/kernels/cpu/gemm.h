/* gemm.h - dense matmuls C = A B by packed panels and a register tile.
 *
 * B is packed once into panels of `panel` columns: [panel][k][columns] floats, zeros past the last column; if the processor multiplies
 * pairs of bf16, two rows of B interleave: [panel][(k + 1) / 2][columns][2], zeros past an odd k. A is read in place if its rows are
 * contiguous and have the type of the arithmetic, else a block of its rows is copied into the thread's scratch. A tile of 6 rows x one
 * panel stays in registers over a block of k; on AMX (amx.h), which takes the same panels of pairs, 32 rows x half a panel. Arithmetic is
 * f32, or pairs of bf16 summed in f32. The order of a sum depends only on the sizes.
 *
 * A matmul with few rows and many columns is turned, c^T = b^T a^T: packing all of B, a matrix of weights, would take longer than a few
 * rows of work on it are worth, while as rows it is read in place. Its results are transposed when they are stored.
 */
#ifndef LS_KERNELS_CPU_GEMM_H
#define LS_KERNELS_CPU_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include "lockstep/dtype.h"

/* Element (i, j) is data[i * row + j * col]; strides in elements; f32, bf16 or f16. */
struct matrix {
    void *data;
    ls_dtype type;
    ptrdiff_t row, col;
};

/* c[m,n] = (add ? c : 0) + a[m,k] b[k,n] + bias[n]; c.col is 1, and so is one stride each of a and b. */
struct gemm {
    size_t m, n, k;
    struct matrix a, b, c;
    const void *bias; /* NULL: none */
    ls_dtype bias_type;
    bool add;
};

/* The part of one thread: m rows and n columns, from packed panels. */
struct gemm_block {
    size_t m, n, k;
    struct matrix a, c; /* c.row is 1 instead of c.col in a turned matmul, whose bias is one of rows */
    const void *b;      /* the first panel */
    bool pairs;         /* panels of pairs; a is bf16 */
    const void *bias;
    ls_dtype bias_type;
    bool add;
    void *scratch; /* block_scratch() bytes */
};

enum { TILE_ROWS = 6 };

/* Allocates parts of scratch, 64-byte aligned; without a base it only counts. */
struct parts {
    char *base;
    size_t used;
};

static inline void *take(struct parts *s, size_t bytes)
{
    void *p = s->base ? s->base + s->used : NULL;

    s->used += (bytes + 63) / 64 * 64;
    return p;
}

/* The functions compiled per instruction set. */
struct tiles {
    size_t panel; /* columns of a panel */
    /* Packs columns [0, n) of b[k, n], n <= panel, into one panel. */
    void (*pack)(void *panel, bool pairs, size_t k, size_t n, const struct matrix *b);
    void (*block)(const struct gemm_block *b);
    /* Computes columns [begin, end) of a matmul with few rows, reading each column of b once; b.row and a.col are 1. */
    void (*dots)(const struct gemm *p, size_t begin, size_t end);
};

extern const struct tiles tiles_gemm_avx2, tiles_gemm_avx512; /* simd/gemm.c */

const struct tiles *tiles_best(void);                 /* NULL: none for this processor under the cap */
bool tiles_pairs(ls_dtype a, ls_dtype b);             /* true if matmuls of these types run on pairs of bf16 */
bool tiles_amx(void);                                 /* true if pairs run on AMX (amx.h), which reads rows of A as they are */
size_t tile_rows(bool pairs);                         /* rows of a tile's sums */
size_t panel_bytes(bool pairs, size_t k);             /* bytes of one packed panel */
size_t block_scratch(bool pairs, size_t m, size_t k); /* bytes */

/* The team's size, or 1 if a matmul is too small. */
int gemm_threads(const struct gemm *p);
/* Bytes of scratch on `threads` threads. */
size_t gemm_scratch(const struct gemm *p, int threads);
/* The same for every matmul with up to p's rows and depth (m, k). */
size_t gemm_scratch_most(const struct gemm *p, int threads);
/* Runs on a team of at most `threads`; inside a task of threads_each on the caller only, as with threads = 1. */
void gemm_run(const struct gemm *p, int threads, void *scratch);

/* The matmul of a call of linear, linear_dx or linear_dw; false: its operands are not such matrices. */
struct call;
bool call_gemm(const struct call *c, struct gemm *out);

#endif
