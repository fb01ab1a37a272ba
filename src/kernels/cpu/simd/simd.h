/* simd.h - vectors of 32-bit floats for the instruction set that a file is compiled for.
 *
 * Every file of this folder is compiled once per instruction set, with SIMD_ISA (avx2, avx512) in the name of its
 * table. A vector has LANES floats. Elements of f32, bf16 and f16 are loaded and stored through load() and store(),
 * which take the type as a number: inside functions that are inlined with a constant type (BY_TYPE) the choice is free.
 *
 *   EACH(i, n, begin, end)            // n = LANES, and fewer in the last round
 *       store(T, y, i, n, 2 * load(T, x, i, n));
 *
 * Lanes past n read as 0 and are not written. Sums keep their order: lane by lane, then a fixed tree.
 */
#ifndef LS_KERNELS_CPU_SIMD_SIMD_H
#define LS_KERNELS_CPU_SIMD_SIMD_H

#include <immintrin.h>
#include <string.h>
#include "base/base.h"
#include "base/threads.h"
#include "kernels/kernel.h"

#define INLINE               static inline __attribute__((always_inline, unused))
#define SIMD_PASTE_(a, b, c) a##b##_##c
#define SIMD_PASTE(a, b, c)  SIMD_PASTE_(a, b, c)
#define SIMD_TABLE(part)     SIMD_PASTE(kernels_, part, SIMD_ISA)

#define EACH(i, n, begin, end) for (size_t i = (begin), n; i < (end) && (n = MIN((end)-i, (size_t)LANES), true); i += LANES)

/* Runs `body` with T as a constant for the floating types that the vector kernels know. */
#define BY_TYPE(type, T, body)                        \
    switch (type) {                                   \
    case LS_F32: {                                    \
        const ls_dtype T = LS_F32;                    \
        body;                                         \
    } break;                                          \
    case LS_BF16: {                                   \
        const ls_dtype T = LS_BF16;                   \
        body;                                         \
    } break;                                          \
    case LS_F16: {                                    \
        const ls_dtype T = LS_F16;                    \
        body;                                         \
    } break;                                          \
    default: ASSERT(!"accepts() let a type through"); \
    }

#ifdef SIMD_AVX512

enum { LANES = 16 };
#define SIMD_NAME     "avx512"
#define SIMD_LEVEL    ISA_AVX512
#define SIMD_PRIORITY PRIORITY_AVX512
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vmask;

INLINE vf vset(float x) { return _mm512_set1_ps(x); }
INLINE vi viset(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); } /* b if either is NaN */
INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); } /* b if either is NaN */
INLINE vf vsqrt(vf x) { return _mm512_sqrt_ps(x); }
INLINE vf vround(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vmask vless(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vf vselect(vmask m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
INLINE vf vabs(vf x) { return _mm512_abs_ps(x); }

INLINE vf vload_f32(const float *p, size_t n)
{
    return n == LANES ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

INLINE __m256i vload_16(const uint16_t *p, size_t n)
{
    return n == LANES ? _mm256_loadu_si256((const void *)p) : _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
}

INLINE void vstore_f32(float *p, size_t n, vf x)
{
    if (n == LANES)
        _mm512_storeu_ps(p, x);
    else
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
}

INLINE void vstore_16(uint16_t *p, size_t n, __m256i x)
{
    if (n == LANES)
        _mm256_storeu_si256((void *)p, x);
    else
        _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), x);
}

INLINE vf vfrom_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
INLINE vf vfrom_f16(__m256i h) { return _mm512_cvtph_ps(h); }
INLINE __m256i vto_f16(vf x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

INLINE __m256i vto_bf16(vf x)
{
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), viset(1));
    __m512i nearest = _mm512_add_epi32(u, _mm512_add_epi32(odd, viset(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

    nearest = _mm512_mask_or_epi32(nearest, nan, u, viset(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(nearest, 16));
}

/* The lower and upper half as doubles. */
typedef __m512d vd;
INLINE vd vlow(vf x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
INLINE vd vhigh(vf x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }

#else

enum { LANES = 8 };
#define SIMD_NAME     "avx2"
#define SIMD_LEVEL    ISA_AVX2
#define SIMD_PRIORITY PRIORITY_AVX2
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vmask;

INLINE vf vset(float x) { return _mm256_set1_ps(x); }
INLINE vi viset(int32_t x) { return _mm256_set1_epi32(x); }
INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf vsqrt(vf x) { return _mm256_sqrt_ps(x); }
INLINE vf vround(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vmask vless(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
INLINE vf vselect(vmask m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
INLINE vf vabs(vf x) { return _mm256_andnot_ps(vset(-0.0f), x); }

INLINE __m256i vfirst(size_t n) /* all bits set in the first n lanes */
{
    return _mm256_cmpgt_epi32(viset((int32_t)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE vf vload_f32(const float *p, size_t n) { return n == LANES ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, vfirst(n)); }

/* Partial vectors go through a buffer element by element: there are no masked moves of 16-bit elements. */
INLINE __m128i vload_16(const uint16_t *p, size_t n)
{
    uint16_t part[LANES] = { 0 };

    if (n == LANES) return _mm_loadu_si128((const void *)p);
    switch (n) {
    case 7: part[6] = p[6]; /* fall through */
    case 6: part[5] = p[5]; /* fall through */
    case 5: part[4] = p[4]; /* fall through */
    case 4: part[3] = p[3]; /* fall through */
    case 3: part[2] = p[2]; /* fall through */
    case 2: part[1] = p[1]; /* fall through */
    default: part[0] = p[0];
    }
    return _mm_loadu_si128((const void *)part);
}

INLINE void vstore_f32(float *p, size_t n, vf x)
{
    if (n == LANES)
        _mm256_storeu_ps(p, x);
    else
        _mm256_maskstore_ps(p, vfirst(n), x);
}

INLINE void vstore_16(uint16_t *p, size_t n, __m128i x)
{
    uint16_t part[LANES];

    if (n == LANES) {
        _mm_storeu_si128((void *)p, x);
        return;
    }
    _mm_storeu_si128((void *)part, x);
    switch (n) {
    case 7: p[6] = part[6]; /* fall through */
    case 6: p[5] = part[5]; /* fall through */
    case 5: p[4] = part[4]; /* fall through */
    case 4: p[3] = part[3]; /* fall through */
    case 3: p[2] = part[2]; /* fall through */
    case 2: p[1] = part[1]; /* fall through */
    default: p[0] = part[0];
    }
}

INLINE vf vfrom_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
INLINE vf vfrom_f16(__m128i h) { return _mm256_cvtph_ps(h); }
INLINE __m128i vto_f16(vf x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

INLINE __m128i vto_bf16(vf x)
{
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), viset(1));
    __m256i nearest = _mm256_add_epi32(u, _mm256_add_epi32(odd, viset(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)), quiet = _mm256_or_si256(u, viset(0x400000));

    nearest = _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, nan), 16);
    nearest = _mm256_permute4x64_epi64(_mm256_packus_epi32(nearest, nearest), 0x08);
    return _mm256_castsi256_si128(nearest);
}

typedef __m256d vd;
INLINE vd vlow(vf x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
INLINE vd vhigh(vf x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }

#endif

/* Elements [i, i + n) of an array of that type, 1 <= n <= LANES. */
INLINE vf load(ls_dtype type, const void *p, size_t i, size_t n)
{
    if (type == LS_F32) return vload_f32((const float *)p + i, n);
    if (type == LS_BF16) return vfrom_bf16(vload_16((const uint16_t *)p + i, n));
    return vfrom_f16(vload_16((const uint16_t *)p + i, n));
}

INLINE void store(ls_dtype type, void *p, size_t i, size_t n, vf x)
{
    if (type == LS_F32)
        vstore_f32((float *)p + i, n, x);
    else if (type == LS_BF16)
        vstore_16((uint16_t *)p + i, n, vto_bf16(x));
    else
        vstore_16((uint16_t *)p + i, n, vto_f16(x));
}

INLINE float load_one(ls_dtype type, const void *p, size_t i)
{
    if (type == LS_F32) return ((const float *)p)[i];
    return type == LS_BF16 ? ls_bf16_to_f32(((const uint16_t *)p)[i]) : ls_f16_to_f32(((const uint16_t *)p)[i]);
}

INLINE void store_one(ls_dtype type, void *p, size_t i, float x)
{
    if (type == LS_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = type == LS_BF16 ? ls_f32_to_bf16(x) : ls_f32_to_f16(x);
}

INLINE float vsum(vf x) /* halves added until one is left */
{
    float lane[LANES];

    memcpy(lane, &x, sizeof lane);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

INLINE double vdsum(vd x)
{
    double lane[LANES / 2];

    memcpy(lane, &x, sizeof lane);
    for (int half = LANES / 4; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

INLINE float vlargest(vf x)
{
    float lane[LANES];

    memcpy(lane, &x, sizeof lane);
    float most = lane[0];
    for (int i = 1; i < LANES; i++) most = lane[i] > most ? lane[i] : most;
    return most;
}

INLINE vf vkeep(vf x, size_t n, float rest) /* the first n lanes of x, rest in the others */
{
    float lane[LANES];

    if (n == LANES) return x;
    memcpy(lane, &x, sizeof lane);
    for (size_t i = n; i < LANES; i++) lane[i] = rest;
    return load(LS_F32, lane, 0, LANES);
}

/* For accepts(): the operands that the vector kernels support. */
INLINE bool is_fast_type(ls_dtype t) { return t == LS_F32 || t == LS_BF16 || t == LS_F16; }
INLINE bool is_plain(const struct view *v) { return view_is_contiguous(v) && is_fast_type(v->dtype); }
INLINE bool is_f32(const struct view *v) { return view_is_contiguous(v) && v->dtype == LS_F32; }
INLINE bool is_i32(const struct view *v) { return view_is_contiguous(v) && v->dtype == LS_I32; }

/* Minimum number of elements for another thread. */
enum { GRAIN = 16384 };
INLINE size_t row_grain(size_t C) { return C >= GRAIN ? 1 : GRAIN / MAX(C, (size_t)1); }

#define SIMD_ROW(id, accepting, bytes, function)                                                                               \
    {                                                                                                                          \
        .op = OP_##id, .name = SIMD_NAME, .device = "cpu", .priority = SIMD_PRIORITY, .isa = SIMD_LEVEL, .accepts = accepting, \
        .scratch = bytes, .run = function                                                                                      \
    }

#endif
