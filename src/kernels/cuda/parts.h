/* parts.h - the parts of the kernel table that run on a CUDA device: one array per .cu file, `kernels_cuda_NAME`, ended by KERNELS_END.
 *
 * The rows are in the CUDA module, not in the library: the code that loads the module adds them to the table. Every row has .device =
 * "cuda", and its run() enqueues on the call's stream and returns. accepts() and scratch() run on the host and look at types, sizes and
 * strides alone.
 */
#ifndef LS_KERNELS_CUDA_PARTS_H
#define LS_KERNELS_CUDA_PARTS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernel.h"

/* clang-format off */
#define CUDA_PARTS(X) \
    X(pointwise) X(shape) X(columns) X(norm) X(total) X(optim) X(matmul) X(grouped) X(grouped_mma) X(conv) \
    X(xent) X(rope) X(attention) X(attention_mma) X(attention_mma_grad) X(attention_split) X(embedding) X(rows) \
    X(pool) X(batch_norm) X(route)
/* clang-format on */

/* Parts on libraries, in C: kernels that the emulator does not run. */
#define CUDA_LIBRARY_PARTS(X) X(cublaslt) X(cublaslt_fused) X(cublaslt_xent) X(cudnn)

#define CUDA_PART_DECLARE(name) extern const struct kernel kernels_cuda_##name[];
CUDA_PARTS(CUDA_PART_DECLARE)
CUDA_LIBRARY_PARTS(CUDA_PART_DECLARE)
#undef CUDA_PART_DECLARE

#ifdef __cplusplus
}
#endif
#endif
