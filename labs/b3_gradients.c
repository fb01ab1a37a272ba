/* B3 - gradients belong to the parameters and have their shape; backward accumulates into them; zero_grad clears them; the optimizer
 * reads parameters and gradients and never the loss.
 *
 * Backward must accumulate: a weight that one program uses several times has the sum of its uses as its gradient. And a cleared gradient is
 * not the same as no gradient: momentum (or weight decay) still moves the weight, while a parameter without a gradient, such as a frozen
 * one, is skipped. */
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

/* ---- a weight that is used several times ---- */

enum { WIDTH = 4, USES_MOST = 16 };

/* y = W .. W x, `uses` times the same W (tied), or that many weights of the same value: the sum of the gradients of all. Given factor
 * instead of values W is factor times the identity. */
static void gradient_of_uses(int uses, int tied, double factor, double *sum)
{
    ls_store_options f64 = { "cpu", LS_F64, 0, 0, 0 };
    double w[WIDTH * WIDTH], x[WIDTH], g[WIDTH * WIDTH];
    char name[16];
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_input(p, "x", LS_F64, SIZES(1, WIDTH));
    for (int k = 0; k < uses; k++) {
        snprintf(name, sizeof name, "w%d", tied ? 0 : k);
        v = ls_linear(p, v, ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(WIDTH, WIDTH)), LS_NONE);
    }
    ls_backward(p, ls_mean(p, v, -1));
    TRY(ls_program_compile(p, NULL));
    for (int i = 0; i < WIDTH * WIDTH; i++) w[i] = factor != 0 ? factor * (i % (WIDTH + 1) == 0) : sin(2 + i);
    for (int i = 0; i < WIDTH; i++) x[i] = 1 + i;
    for (size_t k = 0; k < ls_store_count(s); k++) TRY(ls_store_set(s, k, w, LS_F64, WIDTH * WIDTH));
    TRY(ls_program_write(p, "x", x, LS_F64, WIDTH));
    TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    for (int i = 0; i < WIDTH * WIDTH; i++) sum[i] = 0;
    for (size_t k = 0; k < ls_store_count(s); k++) {
        TRY(ls_tensor_read(ls_store_grad(s, k), g, LS_F64, WIDTH * WIDTH));
        for (int i = 0; i < WIDTH * WIDTH; i++) sum[i] += g[i];
    }
    ls_program_release(&p);
    ls_store_release(&s);
}

static void used_again(void)
{
    int uses = (int)lab_size("uses");
    double tied[WIDTH * WIDTH], apart[WIDTH * WIDTH], once[WIDTH * WIDTH], off = 0, norm = 0;
    char what[96];

    gradient_of_uses(uses, 1, 0, tied);
    gradient_of_uses(uses, 0, 0, apart);
    for (int i = 0; i < WIDTH * WIDTH; i++) {
        off += pow(tied[i] - apart[i], 2);
        norm += apart[i] * apart[i];
    }
    snprintf(what, sizeof what, "a weight used %d times in a program: distance to the sum over the uses", uses);
    lab_check(what, 0, sqrt(off / norm), 1e-12);
    gradient_of_uses(uses, 1, 1, tied);
    gradient_of_uses(1, 1, 1, once);
    snprintf(what, sizeof what, "an identity used %d times: gradient / that of one use", uses);
    lab_check(what, uses, tied[0] / once[0], 1e-12);
}

/* ---- cleared and absent gradients ---- */

/* A weight [2,2] of ones takes a step along a gradient of ones, then one more after the gradient was cleared: how far the second step moves
 * it, relative to the first. frozen: for a parameter without a gradient, for which only *second is set. */
static double second_step(double momentum, double decay, int frozen, double *second)
{
    enum { COUNT = 4 };
    ls_optimizer sgd = { .kind = LS_SGD, .momentum = momentum, .weight_decay = decay };
    ls_store_options f64 = { "cpu", LS_F64, 0, 0, 0 };
    double ones[COUNT] = { 1, 1, 1, 1 }, w[3][COUNT];
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    ls_value used = ls_param(p, "used", (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(2, 2));
    ls_value other = ls_param(p, "other", (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(2, 2));
    if (frozen) TRY(ls_store_freeze(s, 1));
    ls_backward(p, ls_sum(p, ls_add(p, used, other), -1));
    TRY(ls_optimizer_append(p, &sgd));
    TRY(ls_program_compile(p, NULL));
    for (size_t k = 0; k < 2; k++) TRY(ls_store_set(s, k, ones, LS_F64, COUNT));
    for (uint64_t step = 0; step < 3; step++) {
        TRY(ls_tensor_read(ls_store_value(s, 1), w[step], LS_F64, COUNT));
        if (step == 0) TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
        if (step == 1) ls_store_zero_grad(s);
        TRY(ls_optimizer_set(p, &sgd, 0.1, step + 1));
        if (step < 2) TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
    }
    ls_program_release(&p);
    ls_store_release(&s);
    *second = w[1][0] - w[2][0];
    return *second / (w[0][0] - w[1][0]);
}

static void cleared(void)
{
    double second;

    lab_check("SGD, cleared gradient: next step, of the one before", 0, second_step(0, 0, 0, &second), 0);
    lab_check("SGD with momentum 0.9, cleared gradient: next step, of the one before", 0.9, second_step(0.9, 0, 0, &second), 1e-6);
    second_step(0, 0.5, 0, &second);
    lab_check("SGD with weight decay 0.5, lr 0.1, cleared gradient: next step", 0.1 * 0.5 * 0.85, second, 1e-6);
    second_step(0.9, 0.5, 1, &second);
    lab_check("no gradient (frozen), momentum and weight decay: next step", 0, second, 0);
}

/* Backward passes without clearing. */
static void passes_add(ls_store *s, ls_program *p, double once)
{
    int passes = (int)lab_size("micro-batches");
    char what[80];

    ls_store_zero_grad(s);
    for (int k = 0; k < passes; k++) TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    snprintf(what, sizeof what, "%d backward passes without clearing: gradient / one pass's", passes);
    lab_equal(what, passes, grad_norm(s) / once, 1e-12);
}

LAB(b3_gradients, "what gradients belong to", { "micro-batches", "backward passes without clearing", 2, 1, 64 },
    { "uses", "uses of one weight in a program", 2, 1, USES_MOST })
{
    ls_optimizer sgd = { .kind = LS_SGD };
    ls_store_options f64 = { "cpu", LS_F64, 0, 1, 0 };
    double x[B * IN], y[B * OUT], w[OUT * IN], moved[OUT * IN], hand[OUT * IN], off = 0;
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_mlp(p, "net", ls_input(p, "x", LS_F64, SIZES(B, IN)), SIZES(IN, OUT));
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
    double once = grad_norm(s);
    passes_add(s, p, once);
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
    used_again();
    cleared();
    return lab_close();
}
