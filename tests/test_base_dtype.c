/* test_base_dtype.c - element types: the table, every 16-bit value, rounding against a slow reference, conversions between every pair. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/rng.h"
#include "lockstep/dtype.h"

/* The value of a small float, by its definition. */
static double half_value(uint16_t h, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = h >> mantissa_bits & ((1 << exponent_bits) - 1);
    double mantissa = h & ((1 << mantissa_bits) - 1), sign = h >> 15 ? -1 : 1;

    if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/* Round to nearest even by the definition: x in units of the last place, through rint(). */
static uint16_t half_round(double x, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, exponent;
    uint16_t sign = signbit(x) ? 0x8000 : 0, infinity = (uint16_t)(((1 << exponent_bits) - 1) << mantissa_bits);

    x = fabs(x);
    if (isinf(x)) return sign | infinity;
    if (x == 0) return sign;
    frexp(x, &exponent);
    exponent = MAX(exponent - 1, 1 - bias);
    double units = rint(ldexp(x, mantissa_bits - exponent));  /* a carry moves into the exponent by itself */
    double code = units + ldexp(exponent + bias - 1, mantissa_bits);
    return sign | (code >= infinity ? infinity : (uint16_t)code);
}

static uint16_t bf16_round(double x) { return half_round(x, 8, 7); }
static uint16_t f16_round(double x) { return half_round(x, 5, 10); }

static void type_table_is_right(void **state)
{
    ls_dtype t = LS_U8;

    (void)state;
#define CHECK(id, name, bytes, floating, safetensors)              \
    assert_int_equal(ls_dtype_bytes(LS_##id), bytes);              \
    assert_int_equal(ls_dtype_is_float(LS_##id), floating);        \
    assert_string_equal(ls_dtype_name(LS_##id), name);             \
    assert_string_equal(ls_dtype_safetensors(LS_##id), safetensors); \
    assert_int_equal(ls_dtype_parse(name, &t), 0);                 \
    assert_int_equal(t, LS_##id);                                  \
    assert_int_equal(ls_dtype_parse(safetensors, &t), 0);          \
    assert_int_equal(t, LS_##id);
    LS_DTYPE_MAP(CHECK)
#undef CHECK
    t = LS_F16;
    assert_int_equal(ls_dtype_parse("float", &t), -1);
    assert_int_equal(ls_dtype_parse("", &t), -1);
    assert_int_equal(t, LS_F16);
}

/* All 65536 of each: the right value, and back to the same bits (NaN to a quiet NaN). */
static void every_half_value_converts(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        double b = half_value(h, 8, 7), f = half_value(h, 5, 10);
        float gb = ls_bf16_to_f32(h), gf = ls_f16_to_f32(h);

        if (isnan(b) ? !isnan(gb) || !isnan(ls_bf16_to_f32(ls_f32_to_bf16(gb)))
                     : gb != b || !signbit(gb) != !signbit(b) || ls_f32_to_bf16(gb) != h) fail_msg("bf16 %04x", h);
        if (isnan(f) ? !isnan(gf) || !isnan(ls_f16_to_f32(ls_f32_to_f16(gf)))
                     : gf != f || !signbit(gf) != !signbit(f) || ls_f32_to_f16(gf) != h) fail_msg("f16 %04x", h);
    }
}

static void check_rounding(float x)
{
    if (ls_f32_to_bf16(x) != bf16_round(x)) fail_msg("bf16 of %a", (double)x);
    if (ls_f32_to_f16(x) != f16_round(x)) fail_msg("f16 of %a", (double)x);
}

/* Between every two neighbors: the middle, and one f32 step to each side of it; then bits at random. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7f80; h++) {
        float low = ls_bf16_to_f32((uint16_t)h), high = h + 1 < 0x7f80 ? ls_bf16_to_f32((uint16_t)(h + 1)) : INFINITY;
        float middle = isinf(high) ? 0x1.ffp127f : low / 2 + high / 2;

        check_rounding(middle), check_rounding(-middle);
        check_rounding(nextafterf(middle, 0)), check_rounding(nextafterf(middle, INFINITY));
    }
    for (uint32_t h = 0; h < 0x7c00; h++) {
        float low = ls_f16_to_f32((uint16_t)h), high = h + 1 < 0x7c00 ? ls_f16_to_f32((uint16_t)(h + 1)) : 65536.0f;
        float middle = (low + high) / 2;

        check_rounding(middle), check_rounding(-middle);
        check_rounding(nextafterf(middle, 0)), check_rounding(nextafterf(middle, INFINITY));
    }
    for (uint64_t i = 0; i < 300000; i++) {
        uint32_t bits = rng_u32(5, 6, i);
        float x;

        memcpy(&x, &bits, sizeof x);
        if (!isnan(x)) check_rounding(x);
    }
    check_rounding(65504), check_rounding(65519.996f), check_rounding(65520), check_rounding(FLT_MAX), check_rounding(INFINITY);
}

/* From f64 and i64 directly to a half type: one rounding, in cases where two would differ. */
static void conversions_round_once(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        /* A half's midpoint, and a step far below what f32 resolves to one side of it. */
        double x = half_value((uint16_t)(0x3c00 + i % 2048), 5, 10) + 0x1p-11 * (1 + (double)(i % 3 == 0)), near[3];
        uint16_t out[3];

        near[0] = x, near[1] = x - 0x1p-40, near[2] = x + 0x1p-40;
        ls_convert(out, LS_F16, near, LS_F64, 3);
        for (int k = 0; k < 3; k++) assert_int_equal(out[k], f16_round(near[k]));
        ls_convert(out, LS_BF16, near, LS_F64, 3);
        for (int k = 0; k < 3; k++) assert_int_equal(out[k], bf16_round(near[k]));
    }
    /* 257 * 2^k is between the bf16 neighbors 128 and 129 * 2^(k + 1). */
    static const int64_t middles[] = { (257ll << 50) + 1, (257ll << 50) - 1, 257ll << 50, 259ll << 50 };
    static const int units[] = { 129, 128, 128, 130 }; /* in units of 2^51 */
    uint16_t out[1];
    for (int k = 0; k < 4; k++) {
        ls_convert(out, LS_BF16, &middles[k], LS_I64, 1);
        assert_true(ls_bf16_to_f32(out[0]) == ldexpf((float)units[k], 51));
    }
    static const int64_t whole[] = { 65519, 65520, -65520, 2049, 2051, 0, INT64_MAX, INT64_MIN };
    for (size_t k = 0; k < COUNT_OF(whole); k++) {
        ls_convert(out, LS_F16, &whole[k], LS_I64, 1);
        assert_int_equal(out[0], f16_round((double)whole[k]));
    }
}

static void integers_saturate_and_truncate(void **state)
{
    static const double from[] = { 1.9, -1.9, 300, -5, NAN, INFINITY, -INFINITY, 1e30, 70000, 255 };
    static const uint8_t u8[] = { 1, 0, 255, 0, 0, 255, 0, 255, 255, 255 };
    static const uint16_t u16[] = { 1, 0, 300, 0, 0, 65535, 0, 65535, 65535, 255 };
    static const int32_t i32[] = { 1, -1, 300, -5, 0, INT32_MAX, INT32_MIN, INT32_MAX, 70000, 255 };
    static const int64_t i64[] = { 1, -1, 300, -5, 0, INT64_MAX, INT64_MIN, INT64_MAX, 70000, 255 };
    unsigned char out[COUNT_OF(from) * 8];
    static const int64_t wide[] = { -1, 0, 255, 256, 65536, INT64_MAX };
    static const uint8_t narrow[] = { 0, 0, 255, 255, 255, 255 };

    (void)state;
    ls_convert(out, LS_U8, from, LS_F64, COUNT_OF(from));
    assert_memory_equal(out, u8, sizeof u8);
    ls_convert(out, LS_U16, from, LS_F64, COUNT_OF(from));
    assert_memory_equal(out, u16, sizeof u16);
    ls_convert(out, LS_I32, from, LS_F64, COUNT_OF(from));
    assert_memory_equal(out, i32, sizeof i32);
    ls_convert(out, LS_I64, from, LS_F64, COUNT_OF(from));
    assert_memory_equal(out, i64, sizeof i64);
    ls_convert(out, LS_U8, wide, LS_I64, COUNT_OF(wide));
    assert_memory_equal(out, narrow, sizeof narrow);
}

/* Small whole numbers pass through every pair of types unchanged; no byte after the last is touched. */
static void every_pair_of_types_converts(void **state)
{
    static const double values[] = { 0, 1, 2, 3, 5, 100, 127, 128 };
    enum { N = COUNT_OF(values) };

    (void)state;
    for (int from = 0; from < LS_DTYPES; from++)
        for (int to = 0; to < LS_DTYPES; to++) {
            double source[N], target[N + 1], back[N];
            size_t bytes = N * ls_dtype_bytes((ls_dtype)to);

            memset(target, 0x5a, sizeof target);
            ls_convert(source, (ls_dtype)from, values, LS_F64, N);
            ls_convert(target, (ls_dtype)to, source, (ls_dtype)from, N);
            for (size_t i = bytes; i < sizeof target; i++) assert_int_equal(((unsigned char *)target)[i], 0x5a);
            ls_convert(back, LS_F64, target, (ls_dtype)to, N);
            assert_memory_equal(back, values, sizeof values);
        }
    ls_convert(NULL, LS_F32, NULL, LS_BF16, 0);
}

static void bulk_conversions_equal_single_ones(void **state)
{
    float from[1000], back[1000];
    uint16_t half[1000];

    (void)state;
    for (uint64_t i = 0; i < 1000; i++) from[i] = (float)(rng_normal(1, 1, i) * 1e3);
    ls_convert(half, LS_BF16, from, LS_F32, 1000);
    ls_convert(back, LS_F32, half, LS_BF16, 1000);
    for (int i = 0; i < 1000; i++) assert_true(half[i] == ls_f32_to_bf16(from[i]) && back[i] == ls_bf16_to_f32(half[i]));
    ls_convert(half, LS_F16, from, LS_F32, 1000);
    ls_convert(back, LS_F32, half, LS_F16, 1000);
    for (int i = 0; i < 1000; i++) assert_true(half[i] == ls_f32_to_f16(from[i]) && back[i] == ls_f16_to_f32(half[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(type_table_is_right),      cmocka_unit_test(every_half_value_converts),
        cmocka_unit_test(rounding_is_to_nearest_even), cmocka_unit_test(conversions_round_once),
        cmocka_unit_test(integers_saturate_and_truncate), cmocka_unit_test(every_pair_of_types_converts),
        cmocka_unit_test(bulk_conversions_equal_single_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
