/* onednn_recipe.h - calls as recipes of oneDNN's matmul (onednn/module.h).
 *
 * Accepts f32, and bf16 with outputs in bf16 or f32 (dw: f32); a bias in f32 or the operands' type. A linear layer's operands are rows with
 * a constant stride; a matmul's a and b have a unit stride in one of the last two dims, its c is contiguous. Sizes are 1 .. INT32_MAX.
 */
#ifndef LS_KERNELS_CPU_ONEDNN_RECIPE_H
#define LS_KERNELS_CPU_ONEDNN_RECIPE_H

#include <stdbool.h>
#include "kernels/kernel.h"
#include "kernels/cpu/onednn/module.h"

/* The recipe of linear, linear_dx, linear_dw or matmul; false: not for oneDNN. */
bool recipe_of(const struct call *c, struct recipe *out);

#endif
