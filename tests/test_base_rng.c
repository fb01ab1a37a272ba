/* test_base_rng.c - random numbers: published vectors, the documented layout, distributions, permutations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/rng.h"

/* Random123's known answers for philox4x32 with 10 rounds. */
static void philox_matches_published_vectors(void **state)
{
    static const struct { uint32_t counter[4], key[2], out[4]; } cases[] = {
        { { 0 }, { 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u }, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint32_t out[4];

        rng_philox(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void stream_ids_are_fnv1a(void **state)
{
    (void)state;
    assert_true(rng_stream("") == 0xcbf29ce484222325u);
    assert_true(rng_stream("a") == 0xaf63dc4c8601ec8cu);
    assert_true(rng_stream("foobar") == 0x85944171f73967e8u);
}

static void numbers_follow_the_counter_layout(void **state)
{
    const uint64_t seed = 0x1122334455667788u, stream = 0x99aabbccddeeff00u, block = 0x500000003u;
    const uint32_t counter[4] = { 3, 5, 0xddeeff00u, 0x99aabbccu }, key[2] = { 0x55667788u, 0x11223344u };
    uint32_t w[4];

    (void)state;
    rng_philox(counter, key, w);
    for (uint64_t i = 0; i < 4; i++) assert_int_equal(rng_u32(seed, stream, block * 4 + i), w[i]);
    for (uint64_t i = 0; i < 2; i++) {
        uint64_t bits = (uint64_t)(w[2 * i] >> 5) << 26 | w[2 * i + 1] >> 6;

        assert_true(rng_uniform(seed, stream, block * 2 + i) == (double)bits * 0x1p-53);
    }
    double u = rng_uniform(seed, stream, block * 2), v = rng_uniform(seed, stream, block * 2 + 1);
    double x = rng_normal(seed, stream, block * 2), y = rng_normal(seed, stream, block * 2 + 1);
    assert_true(fabs(x * x + y * y + 2 * log(1 - u)) < 1e-12);
    assert_true(fabs(atan2(y, x) - (v <= 0.5 ? v : v - 1) * 2 * acos(-1)) < 1e-12);
}

static void mean_and_variance_are_right(void **state)
{
    enum { N = 200000 };
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n4 = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(7, 1, i), x = rng_normal(7, 2, i);

        assert_true(u >= 0 && u < 1);
        u1 += u, u2 += u * u, n1 += x, n2 += x * x, n4 += x * x * x * x;
    }
    /* Five standard errors of each mean. */
    assert_true(fabs(u1 / N - 0.5) < 5 * 0.2887 / sqrt(N));
    assert_true(fabs(u2 / N - 1.0 / 3) < 5 * 0.2981 / sqrt(N));
    assert_true(fabs(n1 / N) < 5 / sqrt(N));
    assert_true(fabs(n2 / N - 1) < 5 * sqrt(2) / sqrt(N));
    assert_true(fabs(n4 / N - 3) < 5 * sqrt(96) / sqrt(N));
}

static void seeds_and_streams_differ(void **state)
{
    (void)state;
    assert_int_not_equal(rng_u32(1, 1, 0), rng_u32(2, 1, 0));
    assert_int_not_equal(rng_u32(1, 1, 0), rng_u32(1, 2, 0));
    assert_int_not_equal(rng_u32(1ull << 32, 1, 0), rng_u32(0, 1, 0));
    assert_int_not_equal(rng_u32(1, 1ull << 32, 0), rng_u32(1, 0, 0));
    assert_int_not_equal(rng_u32(1, 1, 1ull << 34), rng_u32(1, 1, 0));
}

static void permutations_are_bijections(void **state)
{
    static const uint64_t sizes[] = { 1, 2, 3, 4, 5, 63, 64, 65, 100, 255, 256, 257, 1000, 4096, 4097, 10000 };

    (void)state;
    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            unsigned char *seen = calloc(1, sizes[s]);

            for (uint64_t i = 0; i < sizes[s]; i++) {
                uint64_t to = rng_permute(seed, 9, i, sizes[s]);

                assert_true(to < sizes[s]);
                assert_int_equal(seen[to]++, 0);
            }
            free(seen);
        }
}

/* Huge sets: distinct images inside the set, up to all 64 bits. */
static void huge_permutations_are_bijections(void **state)
{
    static const uint64_t sizes[] = { 1ull << 32, (1ull << 40) + 1, 1ull << 62, (1ull << 63) + 5, UINT64_MAX };

    (void)state;
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        uint64_t to[64];

        for (uint64_t i = 0; i < 64; i++) {
            to[i] = rng_permute(3, 4, i < 32 ? i : sizes[s] - 1 - i, sizes[s]);
            assert_true(to[i] < sizes[s]);
            for (uint64_t j = 0; j < i; j++) assert_true(to[i] != to[j]);
        }
    }
}

/* Each of the 120 orders of five items occurs as often as expected: chi-square with 119 degrees of freedom. */
static void permutations_are_uniform(void **state)
{
    enum { TRIALS = 12000 };
    int counts[3125] = { 0 }, orders = 0;
    double chi = 0;

    (void)state;
    for (uint64_t seed = 0; seed < TRIALS; seed++) {
        int code = 0;

        for (uint64_t i = 0; i < 5; i++) code = code * 5 + (int)rng_permute(seed, 0, i, 5);
        counts[code]++;
    }
    for (int i = 0; i < 3125; i++) {
        double expected = TRIALS / 120.0;

        orders += counts[i] > 0;
        if (counts[i]) chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    assert_int_equal(orders, 120);
    assert_true(chi < 119 + 5 * sqrt(2 * 119));
}

/* The order of data is part of a run's identity: these numbers may never change. */
static void permutation_never_changes(void **state)
{
    static const uint64_t expected[8] = { 36, 774, 614, 7, 299, 541, 974, 914 };

    (void)state;
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(rng_permute(42, rng_stream("data"), i, 1000), expected[i]);
}

static void bulk_normals_equal_single_ones(void **state)
{
    double out[9];

    (void)state;
    for (uint64_t from = 0; from < 4; from++)
        for (size_t n = 0; n <= 9; n++) {
            rng_normals(5, 6, from, n, out);
            for (size_t i = 0; i < n; i++)
                assert_true(out[i] == rng_normal(5, 6, from + i));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bulk_normals_equal_single_ones),
        cmocka_unit_test(philox_matches_published_vectors), cmocka_unit_test(stream_ids_are_fnv1a),
        cmocka_unit_test(numbers_follow_the_counter_layout), cmocka_unit_test(mean_and_variance_are_right),
        cmocka_unit_test(seeds_and_streams_differ),         cmocka_unit_test(permutations_are_bijections),
        cmocka_unit_test(huge_permutations_are_bijections),        cmocka_unit_test(permutations_are_uniform),
        cmocka_unit_test(permutation_never_changes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
