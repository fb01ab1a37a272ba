/* test_base_threads.c - parallel loops: each index once, grain, thread numbers, nesting, order, forks. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/log.h"
#include "base/threads.h"

enum { MOST = 200 };

struct cover {
    size_t n, grain;
    int threads;
    atomic_int hits[MOST], calls;
    atomic_bool wrong;
};

static void mark(void *ctx, size_t begin, size_t end, int thread)
{
    struct cover *c = ctx;

    if (begin >= end || end > c->n || thread < 0 || thread >= c->threads || begin % c->grain) c->wrong = true;
    if (end != c->n && end % c->grain) c->wrong = true;
    for (size_t i = begin; i < MIN(end, MOST); i++) atomic_fetch_add(&c->hits[i], 1);
    atomic_fetch_add(&c->calls, 1);
}

static void check_cover(struct cover *c)
{
    assert_false(c->wrong);
    for (size_t i = 0; i < c->n; i++) assert_int_equal(c->hits[i], 1);
}

static void ranges_cover_every_index_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        threads_set(threads);
        assert_int_equal(threads_count(), threads);
        for (size_t n = 0; n <= 70; n += n < 20 ? 1 : 7)
            for (size_t grain = 1; grain <= 40; grain += grain < 6 ? 1 : 11) {
                struct cover a = { .n = n, .grain = grain, .threads = threads }, b = { .n = n, .grain = grain, .threads = threads };

                threads_for(n, grain, mark, &a);
                check_cover(&a);
                size_t blocks = (n + grain - 1) / grain;
                assert_int_equal(a.calls, MIN(blocks, (size_t)threads));
                threads_each(n, grain, mark, &b);
                check_cover(&b);
            }
    }
}

struct split { size_t begin[8], end[8]; };

static void note(void *ctx, size_t begin, size_t end, int thread)
{
    struct split *s = ctx;

    s->begin[thread] = begin;
    s->end[thread] = end;
}

static void split_is_deterministic(void **state)
{
    struct split first = { 0 };

    (void)state;
    threads_set(3);
    threads_for(100, 7, note, &first);
    assert_int_equal(first.end[0], 35);
    assert_int_equal(first.begin[1], 35);
    assert_int_equal(first.end[1], 70);
    assert_int_equal(first.end[2], 100);
    for (int i = 0; i < 20; i++) {
        struct split again = { 0 };

        threads_for(100, 7, note, &again);
        assert_memory_equal(&again, &first, sizeof first);
    }
}

static void inner(void *ctx, size_t begin, size_t end, int thread)
{
    int *calls = ctx;

    if (begin == 0 && end == 50 && thread == 0) ++*calls;
}

static void outer(void *ctx, size_t begin, size_t end, int thread)
{
    atomic_int *whole = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        int calls = 0;

        threads_for(50, 1, inner, &calls);
        threads_each(50, 1, inner, &calls);
        atomic_fetch_add(whole, calls);
    }
}

static void nested_calls_run_on_the_caller(void **state)
{
    atomic_int whole = 0;

    (void)state;
    threads_set(4);
    threads_for(16, 1, outer, &whole);
    assert_int_equal(whole, 32);
}

static void range_add(void *ctx, size_t begin, size_t end, int thread)
{
    int64_t *sums = ctx;

    for (size_t i = begin; i < end; i++) sums[thread * 16] += (int64_t)i;
}

/* Plain memory, written by one loop and read by the next: the join orders it (ThreadSanitizer watches). */
static void join_orders_memory(void **state)
{
    int64_t sums[16 * 4] = { 0 }, sum = 0;

    (void)state;
    threads_set(4);
    for (int i = 0; i < 50; i++) {
        threads_for(1000, 10, range_add, sums);
        threads_each(1000, 10, range_add, sums);
    }
    for (int i = 0; i < 4; i++) sum += sums[i * 16];
    assert_int_equal(sum, 100 * 499500);
}

static void zero_threads_means_all_cores(void **state)
{
    (void)state;
    threads_set(0);
    assert_in_range(threads_count(), 1, 4096);
}

/* The child of a process whose team was at work computes, on one thread, instead of waiting for ever. */
static void forked_child_runs_on_one_thread(void **state)
{
    int64_t sums[16 * 4] = { 0 };
    int status;

    (void)state;
    threads_set(4);
    threads_for(1000, 10, range_add, sums);
    pid_t child = fork();
    if (child == 0) {
        int64_t mine[16 * 4] = { 0 };

        alarm(60);
        log_set_console(LOG_ERROR);
        threads_set(4);
        threads_for(1000, 10, range_add, mine);
        _exit(mine[0] == 499500 && threads_count() == 1 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_cover_every_index_once),   cmocka_unit_test(split_is_deterministic),
        cmocka_unit_test(nested_calls_run_on_the_caller), cmocka_unit_test(join_orders_memory),
        cmocka_unit_test(zero_threads_means_all_cores),   cmocka_unit_test(forked_child_runs_on_one_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
