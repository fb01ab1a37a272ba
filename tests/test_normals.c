/* test_normals.c - the vectors' normally distributed numbers have the bits of the plain ones after rounding, and an error well within the
 * margin that guarantees it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/rng.h"
#include "helper_check.h"
#include "kernels/cpu/normals.h"
#include "kernels/kernel.h"
#include "lockstep/dtype.h"

enum { COUNT = 1 << 16, ROUNDS = 48 };

static const enum isa sets[] = { ISA_ANY, ISA_AVX2, ISA_AVX512 };

struct numbers {
    double plain[COUNT], fast[COUNT];
    float plain_f32[COUNT], fast_f32[COUNT];
    uint16_t plain_half[COUNT], fast_half[COUNT];
};

static void plain_numbers(uint64_t seed, uint64_t from, size_t n, double scale, double *out)
{
    for (size_t i = 0; i < n; i++) out[i] = rng_normal(seed, 77, from + i) * scale;
}

static void check_rounded(struct numbers *x, size_t n, ls_dtype half)
{
    ls_convert(x->plain_half, half, x->plain, LS_F64, n);
    ls_convert(x->fast_half, half, x->fast, LS_F64, n);
    assert_memory_equal(x->plain_half, x->fast_half, n * sizeof *x->plain_half);
}

/* The largest difference of the doubles, in units in the last place. */
static double largest_error(const struct numbers *x, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++)
        if (x->plain[i] != 0) {
            int exponent;

            frexp(x->plain[i], &exponent);
            most = fmax(most, fabs(x->fast[i] - x->plain[i]) / ldexp(1, exponent - 53));
        }
    return most;
}

/* Three million numbers of each instruction set and scale; the smallest scale gives subnormal halves. */
static void rounded_bits_are_the_same(void **state)
{
    static const double scales[] = { 0.02, 0.02 / 4.898979485566356, 1, 3e-6 };
    struct numbers *x = malloc(sizeof *x);

    (void)state;
    assert_non_null(x);
    for (size_t k = 0; k < COUNT_OF(sets); k++) {
        isa_cap(sets[k]);
        for (uint64_t round = 0; round < ROUNDS; round++) {
            double scale = scales[round % COUNT_OF(scales)];
            uint64_t from = round * COUNT + ((uint64_t)1 << 33) * (round % 3), seed = 5 + round / 8;

            plain_numbers(seed, from, COUNT, scale, x->plain);
            normals(seed, 77, from, COUNT, scale, x->fast);
            ls_convert(x->plain_f32, LS_F32, x->plain, LS_F64, COUNT);
            ls_convert(x->fast_f32, LS_F32, x->fast, LS_F64, COUNT);
            assert_memory_equal(x->plain_f32, x->fast_f32, sizeof x->plain_f32);
            check_rounded(x, COUNT, LS_BF16);
            check_rounded(x, COUNT, LS_F16);
            assert_true(largest_error(x, COUNT) <= NORMALS_MARGIN / 16);
            if (sets[k] == ISA_ANY) assert_memory_equal(x->plain, x->fast, sizeof x->plain);
        }
    }
    isa_cap(ISAS);
    free(x);
}

/* Any first index and count: the numbers do not depend on how they are put together. */
static void ranges_are_parts_of_one(void **state)
{
    enum { MOST = 70 };
    double all[2 * MOST], some[MOST + 1];

    (void)state;
    for (size_t k = 0; k < COUNT_OF(sets); k++) {
        isa_cap(sets[k]);
        normals(3, 9, 0, 2 * MOST, 0.5, all);
        for (size_t from = 0; from < 40; from++)
            for (size_t n = 0; n <= MOST; n++) {
                some[n] = -1;
                normals(3, 9, from, n, 0.5, some);
                assert_memory_equal(some, all + from, n * sizeof *some);
                assert_true(some[n] == -1);
            }
    }
    isa_cap(ISAS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounded_bits_are_the_same),
        cmocka_unit_test(ranges_are_parts_of_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
