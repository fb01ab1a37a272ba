/* test_base_tasks.c - each task runs once, in parallel if there are several processors, and the caller gets the failure of the lowest task.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include "base/base.h"
#include "base/cores.h"
#include "base/tasks.h"
#include "helper_check.h"

enum { TASKS = 1000 };

struct counts {
    atomic_int runs[TASKS], total;
    atomic_bool seventh; /* task 7 has run */
};

static ls_status base_tasks_count(void *ctx, int task)
{
    struct counts *c = ctx;

    atomic_fetch_add(&c->runs[task], 1);
    atomic_fetch_add(&c->total, 1);
    return LS_OK;
}

static void each_task_runs_once(void **state)
{
    static struct counts c;

    (void)state;
    for (int n = 0; n <= TASKS; n = n * 3 + 1) {
        memset(&c, 0, sizeof c);
        OK(tasks_run(n, base_tasks_count, &c));
        assert_int_equal(c.total, n);
        for (int i = 0; i < n; i++) assert_int_equal(c.runs[i], 1);
    }
}

/* Both wait until both have begun: a single thread would wait forever. */
static ls_status meet(void *ctx, int task)
{
    struct counts *c = ctx;

    (void)task;
    atomic_fetch_add(&c->total, 1);
    while (atomic_load(&c->total) < 2) sched_yield();
    return LS_OK;
}

static void two_tasks_run_at_once(void **state)
{
    struct counts c = { 0 };

    (void)state;
    if (cores_count() < 2) skip();
    OK(tasks_run(2, meet, &c));
}

/* Task 5 fails after task 7 has. */
static ls_status fail_two(void *ctx, int task)
{
    struct counts *c = ctx;

    atomic_fetch_add(&c->total, 1);
    if (task == 5)
        while (cores_count() > 1 && !atomic_load(&c->seventh)) sched_yield();
    if (task == 7) atomic_store(&c->seventh, true);
    return task == 5 || task == 7 ? ls_fail(LS_EIO, "task %d fails", task) : LS_OK;
}

static void the_lowest_failure_is_told(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        struct counts c = { 0 };

        REFUSED(LS_EIO, "task 5 fails", tasks_run(TASKS, fail_two, &c));
        assert_true(c.total < TASKS); /* the other tasks did not begin */
    }
}

static ls_status nest(void *ctx, int task)
{
    struct counts *c = ctx;

    return tasks_run(10, base_tasks_count, &c[task]);
}

static void a_task_runs_its_own_in_turn(void **state)
{
    static struct counts c[4];

    (void)state;
    OK(tasks_run(4, nest, c));
    for (int i = 0; i < 4; i++) assert_int_equal(c[i].total, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(each_task_runs_once), cmocka_unit_test(two_tasks_run_at_once),
                                        cmocka_unit_test(the_lowest_failure_is_told), cmocka_unit_test(a_task_runs_its_own_in_turn) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
