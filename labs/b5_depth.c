/* B5 - the error passed down is a product of as many W^T as there are layers above: with weights of deviation
 * s / sqrt(width) each factor scales it by about s, so it vanishes for s < 1 and explodes for s > 1.
 *
 * The error at a layer is the gradient of that layer's bias. (Not of the weight: there the growth of the activations
 * on the way up and the shrinking of the error on the way down cancel in a linear network.) */
#include "lab.h"
#include "lockstep/ops.h"

enum { LAYERS = 16, N = 64, B = 32 };

/* errors[l] = norm of the error at layer l. */
static void errors_by_depth(double s, double *errors)
{
    ls_store_options f64 = { "cpu", LS_F64, 0, 3 };
    ls_store *store;
    ls_program *p;
    ls_value v;
    double x[B * N], g[N];
    char name[32];

    TRY(ls_store_new(&f64, &store));
    TRY(ls_program_new(store, &p));
    v = ls_input(p, "x", LS_F64, SIZES(B, N));
    for (int l = 0; l < LAYERS; l++) {
        ls_value w, b;

        snprintf(name, sizeof name, "%d.weight", l);
        w = ls_param(p, name, (ls_init){ LS_INIT_NORMAL, s / sqrt(N) }, SIZES(N, N));
        snprintf(name, sizeof name, "%d.bias", l);
        b = ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(N));
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

int main(void)
{
    const double scales[] = { 0.5, 1.0, 2.0 };
    double errors[3][LAYERS];

    for (int k = 0; k < 3; k++) errors_by_depth(scales[k], errors[k]);
    printf("norm of the error by layer (%d is the last)\n  layer %14s %14s %14s\n", LAYERS - 1, "s = 0.5", "s = 1",
           "s = 2");
    for (int l = LAYERS - 1; l >= 0; l--)
        printf("  %5d %14.3e %14.3e %14.3e\n", l, errors[0][l], errors[1][l], errors[2][l]);
    printf("\n");
    lab_open("B5", "long products of W^T vanish or explode");
    for (int k = 0; k < 3; k++) {
        double per_layer = pow(errors[k][0] / errors[k][LAYERS - 1], 1.0 / (LAYERS - 1));
        char what[80];

        snprintf(what, sizeof what, "s = %g: factor per layer, going down", scales[k]);
        lab_equal(what, scales[k], per_layer, 0.1);
    }
    lab_below("s = 0.5: first layer's error / last layer's", 1e-3, errors[0][0] / errors[0][LAYERS - 1]);
    lab_above("s = 2:   first layer's error / last layer's", 1e3, errors[2][0] / errors[2][LAYERS - 1]);
    return lab_close();
}
