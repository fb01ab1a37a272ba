/* total.h - sums over all elements in a fixed order: each block of a first kernel leaves one or two sums in scratch, in double, and one
 * block adds those in order.
 */
#ifndef LS_KERNELS_CUDA_TOTAL_H
#define LS_KERNELS_CUDA_TOTAL_H

#include "kernels/cuda/array.h"
#include "kernels/cuda/reduce.h"

enum { TOTAL_THREADS = 256, TOTAL_EACH = 16 }; /* elements that a thread adds, four at a time */

/* How the result goes to its output: a float that is set to it times factor, or a double or float that it is added to. */
struct total {
    struct array y;      /* float, set */
    global<double> sums; /* added to, if given */
    struct array add;    /* float, added to, if given */
    struct array denom;  /* divides, if given */
    struct array times;  /* multiplies, if given; 0 times anything is 0 */
    double factor;
    int n; /* sums: 1 or 2 */
};

static inline struct total total_none(void)
{
    struct total t = { array_none(), global<double>(nullptr), array_none(), array_none(), array_none(), 1, 1 };

    return t;
}

static inline unsigned total_blocks(size_t count)
{
    size_t blocks = (count + TOTAL_THREADS * TOTAL_EACH - 1) / (TOTAL_THREADS * TOTAL_EACH);

    return blocks > 2048 ? 2048 : (unsigned)blocks;
}
static inline size_t total_bytes(size_t count, int n) { return total_blocks(count) * (size_t)n * sizeof(double); }

/* Groups of four elements of this thread, in block `block` of the `blocks` that add `count` elements. */
#define EACH_TOTAL_OF(i, count, block, blocks) \
    for (size_t i = ((size_t)(block)*TOTAL_THREADS + threadIdx.x) * 4; i < (count); i += (size_t)(blocks)*TOTAL_THREADS * 4)
#define EACH_TOTAL(i, count) EACH_TOTAL_OF(i, count, blockIdx.x, gridDim.x)

static __device__ inline void total_leave_of(unsigned block, global<double> parts, int n, int k, double x)
{
    x = row_sum(x);
    if (threadIdx.x == 0) parts[(size_t)block * n + k] = x;
}
static __device__ inline void total_leave(global<double> parts, int n, int k, double x) { total_leave_of(blockIdx.x, parts, n, k, x); }

/* The sum of parts[b * n + k] over all blocks b, in every thread of this block. */
static __device__ inline double total_parts(global<const double> parts, int n, int k, unsigned blocks)
{
    double sum = 0;

    for (unsigned b = threadIdx.x; b < blocks; b += TOTAL_THREADS) sum += parts[(size_t)b * n + k];
    return row_sum(sum);
}

static __global__ void __launch_bounds__(TOTAL_THREADS) total_add(struct total t, global<const double> parts, unsigned blocks)
{
    for (int k = 0; k < t.n; k++) {
        double sum = total_parts(parts, t.n, k, blocks) * t.factor;

        if (threadIdx.x) continue;
        if (t.times.given) sum = array_get(t.times, 0) == 0 ? 0 : sum * array_get(t.times, 0);
        if (t.denom.given) sum /= array_get(t.denom, 0);
        if (t.y.given) array_put(t.y, 0, (float)sum);
        if (t.sums) t.sums[k] += sum;
        if (t.add.given) array_add(t.add, 0, (float)sum);
    }
}

static inline void total_finish(const struct call *c, struct total t, void *parts, unsigned blocks)
{
    launch(c, KERNEL(total_add), 1, TOTAL_THREADS, 0, t, global_of<const double>(parts), blocks);
}

/* Sums of the elements of x. */
static __global__ void __launch_bounds__(TOTAL_THREADS) double_parts(global<const double> x, size_t count, global<double> parts)
{
    double sum = 0;

    EACH_TOTAL(i, count)
    for (int k = 0; k < 4; k++)
        if (i + k < count) sum += x[i + k];
    total_leave(parts, 1, 0, sum);
}

static inline void total_doubles(const struct call *c, struct total t, global<const double> x, size_t count, void *parts)
{
    unsigned blocks = total_blocks(count);

    launch(c, KERNEL(double_parts), blocks, TOTAL_THREADS, 0, x, count, global_of<double>(parts));
    total_finish(c, t, parts, blocks);
}

#endif
