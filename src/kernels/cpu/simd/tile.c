/* tile.c - the register tile: 6 rows x one panel of sums stay in registers over a block of k.
 *
 * Each step of k loads one row of the panel and broadcasts six elements of A: with 16 lanes 24 multiply-adds on 10 loads, with 8 lanes 12
 * on 8, so the adders are the limit. With pairs of bf16 a step covers two k.
 *
 * A step of f32 with 16 lanes also fetches a line of the next panel: the panels of a large matmul are in the last cache, and the first tile
 * on each would wait for it. With 8 lanes that gained nothing.
 */
#include "kernels/cpu/simd/tile.h"

#include "kernels/cpu/amx.h"

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Prefetches the sums that a tile adds to before its loop: a miss would stall its end. */
INLINE void fetch(const float *c)
{
    for (int j = 0; j < PANEL; j += LANES) __builtin_prefetch(c + j, 1);
}

enum { LINE = 64, FETCHES = LANES == 16 }; /* bytes of a cache line; does a step fetch one? */

/* m is a constant where this is inlined. ahead: the address from which k lines are fetched into the L2 cache. */
INLINE void tile_f32_m(const int m, size_t k, const float *a, struct rows at, const float *panel, uintptr_t ahead, float *c, size_t ldc,
                       bool add)
{
    vf sum[TILE_ROWS][VECTORS], b[VECTORS];

    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < VECTORS; j++) sum[i][j] = vset(0);
    for (int i = 0; add && i < m; i++) fetch(c + (size_t)i * ldc);
    for (; k > 0; k--, a += at.step, panel += PANEL, ahead += LINE) {
        if (FETCHES) __builtin_prefetch((const void *)ahead, 0, 2);
        UNROLL for (int j = 0; j < VECTORS; j++) b[j] = vload_f32(panel + j * LANES, LANES);
        UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < VECTORS; j++) sum[i][j] += vset(a[i * at.row]) * b[j];
    }
    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < VECTORS; j++)
    {
        float *to = c + (size_t)i * ldc + j * LANES;

        if (add) sum[i][j] += vload_f32(to, LANES);
        vstore_f32(to, LANES, sum[i][j]);
    }
}

#define TILE_CASE(m, function, ...) \
    case m: function(m, k, from, a, panel, __VA_ARGS__); break;

void tile_f32(size_t m, size_t k, struct rows a, const float *panel, float *c, size_t ldc, bool add)
{
    size_t bytes = k * PANEL * sizeof *panel;
    uintptr_t ahead = (uintptr_t)panel + bytes, end = ahead + bytes; /* the next panel */
    const float *from = a.data;

    for (size_t n; m > 0; m -= n, from += a.tile, c += n * ldc) {
        n = MIN(m, (size_t)TILE_ROWS);
        switch (n) {
            TILE_CASE(1, tile_f32_m, ahead, c, ldc, add)
            TILE_CASE(2, tile_f32_m, ahead, c, ldc, add)
            TILE_CASE(3, tile_f32_m, ahead, c, ldc, add)
            TILE_CASE(4, tile_f32_m, ahead, c, ldc, add)
            TILE_CASE(5, tile_f32_m, ahead, c, ldc, add)
            TILE_CASE(6, tile_f32_m, ahead, c, ldc, add)
        }
        ahead = ahead + k * LINE < end ? ahead + k * LINE : (uintptr_t)panel; /* when all of it is fetched, lines that are there */
    }
}

#ifdef SIMD_AVX512

#define WITH_PAIRS __attribute__((target("avx512bf16")))

WITH_PAIRS INLINE void tile_pairs_m(const int m, size_t k, const uint16_t *a, struct rows at, const uint16_t *panel, float *c, size_t ldc,
                                    bool add)
{
    __m512 sum[TILE_ROWS][VECTORS];
    __m512i b[VECTORS], x;

    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < VECTORS; j++) sum[i][j] = _mm512_setzero_ps();
    for (int i = 0; add && i < m; i++) fetch(c + (size_t)i * ldc);
    for (; k > 0; k--, a += at.step, panel += 2 * PANEL) {
        UNROLL for (int j = 0; j < VECTORS; j++) b[j] = _mm512_loadu_si512(panel + 2 * j * LANES);
        UNROLL for (int i = 0; i < m; i++)
        {
            int32_t pair;

            memcpy(&pair, a + i * at.row, sizeof pair);
            x = _mm512_set1_epi32(pair);
            UNROLL for (int j = 0; j < VECTORS; j++) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)x, (__m512bh)b[j]);
        }
    }
    UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < VECTORS; j++)
    {
        float *to = c + (size_t)i * ldc + j * LANES;

        _mm512_storeu_ps(to, add ? _mm512_add_ps(sum[i][j], _mm512_loadu_ps(to)) : sum[i][j]);
    }
}

WITH_PAIRS void tile_pairs(size_t m, size_t k, struct rows a, const uint16_t *panel, float *c, size_t ldc, bool add)
{
    const uint16_t *from = a.data;

    if (tiles_amx()) {
        ASSERT(a.step == 2 && a.tile == TILE_ROWS * a.row);
        amx_tile(m, k, from, a.row, panel, c, ldc, add);
        return;
    }
    for (size_t n; m > 0; m -= n, from += a.tile, c += n * ldc) {
        n = MIN(m, (size_t)TILE_ROWS);
        switch (n) {
            TILE_CASE(1, tile_pairs_m, c, ldc, add)
            TILE_CASE(2, tile_pairs_m, c, ldc, add)
            TILE_CASE(3, tile_pairs_m, c, ldc, add)
            TILE_CASE(4, tile_pairs_m, c, ldc, add)
            TILE_CASE(5, tile_pairs_m, c, ldc, add)
            TILE_CASE(6, tile_pairs_m, c, ldc, add)
        }
    }
}

#else

/* Never chosen: this instruction set cannot multiply pairs. */
void tile_pairs(size_t m, size_t k, struct rows a, const uint16_t *panel, float *c, size_t ldc, bool add)
{
    (void)m, (void)k, (void)a, (void)panel, (void)c, (void)ldc, (void)add;
    ASSERT(!"pairs of bf16 without avx512_bf16");
}

#endif
