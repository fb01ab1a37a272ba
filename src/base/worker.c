/* worker.c - see worker.h. */
#include "base/worker.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"

struct worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t given, done;
    struct worker_task *first, *last;
    bool closing;
};

/* The next task; NULL if the worker is closing and no task is left. */
static struct worker_task *worker_take(struct worker *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->closing) pthread_cond_wait(&w->given, &w->lock);
    struct worker_task *t = w->first;
    if (t) w->first = t->next;
    if (!w->first) w->last = NULL;
    pthread_mutex_unlock(&w->lock);
    return t;
}

/* The task belongs to its caller again as soon as it is over. */
static void worker_finish(struct worker *w, struct worker_task *t)
{
    pthread_mutex_lock(&w->lock);
    atomic_store(&t->over, true);
    pthread_cond_broadcast(&w->done);
    pthread_mutex_unlock(&w->lock);
}

static void *worker_run(void *ctx)
{
    struct worker_task *t;

    while ((t = worker_take(ctx))) {
        t->status = t->fn(t->ctx);
        if (t->status < 0) snprintf(t->message, sizeof t->message, "%s", ls_errmsg());
        worker_finish(ctx, t);
    }
    return NULL;
}

/* Signals are for the threads that expect them. */
static int worker_start(struct worker *w)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, worker_run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

ls_status worker_open(struct worker **out)
{
    struct worker *w = mem_zalloc(MEM_OTHER, sizeof *w);

    if (!w) return LS_ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->given, NULL);
    pthread_cond_init(&w->done, NULL);
    int failed = worker_start(w);
    if (!failed) {
        *out = w;
        return LS_OK;
    }
    pthread_cond_destroy(&w->given);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
    return ls_fail(LS_EIO, "cannot start a thread: %s", strerror(failed));
}

void worker_close(struct worker **wp)
{
    struct worker *w = *wp;

    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_signal(&w->given);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->given);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
    *wp = NULL;
}

void worker_give(struct worker *w, struct worker_task *t)
{
    t->next = NULL;
    pthread_mutex_lock(&w->lock);
    if (w->last)
        w->last->next = t;
    else
        w->first = t;
    w->last = t;
    pthread_cond_signal(&w->given);
    pthread_mutex_unlock(&w->lock);
}

ls_status worker_result(struct worker_task *t)
{
    if (!atomic_load(&t->over)) return LS_BUSY;
    return t->status < 0 ? ls_fail(t->status, "%s", t->message) : t->status;
}

ls_status worker_wait(struct worker *w, struct worker_task *t)
{
    enum { LOOK = 100 * 1000 * 1000 }; /* nanoseconds between two looks at the progress */
    unsigned seen = 0;

    pthread_mutex_lock(&w->lock);
    while (!atomic_load(&t->over)) {
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&w->done, &w->lock, &until);
        if (atomic_load(&t->progress) != seen) pulse();
        seen = atomic_load(&t->progress);
    }
    pthread_mutex_unlock(&w->lock);
    return worker_result(t);
}
