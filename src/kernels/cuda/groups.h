/* groups.h - rows of experts on the device: a block finds its rows by walking over the counts, which never come to the host.
 *
 * Rows of a group (one expert, one source) begin at any row, so each group has tiles of its own: at most M / tile and one a group.
 */
#ifndef LS_KERNELS_CUDA_GROUPS_H
#define LS_KERNELS_CUDA_GROUPS_H

#include "kernels/cuda/array.h"

enum { GROUPS_THREADS = 256 };

struct groups {
    global<const int> counts;
    int groups, experts;
};

static inline struct groups groups_of(const struct call *c)
{
    struct groups g = { global_of<const int>(c->in[2].data), (int)view_count(&c->in[2]), (int)view_last(&c->in[2]) };

    return g;
}

/* The group that tile number `tile` belongs to: its expert, the tile's first row, the end of the group's rows. false: no such tile. */
static __device__ inline bool groups_find(const struct groups &g, size_t tile, size_t rows, int *expert, size_t *row, size_t *end)
{
    size_t at = 0;

    for (int k = 0; k < g.groups; k++) {
        size_t count = (size_t)g.counts[k], tiles = (count + rows - 1) / rows;

        if (tile < tiles) {
            *expert = k % g.experts;
            *row = at + tile * rows;
            *end = at + count;
            return true;
        }
        tile -= tiles;
        at += count;
    }
    return false;
}

/* Rows of y[M,N] that belong to no group are zeros. */
static __global__ void __launch_bounds__(GROUPS_THREADS)
    groups_rest(const __grid_constant__ struct groups g, struct array y, size_t M, size_t N)
{
    size_t i = (size_t)blockIdx.x * GROUPS_THREADS + threadIdx.x, used = 0;

    for (int k = 0; k < g.groups; k++) used += (size_t)g.counts[k];
    if (i < M * N && i / N >= used) array_put(y, i, 0);
}

static inline void groups_clear_rest(const struct call *c)
{
    size_t M = view_rows(&c->out[0]), N = view_last(&c->out[0]);

    launch(c, KERNEL(groups_rest), blocks_of(M * N, GROUPS_THREADS), GROUPS_THREADS, 0, groups_of(c), array_out(c, 0), M, N);
}

#endif
