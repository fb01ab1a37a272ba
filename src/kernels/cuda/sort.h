/* sort.h - a stable sort of positions 0 .. n-1 by a key in [0, most], on the device, with the same result every time.
 *
 * A radix sort, 8 bits a pass, lowest first: each warp counts the digits of its chunk of 1,024 positions, one block makes starts of the
 * counts, and each warp puts its positions in their places in order. Keys outside [first, first + keys) count as `keys` and come last.
 */
#ifndef LS_KERNELS_CUDA_SORT_H
#define LS_KERNELS_CUDA_SORT_H

#include "kernels/cuda/launch.h"

enum { DIGITS = 256, SORT_CHUNK = 1024, SCAN_THREADS = 1024 };

struct sorted {
    global<int> key, position; /* [n] */
};

/* The keys as they come: input[i] - first, or of a pass before: keys and positions. */
struct unsorted {
    global<const int> input, key, position;
    long long first, keys;
};

static __device__ inline int unsorted_key(const struct unsorted &u, size_t i)
{
    if (!u.input) return u.key[i];
    long long k = (long long)u.input[i] - u.first;
    return (int)(k < 0 || k >= u.keys ? u.keys : k);
}

/* counts[digit, chunk] */
static __global__ void __launch_bounds__(32) sort_count(struct unsorted u, size_t n, int shift, global<int> counts)
{
    SHARED(int, mine, DIGITS);
    size_t begin = (size_t)blockIdx.x * SORT_CHUNK, end = min(begin + SORT_CHUNK, n);

    for (int d = threadIdx.x; d < DIGITS; d += 32) mine[d] = 0;
    __syncwarp();
    for (size_t i = begin + threadIdx.x; i < end; i += 32) atomic_add(mine, (size_t)(unsorted_key(u, i) >> shift & (DIGITS - 1)), 1);
    __syncwarp();
    for (int d = threadIdx.x; d < DIGITS; d += 32) counts[(size_t)d * gridDim.x + blockIdx.x] = mine[d];
}

/* counts[i] = sum of the counts before i */
static __global__ void __launch_bounds__(SCAN_THREADS) sort_scan(global<int> counts, size_t n)
{
    SHARED(int, sums, SCAN_THREADS);
    size_t each = (n + SCAN_THREADS - 1) / SCAN_THREADS, begin = min(threadIdx.x * each, n), end = min(begin + each, n);
    int sum = 0;

    for (size_t i = begin; i < end; i++) sum += counts[i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned away = 1; away < SCAN_THREADS; away *= 2) {
        int before = threadIdx.x >= away ? (int)sums[threadIdx.x - away] : 0;

        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    sum = threadIdx.x ? (int)sums[threadIdx.x - 1] : 0;
    for (size_t i = begin; i < end; i++) {
        int count = counts[i];

        counts[i] = sum;
        sum += count;
    }
}

/* Lanes of `mask` with the same digit as this one. */
static __device__ inline unsigned same_digit(unsigned mask, int digit)
{
    unsigned same = mask;

    for (int bit = 0; bit < 8; bit++) {
        unsigned ones = __ballot_sync(mask, digit >> bit & 1);

        same &= digit >> bit & 1 ? ones : ~ones;
    }
    return same;
}

static __global__ void __launch_bounds__(32) sort_place(struct unsorted u, size_t n, int shift, global<const int> starts, struct sorted out)
{
    SHARED(int, next, DIGITS);
    size_t begin = (size_t)blockIdx.x * SORT_CHUNK, end = min(begin + SORT_CHUNK, n);

    for (int d = threadIdx.x; d < DIGITS; d += 32) next[d] = starts[(size_t)d * gridDim.x + blockIdx.x];
    __syncwarp();
    for (size_t base = begin; base < end; base += 32) {
        size_t i = base + threadIdx.x;
        unsigned mask = __ballot_sync(0xffffffffu, i < end), same, before;
        int key, digit, to;

        if (i < end) {
            key = unsorted_key(u, i);
            digit = key >> shift & (DIGITS - 1);
            same = same_digit(mask, digit);
            before = same & ((1u << threadIdx.x) - 1);
            to = next[digit] + __popc(before);
            out.key[to] = key;
            out.position[to] = u.input ? (int)i : (int)u.position[i];
            __syncwarp(mask);
            if (before == 0) next[digit] += __popc(same);
        }
        __syncwarp();
    }
}

static inline size_t sort_chunks(size_t n) { return (n + SORT_CHUNK - 1) / SORT_CHUNK; }
/* Bytes of scratch: two pairs of arrays, and the counts. */
static inline size_t sort_bytes(size_t n) { return (4 * n + DIGITS * sort_chunks(n)) * sizeof(int); }

/* Launches the sort; the result is in scratch. n < 2^31. */
static inline struct sorted sort_launch(const struct call *c, global<const int> input, long long first, long long keys, size_t n,
                                        void *scratch)
{
    global<int> ints = global_of<int>(scratch), counts = ints + (ptrdiff_t)(4 * n);
    struct sorted half[2] = { { ints, ints + (ptrdiff_t)n }, { ints + (ptrdiff_t)(2 * n), ints + (ptrdiff_t)(3 * n) } };
    struct unsorted u = { input, nullptr, nullptr, first, keys };
    unsigned chunks = (unsigned)sort_chunks(n);
    int to = 0;

    for (int shift = 0; shift == 0 || keys >> shift; shift += 8, to ^= 1) {
        launch(c, KERNEL(sort_count), chunks, 32, 0, u, n, shift, counts);
        launch(c, KERNEL(sort_scan), n ? 1 : 0, SCAN_THREADS, 0, counts, (size_t)DIGITS * chunks);
        launch(c, KERNEL(sort_place), chunks, 32, 0, u, n, shift, counts, half[to]);
        u.input = nullptr;
        u.key = half[to].key;
        u.position = half[to].position;
    }
    return half[to ^ 1];
}

#endif
