/* threads.h - data parallelism inside one process: one team of threads for our kernels and oneDNN's.
 *
 * Debian's oneDNN runs on libgomp, so our loops run on libgomp's team too: two pools on the same cores would spin against each other. A
 * call of oneDNN from inside a task runs on that task's thread alone.
 * Splits depend on n, grain and the number of threads only, so a run repeats bit for bit.
 */
#ifndef LS_BASE_THREADS_H
#define LS_BASE_THREADS_H

#include <stddef.h>

void threads_set(int n); /* threads of the team from now on; n >= 1, 0: all cores of the affinity mask */
int threads_count(void); /* >= 1 */

typedef void threads_range_fn(void *ctx, size_t begin, size_t end, int thread);

/* Calls fn over disjoint ranges that cover [0, n), one contiguous range per thread, each except the last a multiple of grain; returns when
 * all are done. n <= grain, or a nested call, runs on the caller. */
void threads_for(size_t n, size_t grain, threads_range_fn *fn, void *ctx);

/* The same, but ranges of `grain` are handed out one by one as threads become free: for uneven work. */
void threads_each(size_t n, size_t grain, threads_range_fn *fn, void *ctx);

#endif
