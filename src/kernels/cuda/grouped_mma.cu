/* grouped_mma.cu - matmuls of the rows of each expert on tensor cores: bf16 and f16, both dims of the weights in eights.
 *
 *   y[m,n]  = sum_k x[m,k] w[n,k]       left: rows of x;    right: rows of w, transposed
 *   dx[m,k] = sum_n dy[m,n] w[n,k]      left: rows of dy;   right: rows of w
 *   dw[n,k] = sum_m dy[m,n] x[m,k]      left: rows of dy, transposed;   right: rows of x
 *
 * A block of eight warps has a tile of 128 x 128 of the result, a warp 64 x 32 of it, and goes over the sum in steps of 32; the operands of
 * the next two steps are copied to shared memory meanwhile. Sums are in f32 and in order.
 */
#include "kernels/cuda/copy_async.h"
#include "kernels/cuda/groups.h"
#include "kernels/cuda/mma.h"

enum { TILE_SIDE = 128, TILE_STEP = 32, STAGES = 3, MMA_THREADS = 256, WARP_ROWS = 64, WARP_COLUMNS = 32 };

/* Elements of shared memory between rows of a tile, which are then in different banks; room for a tile of TILE_SIDE x TILE_STEP or
 * TILE_STEP x TILE_SIDE. */
#define STAGE_STRIDE(columns) ((columns) + 8)
enum {
    STAGE_ROOM = TILE_SIDE * STAGE_STRIDE(TILE_STEP) > TILE_STEP *STAGE_STRIDE(TILE_SIDE) ? TILE_SIDE *STAGE_STRIDE(TILE_STEP)
                                                                                          : TILE_STEP *STAGE_STRIDE(TILE_SIDE)
};

/* A matrix whose rows are contiguous. aligned: 8 elements at a multiple of 8 are one access. */
struct expert_rows {
    global<byte> data;
    long long row;
    int aligned;
};

struct expert_product {
    struct expert_rows left, right;
    struct array to;
    long long right_each, to_each; /* elements of an expert's weight, or its gradient; 0: the operand has none */
    size_t M, N, K;                /* the result's, without experts, and the sum's */
    struct groups of;
};

/* Starts to load ROWS x COLUMNS elements at (row, column) of x, zeros past row_end and column_end, which is a multiple of 8. */
template <typename T, int ROWS, int COLUMNS>
static __device__ inline void stage_load(shared<T> to, const struct expert_rows &x, long long offset, size_t row, size_t row_end,
                                         size_t column, size_t column_end)
{
    global<const T> from = global_as<const T>(x.data) + offset;

#pragma unroll
    for (int n = 0; n < ROWS * COLUMNS / 8 / MMA_THREADS; n++) {
        int i = n * MMA_THREADS + threadIdx.x, r = i / (COLUMNS / 8), c = i % (COLUMNS / 8) * 8;
        bool there = row + r < row_end && column + c < column_end;
        long long at = there ? (long long)(row + r) * x.row + (long long)(column + c) : 0;
        pack<T, 8> e;

        if (x.aligned) {
            copy_async16<T>(to + (r * STAGE_STRIDE(COLUMNS) + c), from + at, there);
            continue;
        }
        for (int k = 0; k < 8; k++) type_of(there ? float_of(from[at + k]) : 0, &e.v[k]);
        pack_store(to, r * STAGE_STRIDE(COLUMNS) + c, e);
    }
}

/* Where a tile is: its rows and columns of the result, and of the sum. */
struct expert_place {
    size_t row, row_end, column, column_end, begin, end;
    long long right; /* offset of the expert's weight */
};

/* LEFT, RIGHT: the operand's rows go along the sum, so a tile has TILE_STEP rows of TILE_SIDE elements, else TILE_SIDE rows of TILE_STEP.
 */
template <typename T, bool LEFT, bool RIGHT>
static __device__ inline void stage_start(shared<T> stage, const struct expert_product &z, const struct expert_place &p, size_t at)
{
    if (at < p.end) {
        if (LEFT)
            stage_load<T, TILE_STEP, TILE_SIDE>(stage, z.left, 0, at, p.end, p.row, p.row_end);
        else
            stage_load<T, TILE_SIDE, TILE_STEP>(stage, z.left, 0, p.row, p.row_end, at, p.end);
        if (RIGHT)
            stage_load<T, TILE_STEP, TILE_SIDE>(stage + STAGE_ROOM, z.right, p.right, at, p.end, p.column, p.column_end);
        else
            stage_load<T, TILE_SIDE, TILE_STEP>(stage + STAGE_ROOM, z.right, p.right, p.column, p.column_end, at, p.end);
    }
    copy_async_commit();
}

/* own += the matmul of a stage. */
template <typename T, bool LEFT, bool RIGHT>
static __device__ inline void stage_multiply(struct mma_c own[WARP_ROWS / 16][WARP_COLUMNS / 8], shared<const T> stage, int row, int column)
{
    shared<const T> left = stage, right = stage + STAGE_ROOM;

#pragma unroll
    for (int k = 0; k < TILE_STEP; k += 16) {
        struct mma_a<T> a[WARP_ROWS / 16];

#pragma unroll
        for (int i = 0; i < WARP_ROWS / 16; i++)
            a[i] = LEFT ? mma_load_a_transposed<T>(left + k * STAGE_STRIDE(TILE_SIDE) + row + 16 * i, STAGE_STRIDE(TILE_SIDE))
                        : mma_load_a<T>(left + (row + 16 * i) * STAGE_STRIDE(TILE_STEP) + k, STAGE_STRIDE(TILE_STEP));
#pragma unroll
        for (int j = 0; j < WARP_COLUMNS / 8; j += 2) {
            struct mma_b<T> b[2];

            if (RIGHT)
                mma_load_b<T>(b, right + k * STAGE_STRIDE(TILE_SIDE) + column + 8 * j, STAGE_STRIDE(TILE_SIDE));
            else
                mma_load_b_transposed<T>(b, right + (column + 8 * j) * STAGE_STRIDE(TILE_STEP) + k, STAGE_STRIDE(TILE_STEP));
#pragma unroll
            for (int i = 0; i < WARP_ROWS / 16; i++) {
                mma_16x8x16(&own[i][j], a[i], b[0]);
                mma_16x8x16(&own[i][j + 1], a[i], b[1]);
            }
        }
    }
}

/* Elements at and at + 1 of a result; at is even. */
static __device__ inline pack<float, 2> pair_get(const struct array &a, size_t at)
{
    pack<float, 2> x;

    if (a.type == LS_F32 && a.aligned) return pack_load<2>(global_as<const float>(a.data), at);
    for (int k = 0; k < 2; k++) x.v[k] = array_get(a, at + k);
    return x;
}

static __device__ inline void pair_put(const struct array &a, size_t at, pack<float, 2> x)
{
    if (a.type == LS_F32 && a.aligned) {
        pack_store(global_as<float>(a.data), at, x);
        return;
    }
    for (int k = 0; k < 2; k++) array_put(a, at + k, x.v[k]);
}

/* The matmul of a tile, written to or added to the result. */
template <typename T, bool LEFT, bool RIGHT, bool ADD>
static __device__ inline void tile_product(shared<T> all, const struct expert_product &z, const struct expert_place &p, long long to)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp / 4 * WARP_ROWS, column = warp % 4 * WARP_COLUMNS;
    const int PAIRS = 2 * WARP_COLUMNS / 8; /* of 16 rows: those of elements 0, 1 and 2, 3 of each matmul */
    struct mma_c own[WARP_ROWS / 16][WARP_COLUMNS / 8] = {};
    int stage = 0;

    for (int s = 0; s < STAGES - 1; s++) stage_start<T, LEFT, RIGHT>(all + s * 2 * STAGE_ROOM, z, p, p.begin + s * TILE_STEP);
    for (size_t at = p.begin; at < p.end; at += TILE_STEP) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        stage_start<T, LEFT, RIGHT>(all + (stage + STAGES - 1) % STAGES * 2 * STAGE_ROOM, z, p, at + (STAGES - 1) * TILE_STEP);
        stage_multiply<T, LEFT, RIGHT>(own, all + stage * 2 * STAGE_ROOM, row, column);
        stage = (stage + 1) % STAGES;
    }
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARP_ROWS / 16; i++) {
        pack<float, 2> sum[PAIRS];
        size_t at[PAIRS];
        bool inside[PAIRS];

        /* All pairs are loaded before one is stored: a load is not moved before a store, and each would wait for the one before it. */
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            int j = n / 2, e = n % 2 * 2;
            size_t r = p.row + row + 16 * i + mma_row(lane, e), c = p.column + column + 8 * j + mma_column(lane, e);

            at[n] = (size_t)to + r * z.N + c;
            inside[n] = r < p.row_end && c < p.column_end; /* column_end is even, too */
            if (ADD && inside[n]) sum[n] = pair_get(z.to, at[n]);
        }
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
#pragma unroll
            for (int k = 0; k < 2; k++) sum[n].v[k] = ADD ? sum[n].v[k] + own[i][n / 2].v[n % 2 * 2 + k] : own[i][n / 2].v[n % 2 * 2 + k];
            if (inside[n]) pair_put(z.to, at[n], sum[n]);
        }
    }
}

/* y or dx: a block has a tile of a group's rows. */
template <typename T, bool RIGHT>
static __global__ void __launch_bounds__(MMA_THREADS, 2) grouped_rows_mma(const __grid_constant__ struct expert_product z)
{
    DYNAMIC_SHARED(T, all);
    struct expert_place p = { 0, 0, (size_t)blockIdx.y * TILE_SIDE, z.N, 0, z.K, 0 };
    int expert;

    if (!groups_find(z.of, blockIdx.x, TILE_SIDE, &expert, &p.row, &p.row_end) || p.row_end > z.M) return;
    p.right = expert * z.right_each;
    tile_product<T, false, RIGHT, false>(all, z, p, 0);
}

/* dw: a block has a tile of an expert's gradient; each source's sum is added (and rounded) before the next one's */
template <typename T> static __global__ void __launch_bounds__(MMA_THREADS) grouped_dw_mma(const __grid_constant__ struct expert_product z)
{
    DYNAMIC_SHARED(T, all);
    struct expert_place p = { (size_t)blockIdx.x * TILE_SIDE, z.M, (size_t)blockIdx.y * TILE_SIDE, z.N, 0, 0, 0 };
    int from = 0;

    for (int k = (int)blockIdx.z; k < z.of.groups; k += z.of.experts) {
        p.begin = p.end + groups_rows(z.of, from, k);
        p.end = p.begin + (size_t)z.of.counts[k];
        from = k + 1;
        if (p.begin < p.end && p.end <= z.K) tile_product<T, true, true, true>(all, z, p, blockIdx.z * z.to_each);
    }
}

/* ---- launches ---- */

static inline struct expert_rows rows_of(const struct view *v)
{
    struct expert_rows x = { global_of<byte>(v->data), (long long)view_last(v), 0 };

    x.aligned = pack_aligned(x.data, 16);
    return x;
}

static struct expert_product grouped_mma_product_of(const struct call *c)
{
    struct expert_product z = {};

    z.left = rows_of(&c->in[0]);
    z.right = rows_of(&c->in[1]);
    z.to = array_out(c, 0);
    z.of = groups_of(c);
    return z;
}

#define STAGE_BYTES ((size_t)STAGES * 2 * STAGE_ROOM * 2)

template <typename T> static void grouped_mma_of(const struct call *c, const struct expert_product &z)
{
    dim3 grid(blocks_of(z.M, TILE_SIDE) + (unsigned)z.of.groups, blocks_of(z.N, TILE_SIDE));

    if (c->op == OP_GROUPED_LINEAR)
        launch(c, KERNEL(grouped_rows_mma<T, false>), grid, MMA_THREADS, STAGE_BYTES, z);
    else if (c->op == OP_GROUPED_LINEAR_DX)
        launch(c, KERNEL(grouped_rows_mma<T, true>), grid, MMA_THREADS, STAGE_BYTES, z);
    else
        launch(c, KERNEL(grouped_dw_mma<T>), dim3(blocks_of(z.M, TILE_SIDE), blocks_of(z.N, TILE_SIDE), (unsigned)z.of.experts),
               MMA_THREADS, STAGE_BYTES, z);
}

static void run_grouped_mma(const struct call *c)
{
    bool gradient = c->op == OP_GROUPED_LINEAR_DW;
    struct expert_product z = grouped_mma_product_of(c);

    z.M = gradient ? view_last(&c->in[0]) : view_rows(&c->in[0]);
    z.N = gradient ? view_last(&c->in[1]) : view_last(&c->out[0]);
    z.K = gradient ? view_rows(&c->in[0]) : view_last(&c->in[0]);
    z.right_each = gradient ? 0 : (long long)(c->in[1].size[1] * c->in[1].size[2]);
    z.to_each = gradient ? (long long)(z.M * z.N) : 0;
    if (!view_rows(&c->in[0])) return;
    if (c->in[0].dtype == LS_BF16)
        grouped_mma_of<__nv_bfloat16>(c, z);
    else
        grouped_mma_of<__half>(c, z);
    if (!gradient) groups_clear_rest(c);
}

static bool grouped_mma_accepts(const struct call *c)
{
    ls_dtype type = c->in[0].dtype;
    const size_t *w = c->op == OP_GROUPED_LINEAR_DW ? c->out[0].size : c->in[1].size;

    return (type == LS_BF16 || type == LS_F16) && is_array_of(&c->in[0], type) && is_array_of(&c->in[1], type) &&
           is_array_of(&c->in[2], LS_I32) && is_array(&c->out[0]) && w[1] % 8 == 0 && w[2] % 8 == 0 && w[1] <= 65535 * (size_t)TILE_SIDE &&
           w[2] <= 65535 * (size_t)TILE_SIDE && view_last(&c->in[2]) <= 65535 && view_count(&c->in[2]) < 1 << 20;
}

const struct kernel kernels_cuda_grouped_mma[] = {
    CUDA_MMA_ROW(GROUPED_LINEAR, grouped_mma_accepts, NULL, run_grouped_mma),
    CUDA_MMA_ROW(GROUPED_LINEAR_DX, grouped_mma_accepts, NULL, run_grouped_mma),
    CUDA_MMA_ROW(GROUPED_LINEAR_DW, grouped_mma_accepts, NULL, run_grouped_mma),
    CUDA_ROWS_END,
};
