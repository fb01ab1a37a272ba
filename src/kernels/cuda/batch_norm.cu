/* batch_norm.cu - batch norm per channel over samples and positions; cpu/ref/batch.c has the formulas, cpu/batch.h the statistics. Sums are
 * formed in double: a block a channel, in an order that follows from the shape.
 */
#include "kernels/cuda/array.h"
#include "kernels/cuda/reduce.h"

struct batch {
    size_t B, C, S;
    struct array x, dy, w, b, y;
    global<const double> stats, sums;
    global<const int> labels;
    double eps, momentum;
};

struct moments {
    double mean, var, count;
};

static __device__ inline struct moments moments_at(global<const double> stats, size_t C, size_t c)
{
    struct moments m = { 0, 0, stats[2 * C] };

    if (m.count > 0) {
        m.mean = stats[c] / m.count;
        m.var = fmax(stats[C + c] / m.count - m.mean * m.mean, 0.0);
    }
    return m;
}

static __device__ inline bool sample_counts(const struct batch &z, size_t b) { return !z.labels || z.labels[b] >= 0; }

/* Sums of x and x^2 over valid samples; channel 0's block writes their number, too. */
static __global__ void __launch_bounds__(BLOCK_THREADS) batch_stats(const __grid_constant__ struct batch z, global<double> stats)
{
    size_t c = blockIdx.x;
    double sum = 0, squares = 0;
    int valid = 0;

    for (size_t b = threadIdx.x; b < z.B; b += BLOCK_THREADS) valid += sample_counts(z, b);
    valid = row_sum(valid);
    for (size_t i = threadIdx.x; c < z.C && i < z.B * z.S; i += BLOCK_THREADS) {
        size_t s, b = divide(i, z.S, &s);

        if (!sample_counts(z, b)) continue;
        double x = array_get(z.x, (b * z.C + c) * z.S + s);
        sum += x;
        squares += x * x;
    }
    sum = row_sum(sum);
    squares = row_sum(squares);
    if (threadIdx.x) return;
    if (c < z.C) {
        stats[c] = sum;
        stats[z.C + c] = squares;
    }
    if (c == 0) stats[2 * z.C] = (double)valid * (double)z.S;
}

static __global__ void __launch_bounds__(BLOCK_THREADS) batch_recall(struct array mean, struct array var, size_t C, global<double> stats)
{
    size_t c = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;

    if (c == 0) stats[2 * C] = 1;
    if (c >= C) return;
    double m = array_get(mean, c);
    stats[c] = m;
    stats[C + c] = array_get(var, c) + m * m;
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    batch_track(const __grid_constant__ struct batch z, struct array mean, struct array var)
{
    size_t c = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
    struct moments m;

    if (c >= z.C) return;
    m = moments_at(z.stats, z.C, c);
    if (m.count < 2) return;
    array_add(mean, c, (float)(z.momentum * (m.mean - array_get(mean, c))));
    array_add(var, c, (float)(z.momentum * (m.var * m.count / (m.count - 1) - array_get(var, c))));
}

static __global__ void __launch_bounds__(BLOCK_THREADS) batch_norm_all(const __grid_constant__ struct batch z, size_t count)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x, c;
    struct moments m;

    if (i >= count) return;
    divide(i / z.S, z.C, &c);
    m = moments_at(z.stats, z.C, c);
    float scale = (float)(1 / sqrt(m.var + z.eps)) * array_get(z.w, c);
    array_put(z.y, i, (float)(array_get(z.x, i) - m.mean) * scale + array_get(z.b, c));
}

/* Sums of dy and dy n, to both outputs. */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    batch_grad_stats(const __grid_constant__ struct batch z, global<double> sums, global<double> own)
{
    size_t c = blockIdx.x;
    struct moments m = moments_at(z.stats, z.C, c);
    double rstd = 1 / sqrt(m.var + z.eps), sum = 0, sum_n = 0;

    for (size_t i = threadIdx.x; i < z.B * z.S; i += BLOCK_THREADS) {
        size_t s, b = divide(i, z.S, &s), at = (b * z.C + c) * z.S + s;
        double dy = array_get(z.dy, at);

        sum += dy;
        sum_n += dy * (array_get(z.x, at) - m.mean) * rstd;
    }
    sum = row_sum(sum);
    sum_n = row_sum(sum_n);
    if (threadIdx.x) return;
    sums[c] = own[c] = sum;
    sums[z.C + c] = own[z.C + c] = sum_n;
}

static __global__ void __launch_bounds__(BLOCK_THREADS) batch_dx(const __grid_constant__ struct batch z, size_t count)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x, c;
    struct moments m;
    double mean = 0, mean_n = 0;

    if (i >= count) return;
    size_t b = divide(i / z.S, z.C, &c);
    m = moments_at(z.stats, z.C, c);
    double rstd = 1 / sqrt(m.var + z.eps);
    if (z.sums && m.count > 0 && sample_counts(z, b)) {
        mean = z.sums[c] / m.count;
        mean_n = z.sums[z.C + c] / m.count;
    }
    double n = (array_get(z.x, i) - m.mean) * rstd;
    array_put(z.y, i, (float)(array_get(z.w, c) * rstd * (array_get(z.dy, i) - mean - n * mean_n)));
}

static __global__ void __launch_bounds__(BLOCK_THREADS) batch_dw(global<const double> own, size_t C, struct array dw, struct array db)
{
    size_t c = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;

    if (c >= C) return;
    array_add(dw, c, (float)own[C + c]);
    array_add(db, c, (float)own[c]);
}

static global<const double> doubles_in(const struct call *c, int i)
{
    return call_has_in(c, i) ? global_of<const double>(c->in[i].data) : global<const double>(nullptr);
}

static global<const int> labels_in(const struct call *c, int i)
{
    return call_has_in(c, i) ? global_of<const int>(c->in[i].data) : global<const int>(nullptr);
}

static struct batch batch_of(const struct call *c, const struct view *x)
{
    struct batch z = {};

    z.B = x->size[0];
    z.C = x->size[1];
    z.S = 1;
    for (int d = 2; d < x->ndim; d++) z.S *= x->size[d];
    z.x = z.dy = z.w = z.b = z.y = array_none();
    z.stats = z.sums = nullptr;
    z.labels = nullptr;
    z.eps = c->attr.batch.eps;
    z.momentum = c->attr.batch.momentum;
    return z;
}

static void run_batch_stats(const struct call *c)
{
    struct batch z = batch_of(c, &c->in[0]);

    z.x = array_in(c, 0);
    z.labels = labels_in(c, 1);
    launch(c, KERNEL(batch_stats), z.C ? (unsigned)z.C : 1, BLOCK_THREADS, 0, z, global_of<double>(c->out[0].data));
}

static void run_batch_recall(const struct call *c)
{
    size_t C = view_count(&c->in[0]);

    launch(c, KERNEL(batch_recall), blocks_of(C + 1, BLOCK_THREADS), BLOCK_THREADS, 0, array_in(c, 0), array_in(c, 1), C,
           global_of<double>(c->out[0].data));
}

static void run_batch_track(const struct call *c)
{
    struct batch z = {};

    z.C = view_count(&c->out[0]);
    z.x = z.dy = z.w = z.b = z.y = array_none();
    z.stats = doubles_in(c, 0);
    z.sums = nullptr;
    z.labels = nullptr;
    z.momentum = c->attr.batch.momentum;
    launch(c, KERNEL(batch_track), blocks_of(z.C, BLOCK_THREADS), BLOCK_THREADS, 0, z, array_out(c, 0), array_out(c, 1));
}

static void run_batch_norm(const struct call *c)
{
    struct batch z = batch_of(c, &c->in[0]);
    size_t count = view_count(&c->in[0]);

    z.x = array_in(c, 0);
    z.stats = doubles_in(c, 1);
    z.w = array_in(c, 2);
    z.b = array_in(c, 3);
    z.y = array_out(c, 0);
    launch(c, KERNEL(batch_norm_all), blocks_of(count, BLOCK_THREADS), BLOCK_THREADS, 0, z, count);
}

static void run_batch_grad_stats(const struct call *c)
{
    struct batch z = batch_of(c, &c->in[1]);

    z.dy = array_in(c, 0);
    z.x = array_in(c, 1);
    z.stats = doubles_in(c, 2);
    launch(c, KERNEL(batch_grad_stats), (unsigned)z.C, BLOCK_THREADS, 0, z, global_of<double>(c->out[0].data),
           global_of<double>(c->out[1].data));
}

static void run_batch_dx(const struct call *c)
{
    struct batch z = batch_of(c, &c->in[1]);
    size_t count = view_count(&c->in[1]);

    z.dy = array_in(c, 0);
    z.x = array_in(c, 1);
    z.w = array_in(c, 2);
    z.stats = doubles_in(c, 3);
    z.sums = doubles_in(c, 4);
    z.labels = labels_in(c, 5);
    z.y = array_out(c, 0);
    launch(c, KERNEL(batch_dx), blocks_of(count, BLOCK_THREADS), BLOCK_THREADS, 0, z, count);
}

static void run_batch_dw(const struct call *c)
{
    size_t C = view_count(&c->out[0]);

    launch(c, KERNEL(batch_dw), blocks_of(C, BLOCK_THREADS), BLOCK_THREADS, 0, doubles_in(c, 0), C, array_out(c, 0), array_out(c, 1));
}

/* Arrays, statistics in f64 and labels, as the op's row has them; no f64 elements. */
static bool batch_accepts(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (view_given(&c->in[i]) && !is_array(&c->in[i]) && !is_array_of(&c->in[i], LS_F64) && !is_array_of(&c->in[i], LS_I32))
            return false;
    for (int i = 0; i < c->nout; i++)
        if (!is_array(&c->out[i]) && !is_array_of(&c->out[i], LS_F64)) return false;
    switch (c->op) {
    case OP_BATCH_STATS:
    case OP_BATCH_USE_STATS: return is_array(&c->in[0]);
    case OP_BATCH_GRAD_STATS: return is_array(&c->in[0]) && is_array(&c->in[1]);
    default: return is_array(&c->out[0]);
    }
}

const struct kernel kernels_cuda_batch_norm[] = {
    CUDA_ROW(BATCH_STATS, batch_accepts, NULL, run_batch_stats),
    CUDA_ROW(BATCH_USE_STATS, batch_accepts, NULL, run_batch_recall),
    CUDA_ROW(BATCH_UPDATE_STATS, batch_accepts, NULL, run_batch_track),
    CUDA_ROW(BATCH_NORM, batch_accepts, NULL, run_batch_norm),
    CUDA_ROW(BATCH_GRAD_STATS, batch_accepts, NULL, run_batch_grad_stats),
    CUDA_ROW(BATCH_NORM_DX, batch_accepts, NULL, run_batch_dx),
    CUDA_ROW(BATCH_NORM_DW, batch_accepts, NULL, run_batch_dw),
    CUDA_ROWS_END,
};
