/* rows.cu - rows permuted by expert and back; cpu/ref/experts.c has the rules. The counts stay on the device. */
#include "kernels/cuda/array.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/sort.h"

enum { ROW_THREADS = 128 };

/* ---- ROUTE_ROWS: choices sorted by expert, in the order of their tokens; a choice's place is its row ---- */

static __global__ void __launch_bounds__(BLOCK_THREADS)
    rows_scatter(struct sorted s, size_t n, int experts, global<int> rows, global<int> counts)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;

    if (i < n) rows[s.position[i]] = s.key[i] < experts ? (int)i : -1;
    if (i >= (size_t)experts) return;
    int e = (int)i;
    if (n == 0) {
        counts[e] = 0;
        return;
    }
    for (int bound = 0, at[2] = { 0, 0 }; bound < 2; bound++) { /* the first places whose keys are at least e and e + 1 */
        size_t low = 0, high = n;

        while (low < high) {
            size_t middle = (low + high) / 2;

            if (s.key[middle] < e + bound)
                low = middle + 1;
            else
                high = middle;
        }
        at[bound] = (int)low;
        if (bound) counts[e] = at[1] - at[0];
    }
}

static size_t route_rows_scratch(const struct call *c) { return sort_bytes(view_count(&c->in[0])); }

static void run_route_rows(const struct call *c)
{
    size_t n = view_count(&c->in[0]), E = view_count(&c->out[1]);
    struct sorted s = sort_launch(c, global_of<const int>(c->in[0].data), 0, (long long)E, n, c->scratch);

    launch(c, KERNEL(rows_scatter), blocks_of(n > E ? n : E, BLOCK_THREADS), BLOCK_THREADS, 0, s, n, (int)E, global_of<int>(c->out[0].data),
           global_of<int>(c->out[1].data));
}

static bool route_rows_accepts(const struct call *c)
{
    return is_array_of(&c->in[0], LS_I32) && is_array_of(&c->out[0], LS_I32) && is_array_of(&c->out[1], LS_I32) &&
           view_count(&c->in[0]) < 1u << 31;
}

/* ---- permute and back ---- */

/* from[row] = the choice whose row this is, or -1 */
static __global__ void __launch_bounds__(BLOCK_THREADS) rows_clear(global<int> from, size_t M)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;

    if (i < M) from[i] = -1;
}
static __global__ void __launch_bounds__(BLOCK_THREADS) rows_invert(global<const int> rows, size_t n, size_t M, global<int> from)
{
    size_t i = (size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x;

    if (i >= n) return;
    int row = rows[i];
    if (row >= 0 && (size_t)row < M) from[row] = (int)i;
}

/* A block a row of y. */
static __global__ void __launch_bounds__(ROW_THREADS)
    permute_rows(struct array x, global<const int> from, struct array weight, size_t K, size_t C, struct array y)
{
    size_t row = blockIdx.x;
    int choice = from[row];
    float w = choice >= 0 && weight.given ? array_get(weight, (size_t)choice) : 1;

    for (size_t i = threadIdx.x * 4; i < C; i += ROW_THREADS * 4) {
        float4s v = { { 0, 0, 0, 0 } };

        if (choice >= 0) v = array_load4(x, (size_t)choice / K * C + i, C - i, C % 4 == 0);
        for (int k = 0; k < 4; k++) v.v[k] *= w;
        array_store4(y, row * C + i, C - i, C % 4 == 0, v);
    }
}

/* A block a token. */
static __global__ void __launch_bounds__(ROW_THREADS)
    unpermute_rows(struct array y, global<const int> rows, struct array weight, size_t K, size_t C, size_t M, struct array x)
{
    size_t token = blockIdx.x;

    for (size_t i = threadIdx.x * 4; i < C; i += ROW_THREADS * 4) {
        float4s sum = { { 0, 0, 0, 0 } };

        for (size_t k = token * K; k < (token + 1) * K; k++) {
            int row = rows[k];
            float w = weight.given ? array_get(weight, k) : 1;

            if (row < 0 || (size_t)row >= M) continue;
            float4s v = array_load4(y, (size_t)row * C + i, C - i, C % 4 == 0);
            for (int n = 0; n < 4; n++) sum.v[n] += w * v.v[n];
        }
        array_store4(x, token * C + i, C - i, C % 4 == 0, sum);
    }
}

/* A warp a choice. */
static __global__ void dot_rows(struct array x, struct array y, global<const int> rows, size_t n, size_t K, size_t C, size_t M,
                                struct array dweight)
{
    size_t choice = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    int row = choice < n ? (int)rows[choice] : -1;
    float sum = 0;

    for (size_t i = threadIdx.x * 4; row >= 0 && (size_t)row < M && i < C; i += 32 * 4) {
        float4s a = array_load4(x, choice / K * C + i, C - i, C % 4 == 0), b = array_load4(y, (size_t)row * C + i, C - i, C % 4 == 0);

        for (int k = 0; k < 4; k++) sum += a.v[k] * b.v[k];
    }
    sum = warp_reduce<sum_of>(sum);
    if (choice < n && threadIdx.x == 0) array_put(dweight, choice, sum);
}

static size_t permute_scratch(const struct call *c) { return view_rows(&c->out[0]) * sizeof(int); }

static void run_permute(const struct call *c)
{
    size_t n = view_count(&c->in[1]), M = view_rows(&c->out[0]);
    global<int> from = global_of<int>(c->scratch);

    launch(c, KERNEL(rows_clear), blocks_of(M, BLOCK_THREADS), BLOCK_THREADS, 0, from, M);
    launch(c, KERNEL(rows_invert), blocks_of(n, BLOCK_THREADS), BLOCK_THREADS, 0, global_of<const int>(c->in[1].data), n, M, from);
    launch(c, KERNEL(permute_rows), (unsigned)M, ROW_THREADS, 0, array_in(c, 0), from, array_in(c, 2), view_last(&c->in[1]),
           view_last(&c->out[0]), array_out(c, 0));
}

static void run_unpermute(const struct call *c)
{
    launch(c, KERNEL(unpermute_rows), (unsigned)view_rows(&c->out[0]), ROW_THREADS, 0, array_in(c, 0), global_of<const int>(c->in[1].data),
           array_in(c, 2), view_last(&c->in[1]), view_last(&c->out[0]), view_rows(&c->in[0]), array_out(c, 0));
}

static void run_dot(const struct call *c)
{
    size_t n = view_count(&c->in[2]);

    launch(c, KERNEL(dot_rows), blocks_of(n, ROWS_MOST), dim3(32, ROWS_MOST), 0, array_in(c, 0), array_in(c, 1),
           global_of<const int>(c->in[2].data), n, view_last(&c->in[2]), view_last(&c->in[0]), view_rows(&c->in[1]), array_out(c, 0));
}

static bool rows_accept(const struct call *c)
{
    int rows = c->op == OP_ROWS_DOT ? 2 : 1;

    for (int i = 0; i < c->nin; i++)
        if (i == rows ? !is_array_of(&c->in[i], LS_I32) : view_given(&c->in[i]) && !is_array(&c->in[i])) return false;
    return is_array(&c->out[0]) && view_count(&c->in[rows]) < 1u << 31 && view_rows(&c->out[0]) < 1u << 31;
}

const struct kernel kernels_cuda_rows[] = {
    CUDA_ROW(ROUTE_ROWS, route_rows_accepts, route_rows_scratch, run_route_rows),
    CUDA_ROW(ROWS_PERMUTE, rows_accept, permute_scratch, run_permute),
    CUDA_ROW(ROWS_UNPERMUTE, rows_accept, NULL, run_unpermute),
    CUDA_ROW(ROWS_DOT, rows_accept, NULL, run_dot),
    CUDA_ROWS_END,
};
