/* amx.h - the tile of a matmul (gemm.h) on the processor's tile instructions, Intel AMX with bf16. */
#ifndef LS_KERNELS_CPU_AMX_H
#define LS_KERNELS_CPU_AMX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AMX_ROWS = 32, AMX_PAIRS = 16, AMX_PANEL = 64 }; /* rows and pairs of a step; columns of a panel */

/* c[m, AMX_PANEL] = (add ? c : 0) + a[m, 2k] panel[k, AMX_PANEL, 2]; a and the panel are bf16, c is f32; rows of a are `row` elements
 * apart, those of c `ldc`. The order of a sum depends on k alone: steps of AMX_PAIRS pairs, of each the even and the odd products by
 * themselves. Only where isa_best() is ISA_AMX. */
void amx_tile(size_t m, size_t k, const uint16_t *a, ptrdiff_t row, const uint16_t *panel, float *c, size_t ldc, bool add);

#endif
