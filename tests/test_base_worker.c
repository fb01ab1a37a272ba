/* test_base_worker.c - tasks of a worker run in order, their failures reach the caller that waits, and no task is lost when it is closed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <semaphore.h>
#include "base/worker.h"
#include "helper_check.h"

enum { TASKS = 200 };

struct job { int number, *next; sem_t *gate; };

static ls_status job_run(void *ctx)
{
    struct job *j = ctx;

    if (j->gate)
        sem_wait(j->gate);
    if ((*j->next)++ != j->number)
        return ls_fail(LS_EIO, "task %d runs out of turn", j->number);
    return j->number == 5 ? ls_fail(LS_ENOMEM, "task 5 fails") : LS_OK;
}

static ls_status result_of(struct worker_task *t)
{
    ls_status st;

    while ((st = worker_result(t)) == LS_BUSY)
        sched_yield();
    return st;
}

static void test_order(void **state)
{
    static struct worker_task task[TASKS];
    static struct job job[TASKS];
    struct worker *w;
    sem_t gate;
    int next = 0;

    (void)state;
    assert_int_equal(sem_init(&gate, 0, 0), 0);
    OK(worker_open(&w));
    for (int k = 0; k < TASKS; k++) {
        job[k] = (struct job){ k, &next, k ? NULL : &gate };
        task[k] = (struct worker_task){ .fn = job_run, .ctx = &job[k] };
        worker_give(w, &task[k]);
    }
    for (int k = 0; k < TASKS; k++) assert_int_equal(worker_result(&task[k]), LS_BUSY); /* it waits for the gate */
    sem_post(&gate);
    for (int k = 0; k < 5; k++)
        OK(result_of(&task[k]));
    REFUSED(LS_ENOMEM, "task 5 fails", result_of(&task[5]));
    worker_close(&w);
    assert_null(w);
    assert_int_equal(next, TASKS);
    for (int k = 6; k < TASKS; k++)
        OK(worker_result(&task[k]));
    worker_close(&w);
    sem_destroy(&gate);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_order) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
