/* S3 - MFU counts the useful FLOPs of a step, HFU all executed FLOPs: with recomputation MFU < HFU. Without it they differ only by what
 * the attention kernel recomputes (its scores, in backward).
 *
 * MFU of a given speed: the program's useful FLOPs of a token, tokens a second, the peak of a processor. The rule of 6 N counts the
 * matmuls of the weights; attention comes on top. */
#include <time.h>
#include "lab.h"
#include "lockstep/nn.h"

static double s3_now(void)
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

    TRY(ls_model_preset("llama-tiny", &m));
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_I32, SIZES(B, T));
    ls_value y = ls_input(p, "y", LS_I32, SIZES(B, T));
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, LS_NONE));
    TRY(ls_program_compile(p, &options));
    for (int i = 0; i < B * T; i++) tokens[i] = i % 251;
    TRY(ls_program_write(p, "x", tokens, LS_I32, B * T));
    TRY(ls_program_write(p, "y", tokens, LS_I32, B * T));
    double seconds = s3_now();
    for (int i = 0; i < STEPS; i++) TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    seconds = (s3_now() - seconds) / STEPS;
    ls_cost c = ls_program_cost(p);
    *useful = c.model_flops / seconds;
    *all = (c.forward_flops + c.backward_flops + c.recompute_flops) / seconds;
    ls_program_release(&p);
    ls_store_release(&s);
    return c;
}

/* A GPT-2 of the given sizes with a small vocabulary: 20 layers of width 2048 are 1.0 billion weights in matmuls. */
static void at_a_speed(void)
{
    ls_compile_options plan = { .plan_only = 1 };
    size_t time = (size_t)lab_size("seq-len");
    double speed = (double)lab_size("tokens-per-second"), peak = 1e12 * (double)lab_size("teraflops");
    ls_model m;
    ls_store *s;
    ls_program *p;

    TRY(ls_model_preset("gpt2-tiny", &m));
    m.layers = (size_t)lab_size("layers");
    m.width = (size_t)lab_size("width");
    m.heads = m.kv_heads = m.width / 64;
    m.head_size = 64;
    m.ffn = 4 * m.width;
    m.max_positions = time;
    m.vocab = 32;
    TRY(ls_model_check(&m));
    TRY(ls_store_new(NULL, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_I32, SIZES(1, time));
    ls_value y = ls_input(p, "y", LS_I32, SIZES(1, time));
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, LS_NONE));
    TRY(ls_program_compile(p, &plan));
    double flops = ls_program_cost(p).model_flops / (double)time;
    double weights = 12.0 * (double)m.layers * (double)m.width * (double)m.width;
    ls_program_release(&p);
    ls_store_release(&s);
    lab_say("%.3f billion weights in the layers' matmuls, %.3f GFLOP a token\n\n", weights / 1e9, flops / 1e9);
    lab_check("at the given speed: MFU [%]", 100 * ls_model_flops_per_token(&m, time) * speed / peak, 100 * flops * speed / peak, 0.01);
    lab_check_below("        6 N alone, as a share of the FLOPs of a token", 1, 6 * weights / flops);
}

LAB(s3_mfu_hfu, "MFU and HFU", { "layers", "layers of the model at the given speed", 20, 1, 200 },
    { "width", "width of that model, a multiple of 64", 2048, 64, 65536 },
    { "seq-len", "tokens of a sample of that model", 2048, 16, 1 << 20 },
    { "tokens-per-second", "the given speed of a processor", 10000, 1, 1 << 30 },
    { "teraflops", "peak of that processor, in TFLOP/s", 312, 1, 1 << 20 })
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
    at_a_speed();
    return lab_close();
}
