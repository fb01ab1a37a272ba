/* attention.h - sizes and helpers shared by attention's forward and backward. */
#ifndef LS_KERNELS_CPU_SIMD_ATTENTION_H
#define LS_KERNELS_CPU_SIMD_ATTENTION_H

#include "kernels/cpu/attention.h"
#include "kernels/cpu/simd/philox.h"
#include "kernels/cpu/simd/simd_math.h"
#include "kernels/cpu/simd/tile.h"

enum { QUERIES = 192, KEYS = 128 }; /* of a block: multiples of PANEL and, QUERIES, of 6 and 32 rows of a tile */

#ifdef SIMD_AVX512
INLINE float lanes_max(vf x) { return _mm512_reduce_max_ps(x); }
#else
INLINE float lanes_max(vf x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
#endif

#define attention_backward         SIMD_PASTE(attention_, backward, SIMD_ISA)
#define attention_backward_scratch SIMD_PASTE(attention_, backward_scratch, SIMD_ISA)

size_t attention_backward_scratch(const struct attention *a);
void attention_backward(const struct attention *a, size_t b, size_t g, void *scratch);

INLINE size_t whole_panels(size_t D) { return (D + PANEL - 1) / PANEL * PANEL; }

/* Rows from `row` on of one head, as a matrix [rows, D]. */
INLINE struct matrix head_rows(const struct heads *x, size_t b, size_t row, size_t head)
{
    ptrdiff_t at = (ptrdiff_t)b * x->batch + (ptrdiff_t)row * x->row + (ptrdiff_t)head * x->head;

    return (struct matrix){ (char *)x->data + at * (ptrdiff_t)ls_dtype_bytes(x->type), x->type, x->row, 1 };
}

INLINE struct matrix turned(struct matrix m) { return (struct matrix){ m.data, m.type, m.col, m.row }; }

/* Keys that query t sees. */
INLINE size_t seen(const struct attention *a, size_t t)
{
    if (!a->causal) return a->S;
    return t + a->S < a->T ? 0 : MIN(t + a->S - a->T + 1, a->S);
}

/* The first query of [t, t + n) that sees key s, as an offset rounded down to complete tiles. */
INLINE size_t first_row(const struct attention *a, size_t t, size_t s)
{
    size_t first = a->causal && s + a->T > a->S + t ? s + a->T - a->S - t : 0;

    return first - first % tile_rows(a->pairs);
}

/* keep[j] = 0 or 1 / (1 - p): what multiplies the probability of query t and key s0 + j < s0 + n, and 0 for LANES more.
 * keep: KEYS + LANES elements. */
INLINE void mask_row(const struct attention *a, size_t b, size_t h, size_t t, size_t s0, size_t n, float *keep)
{
    const struct attention_mask *m = &a->mask;
    const struct shard_rows *keys = &m->attr->keys;
    uint32_t word[KEYS + 4 + 2 * LANES];

    for (size_t j = 0, count; j < n; j += count) {
        size_t s = s0 + j;
        uint64_t index = attention_drop_index(m->attr, m->sample + b, h, t, s), skip = index % 4;

        count = s < keys->first ? MIN(n - j, keys->first - s) : n - j;
        for (size_t w = 0; w < skip + count; w += 2 * LANES) philox_words(m->attr->seed, m->stream, (index + w) / 4, word + w);
        for (size_t i = 0; i < count; i += LANES) {
            vw bits;

            memcpy(&bits, word + skip + i, sizeof bits);
            vw kept = (vw)(bits >= m->threshold) & (vw)vset(m->kept);
            memcpy(keep + j + i, &kept, sizeof kept);
        }
    }
    memset(keep + n, 0, LANES * sizeof *keep);
}

/* Bytes of one packed panel of k rows. */
INLINE size_t packed_bytes(bool pairs, size_t k) { return (pairs ? (k + 1) / 2 : k) * PANEL * sizeof(float); }

/* Packs b[k, n] as panels one after the other. */
INLINE void pack_all(void *to, bool pairs, size_t k, size_t n, struct matrix b)
{
    size_t bytes = ls_dtype_bytes(b.type);

    for (size_t j = 0; j < n; j += PANEL) {
        struct matrix part = b;

        part.data = (char *)b.data + (ptrdiff_t)j * b.col * (ptrdiff_t)bytes;
        pack_panel((char *)to + j / PANEL * packed_bytes(pairs, k), pairs, k, MIN(n - j, (size_t)PANEL), &part);
    }
}

/* c[m, n rounded up to panels] (+)= a[m,k] panels; the panels hold `depth` rows, of which [first, first + k) are used
 * (first even); a begins at its element of row `first` of b. */
INLINE void multiply(bool pairs, size_t m, size_t n, size_t first, size_t k, size_t depth, struct rows a, const void *panels, float *c,
                     size_t ldc, bool add)
{
    for (size_t j = 0; j < n; j += PANEL) {
        const char *panel = (const char *)panels + j / PANEL * packed_bytes(pairs, depth) + packed_bytes(pairs, first);

        if (pairs)
            tile_pairs(m, (k + 1) / 2, a, (const void *)panel, c + j, ldc, add);
        else
            tile_f32(m, k, a, (const void *)panel, c + j, ldc, add);
    }
}

/* Rows [first, ...) of the result of pack_rows(). */
INLINE struct rows rows_from(struct rows a, bool pairs, size_t first)
{
    ptrdiff_t at = (ptrdiff_t)(first / TILE_ROWS) * a.tile + (ptrdiff_t)(first % TILE_ROWS) * a.row;

    a.data = (const char *)a.data + at * (ptrdiff_t)(pairs ? sizeof(uint16_t) : sizeof(float));
    return a;
}

#endif
