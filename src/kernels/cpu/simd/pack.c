/* pack.c - panels of B and rows of A in the order in which the tile reads them.
 *
 * A matrix whose rows run along the panel is copied; one whose columns do is transposed LANES x LANES elements at a
 * time in registers. Two neighbors of a column in bf16 are one 32-bit element, so pairs are transposed in the same way.
 */
#include "kernels/cpu/simd/tile.h"

enum { AHEAD = 16, LINE = 64 }; /* rows that a strided walk prefetches; bytes of a cache line */

/* Rows of b are laid out along the panel. */
INLINE void pack_along(ls_dtype type, float *panel, size_t k, size_t n, const struct matrix *b)
{
    for (size_t p = 0; p < k; p++, panel += PANEL)
        for (size_t j = 0; j < PANEL; j += LANES) {
            vf x = vset(0);

            if (j < n) x = load(type, b->data, p * (size_t)b->row + j, MIN(n - j, (size_t)LANES));
            vstore_f32(panel + j, LANES, x);
        }
}

/* Columns of b are laid out along memory. */
INLINE void pack_across(ls_dtype type, float *panel, size_t k, size_t n, const struct matrix *b)
{
    for (size_t j = 0; j < PANEL; j += LANES) EACH(p, count, 0, k)
        {
            vf r[LANES];

            for (size_t i = 0; i < LANES; i++) r[i] = j + i < n ? load(type, b->data, (j + i) * (size_t)b->col + p, count) : vset(0);
            transpose(r);
            for (size_t i = 0; i < count; i++) vstore_f32(panel + (p + i) * PANEL + j, LANES, r[i]);
        }
}

#ifdef SIMD_AVX512

/* Element i of the result is the pair (low[i], high[i]); high may be NULL: zeros. */
INLINE __m512i interleave(const uint16_t *low, const uint16_t *high, size_t n)
{
    __m512i x = _mm512_cvtepu16_epi32(vload_16(low, n));

    return high ? _mm512_or_si512(x, _mm512_slli_epi32(_mm512_cvtepu16_epi32(vload_16(high, n)), 16)) : x;
}

static void pack_pairs_along(uint16_t *panel, size_t k, size_t n, const struct matrix *b)
{
    const uint16_t *from = b->data;

    for (size_t p = 0; p < k; p += 2, panel += 2 * PANEL)
        for (size_t j = 0; j < PANEL; j += LANES) {
            const uint16_t *low = from + p * (size_t)b->row + j, *high = p + 1 < k ? low + b->row : NULL;
            __m512i x = _mm512_setzero_si512();

            if (j < n) x = interleave(low, high, MIN(n - j, (size_t)LANES));
            _mm512_storeu_si512(panel + 2 * j, x);
        }
}

static void pack_pairs_across(uint16_t *panel, size_t k, size_t n, const struct matrix *b)
{
    const uint16_t *from = b->data;
    size_t pairs = k / 2;

    for (size_t j = 0; j < PANEL; j += LANES) EACH(p, count, 0, pairs)
        {
            vf r[LANES];

            for (size_t i = 0; i < LANES; i++)
                r[i] = j + i < n ? vload_f32((const void *)(from + (j + i) * (size_t)b->col + 2 * p), count) : vset(0);
            transpose(r);
            for (size_t i = 0; i < count; i++) vstore_f32((float *)(void *)(panel + 2 * ((p + i) * PANEL + j)), LANES, r[i]);
        }
    if (k % 2 == 0) return;
    panel += 2 * pairs * PANEL;
    for (size_t j = 0; j < PANEL; j++) {
        panel[2 * j] = j < n ? from[j * (size_t)b->col + k - 1] : 0;
        panel[2 * j + 1] = 0;
    }
}

static void pack_pairs(uint16_t *panel, size_t k, size_t n, const struct matrix *b)
{
    if (b->col == 1)
        pack_pairs_along(panel, k, n, b);
    else
        pack_pairs_across(panel, k, n, b);
}

/* Rows of a one after the other, `even` elements apart, as the tile instructions read them. a.row is 1. */
static void pack_pair_rows(uint16_t *to, size_t m, size_t k, size_t even, const struct matrix *a)
{
    const uint16_t *from = a->data;

    for (size_t p = 0; p < k; p += 2 * LANES)
        for (size_t i = 0; i < m; i += LANES) {
            size_t rows = MIN(m - i, (size_t)LANES), pairs = (MIN(k - p, (size_t)2 * LANES) + 1) / 2;
            vf r[LANES];

            for (size_t q = 0; q < LANES; q++) {
                const uint16_t *low = from + (p + 2 * q) * (size_t)a->col + i, *high = p + 2 * q + 1 < k ? low + a->col : NULL;

                r[q] = q < pairs ? _mm512_castsi512_ps(interleave(low, high, rows)) : vset(0);
            }
            transpose(r);
            for (size_t q = 0; q < rows; q++) vstore_f32((float *)(void *)(to + (i + q) * even + p), pairs, r[q]);
        }
}

/* Groups of 6 rows: for each pair of k the 6 pairs of the group. a.row is 1. */
static void pack_pair_groups(uint16_t *to, size_t m, size_t k, const struct matrix *a)
{
    const uint16_t *low = a->data;
    size_t group = (k + k % 2) * TILE_ROWS;

    for (size_t p = 0; p < k; p += 2, low += 2 * a->col, to += 2 * TILE_ROWS) {
        const uint16_t *high = p + 1 < k ? low + a->col : NULL;

        for (size_t i = 0; p + AHEAD + 1 < k && i < m; i += LINE / sizeof *low) {
            __builtin_prefetch(low + AHEAD * a->col + i);
            __builtin_prefetch(low + (AHEAD + 1) * a->col + i);
        }
        for (size_t i = 0; i < m; i += TILE_ROWS) {
            size_t n = MIN(m - i, (size_t)TILE_ROWS);
            __m512i x = interleave(low + i, high ? high + i : NULL, n);

            _mm512_mask_storeu_epi32(to + i / TILE_ROWS * group, (__mmask16)((1u << n) - 1), x);
        }
    }
}

#else
static void pack_pairs(uint16_t *panel, size_t k, size_t n, const struct matrix *b)
{
    (void)panel, (void)k, (void)n, (void)b;
    ASSERT(!"pairs of bf16 without avx512_bf16");
}

static void pack_pair_rows(uint16_t *to, size_t m, size_t k, size_t even, const struct matrix *a)
{
    (void)to, (void)m, (void)k, (void)even, (void)a;
    ASSERT(!"pairs of bf16 without avx512_bf16");
}

static void pack_pair_groups(uint16_t *to, size_t m, size_t k, const struct matrix *a)
{
    (void)to, (void)m, (void)k, (void)a;
    ASSERT(!"pairs of bf16 without avx512_bf16");
}
#endif

void pack_panel(void *panel, bool pairs, size_t k, size_t n, const struct matrix *b)
{
    if (pairs)
        pack_pairs(panel, k, n, b);
    else if (b->col == 1)
        BY_TYPE(b->type, T, pack_along(T, panel, k, n, b))
    else
        BY_TYPE(b->type, T, pack_across(T, panel, k, n, b))
}

/* Groups of 6 rows: for each k the 6 elements of the group. a.row is 1. */
INLINE void pack_groups(ls_dtype type, float *to, size_t m, size_t k, const struct matrix *a)
{
    const char *from = a->data;
    size_t bytes = ls_dtype_bytes(type), step = (size_t)a->col * bytes;

    for (size_t p = 0; p < k; p++, from += step, to += TILE_ROWS) {
        for (size_t i = 0; p + AHEAD < k && i < m * bytes; i += LINE) __builtin_prefetch(from + AHEAD * step + i);
        for (size_t i = 0; i < m; i += TILE_ROWS) {
            size_t n = MIN(m - i, (size_t)TILE_ROWS);

            for (size_t j = 0; j < n; j += LANES)
                vstore_f32(to + i * k + j, MIN(n - j, (size_t)LANES), load(type, from, i + j, MIN(n - j, (size_t)LANES)));
        }
    }
}

INLINE void convert_rows(ls_dtype type, float *to, size_t m, size_t k, const struct matrix *a)
{
    for (size_t i = 0; i < m; i++) EACH(p, n, 0, k)
    vstore_f32(to + i * k + p, n, load(type, a->data, i * (size_t)a->row + p, n));
}

static struct rows rows_of_pairs(uint16_t *to, size_t m, size_t k, const struct matrix *a)
{
    size_t even = k + k % 2;

    if (a->col == 1 && k % 2 == 0) return (struct rows){ a->data, TILE_ROWS * a->row, a->row, 2 };
    if (a->col != 1 && tiles_amx()) {
        pack_pair_rows(to, m, k, even, a);
        return (struct rows){ to, (ptrdiff_t)(TILE_ROWS * even), (ptrdiff_t)even, 2 };
    }
    if (a->col != 1) {
        pack_pair_groups(to, m, k, a);
        return (struct rows){ to, (ptrdiff_t)(TILE_ROWS * even), 2, 2 * TILE_ROWS };
    }
    for (size_t i = 0; i < m; i++) {
        memcpy(to + i * even, (const uint16_t *)a->data + i * (size_t)a->row, k * sizeof *to);
        to[i * even + k] = 0;
    }
    return (struct rows){ to, (ptrdiff_t)(TILE_ROWS * even), (ptrdiff_t)even, 2 };
}

struct rows pack_rows(void *scratch, bool pairs, size_t m, size_t k, const struct matrix *a)
{
    if (pairs) return rows_of_pairs(scratch, m, k, a);
    if (a->col == 1 && a->type == LS_F32) return (struct rows){ a->data, TILE_ROWS * a->row, a->row, 1 };
    if (a->col != 1) {
        BY_TYPE(a->type, T, pack_groups(T, scratch, m, k, a))
        return (struct rows){ scratch, (ptrdiff_t)(TILE_ROWS * k), 1, TILE_ROWS };
    }
    BY_TYPE(a->type, T, convert_rows(T, scratch, m, k, a))
    return (struct rows){ scratch, (ptrdiff_t)(TILE_ROWS * k), (ptrdiff_t)k, 1 };
}
