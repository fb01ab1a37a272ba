/* test_base_cores.c - dividing processors among ranks: each processor of the mask is in one share, shares have nearly equal sizes, and the
 * limits of a cgroup are read. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "base/cores.h"

static void usable_cores_are_within_the_mask(void **state)
{
    cpu_set_t before, one;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_in_range(cores_count(), 1, CPU_COUNT(&before));
    int first = 0;
    while (!CPU_ISSET(first, &before)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cores_count(), 1);
    cpu_set_t share[2];
    assert_true(cores_share(1, share));
    assert_true(CPU_EQUAL(&share[0], &one));
    assert_false(cores_share(2, share));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void shares_cover_the_mask_once(void **state)
{
    enum { MOST = 64 };
    cpu_set_t mask, share[MOST];

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    int processors = CPU_COUNT(&mask);
    for (int n = 1; n <= processors && n <= MOST; n++) {
        cpu_set_t all;

        assert_true(cores_share(n, share));
        CPU_ZERO(&all);
        for (int k = 0; k < n; k++) {
            cpu_set_t both;

            assert_true(CPU_COUNT(&share[k]) >= 1);
            CPU_AND(&both, &all, &share[k]);
            assert_int_equal(CPU_COUNT(&both), 0);
            CPU_OR(&all, &all, &share[k]);
        }
        assert_true(CPU_EQUAL(&all, &mask));
    }
}

static void quotas_are_rounded_up(void **state)
{
    (void)state;
    assert_int_equal(cores_quota("150000 100000\n"), 2);
    assert_int_equal(cores_quota("400000 100000\n"), 4);
    assert_int_equal(cores_quota("1000 100000\n"), 1);
    assert_int_equal(cores_quota("max 100000\n"), 0);
    assert_int_equal(cores_quota("-1 100000\n"), 0);
    assert_int_equal(cores_quota("5 0\n"), 0);
    assert_int_equal(cores_quota(""), 0);
}

/* On any processor: plausible cache sizes, and higher levels are not smaller. */
static void caches_grow_with_their_level(void **state)
{
    size_t nearer = 0;

    (void)state;
    for (int level = 1; level <= 4; level++) {
        size_t bytes = cores_cache(level);

        if (bytes == 0) continue;
        assert_in_range(bytes, (size_t)1 << 10, (size_t)1 << 34);
        assert_true(bytes >= nearer);
        assert_int_equal(bytes, cores_cache(level));
        nearer = bytes;
    }
    assert_int_equal(cores_cache(0), 0);
    assert_int_equal(cores_cache(9), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usable_cores_are_within_the_mask),
        cmocka_unit_test(shares_cover_the_mask_once),
        cmocka_unit_test(quotas_are_rounded_up),
        cmocka_unit_test(caches_grow_with_their_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
