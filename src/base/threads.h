/* threads.h - data parallelism inside one process: one team of threads for all kernels.
 *
 * Work is handed out in tasks. A thread takes the tasks of its own share, then those that others have not begun, so a thread that another
 * process preempts delays a loop by one task at most, and not at all if it has none. A thread without work spins briefly and then sleeps,
 * which frees its processor for the threads that still work. Threads are not bound to processors, but those of a team avoid sharing one.
 *
 * Where tasks begin and end depends on n, grain and the number of threads only; which thread takes which task does not repeat. So a sum
 * is kept by position, never by thread, and a run repeats bit for bit.
 */
#ifndef LS_BASE_THREADS_H
#define LS_BASE_THREADS_H

#include <stdbool.h>
#include <stddef.h>

void threads_set(int n); /* threads of the team from now on; n >= 1, 0: all cores of the affinity mask; THREADS_MOST at most */
int threads_count(void); /* >= 1 */
/* On the calling thread, threads_count() is n from now on, as in the processes for which it compiles programs, and loops run on it alone;
 * 0: the team's size, and loops run on the team. Returns what it was. */
int threads_assume(int n);
bool threads_inside(void); /* the caller is at work for the team: a loop of its own would run on it alone */

enum { THREADS_MOST = 1024 };

/* thread: which member of the team calls, 0 <= thread < threads_count(): for scratch, which the next task finds as this one left it. */
typedef void threads_range_fn(void *ctx, size_t begin, size_t end, int thread);

/* Calls fn over disjoint ranges that cover [0, n), each except the last a multiple of grain; returns when all are done. A few ranges a
 * thread. The caller takes part. n <= grain, a nested call, or a call while the team is at work for another thread runs on the caller. */
void threads_for(size_t n, size_t grain, threads_range_fn *fn, void *ctx);

/* The same in ranges of `grain`: for work that is uneven, or takes long. (More than 4096 of them are joined.) */
void threads_each(size_t n, size_t grain, threads_range_fn *fn, void *ctx);

#endif
