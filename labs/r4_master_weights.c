/* R4 - without fp32 master weights, small updates round to zero and training stalls. A change of less than half a unit in the last of
 * bf16's 8 bits, 1/512 of a weight, is lost; Adam's steps are about lr, whatever the gradient. Stochastic rounding, which needs no more
 * memory, keeps them in the mean. */
#include "lab.h"
#include "lockstep/dtype.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"

enum { STEPS = 800, EVERY = 100, B = 32, IN = 8, POINTS = STEPS / EVERY + 1, WEIGHTS_MOST = 8192 };

static void weights_of(const ls_store *s, const char *kind, double *w)
{
    for (size_t i = 0, at = 0; i < ls_store_count(s); i++) {
        size_t n = 1;

        for (int d = 0; d < ls_store_ndim(s, i); d++) n *= ls_store_size(s, i, d);
        TRY(ls_store_read(s, i, kind, w + at, LS_F64, n));
        at += n;
    }
}

/* Losses every EVERY steps of a bf16 network that learns a smooth function. *still: the share of the weights that the last update leaves
 * as they were. */
static void master_weights_train(int master, int stochastic, double *curve, double *still)
{
    ls_store_options options = { "cpu", LS_BF16, master, 1, 0 };
    ls_optimizer adamw = LS_OPTIMIZER_DEFAULTS;
    static double before[WEIGHTS_MOST], after[WEIGHTS_MOST];
    const char *kind = master ? "master" : "parameter";
    size_t width = (size_t)lab_size("width");
    double x[B * IN], y[B];
    ls_store *s;
    ls_program *p;

    adamw.weight_decay = 0;
    adamw.stochastic_rounding = stochastic;
    adamw.seed = 1;
    TRY(ls_store_new(&options, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_mlp(p, "net", ls_input(p, "x", LS_BF16, SIZES(B, IN)), SIZES(IN, width, width, 1));
    v = ls_output(p, "loss", ls_mse(p, v, ls_input(p, "y", LS_BF16, SIZES(B, 1))));
    ls_backward(p, v);
    TRY(ls_optimizer_append(p, &adamw));
    TRY(ls_program_compile(p, NULL));
    for (int i = 0; i < B; i++) {
        y[i] = 0;
        for (int k = 0; k < IN; k++) {
            x[i * IN + k] = sin(1 + i * (k + 1));
            y[i] += 0.7 * x[i * IN + k] * (k % 2 ? 1 : -1);
        }
    }
    TRY(ls_program_write(p, "x", x, LS_F64, B * IN));
    TRY(ls_program_write(p, "y", y, LS_F64, B));
    for (int t = 0; t <= STEPS; t++) {
        ls_store_zero_grad(s);
        TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
        if (t % EVERY == 0)
            TRY(ls_program_read(p, "loss", &curve[t / EVERY], LS_F64, 1));
        weights_of(s, kind, before);
        TRY(ls_optimizer_set(p, &adamw, 1e-4, (uint64_t)t + 1));
        TRY(ls_program_run(p, LS_OPTIMIZER_STEP));
        weights_of(s, kind, after);
        if (t == STEPS)
            for (size_t i = 0; i < ls_store_elements(s); i++) *still += (before[i] == after[i]) / (double)ls_store_elements(s);
    }
    ls_program_release(&p);
    ls_store_release(&s);
}

/* The largest update of a bf16 weight that is rounded away, as a share of the weight, found by bisection. */
static double largest_lost(double weight)
{
    double lost = 0, kept = weight;

    for (int i = 0; i < 40; i++) {
        double between = (lost + kept) / 2;

        if (ls_bf16_to_f32(ls_f32_to_bf16((float)(weight + between))) > weight)
            kept = between;
        else
            lost = between;
    }
    return lost / weight;
}

LAB(r4_master_weights, "master weights", { "width", "width of the network's hidden layers", 32, 16, 64 })
{
    double with[POINTS], without[POINTS], rounded[POINTS], still[3] = { 0 };

    master_weights_train(1, 0, with, &still[1]);
    master_weights_train(0, 0, without, &still[0]);
    master_weights_train(0, 1, rounded, &still[2]);
    lab_say("loss of a bf16 network, lr 1e-4\n  step %14s %14s %14s\n", "master", "no master", "stochastic");
    for (int i = 0; i < POINTS; i++) lab_say("  %4d %14.5f %14.5f %14.5f\n", i * EVERY, with[i], without[i], rounded[i]);
    lab_say("\n");
    lab_open("R4");
    lab_check("bf16: largest update that is rounded away / a weight of 1", 1.0 / 256, largest_lost(1), 1e-3);
    lab_check("bf16: largest update that is rounded away / a weight just below 2", 1.0 / 510, largest_lost(2 - 1.0 / 128), 1e-3);
    lab_check("both start alike: ratio of the first losses", 1, without[0] / with[0], 0);
    lab_equal("without: share of the weights that the last update rounds away", 1, still[0], 0.05);
    lab_check_below("with master weights: the same of the masters, less (some have no gradient)", still[0] / 2, still[1]);
    lab_equal("without, the last 300 steps: loss, its last / its first", 1, without[POINTS - 1] / without[POINTS - 4], 1e-2);
    lab_below("with master weights: the same", 1 - 1e-2, with[POINTS - 1] / with[POINTS - 4]);
    lab_check_below("without, but rounded stochastically: the same", 1 - 1e-2, rounded[POINTS - 1] / rounded[POINTS - 4]);
    return lab_close();
}
