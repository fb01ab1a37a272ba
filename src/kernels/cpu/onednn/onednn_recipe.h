/* onednn_recipe.h - a call as a key for oneDNN: everything that a primitive depends on.
 *
 * dst[.., M,N] = (add ? dst : 0) + src[.., M,K] weights[.., K,N] + bias[N]
 *
 * Accepts f32, and bf16 with outputs in bf16 or f32 (dw: f32); a bias in f32 or the operands' type. A linear layer's operands are rows with
 * a constant stride; a matmul's a and b have a unit stride in one of the last two dims, its c is contiguous. Sizes are 1 .. INT32_MAX.
 */
#ifndef LS_KERNELS_CPU_ONEDNN_ONEDNN_RECIPE_H
#define LS_KERNELS_CPU_ONEDNN_ONEDNN_RECIPE_H

#include <stdbool.h>
#include <stdint.h>
#include "kernels/kernel.h"
#include "kernels/cpu/gemm.h"

/* Only int64_t members, zero if unset: recipes are equal if their bytes are. */
struct side {
    int64_t type, size[LS_DIMS], stride[LS_DIMS];
};
struct recipe {
    int64_t ndim, threads;   /* threads: current size of the team */
    int64_t add, pack;       /* pack: the weights are reordered first */
    int64_t bias, bias_type; /* bias: true if there is one */
    struct side src, weights, dst;
};

/* The recipe of linear, linear_dx, linear_dw or matmul; false: not for oneDNN. */
bool recipe_of(const struct call *c, struct recipe *out);
/* The recipe of a matmul without a bias; its data are not read. */
bool recipe_of_gemm(const struct gemm *p, bool pack, struct recipe *out);

#endif
