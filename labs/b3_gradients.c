/* B3 - gradients belong to the parameters and have their shape; backward accumulates into them; zero_grad clears them; the optimizer
 * reads parameters and gradients and never the loss. */
#include "lab.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"

enum { B = 8, IN = 3, OUT = 2 };

static double grad_norm(ls_store *s)
{
    double g[OUT * IN], sum = 0;

    TRY(ls_tensor_read(ls_store_grad(s, 0), g, LS_F64, OUT * IN));
    for (int i = 0; i < OUT * IN; i++) sum += g[i] * g[i];
    return sqrt(sum);
}

LAB(b3_gradients, "what gradients belong to")
{
    ls_optimizer sgd = { .kind = LS_SGD };
    ls_store_options f64 = { "cpu", LS_F64, 0, 1 };
    double x[B * IN], y[B * OUT], w[OUT * IN], moved[OUT * IN], hand[OUT * IN], once, off = 0;
    ls_store *s;
    ls_program *p;
    ls_value v;

    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    v = ls_mlp(p, "net", ls_input(p, "x", LS_F64, SIZES(B, IN)), SIZES(IN, OUT));
    ls_backward(p, ls_mse(p, v, ls_input(p, "y", LS_F64, SIZES(B, OUT))));
    TRY(ls_optimizer_append(p, &sgd));
    TRY(ls_program_compile(p, NULL));
    for (int i = 0; i < B * IN; i++) x[i] = sin(i);
    for (int i = 0; i < B * OUT; i++) y[i] = cos(i);
    TRY(ls_program_write(p, "x", x, LS_F64, B * IN));
    TRY(ls_program_write(p, "y", y, LS_F64, B * OUT));

    lab_open("B3");
    for (int d = 0; d < 2; d++)
        lab_equal(d ? "columns of the weight, of its gradient" : "rows of the weight, of its gradient",
                  (double)ls_store_size(s, 0, d), (double)ls_tensor_size(ls_store_grad(s, 0), d), 0);
    TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    once = grad_norm(s);
    TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    lab_equal("a second backward adds: ratio of the norms", 2, grad_norm(s) / once, 1e-12);
    ls_store_zero_grad(s);
    lab_equal("norm after zero_grad", 0, grad_norm(s), 0);

    /* Gradients written by hand: no forward, no loss, and the update follows them. */
    for (int i = 0; i < OUT * IN; i++) hand[i] = i + 1;
    TRY(ls_tensor_read(ls_store_value(s, 0), w, LS_F64, OUT * IN));
    TRY(ls_tensor_write(ls_store_grad(s, 0), hand, LS_F64, OUT * IN));
    TRY(ls_optimizer_set(p, &sgd, 0.5, 1));
    TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
    TRY(ls_tensor_read(ls_store_value(s, 0), moved, LS_F64, OUT * IN));
    for (int i = 0; i < OUT * IN; i++) off = fmax(off, fabs(w[i] - 0.5 * hand[i] - moved[i]));
    lab_equal("gradients by hand: distance of the weights to w - lr g", 0, off, 1e-12);
    ls_program_release(&p);
    ls_store_release(&s);
    return lab_close();
}
