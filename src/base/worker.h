/* worker.h - a thread that does what it is given, one task after another: work that would hold up its caller, such as files. */
#ifndef LS_BASE_WORKER_H
#define LS_BASE_WORKER_H

#include <stdatomic.h>
#include "lockstep/status.h"

struct worker;

/* The caller owns the task and what ctx points to until worker_result() is not LS_BUSY. Zeroed but for fn and ctx. */
struct worker_task {
    ls_status (*fn)(void *ctx);
    void *ctx;
    struct worker_task *next;
    ls_status status;
    char message[256];
    atomic_uint progress; /* fn may count it up, to show who waits that it goes on */
    atomic_bool over;
};

ls_status worker_open(struct worker **out);
void worker_close(struct worker **w); /* after all tasks that it was given; NULL is a no-op */
void worker_give(struct worker *w, struct worker_task *t);
/* LS_BUSY, or the task's status; a failure has its message on the calling thread. */
ls_status worker_result(struct worker_task *t);
/* Waits until the task is over; pulses (base/pulse.h) whenever its progress has changed. */
ls_status worker_wait(struct worker *w, struct worker_task *t);

#endif
