/* rope.cu - rotary positions; cpu/ref/attention.c has the formulas. */
#include "kernels/cuda/array.h"

struct rope_table {
    double theta, factor, low_freq_factor, high_freq_factor, original;
    size_t T, D;
};

/* In double: an angle of thousands of radians has no digits left in f32. */
static __device__ inline double rope_frequency(const struct rope_table &z, size_t i)
{
    double f = pow(z.theta, -2.0 * (double)i / (double)z.D);

    if (z.factor == 1) return f;
    double turns = z.original * f / (2 * 3.14159265358979323846);
    if (turns < z.low_freq_factor) return f / z.factor;
    if (turns > z.high_freq_factor) return f;
    double blend = (turns - z.low_freq_factor) / (z.high_freq_factor - z.low_freq_factor);
    return (1 - blend) * f / z.factor + blend * f;
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    rope_table_all(const __grid_constant__ struct rope_table z, global<const int> positions, struct array table)
{
    size_t n = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x, half = z.D / 2, i;

    if (n >= z.T * half) return;
    size_t t = divide(n, half, &i);
    double angle = positions[t] * rope_frequency(z, i);
    array_put(table, t * z.D + i, (float)cos(angle));
    array_put(table, t * z.D + half + i, (float)sin(angle));
}

static void run_rope_table(const struct call *c)
{
    const struct rope *r = &c->attr.rope;
    struct rope_table z = {
        r->theta, r->factor, r->low_freq_factor, r->high_freq_factor, (double)r->original, view_count(&c->in[0]), view_last(&c->out[0])
    };

    launch(c, KERNEL(rope_table_all), blocks_of(z.T * (z.D / 2), BLOCK_THREADS), BLOCK_THREADS, 0, z, global_of<const int>(c->in[0].data),
           array_out(c, 0));
}

static bool rope_table_accepts(const struct call *c) { return is_array_of(&c->in[0], LS_I32) && is_array(&c->out[0]); }

/* A thread rotates one pair of elements: in place, no other thread touches them. */
static __global__ void __launch_bounds__(BLOCK_THREADS) rope_pairs(const __grid_constant__ struct strided x, struct array table,
                                                                   const __grid_constant__ struct strided y, size_t pairs, float sign)
{
    size_t n = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x, D = x.size[3], half = D / 2, i, h, t;

    if (n >= pairs) return;
    long long sample = (long long)divide(divide(divide(n, half, &i), x.size[2], &h), x.size[1], &t);
    long long from = sample * x.stride[0] + (long long)t * x.stride[1] + (long long)h * x.stride[2] + (long long)i * x.stride[3];
    long long to = sample * y.stride[0] + (long long)t * y.stride[1] + (long long)h * y.stride[2] + (long long)i * y.stride[3];
    long long from_half = from + (long long)half * x.stride[3], to_half = to + (long long)half * y.stride[3];
    float cosine = array_get(table, t * D + i);
    float sine = sign * array_get(table, t * D + half + i);
    float a = type_get(x.data, x.type, from);
    float b = type_get(x.data, x.type, from_half);
    type_put(y.data, y.type, to, a * cosine - b * sine);
    type_put(y.data, y.type, to_half, b * cosine + a * sine);
}

static void run_rope(const struct call *c)
{
    size_t pairs = view_rows(&c->in[0]) * (c->in[0].size[3] / 2);

    launch(c, KERNEL(rope_pairs), blocks_of(pairs, BLOCK_THREADS), BLOCK_THREADS, 0, strided_of(&c->in[0]), array_in(c, 1),
           strided_of(&c->out[0]), pairs, c->attr.rotate.inverse ? -1.0f : 1.0f);
}

static bool rope_accepts(const struct call *c)
{
    return is_half_or_float(&c->in[0]) && is_array(&c->in[1]) && is_half_or_float(&c->out[0]);
}

const struct kernel kernels_cuda_rope[] = {
    CUDA_ROW(ROPE_TABLE, rope_table_accepts, NULL, run_rope_table),
    CUDA_ROW(ROPE, rope_accepts, NULL, run_rope),
    CUDA_ROWS_END,
};
