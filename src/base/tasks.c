/* tasks.c - see tasks.h. */
#include "base/tasks.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include "base/base.h"
#include "base/cores.h"
#include "base/pulse.h"

enum { MOST_HELPERS = 63 };

struct tasks {
    tasks_fn *fn;
    void *ctx;
    atomic_int next;
    atomic_int failed; /* the lowest task that has failed; n: none */
    pthread_mutex_t lock;
    ls_status status; /* status of that task, with its message; guarded by the lock */
    char message[2048];
};

static _Thread_local bool tasks_inside;

static void task_failed(struct tasks *t, int task, ls_status st)
{
    pthread_mutex_lock(&t->lock);
    if (task < atomic_load(&t->failed)) {
        atomic_store(&t->failed, task);
        t->status = st;
        snprintf(t->message, sizeof t->message, "%s", ls_errmsg());
    }
    pthread_mutex_unlock(&t->lock);
}

/* Tasks are taken in ascending order, so all below one that fails have begun. */
static void run_tasks(struct tasks *t)
{
    int task;

    tasks_inside = true;
    while ((task = atomic_fetch_add(&t->next, 1)) < atomic_load(&t->failed)) {
        ls_status st = t->fn(t->ctx, task);

        if (st < 0) task_failed(t, task, st);
    }
    tasks_inside = false;
}

static void *help(void *tasks)
{
    pulse_delegate();
    run_tasks(tasks);
    return NULL;
}

static ls_status run_in_turn(int n, tasks_fn *fn, void *ctx)
{
    for (int task = 0; task < n; task++) LS_TRY(fn(ctx, task));
    return LS_OK;
}

/* Starts up to n helpers, whose signals are for the threads that expect them; returns how many. */
static int start_helpers(struct tasks *t, int n, pthread_t *helper)
{
    sigset_t all, before;
    int started = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < n && pthread_create(&helper[started], NULL, help, t) == 0) started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

ls_status tasks_run(int n, tasks_fn *fn, void *ctx)
{
    struct tasks t = { .fn = fn, .ctx = ctx, .failed = n, .lock = PTHREAD_MUTEX_INITIALIZER };
    int helpers = MIN(MIN(n, cores_count()) - 1, MOST_HELPERS);
    pthread_t helper[MOST_HELPERS];

    if (tasks_inside || helpers < 1) return run_in_turn(n, fn, ctx);
    helpers = start_helpers(&t, helpers, helper);
    run_tasks(&t);
    for (int i = 0; i < helpers; i++) pthread_join(helper[i], NULL);
    return atomic_load(&t.failed) < n ? ls_fail(t.status, "%s", t.message) : LS_OK;
}
