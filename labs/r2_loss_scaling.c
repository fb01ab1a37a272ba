/* R2 - dynamic loss scaling: multiply the loss, check the gradients for infinities, divide them before clipping and the update, skip the
 * step and halve the scale on an infinity, raise it again after a stretch without one. Only fp16 needs it.
 *
 * A gradient that is stored in fp16 is 0 below 3e-8. The program's gradients are about 1e-8: without a scale they vanish on the way, with
 * one they arrive. Then two ranks train with a scale that begins far too high: an overflow on either must make both skip. */
#include "lab.h"
#include "lockstep/dtype.h"
#include "lockstep/ops.h"
#include "lockstep/optim.h"

enum { WIDE = 4, STEPS = 60, STABLE = 10, RANKS = 2 };

static double through_f16(double x) { return ls_f16_to_f32(ls_f32_to_f16((float)x)); }

/* SGD that clips the gradient's norm at 1. */
static const ls_optimizer clipping = { .kind = LS_SGD, .clip = 1 };

struct scaled {
    ls_store *store;
    ls_program *program;
};

/* The loss is |W x - y|^2 * small, and `scale` times that in backward; its error passes through a value of fp16. */
static struct scaled scaled_open(ls_dtype type, double small, double scale)
{
    ls_store_options options = { "cpu", type, 1, 0, 0 };
    double x[WIDE] = { 1, -1, 0.5, 0.25 }, y = 2;
    struct scaled s;

    TRY(ls_store_new(&options, &s.store));
    TRY(ls_program_new(s.store, &s.program));
    ls_value v = ls_linear(s.program, ls_input(s.program, "x", type, SIZES(1, WIDE)),
                  ls_param(s.program, "w", (ls_init){ LS_INIT_ZEROS, 0 }, SIZES(1, WIDE)), LS_NONE);
    v = ls_scale(s.program, v, 1);
    ls_backward(s.program, ls_scale(s.program, ls_mse(s.program, v, ls_input(s.program, "y", type, SIZES(1, 1))), small * scale));
    TRY(ls_optimizer_append(s.program, &clipping));
    TRY(ls_program_compile(s.program, NULL));
    TRY(ls_program_write(s.program, "x", x, LS_F64, WIDE));
    TRY(ls_program_write(s.program, "y", &y, LS_F64, 1));
    return s;
}

static void scaled_close(struct scaled *s)
{
    ls_program_release(&s->program);
    ls_store_release(&s->store);
}

/* The largest gradient of that program, divided by the scale again. */
static double gradient_of(ls_dtype type, double small, double scale)
{
    struct scaled s = scaled_open(type, small, scale);
    double g[WIDE], most = 0;

    ls_store_zero_grad(s.store);
    TRY(ls_program_run(s.program, LS_FORWARD | LS_BACKWARD));
    TRY(ls_store_read(s.store, 0, "gradient", g, LS_F64, WIDE));
    for (int i = 0; i < WIDE; i++) most = fabs(g[i]) > most || isnan(g[i]) ? fabs(g[i]) : most;
    scaled_close(&s);
    return most / scale;
}

/* How far an update moves the weights from 0 that clips the scaled gradient and divides by the scale afterwards. */
static double distance_clipped_first(double scale)
{
    struct scaled s = scaled_open(LS_F32, 1, scale);
    double w[WIDE], sum = 0;

    ls_store_zero_grad(s.store);
    TRY(ls_program_run(s.program, LS_FORWARD | LS_BACKWARD));
    TRY(ls_optimizer_set(s.program, &clipping, 1 / scale, 1));
    TRY(ls_program_run(s.program, LS_OPTIMIZER_STEP));
    TRY(ls_store_read(s.store, 0, "parameter", w, LS_F64, WIDE));
    for (int i = 0; i < WIDE; i++) sum += w[i] * w[i];
    scaled_close(&s);
    return sqrt(sum);
}

/* ---- the loop on two ranks ---- */

struct scaling {
    double weight[STEPS], scale[STEPS]; /* after each step */
    int skipped[STEPS];
};

/* The gradient of a weight at w, as fp16 holds it: rank 1's is 8 times rank 0's. */
static double gradient_at(int rank, double w, double scale) { return through_f16((w - 1) * 64 * (rank ? 8 : 1) * scale); }

static void scaling_rank(ls_comm *comm, int rank, int n, void *shared)
{
    struct scaling *me = (struct scaling *)shared + rank;
    double w = 0, scale = 65536;
    int good = 0;

    (void)n;
    for (int k = 0; k < STEPS; k++) {
        float g = (float)gradient_at(rank, w, scale), worst = isfinite(g) ? 0 : 1;

        TRY(ls_all_reduce(comm, &worst, &worst, 1, LS_F32, LS_MAX, NULL)); /* all skip, or none */
        me->skipped[k] = worst > 0;
        if (worst > 0) {
            scale /= 2;
            good = 0;
        } else {
            TRY(ls_all_reduce(comm, &g, &g, 1, LS_F32, LS_AVG, NULL));
            w -= 0.001 * g / scale;
            if (++good == STABLE) scale *= 2, good = 0;
        }
        me->weight[k] = w;
        me->scale[k] = scale;
    }
}

LAB(r2_loss_scaling, "loss scaling in fp16", { "scale", "factor of the loss, a power of 2", 1024, 64, 65536 })
{
    double scale = (double)lab_size("scale"), small = 2.5e-9;
    struct scaling *both = lab_shared(RANKS * sizeof *both), *a = both, *b = both + 1;
    int halved = 0, doubled = 0, apart = 0, skips = 0, alone = 0, moved = 0;

    lab_ranks(RANKS, scaling_rank, both);
    for (int k = 0; k < STEPS; k++) {
        double before = k ? a->scale[k - 1] : 65536;

        skips += a->skipped[k];
        halved += a->skipped[k] && a->scale[k] == before / 2;
        doubled += a->scale[k] == before * 2;
        moved += a->skipped[k] && a->weight[k] != (k ? a->weight[k - 1] : 0);
        apart += a->weight[k] != b->weight[k] || a->skipped[k] != b->skipped[k];
        alone += a->skipped[k] && isfinite(gradient_at(0, k ? a->weight[k - 1] : 0, before));
    }
    lab_open("R2");
    lab_equal("fp16: a gradient of 1e-8", 0, through_f16(1e-8), 0);
    lab_check("fp16: a gradient of 1e-8, times the scale", 1e-8 * scale, through_f16(1e-8 * scale), 0.1);
    double f32 = gradient_of(LS_F32, small, 1);
    lab_equal("fp16 program: gradient without a scale / fp32's", 0, gradient_of(LS_F16, small, 1) / f32, 0);
    double f16 = gradient_of(LS_F16, small, scale);
    lab_equal("fp16 program: gradient with the scale, divided again / fp32's", 1, f16 / f32, 0.05);
    double bf16 = gradient_of(LS_BF16, small, 1);
    lab_check("bf16 program: gradient without a scale / fp32's", 1, bf16 / f32, 1.0 / 128);
    lab_check("clipped before the division: length of the update / clipped after it", 1 / scale,
              distance_clipped_first(scale) / distance_clipped_first(1), 1e-3);
    lab_equal("a gradient of 70000: it is infinite, with and without the scale", 1,
              isinf(through_f16(70000)) && isinf(through_f16(70000 * scale)), 0);
    lab_say("two ranks, scale 65536: %d steps skipped, scale %g at the end, weight %g of 1\n", skips, a->scale[STEPS - 1],
            a->weight[STEPS - 1]);
    lab_check_above("two ranks: steps that are skipped", 0, skips);
    lab_equal("two ranks: skipped steps that halve the scale / all of them", 1, (double)halved / skips, 0);
    lab_check_above("two ranks: times that the scale is doubled after good steps", 0, doubled);
    lab_check_above("two ranks: steps that rank 0 skips although only rank 1 overflows", 0, alone);
    lab_equal("two ranks: steps after which their weights differ", 0, apart, 0);
    lab_equal("two ranks: skipped steps that change the weight", 0, moved, 0);
    return lab_close();
}
