/* matmul.cu - LINEAR, its gradients and MATMUL on the plain tile of gemm.h: for operands of any strides and types. */
#include "kernels/cuda/matmul.h"

struct product {
    struct matrix a, b, c;
    struct array bias;
    size_t M, N, K;
    int add;
};

static __device__ inline void product_run(const struct product &p, size_t m0, size_t n0)
{
    struct tile t;

    tile_clear(&t);
    tile_multiply(&t, p.a, p.b, m0, p.M, n0, p.N, 0, p.K);
    EACH_OF_TILE(t, m0, p.M, n0, p.N, r, s, v)
    {
        long long at = p.c.offset + (long long)r * p.c.row + (long long)s * p.c.column;

        if (p.bias.given) v += array_get(p.bias, s);
        type_put(p.c.data, p.c.type, at, p.add ? type_get(p.c.data, p.c.type, at) + v : v);
    }
}

static __global__ void __launch_bounds__(GEMM_THREADS) matmul_tiles(const __grid_constant__ struct product p)
{
    product_run(p, (size_t)blockIdx.x * TILE, (size_t)blockIdx.y * TILE);
}

/* Leading dims of the operands: batch b of each is at strided_at(b). */
static __global__ void __launch_bounds__(GEMM_THREADS)
    matmul_batches(const __grid_constant__ struct product all, const __grid_constant__ struct strided a,
                   const __grid_constant__ struct strided b, const __grid_constant__ struct strided c, size_t batches)
{
    struct product p = all;

    for (size_t batch = blockIdx.z; batch < batches; batch += gridDim.z) {
        p.a.offset = strided_at(a, batch);
        p.b.offset = strided_at(b, batch);
        p.c.offset = strided_at(c, batch);
        product_run(p, (size_t)blockIdx.x * TILE, (size_t)blockIdx.y * TILE);
    }
}

void matmul_launch(const struct call *call, struct matrix a, struct matrix b, struct matrix c, size_t M, size_t N, size_t K,
                   struct array bias, bool add)
{
    struct product p = { a, b, c, bias, M, N, K, add };

    launch(call, KERNEL(matmul_tiles), dim3(blocks_of(M, TILE), blocks_of(N, TILE)), GEMM_THREADS, 0, p);
}

static void run_linear(const struct call *c)
{
    const struct view *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
    size_t N = view_last(y), K = view_last(x);

    matmul_launch(c, matrix_of_view(x, false), matrix_of_view(w, true), matrix_of_view(y, false), view_rows(x), N, K, array_in(c, 2),
                  false);
}

static void run_linear_dx(const struct call *c)
{
    const struct view *dy = &c->in[0], *w = &c->in[1], *dx = &c->out[0];

    matmul_launch(c, matrix_of_view(dy, false), matrix_of_view(w, false), matrix_of_view(dx, false), view_rows(dy), view_last(dx),
                  view_last(dy), array_none(), false);
}

static void run_linear_dw(const struct call *c)
{
    const struct view *dy = &c->in[0], *x = &c->in[1], *dw = &c->out[0];

    matmul_launch(c, matrix_of_view(dy, true), matrix_of_view(x, false), matrix_of_view(dw, false), view_last(dy), view_last(x),
                  view_rows(dy), array_none(), true);
}

static struct strided leading_dims(const struct view *v)
{
    struct strided s = strided_of(v);

    s.ndim -= 2;
    return s;
}

static void matmul_run(const struct call *c)
{
    const struct view *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    size_t M = y->size[y->ndim - 2], N = view_last(y), K = view_last(a), batches = 1;
    struct product p = {};
    struct matrix *to[3] = { &p.a, &p.b, &p.c };
    const struct view *from[3] = { a, b, y };

    for (int d = 0; d < y->ndim - 2; d++) batches *= y->size[d];
    for (int k = 0; k < 3; k++) {
        const struct view *v = from[k];

        *to[k] = matrix_of(global_of<byte>(v->data), v->dtype, v->stride[v->ndim - 2], v->stride[v->ndim - 1]);
    }
    p.bias = array_none();
    p.M = M;
    p.N = N;
    p.K = K;
    launch(c, KERNEL(matmul_batches), dim3(blocks_of(M, TILE), blocks_of(N, TILE), batches < 65535 ? (unsigned)batches : 65535),
           GEMM_THREADS, 0, p, leading_dims(a), leading_dims(b), leading_dims(y), batches);
}

static bool linear_accepts(const struct call *c) { return all_arrays(c) && tiles_fit(view_last(&c->out[0])); }

static bool matmul_accepts(const struct call *c)
{
    return is_half_or_float(&c->in[0]) && is_half_or_float(&c->in[1]) && is_half_or_float(&c->out[0]) && tiles_fit(view_last(&c->out[0]));
}

const struct kernel kernels_cuda_matmul[] = {
    CUDA_ROW(LINEAR, linear_accepts, NULL, run_linear),
    CUDA_ROW(LINEAR_DX, linear_accepts, NULL, run_linear_dx),
    CUDA_ROW(LINEAR_DW, linear_accepts, NULL, run_linear_dw),
    CUDA_ROW(MATMUL, matmul_accepts, NULL, matmul_run),
    CUDA_ROWS_END,
};
