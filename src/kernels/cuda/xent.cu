/* xent.cu - cross-entropy: of the output projection, in chunks of rows whose logits are in scratch as f32, and in parts for a vocabulary
 * over several ranks; cpu/ref/loss.c has the formulas. The rows of the table here multiply by the plain matmul.
 */
#include "kernels/cuda/xent.h"

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/total.h"

static const size_t CHUNK_BYTES = 64 << 20, LEAST_ROWS = 64;
/* Largest element and sum of exp(l - it) of this row of threads' row, whose V elements start at row * ld. */
static __device__ inline void row_statistics(struct array l, size_t row, size_t R, size_t V, size_t ld, float *most_, float *sum_)
{
    float most = -INFINITY, sum = 0;

    for (size_t i = threadIdx.x * 4; row < R && i < V; i += blockDim.x * 4) {
        float4s x = array_load4(l, row * ld + i, V - i, ld % 4 == 0);

        for (int k = 0; k < 4; k++)
            if (i + k < V) most = fmaxf(most, x.v[k]);
    }
    most = row_max(most);
    for (size_t i = threadIdx.x * 4; row < R && i < V; i += blockDim.x * 4) {
        float4s x = array_load4(l, row * ld + i, V - i, ld % 4 == 0);

        for (int k = 0; k < 4; k++)
            if (i + k < V) sum += expf(x.v[k] - most);
    }
    *most_ = most;
    *sum_ = row_sum(sum);
}

/* ---- the number of valid rows ---- */

/* denom = valid rows, at least 1; inverse = 1 / valid rows, or 0 without valid rows. An output that is not given is not written. */
static __global__ void __launch_bounds__(BLOCK_THREADS) count_valid(global<const int> y, size_t R, struct array denom, struct array inverse)
{
    int valid = 0;

    for (size_t r = threadIdx.x; r < R; r += BLOCK_THREADS) valid += y[r] >= 0;
    valid = row_sum(valid);
    if (threadIdx.x) return;
    if (denom.given) array_put(denom, 0, valid ? (float)valid : 1);
    if (inverse.given) array_put(inverse, 0, valid ? 1 / (float)valid : 0);
}

static __global__ void invert(struct array denom, struct array inverse) { array_put(inverse, 0, 1 / array_get(denom, 0)); }

/* ---- LINEAR_XENT: the rows of logits ---- */

static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

struct xent xent_of(const struct call *c, size_t rows, size_t ld)
{
    struct xent z = {};
    char *at = (char *)c->scratch;

    z.R = view_rows(&c->in[0]);
    z.C = view_last(&c->in[0]);
    z.V = c->in[1].size[0];
    z.rows = rows;
    z.ld = ld;
    z.logits = at;
    at += padded(rows * ld * sizeof(float));
    z.lse = at;
    at += padded(z.R * sizeof(float));
    z.loss = at;
    at += padded(z.R * sizeof(double));
    z.parts = at;
    at += padded(total_bytes(z.R, 1));
    z.inverse = at;
    at += 64;
    z.bytes = (size_t)(at - (char *)c->scratch);
    return z;
}

/* lse and loss of the rows of a chunk; known: lse is in lse_out already, which is read. */
static __global__ void xent_rows(struct array logits, global<const int> y, size_t R, size_t V, size_t ld, struct array lse,
                                 struct array lse_out, int known, global<double> loss)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    float most, sum;

    if (!known) row_statistics(logits, row, R, V, ld, &most, &sum);
    if (row >= R || threadIdx.x) return;
    float l = known ? array_get(lse_out, row) : most + logf(sum);
    if (!known && lse_out.given) array_put(lse_out, row, l);
    array_put(lse, row, l);
    int target = y[row];
    loss[row] = target >= 0 && (size_t)target < V ? (double)l - array_get(logits, row * ld + target) : 0;
}

/* dl = dloss/denom (exp(l - lse) - [target]) in the place of the logits: rows of dl are dld elements apart and start where those of the
 * logits do. All threads have read a step's logits before its gradients, which take no more bytes, overwrite them or earlier ones. */
static __global__ void __launch_bounds__(BLOCK_THREADS)
    xent_gradient(struct array logits, global<const int> y, size_t R, size_t V, size_t ld, struct array lse, struct array inverse,
                  struct array dloss, struct array dl, size_t dld)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y, each = blockDim.x * 4;
    int target = row < R ? y[row] : -1;
    float factor = target < 0 ? 0 : array_get(dloss, 0) * array_get(inverse, 0), least = target < 0 ? 0 : array_get(lse, row);

    for (size_t begin = 0; begin < V; begin += each) {
        size_t i = begin + threadIdx.x * 4;
        bool mine = row < R && i < V;
        float4s x = { { 0, 0, 0, 0 } };

        if (mine && target >= 0) {
            x = array_load4(logits, row * ld + i, V - i, ld % 4 == 0);
            for (int k = 0; k < 4; k++) x.v[k] = factor * (expf(x.v[k] - least) - (i + k == (size_t)target));
        }
        __syncthreads();
        if (mine) array_store4(dl, row * dld + i, V - i, dld % 4 == 0, x);
    }
}

static struct array array_from(struct array a, size_t element)
{
    if (!a.given) return a;
    a.data = a.data + (ptrdiff_t)(element * bytes_of_type(a.type));
    a.aligned = pack_aligned(a.data, 4 * bytes_of_type(a.type));
    return a;
}

static global<const int> targets_from(const struct call *c, size_t begin) { return global_of<const int>(c->in[2].data) + (ptrdiff_t)begin; }

void xent_begin(const struct call *c, const struct xent *z)
{
    struct array inverse = array_of_floats(z->inverse);

    if (call_has_in(c, 3))
        launch(c, KERNEL(invert), 1, 1, 0, array_in(c, 3), inverse);
    else
        launch(c, KERNEL(count_valid), 1, BLOCK_THREADS, 0, targets_from(c, 0), z->R, array_none(), inverse);
}

/* The gradient's lse is an input that may be absent, the forward's an output. */
void xent_losses(const struct call *c, const struct xent *z, size_t begin, size_t n)
{
    bool known = c->op == OP_LINEAR_XENT_GRAD && call_has_in(c, 4);
    struct array lse = c->op == OP_LINEAR_XENT ? array_out(c, 1) : array_in(c, 4);
    dim3 threads = row_threads(z->V);

    launch(c, KERNEL(xent_rows), blocks_of(n, threads.y), threads, 0, array_of_floats(z->logits), targets_from(c, begin), n, z->V, z->ld,
           array_from(array_of_floats(z->lse), begin), array_from(lse, begin), (int)known, global_of<double>(z->loss) + (ptrdiff_t)begin);
}

void xent_gradients(const struct call *c, const struct xent *z, size_t begin, size_t n, ls_dtype type)
{
    struct array dl = array_of_floats(z->logits);
    dim3 threads = row_threads(z->V);

    dl.type = type;
    launch(c, KERNEL(xent_gradient), blocks_of(n, threads.y), threads, 0, array_of_floats(z->logits), targets_from(c, begin), n, z->V,
           z->ld, array_from(array_of_floats(z->lse), begin), array_of_floats(z->inverse), array_in(c, 5), dl,
           z->ld * sizeof(float) / bytes_of_type(type));
}

/* (loss of all rows) / denom, where it is asked for */
void xent_end(const struct call *c, const struct xent *z)
{
    struct total t = total_none();

    t.y = array_out(c, c->op == OP_LINEAR_XENT ? 0 : 2);
    t.times = array_of_floats(z->inverse);
    if (t.y.given) total_doubles(c, t, global_of<double>(z->loss), z->R, z->parts);
}

/* ---- LINEAR_XENT by the plain matmul ---- */

static struct xent plain_of(const struct call *c)
{
    size_t R = view_rows(&c->in[0]), V = c->in[1].size[0], rows = V ? CHUNK_BYTES / (4 * V) : LEAST_ROWS;

    if (rows < LEAST_ROWS) rows = LEAST_ROWS;
    return xent_of(c, rows < R ? rows : R, V);
}

static size_t plain_scratch(const struct call *c)
{
    struct call sized = *c;

    sized.scratch = NULL;
    return plain_of(&sized).bytes;
}

/* Rows [begin, ..) of a contiguous view. */
static struct view rows_from(const struct view *v, size_t begin)
{
    struct view out = *v;

    out.data = (char *)v->data + begin * view_last(v) * bytes_of_type(v->dtype);
    return out;
}

static void plain_logits(const struct call *c, const struct xent *z, size_t begin, size_t n)
{
    struct view x = rows_from(&c->in[0], begin);

    matmul_launch(c, matrix_of_view(&x, false), matrix_of_view(&c->in[1], true),
                  matrix_of(global_of<byte>(z->logits), LS_F32, (long long)z->ld, 1), n, z->V, z->C, array_none(), false);
}

static void plain_products(const struct call *c, const struct xent *z, size_t begin, size_t n)
{
    struct view x = rows_from(&c->in[0], begin);
    global<byte> dl = global_of<byte>(z->logits);

    if (call_has_out(c, 0)) {
        struct view dx = rows_from(&c->out[0], begin);

        matmul_launch(c, matrix_of(dl, LS_F32, (long long)z->ld, 1), matrix_of_view(&c->in[1], false), matrix_of_view(&dx, false), n, z->C,
                      z->V, array_none(), false);
    }
    if (call_has_out(c, 1))
        matmul_launch(c, matrix_of(dl, LS_F32, 1, (long long)z->ld), matrix_of_view(&x, false), matrix_of_view(&c->out[1], false), z->V,
                      z->C, n, array_none(), true);
}

static void run_linear_xent(const struct call *c)
{
    struct xent z = plain_of(c);

    xent_begin(c, &z);
    for (size_t begin = 0, n; begin < z.R; begin += n) {
        n = min(z.rows, z.R - begin);
        plain_logits(c, &z, begin, n);
        xent_losses(c, &z, begin, n);
        if (c->op == OP_LINEAR_XENT) continue;
        xent_gradients(c, &z, begin, n, LS_F32);
        plain_products(c, &z, begin, n);
    }
    xent_end(c, &z);
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

bool xent_accepts(const struct call *c) { return xent_arrays(c, 2) && tiles_fit(c->in[1].size[0]) && tiles_fit(c->in[1].size[1]); }

/* ---- in parts ---- */

static void run_xent_count(const struct call *c)
{
    launch(c, KERNEL(count_valid), 1, BLOCK_THREADS, 0, global_of<const int>(c->in[0].data), view_count(&c->in[0]), array_out(c, 0),
           array_none());
}

static bool xent_count_accepts(const struct call *c) { return xent_arrays(c, 0); }
static bool xent_part_accepts(const struct call *c) { return xent_arrays(c, 1); }

/* Column of this part that is the target; V or more: ignored, or another part's. */
static __device__ inline size_t target_column(int y, size_t first) { return y < 0 ? (size_t)-1 : (size_t)y - first; }

static __global__ void xent_part_rows(struct array l, global<const int> y, size_t R, size_t V, size_t first, struct array stats)
{
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    float most, sum;

    row_statistics(l, row, R, V, V, &most, &sum);
    if (row >= R || threadIdx.x) return;
    size_t target = target_column(y[row], first);
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

static __global__ void __launch_bounds__(BLOCK_THREADS)
    xent_combine_rows(struct array stats, global<const int> y, size_t n, size_t R, struct array lse, global<double> loss)
{
    size_t r = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;
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

    launch(c, KERNEL(xent_combine_rows), blocks_of(R, BLOCK_THREADS), BLOCK_THREADS, 0, array_in(c, 0), global_of<const int>(c->in[1].data),
           n, R, array_out(c, 1), loss);
    t.add = array_out(c, 0);
    t.denom = array_in(c, 2);
    total_doubles(c, t, loss, R, (char *)c->scratch + padded(R * sizeof(double)));
}

static __global__ void __launch_bounds__(BLOCK_THREADS)
    xent_dlogits_all(struct array l, global<const int> y, struct array lse, struct array denom, struct array dloss, size_t R, size_t V,
                     size_t first, struct array dl)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x, column;

    if (i >= R * V) return;
    size_t row = divide(i, V, &column);
    float factor = array_get(dloss, 0) / array_get(denom, 0);
    array_put(dl, i, y[row] < 0 ? 0 : factor * (expf(array_get(l, i) - array_get(lse, row)) - (column == target_column(y[row], first))));
}

static void run_xent_dlogits(const struct call *c)
{
    size_t R = view_rows(&c->in[0]), V = view_last(&c->in[0]);

    launch(c, KERNEL(xent_dlogits_all), blocks_of(R * V, BLOCK_THREADS), BLOCK_THREADS, 0, array_in(c, 0),
           global_of<const int>(c->in[1].data), array_in(c, 2), array_in(c, 3), array_in(c, 4), R, V, c->attr.embedding.first,
           array_out(c, 0));
}

const struct kernel kernels_cuda_xent[] = {
    CUDA_ROW(LINEAR_XENT, xent_accepts, plain_scratch, run_linear_xent),
    CUDA_ROW(LINEAR_XENT_GRAD, xent_accepts, plain_scratch, run_linear_xent),
    CUDA_ROW(XENT_COUNT, xent_count_accepts, NULL, run_xent_count),
    CUDA_ROW(XENT_PART, xent_part_accepts, NULL, run_xent_part),
    CUDA_ROW(XENT_COMBINE, xent_part_accepts, combine_scratch, run_xent_combine),
    CUDA_ROW(XENT_DLOGITS, xent_part_accepts, NULL, run_xent_dlogits),
    CUDA_ROWS_END,
};
