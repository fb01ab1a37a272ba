/* reduce_loops.h - the loops of reduce.c for one instruction set: included once for each, with
 *     ISA      in the names: plain, avx2, avx512
 *     TARGET   attribute of its functions
 *     WIDTH    bytes of a vector: 16, 32, 64
 * Sums of a round of four vectors stay in registers over all sources. A last vector may be partly filled: what is past the
 * end reads as 0 and is not written.
 */
#define NAME__(a, b) a##_##b
#define NAME_(a, b)  NAME__(a, b)
#define NAME(a)      NAME_(a, ISA)
#define INLINE       TARGET static inline __attribute__((always_inline, unused))

#define f32v  NAME(f32v)
#define f64v  NAME(f64v)
#define i64v  NAME(i64v)
#define u64v  NAME(u64v)
#define i32v  NAME(i32v)
#define u32v  NAME(u32v)
#define u16v  NAME(u16v)
#define u8v   NAME(u8v)
#define halfv NAME(halfv)

typedef float f32v __attribute__((vector_size(WIDTH)));
typedef double f64v __attribute__((vector_size(WIDTH)));
typedef int64_t i64v __attribute__((vector_size(WIDTH)));
typedef uint64_t u64v __attribute__((vector_size(WIDTH)));
typedef int32_t i32v __attribute__((vector_size(WIDTH)));
typedef uint32_t u32v __attribute__((vector_size(WIDTH)));
typedef uint16_t u16v __attribute__((vector_size(WIDTH)));
typedef uint8_t u8v __attribute__((vector_size(WIDTH)));
typedef uint16_t halfv __attribute__((vector_size(WIDTH / 2))); /* as many as f32v has */

/* Bits of a where mask is set, else of b. */
#define PICK(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

/* ---- half types: bf16 is the upper half of an f32; f16 by the processor, or by integer arithmetic where it cannot ---- */

#if WIDTH == 64
INLINE void NAME(widen_words)(u32v *out, const halfv *h) { *out = (u32v)_mm512_cvtepu16_epi32((__m256i)*h); }
INLINE void NAME(narrow_words)(halfv *out, const u32v *x) { *out = (halfv)_mm512_cvtepi32_epi16((__m512i)*x); }
INLINE void NAME(widen_f16)(f32v *out, const halfv *h) { *out = (f32v)_mm512_cvtph_ps((__m256i)*h); }
INLINE void NAME(narrow_f16)(halfv *out, const f32v *x) { *out = (halfv)_mm512_cvtps_ph((__m512)*x, _MM_FROUND_TO_NEAREST_INT); }
#elif WIDTH == 32
INLINE void NAME(widen_words)(u32v *out, const halfv *h) { *out = (u32v)_mm256_cvtepu16_epi32((__m128i)*h); }
INLINE void NAME(narrow_words)(halfv *out, const u32v *x)
{
    __m256i packed = _mm256_packus_epi32((__m256i)*x, (__m256i)*x);

    *out = (halfv)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
INLINE void NAME(widen_f16)(f32v *out, const halfv *h) { *out = (f32v)_mm256_cvtph_ps((__m128i)*h); }
INLINE void NAME(narrow_f16)(halfv *out, const f32v *x) { *out = (halfv)_mm256_cvtps_ph((__m256)*x, _MM_FROUND_TO_NEAREST_INT); }
#else
INLINE void NAME(widen_words)(u32v *out, const halfv *h) { *out = __builtin_convertvector(*h, u32v); }
INLINE void NAME(narrow_words)(halfv *out, const u32v *x) { *out = __builtin_convertvector(*x, halfv); }

INLINE void NAME(widen_f16)(f32v *out, const halfv *h)
{
    u32v u;

    NAME(widen_words)(&u, h);
    u32v body = (u & 0x7fff) << 13;
    u32v special = (u32v)((u & 0x7c00) == 0x7c00);
    u32v scaled = (u32v)((f32v)body * 0x1p112f);
    *out = (f32v)(PICK(special, body | 0x7f800000, scaled) | (u & 0x8000) << 16);
}

INLINE void NAME(narrow_f16)(halfv *out, const f32v *x)
{
    u32v u = (u32v)*x, sign = (u & 0x80000000u) >> 16, body = u & 0x7fffffff;
    u32v normal = (body - (112u << 23) + 0xfff + ((body >> 13) & 1)) >> 13;
    u32v small = (u32v)((f32v)body + 0.5f) - 0x3f000000; /* 0.5 has its last bit where the subnormals of f16 have theirs */
    u32v nan = (u32v)((i32v)body > 0x7f800000), r = PICK((u32v)((i32v)body < (113 << 23)), small, normal);

    r = PICK((u32v)((i32v)body >= (143 << 23)), (nan & 0x200) | 0x7c00, r) | sign;
    NAME(narrow_words)(out, &r);
}
#endif

INLINE void NAME(widen_bf16)(f32v *out, const halfv *h)
{
    u32v u;

    NAME(widen_words)(&u, h);
    *out = (f32v)(u << 16);
}

INLINE void NAME(narrow_bf16)(halfv *out, const f32v *x)
{
    u32v u = (u32v)*x, rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    u32v nan = (u32v)((i32v)(u & 0x7fffffff) > 0x7f800000), r = PICK(nan, (u >> 16) | 0x40, rounded);

    NAME(narrow_words)(out, &r);
}

/* ---- loads and stores of one vector, whole and in part ---- */

#define PLAIN_ACCESS(T, S, V)                                                                    \
    INLINE void NAME(get_##T)(V * v, const S *p) { memcpy(v, p, sizeof *v); }                    \
    INLINE void NAME(put_##T)(S * p, const V *v) { memcpy(p, v, sizeof *v); }                    \
    INLINE void NAME(put_some_##T)(S * p, const V *v, size_t n) { memcpy(p, v, n * sizeof *p); } \
    INLINE void NAME(get_some_##T)(V * v, const S *p, size_t n)                                  \
    {                                                                                            \
        memset(v, 0, sizeof *v);                                                                 \
        memcpy(v, p, n * sizeof *p);                                                             \
    }
PLAIN_ACCESS(f32, float, f32v)
PLAIN_ACCESS(f64, double, f64v)
PLAIN_ACCESS(i64, int64_t, i64v)
PLAIN_ACCESS(i32, int32_t, i32v)
PLAIN_ACCESS(u16, uint16_t, u16v)
PLAIN_ACCESS(u8, uint8_t, u8v)
PLAIN_ACCESS(half, uint16_t, halfv)

#define HALF_ACCESS(T)                                                    \
    INLINE void NAME(get_##T)(f32v * v, const uint16_t *p)                \
    {                                                                     \
        halfv h;                                                          \
                                                                          \
        NAME(get_half)(&h, p);                                            \
        NAME(widen_##T)(v, &h);                                           \
    }                                                                     \
    INLINE void NAME(get_some_##T)(f32v * v, const uint16_t *p, size_t n) \
    {                                                                     \
        halfv h;                                                          \
                                                                          \
        NAME(get_some_half)(&h, p, n);                                    \
        NAME(widen_##T)(v, &h);                                           \
    }                                                                     \
    INLINE void NAME(put_##T)(uint16_t * p, const f32v *v)                \
    {                                                                     \
        halfv h;                                                          \
                                                                          \
        NAME(narrow_##T)(&h, v);                                          \
        NAME(put_half)(p, &h);                                            \
    }                                                                     \
    INLINE void NAME(put_some_##T)(uint16_t * p, const f32v *v, size_t n) \
    {                                                                     \
        halfv h;                                                          \
                                                                          \
        NAME(narrow_##T)(&h, v);                                          \
        NAME(put_some_half)(p, &h, n);                                    \
    }
HALF_ACCESS(bf16)
HALF_ACCESS(f16)

/* ---- dst = (src[0] op .. op src[k - 1]) / divide ---- */

/* a op b on vectors V whose comparisons are vectors of M; sums are of U, where V could overflow. A NaN wins. */
#define JOIN(V, M, U, a, b, max) ((max) ? (V)PICK((M)(((b) > (a)) | ((b) != (b))), (M)(b), (M)(a)) : (V)((U)(a) + (U)(b)))
#define SHARE(a, divide) \
    if ((divide) != 1) (a) = (a) / (divide)
#define WHOLE(a, divide) (void)(divide)

/* S: element in memory, A: of a sum, SHARED: how a sum is divided. */
#define MANY(T, S, A, V, M, U, SHARED)                                                                                      \
    INLINE void NAME(round_##T)(S * dst, const void *const *src, size_t at, int k, bool max, int divide)                    \
    {                                                                                                                       \
        enum { N = sizeof(V) / sizeof(A) };                                                                                 \
        const S *p = (const S *)src[0] + at;                                                                                \
        V a, b, c, d, x;                                                                                                    \
                                                                                                                            \
        NAME(get_##T)(&a, p), NAME(get_##T)(&b, p + N), NAME(get_##T)(&c, p + 2 * N), NAME(get_##T)(&d, p + 3 * N);         \
        for (int s = 1; s < k; s++) {                                                                                       \
            p = (const S *)src[s] + at;                                                                                     \
            NAME(get_##T)(&x, p), a = JOIN(V, M, U, a, x, max);                                                             \
            NAME(get_##T)(&x, p + N), b = JOIN(V, M, U, b, x, max);                                                         \
            NAME(get_##T)(&x, p + 2 * N), c = JOIN(V, M, U, c, x, max);                                                     \
            NAME(get_##T)(&x, p + 3 * N), d = JOIN(V, M, U, d, x, max);                                                     \
        }                                                                                                                   \
        SHARED(a, (A)divide);                                                                                               \
        SHARED(b, (A)divide);                                                                                               \
        SHARED(c, (A)divide);                                                                                               \
        SHARED(d, (A)divide);                                                                                               \
        dst += at;                                                                                                          \
        NAME(put_##T)(dst, &a), NAME(put_##T)(dst + N, &b), NAME(put_##T)(dst + 2 * N, &c), NAME(put_##T)(dst + 3 * N, &d); \
    }                                                                                                                       \
    INLINE void NAME(rest_##T)(S * dst, const void *const *src, size_t at, int k, size_t n, bool max, int divide)           \
    {                                                                                                                       \
        V a, x;                                                                                                             \
                                                                                                                            \
        NAME(get_some_##T)(&a, (const S *)src[0] + at, n);                                                                  \
        for (int s = 1; s < k; s++) NAME(get_some_##T)(&x, (const S *)src[s] + at, n), a = JOIN(V, M, U, a, x, max);        \
        SHARED(a, (A)divide);                                                                                               \
        NAME(put_some_##T)(dst + at, &a, n);                                                                                \
    }                                                                                                                       \
    INLINE void NAME(all_##T)(S * dst, const void *const *src, int k, size_t count, bool max, int divide)                   \
    {                                                                                                                       \
        size_t N = sizeof(V) / sizeof(A), at = 0;                                                                           \
                                                                                                                            \
        for (; at + 4 * N <= count; at += 4 * N) NAME(round_##T)(dst, src, at, k, max, divide);                             \
        for (; at < count; at += N) NAME(rest_##T)(dst, src, at, k, MIN(count - at, N), max, divide);                       \
    }                                                                                                                       \
    TARGET static void NAME(many_##T)(void *dst, const void *const *src, int k, size_t count, ls_redop op, int divide)      \
    {                                                                                                                       \
        if (op == LS_MAX)                                                                                                   \
            NAME(all_##T)(dst, src, k, count, true, 1);                                                                     \
        else if (divide != 1)                                                                                               \
            NAME(all_##T)(dst, src, k, count, false, divide);                                                               \
        else if (k == 2)                                                                                                    \
            NAME(all_##T)(dst, src, 2, count, false, 1);                                                                    \
        else                                                                                                                \
            NAME(all_##T)(dst, src, k, count, false, 1);                                                                    \
    }
MANY(f32, float, float, f32v, i32v, f32v, SHARE)
MANY(bf16, uint16_t, float, f32v, i32v, f32v, SHARE)
MANY(f16, uint16_t, float, f32v, i32v, f32v, SHARE)
MANY(f64, double, double, f64v, i64v, f64v, SHARE)
MANY(i64, int64_t, int64_t, i64v, i64v, u64v, WHOLE)
MANY(i32, int32_t, int32_t, i32v, i32v, u32v, WHOLE)
MANY(u16, uint16_t, uint16_t, u16v, u16v, u16v, WHOLE)
MANY(u8, uint8_t, uint8_t, u8v, u8v, u8v, WHOLE)

/* ---- f32 beside a half type ---- */

#define WIDE(T)                                                                                         \
    INLINE void NAME(wide_some_##T)(enum wide how, float *f, uint16_t *h, size_t n, float divide)       \
    {                                                                                                   \
        bool full = n == sizeof(f32v) / sizeof(float);                                                  \
        f32v a, b;                                                                                      \
                                                                                                        \
        if (how != WIDEN && full)                                                                       \
            NAME(get_f32)(&a, f);                                                                       \
        else if (how != WIDEN)                                                                          \
            NAME(get_some_f32)(&a, f, n);                                                               \
        if (how != NARROW && full)                                                                      \
            NAME(get_##T)(&b, h);                                                                       \
        else if (how != NARROW)                                                                         \
            NAME(get_some_##T)(&b, h, n);                                                               \
        if (how == WIDE_SUM || how == WIDE_MAX) b = JOIN(f32v, i32v, f32v, a, b, how == WIDE_MAX);      \
        if (how == NARROW) SHARE(a, divide);                                                            \
        if (how == NARROW && full)                                                                      \
            NAME(put_##T)(h, &a);                                                                       \
        else if (how == NARROW)                                                                         \
            NAME(put_some_##T)(h, &a, n);                                                               \
        else if (full)                                                                                  \
            NAME(put_f32)(f, &b);                                                                       \
        else                                                                                            \
            NAME(put_some_f32)(f, &b, n);                                                               \
    }                                                                                                   \
    INLINE void NAME(wide_all_##T)(enum wide how, float *f, uint16_t *h, size_t count, float divide)    \
    {                                                                                                   \
        size_t N = sizeof(f32v) / sizeof(float), at = 0;                                                \
                                                                                                        \
        for (; at + N <= count; at += N) NAME(wide_some_##T)(how, f + at, h + at, N, divide);           \
        if (at < count) NAME(wide_some_##T)(how, f + at, h + at, count - at, divide);                   \
    }                                                                                                   \
    TARGET static void NAME(wide_##T)(enum wide how, float *f, uint16_t *h, size_t count, float divide) \
    {                                                                                                   \
        switch (how) {                                                                                  \
        case WIDE_SUM: NAME(wide_all_##T)(WIDE_SUM, f, h, count, 1); break;                             \
        case WIDE_MAX: NAME(wide_all_##T)(WIDE_MAX, f, h, count, 1); break;                             \
        case WIDEN: NAME(wide_all_##T)(WIDEN, f, h, count, 1); break;                                   \
        case NARROW: NAME(wide_all_##T)(NARROW, f, h, count, divide); break;                            \
        }                                                                                               \
    }
WIDE(bf16)
WIDE(f16)

static const struct loops NAME(loops) = {
    .many = { [LS_F32] = NAME(many_f32),
              [LS_BF16] = NAME(many_bf16),
              [LS_F16] = NAME(many_f16),
              [LS_F64] = NAME(many_f64),
              [LS_I64] = NAME(many_i64),
              [LS_I32] = NAME(many_i32),
              [LS_U16] = NAME(many_u16),
              [LS_U8] = NAME(many_u8) },
    .wide_bf16 = NAME(wide_bf16),
    .wide_f16 = NAME(wide_f16),
};

#undef f32v
#undef f64v
#undef i64v
#undef u64v
#undef i32v
#undef u32v
#undef u16v
#undef u8v
#undef halfv
#undef NAME__
#undef NAME_
#undef NAME
#undef INLINE
#undef PICK
#undef PLAIN_ACCESS
#undef HALF_ACCESS
#undef JOIN
#undef SHARE
#undef WHOLE
#undef MANY
#undef WIDE
