/* cublaslt_matmul.h - one matmul of cuBLASLt, ready to run: descriptors, layouts and the algorithm that was chosen for it. */
#ifndef LS_KERNELS_CUDA_CUBLASLT_MATMUL_H
#define LS_KERNELS_CUDA_CUBLASLT_MATMUL_H

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cublaslt_problem.h"

struct cublaslt_matmul;

/* at: where A, B and D, and bias: where the bias will be, or memory of the same alignments. */
ls_status cublaslt_matmul_new(const struct cublaslt_problem *p, char *const at[CUBLASLT_MATRICES], const void *bias,
                              struct cublaslt_matmul **out);
void cublaslt_matmul_free(struct cublaslt_matmul *m); /* NULL: nothing to free */
const struct cublaslt_problem *cublaslt_matmul_problem(const struct cublaslt_matmul *m);
/* Enqueues it. bias: only where the problem has one. */
ls_status cublaslt_matmul_run(struct cublaslt_matmul *m, char *const at[CUBLASLT_MATRICES], const void *bias, void *workspace,
                              cudaStream_t stream);
/* With an algorithm of the caller's. */
ls_status cublaslt_matmul_try(struct cublaslt_matmul *m, const cublasLtMatmulHeuristicResult_t *algorithm,
                              char *const at[CUBLASLT_MATRICES], const void *bias, void *workspace, cudaStream_t stream);
/* Whether it can run *algorithm, which becomes complete. */
bool cublaslt_matmul_can_run(const struct cublaslt_matmul *m, cublasLtMatmulHeuristicResult_t *algorithm);

#endif
