/* reduce.c - sums and maxima: the loops of reduce_loops.h for three instruction sets, chosen by processor. */
#include "comm/reduce.h"

#include <immintrin.h>
#include <string.h>
#include "base/base.h"

enum wide { WIDE_SUM, WIDE_MAX, WIDEN, NARROW };

typedef void many_fn(void *dst, const void *const *src, int k, size_t count, ls_redop op, int divide);
typedef void wide_fn(enum wide how, float *f, uint16_t *h, size_t count, float divide);
struct loops {
    many_fn *many[LS_DTYPES];
    wide_fn *wide_bf16, *wide_f16;
};

#define ISA plain
#define TARGET
#define WIDTH 16
#include "comm/reduce_loops.h"
#undef ISA
#undef TARGET
#undef WIDTH

#define ISA    avx2
#define TARGET __attribute__((target("avx2,f16c"))) /* every processor with the first also has the second */
#define WIDTH  32
#include "comm/reduce_loops.h"
#undef ISA
#undef TARGET
#undef WIDTH

#define ISA    avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define WIDTH  64
#include "comm/reduce_loops.h"
#undef ISA
#undef TARGET
#undef WIDTH

static enum reduce_isa most = REDUCE_AVX512;

void reduce_at_most(enum reduce_isa isa) { most = isa; }

static const struct loops *loops(void)
{
    if (most >= REDUCE_AVX512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &loops_avx512;
    return most >= REDUCE_AVX2 && __builtin_cpu_supports("avx2") ? &loops_avx2 : &loops_plain;
}

static void wide(enum wide how, float *f, uint16_t *h, size_t count, ls_dtype type, int divide)
{
    ASSERT(type == LS_BF16 || type == LS_F16);
    (type == LS_BF16 ? loops()->wide_bf16 : loops()->wide_f16)(how, f, h, count, (float)divide);
}

void reduce_into(void *dst, const void *src, size_t count, ls_dtype type, ls_redop op)
{
    const void *both[] = { dst, src };

    loops()->many[type](dst, both, 2, count, op, 1);
}

void reduce_many(void *dst, const void *const *src, int k, size_t count, ls_dtype type, ls_redop op, int divide)
{
    loops()->many[type](dst, src, k, count, op, divide);
}

void reduce_wide(float *dst, const void *src, size_t count, ls_dtype type, ls_redop op)
{
    wide(op == LS_MAX ? WIDE_MAX : WIDE_SUM, dst, (uint16_t *)(uintptr_t)src, count, type, 1);
}

void reduce_widen(float *dst, const void *src, size_t count, ls_dtype type)
{
    wide(WIDEN, dst, (uint16_t *)(uintptr_t)src, count, type, 1);
}

void reduce_narrow(void *dst, const float *src, size_t count, ls_dtype type, int divide)
{
    wide(NARROW, (float *)(uintptr_t)src, dst, count, type, divide);
}

void reduce_divide(void *x, size_t count, ls_dtype type, int divide)
{
    const void *one[] = { x };

    if (divide != 1 && ls_dtype_is_float(type)) loops()->many[type](x, one, 1, count, LS_SUM, divide);
}
