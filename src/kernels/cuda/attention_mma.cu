/* attention_mma.cu - forward attention on tensor cores: bf16 and f16, head sizes to 256 in eights; cpu/ref/attention.c has the formulas.
 *
 * As in FlashAttention-2: a warp keeps the running maximum and sum of its 16 queries and their unscaled output in registers, and goes over
 * the keys in tiles. The values of a tile arrive while its scores are computed, the next keys while values are summed. Exponentials have
 * base 2. Blocks with the most keys start first.
 */
#include "kernels/cuda/attention_mma.h"

/* Scores of a tile of keys that begins at s0 become probabilities, relative to the new maximum; what the row has is scaled to it. */
template <int D, int COLUMNS>
static __device__ inline void softmax_step(struct mma_c *own, struct mma_c *s, float *most, float *sum, float factor)
{
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        float before = most[i / 2], now = before, base, keep, local = 0;

#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) now = fmaxf(now, fmaxf(s[n].v[i], s[n].v[i + 1]));
        now = lanes_reduce<largest_of>(now);
        base = now == -INFINITY ? 0 : now * factor;
        keep = exp2f(before * factor - base);
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++)
            for (int k = i; k < i + 2; k++) {
                s[n].v[k] = exp2f(s[n].v[k] * factor - base);
                local += s[n].v[k];
            }
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            for (int k = i; k < i + 2; k++) own[n].v[k] *= keep;
        most[i / 2] = now;
        sum[i / 2] = sum[i / 2] * keep + local;
    }
}

/* BLOCKS: least number of blocks that a multiprocessor must hold, which limits the registers. */
template <typename T, int D, int COLUMNS, int BLOCKS>
static __global__ void __launch_bounds__(THREADS, BLOCKS) attend_mma(const __grid_constant__ struct attention z)
{
    DYNAMIC_SHARED(T, q);
    shared<T> k = q + ROWS * TILE_STRIDE(D), v = k + COLUMNS * TILE_STRIDE(D);
    int lane = threadIdx.x % 32, b = blockIdx.z, h = blockIdx.y, group = h / (z.H / z.G), keys = attention_keys(z);
    int first = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, warp_row = threadIdx.x / 32 * 16, warp_first = first + warp_row;
    int block_most = attention_visible(z, keys, min(first + ROWS, z.T) - 1), row = warp_first + mma_row(lane, 0);
    int warp_most = warp_first < z.T ? attention_visible(z, keys, warp_first + 15) : 0, warp_least = attention_visible(z, keys, warp_first);
    int mine[2] = { attention_visible(z, keys, row), attention_visible(z, keys, row + 8) };
    float most[2] = { -INFINITY, -INFINITY }, sum[2] = { 0, 0 };
    struct mma_c own[D / 8] = {}, s[COLUMNS / 8];

    tile_load<T, ROWS, D>(q, z.q, b, h, first, z.T, z.d);
    tile_load<T, COLUMNS, D>(k, z.k, b, group, 0, keys, z.d);
    copy_async_commit();
    for (int s0 = 0; s0 < block_most; s0 += COLUMNS) {
        bool sees = s0 < warp_most;

        copy_async_wait<0>();
        __syncthreads();
        tile_load<T, COLUMNS, D>(v, z.v, b, group, s0, keys, z.d);
        copy_async_commit();
        if (sees) tile_scores<T, D, COLUMNS>(s, q + warp_row * TILE_STRIDE(D), k);
        copy_async_wait<0>();
        __syncthreads();
        if (s0 + COLUMNS < block_most) tile_load<T, COLUMNS, D>(k, z.k, b, group, s0 + COLUMNS, keys, z.d);
        copy_async_commit();
        if (!sees) continue;
        if (s0 + COLUMNS > warp_least) {
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++)
                for (int i = 0; i < 4; i++)
                    if (s0 + 8 * n + mma_column(lane, i) >= mine[i / 2]) s[n].v[i] = -INFINITY;
        }
        softmax_step<D, COLUMNS>(own, s, most, sum, z.factor);
        tile_accumulate<T, D, COLUMNS>(own, s, v);
    }
    copy_async_wait<0>();
    for (int i = 0; i < 2; i++) {
        float total = lanes_reduce<sum_of>(sum[i]);

        if (lane % 4 == 0 && row + 8 * i < z.T)
            z.lse[((long long)b * z.H + h) * z.T + row + 8 * i] = total == 0 ? -INFINITY : most[i] * z.scale + logf(total);
        sum[i] = total == 0 ? 0 : 1 / total;
    }
    rows_put<T, D>(z.out, b, h, row, z.T, own, sum, z.d);
}

template <typename T, int D, int COLUMNS, int BLOCKS> static void attend_launch(const struct call *c, const struct attention &z)
{
    dim3 grid(blocks_of((size_t)z.T, ROWS), (unsigned)z.H, (unsigned)c->in[0].size[0]);

    launch(c, KERNEL(attend_mma<T, D, COLUMNS, BLOCKS>), grid, THREADS, TILE_BYTES(ROWS + 2 * COLUMNS, D), z);
}

template <typename T> static void attend_of(const struct call *c, const struct attention &z)
{
    if (z.d <= 64)
        attend_launch<T, 64, 64, 3>(c, z);
    else if (z.d <= 96)
        attend_launch<T, 96, 64, 2>(c, z);
    else if (z.d <= 128)
        attend_launch<T, 128, 64, 2>(c, z);
    else
        attend_launch<T, 256, 32, 1>(c, z);
}

static void run_attention(const struct call *c)
{
    struct attention z = attention_of(c);

    if (call_has_in(c, 3)) z.len = global_of<const int>(c->in[3].data);
    z.out = operand_of(&c->out[0]);
    z.lse = global_of<float>(c->out[1].data);
    if (c->in[0].dtype == LS_BF16)
        attend_of<__nv_bfloat16>(c, z);
    else
        attend_of<__half>(c, z);
}

static bool attention_accepts(const struct call *c)
{
    for (int i = 0; i < 3; i++)
        if (!is_operand(&c->in[i], c->in[0].dtype, 256)) return false;
    return attention_sizes_accepted(c) && is_operand(&c->out[0], c->in[0].dtype, 256) && is_array_of(&c->out[1], LS_F32) &&
           (!call_has_in(c, 3) || is_array_of(&c->in[3], LS_I32)) && !call_has_in(c, 4);
}

const struct kernel kernels_cuda_attention_mma[] = {
    CUDA_MMA_ROW(ATTENTION, attention_accepts, NULL, run_attention),
    CUDA_ROWS_END,
};
