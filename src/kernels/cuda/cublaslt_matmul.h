/* cublaslt_matmul.h - one matmul of cuBLASLt, ready to run: descriptors, layouts and the algorithm that was chosen for it. */
#ifndef LS_KERNELS_CUDA_CUBLASLT_MATMUL_H
#define LS_KERNELS_CUDA_CUBLASLT_MATMUL_H

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cublaslt_problem.h"

struct cublaslt_matmul;

/* Where the operands are. vector: the bias, or its gradient, which is written; aux: the epilogue's second output; workspace: of the size
 * that cublaslt_workspace() returns. */
struct cublaslt_operands {
    char *matrix[CUBLASLT_MATRICES];
    void *vector, *aux, *workspace;
};

/* at: where the operands will be. Algorithms are measured there (run.tune_matmuls), and what they write is restored. LS_EUNSUPPORTED: the
 * library has no algorithm for the problem. */
ls_status cublaslt_matmul_new(const struct cublaslt_problem *p, const struct cublaslt_operands *at, struct cublaslt_matmul **out);
void cublaslt_matmul_free(struct cublaslt_matmul *m); /* NULL: nothing to free */
const struct cublaslt_problem *cublaslt_matmul_problem(const struct cublaslt_matmul *m);
/* Enqueues it on a stream of the CUDA device. */
ls_status cublaslt_matmul_run(struct cublaslt_matmul *m, const struct cublaslt_operands *at, struct device_stream *stream);
/* The same with an algorithm that the caller chooses. */
ls_status cublaslt_matmul_try(struct cublaslt_matmul *m, const cublasLtMatmulHeuristicResult_t *algorithm,
                              const struct cublaslt_operands *at, struct device_stream *stream);
/* True if it can run *algorithm, which is completed. */
bool cublaslt_matmul_can_run(const struct cublaslt_matmul *m, cublasLtMatmulHeuristicResult_t *algorithm);

#endif
