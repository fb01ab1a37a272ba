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

#ifdef SIMD_AVX512
INLINE vf low_pairs(vf a, vf b) { return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); }
INLINE vf high_pairs(vf a, vf b) { return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); }
INLINE vf low_ones(vf a, vf b) { return _mm512_unpacklo_ps(a, b); }
INLINE vf high_ones(vf a, vf b) { return _mm512_unpackhi_ps(a, b); }
#else
INLINE vf low_pairs(vf a, vf b) { return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))); }
INLINE vf high_pairs(vf a, vf b) { return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b))); }
INLINE vf low_ones(vf a, vf b) { return _mm256_unpacklo_ps(a, b); }
INLINE vf high_ones(vf a, vf b) { return _mm256_unpackhi_ps(a, b); }
#endif

/* r[i][j] becomes r[j][i]: 4 x 4 inside the lanes of 128 bits, then the lanes. */
INLINE void transpose(vf r[LANES])
{
    vf t[LANES];

    for (int i = 0; i < LANES; i += 4) {
        vf a = low_ones(r[i], r[i + 1]), b = high_ones(r[i], r[i + 1]);
        vf c = low_ones(r[i + 2], r[i + 3]), d = high_ones(r[i + 2], r[i + 3]);

        t[i] = low_pairs(a, c);
        t[i + 1] = high_pairs(a, c);
        t[i + 2] = low_pairs(b, d);
        t[i + 3] = high_pairs(b, d);
    }
    for (int i = 0; i < 4; i++) {
#ifdef SIMD_AVX512
        vf even = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), odd = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        vf even2 = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88), odd2 = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);

        r[i] = _mm512_shuffle_f32x4(even, even2, 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(odd, odd2, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(even, even2, 0xdd);
        r[i + 12] = _mm512_shuffle_f32x4(odd, odd2, 0xdd);
#else
        r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
#endif
    }
}

#endif
