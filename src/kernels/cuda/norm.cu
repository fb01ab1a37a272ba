/* norm.cu - softmax and the norms along the last dim; cpu/ref/norm.c has the formulas. A row of threads (reduce.h) computes a row. */
#include "kernels/cuda/array.h"
#include "kernels/cuda/reduce.h"

struct rows {
    size_t R, C;
    float eps;
    struct array x, w, b, dy, mean, rstd, y;
};

/* For each group of four elements of this thread's row. */
#define EACH_FOUR(i, z) for (size_t i = threadIdx.x * 4; row < z.R && i < z.C; i += blockDim.x * 4)

static __device__ inline size_t row_index(void) { return (size_t)blockIdx.x * blockDim.y + threadIdx.y; }

/* Elements i .. of a [R,C] operand's row; and of a vector [C]. */
static __device__ inline float4s row_load(const struct rows &z, struct array a, size_t row, size_t i)
{
    return array_load4(a, row * z.C + i, z.C - i, z.C % 4 == 0);
}
static __device__ inline void row_store(const struct rows &z, size_t row, size_t i, float4s x)
{
    array_store4(z.y, row * z.C + i, z.C - i, z.C % 4 == 0, x);
}
static __device__ inline float4s vector_load(const struct rows &z, struct array a, size_t i) { return array_load4(a, i, z.C - i, true); }

static __global__ void softmax_rows(struct rows z)
{
    size_t row = row_index();
    float most = -INFINITY, sum = 0;

    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i);

        for (int k = 0; k < 4; k++)
            if (i + k < z.C) most = fmaxf(most, x.v[k]);
    }
    most = row_max(most);
    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i);

        for (int k = 0; k < 4; k++)
            if (i + k < z.C) sum += expf(x.v[k] - most);
    }
    sum = row_sum(sum);
    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i);

        for (int k = 0; k < 4; k++) x.v[k] = expf(x.v[k] - most) / sum;
        row_store(z, row, i, x);
    }
}

/* x is y, the softmax. */
static __global__ void softmax_grad_rows(struct rows z)
{
    size_t row = row_index();
    float dot = 0;

    EACH_FOUR(i, z)
    {
        float4s y = row_load(z, z.x, row, i), dy = row_load(z, z.dy, row, i);

        for (int k = 0; k < 4; k++) dot += y.v[k] * dy.v[k];
    }
    dot = row_sum(dot);
    EACH_FOUR(i, z)
    {
        float4s y = row_load(z, z.x, row, i), dy = row_load(z, z.dy, row, i);

        for (int k = 0; k < 4; k++) y.v[k] *= dy.v[k] - dot;
        row_store(z, row, i, y);
    }
}

static __global__ void layer_norm_rows(struct rows z)
{
    size_t row = row_index();
    float mean = 0, variance = 0;

    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i);

        for (int k = 0; k < 4; k++) mean += x.v[k];
    }
    mean = row_sum(mean) / (float)z.C;
    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i);

        for (int k = 0; k < 4; k++)
            if (i + k < z.C) variance += (x.v[k] - mean) * (x.v[k] - mean);
    }
    float rstd = 1 / sqrtf(row_sum(variance) / (float)z.C + z.eps);
    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i), w = vector_load(z, z.w, i), b = vector_load(z, z.b, i);

        for (int k = 0; k < 4; k++) x.v[k] = (x.v[k] - mean) * rstd * w.v[k] + b.v[k];
        row_store(z, row, i, x);
    }
    if (row < z.R && threadIdx.x == 0) {
        array_put(z.mean, row, mean);
        array_put(z.rstd, row, rstd);
    }
}

static __global__ void rms_norm_rows(struct rows z)
{
    size_t row = row_index();
    float squares = 0;

    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i);

        for (int k = 0; k < 4; k++) squares += x.v[k] * x.v[k];
    }
    float rstd = 1 / sqrtf(row_sum(squares) / (float)z.C + z.eps);
    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i), w = vector_load(z, z.w, i);

        for (int k = 0; k < 4; k++) x.v[k] *= rstd * w.v[k];
        row_store(z, row, i, x);
    }
    if (row < z.R && threadIdx.x == 0) array_put(z.rstd, row, rstd);
}

/* For both norms: an RMS norm uses neither the mean of x nor that of g. */
static __global__ void norm_dx_rows(struct rows z)
{
    size_t row = row_index();
    bool layer = z.mean.given;
    float mean = layer && row < z.R ? array_get(z.mean, row) : 0, rstd = row < z.R ? array_get(z.rstd, row) : 0, mean_g = 0, mean_gn = 0;

    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i), dy = row_load(z, z.dy, row, i), w = vector_load(z, z.w, i);

        for (int k = 0; k < 4; k++) {
            mean_g += dy.v[k] * w.v[k];
            mean_gn += dy.v[k] * w.v[k] * (x.v[k] - mean) * rstd;
        }
    }
    mean_g = row_sum(mean_g) / (float)z.C;
    mean_gn = row_sum(mean_gn) / (float)z.C;
    if (!layer) mean_g = 0;
    EACH_FOUR(i, z)
    {
        float4s x = row_load(z, z.x, row, i), dy = row_load(z, z.dy, row, i), w = vector_load(z, z.w, i);

        for (int k = 0; k < 4; k++) x.v[k] = rstd * (dy.v[k] * w.v[k] - mean_g - (x.v[k] - mean) * rstd * mean_gn);
        row_store(z, row, i, x);
    }
}

static struct rows rows_of(const struct call *c)
{
    struct rows z = {};

    z.R = view_rows(&c->out[0]);
    z.C = view_last(&c->out[0]);
    z.x = array_in(c, 0);
    z.w = array_in(c, 1);
    z.y = array_out(c, 0);
    z.mean = array_none();
    return z;
}

static void run_softmax(const struct call *c)
{
    struct rows z = rows_of(c);
    dim3 threads = row_threads(z.C);

    if (c->op == OP_SOFTMAX) {
        launch(c, KERNEL(softmax_rows), blocks_of(z.R, threads.y), threads, 0, z);
        return;
    }
    z.dy = array_in(c, 1);
    launch(c, KERNEL(softmax_grad_rows), blocks_of(z.R, threads.y), threads, 0, z);
}

static void run_norm(const struct call *c)
{
    struct rows z = rows_of(c);
    dim3 threads = row_threads(z.C);

    z.eps = (float)c->attr.norm.eps;
    if (c->op == OP_LAYER_NORM) {
        z.b = array_in(c, 2);
        z.mean = array_out(c, 1);
        z.rstd = array_out(c, 2);
        launch(c, KERNEL(layer_norm_rows), blocks_of(z.R, threads.y), threads, 0, z);
    } else {
        z.rstd = array_out(c, 1);
        launch(c, KERNEL(rms_norm_rows), blocks_of(z.R, threads.y), threads, 0, z);
    }
}

static void run_norm_dx(const struct call *c)
{
    struct rows z = rows_of(c);
    dim3 threads = row_threads(z.C);

    z.dy = array_in(c, 0);
    z.x = array_in(c, 1);
    z.w = array_in(c, 2);
    if (c->op == OP_LAYER_NORM_DX) z.mean = array_in(c, 3);
    z.rstd = array_in(c, c->op == OP_LAYER_NORM_DX ? 4 : 3);
    launch(c, KERNEL(norm_dx_rows), blocks_of(z.R, threads.y), threads, 0, z);
}

const struct kernel kernels_cuda_norm[] = {
    CUDA_ROW(SOFTMAX, all_arrays, NULL, run_softmax),
    CUDA_ROW(SOFTMAX_GRAD, all_arrays, NULL, run_softmax),
    CUDA_ROW(LAYER_NORM, all_arrays, NULL, run_norm),
    CUDA_ROW(LAYER_NORM_DX, all_arrays, NULL, run_norm_dx),
    CUDA_ROW(RMS_NORM, all_arrays, NULL, run_norm),
    CUDA_ROW(RMS_NORM_DX, all_arrays, NULL, run_norm_dx),
    CUDA_ROWS_END,
};
