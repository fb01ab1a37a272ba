/* groups.h - rows of experts on the device: a block finds its rows by sums of the counts, which never come to the host.
 *
 * Rows of a group (one expert, one source) begin at any row, so each group has tiles of its own: at most M / tile and one a group.
 */
#ifndef LS_KERNELS_CUDA_GROUPS_H
#define LS_KERNELS_CUDA_GROUPS_H

#include "kernels/cuda/array.h"
#include "kernels/cuda/reduce.h"

enum { GROUPS_THREADS = 256, GROUPS_BLOCKS = 1024 };

struct groups {
    global<const int> counts;
    int groups, experts;
};

static inline struct groups groups_of(const struct call *c)
{
    struct groups g = { global_of<const int>(c->in[2].data), (int)view_count(&c->in[2]), (int)view_last(&c->in[2]) };

    return g;
}

/* The rows of groups [begin, end). All threads of a warp call it together, and all get the sum. */
static __device__ inline size_t groups_rows(const struct groups &g, int begin, int end)
{
    size_t rows = 0;

    for (int k = begin + (int)threadIdx.x % 32; k < end; k += 32) rows += (size_t)g.counts[k];
    return warp_reduce<sum_of>(rows);
}

/* The group that tile number `tile` belongs to: its expert, the tile's first row, the end of the group's rows. false: no such tile. All
 * threads of a warp call it together; each looks at every 32nd group. */
static __device__ inline bool groups_find(const struct groups &g, size_t tile, size_t rows, int *expert, size_t *row, size_t *end)
{
    size_t tiles_before = 0, rows_before = 0;

    for (int first = 0; first < g.groups; first += 32) {
        int k = first + (int)threadIdx.x % 32;
        size_t count = k < g.groups ? (size_t)g.counts[k] : 0, tiles = (count + rows - 1) / rows;
        size_t tiles_end = tiles_before + warp_scan(tiles), rows_end = rows_before + warp_scan(count);
        bool mine = tile < tiles_end && tile + tiles >= tiles_end; /* of one lane at most */

        if (__any_sync((unsigned)ALL_LANES, mine)) {
            *expert = warp_reduce<sum_of>(mine ? k % g.experts : 0);
            *row = warp_reduce<sum_of>(mine ? rows_end - count + (tile + tiles - tiles_end) * rows : 0);
            *end = warp_reduce<sum_of>(mine ? rows_end : 0);
            return true;
        }
        tiles_before = __shfl_sync((unsigned)ALL_LANES, tiles_end, 31);
        rows_before = __shfl_sync((unsigned)ALL_LANES, rows_end, 31);
    }
    return false;
}

/* Rows of y[M,N] that belong to no group, those after the last group's, are zeros. Mostly there are none. */
static __global__ void __launch_bounds__(GROUPS_THREADS)
    groups_rest(const __grid_constant__ struct groups g, struct array y, size_t M, size_t N)
{
    size_t first = groups_rows(g, 0, g.groups) * N, step = (size_t)gridDim.x * GROUPS_THREADS;

    for (size_t i = first + (size_t)blockIdx.x * GROUPS_THREADS + threadIdx.x; i < M * N; i += step) array_put(y, i, 0);
}

static inline void groups_clear_rest(const struct call *c)
{
    size_t M = view_rows(&c->out[0]), N = view_last(&c->out[0]);
    unsigned blocks = blocks_of(M * N, GROUPS_THREADS), most = GROUPS_BLOCKS;

    launch(c, KERNEL(groups_rest), blocks < most ? blocks : most, GROUPS_THREADS, 0, groups_of(c), array_out(c, 0), M, N);
}

#endif
