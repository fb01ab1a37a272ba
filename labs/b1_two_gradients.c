/* B1 - the backward pass of a layer computes two gradients: the weight gradient dW = dy^T x, which needs the saved activation x, and the
 * input gradient dX = dy W, which needs the weight. Each is computed here in a program in which the other's operand does not exist, and is
 * compared with the gradient of the complete layer; then each is requested without its operand. */
#include "lab.h"
#include "lockstep/ops.h"

enum { SIZE_MOST = 256 };

static size_t R, K, N; /* samples, inputs and outputs of the layer */

static double data(int stream, size_t i) { return sin(1.7 * stream + 0.9 * (double)i); }

static double *numbers_new(size_t n)
{
    double *x = malloc(n * sizeof *x);

    if (!x) exit(1);
    return x;
}

enum gradient { WEIGHT, INPUT };

/* A program that computes one of the gradients: output "gradient"[count] from inputs "dy" and `other`. */
static void compute(enum gradient which, const char *other, size_t rows, size_t columns, size_t count, double *out)
{
    double *in = numbers_new(R * N), *operand = numbers_new(rows * columns);
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value dy = ls_input(p, "dy", LS_F64, SIZES(R, N));
    ls_value x = ls_input(p, other, LS_F64, SIZES(rows, columns));
    ls_output(p, "gradient", which == WEIGHT ? ls_linear_backward_weight(p, dy, x) : ls_linear_backward_input(p, dy, x));
    TRY(ls_program_compile(p, NULL));
    for (size_t i = 0; i < R * N; i++) in[i] = data(0, i);
    for (size_t i = 0; i < rows * columns; i++) operand[i] = data(which == WEIGHT ? 1 : 2, i);
    TRY(ls_program_write(p, "dy", in, LS_F64, R * N));
    TRY(ls_program_write(p, other, operand, LS_F64, rows * columns));
    TRY(ls_program_run(p, LS_FORWARD));
    TRY(ls_program_read(p, "gradient", out, LS_F64, count));
    ls_program_release(&p);
    ls_store_release(&s);
    free(in);
    free(operand);
}

/* The same two from the gradient of sum(dy * (x W^T)), with x and W both parameters. */
static void complete_layer(double *dx, double *dw)
{
    ls_store_options f64 = { "cpu", LS_F64, 0, 0, 0 };
    ls_init zeros = { LS_INIT_ZEROS, 0 };
    double *in = numbers_new(R * N), *a = numbers_new(R * K), *b = numbers_new(N * K);
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_param(p, "x", zeros, SIZES(R, K));
    ls_value w = ls_param(p, "w", zeros, SIZES(N, K));
    ls_backward(p, ls_sum(p, ls_mul(p, ls_input(p, "dy", LS_F64, SIZES(R, N)), ls_linear(p, x, w, LS_NONE)), -1));
    TRY(ls_program_compile(p, NULL));
    for (size_t i = 0; i < R * N; i++) in[i] = data(0, i);
    for (size_t i = 0; i < R * K; i++) a[i] = data(1, i);
    for (size_t i = 0; i < N * K; i++) b[i] = data(2, i);
    TRY(ls_program_write(p, "dy", in, LS_F64, R * N));
    TRY(ls_store_set(s, 0, a, LS_F64, R * K));
    TRY(ls_store_set(s, 1, b, LS_F64, N * K));
    TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    TRY(ls_tensor_read(ls_store_grad(s, 0), dx, LS_F64, R * K));
    TRY(ls_tensor_read(ls_store_grad(s, 1), dw, LS_F64, N * K));
    ls_program_release(&p);
    ls_store_release(&s);
    free(in);
    free(a);
    free(b);
}

static double furthest(const double *a, const double *b, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(a[i] - b[i]));
    return most;
}

static void without_operand(const char *what, enum gradient which)
{
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value dy = ls_input(p, "dy", LS_F32, SIZES(R, N));
    which == WEIGHT ? ls_linear_backward_weight(p, dy, LS_NONE) : ls_linear_backward_input(p, dy, LS_NONE);
    lab_equal(what, 1, ls_program_status(p) == LS_EINVAL, 0);
    lab_say("    \"%s\"\n", ls_errmsg());
    ls_program_release(&p);
    ls_store_release(&s);
}

LAB(b1_two_gradients, "two gradients of a layer", { "batch", "samples", 5, 1, SIZE_MOST },
    { "width", "inputs of the layer", 4, 1, SIZE_MOST }, { "outputs", "outputs of the layer", 3, 1, SIZE_MOST })
{
    R = (size_t)lab_size("batch");
    K = (size_t)lab_size("width");
    N = (size_t)lab_size("outputs");
    double *dx = numbers_new(R * K), *dw = numbers_new(N * K), *weight = numbers_new(N * K), *input = numbers_new(R * K);

    lab_open("B1");
    complete_layer(dx, dw);
    compute(WEIGHT, "x", R, K, N * K, weight);
    compute(INPUT, "w", N, K, R * K, input);
    lab_equal("weight gradient without W: largest distance to the layer's dW", 0, furthest(weight, dw, N * K), 1e-12);
    lab_equal("input gradient without x: largest distance to the layer's dX", 0, furthest(input, dx, R * K), 1e-12);
    without_operand("weight gradient without the activation is refused", WEIGHT);
    without_operand("input gradient without the weight is refused", INPUT);
    free(dx);
    free(dw);
    free(weight);
    free(input);
    return lab_close();
}
