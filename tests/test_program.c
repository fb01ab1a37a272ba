/* test_program.c - the program as a whole: gradients, compile options, recomputation, order of runs, memory as planned. */
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
#include "helper_layers.h"
#include "lockstep/ops.h"
#include "ir/program.h"

static ls_program *layers_program(ls_store *s, ls_dtype type, const ls_compile_options *o)
{
    double x[LAYERS_BATCH * LAYERS_IN], y[LAYERS_BATCH * LAYERS_OUT];
    ls_program *p;

    OK(ls_program_new(s, &p));
    layers_build(p, type);
    OK(ls_program_compile(p, o));
    for (int i = 0; i < LAYERS_BATCH * LAYERS_IN; i++)
        x[i] = sin(i * 1.7);
    for (int i = 0; i < LAYERS_BATCH * LAYERS_OUT; i++)
        y[i] = cos(i * 0.9);
    OK(ls_program_write(p, "x", x, LS_F64, LAYERS_BATCH * LAYERS_IN));
    OK(ls_program_write(p, "y", y, LS_F64, LAYERS_BATCH * LAYERS_OUT));
    return p;
}

static double layers_loss(ls_program *p)
{
    double loss;

    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "loss", &loss, LS_F64, 1));
    return loss;
}

static void gradients_equal_finite_differences(void **state)
{
    ls_store *s = layers_store(LS_F64);
    ls_program *p = layers_program(s, LS_F64, NULL);

    (void)state;
    layers_loss(p);
    OK(ls_program_run(p, LS_BACKWARD));
    for (size_t i = 0; i < ls_store_count(s); i++) {
        double *w = ls_tensor_data(ls_store_value(s, i)), *g = ls_tensor_data(ls_store_grad(s, i));

        for (size_t e = 0; e < ls_tensor_count(ls_store_value(s, i)); e += 5) {
            double keep = w[e], h = 1e-5;

            w[e] = keep + h;
            double up = layers_loss(p);
            w[e] = keep - h;
            double down = layers_loss(p);
            w[e] = keep;
            if (fabs((up - down) / (2 * h) - g[e]) > 1e-7 * (1 + fabs(g[e])))
                fail_msg("%s[%zu]: gradient %.12g, difference %.12g", ls_store_name(s, i), e, g[e], (up - down) / (2 * h));
        }
    }
    ls_program_release(&p);
    ls_store_release(&s);
}

/* All gradients after one forward and backward, f32, in one fresh buffer. */
static float *gradients(const ls_compile_options *o, size_t *count, ls_cost *cost)
{
    ls_store *s = layers_store(LS_F32);
    ls_program *p = layers_program(s, LS_F32, o);
    float *all = malloc(ls_store_elements(s) * sizeof *all);
    size_t at = 0;

    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_WEIGHTS));
    for (size_t i = 0; i < ls_store_count(s); i++) {
        size_t n = ls_tensor_count(ls_store_grad(s, i));

        OK(ls_tensor_read(ls_store_grad(s, i), all + at, LS_F32, n));
        at += n;
    }
    *count = at;
    *cost = ls_program_cost(p);
    ls_program_release(&p);
    ls_store_release(&s);
    return all;
}

static void compile_options_change_no_bit(void **state)
{
    ls_compile_options plain = LS_COMPILE_DEFAULTS, o[6] = { plain, plain, plain, plain, plain, plain };
    ls_cost cost, base;
    size_t n, m;
    float *want = gradients(&plain, &n, &base);

    (void)state;
    o[0].recompute = LS_RECOMPUTE_SELECTIVE;
    o[1].recompute = LS_RECOMPUTE_FULL;
    o[2].recompute = LS_RECOMPUTE_EVERY, o[2].every = 2;
    o[3].split_backward = 1;
    o[4].recompute = LS_RECOMPUTE_BUDGET, o[4].bytes = base.activations - 64;
    o[5] = o[4], o[5].split_backward = 1;
    for (int k = 0; k < 6; k++) {
        float *got = gradients(&o[k], &m, &cost);

        assert_int_equal(n, m);
        assert_memory_equal(want, got, n * sizeof *want);
        assert_int_equal((long)cost.model_flops, (long)base.model_flops);
        if (k == 1)
            assert_true(cost.recompute_flops > 0);
        if (k == 3) o[5].bytes = cost.activations; /* the split keeps errors longer: all of them exist until the end */
        if (k >= 4)
            assert_true(cost.activations <= o[k].bytes);
        free(got);
    }
    free(want);
}

/* Blocks that end in an op of several outputs, of which one leaves the block, and hold a value with two writers. */
static void build_norms(ls_program *p)
{
    ls_value x = ls_input(p, "x", LS_F32, 2, (size_t[]){ LAYERS_BATCH, LAYERS_HIDDEN }), h = x;
    size_t c = LAYERS_HIDDEN;

    for (int i = 0; i < 3; i++) {
        char name[8], norm[16];

        snprintf(name, sizeof name, "b%d", i);
        snprintf(norm, sizeof norm, "%s.norm", name);
        ls_block_begin(p, name);
        h = ls_gelu_tanh(p, layers_layer(p, name, h, LAYERS_HIDDEN, LAYERS_HIDDEN));
        h = ls_linear(p, h, ls_linear_backward_weight(p, ls_stop_gradient(p, x), ls_stop_gradient(p, x)), LS_NONE);
        h = ls_rms_norm(p, h, ls_param(p, norm, (ls_init){ LS_INIT_ONES, 0 }, 1, &c), 1e-5);
        ls_block_end(p);
    }
    ls_backward(p, ls_output(p, "loss", ls_mse(p, layers_layer(p, "out", h, LAYERS_HIDDEN, LAYERS_HIDDEN), x)));
}

static void recompute_keeps_block_outputs(void **state)
{
    static const ls_recompute modes[] = { LS_RECOMPUTE_NONE, LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL };
    float x[LAYERS_BATCH * LAYERS_HIDDEN], want[4096], got[4096];

    (void)state;
    for (int i = 0; i < LAYERS_BATCH * LAYERS_HIDDEN; i++)
        x[i] = (float)sin(i);
    for (int m = 0; m < 3; m++)
        for (int again = 0; again < 2; again++) {
            ls_compile_options o = LS_COMPILE_DEFAULTS;
            ls_store *s = layers_store(LS_F32);
            ls_program *p;
            size_t at = 0;

            o.recompute = modes[m];
            OK(ls_program_new(s, &p));
            build_norms(p);
            OK(ls_program_compile(p, &o));
            OK(ls_program_write(p, "x", x, LS_F32, LAYERS_BATCH * LAYERS_HIDDEN));
            for (int run = 0; run <= again; run++) {
                ls_store_zero_grad(s);
                OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
            }
            for (size_t i = 0; i < ls_store_count(s); i++) {
                size_t n = ls_tensor_count(ls_store_grad(s, i));

                assert_true(at + n <= 4096);
                OK(ls_tensor_read(ls_store_grad(s, i), (m || again ? got : want) + at, LS_F32, n));
                at += n;
            }
            if (m || again)
                assert_memory_equal(want, got, at * sizeof *want);
            ls_program_release(&p);
            ls_store_release(&s);
        }
}

static void runs_out_of_order_are_refused(void **state)
{
    ls_store *s = layers_store(LS_F32);
    ls_program *p = layers_program(s, LS_F32, NULL);

    (void)state;
    assert_int_equal(ls_program_run(p, LS_BACKWARD), LS_EINVAL);
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    assert_int_equal(ls_program_run(p, LS_BACKWARD), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "backward needs a new forward"));
    assert_int_equal(ls_program_run(p, LS_OPTIMIZER_STEP), LS_EINVAL);
    assert_int_equal(ls_program_run(p, 64), LS_EINVAL);
    ls_output(p, "late", LS_NONE);
    assert_int_equal(ls_input(p, "late", LS_F32, 1, (size_t[]){ 100000 }).id, 0);
    assert_int_equal(ls_program_run(p, LS_FORWARD), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "already compiled"));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void backward_accumulates_and_zero_clears(void **state)
{
    ls_store *s = layers_store(LS_F64);
    ls_program *p = layers_program(s, LS_F64, NULL);

    (void)state;
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    double *g = ls_tensor_data(ls_store_grad(s, 0));
    double once = g[1];
    assert_true(once != 0);
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    assert_true(g[1] == 2 * once);
    ls_store_zero_grad(s);
    assert_true(g[1] == 0);
    ls_program_release(&p);
    ls_store_release(&s);
}

static void ledger_equals_plan(void **state)
{
    struct mem_stats before, after;

    (void)state;
    mem_read(&before);
    ls_store *s = layers_store(LS_F32);
    ls_program *p = layers_program(s, LS_F32, NULL);
    ls_cost c = ls_program_cost(p);
    mem_read(&after);
    assert_int_equal(after.now[MEM_PARAMETERS] - before.now[MEM_PARAMETERS], c.parameters);
    assert_int_equal(after.now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS], c.gradients);
    assert_int_equal(after.now[MEM_ACTIVATIONS] - before.now[MEM_ACTIVATIONS], c.activations);
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    mem_read(&after);
    uint64_t calls = after.calls;
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    mem_read(&after);
    assert_int_equal(after.calls, calls);  /* a run allocates nothing */
    ls_program_release(&p);
    ls_store_release(&s);
    mem_read(&after);
    assert_int_equal(after.total_now, before.total_now);
}

/* y = dropout of `rows` rows of ones, before which the step has `before` rows. */
static void drop_rows(size_t rows, int64_t before, float *y)
{
    int64_t step[2] = { 3, before };
    ls_store *s = layers_store(LS_F32);
    ls_program *p;

    OK(ls_program_new(s, &p));
    ls_output(p, "y", ls_dropout(p, "site", ls_constant(p, LS_F32, 3, (size_t[]){ rows, 5, 7 }, 1.0), 0.5, 9,
                                 ls_input(p, "step", LS_I64, 1, (size_t[]){ 2 })));
    OK(ls_program_compile(p, NULL));
    OK(ls_program_write(p, "step", step, LS_I64, 2));
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "y", y, LS_F32, rows * 35));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void dropout_mask_does_not_depend_on_sharding(void **state)
{
    float whole[8 * 35], part[8 * 35];

    (void)state;
    drop_rows(8, 0, whole);
    drop_rows(3, 0, part);
    drop_rows(5, 3, part + 3 * 35);
    assert_memory_equal(whole, part, sizeof whole);
    drop_rows(8, 1, part);
    assert_memory_not_equal(whole, part, sizeof whole);
}

enum { DROP_T = 33, DROP_H = 3, DROP_SAMPLES = 5, DROP_COUNT = DROP_SAMPLES * DROP_T * DROP_H };

/* o[rows,T,H]: attention with equal scores to values of 1, so each o is the mean of its T weights, 0 or 1 / (1 - p). */
static void drop_probabilities(size_t rows, double p, int64_t number, int64_t before, float *o)
{
    int64_t step[2] = { number, before };
    size_t size[4] = { rows, DROP_T, DROP_H, 1 };
    ls_store *s = layers_store(LS_F32);
    ls_program *g;

    OK(ls_program_new(s, &g));
    ls_value zero = ls_constant(g, LS_F32, 4, size, 0.0);
    ls_value one = ls_constant(g, LS_F32, 4, size, 1.0);
    ls_output(g, "o", ls_attention_dropout(g, "site", zero, zero, one, 0, p, 9, ls_input(g, "step", LS_I64, 1, (size_t[]){ 2 })));
    OK(ls_program_compile(g, NULL));
    OK(ls_program_write(g, "step", step, LS_I64, 2));
    OK(ls_program_run(g, LS_FORWARD));
    OK(ls_program_read(g, "o", o, LS_F32, rows * DROP_T * DROP_H));
    ls_program_release(&g);
    ls_store_release(&s);
}

static void attention_dropout_keeps_the_mean(void **state)
{
    static const double probability[] = { 0.1, 0.5, 0.9 };
    float o[DROP_COUNT], again[DROP_COUNT];

    (void)state;
    for (size_t k = 0; k < COUNT_OF(probability); k++) {
        double p = probability[k], mean = 0, square = 0, draws = DROP_COUNT * DROP_T, variance = p / (1 - p) / DROP_T;

        drop_probabilities(DROP_SAMPLES, p, 3, 0, o);
        for (int i = 0; i < DROP_COUNT; i++) {
            mean += o[i] / DROP_COUNT;
            square += (o[i] - 1) * (o[i] - 1) / DROP_COUNT;
        }
        if (fabs(mean - 1) > 4 * sqrt(p / (1 - p) / draws)) fail_msg("p %g: the mean is %g", p, mean);
        if (fabs(square / variance - 1) > 0.3) fail_msg("p %g: the variance is %g, expected %g", p, square, variance);
    }
    drop_probabilities(DROP_SAMPLES, 0.9, 4, 0, again);
    assert_memory_not_equal(o, again, sizeof o);
    drop_probabilities(2, 0.9, 3, 0, again);
    drop_probabilities(3, 0.9, 3, 2, again + 2 * DROP_T * DROP_H);
    assert_memory_equal(o, again, sizeof o);
}

static void unreachable_budget_is_refused(void **state)
{
    ls_store *s = layers_store(LS_F32);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    ls_program *p;

    (void)state;
    o.recompute = LS_RECOMPUTE_BUDGET;
    o.bytes = 1000;
    for (o.split_backward = 0; o.split_backward < 2; o.split_backward++) {
        OK(ls_program_new(s, &p));
        layers_build(p, LS_F32);
        assert_int_equal(ls_program_compile(p, &o), LS_EINVAL);
        assert_non_null(strstr(ls_errmsg(), "the budget of 1000 bytes cannot be met"));
        ls_program_release(&p);
    }
    ls_store_release(&s);
}

enum { CHAIN = 9 };

/* CHAIN layers, of which the first n are blocks, and an output of `out` channels, which may need more than the layers do. */
static ls_program *chain(ls_store *s, int n, size_t out, const ls_compile_options *o)
{
    ls_program *p;

    OK(ls_program_new(s, &p));
    ls_value h = ls_input(p, "x", LS_F32, 2, (size_t[]){ LAYERS_BATCH, LAYERS_HIDDEN });
    ls_value y = ls_input(p, "y", LS_F32, 2, (size_t[]){ LAYERS_BATCH, out });
    for (int i = 0; i < CHAIN; i++) {
        char up[16], down[16];

        snprintf(up, sizeof up, "%d.up", i);
        snprintf(down, sizeof down, "%d.down", i);
        if (i < n)
            ls_block_begin(p, up);
        h = ls_add(p, h, layers_layer(p, down, ls_gelu_tanh(p, layers_layer(p, up, h, LAYERS_HIDDEN, 4 * LAYERS_HIDDEN)),
                                      4 * LAYERS_HIDDEN, LAYERS_HIDDEN));
        if (i < n)
            ls_block_end(p);
    }
    ls_backward(p, ls_output(p, "loss", ls_mse(p, layers_layer(p, "out", h, LAYERS_HIDDEN, out), y)));
    p->status = ls_program_compile(p, o);
    return p;
}

/* The budget's choice, compared with all choices: full recomputation of the first n blocks, n = 0 .. CHAIN. */
static void budget_is_met_with_the_fewest_blocks(void **state)
{
    static const size_t outs[] = { 2, 100, 600 };
    int met = 0, refused = 0;

    (void)state;
    for (int which = 0; which < 6; which++) {
        ls_compile_options full = { .recompute = LS_RECOMPUTE_FULL, .split_backward = which % 2 };
        ls_compile_options budget = { .recompute = LS_RECOMPUTE_BUDGET, .split_backward = which % 2 };
        ls_store *s = layers_store(LS_F32);
        ls_cost cost[CHAIN + 1];

        for (int n = 0; n <= CHAIN; n++) {
            ls_program *p = chain(s, n, outs[which / 2], &full);

            OK(ls_program_status(p));
            cost[n] = ls_program_cost(p);
            ls_program_release(&p);
        }
        for (int k = 0; k < 2 * (CHAIN + 1); k++) {
            int n = 0;

            budget.bytes = cost[k / 2].activations - (size_t)(k % 2);
            while (n <= CHAIN && cost[n].activations > budget.bytes) n++;
            ls_program *p = chain(s, CHAIN, outs[which / 2], &budget);
            if ((p->status == LS_OK) != (n <= CHAIN))
                fail_msg("case %d: budget %zu: status %d, expected %d blocks", which, budget.bytes, p->status, n);
            if (n <= CHAIN && (ls_program_cost(p).activations != cost[n].activations ||
                               ls_program_cost(p).recompute_flops != cost[n].recompute_flops))
                fail_msg("case %d: budget %zu: %zu bytes, %d blocks need %zu", which, budget.bytes, ls_program_cost(p).activations, n,
                         cost[n].activations);
            met += n > 0 && n <= CHAIN;
            refused += n > CHAIN;
            ls_program_release(&p);
        }
        ls_store_release(&s);
    }
    assert_true(met > 20 && refused >= 6);
}

static void printed_program_names_every_segment(void **state)
{
    ls_store *s = layers_store(LS_F32);
    ls_program *p = layers_program(s, LS_F32, NULL);
    char *text;

    (void)state;
    OK(ls_program_text(p, &text));
    assert_non_null(strstr(text, "forward: "));
    assert_non_null(strstr(text, "backward: "));
    assert_non_null(strstr(text, "in.weight[16,3]"));
    ls_free(text);
    OK(ls_program_run(p, LS_FORWARD));
    OK(program_profile_text(p, &text));
    assert_non_null(strstr(text, "linear"));
    ls_free(text);
    ls_program_release(&p);
    ls_store_release(&s);
}

/* What is kept of an instruction is the runtime's; a program that is compiled for a plan only counts its bytes. */
static void runs_change_no_instruction(void **state)
{
    ls_compile_options planned = LS_COMPILE_DEFAULTS;
    ls_store *s = layers_store(LS_F32);
    ls_program *p = layers_program(s, LS_F32, NULL), *plan;
    const struct list *back = &p->list[SEG_BACKWARD];
    size_t bytes = (size_t)back->n * sizeof *back->at;
    void *before = malloc(bytes);

    (void)state;
    memcpy(before, back->at, bytes);
    for (int k = 0; k < 2; k++) OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_LAST));
    assert_memory_equal(back->at, before, bytes);
    assert_int_equal(instruction_run(p, &back->at[0])->runs, 2);
    free(before);
    planned.plan_only = 1;
    OK(ls_program_new(s, &plan));
    layers_build(plan, LS_F32);
    OK(ls_program_compile(plan, &planned));
    assert_null(plan->run.instruction);
    assert_true(plan->run.reserved > 0);
    OK(program_bind(plan));
    assert_int_equal(plan->run.reserved, 0);
    assert_int_equal(instruction_run(plan, &plan->list[SEG_FORWARD].at[0])->runs, 0);
    ls_program_release(&plan);
    ls_program_release(&p);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(compile_options_change_no_bit),
        cmocka_unit_test(recompute_keeps_block_outputs),
        cmocka_unit_test(runs_out_of_order_are_refused),
        cmocka_unit_test(backward_accumulates_and_zero_clears),
        cmocka_unit_test(ledger_equals_plan),
        cmocka_unit_test(dropout_mask_does_not_depend_on_sharding),
        cmocka_unit_test(attention_dropout_keeps_the_mean),
        cmocka_unit_test(unreachable_budget_is_refused),
        cmocka_unit_test(budget_is_met_with_the_fewest_blocks),
        cmocka_unit_test(printed_program_names_every_segment),
        cmocka_unit_test(runs_change_no_instruction),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
