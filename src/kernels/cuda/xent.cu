/* xent.cu - cross-entropy: of the output projection, in chunks of rows whose logits are in scratch as f32, and in parts for a vocabulary
 * over several ranks; cpu/ref/loss.c has the formulas.
 */
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/total.h"

static const size_t CHUNK_BYTES = 64 << 20, LEAST_ROWS = 64;
enum { THREADS = 256 };

/* Largest element and sum of exp(l - it) of this row of threads' row. */
static __device__ inline void row_statistics(struct array l, size_t row, size_t R, size_t V, float *most_, float *sum_)
{
    float most = -INFINITY, sum = 0;

    for (size_t i = threadIdx.x * 4; row < R && i < V; i += blockDim.x * 4) {
        float4s x = array_load4(l, row * V + i, V - i, V % 4 == 0);

        for (int k = 0; k < 4; k++)
            if (i + k < V) most = fmaxf(most, x.v[k]);
    }
    most = row_max(most);
    for (size_t i = threadIdx.x * 4; row < R && i < V; i += blockDim.x * 4) {
        float4s x = array_load4(l, row * V + i, V - i, V % 4 == 0);

        for (int k = 0; k < 4; k++)
            if (i + k < V) sum += expf(x.v[k] - most);
    }
    *most_ = most;
    *sum_ = row_sum(sum);
}

/* ---- the number of valid rows ---- */

/* denom = valid rows, at least `least`; inverse = 1 / valid rows, or 0: what is given is written. */
static __global__ void __launch_bounds__(THREADS) count_valid(global<const int> y, size_t R, struct array denom, struct array inverse)
{
    int valid = 0;

    for (size_t r = threadIdx.x; r < R; r += THREADS) valid += y[r] >= 0;
    valid = row_sum(valid);
    if (threadIdx.x) return;
    if (denom.given) array_put(denom, 0, valid ? (float)valid : 1);
    if (inverse.given) array_put(inverse, 0, valid ? 1 / (float)valid : 0);
}

static __global__ void invert(struct array denom, struct array inverse) { array_put(inverse, 0, 1 / array_get(denom, 0)); }

/* ---- LINEAR_XENT ---- */

/* Scratch: logits of a chunk [rows, V] f32; lse [R] f32; losses [R] f64; the parts of their sum; 1/denom. */
struct xent {
    size_t R, C, V, rows;
    char *logits;
    struct array lse, inverse;
    global<double> loss;
    char *parts;
    size_t bytes;
};

static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

static struct xent xent_of(const struct call *c)
{
    struct xent z = {};
    char *at = (char *)c->scratch;

    z.R = view_rows(&c->in[0]);
    z.C = view_last(&c->in[0]);
    z.V = c->in[1].size[0];
    z.rows = z.V ? CHUNK_BYTES / (4 * z.V) : LEAST_ROWS;
    if (z.rows < LEAST_ROWS) z.rows = LEAST_ROWS;
    if (z.rows > z.R) z.rows = z.R;
    z.logits = at;
    at += padded(z.rows * z.V * sizeof(float));
    z.lse = array_of_floats(at);
    at += padded(z.R * sizeof(float));
    z.loss = global_of<double>(at);
    at += padded(z.R * sizeof(double));
    z.parts = at;
    at += padded(total_bytes(z.R, 1));
    z.inverse = array_of_floats(at);
    at += 64;
    z.bytes = (size_t)(at - (char *)c->scratch);
    return z;
}

static size_t xent_scratch(const struct call *c)
{
    struct call sized = *c;

    sized.scratch = NULL;
    return xent_of(&sized).bytes;
}

/* lse and loss of the rows of a chunk; known: lse is in lse_out already, which is read. */
static __global__ void xent_rows(struct array logits, global<const int> y, size_t R, size_t V, struct array lse, struct array lse_out,
                                 int known, global<double> loss)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    float most, sum, l;
    int target;

    if (!known) row_statistics(logits, row, R, V, &most, &sum);
    if (row >= R || threadIdx.x) return;
    l = known ? array_get(lse_out, row) : most + logf(sum);
    if (!known && lse_out.given) array_put(lse_out, row, l);
    array_put(lse, row, l);
    target = y[row];
    loss[row] = target >= 0 && (size_t)target < V ? (double)l - array_get(logits, row * V + target) : 0;
}

/* logits become dloss/denom (exp(l - lse) - [target]). */
static __global__ void __launch_bounds__(THREADS)
    xent_gradient(struct array logits, global<const int> y, size_t R, size_t V, struct array lse, struct array inverse, struct array dloss)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, row, column;
    int target;

    if (i >= R * V) return;
    row = divide(i, V, &column);
    target = y[row];
    array_put(logits, i,
              target < 0 ? 0
                         : array_get(dloss, 0) * array_get(inverse, 0) *
                               (expf(array_get(logits, i) - array_get(lse, row)) - (column == (size_t)target)));
}

static struct array array_from(struct array a, size_t element)
{
    if (!a.given) return a;
    a.data = a.data + (ptrdiff_t)(element * bytes_of_type(a.type));
    a.aligned = pack_aligned(a.data, 4 * bytes_of_type(a.type));
    return a;
}

/* Rows [begin, ..) of a contiguous view. */
static struct view rows_from(const struct view *v, size_t begin)
{
    struct view out = *v;

    out.data = (char *)v->data + begin * view_last(v) * bytes_of_type(v->dtype);
    return out;
}

static void xent_inverse(const struct call *c, const struct xent *z)
{
    if (call_has_in(c, 3))
        launch(c, KERNEL(invert), 1, 1, 0, array_in(c, 3), z->inverse);
    else
        launch(c, KERNEL(count_valid), 1, THREADS, 0, global_of<const int>(c->in[2].data), z->R, array_none(), z->inverse);
}

/* Logits, lse and loss of rows [begin, begin + n). lse: where it goes; known: it is there already. */
static void xent_chunk(const struct call *c, const struct xent *z, size_t begin, size_t n, struct array lse, bool known)
{
    struct view x = rows_from(&c->in[0], begin);
    struct array logits = array_of_floats(z->logits);
    dim3 threads = row_threads(z->V);

    matmul_launch(c, matrix_of_view(&x, false), matrix_of_view(&c->in[1], true), matrix_of(logits.data, LS_F32, (long long)z->V, 1), n,
                  z->V, z->C, array_none(), false);
    launch(c, KERNEL(xent_rows), blocks_of(n, threads.y), threads, 0, logits, global_of<const int>(c->in[2].data) + (ptrdiff_t)begin, n,
           z->V, array_from(z->lse, begin), array_from(lse, begin), (int)known, z->loss + (ptrdiff_t)begin);
}

/* (loss of all rows) / denom */
static void xent_loss(const struct call *c, const struct xent *z, struct array y)
{
    struct total t = total_none();

    t.y = y;
    t.times = z->inverse;
    total_doubles(c, t, z->loss, z->R, z->parts);
}

static void run_linear_xent(const struct call *c)
{
    struct xent z = xent_of(c);

    xent_inverse(c, &z);
    for (size_t begin = 0; begin < z.R; begin += z.rows) xent_chunk(c, &z, begin, min(z.rows, z.R - begin), array_out(c, 1), false);
    xent_loss(c, &z, array_out(c, 0));
}

static void run_linear_xent_grad(const struct call *c)
{
    struct xent z = xent_of(c);
    struct array logits = array_of_floats(z.logits);
    bool known = call_has_in(c, 4);

    xent_inverse(c, &z);
    for (size_t begin = 0, n; begin < z.R; begin += n) {
        struct view x = rows_from(&c->in[0], begin);

        n = min(z.rows, z.R - begin);
        xent_chunk(c, &z, begin, n, array_in(c, 4), known);
        launch(c, KERNEL(xent_gradient), blocks_of(n * z.V, THREADS), THREADS, 0, logits,
               global_of<const int>(c->in[2].data) + (ptrdiff_t)begin, n, z.V, array_from(z.lse, begin), z.inverse, array_in(c, 5));
        if (call_has_out(c, 0)) {
            struct view dx = rows_from(&c->out[0], begin);

            matmul_launch(c, matrix_of(logits.data, LS_F32, (long long)z.V, 1), matrix_of_view(&c->in[1], false),
                          matrix_of_view(&dx, false), n, z.C, z.V, array_none(), false);
        }
        if (call_has_out(c, 1))
            matmul_launch(c, matrix_of(logits.data, LS_F32, 1, (long long)z.V), matrix_of_view(&x, false),
                          matrix_of_view(&c->out[1], false), z.V, z.C, n, array_none(), true);
    }
    if (call_has_out(c, 2)) xent_loss(c, &z, array_out(c, 2));
}

/* All operands but the targets at input y are arrays. */
static bool xent_arrays(const struct call *c, int y)
{
    for (int i = 0; i < c->nin; i++)
        if (i == y ? !is_array_of(&c->in[i], LS_I32) : view_given(&c->in[i]) && !is_array(&c->in[i])) return false;
    for (int i = 0; i < c->nout; i++)
        if (view_given(&c->out[i]) && !is_array(&c->out[i])) return false;
    return true;
}

static bool linear_xent_accepts(const struct call *c) { return xent_arrays(c, 2) && c->in[1].size[0] < 4 << 20; }

/* ---- in parts ---- */

static void run_xent_count(const struct call *c)
{
    launch(c, KERNEL(count_valid), 1, THREADS, 0, global_of<const int>(c->in[0].data), view_count(&c->in[0]), array_out(c, 0),
           array_none());
}

static bool xent_count_accepts(const struct call *c) { return xent_arrays(c, 0); }
static bool xent_part_accepts(const struct call *c) { return xent_arrays(c, 1); }

/* Column of this part that is the target; V or more: ignored, or another part's. */
static __device__ inline size_t target_column(int y, size_t first) { return y < 0 ? (size_t)-1 : (size_t)y - first; }

static __global__ void xent_part_rows(struct array l, global<const int> y, size_t R, size_t V, size_t first, struct array stats)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y, target;
    float most, sum;

    row_statistics(l, row, R, V, &most, &sum);
    if (row >= R || threadIdx.x) return;
    target = target_column(y[row], first);
    array_put(stats, 3 * row, most);
    array_put(stats, 3 * row + 1, sum);
    array_put(stats, 3 * row + 2, target < V ? array_get(l, row * V + target) : 0);
}

static void run_xent_part(const struct call *c)
{
    size_t R = view_rows(&c->in[0]), V = view_last(&c->in[0]);
    dim3 threads = row_threads(V);

    launch(c, KERNEL(xent_part_rows), blocks_of(R, threads.y), threads, 0, array_in(c, 0), global_of<const int>(c->in[1].data), R, V,
           c->attr.embedding.first, array_out(c, 0));
}

static __global__ void __launch_bounds__(THREADS)
    xent_combine_rows(struct array stats, global<const int> y, size_t n, size_t R, struct array lse, global<double> loss)
{
    size_t r = (size_t)blockIdx.x * THREADS + threadIdx.x;
    float most = -INFINITY, sum = 0, target = 0;

    if (r >= R) return;
    for (size_t k = 0; k < n; k++) most = fmaxf(most, array_get(stats, (k * R + r) * 3));
    for (size_t k = 0; k < n; k++) {
        sum += array_get(stats, (k * R + r) * 3 + 1) * expf(array_get(stats, (k * R + r) * 3) - most);
        target += array_get(stats, (k * R + r) * 3 + 2);
    }
    array_put(lse, r, most + logf(sum));
    loss[r] = y[r] >= 0 ? (double)(most + logf(sum)) - target : 0;
}

static size_t combine_scratch(const struct call *c)
{
    size_t R = view_count(&c->in[1]);

    return padded(R * sizeof(double)) + padded(total_bytes(R, 1));
}

static void run_xent_combine(const struct call *c)
{
    size_t n = c->in[0].size[0], R = view_count(&c->in[1]);
    global<double> loss = global_of<double>(c->scratch);
    struct total t = total_none();

    launch(c, KERNEL(xent_combine_rows), blocks_of(R, THREADS), THREADS, 0, array_in(c, 0), global_of<const int>(c->in[1].data), n, R,
           array_out(c, 1), loss);
    t.add = array_out(c, 0);
    t.denom = array_in(c, 2);
    total_doubles(c, t, loss, R, (char *)c->scratch + padded(R * sizeof(double)));
}

static __global__ void __launch_bounds__(THREADS)
    xent_dlogits_all(struct array l, global<const int> y, struct array lse, struct array denom, struct array dloss, size_t R, size_t V,
                     size_t first, struct array dl)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, row, column;
    float factor;

    if (i >= R * V) return;
    row = divide(i, V, &column);
    factor = array_get(dloss, 0) / array_get(denom, 0);
    array_put(dl, i, y[row] < 0 ? 0 : factor * (expf(array_get(l, i) - array_get(lse, row)) - (column == target_column(y[row], first))));
}

static void run_xent_dlogits(const struct call *c)
{
    size_t R = view_rows(&c->in[0]), V = view_last(&c->in[0]);

    launch(c, KERNEL(xent_dlogits_all), blocks_of(R * V, THREADS), THREADS, 0, array_in(c, 0), global_of<const int>(c->in[1].data),
           array_in(c, 2), array_in(c, 3), array_in(c, 4), R, V, c->attr.embedding.first, array_out(c, 0));
}

const struct kernel kernels_cuda_xent[] = {
    CUDA_ROW(LINEAR_XENT, linear_xent_accepts, xent_scratch, run_linear_xent),
    CUDA_ROW(LINEAR_XENT_GRAD, linear_xent_accepts, xent_scratch, run_linear_xent_grad),
    CUDA_ROW(XENT_COUNT, xent_count_accepts, NULL, run_xent_count),
    CUDA_ROW(XENT_PART, xent_part_accepts, NULL, run_xent_part),
    CUDA_ROW(XENT_COMBINE, xent_part_accepts, combine_scratch, run_xent_combine),
    CUDA_ROW(XENT_DLOGITS, xent_part_accepts, NULL, run_xent_dlogits),
    CUDA_ROWS_END,
};
