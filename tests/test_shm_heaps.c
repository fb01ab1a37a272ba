/* test_shm_heaps.c - the shared heaps: sizes under limits, pages returned to the system, frees in any order. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/transports/shm/shm_link.h"
#include "helper_shm.h"

/* ---- rendezvous ---- */

/* Under limits there is less heap, or a clear refusal; never a crash. */
static void open_limited(int rank, int n, const char *where)
{
    struct region *s = NULL;

    (void)rank, (void)n, (void)where;
    for (rlim_t mb = 4096; mb >= 16; mb /= 4) {
        SHM_TRY(setrlimit(RLIMIT_AS, &(struct rlimit){ mb << 20, mb << 20 }));
        ls_status st = region_create(2, &s);
        SHM_CHECK(st == LS_OK || (st == LS_ENOMEM && strlen(ls_errmsg()) > 0));
        if (mb == 4096) SHM_CHECK(st == LS_OK && s->control->heap_bytes >= SHM_HUGE);
        region_close(&s);
    }
}

static void address_limits_shrink_the_heaps(void **state)
{
    struct shm_job j = { 0 };

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();  /* the sanitizer itself needs terabytes of addresses */
#endif

    shm_job_start_at(&j, 1, "", open_limited);  /* no region of the parent's counts as the child's */
    shm_job_finish(&j);
}

/* ---- heaps ---- */

static size_t bytes_of_region(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return (size_t)st.st_blocks * 512;
}

static void heaps_return_pages(void **state)
{
    struct region *s;
    char where[32];
    struct link *l = NULL;
    size_t big = 32 << 20;

    (void)state;
    assert_int_equal(region_create(1, &s), LS_OK);
    snprintf(where, sizeof where, "fd:%d", region_fd(s));
    assert_int_equal(transport_shm.open(where, 0, 1, SHM_TIMEOUT, &l), LS_OK);
    size_t before = bytes_of_region(region_fd(s));
    assert_true(before < 1 << 20);
    unsigned char *a = transport_shm.alloc(l, big), *b = transport_shm.alloc(l, 100);
    assert_non_null(a);
    assert_non_null(b);
    memset(a, 1, big);
    memset(b, 2, 100);
    assert_true(bytes_of_region(region_fd(s)) >= before + big);
    assert_true(heap_holds(l->region, a, big) && heap_holds(l->region, b, 100) && !heap_holds(l->region, &big, 8));
    transport_shm.free(l, a);
    assert_true(bytes_of_region(region_fd(s)) < before + (1 << 20));
    a = transport_shm.alloc(l, big);
    assert_non_null(a);
    for (size_t i = 0; i < big; i += 4096) assert_int_equal(a[i], 0);
    transport_shm.free(l, a);
    transport_shm.free(l, b);
    assert_null(transport_shm.alloc(l, SIZE_MAX / 2));
    assert_non_null(strstr(ls_errmsg(), "out of shared memory"));
    transport_shm.close(&l);
    region_close(&s);
}

static void heap_survives_frees_in_any_order(void **state)
{
    enum { BLOCKS = 40 };
    struct region *s;
    char where[32];
    struct link *l = NULL;
    struct { unsigned char *at; size_t bytes; } block[BLOCKS] = { 0 };
    unsigned seed = 12345;

    (void)state;
    assert_int_equal(region_create(1, &s), LS_OK);
    snprintf(where, sizeof where, "fd:%d", region_fd(s));
    assert_int_equal(transport_shm.open(where, 0, 1, SHM_TIMEOUT, &l), LS_OK);
    for (int turn = 0; turn < 2000; turn++) {
        int i = rand_r(&seed) % BLOCKS;
        if (block[i].at) {
            for (size_t k = 0; k < block[i].bytes; k += 512) assert_int_equal(block[i].at[k], i + 1);
            transport_shm.free(l, block[i].at);
            block[i].at = NULL;
            continue;
        }
        block[i].bytes = (size_t)(rand_r(&seed) % 60000) + (turn % 50 == 0 ? 5 << 20 : 0);
        block[i].at = transport_shm.alloc(l, block[i].bytes);
        assert_non_null(block[i].at);
        memset(block[i].at, i + 1, block[i].bytes);
    }
    for (int i = 0; i < BLOCKS; i++) if (block[i].at) transport_shm.free(l, block[i].at);
    assert_int_equal(l->region->heap.n, 2);  /* the link's area and one free extent */
    transport_shm.close(&l);
    region_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_limits_shrink_the_heaps),
        cmocka_unit_test(heaps_return_pages),
        cmocka_unit_test(heap_survives_frees_in_any_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
