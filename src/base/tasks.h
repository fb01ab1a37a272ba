/* tasks.h - independent tasks that take milliseconds each, on as many threads as there are processors for them. */
#ifndef LS_BASE_TASKS_H
#define LS_BASE_TASKS_H

#include "lockstep/status.h"

typedef ls_status tasks_fn(void *ctx, int task);

/* Calls fn(ctx, task) once for each task in [0, n), in no order, on the caller and on threads that end with the call; returns when all have
 * returned. A task that fails keeps those that have not begun from it; the status is that of the lowest task that failed, which does not
 * depend on the threads, and its message is the caller's. A call from inside a task runs its own one after the other. */
ls_status tasks_run(int n, tasks_fn *fn, void *ctx);

#endif
