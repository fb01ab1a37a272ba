/* matmul.h - the plain matmul as a launch, for kernels that consist of several. */
#ifndef LS_KERNELS_CUDA_MATMUL_H
#define LS_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/gemm.h"

/* c[M,N] = a[M,K] b[K,N] (+ bias[N]), or += with add. */
void matmul_launch(const struct call *call, struct matrix a, struct matrix b, struct matrix c, size_t M, size_t N, size_t K,
                   struct array bias, bool add);

#endif
