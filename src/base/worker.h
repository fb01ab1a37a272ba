/* worker.h - a thread that runs tasks one after another: work that would hold up its caller, such as file I/O. */
#ifndef LS_BASE_WORKER_H
#define LS_BASE_WORKER_H

#include <stdatomic.h>
#include "lockstep/status.h"

struct worker;

/* The caller owns the task and what ctx points to until worker_result() is not LS_BUSY. The caller sets fn and ctx, and zeroes the rest. */
struct worker_task {
    ls_status (*fn)(void *ctx);
    void *ctx;
    struct worker_task *next;
    ls_status status;
    char message[256];
    atomic_uint progress; /* fn may increment it to show a waiting thread that it makes progress */
    atomic_bool over;
};

ls_status worker_open(struct worker **out);
void worker_close(struct worker **w); /* finishes all tasks first; NULL is a no-op */
void worker_give(struct worker *w, struct worker_task *t);
/* LS_BUSY, or the task's status; a failure has its message on the calling thread. */
ls_status worker_result(struct worker_task *t);
/* Waits until the task is over; pulses (base/pulse.h) whenever its progress has changed. */
ls_status worker_wait(struct worker *w, struct worker_task *t);

#endif
