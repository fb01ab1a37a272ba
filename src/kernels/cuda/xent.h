/* xent.h - the row kernels of LINEAR_XENT and its gradient, which share their chunks of logits with the code that runs the matmuls:
 * xent.cu by the plain matmul, cublaslt_xent.c by cuBLASLt.
 *
 * Rows [begin, begin + n) of the logits, f32, are in rows [0, n) of scratch. Their gradients replace them in place, in the type that the
 * matmuls read: row r starts where that row's logits did.
 */
#ifndef LS_KERNELS_CUDA_XENT_H
#define LS_KERNELS_CUDA_XENT_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernel.h"

struct xent {
    size_t R, C, V, rows, ld; /* rows: rows of every chunk except the last; ld: floats from one row of logits to the next */
    char *logits;             /* [rows, ld] f32 */
    char *lse, *loss, *parts; /* [R] f32; [R] f64; the parts of the losses' sum */
    char *inverse;            /* 1/denom, f32 */
    size_t bytes;             /* of all these */
};

/* True if the row kernels support the types and strides. */
bool xent_accepts(const struct call *c);
/* Sizes, and offsets in the call's scratch. */
struct xent xent_of(const struct call *c, size_t rows, size_t ld);
/* Before the first chunk. */
void xent_begin(const struct call *c, const struct xent *z);
/* lse and loss of a chunk's rows, from their logits. */
void xent_losses(const struct call *c, const struct xent *z, size_t begin, size_t n);
/* After that: the logits become their gradients, of this type. */
void xent_gradients(const struct call *c, const struct xent *z, size_t begin, size_t n, ls_dtype type);
/* After the last chunk: the loss of all rows. */
void xent_end(const struct call *c, const struct xent *z);

#ifdef __cplusplus
}
#endif

#endif
