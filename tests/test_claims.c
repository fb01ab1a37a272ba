/* test_claims.c - claims about memory and work, measured by the ledger in runs; labs/ measures the same through the public API.
 *
 *   B6  activations depend on batch, sequence and depth; the other categories don't
 *   R6  activations with recomputation, and the FLOPs that it adds
 *   R7  logits and scores are never materialized
 *   S3  useful and total FLOPs
 * The cost that a program predicts (ls_program_cost) is what the ledger measures, in every category.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "helper_check.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"

#define WITHIN(have, want, most)                                                                     \
    do {                                                                                             \
        double have_ = (double)(have), want_ = (double)(want), most_ = (double)(most);               \
        if (!(fabs(have_ - want_) <= most_ * want_))                                                 \
            fail_msg("%s is %g, %g within %g is claimed", #have, have_, want_, most_);               \
    } while (0)

/* The ledger's bytes over one training step, and the program's prediction. */
struct measured { size_t peak[MEM_CATEGORIES]; ls_cost cost; };

struct shape { size_t layers, batch, time, vocab; };

static struct measured claims_step(struct shape z, ls_dtype type, ls_compile_options options)
{
    ls_store_options so = { "cpu", type, 1, 0, 0 };
    ls_optimizer adamw = LS_OPTIMIZER_DEFAULTS;
    size_t n = z.batch * z.time;
    int32_t *tokens = malloc(n * sizeof *tokens);
    struct mem_stats before, after;
    struct measured out;
    ls_model m;
    ls_store *s;
    ls_program *p;

    OK(ls_model_preset("llama-tiny", &m));
    m.layers = z.layers;
    m.vocab = z.vocab;
    m.max_positions = z.time;
    mem_reset_peak();
    mem_read(&before);
    OK(ls_store_new(&so, &s));
    OK(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_I32, 2, (size_t[]){ z.batch, z.time });
    ls_value y = ls_input(p, "y", LS_I32, 2, (size_t[]){ z.batch, z.time });
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, LS_NONE));
    OK(ls_optimizer_append(p, &adamw));
    OK(ls_program_compile(p, &options));
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i % z.vocab);
    OK(ls_program_write(p, "x", tokens, LS_I32, n));
    OK(ls_program_write(p, "y", tokens, LS_I32, n));
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    OK(ls_optimizer_set(p, &adamw, 1e-3, 1));
    OK(ls_program_run(p, LS_OPTIMIZER_STEP));
    mem_read(&after);
    out.cost = ls_program_cost(p);
    for (int c = 0; c < MEM_CATEGORIES; c++)
        out.peak[c] = after.peak[c] - before.now[c];
    ls_program_release(&p);
    ls_store_release(&s);
    free(tokens);
    return out;
}

static void check_plan(const struct measured *m)
{
    assert_int_equal(m->peak[MEM_PARAMETERS], m->cost.parameters);
    assert_int_equal(m->peak[MEM_GRADIENTS], m->cost.gradients);
    assert_int_equal(m->peak[MEM_OPTIMIZER], m->cost.optimizer);
    assert_int_equal(m->peak[MEM_ACTIVATIONS], m->cost.activations);
}

static void test_plan_equals_run(void **state)
{
    static const ls_compile_options modes[] = {
        LS_COMPILE_DEFAULTS, { .fuse_loss = 1 }, { .split_backward = 1 },
        { .recompute = LS_RECOMPUTE_SELECTIVE }, { .recompute = LS_RECOMPUTE_FULL },
        { .recompute = LS_RECOMPUTE_EVERY, .every = 2 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        for (int half = 0; half < 2; half++) {
            struct measured m = claims_step((struct shape){ 3, 2, 16, 64 }, half ? LS_BF16 : LS_F32, modes[i]);

            check_plan(&m);
            /* two moments; a master copy beside bf16 */
            assert_int_equal(m.cost.optimizer, m.cost.parameters * (half ? 6 : 2));
        }
}

static void activations_scale_with_layers_length_and_batch(void **state)
{
    ls_compile_options none = LS_COMPILE_DEFAULTS;
    struct measured one = claims_step((struct shape){ 8, 4, 64, 32 }, LS_F32, none), other;
    static const struct shape doubled[] = { { 8, 8, 64, 32 }, { 8, 4, 128, 32 }, { 16, 4, 64, 32 } };

    (void)state;
    for (int i = 0; i < 3; i++) {
        other = claims_step(doubled[i], LS_F32, none);
        WITHIN((double)other.peak[MEM_ACTIVATIONS] / (double)one.peak[MEM_ACTIVATIONS], 2, 0.1);
        if (i < 2)
            for (int c = 0; c <= MEM_OPTIMIZER; c++)
                assert_int_equal(other.peak[c], one.peak[c]);
    }
}

static void recompute_every_sqrt_layers_saves_memory(void **state)
{
    static const int roots[] = { 4, 8 };
    struct measured none[2], every[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct shape z = { (size_t)(roots[i] * roots[i]), 8, 64, 16 };

        none[i] = claims_step(z, LS_F32, (ls_compile_options)LS_COMPILE_DEFAULTS);
        every[i] = claims_step(z, LS_F32, (ls_compile_options){ .recompute = LS_RECOMPUTE_EVERY, .every = roots[i] });
        check_plan(&every[i]);
    }
    struct measured selective = claims_step((struct shape){ 64, 8, 64, 16 }, LS_F32,
                     (ls_compile_options){ .recompute = LS_RECOMPUTE_SELECTIVE });
    WITHIN((double)none[1].peak[MEM_ACTIVATIONS] / (double)none[0].peak[MEM_ACTIVATIONS], 4, 0.1);
    WITHIN((double)every[1].peak[MEM_ACTIVATIONS] / (double)every[0].peak[MEM_ACTIVATIONS], 2, 0.15);
    WITHIN(every[1].cost.recompute_flops / every[1].cost.model_flops, 1.0 / 3, 0.1);
    assert_true(selective.peak[MEM_ACTIVATIONS] < 0.9 * (double)none[1].peak[MEM_ACTIVATIONS]);
    assert_true(selective.cost.recompute_flops < 0.02 * selective.cost.model_flops);
}

static void logits_and_scores_are_not_stored(void **state)
{
    enum { V = 16384, R = 512, T = 1024, HEADS = 4 };
    struct shape logits = { 1, 1, R, V }, scores = { 1, 1, T, 16 };

    (void)state;
    for (int fuse = 0; fuse < 2; fuse++) {
        struct measured v = claims_step(logits, LS_F32, (ls_compile_options){ .fuse_loss = fuse });
        struct measured t = claims_step(scores, LS_F32, (ls_compile_options){ .fuse_loss = fuse });

        check_plan(&v);
        assert_true((double)v.peak[MEM_ACTIVATIONS] < 0.5 * R * V * 4);
        assert_true((double)t.peak[MEM_ACTIVATIONS] < 0.5 * HEADS * T * T * 4);
    }
}

static void recompute_flops_are_counted(void **state)
{
    struct shape z = { 3, 2, 16, 32 };
    struct measured none = claims_step(z, LS_F32, (ls_compile_options)LS_COMPILE_DEFAULTS);
    struct measured full = claims_step(z, LS_F32, (ls_compile_options){ .recompute = LS_RECOMPUTE_FULL });
    ls_model m;

    (void)state;
    OK(ls_model_preset("llama-tiny", &m));
    m.layers = z.layers;
    m.vocab = z.vocab;
    assert_true(none.cost.recompute_flops < 0.05 * none.cost.model_flops);  /* inside kernels: scores, logits */
    assert_true(full.cost.model_flops == none.cost.model_flops);
    assert_true(full.cost.model_flops < 0.85 * (full.cost.model_flops + full.cost.recompute_flops));
    /* By the program, and by the model's formula, in which a query attends to half of all keys, not (T+1)/2. */
    WITHIN(none.cost.model_flops, ls_model_flops_per_token(&m, z.time) * (double)(z.batch * z.time), 0.06);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_equals_run),
        cmocka_unit_test(activations_scale_with_layers_length_and_batch),
        cmocka_unit_test(recompute_every_sqrt_layers_saves_memory),
        cmocka_unit_test(logits_and_scores_are_not_stored), cmocka_unit_test(recompute_flops_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
