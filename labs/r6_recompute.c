/* R6 - keeping only the input of every sqrt(L)-th layer makes activations grow as sqrt(L) (Chen et al. 2016) for about 33% more
 * compute: one more forward, which is a third of forward and backward. Selective recomputation, which repeats the cheap operations and
 * no matmul, costs almost nothing. Corrected: it saves most of the memory only where attention scores are stored; here they never are
 * (R7), so there is less to save. And the best distance for a transformer is not sqrt(L) layers but one: a layer's input is small
 * compared with its inner activations. The sweep of segment lengths on a GPT-2 shows it: k layers a segment keep L/k inputs and, while a
 * segment's backward runs, the 16 inner tensors of each of its k layers and the gradients of one.
 *
 * Full recomputation costs less than a forward: a layer's last matmul computes the next layer's input, which is kept. */
#include "lab.h"
#include "lockstep/nn.h"

enum { LAYERS_MOST = 64 };

static ls_cost recompute_price(const char *preset, size_t layers, ls_recompute mode, int every)
{
    ls_compile_options plan = { .recompute = mode, .every = every, .plan_only = 1 };
    ls_model m;
    ls_store *s;
    ls_program *p;

    TRY(ls_model_preset(preset, &m));
    m.layers = layers;
    m.vocab = 32;
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_I32, SIZES(8, 64));
    ls_value y = ls_input(p, "y", LS_I32, SIZES(8, 64));
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, LS_NONE));
    TRY(ls_program_compile(p, &plan));
    ls_cost c = ls_program_cost(p);
    ls_program_release(&p);
    ls_store_release(&s);
    return c;
}

/* Peaks of segments of 1 to L layers, in tensors of b s d; gives the length with the smallest one. */
static int sweep(int layers, double peak[])
{
    int best = 1;

    lab_say("GPT-2 of %d layers, by layers in a segment\n  %6s %14s %16s\n", layers, "layers", "tensors kept", "extra compute");
    for (int k = 1; k <= layers; k++) {
        ls_cost c = recompute_price("gpt2-tiny", (size_t)layers, LS_RECOMPUTE_EVERY, k);

        peak[k] = (double)c.live_peak / (8 * 64 * 64 * 4.0);
        if (peak[k] < peak[best]) best = k;
        lab_say("  %6d %14.1f %15.1f%%\n", k, peak[k], 100 * c.recompute_flops / c.model_flops);
    }
    lab_say("\n");
    return best;
}

/* Inputs of the segments, the inner tensors of the longest one, and about ten tensors of gradients, those of one layer's backward. */
static double sweep_formula(int layers, int k) { return (layers + k - 1) / k + 16.0 * k + 10; }

/* The length with the formula's smallest peak, or `found` if the formula's peak there is hardly larger. */
static int sweep_best(int layers, int found)
{
    int best = 1;

    for (int k = 2; k <= layers; k++)
        if (sweep_formula(layers, k) < sweep_formula(layers, best)) best = k;
    return sweep_formula(layers, found) < 1.03 * sweep_formula(layers, best) ? found : best;
}

static void sweep_rows(int layers)
{
    double peak[LAYERS_MOST + 1];
    int found = sweep(layers, peak), root = (int)lround(sqrt(layers));
    char what[96];

    snprintf(what, sizeof what, "%d layers: layers in the segment that keeps least", layers);
    lab_corrected(what, '=', root, sweep_best(layers, found), found, 0,
                  "why: a layer's inner activations are 16 times its input, so the least is near sqrt(L/16)");
    snprintf(what, sizeof what, "%d layers: activations kept, segments of sqrt(L) / of one layer", layers);
    lab_corrected(what, '<', 1, sweep_formula(layers, root) / sweep_formula(layers, 1), peak[root] / peak[1], 0.03,
                  "why: the inner activations of sqrt(L) layers at once outweigh the inputs that are not kept");
}

LAB(r6_recompute, "recomputation", { "layers", "layers of the model whose segments are swept", 24, 4, LAYERS_MOST })
{
    const int roots[] = { 4, 6, 8, 10, 12 };
    ls_cost none[5], every[5], full;

    lab_say("bytes of activations\n  layers %14s %14s %14s\n", "none", "full", "every sqrt(L)");
    for (int i = 0; i < 5; i++) {
        size_t layers = (size_t)(roots[i] * roots[i]);

        none[i] = recompute_price("llama-tiny", layers, LS_RECOMPUTE_NONE, 1);
        every[i] = recompute_price("llama-tiny", layers, LS_RECOMPUTE_EVERY, roots[i]);
        full = recompute_price("llama-tiny", layers, LS_RECOMPUTE_FULL, 1);
        lab_say("  %6zu %14zu %14zu %14zu\n", layers, none[i].live_peak, full.live_peak, every[i].live_peak);
    }
    ls_cost selective = recompute_price("llama-tiny", 144, LS_RECOMPUTE_SELECTIVE, 1);
    lab_say("\n");
    lab_open("R6");
    lab_check("none: activations from 16 to 144 layers grow by", 9,
              (double)none[4].live_peak / (double)none[0].live_peak, 0.1);
    lab_equal("every sqrt(L): they grow by", 3, (double)every[4].live_peak / (double)every[0].live_peak, 0.1);
    lab_equal("every sqrt(L): extra compute", 0.33, every[4].recompute_flops / every[4].model_flops, 0.05);
    lab_corrected("every layer: extra compute", '=', 0.33, 0.276, full.recompute_flops / full.model_flops, 0.03,
                  "why: a layer's last matmul computes the next layer's input, which is kept, so it is not recomputed");
    lab_corrected("activations: every layer / every sqrt(L)", '>', 1, 0.85, (double)full.live_peak / (double)every[4].live_peak, 0.1,
                  "why: inner activations of a layer are at least 8 times its input: those of one segment outweigh all inputs");
    lab_corrected("selective: share of the activations saved", '>', 0.5, 0.31,
                  1 - (double)selective.live_peak / (double)none[4].live_peak, 0.1,
                  "why: most of the saving (80 of 114 bytes in the paper) is attention scores, which are never stored here");
    sweep_rows((int)lab_size("layers"));
    lab_below("selective: extra compute, little", 0.027, selective.recompute_flops / selective.model_flops);
    return lab_close();
}
