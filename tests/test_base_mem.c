/* test_base_mem.c - the memory ledger: alignment, counts, peaks, the limit, injected failures, many threads at once. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/mem.h"
#include "train/faults/fault_points.h"

static struct mem_stats base_mem_now(void)
{
    struct mem_stats s;

    mem_read(&s);
    return s;
}

static void blocks_are_aligned_and_counted(void **state)
{
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 4096, (4 << 20) - 64, 4 << 20, (6 << 20) + 5 };
    struct mem_stats before = base_mem_now();

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        unsigned char *p = mem_alloc(MEM_GRADIENTS, sizes[i]);

        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(p, 0xa5, sizes[i]);
        assert_int_equal(base_mem_now().now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS], sizes[i]);
        assert_int_equal(base_mem_now().total_now - before.total_now, sizes[i]);
        mem_free(p);
        assert_int_equal(base_mem_now().now[MEM_GRADIENTS], before.now[MEM_GRADIENTS]);
    }
    assert_int_equal(base_mem_now().calls - before.calls, COUNT_OF(sizes));
    mem_free(NULL);
}

static void peak_follows_the_sum(void **state)
{
    (void)state;
    mem_reset_peak();
    size_t held = base_mem_now().total_now;
    void *a = mem_alloc(MEM_PARAMETERS, 1000), *b = mem_alloc(MEM_ACTIVATIONS, 500);
    mem_free(a);
    void *c = mem_alloc(MEM_PARAMETERS, 800);

    assert_int_equal(base_mem_now().peak[MEM_PARAMETERS], 1000);
    assert_int_equal(base_mem_now().peak[MEM_ACTIVATIONS], 500);
    assert_int_equal(base_mem_now().total_peak, held + 1500);
    mem_free(b);
    mem_reset_peak();
    assert_int_equal(base_mem_now().peak[MEM_PARAMETERS], 800);
    assert_int_equal(base_mem_now().peak[MEM_ACTIVATIONS], 0);
    assert_int_equal(base_mem_now().total_peak, held + 800);
    mem_free(c);
}

static void arrays_are_zero_and_do_not_overflow(void **state)
{
    (void)state;
    unsigned char *p = mem_array(MEM_OTHER, 300, 7);
    for (int i = 0; i < 2100; i++) assert_int_equal(p[i], 0);
    mem_free(p);
    assert_null(mem_array(MEM_OTHER, SIZE_MAX / 2, 3));
    assert_non_null(strstr(ls_errmsg(), "items of 3 bytes"));
    assert_null(mem_alloc(MEM_OTHER, SIZE_MAX));
    assert_null(mem_alloc(MEM_OTHER, SIZE_MAX - 64));
    assert_null(mem_alloc(MEM_OTHER, PTRDIFF_MAX));
    assert_non_null(strstr(ls_errmsg(), "no address space"));
}

#if defined(__SANITIZE_ADDRESS__)
#define BASE_MEM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BASE_MEM_ASAN 1
#endif
#endif

/* How many of the block's whole pages are resident. */
static size_t resident_pages(unsigned char *p, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = (page - (uintptr_t)p % page) % page, pages = (bytes - skip) / page, n = 0;
    unsigned char *in = test_malloc(pages);

    assert_int_equal(mincore(p + skip, pages * page, in), 0);
    for (size_t i = 0; i < pages; i++) n += in[i] & 1;
    test_free(in);
    return n;
}

static void large_zeroed_blocks_are_resident_where_touched(void **state)
{
    enum { BYTES = (24 << 20) + 5, HUGE = 2 << 20 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE), held = base_mem_now().total_now;

    (void)state;
    for (int round = 0; round < 3; round++) {
        unsigned char *p = mem_zalloc(MEM_PARAMETERS, BYTES);

        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_int_equal(base_mem_now().total_now - held, BYTES);
#ifndef BASE_MEM_ASAN /* under it, all pages are touched */
        assert_true(resident_pages(p, BYTES) <= HUGE / page);
#endif
        for (size_t i = 0; i < BYTES; i++)
            if (p[i]) fail_msg("byte %zu is not zero", i);
        memset(p, 0xa5, BYTES);
        assert_true(resident_pages(p, BYTES) >= (BYTES - 2 * page) / page);
        mem_free(p);
        assert_int_equal(base_mem_now().total_now, held);
    }
    unsigned char *p = mem_zalloc(MEM_PARAMETERS, BYTES);
    p[BYTES - 1] = 7;
    p = mem_resize(p, BYTES + 100);
    assert_int_equal(p[BYTES - 1], 7);
    mem_free(p);
}

static void resizing_keeps_contents_and_category(void **state)
{
    (void)state;
    size_t before = base_mem_now().now[MEM_OPTIMIZER];
    char *p = mem_alloc(MEM_OPTIMIZER, 10);
    memcpy(p, "123456789", 10);
    p = mem_resize(p, 100000);
    assert_string_equal(p, "123456789");
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_int_equal(base_mem_now().now[MEM_OPTIMIZER] - before, 100000);
    p = mem_resize(p, 4);
    assert_memory_equal(p, "1234", 4);
    mem_fail_at(1);
    assert_null(mem_resize(p, 1000));
    assert_memory_equal(p, "1234", 4);
    mem_free(p);
    assert_int_equal(base_mem_now().now[MEM_OPTIMIZER], before);
    size_t other = base_mem_now().now[MEM_OTHER];
    p = mem_resize(NULL, 12);
    assert_int_equal(base_mem_now().now[MEM_OTHER] - other, 12);
    mem_free(p);
    p = mem_strdup("copy");
    assert_string_equal(p, "copy");
    mem_free(p);
}

static void allocation_beyond_the_limit_fails_cleanly(void **state)
{
    (void)state;
    void *most = mem_alloc(MEM_ACTIVATIONS, 1 << 20);
    mem_set_limit(base_mem_now().total_now + 100);
    void *fits = mem_alloc(MEM_OTHER, 100);
    assert_non_null(fits);
    mem_free(fits);
    struct mem_stats before = base_mem_now();
    assert_null(mem_alloc(MEM_PARAMETERS, 101));
    assert_non_null(strstr(ls_errmsg(), "101 bytes needed for parameters"));
    assert_non_null(strstr(ls_errmsg(), "most is in activations: 1048576 bytes"));
    assert_non_null(strstr(ls_errmsg(), "limit "));
    assert_int_equal(base_mem_now().total_now, before.total_now);
    assert_int_equal(base_mem_now().now[MEM_PARAMETERS], before.now[MEM_PARAMETERS]);
    mem_set_limit(0);
    mem_free(most);
}

static void chosen_allocation_fails(void **state)
{
    (void)state;
    mem_fail_at(3);
    void *a = mem_alloc(MEM_OTHER, 1), *b = mem_zalloc(MEM_OTHER, 1), *c = mem_array(MEM_OTHER, 1, 1), *d = mem_strdup("");
    assert_non_null(a);
    assert_non_null(b);
    assert_null(c);
    assert_non_null(d);
    mem_free(a), mem_free(b), mem_free(d);
}

static void category_names_are_those_of_metrics(void **state)
{
    static const char *const names[] = { "parameters", "gradients", "optimizer", "activations", "communication", "offload", "other" };

    (void)state;
    assert_int_equal(COUNT_OF(names), MEM_CATEGORIES);
    for (int i = 0; i < MEM_CATEGORIES; i++) assert_string_equal(mem_category_name((enum mem_category)i), names[i]);
}

static void external_bytes_are_counted_and_limited(void **state)
{
    struct mem_stats before = base_mem_now();

    (void)state;
    assert_int_equal(mem_take(MEM_OFFLOAD, 1000), LS_OK);
    assert_int_equal(base_mem_now().now[MEM_OFFLOAD] - before.now[MEM_OFFLOAD], 1000);
    assert_int_equal(base_mem_now().total_now - before.total_now, 1000);
    assert_int_equal(base_mem_now().calls - before.calls, 1);
    mem_set_limit(base_mem_now().total_now + 10);
    assert_int_equal(mem_take(MEM_PARAMETERS, 11), LS_ENOMEM);
    assert_non_null(strstr(ls_errmsg(), "11 bytes needed for parameters"));
    assert_int_equal(mem_take(MEM_PARAMETERS, 10), LS_OK);
    mem_set_limit(0);
    mem_fail_at(1);
    assert_int_equal(mem_take(MEM_OTHER, 1), LS_ENOMEM);
    assert_int_equal(mem_take(MEM_OTHER, SIZE_MAX), LS_ENOMEM);
    mem_give(MEM_PARAMETERS, 10);
    mem_give(MEM_OFFLOAD, 1000);
    assert_int_equal(base_mem_now().total_now, before.total_now);
    assert_int_equal(base_mem_now().now[MEM_OFFLOAD], before.now[MEM_OFFLOAD]);
}

/* A device's bytes have a separate limit, and do not count against the host's. */
static void device_bytes_have_their_own_limit(void **state)
{
    struct mem_stats before = base_mem_now();
    void *p;

    (void)state;
    mem_set_device_limit(1000);
    mem_set_limit(before.total_now + 500);
    mem_reset_peak();
    assert_int_equal(mem_device_limit(), 1000);
    assert_int_equal(mem_take_device(MEM_PARAMETERS, 900), LS_OK);
    assert_int_equal(mem_take_device(MEM_GRADIENTS, 101), LS_ENOMEM);
    assert_non_null(strstr(ls_errmsg(), "101 bytes needed for gradients"));
    assert_non_null(strstr(ls_errmsg(), "limit 1000 of the device's memory"));
    assert_non_null(p = mem_alloc(MEM_PARAMETERS, 500));
    assert_null(mem_alloc(MEM_PARAMETERS, 1));
    assert_int_equal(mem_take_device(MEM_GRADIENTS, 100), LS_OK);
    assert_int_equal(base_mem_now().total_now - before.total_now, 1500);
    assert_int_equal(base_mem_now().now[MEM_PARAMETERS] - before.now[MEM_PARAMETERS], 1400);
    mem_give_device(MEM_PARAMETERS, 900);
    mem_give_device(MEM_GRADIENTS, 100);
    mem_free(p);
    assert_int_equal(base_mem_now().total_now, before.total_now);
    assert_int_equal(base_mem_now().host_peak, before.total_now + 500); /* host and device are counted separately */
    assert_int_equal(base_mem_now().device_peak, 1000);
    mem_reset_peak();
    assert_int_equal(base_mem_now().device_peak, 0);
    assert_int_equal(mem_take_device(MEM_PARAMETERS, 1000), LS_OK);
    mem_give_device(MEM_PARAMETERS, 1000);
    mem_set_limit(0);
    mem_set_device_limit(0);
}

static void *churn(void *arg)
{
    enum mem_category c = *(enum mem_category *)arg;

    for (size_t i = 0; i < 5000; i++) {
        void *a = mem_alloc(c, i % 97), *b = mem_alloc(MEM_OTHER, 3);
        mem_free(a), mem_free(b);
    }
    return NULL;
}

static void counts_are_exact_across_threads(void **state)
{
    enum mem_category c[4] = { MEM_PARAMETERS, MEM_GRADIENTS, MEM_OPTIMIZER, MEM_PARAMETERS };
    pthread_t t[4];
    struct mem_stats before = base_mem_now();

    (void)state;
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, churn, &c[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    struct mem_stats after = base_mem_now();
    assert_memory_equal(after.now, before.now, sizeof after.now);
    assert_int_equal(after.total_now, before.total_now);
    assert_int_equal(after.calls - before.calls, 4 * 5000 * 2);
}

/* Holds bytes while the test's thread does. */
static void *hold_beside(void *unused)
{
    (void)unused;
    mem_thread_begin();
    mem_free(mem_alloc(MEM_OTHER, 5000));
    assert_int_equal(mem_thread_peak(MEM_OTHER), 5000);
    return mem_alloc(MEM_OTHER, 7000);
}

static void a_threads_peak_is_its_own(void **state)
{
    void *before = mem_alloc(MEM_OTHER, 100), *left;
    pthread_t t;

    (void)state;
    mem_thread_begin();
    assert_int_equal(mem_thread_peak(MEM_OTHER), 0);
    void *a = mem_alloc(MEM_OTHER, 300);
    void *b = mem_alloc(MEM_PARAMETERS, 50);
    assert_int_equal(pthread_create(&t, NULL, hold_beside, NULL), 0);
    pthread_join(t, &left);
    mem_free(a);
    a = mem_alloc(MEM_OTHER, 200);
    assert_int_equal(mem_thread_peak(MEM_OTHER), 300);
    assert_int_equal(mem_thread_peak(MEM_PARAMETERS), 50);
    assert_int_equal(mem_thread_peak(MEM_GRADIENTS), 0);
    mem_free(before); /* allocated before mem_thread_begin(): 100 bytes less than then are held */
    mem_free(a);
    a = mem_alloc(MEM_OTHER, 350);
    assert_int_equal(mem_thread_peak(MEM_OTHER), 300);
    mem_free(a), mem_free(b), mem_free(left);
}

/* Pages that grow hold no second copy, and count the requested bytes. */
static void pages_grow_within_the_limit(void **state)
{
    enum { PAGES = 4 << 20 };

    (void)state;
    mem_reset_peak();
    size_t before = base_mem_now().total_now;
    mem_set_limit(before + PAGES);
    char *p = mem_pages_resize(MEM_OTHER, NULL, 0, PAGES / 2);
    assert_non_null(p);
    memset(p, 7, PAGES / 2);
    p = mem_pages_resize(MEM_OTHER, p, PAGES / 2, PAGES);
    assert_non_null(p);
    assert_int_equal(p[PAGES / 2 - 1], 7);
    assert_int_equal(p[PAGES - 1], 0);
    assert_null(mem_pages_resize(MEM_OTHER, p, PAGES, PAGES + 1));
    assert_int_equal(mem_failed_largest(), MEM_OTHER);
    assert_int_equal(base_mem_now().total_peak, before + PAGES);
    p = mem_pages_resize(MEM_OTHER, p, PAGES, 10);
    assert_int_equal(p[9], 7);
    assert_int_equal(base_mem_now().total_now, before + 10);
    assert_null(mem_pages_resize(MEM_OTHER, p, 10, 0));
    assert_int_equal(base_mem_now().total_now, before);
    mem_set_limit(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_counted),   cmocka_unit_test(peak_follows_the_sum),
        cmocka_unit_test(arrays_are_zero_and_do_not_overflow), cmocka_unit_test(resizing_keeps_contents_and_category),
        cmocka_unit_test(allocation_beyond_the_limit_fails_cleanly),     cmocka_unit_test(chosen_allocation_fails),
        cmocka_unit_test(category_names_are_those_of_metrics),
        cmocka_unit_test(external_bytes_are_counted_and_limited),
        cmocka_unit_test(device_bytes_have_their_own_limit),
        cmocka_unit_test(counts_are_exact_across_threads),
        cmocka_unit_test(a_threads_peak_is_its_own),
        cmocka_unit_test(large_zeroed_blocks_are_resident_where_touched),
        cmocka_unit_test(pages_grow_within_the_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
