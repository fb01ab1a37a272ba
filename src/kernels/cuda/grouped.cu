/* grouped.cu - matmuls of the rows of each expert, on the plain tile of gemm.h. */
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/groups.h"

struct grouped {
    struct matrix x, w, y; /* w: of expert 0; the others follow after w_each elements */
    long long w_each;
    size_t M, N, K;
    struct groups of;
};

/* y[m,n] = sum_k x[m,k] w[expert][k,n] */
static __global__ void __launch_bounds__(GEMM_THREADS) grouped_tiles(const __grid_constant__ struct grouped g)
{
    size_t row, end, n0 = (size_t)blockIdx.y * TILE;
    struct matrix w = g.w;
    struct tile t;
    int expert;

    if (!groups_find(g.of, blockIdx.x, TILE, &expert, &row, &end) || end > g.M) return;
    w.offset = expert * g.w_each;
    tile_clear(&t);
    tile_multiply(&t, g.x, w, row, end, n0, g.N, 0, g.K);
    EACH_OF_TILE(t, row, end, n0, g.N, r, s, v) type_put(g.y.data, g.y.type, (long long)r * g.y.row + (long long)s, v);
}

/* dw[expert][n,k] += sum over the expert's rows m of dy[m,n] x[m,k]; each source's sum is added (and rounded) before the next one's */
static __global__ void __launch_bounds__(GEMM_THREADS) grouped_dw(const __grid_constant__ struct grouped g)
{
    size_t m0 = (size_t)blockIdx.x * TILE, n0 = (size_t)blockIdx.y * TILE, end = 0;
    struct tile t;
    int from = 0;

    for (int k = (int)blockIdx.z; k < g.of.groups; k += g.of.experts) {
        size_t begin = end + groups_rows(g.of, from, k);

        end = begin + (size_t)g.of.counts[k];
        from = k + 1;
        if (begin == end || end > g.K) continue;
        tile_clear(&t);
        tile_multiply(&t, g.x, g.w, m0, g.M, n0, g.N, begin, end);
        EACH_OF_TILE(t, m0, g.M, n0, g.N, r, s, v)
        {
            long long to = (long long)blockIdx.z * g.w_each + (long long)(r * g.N + s);

            type_put(g.y.data, g.y.type, to, type_get(g.y.data, g.y.type, to) + v);
        }
    }
}

static void run_grouped(const struct call *c)
{
    const struct view *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
    bool forward = c->op == OP_GROUPED_LINEAR;
    long long inner = (long long)w->size[2];
    struct grouped g = {};

    g.of = groups_of(c);
    g.x = matrix_of_view(x, false);
    g.w = matrix_of(global_of<byte>(w->data), w->dtype, forward ? 1 : inner, forward ? inner : 1);
    g.y = matrix_of_view(y, false);
    g.w_each = (long long)(w->size[1] * w->size[2]);
    g.M = view_rows(x);
    g.N = view_last(y);
    g.K = view_last(x);
    if (!g.M) return;
    launch(c, KERNEL(grouped_tiles), dim3(blocks_of(g.M, TILE) + (unsigned)g.of.groups, blocks_of(g.N, TILE)), GEMM_THREADS, 0, g);
    groups_clear_rest(c);
}

static void run_grouped_dw(const struct call *c)
{
    struct grouped g = {};

    g.of = groups_of(c);
    g.x = matrix_of_view(&c->in[0], true);
    g.w = matrix_of_view(&c->in[1], false);
    g.y = matrix_of_view(&c->out[0], false);
    g.M = view_last(&c->in[0]);
    g.N = view_last(&c->in[1]);
    g.K = view_rows(&c->in[0]);
    g.w_each = (long long)(g.M * g.N);
    launch(c, KERNEL(grouped_dw), dim3(blocks_of(g.M, TILE), blocks_of(g.N, TILE), (unsigned)g.of.experts), GEMM_THREADS, 0, g);
}

static bool grouped_accepts(const struct call *c)
{
    return is_array(&c->in[0]) && is_array(&c->in[1]) && is_array_of(&c->in[2], LS_I32) && is_array(&c->out[0]) &&
           tiles_fit(view_last(&c->out[0])) && view_last(&c->in[2]) <= 65535 && view_count(&c->in[2]) < 1 << 20;
}

const struct kernel kernels_cuda_grouped[] = {
    CUDA_ROW(GROUPED_LINEAR, grouped_accepts, NULL, run_grouped),
    CUDA_ROW(GROUPED_LINEAR_DX, grouped_accepts, NULL, run_grouped),
    CUDA_ROW(GROUPED_LINEAR_DW, grouped_accepts, NULL, run_grouped_dw),
    CUDA_ROWS_END,
};
