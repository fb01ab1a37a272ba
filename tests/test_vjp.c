/* test_vjp.c - every gradient rule compared with finite differences, in double.
 *
 * A case builds a value y from parameters. The loss is sum(c * y) with random c, so that all components of the gradient
 * differ. Each parameter's gradient g is compared with the central differences d of the loss: |g - d| <=
 * 1e-6 |d| over the whole tensor. The test fails if a rule was used by no case.
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
#include "base/rng.h"
#include "helper_check.h"
#include "helper_vjp_cases.h"
#include "ir/distributed_ops.h"
#include "ir/op_info.h"

static bool covered[PROGRAM_OPS], covered_unary[4], covered_view[5];

static void note_coverage(const ls_program *p)
{
    for (int n = 0; n < p->list[SEG_FORWARD].n; n++) {
        const struct instruction *i = &p->list[SEG_FORWARD].at[n];

        covered[i->op] = true;
        if (i->op == OP_UNARY)
            covered_unary[i->attr.unary.kind] = true;
        if (i->op == OP_VIEW)
            covered_view[instruction_view(i)->kind] = true;
    }
}

/* Ids 0 .. 3 with repeats, targets 0 .. 3 with one ignored, positions that don't start at 0, random reals. */
static void write_inputs(ls_program *p)
{
    for (int v = 1; v < p->nvalues; v++) {
        ls_dtype type = p->values[v].dtype;
        size_t n = value_count(&p->values[v]);
        double data[256], own[256];

        if (p->values[v].role != LS_ROLE_INPUT)
            continue;
        assert_true(n <= 256);
        for (size_t i = 0; i < n; i++)
            data[i] = !ls_dtype_is_float(type) ? (double)(i * i % 4)
                                                 : 1.0 + rng_uniform(5, rng_stream(p->values[v].name), i);
        if (strcmp(p->values[v].name, "targets") == 0)
            data[n - 1] = -1;
        if (strcmp(p->values[v].name, "positions") == 0)
            data[0] = 6;
        ls_convert(own, type, data, LS_F64, n);
        OK(ls_program_write(p, p->values[v].name, own, type, n));
    }
}

static double loss_of(ls_program *p)
{
    double loss;

    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "loss", &loss, LS_F64, 1));
    return loss;
}

static void check_param(const struct gradient_case *c, ls_program *p, ls_store *s, size_t i)
{
    ls_tensor *value = ls_store_value(s, i), *grad = ls_store_grad(s, i);
    size_t n = ls_tensor_count(value);
    double *x = ls_tensor_data(value), *g = ls_tensor_data(grad), wrong = 0, norm = 0;

    for (size_t e = 0; e < n; e++) {
        double old = x[e];

        x[e] = old + c->step;
        double up = loss_of(p);
        x[e] = old - c->step;
        double down = loss_of(p);
        x[e] = old;
        double d = (up - down) / (2 * c->step);
        wrong += (g[e] - d) * (g[e] - d);
        norm += d * d;
    }
    if (!(norm > 0) || !(sqrt(wrong) <= c->most * sqrt(norm)))
        fail_msg("%s: gradient of %s is off by %.3g of its norm %.3g", c->name, ls_store_name(s, i),
                 sqrt(wrong / norm), sqrt(norm));
}

static void open_case(const struct gradient_case *c, ls_store **s, ls_program **p)
{
    ls_store_options options = LS_STORE_DEFAULTS;
    size_t size[LS_DIMS];

    options.type = LS_F64;
    options.seed = 3;
    OK(ls_store_new(&options, s));
    OK(ls_program_new(*s, p));
    ls_value y = c->build(*p);
    OK(ls_program_status(*p));
    for (int d = 0; d < ls_value_ndim(*p, y); d++)
        size[d] = ls_value_size(*p, y, d);
    ls_value w = ls_input(*p, "c", LS_F64, ls_value_ndim(*p, y), size);
    y = ls_output(*p, "loss", ls_sum(*p, ls_mul(*p, w, y), -1));
    ls_backward(*p, y);
}

/* With weight gradients in a segment of their own the gradients are the same bits. */
static void check_split(const struct gradient_case *c, ls_store *s)
{
    ls_store *other = NULL;
    ls_program *p = NULL;

    open_case(c, &other, &p);
    OK(ls_program_compile(p, &(ls_compile_options){ .split_backward = 1 }));
    write_inputs(p);
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_WEIGHTS));
    for (size_t i = 0; i < ls_store_count(s); i++)
        assert_memory_equal(ls_tensor_data(ls_store_grad(s, i)), ls_tensor_data(ls_store_grad(other, i)),
                            ls_tensor_count(ls_store_grad(s, i)) * sizeof(double));
    ls_program_release(&p);
    ls_store_release(&other);
}

static void test_case(void **state)
{
    const struct gradient_case *c = *state;
    ls_store *s = NULL;
    ls_program *p = NULL;

    open_case(c, &s, &p);
    note_coverage(p);
    if (ls_program_compile(p, NULL) < 0)
        fail_msg("%s: %s", c->name, ls_errmsg());
    write_inputs(p);
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    for (size_t i = 0; i < ls_store_count(s); i++)
        check_param(c, p, s, i);
    check_split(c, s);
    ls_program_release(&p);
    ls_store_release(&s);
}

/* y = x * stop(x): the second factor is a constant to the gradient, which is c * x and not 2 c x. */
static void test_stop_gradient(void **state)
{
    ls_store_options options = { "cpu", LS_F64, 0, 3, 0 };
    ls_store *s;
    ls_program *p;

    (void)state;
    OK(ls_store_new(&options, &s));
    OK(ls_program_new(s, &p));
    ls_value x = PARAM("x", 3, 4);
    ls_backward(p, ls_sum(p, ls_mul(p, x, ls_stop_gradient(p, x)), -1));
    note_coverage(p);
    OK(ls_program_compile(p, NULL));
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    const double *value = ls_tensor_data(ls_store_value(s, 0));
    const double *grad = ls_tensor_data(ls_store_grad(s, 0));
    for (int i = 0; i < 12; i++)
        assert_true(grad[i] == value[i]);
    ls_program_release(&p);
    ls_store_release(&s);
}

/* A router's loss is separate: gradients are those of the program's loss plus those of this loss. */
static void test_router_loss(void **state)
{
    for (int k = 0; k < 8; k++) {
        ls_router_loss_options o = { k / 2 % 2, 0.3, 0.2, k / 4 };
        ls_store_options options = { "cpu", LS_F64, 0, 3, 0 };
        double up[2], down[2], old;
        ls_store *s;
        ls_program *p;

        (void)state;
        OK(ls_store_new(&options, &s));
        OK(ls_program_new(s, &p));
        ls_value samples = k % 2 ? ls_input(p, "samples", LS_F32, SIZES(2)) : LS_NONE;
        ls_value logits = ls_scale(p, PARAM("logits", 3, 2, 5), 2);
        ls_routing r = gradient_case_routing(p, logits, o.sigmoid, 1, 0, samples);
        ls_output(p, "own", ls_router_loss(p, logits, &r, samples, &o));
        ls_backward(p, ls_output(p, "loss", ls_sum(p, ls_mul(p, r.weight, r.weight), -1)));
        note_coverage(p);
        OK(ls_program_compile(p, NULL));
        if (k % 2)
            OK(ls_program_write(p, "samples", (float[]){ 2, 5 }, LS_F32, 2));
        OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
        double *x = ls_tensor_data(ls_store_value(s, 0));
        double *g = ls_tensor_data(ls_store_grad(s, 0));
        for (int e = 0; e < 30; e++) {
            old = x[e];
            x[e] = old + 1e-5;
            up[0] = loss_of(p);
            OK(ls_program_read(p, "own", &up[1], LS_F64, 1));
            x[e] = old - 1e-5;
            down[0] = loss_of(p);
            OK(ls_program_read(p, "own", &down[1], LS_F64, 1));
            x[e] = old;
            if (fabs((up[0] + up[1] - down[0] - down[1]) / 2e-5 - g[e]) > 1e-8)
                fail_msg("kind %d, logit %d: %g, not %g", k, e, g[e], (up[0] + up[1] - down[0] - down[1]) / 2e-5);
            assert_true(k % 2 == 0 || e < 20 || g[e] == 0);
        }
        ls_program_release(&p);
        ls_store_release(&s);
    }
}

static void test_no_rule(void **state)
{
    ls_store *s;
    ls_program *p;

    (void)state;
    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    ls_backward(p, ls_sum(p, ls_linear_backward_input(p, PARAM("dy", 2, 3), PARAM("w", 3, 4)), -1));
    assert_int_equal(ls_program_compile(p, NULL), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "linear_dx has no gradient rule"));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* Runs last: lists the rules that no case has used. */
static void test_coverage(void **state)
{
    static const bool view_has_rule[5] = { [VIEW_RESHAPE] = true, [VIEW_TRANSPOSE] = true, [VIEW_SLICE] = true,
                                           [VIEW_STOP] = true };

    (void)state;
    for (int op = 0; op < PROGRAM_OPS; op++)
        if (op_info(op)->gradient && !covered[op])
            fail_msg("%s has a gradient rule and no case", program_op_name(op));
    for (int k = 0; k < 4; k++)
        assert_true(covered_unary[k]);
    for (int k = 0; k < 5; k++)
        assert_true(covered_view[k] || !view_has_rule[k]);
}

int main(void)
{
    const int N = gradient_case_count;
    struct CMUnitTest tests[N + 4];

    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){ gradient_cases[i].name, test_case, NULL, NULL, (void *)(uintptr_t)&gradient_cases[i] };
    tests[N] = (struct CMUnitTest)cmocka_unit_test(test_stop_gradient);
    tests[N + 1] = (struct CMUnitTest)cmocka_unit_test(test_no_rule);
    tests[N + 2] = (struct CMUnitTest)cmocka_unit_test(test_router_loss);
    tests[N + 3] = (struct CMUnitTest)cmocka_unit_test(test_coverage);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
