/* test_comm_reduce.c - reduction loops compared with one element at a time, for every type, operator and instruction set; every 16-bit
 * value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/mem.h"
#include "comm/reduce.h"

enum { MOST = 200, SOURCES = 5 };

static uint32_t reduce_seed;
static uint32_t next(void) { return reduce_seed = reduce_seed * 1664525u + 1013904223u; }

/* ---- one element, in the type of its sum ---- */

static float widened(ls_dtype t, uint16_t h) { return t == LS_BF16 ? ls_bf16_to_f32(h) : ls_f16_to_f32(h); }
static uint16_t narrowed(ls_dtype t, float f) { return t == LS_BF16 ? ls_f32_to_bf16(f) : ls_f32_to_f16(f); }

#define JOIN(T, op, a, b) (T)((op) == LS_MAX ? ((b) > (a) || (b) != (b) ? (b) : (a)) : (a) + (b))

/* dst[0] = src[0] op .. / divide at element i. */
static void reference(unsigned char *dst, unsigned char *const *src, int k, size_t i, ls_dtype t, ls_redop op, int divide)
{
#define AT(T, s) ((const T *)(const void *)src[s])[i]
#define SUM(T, W) { W x = (W)AT(T, 0); for (int s = 1; s < k; s++) x = JOIN(W, op, x, (W)AT(T, s)); *(T *)(void *)dst = (T)x; break; }
    switch (t) {
    case LS_BF16:
    case LS_F16: {
        float x = widened(t, AT(uint16_t, 0));
        for (int s = 1; s < k; s++) x = JOIN(float, op, x, widened(t, AT(uint16_t, s)));
        *(uint16_t *)(void *)dst = narrowed(t, divide > 1 ? x / (float)divide : x);
        break;
    }
    case LS_F32: {
        float x = AT(float, 0);
        for (int s = 1; s < k; s++) x = JOIN(float, op, x, AT(float, s));
        *(float *)(void *)dst = divide > 1 ? x / (float)divide : x;
        break;
    }
    case LS_F64: {
        double x = AT(double, 0);
        for (int s = 1; s < k; s++) x = JOIN(double, op, x, AT(double, s));
        *(double *)(void *)dst = divide > 1 ? x / divide : x;
        break;
    }
    case LS_I64: if (op == LS_MAX) SUM(int64_t, int64_t) else SUM(int64_t, uint64_t)
    case LS_I32: if (op == LS_MAX) SUM(int32_t, int32_t) else SUM(int32_t, uint32_t)
    case LS_U16: SUM(uint16_t, uint16_t)
    case LS_U8: SUM(uint8_t, uint8_t)
    case LS_DTYPES: break;
    }
#undef SUM
#undef AT
}

/* Any bits for integers; numbers of all sizes, infinities and NaN for the others. */
static void element_fill(ls_dtype t, void *p, size_t i)
{
    static const float special[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 65504.0f, 1e-7f, 6e-8f, 65519.0f };
    float f = next() % 16 ? ldexpf((float)(int32_t)next(), (int)(next() % 40) - 50) : special[next() % COUNT_OF(special)];
    uint64_t bits = ((uint64_t)next() << 32) ^ (uint64_t)next() ^ (uint64_t)next() >> 9;

    switch (t) {
    case LS_F32: ((float *)p)[i] = f; break;
    case LS_F64: ((double *)p)[i] = f; break;
    case LS_BF16:
    case LS_F16: ((uint16_t *)p)[i] = narrowed(t, f); break;
    default: memcpy((char *)p + i * ls_dtype_bytes(t), &bits, ls_dtype_bytes(t)); break;
    }
}

/* NaN is NaN whatever its bits. */
static bool same(ls_dtype t, const void *a, const void *b)
{
    if (!memcmp(a, b, ls_dtype_bytes(t))) return true;
    if (t == LS_F32) return isnan(*(const float *)a) && isnan(*(const float *)b);
    if (t == LS_F64) return isnan(*(const double *)a) && isnan(*(const double *)b);
    if (t == LS_BF16 || t == LS_F16) return isnan(widened(t, *(const uint16_t *)a)) && isnan(widened(t, *(const uint16_t *)b));
    return false;
}

static void check_many(ls_dtype t, ls_redop op, int k, size_t count, int divide)
{
    size_t size = ls_dtype_bytes(t);
    unsigned char *src[SOURCES], *dst = mem_alloc(MEM_OTHER, count * size + 64), want[8];

    for (int s = 0; s < k; s++) {
        src[s] = mem_alloc(MEM_OTHER, count * size);
        for (size_t i = 0; i < count; i++) element_fill(t, src[s], i);
    }
    memset(dst, 0x5a, count * size + 64);
    reduce_many(dst, (const void *const *)src, k, count, t, op, divide);
    for (size_t i = 0; i < count; i++) {
        reference(want, src, k, i, t, op, divide);
        if (!same(t, want, dst + i * size))
            fail_msg("%s, operator %d, %d sources, divided by %d: element %zu of %zu", ls_dtype_name(t), (int)op, k, divide, i, count);
    }
    for (int i = 0; i < 64; i++) assert_int_equal(dst[count * size + (size_t)i], 0x5a);
    if (k == 2 && divide == 1) {  /* and into the first operand */
        reduce_into(src[0], src[1], count, t, op);
        for (size_t i = 0; i < count; i++) assert_true(same(t, src[0] + i * size, dst + i * size));
    }
    for (int s = 0; s < k; s++) mem_free(src[s]);
    mem_free(dst);
}

static void sums_and_maxima_equal_reference(void **state)
{
    static const size_t counts[] = { 0, 1, 7, 15, 16, 17, 63, 64, 65, 127, MOST };

    (void)state;
    for (int isa = REDUCE_PLAIN; isa <= REDUCE_AVX512; isa++) {
        reduce_at_most((enum reduce_isa)isa);
        reduce_seed = 1;
        for (int t = 0; t < LS_DTYPES; t++)
            for (int op = 0; op < LS_REDOPS; op++)
                for (int k = 1; k <= SOURCES; k++)
                    for (size_t i = 0; i < COUNT_OF(counts); i++) {
                        if (op == LS_AVG && !ls_dtype_is_float((ls_dtype)t)) continue;
                        check_many((ls_dtype)t, (ls_redop)op, k, counts[i], op == LS_AVG ? k : 1);
                    }
    }
}

static void every_half_value_round_trips(void **state)
{
    static const ls_dtype halves[] = { LS_BF16, LS_F16 };
    uint16_t *all = mem_alloc(MEM_OTHER, 65536 * sizeof *all), *back = mem_alloc(MEM_OTHER, 65536 * sizeof *back);
    float *wide = mem_alloc(MEM_OTHER, 65536 * sizeof *wide);

    (void)state;
    for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    for (int isa = REDUCE_PLAIN; isa <= REDUCE_AVX512; isa++)
        for (size_t h = 0; h < COUNT_OF(halves); h++) {
            reduce_at_most((enum reduce_isa)isa);
            reduce_widen(wide, all, 65536, halves[h]);
            reduce_narrow(back, wide, 65536, halves[h], 1);
            for (int i = 0; i < 65536; i++) {
                float want = widened(halves[h], (uint16_t)i);

                assert_true(same(LS_F32, &want, &wide[i]));
                assert_true(same(halves[h], &all[i], &back[i]));
            }
        }
    mem_free(all);
    mem_free(back);
    mem_free(wide);
}

/* Around every midpoint between two neighbors of f16 and bf16, and far outside of them. */
static void rounding_is_to_nearest_even(void **state)
{
    static const ls_dtype halves[] = { LS_BF16, LS_F16 };
    enum { N = 1 << 16 };
    float *x = mem_alloc(MEM_OTHER, N * sizeof *x);
    uint16_t *got = mem_alloc(MEM_OTHER, N * sizeof *got);

    (void)state;
    for (int isa = REDUCE_PLAIN; isa <= REDUCE_AVX512; isa++)
        for (uint32_t part = 0; part < 64; part++) {
            reduce_at_most((enum reduce_isa)isa);
            for (uint32_t i = 0; i < N; i++) {
                uint32_t low[] = { 0, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x7fff, 0x8000, 0x8001, 0xffff };
                uint32_t bits = (i << 16) + low[(part + i) % COUNT_OF(low)] + (part << 11);

                memcpy(&x[i], &bits, sizeof bits);
            }
            for (size_t h = 0; h < COUNT_OF(halves); h++) {
                reduce_narrow(got, x, N, halves[h], 1);
                for (uint32_t i = 0; i < N; i++) {
                    uint16_t want = narrowed(halves[h], x[i]);

                    if (!same(halves[h], &want, &got[i]))
                        fail_msg("%a as %s: %04x, not %04x", (double)x[i], ls_dtype_name(halves[h]), got[i], want);
                }
            }
        }
    mem_free(x);
    mem_free(got);
}

/* Wide sums of half types: one rounding at the end gives what reduce_many gives. */
static void wide_sums_round_once(void **state)
{
    static const ls_dtype halves[] = { LS_BF16, LS_F16 };
    uint16_t src[3][MOST], one[MOST], two[MOST];
    const void *all[] = { src[0], src[1], src[2] };
    float wide[MOST];

    (void)state;
    reduce_seed = 3;
    for (int isa = REDUCE_PLAIN; isa <= REDUCE_AVX512; isa++)
        for (size_t h = 0; h < COUNT_OF(halves); h++)
            for (int op = 0; op < LS_REDOPS; op++) {
                int divide = op == LS_AVG ? 3 : 1;

                reduce_at_most((enum reduce_isa)isa);
                for (int s = 0; s < 3; s++)
                    for (size_t i = 0; i < MOST; i++) element_fill(halves[h], src[s], i);
                reduce_widen(wide, src[0], MOST, halves[h]);
                reduce_wide(wide, src[1], MOST, halves[h], (ls_redop)op);
                reduce_wide(wide, src[2], MOST, halves[h], (ls_redop)op);
                reduce_narrow(two, wide, MOST, halves[h], divide);
                reduce_many(one, all, 3, MOST, halves[h], (ls_redop)op, divide);
                for (size_t i = 0; i < MOST; i++) assert_true(same(halves[h], &one[i], &two[i]));
                reduce_divide(wide, MOST, LS_F32, divide);
                reduce_narrow(two, wide, MOST, halves[h], 1);
                for (size_t i = 0; i < MOST; i++) assert_true(same(halves[h], &one[i], &two[i]));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_maxima_equal_reference),
        cmocka_unit_test(every_half_value_round_trips),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(wide_sums_round_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
