/* B5 - the gradient that reaches a layer is a product of as many W^T as there are layers above it: with weights of standard deviation s
 * / sqrt(width) each factor scales it by about s, so it vanishes for s < 1 and explodes for s > 1.
 *
 * The gradient is measured at each layer's bias. (Not at its weight: in a linear network the growth of the activations in forward and
 * the shrinking of the gradient in backward cancel there.) */
#include "lab.h"
#include "lockstep/ops.h"

enum { LAYERS = 16, N = 64, B = 32 };

/* errors[l] = norm of the error at layer l. */
static void errors_by_depth(double s, double *errors)
{
    ls_store_options f64 = { "cpu", LS_F64, 0, 3, 0 };
    ls_store *store;
    ls_program *p;
    double x[B * N], g[N];
    char name[32];

    TRY(ls_store_new(&f64, &store));
    TRY(ls_program_new(store, &p));
    ls_value v = ls_input(p, "x", LS_F64, SIZES(B, N));
    for (int l = 0; l < LAYERS; l++) {
        snprintf(name, sizeof name, "%d.weight", l);
        ls_value w = ls_param(p, name, (ls_init){ LS_INIT_NORMAL, s / sqrt(N) }, SIZES(N, N));
        snprintf(name, sizeof name, "%d.bias", l);
        ls_value b = ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(N));
        v = ls_linear(p, v, w, b);
    }
    ls_backward(p, ls_mean(p, v, -1));
    TRY(ls_program_compile(p, NULL));
    for (int i = 0; i < B * N; i++) x[i] = sin(i);
    TRY(ls_program_write(p, "x", x, LS_F64, B * N));
    TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    for (int l = 0; l < LAYERS; l++) {
        double sum = 0;

        snprintf(name, sizeof name, "%d.bias", l);
        TRY(ls_tensor_read(ls_store_grad(store, (size_t)ls_store_find(store, name)), g, LS_F64, N));
        for (int i = 0; i < N; i++) sum += g[i] * g[i];
        errors[l] = sqrt(sum);
    }
    ls_program_release(&p);
    ls_store_release(&store);
}

/* The error that reaches the first of `layers` layers whose weights are a times the identity, relative to the last one's. */
static double identities(double a, int layers)
{
    enum { SIZE = 2 };
    ls_store_options f64 = { "cpu", LS_F64, 0, 0, 0 };
    double w[SIZE * SIZE] = { a, 0, 0, a }, x[SIZE] = { 1, 2 }, first[SIZE], last[SIZE];
    char name[32];
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_input(p, "x", LS_F64, SIZES(1, SIZE));
    for (int l = 0; l <= layers; l++) {
        snprintf(name, sizeof name, "%d.bias", l);
        v = ls_add(p, v, ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(1, SIZE)));
        snprintf(name, sizeof name, "%d.weight", l);
        if (l < layers) v = ls_linear(p, v, ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(SIZE, SIZE)), LS_NONE);
    }
    ls_backward(p, ls_mean(p, v, -1));
    TRY(ls_program_compile(p, NULL));
    for (int l = 0; l < layers; l++) {
        snprintf(name, sizeof name, "%d.weight", l);
        TRY(ls_store_set(s, (size_t)ls_store_find(s, name), w, LS_F64, SIZE * SIZE));
    }
    TRY(ls_program_write(p, "x", x, LS_F64, SIZE));
    TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    snprintf(name, sizeof name, "%d.bias", layers);
    TRY(ls_tensor_read(ls_store_grad(s, (size_t)ls_store_find(s, name)), last, LS_F64, SIZE));
    TRY(ls_tensor_read(ls_store_grad(s, (size_t)ls_store_find(s, "0.bias")), first, LS_F64, SIZE));
    ls_program_release(&p);
    ls_store_release(&s);
    return first[0] / last[0];
}

LAB(b5_depth, "gradients that vanish or explode", { "layers", "layers of the identity's rows", 50, 1, 400 },
    { "percent", "factor of the identity, in percent", 90, 1, 199 })
{
    const double scales[] = { 0.5, 1.0, 2.0 };
    double errors[3][LAYERS], factor = (double)lab_size("percent") / 100;
    int layers = (int)lab_size("layers");

    for (int k = 0; k < 3; k++) errors_by_depth(scales[k], errors[k]);
    lab_say("norm of the error by layer (%d is the last)\n  layer %14s %14s %14s\n", LAYERS - 1, "s = 0.5", "s = 1",
           "s = 2");
    for (int l = LAYERS - 1; l >= 0; l--)
        lab_say("  %5d %14.3e %14.3e %14.3e\n", l, errors[0][l], errors[1][l], errors[2][l]);
    lab_say("\n");
    lab_open("B5");
    char what[96];
    for (int k = 0; k < 3; k++) {
        double per_layer = pow(errors[k][0] / errors[k][LAYERS - 1], 1.0 / (LAYERS - 1));

        snprintf(what, sizeof what, "s = %g: factor per layer, going down", scales[k]);
        lab_equal(what, scales[k], per_layer, 0.02);
    }
    for (int k = 0; k < 2; k++) {
        double a = k ? 2 - factor : factor;

        snprintf(what, sizeof what, "%d layers of %.0f%% of the identity: error at the bottom / at the top", layers, 100 * a);
        lab_equal(what, pow(a, layers), identities(a, layers), 0.01);
    }
    return lab_close();
}
