/* gemm.h - a tiled matmul on the cores that every GPU has: 64 x 64 elements of C a block, 4 x 4 a thread, f32 accumulators, K in
 * order.
 *
 * It takes operands of any strides and types, or computed ones (convolutions): an operand is a struct with get(row, column) and `across`,
 * true if neighboring columns are neighbors in memory. Rows and columns outside are never asked for.
 */
#ifndef LS_KERNELS_CUDA_GEMM_H
#define LS_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/array.h"

enum { TILE = 64, DEPTH = 16, GEMM_THREADS = 256, TILE_STRIDE = TILE + 4 };

/* The columns of tiles are in y of the grid, which has room for 65535. */
static inline bool tiles_fit(size_t columns) { return columns <= 65535 * (size_t)TILE; }

/* Element (r, c) is at data[offset + r row + c column]. */
struct matrix {
    global<byte> data;
    int type;
    bool across;
    long long offset, row, column;

    __device__ float get(size_t r, size_t c) const { return type_get(data, type, offset + (long long)r * row + (long long)c * column); }
};

static inline struct matrix matrix_of(global<byte> data, int type, long long row, long long column)
{
    struct matrix m = { data, type, column == 1, 0, row, column };

    return m;
}
/* A contiguous view as [rows, last dim], or transposed. */
static inline struct matrix matrix_of_view(const struct view *v, bool transposed)
{
    long long last = (long long)view_last(v);

    return transposed ? matrix_of(global_of<byte>(v->data), v->dtype, 1, last) : matrix_of(global_of<byte>(v->data), v->dtype, last, 1);
}

/* The tile's elements of this thread. */
struct tile {
    float c[4][4];
};

static __device__ inline void tile_clear(struct tile *t)
{
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) t->c[i][j] = 0;
}

/* Puts DEPTH x TILE elements of an operand into shared memory. wide: the index along the tile (a row of A, a column of B). A is given with
 * its rows along the tile. */
template <typename M, bool IS_A>
static __device__ inline void tile_fetch(shared<float> to, const M &m, size_t wide0, size_t wide_end, size_t k0, size_t k_end)
{
    bool along_k = IS_A ? m.across : !m.across;

    for (int n = 0; n < TILE * DEPTH / GEMM_THREADS; n++) {
        unsigned i = n * GEMM_THREADS + threadIdx.x, k = along_k ? i % DEPTH : i / TILE, w = along_k ? i / DEPTH : i % TILE;
        size_t at = wide0 + w, depth = k0 + k;

        to[k * TILE_STRIDE + w] = at < wide_end && depth < k_end ? (IS_A ? m.get(at, depth) : m.get(depth, at)) : 0;
    }
}

/* t += A[m0.., k] B[k, n0..] over k in [k_begin, k_end), in order. All threads of the block. */
template <typename A, typename B>
static __device__ inline void tile_multiply(struct tile *t, const A &a, const B &b, size_t m0, size_t M, size_t n0, size_t N,
                                            size_t k_begin, size_t k_end)
{
    SHARED(float, left, DEPTH *TILE_STRIDE);
    SHARED(float, right, DEPTH *TILE_STRIDE);
    unsigned row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;

    for (size_t k0 = k_begin; k0 < k_end; k0 += DEPTH) {
        __syncthreads();
        tile_fetch<A, true>(left, a, m0, M, k0, k_end);
        tile_fetch<B, false>(right, b, n0, N, k0, k_end);
        __syncthreads();
        for (unsigned k = 0; k < DEPTH; k++) {
            float4s x = pack_load<4>(left, k * TILE_STRIDE + row), y = pack_load<4>(right, k * TILE_STRIDE + column);

            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) t->c[i][j] += x.v[i] * y.v[j];
        }
    }
}

/* For each element of this thread inside M x N: row r, column s, value v. */
#define EACH_OF_TILE(t, m0, M, n0, N, r, s, v)                                                                         \
    for (int i_ = 0; i_ < 4; i_++)                                                                                     \
        for (int j_ = 0; j_ < 4; j_++)                                                                                 \
            if (size_t r = (m0) + threadIdx.x / 16 * 4 + i_, s = (n0) + threadIdx.x % 16 * 4 + j_; r < (M) && s < (N)) \
                if (float v = (t).c[i_][j_]; true)

#endif
