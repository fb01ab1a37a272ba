/* test_program.c - the program as a whole: it learns, its gradients are right, its memory is what was planned. */
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
#include "lockstep/ops.h"
#include "program/program.h"

enum { B = 8, IN = 3, HIDDEN = 16, OUT = 2 };

static ls_store *new_store(ls_dtype type)
{
    ls_store *s;

    OK(ls_store_new(&(ls_store_options){ "cpu", type, 0, 7 }, &s));
    return s;
}

static ls_value layer(ls_program *p, const char *name, ls_value x, size_t in, size_t out)
{
    char w[64], b[64];

    snprintf(w, sizeof w, "%s.weight", name);
    snprintf(b, sizeof b, "%s.bias", name);
    return ls_linear(p, x, ls_param(p, w, (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ out, in }),
                     ls_param(p, b, (ls_init){ LS_INIT_UNIFORM, 0.1 }, 1, &out));
}

/* Three blocks of linear and GELU with a residual, a mean-square loss. */
static void layers_build(ls_program *p, ls_dtype type)
{
    ls_value x = ls_input(p, "x", type, 2, (size_t[]){ B, IN }), y = ls_input(p, "y", type, 2, (size_t[]){ B, OUT });
    ls_value h = layer(p, "in", x, IN, HIDDEN);
    static const char *const names[] = { "a", "b", "c" };

    for (int i = 0; i < 3; i++) {
        char up[8], down[8];

        snprintf(up, sizeof up, "%s.up", names[i]);
        snprintf(down, sizeof down, "%s.down", names[i]);
        ls_block_begin(p, names[i]);
        h = ls_add(p, h, layer(p, down, ls_gelu_tanh(p, layer(p, up, h, HIDDEN, HIDDEN)), HIDDEN, HIDDEN));
        ls_block_end(p);
    }
    ls_backward(p, ls_output(p, "loss", ls_mse(p, layer(p, "out", h, HIDDEN, OUT), y)));
}

static ls_program *layers_program(ls_store *s, ls_dtype type, const ls_compile_options *o)
{
    double x[B * IN], y[B * OUT];
    ls_program *p;

    OK(ls_program_new(s, &p));
    layers_build(p, type);
    OK(ls_program_compile(p, o));
    for (int i = 0; i < B * IN; i++)
        x[i] = sin(i * 1.7);
    for (int i = 0; i < B * OUT; i++)
        y[i] = cos(i * 0.9);
    OK(ls_program_write(p, "x", x, LS_F64, B * IN));
    OK(ls_program_write(p, "y", y, LS_F64, B * OUT));
    return p;
}

static double loss_of(ls_program *p)
{
    double loss;

    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "loss", &loss, LS_F64, 1));
    return loss;
}

static void gradients_equal_finite_differences(void **state)
{
    ls_store *s = new_store(LS_F64);
    ls_program *p = layers_program(s, LS_F64, NULL);

    (void)state;
    loss_of(p);
    OK(ls_program_run(p, LS_BACKWARD));
    for (size_t i = 0; i < ls_store_count(s); i++) {
        double *w = ls_tensor_data(ls_store_value(s, i)), *g = ls_tensor_data(ls_store_grad(s, i));

        for (size_t e = 0; e < ls_tensor_count(ls_store_value(s, i)); e += 5) {
            double keep = w[e], up, down, h = 1e-5;

            w[e] = keep + h;
            up = loss_of(p);
            w[e] = keep - h;
            down = loss_of(p);
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
    ls_store *s = new_store(LS_F32);
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
        if (k == 3)
            o[5].bytes = cost.activations;  /* the split keeps errors longer: all of them stand until the end */
        if (k >= 4)
            assert_true(cost.activations <= o[k].bytes);
        free(got);
    }
    free(want);
}

/* Blocks that end in an op of several outputs, of which one leaves the block, and hold a value with two writers. */
static void build_norms(ls_program *p)
{
    ls_value x = ls_input(p, "x", LS_F32, 2, (size_t[]){ B, HIDDEN }), h = x;
    size_t c = HIDDEN;

    for (int i = 0; i < 3; i++) {
        char name[8], norm[16];

        snprintf(name, sizeof name, "b%d", i);
        snprintf(norm, sizeof norm, "%s.norm", name);
        ls_block_begin(p, name);
        h = ls_gelu_tanh(p, layer(p, name, h, HIDDEN, HIDDEN));
        h = ls_linear(p, h, ls_linear_backward_weight(p, ls_stop_gradient(p, x), ls_stop_gradient(p, x)), LS_NONE);
        h = ls_rms_norm(p, h, ls_param(p, norm, (ls_init){ LS_INIT_ONES, 0 }, 1, &c), 1e-5);
        ls_block_end(p);
    }
    ls_backward(p, ls_output(p, "loss", ls_mse(p, layer(p, "out", h, HIDDEN, HIDDEN), x)));
}

static void recompute_keeps_block_outputs(void **state)
{
    static const ls_recompute modes[] = { LS_RECOMPUTE_NONE, LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL };
    float x[B * HIDDEN], want[4096], got[4096];

    (void)state;
    for (int i = 0; i < B * HIDDEN; i++)
        x[i] = (float)sin(i);
    for (int m = 0; m < 3; m++)
        for (int again = 0; again < 2; again++) {
            ls_compile_options o = LS_COMPILE_DEFAULTS;
            ls_store *s = new_store(LS_F32);
            ls_program *p;
            size_t at = 0;

            o.recompute = modes[m];
            OK(ls_program_new(s, &p));
            build_norms(p);
            OK(ls_program_compile(p, &o));
            OK(ls_program_write(p, "x", x, LS_F32, B * HIDDEN));
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
    ls_store *s = new_store(LS_F32);
    ls_program *p = layers_program(s, LS_F32, NULL);

    (void)state;
    assert_int_equal(ls_program_run(p, LS_BACKWARD), LS_EINVAL);
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    assert_int_equal(ls_program_run(p, LS_BACKWARD), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "backward needs a fresh forward"));
    assert_int_equal(ls_program_run(p, LS_OPTIMIZER_STEP), LS_EINVAL);
    assert_int_equal(ls_program_run(p, 64), LS_EINVAL);
    ls_output(p, "late", LS_NONE);
    assert_int_equal(ls_input(p, "late", LS_F32, 1, (size_t[]){ 100000 }).id, 0);
    assert_int_equal(ls_program_run(p, LS_FORWARD), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "compiled already"));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void indices_are_checked_on_write(void **state)
{
    ls_store *s = new_store(LS_F32);
    int32_t ids[3] = { 0, 4, 5 };
    ls_program *p;

    (void)state;
    OK(ls_program_new(s, &p));
    ls_output(p, "y", ls_embedding(p, ls_input(p, "ids", LS_I32, 1, (size_t[]){ 3 }),
                                   ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, 2, (size_t[]){ 5, 2 })));
    OK(ls_program_compile(p, NULL));
    assert_int_equal(ls_program_write(p, "ids", ids, LS_I32, 3), LS_EINVAL);
    assert_string_equal(ls_errmsg(), "'ids': element 2 is 5; 0 to 4 is possible");
    ids[2] = -1;
    assert_int_equal(ls_program_write(p, "ids", ids, LS_I32, 3), LS_EINVAL);
    ids[2] = 1;
    OK(ls_program_write(p, "ids", ids, LS_I32, 3));
    OK(ls_program_run(p, LS_FORWARD));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void backward_accumulates_and_zero_clears(void **state)
{
    ls_store *s = new_store(LS_F64);
    ls_program *p = layers_program(s, LS_F64, NULL);
    double once;
    double *g;

    (void)state;
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    g = ls_tensor_data(ls_store_grad(s, 0));
    once = g[1];
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
    ls_store *s;
    ls_program *p;
    ls_cost c;
    uint64_t calls;

    (void)state;
    mem_read(&before);
    s = new_store(LS_F32);
    p = layers_program(s, LS_F32, NULL);
    c = ls_program_cost(p);
    mem_read(&after);
    assert_int_equal(after.now[MEM_PARAMETERS] - before.now[MEM_PARAMETERS], c.parameters);
    assert_int_equal(after.now[MEM_GRADIENTS] - before.now[MEM_GRADIENTS], c.gradients);
    assert_int_equal(after.now[MEM_ACTIVATIONS] - before.now[MEM_ACTIVATIONS], c.activations);
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    mem_read(&after);
    calls = after.calls;
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    mem_read(&after);
    assert_int_equal(after.calls, calls);  /* a run allocates nothing */
    ls_program_release(&p);
    ls_store_release(&s);
    mem_read(&after);
    assert_int_equal(after.total_now, before.total_now);
}

/* y = dropout of `rows` rows of ones, of which `before` rows of the step stand in front. */
static void drop_rows(size_t rows, int64_t before, float *y)
{
    int64_t step[2] = { 3, before };
    ls_store *s = new_store(LS_F32);
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

static void unreachable_budget_is_refused(void **state)
{
    ls_store *s = new_store(LS_F32);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    ls_program *p;

    (void)state;
    o.recompute = LS_RECOMPUTE_BUDGET;
    o.bytes = 1000;
    for (o.split_backward = 0; o.split_backward < 2; o.split_backward++) {
        OK(ls_program_new(s, &p));
        layers_build(p, LS_F32);
        assert_int_equal(ls_program_compile(p, &o), LS_EINVAL);
        assert_non_null(strstr(ls_errmsg(), "a budget of 1000 bytes can't be met"));
        ls_program_release(&p);
    }
    ls_store_release(&s);
}

static void errors_are_sticky_and_name_shapes(void **state)
{
    ls_store *s = new_store(LS_F32);
    ls_program *p;
    ls_value x, y;

    (void)state;
    OK(ls_program_new(s, &p));
    x = ls_input(p, "x", LS_F32, 2, (size_t[]){ 4, 5 });
    y = ls_linear(p, x, ls_param(p, "w", (ls_init){ LS_INIT_ZEROS, 0 }, 2, (size_t[]){ 3, 6 }), LS_NONE);
    assert_int_equal(y.id, 0);
    assert_int_equal(ls_relu(p, y).id, 0);
    assert_int_equal(ls_program_compile(p, NULL), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "linear: x is [4,5], w is [3,6]"));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void first_infinity_is_named(void **state)
{
    ls_store *s = new_store(LS_F32);
    ls_compile_options o = LS_COMPILE_DEFAULTS;
    float big = 1e38f;
    ls_program *p;
    ls_value x;

    (void)state;
    o.check_finite = 1;
    OK(ls_program_new(s, &p));
    x = ls_input(p, "x", LS_F32, 1, (size_t[]){ 1 });
    ls_output(p, "y", ls_scale(p, x, 1e10));
    OK(ls_program_compile(p, &o));
    OK(ls_program_write(p, "x", &big, LS_F32, 1));
    assert_int_equal(ls_program_run(p, LS_FORWARD), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "scale of 'y'"));
    assert_non_null(strstr(ls_errmsg(), "infinite"));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void frozen_parameters_have_no_gradient(void **state)
{
    ls_store *s = new_store(LS_F32);
    ls_program *p;
    int w;

    (void)state;
    OK(ls_program_new(s, &p));
    layers_build(p, LS_F32);
    w = ls_store_find(s, "a.up.weight");
    OK(ls_store_freeze(s, (size_t)w));
    OK(ls_program_compile(p, NULL));
    assert_null(ls_store_grad(s, (size_t)w));
    assert_non_null(ls_store_grad(s, (size_t)ls_store_find(s, "in.weight")));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* Half types with masters: a frozen weight has no master to fill. */
static void frozen_parameters_have_no_master(void **state)
{
    ls_store *s;
    ls_program *p;

    (void)state;
    OK(ls_store_new(&(ls_store_options){ "cpu", LS_BF16, 1, 7 }, &s));
    OK(ls_program_new(s, &p));
    layers_build(p, LS_BF16);
    OK(ls_store_freeze(s, 0));
    OK(ls_program_compile(p, NULL));
    assert_null(ls_store_state(s, 0, "master"));
    assert_non_null(ls_store_state(s, 1, "master"));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* No allocation in making, compiling or running a program fails without a clean status and without a leak. */
static void programs_fail_cleanly_without_memory(void **state)
{
    struct mem_stats before, after;
    int failed = 0;

    (void)state;
    mem_read(&before);
    for (int64_t n = 1; ; n++) {
        ls_store *s = NULL;
        ls_program *p = NULL;
        ls_status st;

        mem_fail_at(n);
        st = ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7 }, &s);
        if (st == LS_OK)
            st = ls_program_new(s, &p);
        if (st == LS_OK) {
            layers_build(p, LS_F32);
            st = ls_program_compile(p, &(ls_compile_options){ .recompute = LS_RECOMPUTE_FULL, .every = 1 });
        }
        mem_fail_at(0);
        ls_program_release(&p);
        ls_store_release(&s);
        mem_read(&after);
        assert_int_equal(after.total_now, before.total_now);
        if (st == LS_OK)
            break;
        assert_int_equal(st, LS_ENOMEM);
        failed++;
    }
    assert_true(failed > 50);
}

static void printed_program_names_every_segment(void **state)
{
    ls_store *s = new_store(LS_F32);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_equal_finite_differences),
        cmocka_unit_test(compile_options_change_no_bit),
        cmocka_unit_test(recompute_keeps_block_outputs),
        cmocka_unit_test(runs_out_of_order_are_refused),
        cmocka_unit_test(indices_are_checked_on_write),
        cmocka_unit_test(backward_accumulates_and_zero_clears),
        cmocka_unit_test(ledger_equals_plan),
        cmocka_unit_test(dropout_mask_does_not_depend_on_sharding),
        cmocka_unit_test(unreachable_budget_is_refused),
        cmocka_unit_test(errors_are_sticky_and_name_shapes),
        cmocka_unit_test(first_infinity_is_named),
        cmocka_unit_test(frozen_parameters_have_no_gradient),
        cmocka_unit_test(frozen_parameters_have_no_master),
        cmocka_unit_test(programs_fail_cleanly_without_memory),
        cmocka_unit_test(printed_program_names_every_segment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
