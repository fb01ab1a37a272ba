/* tasks.h - independent tasks that take milliseconds each, on as many threads as there are processors for them. */
#ifndef LS_BASE_TASKS_H
#define LS_BASE_TASKS_H

#include "lockstep/status.h"

typedef ls_status tasks_fn(void *ctx, int task);

/* Calls fn(ctx, task) once for each task in [0, n), in no order, on the caller and on threads that end with the call; returns when all have
 * returned. After a failure, tasks that have not begun are skipped; the caller gets the status and message of the lowest task that failed,
 * which does not depend on the threads. A call from inside a task runs its tasks one after another. */
ls_status tasks_run(int n, tasks_fn *fn, void *ctx);

#endif
