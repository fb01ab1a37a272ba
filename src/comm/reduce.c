/* reduce.c - the loops of reduce.h, in vectors of 64 bytes, compiled for three instruction sets; the processor chooses.
 *
 * Half types are widened and rounded by integer arithmetic, which every instruction set has: bf16 is the upper half of an
 * f32; f16 is shifted into place and multiplied by 2^112, and rounded by an addition that lets the processor round.
 */
#include "comm/reduce.h"

#include <string.h>
#include "base/base.h"

#define INLINE static inline __attribute__((always_inline, unused))

typedef float    f32v __attribute__((vector_size(64)));
typedef double   f64v __attribute__((vector_size(64)));
typedef int64_t  i64v __attribute__((vector_size(64)));
typedef int32_t  i32v __attribute__((vector_size(64)));
typedef uint32_t u32v __attribute__((vector_size(64)));
typedef uint16_t u16v __attribute__((vector_size(64)));
typedef uint8_t  u8v  __attribute__((vector_size(64)));
typedef uint16_t halfv __attribute__((vector_size(32)));

enum { ROUND = 4 };  /* vectors of a round */

/* Bits of a where mask is set, else of b. */
#define PICK(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

/* ---- half types ---- */

INLINE void widen_bf16(f32v *out, const halfv *h) { *out = (f32v)(__builtin_convertvector(*h, u32v) << 16); }

INLINE void narrow_bf16(halfv *out, const f32v *x)
{
    u32v u = (u32v)*x, rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    u32v nan = (u32v)((i32v)(u & 0x7fffffff) > 0x7f800000);

    *out = __builtin_convertvector(PICK(nan, (u >> 16) | 0x40, rounded), halfv);
}

INLINE void widen_f16(f32v *out, const halfv *h)
{
    u32v u = __builtin_convertvector(*h, u32v), body = (u & 0x7fff) << 13;
    u32v special = (u32v)((u & 0x7c00) == 0x7c00), scaled = (u32v)((f32v)body * 0x1p112f);

    *out = (f32v)(PICK(special, body | 0x7f800000, scaled) | (u & 0x8000) << 16);
}

INLINE void narrow_f16(halfv *out, const f32v *x)
{
    u32v u = (u32v)*x, sign = (u & 0x80000000u) >> 16, body = u & 0x7fffffff;
    u32v normal = (body - (112u << 23) + 0xfff + ((body >> 13) & 1)) >> 13;
    u32v small = (u32v)((f32v)body + 0.5f) - 0x3f000000;  /* 0.5 has its last bit where the subnormals of f16 have theirs */
    u32v special = PICK((u32v)((i32v)body > 0x7f800000), (body & 0) + 0x7e00, (body & 0) + 0x7c00);
    u32v r = PICK((u32v)((i32v)body < (113 << 23)), small, normal);

    r = PICK((u32v)((i32v)body >= (143 << 23)), special, r);
    *out = __builtin_convertvector(r | sign, halfv);
}

/* ---- loads and stores of up to one vector: n elements, all of them in the common case ---- */

#define PLAIN_ACCESS(name, T, V)                                                                                   \
    INLINE void get_##name(V *v, const T *p, size_t n)                                                             \
    {                                                                                                              \
        if (n == sizeof *v / sizeof *p) {                                                                          \
            memcpy(v, p, sizeof *v);                                                                               \
        } else {                                                                                                   \
            memset(v, 0, sizeof *v);                                                                               \
            memcpy(v, p, n * sizeof *p);                                                                           \
        }                                                                                                          \
    }                                                                                                              \
    INLINE void put_##name(T *p, const V *v, size_t n)                                                             \
    {                                                                                                              \
        if (n == sizeof *v / sizeof *p) memcpy(p, v, sizeof *v);                                                   \
        else memcpy(p, v, n * sizeof *p);                                                                          \
    }
PLAIN_ACCESS(f32, float, f32v)
PLAIN_ACCESS(f64, double, f64v)
PLAIN_ACCESS(i64, int64_t, i64v)
PLAIN_ACCESS(i32, int32_t, i32v)
PLAIN_ACCESS(u16, uint16_t, u16v)
PLAIN_ACCESS(u8, uint8_t, u8v)
PLAIN_ACCESS(half, uint16_t, halfv)

#define HALF_ACCESS(name)                                                                                          \
    INLINE void get_##name(f32v *v, const uint16_t *p, size_t n)                                                   \
    {                                                                                                              \
        halfv h;                                                                                                   \
                                                                                                                   \
        get_half(&h, p, n);                                                                                        \
        widen_##name(v, &h);                                                                                       \
    }                                                                                                              \
    INLINE void put_##name(uint16_t *p, const f32v *v, size_t n)                                                   \
    {                                                                                                              \
        halfv h;                                                                                                   \
                                                                                                                   \
        narrow_##name(&h, v);                                                                                      \
        put_half(p, &h, n);                                                                                        \
    }
HALF_ACCESS(bf16)
HALF_ACCESS(f16)

/* ---- one round of up to ROUND vectors, then all rounds ---- */

/* a = a op b on vectors V whose comparisons are vectors of M. A NaN wins. */
#define JOIN(V, M, a, b, max) ((max) ? (V)PICK((M)(((b) > (a)) | ((b) != (b))), (M)(b), (M)(a)) : (a) + (b))

/* many_T: dst = (src[0] op .. op src[k - 1]) / divide. S: element in memory, V: vector of sums, M: of masks, N: its lanes. */
#define MANY(T, S, V, M, N, DIVIDED)                                                                               \
    INLINE void many_round_##T(S *dst, const void *const *src, size_t at, int k, size_t n, bool max, int divide)  \
    {                                                                                                              \
        V sum[ROUND], x;                                                                                           \
        size_t vectors = (n + (N)-1) / (N), last = n - (vectors - 1) * (N);                                        \
                                                                                                                   \
        for (size_t v = 0; v < vectors; v++) get_##T(&sum[v], (const S *)src[0] + at + v * (N), v + 1 < vectors ? (N) : last); \
        for (int s = 1; s < k; s++)                                                                                \
            for (size_t v = 0; v < vectors; v++) {                                                                 \
                get_##T(&x, (const S *)src[s] + at + v * (N), v + 1 < vectors ? (N) : last);                       \
                sum[v] = JOIN(V, M, sum[v], x, max);                                                               \
            }                                                                                                      \
        for (size_t v = 0; v < vectors; v++) {                                                                     \
            DIVIDED;                                                                                               \
            put_##T(dst + at + v * (N), &sum[v], v + 1 < vectors ? (N) : last);                                    \
        }                                                                                                          \
    }                                                                                                              \
    INLINE void many_all_##T(S *dst, const void *const *src, int k, size_t count, bool max, int divide)           \
    {                                                                                                              \
        size_t at = 0;                                                                                             \
                                                                                                                   \
        for (; at + ROUND * (N) <= count; at += ROUND * (N)) many_round_##T(dst, src, at, k, ROUND * (N), max, divide); \
        for (; at < count; at += (N)) many_round_##T(dst, src, at, k, MIN(count - at, (size_t)(N)), max, divide);  \
    }                                                                                                              \
    INLINE void many_##T(S *dst, const void *const *src, int k, size_t count, ls_redop op, int divide)             \
    {                                                                                                              \
        if (op == LS_MAX) many_all_##T(dst, src, k, count, true, 1);                                               \
        else if (divide == 1) many_all_##T(dst, src, k, count, false, 1);                                          \
        else many_all_##T(dst, src, k, count, false, divide);                                                      \
    }
#define DIVIDE_F32 if (divide != 1) sum[v] = sum[v] / (float)divide
#define DIVIDE_F64 if (divide != 1) sum[v] = sum[v] / (double)divide
#define DIVIDE_NONE (void)divide
MANY(f32, float, f32v, i32v, 16, DIVIDE_F32)
MANY(bf16, uint16_t, f32v, i32v, 16, DIVIDE_F32)
MANY(f16, uint16_t, f32v, i32v, 16, DIVIDE_F32)
MANY(f64, double, f64v, i64v, 8, DIVIDE_F64)
MANY(i64, int64_t, i64v, i64v, 8, DIVIDE_NONE)
MANY(i32, int32_t, i32v, i32v, 16, DIVIDE_NONE)
MANY(u16, uint16_t, u16v, u16v, 32, DIVIDE_NONE)
MANY(u8, uint8_t, u8v, u8v, 64, DIVIDE_NONE)

INLINE void many(void *dst, const void *const *src, int k, size_t count, ls_dtype type, ls_redop op, int divide)
{
    switch (type) {
    case LS_F32: many_f32(dst, src, k, count, op, divide); break;
    case LS_BF16: many_bf16(dst, src, k, count, op, divide); break;
    case LS_F16: many_f16(dst, src, k, count, op, divide); break;
    case LS_F64: many_f64(dst, src, k, count, op, divide); break;
    case LS_I64: many_i64(dst, src, k, count, op, 1); break;
    case LS_I32: many_i32(dst, src, k, count, op, 1); break;
    case LS_U16: many_u16(dst, src, k, count, op, 1); break;
    case LS_U8: many_u8(dst, src, k, count, op, 1); break;
    case LS_DTYPES: break;
    }
}

/* ---- f32 beside a half type ---- */

enum wide { WIDE_JOIN, WIDE_MAX, WIDEN, NARROW };

#define WIDE(T)                                                                                                    \
    INLINE void wide_##T(enum wide how, float *f, uint16_t *h, size_t count, int divide)                           \
    {                                                                                                              \
        f32v a, b;                                                                                                 \
                                                                                                                   \
        for (size_t at = 0; at < count; at += 16) {                                                                \
            size_t n = MIN(count - at, (size_t)16);                                                                \
                                                                                                                   \
            if (how != WIDEN) get_f32(&a, f + at, n);                                                              \
            if (how != NARROW) get_##T(&b, h + at, n);                                                             \
            if (how == WIDE_JOIN || how == WIDE_MAX) b = JOIN(f32v, i32v, a, b, how == WIDE_MAX);                  \
            if (how == NARROW && divide != 1) a = a / (float)divide;                                               \
            if (how == NARROW) put_##T(h + at, &a, n);                                                             \
            else put_f32(f + at, &b, n);                                                                           \
        }                                                                                                          \
    }                                                                                                              \
    INLINE void wide_each_##T(enum wide how, float *f, uint16_t *h, size_t count, int divide)                      \
    {                                                                                                              \
        if (how == WIDE_JOIN) wide_##T(WIDE_JOIN, f, h, count, 1);                                                 \
        if (how == WIDE_MAX) wide_##T(WIDE_MAX, f, h, count, 1);                                                   \
        if (how == WIDEN) wide_##T(WIDEN, f, h, count, 1);                                                         \
        if (how == NARROW) wide_##T(NARROW, f, h, count, divide);                                                  \
    }
WIDE(bf16)
WIDE(f16)

/* ---- instruction sets ---- */

struct loops {
    void (*many)(void *dst, const void *const *src, int k, size_t count, ls_dtype type, ls_redop op, int divide);
    void (*wide)(enum wide how, float *f, uint16_t *h, size_t count, ls_dtype type, int divide);
};

#define LOOPS(isa, TARGET)                                                                                         \
    TARGET static void many_##isa(void *dst, const void *const *src, int k, size_t count, ls_dtype type, ls_redop op, int divide) \
    {                                                                                                              \
        many(dst, src, k, count, type, op, divide);                                                                \
    }                                                                                                              \
    TARGET static void wide_##isa(enum wide how, float *f, uint16_t *h, size_t count, ls_dtype type, int divide)   \
    {                                                                                                              \
        if (type == LS_BF16) wide_each_bf16(how, f, h, count, divide);                                             \
        else wide_each_f16(how, f, h, count, divide);                                                              \
    }                                                                                                              \
    static const struct loops loops_##isa = { many_##isa, wide_##isa };
LOOPS(plain, )
LOOPS(avx2, __attribute__((target("avx2"))))
LOOPS(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))))

static enum reduce_isa most = REDUCE_AVX512;

void reduce_at_most(enum reduce_isa isa) { most = isa; }

static const struct loops *loops(void)
{
    if (most >= REDUCE_AVX512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &loops_avx512;
    return most >= REDUCE_AVX2 && __builtin_cpu_supports("avx2") ? &loops_avx2 : &loops_plain;
}

/* ---- what others call ---- */

void reduce_into(void *dst, const void *src, size_t count, ls_dtype type, ls_redop op)
{
    const void *both[] = { dst, src };

    loops()->many(dst, both, 2, count, type, op, 1);
}

void reduce_many(void *dst, const void *const *src, int k, size_t count, ls_dtype type, ls_redop op, int divide)
{
    loops()->many(dst, src, k, count, type, op, divide);
}

void reduce_wide(float *dst, const void *src, size_t count, ls_dtype type, ls_redop op)
{
    loops()->wide(op == LS_MAX ? WIDE_MAX : WIDE_JOIN, dst, (uint16_t *)(uintptr_t)src, count, type, 1);
}

void reduce_widen(float *dst, const void *src, size_t count, ls_dtype type)
{
    loops()->wide(WIDEN, dst, (uint16_t *)(uintptr_t)src, count, type, 1);
}

void reduce_narrow(void *dst, const float *src, size_t count, ls_dtype type, int divide)
{
    loops()->wide(NARROW, (float *)(uintptr_t)src, dst, count, type, divide);
}

void reduce_divide(void *x, size_t count, ls_dtype type, int divide)
{
    const void *one[] = { x };

    if (divide != 1 && ls_dtype_is_float(type)) loops()->many(x, one, 1, count, type, LS_SUM, divide);
}
