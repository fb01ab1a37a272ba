/* test_framework.c - memory of the frameworks of published runs: published closed forms, exactly, and the effects of recomputation,
 * sequence parallelism, ZeRO and schedules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "helper_check.h"
#include "plan/framework.h"

static const double GIB = 1 << 30;

static double framework_bytes_of(const char *source, const struct framework_model *m, const ls_layout *l, bool twice)
{
    const struct framework *f = framework_of(source);
    double bytes = 0;

    assert_non_null(f);
    OK(framework_bytes(f, m, l, twice, &bytes));
    return bytes;
}

/* Bytes of a sample of a micro-batch, and those of parameters and their state. */
static double of_samples(const char *source, const struct framework_model *m, ls_layout l, double *fixed)
{
    double one = framework_bytes_of(source, m, &l, false);

    l.micro_batch *= 2;
    double sample = (framework_bytes_of(source, m, &l, false) - one) / (l.micro_batch / 2);
    double other = strcmp(source, "nanotron") == 0 ? 0.5e9 : 1e9; /* `other` in framework.c */
    *fixed = one - sample * l.micro_batch / 2 - other;
    return sample;
}

static void near(double have, double want, double by, const char *what)
{
    if (!(fabs(have / want - 1) <= by)) fail_msg("%s: %.10g, not %.10g", what, have, want);
}

/* Bars of a figure. */
static void percent(double have, double want, const char *what)
{
    if (!(fabs(100 * have - want) <= 0.2)) fail_msg("%s: %.2f%%, not %.2f%%", what, 100 * have, want);
}

/* Korthikanti et al. 2022, figure 1 (GiB of the first stage, of 4 samples of 22B and one of the others) and figure 7 (percent). The model's
 * tables and its logits are not in them: their vocabulary is empty here. */
static void activations_are_those_of_the_paper(void **state)
{
    static const struct {
        const char *name;
        int layers, pp, vpp, samples;
        double hidden, heads, states, plain, best; /* GiB: of parameters and optimizer; activations by tp, and by sp and selective */
        double sp, selective, both, full;          /* percent of plain; 0: not published */
    } model[] = {
        { "22B", 48, 1, 1, 4, 6144, 64, 45.5625, 59.25, 9.5625, 66.84, 49.42, 16.18, 7.64 },
        { "530B", 105, 35, 3, 1, 20480, 128, 31.640625, 114.0234375, 23.076171875, 58.31, 62.04, 20.27, 9.42 },
        { "1T", 128, 64, 1, 1, 25600, 160, 32.958984375, 131.25, 26.5625, 0, 0, 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(model); i++) {
        double h = model[i].hidden, seq = 2048, fixed, scores = 5 * model[i].heads * seq / 8 * seq;
        struct framework_model m = { .layers = model[i].layers, .hidden = h, .ffn = 4 * h, .heads = model[i].heads,
                                     .kv_heads = model[i].heads, .seq_len = seq };
        ls_layout l = ls_layout_default();

        l.tp = 8, l.pp = model[i].pp, l.vpp = model[i].vpp, l.micro_batches = 4 * model[i].pp;
        l.recompute = LS_RECOMPUTE_NONE;
        double plain = of_samples("Zero Bubble", &m, l, &fixed);
        near(fixed / GIB, model[i].states, 1e-12, model[i].name);
        near(model[i].samples * plain / GIB, model[i].plain, 1e-12, model[i].name);
        l.sp = 1;
        double sp = of_samples("Zero Bubble", &m, l, &fixed);
        l.recompute = LS_RECOMPUTE_SELECTIVE; /* and one block's scores, while they are computed again */
        double both = of_samples("Zero Bubble", &m, l, &fixed) - scores;
        near(model[i].samples * both / GIB, model[i].best, 1e-12, model[i].name);
        l.sp = 0;
        double selective = of_samples("Zero Bubble", &m, l, &fixed) - scores;
        l.recompute = LS_RECOMPUTE_FULL; /* and one block's activations */
        double full = of_samples("Zero Bubble", &m, l, &fixed), block = seq * h * (10 + 24.0 / 8) + scores, input = 2 * seq * h;
        if (!model[i].sp) continue;
        percent(sp / plain, model[i].sp, "sequence parallelism");
        percent(selective / plain, model[i].selective, "selective recomputation");
        percent(both / plain, model[i].both, "both");
        percent((full - (block - input)) / plain, model[i].full, "full recomputation");
    }
}

/* An 8B model of gated blocks on 64 GPUs. */
static const struct framework_model llama = { .layers = 32, .hidden = 4096, .ffn = 14336, .heads = 32, .kv_heads = 8, .vocab = 128256,
                                              .seq_len = 8192, .gated = true, .fused_attention = true };
static const double llama_params = 32 * (2.5 * 4096 * 4096 + 3.0 * 4096 * 14336) + 2.0 * 128256 * 4096;

static void zero_divides_what_it_says(void **state)
{
    double zero[4];

    (void)state;
    for (int z = 0; z < 4; z++) {
        ls_layout l = ls_layout_default();

        l.dp = 64, l.zero = z;
        of_samples(z == 3 ? "torchtitan" : "nanotron", &llama, l, &zero[z]);
    }
    near(zero[0] - zero[1], 12 * llama_params * 63 / 64, 1e-9, "the optimizer state by ZeRO-1");
    near(zero[1], zero[2], 1e-12, "nanotron's gradients stay unsharded");
    near(zero[3], 16 * llama_params / 64 + 2 * (2.0 * 128256 * 4096 + 3 * (2.5 * 4096 * 4096 + 3.0 * 4096 * 14336)), 1e-9, "FSDP2");
}

/* A stage holds as many micro-batches as its schedule has in flight. */
static void schedules_hold_what_is_in_flight(void **state)
{
    struct framework_model m = { .layers = 62, .hidden = 6144, .ffn = 24576, .heads = 48, .kv_heads = 48, .vocab = 50304, .seq_len = 1024 };
    double fixed, block = 1024 * 6144 * (34 + 5 * 48 * 1024.0 / 6144);
    ls_layout l = ls_layout_default();

    (void)state;
    l.pp = 32, l.micro_batches = 256, l.schedule = "1f1b", l.recompute = LS_RECOMPUTE_NONE;
    near(of_samples("Zero Bubble", &m, l, &fixed), 2 * 31 * block, 1e-12, "1F1B: the second stage, of two blocks");
    near(fixed, 18 * 2 * 12 * 6144.0 * 6144, 1e-12, "its parameters");
    double once = framework_bytes_of("Zero Bubble", &m, &l, false), twice = framework_bytes_of("Zero Bubble", &m, &l, true);
    near(twice - once, 2 * (62 - 31) * block, 1e-12, "ZB-2p: twice as many");
    l.micro_batches = 8;
    near(of_samples("Zero Bubble", &m, l, &fixed), 2 * 8 * block, 1e-12, "no more than there are");
    assert_null(framework_of("a paper"));
}

/* The head's share of the FLOPs moves blocks to the first stages; gathered inputs and logits are divided by tp, or not. */
static void nanotron_divides_stages_by_flops(void **state)
{
    struct framework_model m = { .layers = 16, .hidden = 2048, .ffn = 8192, .heads = 32, .kv_heads = 32, .vocab = 131072, .seq_len = 4096,
                                 .gated = true, .tied = true, .fused_attention = true };
    double fixed, slack = 1.17, block = slack * (16.0 * 2048 + 8 * 8192), logits = 8 * 131072.0;
    ls_layout l = ls_layout_default();

    (void)state;
    l.recompute = LS_RECOMPUTE_NONE;
    near(of_samples("nanotron", &m, l, &fixed), 4096 * (16 * block + logits), 1e-12, "one GPU");
    near(fixed, 20 * (16 * (4 * 2048.0 * 2048 + 3 * 2048.0 * 8192) + 131072.0 * 2048), 1e-12, "tied tables count once");
    l.pp = 2, l.micro_batches = 8;
    near(of_samples("nanotron", &m, l, &fixed), 4096 * 2 * 11 * block, 1e-12, "11 of 16 blocks in the first of 2 stages");
    m.fused_attention = false, l.pp = 1;
    double plain = of_samples("nanotron", &m, l, &fixed);
    l.cp = 4;
    near(of_samples("nanotron", &m, l, &fixed), plain / 4, 1e-12, "a quarter of the tokens, with scores");
    m.fused_attention = true, l.cp = 1;
    l.pp = 1, l.tp = 4, l.sp = 1;
    double kept = slack * 2.5 * 2048;
    near(of_samples("nanotron", &m, l, &fixed), 4096 * (16 * ((block - kept) / 4 + kept) + logits / 4), 1e-12, "tp");
    l.tp = 32;
    near(of_samples("nanotron", &m, l, &fixed), 4096 * (16 * block + logits) / 32, 1e-12, "tp over nodes keeps no gathered inputs");
    l.pp = 4, l.tp = 8;
    kept = slack * 2 * 2048;
    near(of_samples("nanotron", &m, l, &fixed), 4096 * 4 * 6 * ((block - kept) / 8 + kept), 1e-12, "half of them in longer pipelines");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_are_those_of_the_paper),
        cmocka_unit_test(zero_divides_what_it_says),
        cmocka_unit_test(schedules_hold_what_is_in_flight),
        cmocka_unit_test(nanotron_divides_stages_by_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
