/* pool.cu - pooling, a thread an element of the result; cpu/ref/image.c has the rules. */
#include "kernels/cuda/array.h"

struct pool {
    size_t H, W, OH, OW, height, width, stride, padding;
};

/* *at: the offset in its input plane of position (k, l) of the window of output (i, j). False if the position is in the padding. */
static __device__ inline bool pool_inside(const struct pool &p, size_t i, size_t j, size_t k, size_t l, size_t *at)
{
    size_t h = i * p.stride + k - p.padding, w = j * p.stride + l - p.padding; /* before the edge: wraps to beyond it */

    *at = h * p.W + w;
    return h < p.H && w < p.W;
}

/* The first largest element of a window; a NaN is larger than all. */
static __device__ inline size_t pool_largest(const struct pool &p, const struct strided &x, size_t plane, size_t i, size_t j)
{
    size_t best = 0, at;
    float most = -INFINITY;
    bool found = false;

    for (size_t k = 0; k < p.height; k++)
        for (size_t l = 0; l < p.width; l++) {
            if (!pool_inside(p, i, j, k, l, &at)) continue;
            float value = strided_get(x, plane * p.H * p.W + at);
            if (!found || value > most || (value != value && most == most)) {
                most = value;
                best = at;
            }
            found = true;
        }
    return best;
}

static __global__ void __launch_bounds__(BLOCK_THREADS) pool_forward(struct pool p, int average, const __grid_constant__ struct strided x,
                                                                     const __grid_constant__ struct strided y, size_t count)
{
    size_t n = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x, j, i, at;
    float sum = 0;

    if (n >= count) return;
    size_t plane = divide(divide(n, p.OW, &j), p.OH, &i);
    if (!average) {
        strided_put(y, n, strided_get(x, plane * p.H * p.W + pool_largest(p, x, plane, i, j)));
        return;
    }
    for (size_t k = 0; k < p.height; k++)
        for (size_t l = 0; l < p.width; l++)
            if (pool_inside(p, i, j, k, l, &at)) sum += strided_get(x, plane * p.H * p.W + at);
    strided_put(y, n, sum / (float)(p.height * p.width));
}

/* Window k before position `at`, or none. */
static __device__ inline bool pool_window(size_t at, size_t k, size_t stride, size_t windows, size_t *i)
{
    *i = at < k || (at - k) % stride ? windows : (at - k) / stride;
    return *i < windows;
}

/* A pixel collects from the windows that have it: all of them, or those whose largest element it is. */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    pool_backward(struct pool p, int average, const __grid_constant__ struct strided x, const __grid_constant__ struct strided dy,
                  const __grid_constant__ struct strided dx, size_t count)
{
    size_t n = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x, w, h, i, j;
    float sum = 0;

    if (n >= count) return;
    size_t plane = divide(divide(n, p.W, &w), p.H, &h);
    for (size_t k = p.height; k-- > 0;)
        for (size_t l = p.width; l-- > 0;) {
            if (!pool_window(h + p.padding, k, p.stride, p.OH, &i) || !pool_window(w + p.padding, l, p.stride, p.OW, &j)) continue;
            if (average || pool_largest(p, x, plane, i, j) == h * p.W + w) sum += strided_get(dy, (plane * p.OH + i) * p.OW + j);
        }
    strided_put(dx, n, average ? sum / (float)(p.height * p.width) : sum);
}

static void run_pool(const struct call *c)
{
    bool down = c->op == OP_MAX_POOL2D || c->op == OP_AVG_POOL2D, average = c->op == OP_AVG_POOL2D || c->op == OP_AVG_POOL2D_GRAD;
    const struct view *dy = &c->in[average ? 0 : 1], *x = down ? &c->in[0] : &c->out[0], *y = down ? &c->out[0] : dy;
    struct pool p = { x->size[2],          x->size[3],         y->size[2],          y->size[3],
                      c->attr.pool.height, c->attr.pool.width, c->attr.pool.stride, c->attr.pool.padding };
    size_t count = view_count(&c->out[0]);

    if (down)
        launch(c, KERNEL(pool_forward), blocks_of(count, BLOCK_THREADS), BLOCK_THREADS, 0, p, (int)average, strided_of(&c->in[0]),
               strided_of(&c->out[0]), count);
    else
        launch(c, KERNEL(pool_backward), blocks_of(count, BLOCK_THREADS), BLOCK_THREADS, 0, p, (int)average, strided_of(&c->in[0]),
               strided_of(dy), strided_of(&c->out[0]), count);
}

static bool pool_accepts(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (!is_half_or_float(&c->in[i])) return false;
    return is_half_or_float(&c->out[0]);
}

const struct kernel kernels_cuda_pool[] = {
    CUDA_ROW(MAX_POOL2D, pool_accepts, NULL, run_pool),
    CUDA_ROW(MAX_POOL2D_GRAD, pool_accepts, NULL, run_pool),
    CUDA_ROW(AVG_POOL2D, pool_accepts, NULL, run_pool),
    CUDA_ROW(AVG_POOL2D_GRAD, pool_accepts, NULL, run_pool),
    CUDA_ROWS_END,
};
