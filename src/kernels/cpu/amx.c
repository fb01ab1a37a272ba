/* amx.c - sums of 32 rows x 32 columns stay in four tile registers over a block of k.
 *
 * A tile register holds 16 rows of 64 bytes: 16 x 16 sums in f32, or 16 rows of 16 pairs of bf16. A step loads two tiles of a and two
 * of the panel and multiplies each with each. A block of half a panel stays in the L1 cache for all rows; the sums go through memory
 * between two blocks. What is left over, rows or pairs, is a tile register of fewer rows or columns (Intel, Architecture Instruction Set
 * Extensions Programming Reference, chapter 3).
 */
#include "kernels/cpu/amx.h"

#include <immintrin.h>
#include <string.h>
#include "base/base.h"

#define WITH_TILES __attribute__((target("amx-tile,amx-bf16")))

enum { TILE = 16, BLOCK_K = 12 * AMX_PAIRS, HALF = AMX_PANEL / 2 };

/* The tile registers: sums of two times two tiles, of a, of the panel. Macros, since the intrinsics make names of them. */
#define SUM00 0
#define SUM01 1
#define SUM10 2
#define SUM11 3
#define A0    4
#define A1    5
#define B0    6
#define B1    7

/* Their sizes, as the processor reads them. */
struct registers {
    uint8_t palette, start, zeros[14];
    uint16_t bytes[16]; /* bytes of a row */
    uint8_t rows[16];
};

static void size_register(struct registers *r, int which, size_t rows, size_t elements)
{
    r->rows[which] = (uint8_t)rows;
    r->bytes[which] = (uint8_t)(rows ? 4 * elements : 0);
}

WITH_TILES static void set_registers(size_t m, size_t pairs)
{
    size_t upper = MIN(m, (size_t)TILE), lower = m - upper;
    struct registers r = { .palette = 1 };

    for (int j = 0; j < 2; j++) {
        size_register(&r, SUM00 + j, upper, TILE);
        size_register(&r, SUM10 + j, lower, TILE);
        size_register(&r, B0 + j, pairs, TILE);
    }
    size_register(&r, A0, upper, pairs);
    size_register(&r, A1, lower, pairs);
    __asm__ volatile("" ::"r"(&r) : "memory"); /* the intrinsic names its first bytes only */
    _tile_loadconfig(&r);
}

/* What the compiler does not know: that the instructions read and write memory. */
static inline void memory_changes(void) { __asm__ volatile("" ::: "memory"); }

/* c[m, HALF] += a[m, 2k] panel, m <= AMX_ROWS as in set_registers(), in steps of its pairs. add: else the sums begin at 0. */
WITH_TILES static void amx_block(bool two, size_t steps, size_t pairs, const uint16_t *a, ptrdiff_t row, const uint16_t *panel, float *c,
                                 size_t ldc, bool add)
{
    const ptrdiff_t across = 2 * row, along = AMX_PANEL * 4, down = (ptrdiff_t)(4 * ldc);
    const uint16_t *lower = a + TILE * row;
    float *c1 = c + TILE * ldc;

    memory_changes();
    if (add) {
        _tile_loadd(SUM00, c, down);
        _tile_loadd(SUM01, c + TILE, down);
        if (two) _tile_loadd(SUM10, c1, down);
        if (two) _tile_loadd(SUM11, c1 + TILE, down);
    } else {
        _tile_zero(SUM00);
        _tile_zero(SUM01);
        if (two) _tile_zero(SUM10);
        if (two) _tile_zero(SUM11);
    }
    for (; steps > 0; steps--, a += 2 * pairs, lower += 2 * pairs, panel += 2 * AMX_PANEL * pairs) {
        _tile_loadd(A0, a, across);
        _tile_loadd(B0, panel, along);
        _tile_dpbf16ps(SUM00, A0, B0);
        _tile_loadd(B1, panel + 2 * TILE, along);
        _tile_dpbf16ps(SUM01, A0, B1);
        if (!two) continue;
        _tile_loadd(A1, lower, across);
        _tile_dpbf16ps(SUM10, A1, B0);
        _tile_dpbf16ps(SUM11, A1, B1);
    }
    _tile_stored(SUM00, c, down);
    _tile_stored(SUM01, c + TILE, down);
    if (two) _tile_stored(SUM10, c1, down);
    if (two) _tile_stored(SUM11, c1 + TILE, down);
    memory_changes();
}

/* All columns and all blocks of k of rows in groups of m <= AMX_ROWS, in steps of `pairs`, of which k is a multiple. */
WITH_TILES static void amx_rows(size_t groups, size_t m, size_t k, size_t pairs, const uint16_t *a, ptrdiff_t row, const uint16_t *panel,
                                float *c, size_t ldc, bool add)
{
    if (groups == 0 || m == 0) return;
    set_registers(m, pairs);
    for (size_t j = 0; j < AMX_PANEL; j += HALF)
        for (size_t p = 0; p < k; p += BLOCK_K) {
            size_t steps = MIN(k - p, (size_t)BLOCK_K) / pairs;

            for (size_t i = 0; i < groups * m; i += m)
                amx_block(m > TILE, steps, pairs, a + (ptrdiff_t)i * row + 2 * p, row, panel + 2 * (p * AMX_PANEL + j), c + i * ldc + j,
                          ldc, add || p > 0);
        }
}

WITH_TILES void amx_tile(size_t m, size_t k, const uint16_t *a, ptrdiff_t row, const uint16_t *panel, float *c, size_t ldc, bool add)
{
    size_t groups = m / AMX_ROWS, whole = groups * AMX_ROWS, even = k / AMX_PAIRS * AMX_PAIRS, rest = k - even;
    const uint16_t *below = a + (ptrdiff_t)whole * row;
    float *c1 = c + whole * ldc;

    for (size_t i = 0; k == 0 && !add && i < m; i++) memset(c + i * ldc, 0, AMX_PANEL * sizeof *c);
    if (even) {
        amx_rows(groups, AMX_ROWS, even, AMX_PAIRS, a, row, panel, c, ldc, add);
        amx_rows(1, m - whole, even, AMX_PAIRS, below, row, panel, c1, ldc, add);
    }
    if (rest) {
        amx_rows(groups, AMX_ROWS, rest, rest, a + 2 * even, row, panel + 2 * even * AMX_PANEL, c, ldc, add || even);
        amx_rows(1, m - whole, rest, rest, below + 2 * even, row, panel + 2 * even * AMX_PANEL, c1, ldc, add || even);
    }
    _tile_release();
}
