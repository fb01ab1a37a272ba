/* reduce.h - sums and maxima over the threads of a warp or of a row of threads, in an order fixed by their number.
 *
 * A row of threads are those of a block with the same threadIdx.y: blockDim.x of them, a multiple of 32. All threads of the block call
 * these functions together. Every thread gets the result.
 */
#ifndef LS_KERNELS_CUDA_REDUCE_H
#define LS_KERNELS_CUDA_REDUCE_H

#include "kernels/cuda/launch.h"

enum { ALL_LANES = -1, ROWS_MOST = 8, WARPS_MOST = 32 };

struct sum_of {
    template <typename T> static __device__ inline T of(T a, T b) { return a + b; }
};
struct largest_of {
    /* a NaN is larger than all */
    template <typename T> static __device__ inline T of(T a, T b) { return a > b || a != a ? a : b; }
};

template <typename F, typename T> static __device__ inline T warp_reduce(T x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) x = F::of(x, __shfl_xor_sync((unsigned)ALL_LANES, x, lanes));
    return x;
}

/* The sum over this lane and those before it. */
template <typename T> static __device__ inline T warp_scan(T x)
{
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        T before = __shfl_up_sync((unsigned)ALL_LANES, x, lanes);

        if ((int)threadIdx.x % 32 >= lanes) x += before;
    }
    return x;
}

template <typename F, typename T> static __device__ inline T row_reduce(T x)
{
    SHARED(T, parts, WARPS_MOST);
    unsigned warps = blockDim.x / 32;

    x = warp_reduce<F>(x);
    if (warps == 1) return x;
    __syncthreads(); /* the parts of the reduction before this one have been read */
    if (threadIdx.x % 32 == 0) parts[threadIdx.y * warps + threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[threadIdx.y * warps];
    for (unsigned k = 1; k < warps; k++) x = F::of(x, (T)parts[threadIdx.y * warps + k]);
    return x;
}

template <typename T> static __device__ inline T row_sum(T x) { return row_reduce<sum_of>(x); }
template <typename T> static __device__ inline T row_max(T x) { return row_reduce<largest_of>(x); }

/* Threads for rows of C elements, four a thread: a warp and eight rows in a block, or a block a row. */
static inline dim3 row_threads(size_t C) { return C <= 1024 ? dim3(32, ROWS_MOST) : dim3(256, 1); }

#endif
