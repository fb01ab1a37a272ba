/* B6 - a saved activation is a tensor kept for backward, not the output of a nonlinearity; and activations are the part of memory that
 * varies: with batch, sequence and depth, while weights, gradients and optimizer state do not. */
#include "lab.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"

static ls_cost activations_price(size_t layers, size_t b, size_t t)
{
    ls_compile_options plan = { .plan_only = 1 };
    ls_optimizer adamw = LS_OPTIMIZER_DEFAULTS;
    ls_model m;
    ls_store *s;
    ls_program *p;

    TRY(ls_model_preset("llama-tiny", &m));
    m.layers = layers;
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_I32, SIZES(b, t));
    ls_value y = ls_input(p, "y", LS_I32, SIZES(b, t));
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, LS_NONE));
    TRY(ls_optimizer_append(p, &adamw));
    TRY(ls_program_compile(p, &plan));
    ls_cost c = ls_program_cost(p);
    ls_program_release(&p);
    ls_store_release(&s);
    return c;
}

/* Bytes of activations that `layers` linear layers of [width,width] keep, with nothing else between them. */
static double linear_only(int layers, size_t b, size_t width)
{
    ls_compile_options plan = { .plan_only = 1 };
    ls_store *s;
    ls_program *p;
    char name[16];

    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value v = ls_input(p, "x", LS_F32, SIZES(b, width));
    for (int i = 0; i < layers; i++) {
        snprintf(name, sizeof name, "w%d", i);
        v = ls_linear(p, v, ls_param(p, name, (ls_init){ LS_INIT_NORMAL, 0.1 }, SIZES(width, width)), LS_NONE);
    }
    ls_backward(p, ls_mean(p, v, -1));
    TRY(ls_program_compile(p, &plan));
    double bytes = (double)ls_program_cost(p).live_peak;
    ls_program_release(&p);
    ls_store_release(&s);
    return bytes;
}

LAB(b6_activations, "saved activations", { "batch", "rows of the linear layers' input", 128, 32, 4096 },
    { "width", "width of the linear layers", 64, 16, 1024 })
{
    size_t b = (size_t)lab_size("batch"), width = (size_t)lab_size("width");
    char what[80];

    lab_one_core(0);  /* a thread's scratch does not grow with the batch */

    ls_cost one = activations_price(8, 4, 64), batch = activations_price(8, 8, 64), sequence = activations_price(8, 4, 128),
            depth = activations_price(16, 4, 64);
    ls_cost deeper = activations_price(32, 4, 64);
    double state = (double)(one.parameters + one.gradients + one.optimizer);

    lab_say("%-16s %14s %14s %14s %14s\n", "bytes", "parameters", "gradients", "optimizer", "activations");
    lab_say("%-16s %14zu %14zu %14zu %14zu\n", "as it is", one.parameters, one.gradients, one.optimizer,
           one.activations);
    lab_say("%-16s %14zu %14zu %14zu %14zu\n", "batch x 2", batch.parameters, batch.gradients, batch.optimizer,
           batch.activations);
    lab_say("%-16s %14zu %14zu %14zu %14zu\n", "sequence x 2", sequence.parameters, sequence.gradients,
           sequence.optimizer, sequence.activations);
    lab_say("%-16s %14zu %14zu %14zu %14zu\n\n", "depth x 2", depth.parameters, depth.gradients, depth.optimizer,
           depth.activations);
    lab_open("B6");
    lab_equal("batch x 2: weights, gradients, optimizer grow by", 1,
              (double)(batch.parameters + batch.gradients + batch.optimizer) / state, 0);
    lab_equal("batch x 2: activations, with the scratch that does not grow", 2, (double)batch.live_peak / (double)one.live_peak, 0.01);
    lab_equal("sequence x 2: activations", 2, (double)sequence.live_peak / (double)one.live_peak, 0.01);
    lab_equal("depth x 2 twice: the second growth of activations / the first", 2,
              (double)(deeper.activations - depth.activations) / (double)(depth.activations - one.activations), 1e-3);
    snprintf(what, sizeof what, "no nonlinearity: one more layer keeps its [%zu,%zu] input [bytes]", b, width);
    lab_equal(what, (double)(b * width) * 4, linear_only(9, b, width) - linear_only(8, b, width), 0.01);
    return lab_close();
}
