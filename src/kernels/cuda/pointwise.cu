/* pointwise.cu - element by element: arithmetic, activations and their gradients, dropout; cpu/ref/pointwise.c has the formulas.
 *
 * A thread computes four elements. The kind of the op is an argument, the same for all threads. Operands of any strides go one element a
 * thread.
 */
#include "kernels/cuda/array.h"
#include "kernels/cuda/philox.h"

enum { EACH = 4 };
enum expr {
    EXPR_ADD,
    EXPR_MUL,
    EXPR_SCALE,
    EXPR_RELU,
    EXPR_GELU_TANH,
    EXPR_GELU_ERF,
    EXPR_SILU,
    EXPR_RELU_GRAD,
    EXPR_GELU_TANH_GRAD,
    EXPR_GELU_ERF_GRAD,
    EXPR_SILU_GRAD,
    EXPR_RELU_SQUARED,
    EXPR_RELU_SQUARED_GRAD,
    EXPR_SWIGLU,
    EXPR_SWIGLU_GRAD,
    EXPR_FILL,
    EXPR_MSE_GRAD
};

#define ROOT_2_OVER_PI 0.79788456080286535588f
#define CUBIC          0.044715f

static __device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }
static __device__ inline float relu(float x) { return x > 0 ? x : x != x ? x : 0; }
static __device__ inline float gelu_inner(float x) { return 2 * ROOT_2_OVER_PI * (x + CUBIC * x * x * x); }

/* sigmoid(x) and sigmoid(-x), with one exponential, which is at most 1, and one division. */
struct sigmoids {
    float of, of_negative;
};

static __device__ inline struct sigmoids sigmoids_of(float x)
{
    float e = expf(-fabsf(x)), larger = 1 / (1 + e), smaller = e * larger;
    struct sigmoids s = { x >= 0 ? larger : smaller, x >= 0 ? smaller : larger };

    return s;
}

static __device__ inline float silu_slope(float x, struct sigmoids s) { return s.of * (1 + x * s.of_negative); }

static __device__ inline float gelu_tanh_slope(float x)
{
    struct sigmoids s = sigmoids_of(gelu_inner(x));

    return s.of + x * 2 * s.of * s.of_negative * ROOT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
}

static __device__ inline float gelu_erf_slope(float x)
{
    return 0.5f * erfcf(-x * 0.70710678118654752440f) + x * expf(-0.5f * x * x) * 0.39894228040143267794f;
}

/* The result for the inputs a, b, d and the constant k. */
static __device__ inline float expr_value(int expr, float k, float a, float b)
{
    switch (expr) {
    case EXPR_ADD: return a + b;
    case EXPR_MUL: return a * b;
    case EXPR_SCALE: return a * k;
    case EXPR_RELU: return relu(a);
    case EXPR_GELU_TANH: return a * sigmoid(gelu_inner(a));
    case EXPR_GELU_ERF: return 0.5f * a * erfcf(-a * 0.70710678118654752440f);
    case EXPR_SILU: return a * sigmoid(a);
    case EXPR_RELU_GRAD: return a > 0 ? b : 0;
    case EXPR_GELU_TANH_GRAD: return gelu_tanh_slope(a) * b;
    case EXPR_GELU_ERF_GRAD: return gelu_erf_slope(a) * b;
    case EXPR_SILU_GRAD: return silu_slope(a, sigmoids_of(a)) * b;
    case EXPR_RELU_SQUARED: return relu(a) * relu(a);
    case EXPR_RELU_SQUARED_GRAD: return 2 * relu(a) * b;
    case EXPR_SWIGLU: return a * sigmoid(a) * b;
    case EXPR_MSE_GRAD: return k * (a - b);
    default: return k;
    }
}

struct pointwise {
    int expr, inputs;
    float k;
    struct array a, b, d, y, z; /* d: SWIGLU_GRAD's dy, MSE_GRAD's dloss; z: SWIGLU_GRAD's du */
    size_t count, repeat;       /* b has `repeat` elements */
};

static __global__ void __launch_bounds__(BLOCK_THREADS) pointwise_packs(struct pointwise p)
{
    size_t i = ((size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * EACH;
    float4s a, b, d, y, z;
    float k = p.k;

    if (i >= p.count) return;
    size_t left = p.count - i;
    if (p.expr == EXPR_MSE_GRAD) k *= array_get(p.d, 0);
    if (p.inputs > 0) a = array_load4(p.a, i, left, true);
    if (p.inputs > 1) {
        if (p.repeat == p.count || p.repeat % EACH == 0)
            b = array_load4(p.b, p.repeat == p.count ? i : i % p.repeat, left, true);
        else
            for (int n = 0; n < EACH; n++) b.v[n] = (size_t)n < left ? array_get(p.b, (i + n) % p.repeat) : 0;
    }
    if (p.inputs > 2) d = array_load4(p.d, i, left, true);
    for (int n = 0; n < EACH; n++) {
        float one = p.inputs > 0 ? a.v[n] : 0, two = p.inputs > 1 ? b.v[n] : 0;

        if (p.expr == EXPR_SWIGLU_GRAD) {
            struct sigmoids s = sigmoids_of(one);

            y.v[n] = d.v[n] * two * silu_slope(one, s);
            z.v[n] = d.v[n] * one * s.of;
        } else {
            y.v[n] = expr_value(p.expr, k, one, two);
        }
    }
    array_store4(p.y, i, left, true, y);
    if (p.expr == EXPR_SWIGLU_GRAD) array_store4(p.z, i, left, true, z);
}

/* The same for any strides. */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    pointwise_strided(int expr, int inputs, float k, const __grid_constant__ struct strided a, const __grid_constant__ struct strided b,
                      const __grid_constant__ struct strided d, const __grid_constant__ struct strided y,
                      const __grid_constant__ struct strided z, size_t count, size_t repeat)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;

    if (i >= count) return;
    if (expr == EXPR_MSE_GRAD) k *= strided_get(d, 0);
    float one = inputs > 0 ? strided_get(a, i) : 0;
    float two = inputs > 1 ? strided_get(b, i % repeat) : 0;
    if (expr == EXPR_SWIGLU_GRAD) {
        struct sigmoids s = sigmoids_of(one);
        float dy = strided_get(d, i);

        strided_put(y, i, dy * two * silu_slope(one, s));
        strided_put(z, i, dy * one * s.of);
    } else {
        strided_put(y, i, expr_value(expr, k, one, two));
    }
}

/* FILL and ACCUMULATE of f64: y = value, or y += x. */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    pointwise_doubles(global<const double> x, global<double> y, double value, size_t count)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;

    if (i >= count) return;
    if (x)
        y[i] += x[i];
    else
        y[i] = value;
}

static bool is_doubles(const struct call *c)
{
    return (c->op == OP_FILL || (c->op == OP_ACCUMULATE && is_array_of(&c->in[0], LS_F64))) && is_array_of(&c->out[0], LS_F64);
}

static int expr_of(const struct call *c)
{
    switch (c->op) {
    case OP_ADD: return EXPR_ADD;
    case OP_MUL: return EXPR_MUL;
    case OP_SCALE: return EXPR_SCALE;
    case OP_UNARY: return EXPR_RELU + (int)c->attr.unary.kind;
    case OP_UNARY_GRAD: return EXPR_RELU_GRAD + (int)c->attr.unary.kind;
    case OP_RELU_SQUARED: return EXPR_RELU_SQUARED;
    case OP_RELU_SQUARED_GRAD: return EXPR_RELU_SQUARED_GRAD;
    case OP_SWIGLU: return EXPR_SWIGLU;
    case OP_SWIGLU_GRAD: return EXPR_SWIGLU_GRAD;
    case OP_MSE_GRAD: return EXPR_MSE_GRAD;
    case OP_ACCUMULATE: return EXPR_ADD;
    default: return EXPR_FILL;
    }
}

static bool pointwise_accepts(const struct call *c)
{
    if (is_doubles(c)) return true;
    for (int i = 0; i < c->nin; i++)
        if (!is_half_or_float(&c->in[i])) return false;
    for (int i = 0; i < c->nout; i++)
        if (!is_half_or_float(&c->out[i])) return false;
    return true;
}

/* ACCUMULATE: y += x, which is ADD with y as the second input. */
static const struct view *pointwise_in(const struct call *c, int i)
{
    return c->op == OP_ACCUMULATE && i == 1 ? &c->out[0] : i < c->nin ? &c->in[i] : NULL;
}

static void run_pointwise(const struct call *c)
{
    size_t count = view_count(&c->out[0]);
    int inputs = c->op == OP_MSE_GRAD ? 2 : c->op == OP_ACCUMULATE ? 2 : c->nin, expr = expr_of(c);
    const struct view *in[3] = { pointwise_in(c, 0), pointwise_in(c, 1), pointwise_in(c, 2) };
    float k = c->op == OP_SCALE || c->op == OP_FILL ? (float)c->attr.scale.value : 0;
    size_t repeat = inputs > 1 ? view_count(in[1]) : 0;

    if (c->op == OP_MSE_GRAD) k = (float)(2 / (double)count);
    if (is_doubles(c)) {
        launch(c, KERNEL(pointwise_doubles), blocks_of(count, BLOCK_THREADS), BLOCK_THREADS, 0,
               c->nin ? global_of<const double>(c->in[0].data) : global<const double>(nullptr), global_of<double>(c->out[0].data),
               c->attr.scale.value, count);
        return;
    }
    if (all_arrays(c)) {
        struct pointwise p = { expr,
                               inputs,
                               k,
                               in[0] ? array_of(in[0]) : array_none(),
                               in[1] ? array_of(in[1]) : array_none(),
                               in[2] ? array_of(in[2]) : array_none(),
                               array_out(c, 0),
                               array_out(c, 1),
                               count,
                               repeat };

        launch(c, KERNEL(pointwise_packs), blocks_of(count, BLOCK_THREADS * EACH), BLOCK_THREADS, 0, p);
    } else {
        struct strided none = {}, s[3];

        for (int i = 0; i < 3; i++) s[i] = in[i] ? strided_of(in[i]) : none;
        launch(c, KERNEL(pointwise_strided), blocks_of(count, BLOCK_THREADS), BLOCK_THREADS, 0, expr, inputs, k, s[0], s[1], s[2],
               strided_of(&c->out[0]), c->nout > 1 ? strided_of(&c->out[1]) : none, count, repeat);
    }
}

/* ---- dropout ---- */

struct dropout {
    unsigned long long seed, stream, first, threshold; /* an element is kept if its 53 random bits are at least the threshold */
    float scale;
    size_t count, row;            /* row: elements of the unsharded x in one row of its first dim */
    size_t mine, split, begin[2]; /* elements of a row here, [0, split) of them at begin[0], the others at begin[1]; mine 0: not sharded */
    int steps;
};

/* dropout_index() of kernel.h. */
static __device__ inline unsigned long long dropout_index_of(const struct dropout &z, unsigned long long first, size_t i)
{
    if (!z.mine) return first + i;
    size_t at = i % z.mine;
    return first + i / z.mine * z.row + (at < z.split ? z.begin[0] + at : z.begin[1] + at - z.split);
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    dropout_packs(struct dropout z, struct array x, global<const long long> step, struct array y)
{
    size_t i = ((size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * EACH;
    unsigned long long first = z.first, done = ~0ull;
    unsigned word[4] = {};

    if (i >= z.count) return;
    size_t left = z.count - i;
    unsigned long long stream = z.stream ^ (unsigned long long)step[0];
    if (z.steps > 1) first += (unsigned long long)step[1] * z.row;
    float4s v = array_load4(x, i, left, true);
    for (int n = 0; n < EACH && (size_t)n < left; n++) {
        unsigned long long index = dropout_index_of(z, first, i + n), bits;

        if (index / 2 != done) philox(z.seed, stream, done = index / 2, word);
        bits =
            index % 2 ? (unsigned long long)(word[2] >> 5) << 26 | word[3] >> 6 : (unsigned long long)(word[0] >> 5) << 26 | word[1] >> 6;
        v.v[n] = bits >= z.threshold ? v.v[n] * z.scale : 0;
    }
    array_store4(y, i, left, true, v);
}

static bool dropout_accepts(const struct call *c)
{
    return is_array(&c->in[0]) && is_array(&c->out[0]) && is_array_of(&c->in[1], LS_I64) && c->attr.dropout.p >= 0 && c->attr.dropout.p < 1;
}

static void run_dropout(const struct call *c)
{
    const struct view *x = &c->in[0];
    size_t inner = 1, full = c->attr.dropout.full, count = view_count(x);
    struct dropout z = {};

    for (int d = 2; d < x->ndim; d++) inner *= x->size[d];
    z.seed = c->attr.dropout.seed;
    z.stream = c->attr.dropout.stream;
    z.first = c->attr.dropout.first;
    z.threshold = (unsigned long long)ceil(c->attr.dropout.p * 0x1p53);
    z.scale = (float)(1 / (1 - c->attr.dropout.p));
    z.count = count;
    z.row = full ? full * inner : x->ndim > 0 && x->size[0] > 0 ? count / x->size[0] : 0;
    z.steps = (int)view_count(&c->in[1]);
    if (full) {
        z.mine = x->size[1] * inner;
        z.split = c->attr.dropout.count[0] * inner;
        for (int k = 0; k < 2; k++) z.begin[k] = c->attr.dropout.begin[k] * inner;
    }
    launch(c, KERNEL(dropout_packs), blocks_of(count, BLOCK_THREADS * EACH), BLOCK_THREADS, 0, z, array_in(c, 0),
           global_of<const long long>(c->in[1].data), array_out(c, 0));
}

const struct kernel kernels_cuda_pointwise[] = {
    CUDA_ROW(ADD, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(MUL, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(SCALE, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(UNARY, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(UNARY_GRAD, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(RELU_SQUARED, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(RELU_SQUARED_GRAD, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(SWIGLU, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(SWIGLU_GRAD, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(FILL, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(MSE_GRAD, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(ACCUMULATE, pointwise_accepts, NULL, run_pointwise),
    CUDA_ROW(DROPOUT, dropout_accepts, NULL, run_dropout),
    CUDA_ROWS_END,
};
