/* onednn.h - what lockstep wants of oneDNN; only onednn.c knows its interface. And how fast products can be here. */
#ifndef LS_TENSOR_ONEDNN_H
#define LS_TENSOR_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include "lockstep/dtype.h"
#include "lockstep/status.h"

/* Tiles of bf16 in hardware, which oneDNN uses and product.h does not; false under a cap of the instruction set. */
bool onednn_has_amx(void);

/* Primitives that prepared calls hold: one for all calls of the same sizes, strides, types, sum and threads. */
size_t onednn_primitives(void);

/* *seconds: the least time of a few runs, during `budget` seconds, of oneDNN's c[m,n] = a[m,k] b[k,n], all of one
 * type, f32 or bf16, b in the layout that oneDNN likes best. On the team. */
ls_status onednn_product_time(ls_dtype type, size_t m, size_t n, size_t k, double budget, double *seconds);

/* Seconds of one linear layer's forward, x[m,k] w[n,k] -> y[m,n], all of one type, f32, bf16 or f16, as the kernel
 * table runs it on `threads` threads: the median of the runs that fit into about 0.3 s. Negative: out of memory. */
double product_time(size_t m, size_t n, size_t k, ls_dtype type, int threads);
/* Floating-point operations a second: the best of a few large products, ours and oneDNN's with packed weights, on
 * `threads` threads. What MFU is a share of. f16 runs in f32. Measured when called; about 0.6 s. Negative: failed. */
double product_peak_flops(ls_dtype type, int threads);

#endif
