/* attention_mma_grad.cu - gradients of attention on tensor cores: bf16 and f16, head sizes to 128 in eights; cpu/ref/attention.c has the
 * formulas.
 *
 * p and dscore are computed again from lse, once by the blocks of dq, whose rows are queries, and once by those of dk and dv, whose rows
 * are keys (with the transposed scores, so that p and dscore are left operands in registers in both): no sum goes through atomics. The next
 * tile arrives while one is computed with.
 */
#include "kernels/cuda/attention_mma.h"

enum { MOST_GRAD_D = 128 };

/* delta[b,h,t] = sum over d of do o. A warp a row. */
template <typename T> static __global__ void attention_delta_mma(const __grid_constant__ struct attention z, size_t rows)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y, h, t;
    float sum = 0;

    if (row >= rows) return;
    size_t b = divide(divide(row, (size_t)z.T, &t), (size_t)z.H, &h);
    for (int d = threadIdx.x; d < z.d; d += 32) {
        long long place = b * z.o.batch + t * z.o.row + h * z.o.head + d, other = b * z.dout.batch + t * z.dout.row + h * z.dout.head + d;

        sum += float_of(global_as<const T>(z.o.data)[place]) * float_of(global_as<const T>(z.dout.data)[other]);
    }
    sum = warp_reduce<sum_of>(sum);
    if (threadIdx.x == 0) z.delta[row] = sum;
}

/* What a row's scores are relative to, for exponentials of base 2; a row that sees no key has no finite one and needs none. */
static __device__ inline float row_base(const struct attention &z, long long stat)
{
    float lse = z.lse[stat];

    return lse == -INFINITY ? 0 : lse * LOG2_E;
}

/* ---- dq ---- */

/* A tile of keys and after it their values. */
template <typename T, int D, int COLUMNS>
static __device__ inline void keys_load(shared<T> to, const struct attention &z, int b, int group, int s0)
{
    tile_load<T, COLUMNS, D>(to, z.k, b, group, s0, z.S, z.d);
    tile_load<T, COLUMNS, D>(to + COLUMNS * TILE_STRIDE(D), z.v, b, group, s0, z.S, z.d);
}

template <typename T, int D, int COLUMNS>
static __global__ void __launch_bounds__(THREADS, 2) attention_dq_mma(const __grid_constant__ struct attention z)
{
    DYNAMIC_SHARED(T, q);
    const int PAIR = 2 * COLUMNS * TILE_STRIDE(D);
    shared<T> dout = q + ROWS * TILE_STRIDE(D), tiles = dout + ROWS * TILE_STRIDE(D);
    int lane = threadIdx.x % 32, b = blockIdx.z, h = blockIdx.y, group = h / (z.H / z.G), warp_row = threadIdx.x / 32 * 16;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, warp_first = first + warp_row, row = warp_first + mma_row(lane, 0);
    int block_most = attention_visible(z, z.S, min(first + ROWS, z.T) - 1), warp_least = attention_visible(z, z.S, warp_first);
    int warp_most = warp_first < z.T ? attention_visible(z, z.S, warp_first + 15) : 0;
    float base[2] = {}, delta[2] = {}, factors[2] = { z.scale, z.scale };
    int turn = 0;
    struct mma_c own[D / 8] = {}, p[COLUMNS / 8], ds[COLUMNS / 8];

    for (int i = 0; i < 2; i++)
        if (row + 8 * i < z.T) {
            long long stat = ((long long)b * z.H + h) * z.T + row + 8 * i;

            base[i] = row_base(z, stat);
            delta[i] = z.delta[stat];
        }
    tile_load<T, ROWS, D>(q, z.q, b, h, first, z.T, z.d);
    tile_load<T, ROWS, D>(dout, z.dout, b, h, first, z.T, z.d);
    keys_load<T, D, COLUMNS>(tiles, z, b, group, 0);
    copy_async_commit();
    for (int s0 = 0; s0 < block_most; s0 += COLUMNS, turn = !turn) {
        shared<T> k = tiles + turn * PAIR, v = k + PAIR / 2;

        __syncthreads();
        if (s0 + COLUMNS < block_most) keys_load<T, D, COLUMNS>(tiles + !turn * PAIR, z, b, group, s0 + COLUMNS);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        if (s0 >= warp_most) continue;
        tile_scores<T, D, COLUMNS>(p, q + warp_row * TILE_STRIDE(D), k);
        tile_scores<T, D, COLUMNS>(ds, dout + warp_row * TILE_STRIDE(D), v);
        if (s0 + COLUMNS > warp_least) {
            int mine[2] = { attention_visible(z, z.S, row), attention_visible(z, z.S, row + 8) };

#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++)
                for (int i = 0; i < 4; i++)
                    if (s0 + 8 * n + mma_column(lane, i) >= mine[i / 2]) p[n].v[i] = -INFINITY;
        }
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
            for (int i = 0; i < 4; i++) ds[n].v[i] = exp2f(p[n].v[i] * z.factor - base[i / 2]) * (ds[n].v[i] - delta[i / 2]);
        tile_accumulate<T, D, COLUMNS>(own, ds, k);
    }
    copy_async_wait<0>();
    rows_put<T, D>(z.out, b, h, row, z.T, own, factors, z.d);
}

/* ---- dk and dv ---- */

/* The tiles of queries that attend to keys from `first` on, of all heads of their group, one head after another. */
struct queries {
    int b, first_head, begin, tiles; /* begin: first query of a head, a multiple of the tile; tiles: tiles per head */
};

static __device__ inline struct queries queries_of(const struct attention &z, int first, int columns)
{
    int begin = z.causal ? max(0, first - (z.S - z.T)) / columns * columns : 0;
    struct queries y = { (int)blockIdx.z, (int)blockIdx.y * (z.H / z.G), begin, (max(0, z.T - begin) + columns - 1) / columns };

    return y;
}

/* Tile i: queries, do after them; base and delta of each query, 0 for those beyond the last. */
template <typename T, int D, int COLUMNS>
static __device__ inline void queries_load(shared<T> to, shared<float> stats, const struct attention &z, const struct queries &y, int i)
{
    int h = y.first_head + i / y.tiles, t0 = y.begin + i % y.tiles * COLUMNS, t = t0 + (int)threadIdx.x;
    long long stat = ((long long)y.b * z.H + h) * z.T + t;

    tile_load<T, COLUMNS, D>(to, z.q, y.b, h, t0, z.T, z.d);
    tile_load<T, COLUMNS, D>(to + COLUMNS * TILE_STRIDE(D), z.dout, y.b, h, t0, z.T, z.d);
    if (threadIdx.x >= COLUMNS) return;
    stats[threadIdx.x] = t < z.T ? row_base(z, stat) : 0;
    stats[COLUMNS + threadIdx.x] = t < z.T ? (float)z.delta[stat] : 0;
}

/* A tile's scores and do v become p and dscore; columns are queries. */
template <int COLUMNS> static __device__ inline void pairs_of(struct mma_c *p, struct mma_c *ds, float factor, shared<const float> stats)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
        for (int k = 0; k < 2; k++) {
            float base = stats[8 * n + mma_column(lane, k)], delta = stats[COLUMNS + 8 * n + mma_column(lane, k)];

            for (int i = k; i < 4; i += 2) {
                p[n].v[i] = exp2f(p[n].v[i] * factor - base);
                ds[n].v[i] = p[n].v[i] * (ds[n].v[i] - delta);
            }
        }
}

/* A row is a key; the queries of all heads of its group come in tiles. */
template <typename T, int D, int COLUMNS>
static __global__ void __launch_bounds__(THREADS, 2) attention_dkv_mma(const __grid_constant__ struct attention z)
{
    DYNAMIC_SHARED(T, k);
    const int PAIR = 2 * COLUMNS * TILE_STRIDE(D);
    shared<T> v = k + ROWS * TILE_STRIDE(D), tiles = v + ROWS * TILE_STRIDE(D);
    shared<float> stats = shared_as<float>(tiles + 2 * PAIR);
    int lane = threadIdx.x % 32, b = blockIdx.z, group = blockIdx.y, warp_row = threadIdx.x / 32 * 16, first = blockIdx.x * ROWS;
    int row = first + warp_row + mma_row(lane, 0), turn = 0;
    struct queries y = queries_of(z, first, COLUMNS);
    int count = y.tiles * (z.H / z.G);
    float factors[2] = { z.scale, z.scale }, ones[2] = { 1, 1 };
    struct mma_c dk[D / 8] = {}, dv[D / 8] = {}, p[COLUMNS / 8], ds[COLUMNS / 8];

    tile_load<T, ROWS, D>(k, z.k, b, group, first, z.S, z.d);
    tile_load<T, ROWS, D>(v, z.v, b, group, first, z.S, z.d);
    if (count) queries_load<T, D, COLUMNS>(tiles, stats, z, y, 0);
    copy_async_commit();
    for (int i = 0; i < count; i++, turn = !turn) {
        shared<T> q = tiles + turn * PAIR, dout = q + PAIR / 2;
        int seen = y.begin + i % y.tiles * COLUMNS + z.S - z.T; /* the last key that the tile's first query sees, if causal */

        __syncthreads();
        if (i + 1 < count) queries_load<T, D, COLUMNS>(tiles + !turn * PAIR, stats + !turn * 2 * COLUMNS, z, y, i + 1);
        copy_async_commit();
        copy_async_wait<1>();
        __syncthreads();
        if (z.causal && first + warp_row > seen + COLUMNS - 1) continue;
        tile_scores<T, D, COLUMNS>(p, k + warp_row * TILE_STRIDE(D), q);
        tile_scores<T, D, COLUMNS>(ds, v + warp_row * TILE_STRIDE(D), dout);
        if (z.causal && first + warp_row + 15 > seen) {
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++)
                for (int e = 0; e < 4; e++)
                    if (row + e / 2 * 8 > seen + 8 * n + mma_column(lane, e)) p[n].v[e] = -INFINITY;
        }
        pairs_of<COLUMNS>(p, ds, z.factor, stats + turn * 2 * COLUMNS);
        tile_accumulate<T, D, COLUMNS>(dv, p, dout);
        tile_accumulate<T, D, COLUMNS>(dk, ds, q);
    }
    copy_async_wait<0>();
    rows_put<T, D>(z.out, b, group, row, z.S, dk, factors, z.d);
    rows_put<T, D>(z.out2, b, group, row, z.S, dv, ones, z.d);
}

/* ---- launches ---- */

template <typename T, int D, int COLUMNS> static void dq_launch(const struct call *c, const struct attention &z)
{
    dim3 grid(blocks_of((size_t)z.T, ROWS), (unsigned)z.H, (unsigned)c->in[0].size[0]);

    launch(c, KERNEL(attention_dq_mma<T, D, COLUMNS>), grid, THREADS, TILE_BYTES(2 * ROWS + 4 * COLUMNS, D), z);
}

template <typename T, int D, int COLUMNS> static void dkv_launch(const struct call *c, const struct attention &z)
{
    dim3 grid(blocks_of((size_t)z.S, ROWS), (unsigned)z.G, (unsigned)c->in[0].size[0]);
    size_t bytes = TILE_BYTES(2 * ROWS + 4 * COLUMNS, D) + 4 * COLUMNS * sizeof(float);

    launch(c, KERNEL(attention_dkv_mma<T, D, COLUMNS>), grid, THREADS, bytes, z);
}

template <typename T> static void attention_grad_of(const struct call *c, struct attention z)
{
    size_t rows = view_rows(&c->in[0]);

    launch(c, KERNEL(attention_delta_mma<T>), blocks_of(rows, ROWS_MOST), dim3(32, ROWS_MOST), 0, z, rows);
    z.out = operand_of(&c->out[0]);
    if (z.d <= 64)
        dq_launch<T, 64, 64>(c, z);
    else if (z.d <= 96)
        dq_launch<T, 96, 32>(c, z);
    else
        dq_launch<T, 128, 32>(c, z);
    z.out = operand_of(&c->out[1]);
    z.out2 = operand_of(&c->out[2]);
    if (z.d <= 64)
        dkv_launch<T, 64, 32>(c, z);
    else if (z.d <= 96)
        dkv_launch<T, 96, 32>(c, z);
    else
        dkv_launch<T, 128, 32>(c, z);
}

static void run_attention_grad(const struct call *c)
{
    struct attention z = attention_of(c);

    z.o = operand_of(&c->in[3]);
    z.lse = global_as<float>(global_of<byte>(c->in[4].data));
    z.dout = operand_of(&c->in[5]);
    z.delta = global_of<float>(c->scratch);
    if (c->in[0].dtype == LS_BF16)
        attention_grad_of<__nv_bfloat16>(c, z);
    else
        attention_grad_of<__half>(c, z);
}

static size_t attention_mma_grad_scratch(const struct call *c) { return view_rows(&c->in[0]) * sizeof(float); }

static bool attention_grad_accepts(const struct call *c)
{
    for (int i = 0; i < 6; i++)
        if (i != 4 && !is_operand(&c->in[i], c->in[0].dtype, MOST_GRAD_D)) return false;
    for (int i = 0; i < c->nout; i++)
        if (!is_operand(&c->out[i], c->in[0].dtype, MOST_GRAD_D)) return false;
    return attention_sizes_accepted(c) && is_array_of(&c->in[4], LS_F32) && !call_has_in(c, 6);
}

const struct kernel kernels_cuda_attention_mma_grad[] = {
    CUDA_MMA_ROW(ATTENTION_GRAD, attention_grad_accepts, attention_mma_grad_scratch, run_attention_grad),
    CUDA_ROWS_END,
};
