/* cublaslt_tune.h - finds the fastest of several algorithms for a matmul: measured once, then read from the cache folder. */
#ifndef LS_KERNELS_CUDA_CUBLASLT_TUNE_H
#define LS_KERNELS_CUDA_CUBLASLT_TUNE_H

#include "kernels/cuda/cublaslt_matmul.h"

/* *best: the fastest of n algorithms for m, run on its operands; what they overwrite is saved on the host and restored. alignment: that of
 * A, B and D, of which D's is also that of the epilogue's pointers. */
ls_status cublaslt_tune(const char *folder, struct cublaslt_matmul *m, const struct cublaslt_operands *at,
                        const uint32_t alignment[CUBLASLT_MATRICES], const cublasLtMatmulHeuristicResult_t *algorithm, int n,
                        cublasLtMatmulHeuristicResult_t *best);

#endif
