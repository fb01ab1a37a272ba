/* test_base_threads.c - parallel loops: each index once, grain, thread numbers, tasks of a thread that is held up, nesting, order,
 * simultaneous callers, forks, assumed teams. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
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
                assert_in_range(a.calls, MIN(blocks, 1), threads == 1 ? MIN(blocks, 1) : blocks);
                threads_each(n, grain, mark, &b);
                check_cover(&b);
                assert_int_equal(b.calls, threads == 1 ? MIN(blocks, 1) : blocks);
            }
    }
}

/* Ends of ranges: one bit per index. */
static void note(void *ctx, size_t begin, size_t end, int thread)
{
    atomic_ullong *ends = ctx;

    (void)begin;
    (void)thread;
    atomic_fetch_or(&ends[end / 64], 1ULL << end % 64);
}

static void ranges_repeat(void **state)
{
    atomic_ullong first[4] = { 0 };

    (void)state;
    threads_set(3);
    threads_for(200, 2, note, first);
    for (int i = 0; i < 200; i++) {
        atomic_ullong again[4] = { 0 };

        threads_for(200, 2, note, again);
        assert_memory_equal(&again, &first, sizeof first);
    }
}

struct held {
    atomic_int begun, free;
    size_t tasks;
};

/* The first task ends only after all others: other threads must take the tasks of the thread that runs it. */
static void hold(void *ctx, size_t begin, size_t end, int thread)
{
    struct held *h = ctx;

    (void)thread;
    if (atomic_fetch_add(&h->begun, 1) > 0) {
        atomic_fetch_add(&h->free, (int)(end - begin));
        return;
    }
    while ((size_t)atomic_load(&h->free) < h->tasks - 1) sched_yield();
}

static void a_thread_that_is_held_up_keeps_one_task_only(void **state)
{
    (void)state;
    threads_set(3);
    for (int i = 0; i < 100; i++) {
        struct held h = { .tasks = 60 };

        threads_each(h.tasks, 1, hold, &h);
        assert_int_equal(h.begun, 60);
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

/* Each thread's loops are complete, whether the team or the caller alone ran them. */
static void *callers_loops(void *arg)
{
    int64_t sum = 0;

    (void)arg;
    for (int i = 0; i < 200; i++) {
        int64_t sums[16 * 4] = { 0 };

        threads_for(1000, 10, range_add, sums);
        for (int k = 0; k < 4; k++) sum += sums[k * 16];
    }
    return (void *)(intptr_t)(sum == 200 * 499500);
}

static void two_callers_at_once(void **state)
{
    pthread_t other;
    void *right;

    (void)state;
    threads_set(4);
    assert_int_equal(pthread_create(&other, NULL, callers_loops, NULL), 0);
    assert_non_null(callers_loops(NULL));
    assert_int_equal(pthread_join(other, &right), 0);
    assert_non_null(right);
}

static void teams_grow_and_shrink(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct cover c = { .n = 100, .grain = 3, .threads = 1 + i * 7 % 5 };

        threads_set(c.threads);
        threads_each(c.n, c.grain, mark, &c);
        check_cover(&c);
    }
}

static void wait_for_two(void *ctx, size_t begin, size_t end, int thread)
{
    atomic_int *met = ctx;

    (void)begin;
    (void)end;
    (void)thread;
    atomic_fetch_add(met, 1);
    while (atomic_load(met) < 2) sched_yield(); /* would never end if one thread ran both tasks */
}

/* The child of a process with a running team starts a team of its own, in which two threads must run at the same time. */
static void a_forked_child_has_its_own_team(void **state)
{
    int64_t sums[16 * 4] = { 0 };
    int status;

    (void)state;
    threads_set(4);
    threads_for(1000, 10, range_add, sums);
    pid_t child = fork();
    if (child == 0) {
        atomic_int met = 0;

        alarm(60);
        threads_each(2, 1, wait_for_two, &met);
        _exit(met == 2 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void *count_elsewhere(void *out)
{
    *(int *)out = threads_count();
    return NULL;
}

/* What a thread assumes is its own: other threads, and the team, know nothing of it. */
static void assumed_threads_are_of_one_thread(void **state)
{
    struct cover alone = { .n = 60, .grain = 1, .threads = 1 }, team = { .n = 60, .grain = 1, .threads = 3 };
    pthread_t other;
    int count = 0;

    (void)state;
    threads_set(3);
    assert_int_equal(threads_assume(7), 0);
    assert_int_equal(threads_count(), 7);
    assert_int_equal(pthread_create(&other, NULL, count_elsewhere, &count), 0);
    pthread_join(other, NULL);
    assert_int_equal(count, 3);
    threads_each(alone.n, alone.grain, mark, &alone);
    check_cover(&alone);
    assert_int_equal(alone.calls, 1);
    assert_int_equal(threads_assume(0), 7);
    assert_int_equal(threads_count(), 3);
    threads_each(team.n, team.grain, mark, &team);
    check_cover(&team);
    assert_int_equal(team.calls, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_cover_every_index_once),
        cmocka_unit_test(ranges_repeat),
        cmocka_unit_test(a_thread_that_is_held_up_keeps_one_task_only),
        cmocka_unit_test(nested_calls_run_on_the_caller),
        cmocka_unit_test(join_orders_memory),
        cmocka_unit_test(two_callers_at_once),
        cmocka_unit_test(teams_grow_and_shrink),
        cmocka_unit_test(zero_threads_means_all_cores),
        cmocka_unit_test(assumed_threads_are_of_one_thread),
        cmocka_unit_test(a_forked_child_has_its_own_team),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
