/* parts.h - the parts of the kernel table that are in the library: one array per file, `kernels_NAME`, ended by KERNELS_END. */
#ifndef LS_KERNELS_PARTS_H
#define LS_KERNELS_PARTS_H

#include "kernels/kernel.h"

/* clang-format off */
#define REFERENCE_PARTS(X) \
    X(ref_gemm) X(ref_pointwise) X(ref_norm) X(ref_attention) X(ref_loss) X(ref_shape) X(ref_image) X(ref_batch) X(ref_route) \
    X(ref_experts) X(ref_optim)

#define VECTOR_PARTS(X, isa) \
    X(pointwise_##isa) X(activation_##isa) X(softmax_##isa) X(layer_norm_##isa) X(rms_norm_##isa) X(embedding_##isa) X(rows_##isa) \
    X(route_##isa) X(rope_##isa) X(dropout_##isa) X(copy_##isa) X(reduce_##isa) X(optim_sgd_##isa) X(optim_adam_##isa) \
    X(batch_norm_##isa) X(merge_##isa) X(xent_parts_##isa)

#define BLOCKED_PARTS(X) X(gemm) X(grouped) X(attention) X(xent) X(conv) X(pool) X(blocks) X(onednn)
/* clang-format on */

#define PARTS(X) BLOCKED_PARTS(X) VECTOR_PARTS(X, avx512) VECTOR_PARTS(X, avx2) REFERENCE_PARTS(X)

#define PART_DECLARE(name) extern const struct kernel kernels_##name[];
PARTS(PART_DECLARE)
#undef PART_DECLARE

#endif
