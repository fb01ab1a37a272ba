/* cublaslt_tune.h - which of several algorithms is the fastest for a matmul: measured once, then read from the cache folder. */
#ifndef LS_KERNELS_CUDA_CUBLASLT_TUNE_H
#define LS_KERNELS_CUDA_CUBLASLT_TUNE_H

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cublaslt_problem.h"

struct cublaslt_state;

/* In cublaslt.c: the matmul of s. Calls it with an algorithm; gives it another bias; true: it can run *algorithm, which becomes complete.
 */
ls_status cublaslt_call(struct cublaslt_state *s, const cublasLtMatmulHeuristicResult_t *algorithm, char *const at[CUBLASLT_MATRICES],
                        void *workspace, cudaStream_t stream);
ls_status cublaslt_set_bias(struct cublaslt_state *s, const void *bias);
bool cublaslt_can_run(const struct cublaslt_state *s, cublasLtMatmulHeuristicResult_t *algorithm);

/* *best: the fastest of n algorithms. alignment: of A, B and D. s computes problem p. Its bias is another one afterwards. */
ls_status cublaslt_tune(const char *folder, struct cublaslt_state *s, const struct cublaslt_problem *p,
                        const uint32_t alignment[CUBLASLT_MATRICES], const cublasLtMatmulHeuristicResult_t *algorithm, int n,
                        cublasLtMatmulHeuristicResult_t *best);

#endif
