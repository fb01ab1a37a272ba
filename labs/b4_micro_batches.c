/* B4 - the gradients of K micro-batches, each with its mean loss divided by K, add up to the gradient of the full batch; without the
 * division the sum is K times too large. */
#include "lab.h"
#include "lockstep/nn.h"

enum { LEAST_SAMPLES = 24, MOST = 64, IN = 5, HIDDEN = 7, OUT = 2, WEIGHTS = IN * HIDDEN };

/* The gradient of the first layer after `k` micro-batches of the `samples`, each loss times `factor`. */
static void gradient(int samples, int k, double factor, double *out)
{
    static double x[(LEAST_SAMPLES + MOST) * IN], y[(LEAST_SAMPLES + MOST) * OUT];
    ls_store_options f64 = { "cpu", LS_F64, 0, 1, 0 };
    size_t rows = (size_t)(samples / k);
    ls_store *s;
    ls_program *p;

    TRY(ls_store_new(&f64, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_mlp(p, "net", ls_input(p, "x", LS_F64, SIZES(rows, IN)), SIZES(IN, HIDDEN, OUT));
    ls_backward(p, ls_scale(p, ls_mse(p, v, ls_input(p, "y", LS_F64, SIZES(rows, OUT))), factor));
    TRY(ls_program_compile(p, NULL));
    for (int m = 0; m < k; m++) {
        int first = m * (int)rows;

        for (int i = 0; i < (int)rows * IN; i++) x[i] = sin(1.3 * (first * IN + i));
        for (int i = 0; i < (int)rows * OUT; i++) y[i] = cos(0.7 * (first * OUT + i));
        TRY(ls_program_write(p, "x", x, LS_F64, rows * IN));
        TRY(ls_program_write(p, "y", y, LS_F64, rows * OUT));
        TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    }
    TRY(ls_tensor_read(ls_store_grad(s, 0), out, LS_F64, WEIGHTS));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* The factor c with which a is nearest to c b, and the remaining distance relative to |a|. */
static double ratio(const double *a, const double *b, double *off)
{
    double ab = 0, bb = 0, aa = 0, rest = 0;

    for (int i = 0; i < WEIGHTS; i++) {
        ab += a[i] * b[i];
        bb += b[i] * b[i];
        aa += a[i] * a[i];
    }
    double c = ab / bb;
    for (int i = 0; i < WEIGHTS; i++) rest += pow(a[i] - c * b[i], 2);
    *off = sqrt(rest / aa);
    return c;
}

static void accumulated(int k)
{
    double full[WEIGHTS], micro[WEIGHTS], off;
    int samples = k * ((LEAST_SAMPLES + k - 1) / k);
    char what[80];

    gradient(samples, 1, 1, full);
    gradient(samples, k, 1.0 / k, micro);
    snprintf(what, sizeof what, "K = %d, loss / K: ratio to the full batch", k);
    lab_equal(what, 1, ratio(micro, full, &off), 1e-12);
    lab_equal("         distance in direction", 0, off, 1e-12);
    gradient(samples, k, 1, micro);
    snprintf(what, sizeof what, "K = %d, loss as it is: ratio to the full batch", k);
    lab_equal(what, k, ratio(micro, full, &off), 1e-12);
}

LAB(b4_micro_batches, "micro-batches and the full batch", { "micro-batches", "micro-batches of one more row", 4, 1, MOST })
{
    int more = (int)lab_size("micro-batches");

    lab_open("B4");
    for (int k = 2; k <= 8; k *= 2) accumulated(k);
    if (more != 2 && more != 4 && more != 8) accumulated(more);
    return lab_close();
}
