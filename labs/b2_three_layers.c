/* B2 - three linear layers h3 = W3 W2 W1 x with loss |h3 - y|^2 / 2: by the chain rule dL/dW1 = W2^T W3^T (h3 - y) x^T. The formula in
 * plain loops is compared with the gradient pass.
 *
 * The recursion behind the formula computes each factor once: the backward of a layer is two matmuls the size of its forward's. The first
 * layer's input needs no gradient, so that L layers cost (2 L - 1) / L of their forward. Counted in the compiled program. */
#include "lab.h"
#include "lab_program.h"
#include "lockstep/ops.h"

enum { N = 6 };

static void times(const double *w, const double *x, double *y, int transposed)
{
    for (int i = 0; i < N; i++) {
        y[i] = 0;
        for (int k = 0; k < N; k++) y[i] += (transposed ? w[k * N + i] : w[i * N + k]) * x[k];
    }
}

/* FLOPs of the matmuls of `layers` linear layers in a phase; of the first layer alone, or of all. */
static double matmul_flops(int layers, ls_phase phase, int first_alone)
{
    ls_compile_options plan = { .plan_only = 1 };
    double flops = 0;
    char name[32];
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_input(p, "x", LS_F32, SIZES(8, 16));
    for (int l = 0; l < layers; l++) {
        snprintf(name, sizeof name, "layer.%d", l);
        ls_block_begin(p, name);
        v = ls_linear(p, v, ls_param(p, "w", (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(16, 16)), LS_NONE);
        ls_block_end(p);
    }
    ls_backward(p, ls_mean(p, v, -1));
    TRY(ls_program_compile(p, &plan));
    struct instructions list = instructions_of(p);
    for (int k = 0; k < list.n; k++) {
        const ls_instruction *i = &list.at[k];

        if (i->phase != phase || strncmp(i->op, "linear", 6) != 0) continue;
        if (!first_alone || strcmp(i->block, "layer.0") == 0) flops += i->flops;
    }
    free(list.at);
    ls_program_release(&p);
    ls_store_release(&s);
    return flops;
}

static double backward_of_forward(int layers, int first_alone)
{
    double backward = matmul_flops(layers, LS_PHASE_INPUT_GRADIENT, first_alone)
                      + matmul_flops(layers, LS_PHASE_WEIGHT_GRADIENT, first_alone);

    return backward / matmul_flops(layers, LS_PHASE_FORWARD, first_alone);
}

static void backward_flops(void)
{
    int layers = (int)lab_size("layers");
    char what[80];

    lab_check("first layer: FLOPs of backward / forward", 1, backward_of_forward(layers, 1), 0);
    snprintf(what, sizeof what, "%d layers: FLOPs of backward / forward", layers);
    lab_check(what, (2.0 * layers - 1) / layers, backward_of_forward(layers, 0), 1e-12);
    lab_check("a layer more adds: FLOPs of backward / forward", 2,
              (backward_of_forward(layers + 1, 0) * (layers + 1) - backward_of_forward(layers, 0) * layers), 1e-9);
}

LAB(b2_three_layers, "the chain rule through three layers", { "layers", "layers whose FLOPs are counted", 3, 1, 64 })
{
    ls_store_options f64 = { "cpu", LS_F64, 0, 7, 0 };
    ls_init init = { LS_INIT_NORMAL, 0.5 };
    const char *names[] = { "w1", "w2", "w3" };
    double x[N], y[N], h[N], d[N], t[N], w[3][N * N], grad[N * N], off = 0, norm = 0, found = 0;
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_input(p, "x", LS_F64, SIZES(1, N));
    for (int i = 0; i < 3; i++)
        v = ls_linear(p, v, ls_param(p, names[i], init, SIZES(N, N)), LS_NONE);
    ls_backward(p, ls_scale(p, ls_mse(p, v, ls_input(p, "y", LS_F64, SIZES(1, N))), N / 2.0));  /* the mean is over N */
    TRY(ls_program_compile(p, NULL));
    for (int i = 0; i < N; i++) {
        x[i] = cos(i);
        y[i] = sin(3 * i);
    }
    TRY(ls_program_write(p, "x", x, LS_F64, N));
    TRY(ls_program_write(p, "y", y, LS_F64, N));
    TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    TRY(ls_tensor_read(ls_store_grad(s, 0), grad, LS_F64, N * N));
    for (size_t i = 0; i < 3; i++) TRY(ls_tensor_read(ls_store_value(s, i), w[i], LS_F64, N * N));

    times(w[0], x, t, 0);
    times(w[1], t, h, 0);
    times(w[2], h, t, 0);
    for (int i = 0; i < N; i++) d[i] = t[i] - y[i];
    times(w[2], d, t, 1);
    times(w[1], t, d, 1);
    for (int i = 0; i < N * N; i++) {
        double formula = d[i / N] * x[i % N];

        off += pow(grad[i] - formula, 2);
        norm += formula * formula;
        found += grad[i] * grad[i];
    }
    lab_open("B2");
    lab_equal("norm of dL/dW1: the formula in plain loops, the gradient pass", sqrt(norm), sqrt(found), 1e-12);
    lab_equal("distance of formula and gradient pass, of that norm", 0, sqrt(off / norm), 1e-12);
    backward_flops();
    ls_program_release(&p);
    ls_store_release(&s);
    return lab_close();
}
