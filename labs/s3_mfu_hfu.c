/* S3 - MFU counts the useful FLOPs of a step, HFU all executed FLOPs: with recomputation MFU < HFU. Without it they differ only by what
 * the attention kernel recomputes (its scores, in backward). */
#include <time.h>
#include "lab.h"
#include "lockstep/nn.h"

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Runs a few steps; *useful and *all are FLOP/s. */
static ls_cost mfu_hfu_run(ls_recompute mode, double *useful, double *all)
{
    enum { B = 4, T = 64, STEPS = 3 };
    ls_compile_options options = { .recompute = mode };
    int32_t tokens[B * T];
    ls_model m;
    ls_store *s;
    ls_program *p;
    ls_value x, y;
    ls_cost c;
    double seconds;

    TRY(ls_model_preset("llama-tiny", &m));
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    x = ls_input(p, "x", LS_I32, SIZES(B, T));
    y = ls_input(p, "y", LS_I32, SIZES(B, T));
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, LS_NONE));
    TRY(ls_program_compile(p, &options));
    for (int i = 0; i < B * T; i++) tokens[i] = i % 251;
    TRY(ls_program_write(p, "x", tokens, LS_I32, B * T));
    TRY(ls_program_write(p, "y", tokens, LS_I32, B * T));
    seconds = now();
    for (int i = 0; i < STEPS; i++) TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    seconds = (now() - seconds) / STEPS;
    c = ls_program_cost(p);
    *useful = c.model_flops / seconds;
    *all = (c.forward_flops + c.backward_flops + c.recompute_flops) / seconds;
    ls_program_release(&p);
    ls_store_release(&s);
    return c;
}

LAB(s3_mfu_hfu, "MFU and HFU")
{
    double useful[2], all[2];
    ls_cost none = mfu_hfu_run(LS_RECOMPUTE_NONE, &useful[0], &all[0]), full = mfu_hfu_run(LS_RECOMPUTE_FULL, &useful[1], &all[1]);

    lab_say("GFLOP/s of this run, not judged\n        %14s %14s\n", "useful", "all");
    lab_say("none    %14.3f %14.3f\nfull    %14.3f %14.3f\n\n", useful[0] / 1e9, all[0] / 1e9, useful[1] / 1e9,
           all[1] / 1e9);
    lab_open("S3");
    lab_check("useful work of a step, full / none", 1, full.model_flops / none.model_flops, 0);
    lab_below("full recomputation: MFU / HFU, below 1", 1, useful[1] / all[1]);
    lab_corrected("none: MFU / HFU", '=', 1, 0.942, useful[0] / all[0], 0.01,
                  "why: attention recomputes its scores in backward instead of storing them, which only HFU counts");
    lab_corrected("full recomputation: MFU / HFU", '=', 0.75, 0.779, useful[1] / all[1], 0.01,
                  "why: each layer's last matmul is not recomputed: its result is kept as the next layer's input");
    return lab_close();
}
