/* cublaslt_problem.h - calls of linear, linear_dx, linear_dw and matmul as cuBLASLt takes them: D = A B + beta D of column-major matrices.
 *
 * A row-major matrix is the column-major one of its transpose, so D is the transpose of the call's output, A is made of its second input
 * and B of its first: y = x w^T becomes y^T = w x^T. Nothing is copied: a matrix whose rows or columns are contiguous is described by its
 * leading dimension and by whether it is transposed.
 */
#ifndef LS_KERNELS_CUDA_CUBLASLT_PROBLEM_H
#define LS_KERNELS_CUDA_CUBLASLT_PROBLEM_H

#include "kernels/kernel.h"

/* As it is in memory: element (i, j) at i + j * ld. transposed: the product has its transpose. */
struct cublaslt_matrix {
    int64_t rows, columns, ld, batch_stride;
    bool transposed;
};

enum { CUBLASLT_A, CUBLASLT_B, CUBLASLT_D, CUBLASLT_MATRICES };

/* Dims that cuBLASLt's one batch dim does not hold: a call of cublasLtMatmul() for each index. Strides are in elements. */
struct cublaslt_loop {
    int64_t size, stride[CUBLASLT_MATRICES];
};

struct cublaslt_problem {
    ls_dtype in, out; /* types of A and B, of D and the bias */
    int64_t m, n, k, batch;
    struct cublaslt_matrix matrix[CUBLASLT_MATRICES];
    bool add;           /* beta 1 */
    bool bias;          /* a number for each row of D is added to it */
    bool bias_gradient; /* the sums of B's columns go to a vector: one for each column of D */
    bool gelu, aux;     /* D is gelu_tanh of the sums; aux: these go to a matrix of D's size, whose columns are contiguous */
    int loops;
    struct cublaslt_loop loop[LS_DIMS];
};

/* False: cuBLASLt cannot compute it as it is. */
bool cublaslt_problem_of(const struct call *c, struct cublaslt_problem *out);
/* Bytes of workspace that an algorithm may use; of scratch, which has a workspace somewhere; where in scratch the workspace starts. */
size_t cublaslt_problem_workspace(const struct cublaslt_problem *p);
size_t cublaslt_problem_scratch(const struct cublaslt_problem *p);
void *cublaslt_workspace(void *scratch);
/* The alignment that A, B or D has in all calls of the problem, if it starts at data: a power of 2, at most 64. */
uint32_t cublaslt_problem_alignment(const struct cublaslt_problem *p, int matrix, const void *data);

#endif
