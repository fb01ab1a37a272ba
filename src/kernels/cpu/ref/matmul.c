/* matmul.c - reference: matmuls. */
#include "kernels/cpu/ref/ref.h"

static void linear(const struct call *c)
{
    const struct view *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
    size_t R = view_rows(x), K = view_last(x), N = view_last(y);

    for (size_t r = 0; r < R; r++)
        for (size_t n = 0; n < N; n++) {
            double bias = call_has_in(c, 2) ? ref_get(&c->in[2], n) : 0;

            ref_put(y, r * N + n, ref_dot(bias, x, r * K, 1, w, n * K, 1, K));
        }
}

static void linear_dx(const struct call *c)
{
    const struct view *dy = &c->in[0], *w = &c->in[1], *dx = &c->out[0];
    size_t R = view_rows(dy), K = view_last(dx), N = view_last(dy);

    for (size_t r = 0; r < R; r++)
        for (size_t k = 0; k < K; k++) ref_put(dx, r * K + k, ref_dot(0, dy, r * N, 1, w, k, K, N));
}

static void linear_dw(const struct call *c)
{
    const struct view *dy = &c->in[0], *x = &c->in[1], *dw = &c->out[0];
    size_t R = view_rows(dy), K = view_last(x), N = view_last(dy);

    for (size_t n = 0; n < N; n++)
        for (size_t k = 0; k < K; k++) ref_add(dw, n * K + k, ref_dot(0, dy, n, N, x, k, K, R));
}

static void bias_grad(const struct call *c)
{
    const struct view *dy = &c->in[0], *db = &c->out[0];
    size_t R = view_rows(dy), N = view_last(dy);

    for (size_t n = 0; n < N; n++) {
        double sum = 0;

        for (size_t r = 0; r < R; r++) sum += ref_get(dy, r * N + n);
        ref_add(db, n, sum);
    }
}

/* Runs the references of the two ops that it replaces. */
static void linear_dw_bias(const struct call *c)
{
    struct call bias = *c;

    linear_dw(c);
    bias.out[0] = c->out[1];
    bias_grad(&bias);
}

/* y is rounded to its type before it is activated; where it is absent it takes the place of a. */
static void linear_unary(const struct call *c)
{
    struct call product = *c, activation = *c;

    product.op = OP_LINEAR;
    activation.op = OP_UNARY;
    product.out[0] = activation.in[0] = call_has_out(c, 0) ? c->out[0] : c->out[1];
    activation.out[0] = c->out[1];
    linear(&product);
    kernel_reference(OP_UNARY)->run(&activation);
}

static void matmul(const struct call *c)
{
    const struct view *a = &c->in[0], *b = &c->in[1], *out = &c->out[0];
    size_t M = out->size[out->ndim - 2], N = view_last(out), K = view_last(a);
    size_t batches = 1;

    for (int d = 0; d < out->ndim - 2; d++) batches *= out->size[d];
    for (size_t i = 0; i < batches * M * N; i++) {
        size_t batch = i / (M * N), m = i / N % M, n = i % N;

        ref_put(out, i, ref_dot(0, a, (batch * M + m) * K, 1, b, batch * K * N + n, N, K));
    }
}

const struct kernel kernels_ref_gemm[] = {
    REF_ROW(LINEAR, linear, NULL),
    REF_ROW(LINEAR_DX, linear_dx, NULL),
    REF_ROW(LINEAR_DW, linear_dw, NULL),
    REF_ROW(BIAS_GRAD, bias_grad, NULL),
    REF_ROW(MATMUL, matmul, NULL),
    REF_ROW(LINEAR_DW_BIAS, linear_dw_bias, NULL),
    REF_ROW(LINEAR_UNARY, linear_unary, NULL),
    KERNELS_END,
};
