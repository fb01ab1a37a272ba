/* cudnn_attention.h - attention and its gradient as graphs that cuDNN has engines for. They look at types, sizes and strides alone. */
#ifndef LS_KERNELS_CUDA_CUDNN_ATTENTION_H
#define LS_KERNELS_CUDA_CUDNN_ATTENTION_H

#include "kernels/cuda/cudnn_graph.h"

/* The operands of cudnn_plan_run(), as the op list has them: q k v -> o lse; q k v o lse do -> dq dk dv, and the row sums of do o, [B,H,T]
 * f32, which are scratch. */
enum {
    ATTENTION_Q,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_O,
    ATTENTION_LSE,
    ATTENTION_DO,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_SUMS
};

/* False: not for cuDNN. */
bool cudnn_attention_accepts(const struct call *c);
/* False: on GPUs of this compute capability (9: Hopper) sums may have no fixed order. */
bool cudnn_attention_repeats(const struct call *c, int major);
extern size_t cudnn_pairs_most; /* bytes of a part's pairs of query and key; tests lower it */
/* A call is made in parts of equal shapes, one after another. */
int cudnn_attention_parts(const struct call *c);
struct call cudnn_attention_part(const struct call *c, int i);
/* NULL: no memory. */
struct cudnn_graph *cudnn_attention_graph(const struct call *part);
/* Bytes of the row sums, and the most workspace that a plan may take. */
size_t cudnn_attention_sums(const struct call *part);
size_t cudnn_attention_workspace(const struct call *part);

#endif
