/* tile.h - the parts of a matmul: packed panels, rows of A, the register tile. See gemm.h.
 *
 * A panel is PANEL columns wide: k rows of PANEL floats, or (k + 1) / 2 rows of PANEL pairs of bf16. Rows of A are read in place: element
 * (i, p) of the t-th group of 6 rows is data[t * tile + i * row + p * step].
 */
#ifndef LS_KERNELS_CPU_SIMD_TILE_H
#define LS_KERNELS_CPU_SIMD_TILE_H

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd/simd.h"

#define tile_f32   SIMD_PASTE(tile_, f32, SIMD_ISA)
#define tile_pairs SIMD_PASTE(tile_, pairs, SIMD_ISA)
#define pack_panel SIMD_PASTE(pack_, panel, SIMD_ISA)
#define pack_rows  SIMD_PASTE(pack_, rows, SIMD_ISA)

enum { VECTORS = LANES == 16 ? 4 : 2, PANEL = VECTORS * LANES };

struct rows {
    const void *data;
    ptrdiff_t tile, row, step;
};

/* c[m, PANEL] = (add ? c : 0) + a[m,k] panel[k]; any m; c's rows are ldc apart. With pairs, k, row and step count
 * pairs' first elements: step is the distance of two pairs in bf16 elements. */
void tile_f32(size_t m, size_t k, struct rows a, const float *panel, float *c, size_t ldc, bool add);
void tile_pairs(size_t m, size_t k, struct rows a, const uint16_t *panel, float *c, size_t ldc, bool add);

/* Packs b[k, n], n <= PANEL, columns past n zero. With pairs b is bf16. One stride of b is 1. */
void pack_panel(void *panel, bool pairs, size_t k, size_t n, const struct matrix *b);
/* Rows [0, m) of a, in place if the tile can read them, else copied to scratch. With pairs, step counts pairs. */
struct rows pack_rows(void *scratch, bool pairs, size_t m, size_t k, const struct matrix *a);

#endif
