/* test_optim.c - lr schedules, and the optimizer pass apart from the formulas, which test_golden.c tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>
#include "helper_check.h"
#include "lockstep/ops.h"
#include "lockstep/optim.h"

#define NEAR(have, want, most)                                                                                   \
    do {                                                                                                         \
        double have_ = (have), want_ = (want);                                                                   \
        if (!(fabs(have_ - want_) <= (most))) fail_msg("%s is %.17g, %.17g is expected", #have, have_, want_);     \
    } while (0)

/* ---- schedules ---- */

static void test_warmup(void **state)
{
    (void)state;
    for (int kind = LS_CONSTANT; kind <= LS_WSD; kind++) {
        ls_schedule s = { (ls_schedule_kind)kind, 1.0, 0.1, 4, 20, 5 };

        for (uint64_t step = 0; step < 4; step++)
            NEAR(ls_schedule_lr(&s, step), 0.25 * (double)(step + 1), 1e-15);
        NEAR(ls_schedule_lr(&s, 4), 1.0, 1e-15);
        NEAR(ls_schedule_lr(&s, 20), kind == LS_CONSTANT ? 1.0 : 0.1, 1e-15);
        NEAR(ls_schedule_lr(&s, 1000), kind == LS_CONSTANT ? 1.0 : 0.1, 1e-15);
    }
}

static void test_shapes(void **state)
{
    ls_schedule linear = { LS_LINEAR, 1.0, 0.2, 0, 10, 0 }, cosine = { LS_COSINE, 1.0, 0.2, 2, 12, 0 };
    ls_schedule wsd = { LS_WSD, 1.0, 0.2, 2, 10, 4 };

    (void)state;
    NEAR(ls_schedule_lr(&linear, 0), 1.0, 1e-15);
    NEAR(ls_schedule_lr(&linear, 5), 0.6, 1e-15);
    NEAR(ls_schedule_lr(&linear, 9), 0.28, 1e-15);
    NEAR(ls_schedule_lr(&cosine, 2), 1.0, 1e-15);
    NEAR(ls_schedule_lr(&cosine, 7), 0.6, 1e-15);
    NEAR(ls_schedule_lr(&cosine, 4), 0.2 + 0.8 * 0.5 * (1 + cos(0.2 * acos(-1.0))), 1e-15);
    NEAR(ls_schedule_lr(&wsd, 5), 1.0, 1e-15);
    NEAR(ls_schedule_lr(&wsd, 6), 0.8, 1e-15);
    NEAR(ls_schedule_lr(&wsd, 9), 0.2, 1e-15);
}

/* Warm-up to the end, a decay as long as the schedule, no decay. */
static void test_edges(void **state)
{
    ls_schedule all = { LS_COSINE, 1.0, 0.0, 10, 10, 0 }, decay = { LS_WSD, 1.0, 0.0, 0, 5, 5 };
    ls_schedule none = { LS_WSD, 1.0, 0.5, 0, 5, 0 };

    (void)state;
    NEAR(ls_schedule_lr(&all, 9), 1.0, 1e-15);
    NEAR(ls_schedule_lr(&all, 10), 0.0, 1e-15);
    NEAR(ls_schedule_lr(&decay, 0), 0.8, 1e-15);
    NEAR(ls_schedule_lr(&decay, 4), 0.0, 1e-15);
    NEAR(ls_schedule_lr(&none, 4), 1.0, 1e-15);
    NEAR(ls_schedule_lr(&none, 5), 0.5, 1e-15);
}

/* ---- the pass ---- */

/* A store with only w [2,2] = 1 and b [2] = 1, with an optimizer. */
struct pair { ls_store *s; ls_program *p; };

static struct pair open_pair(ls_dtype type, int master, const ls_optimizer *o)
{
    ls_store_options so = { "cpu", type, master, 0, 0 };
    struct pair x;

    OK(ls_store_new(&so, &x.s));
    OK(ls_program_new(x.s, &x.p));
    ls_param(x.p, "w", (ls_init){ LS_INIT_ONES, 0 }, 2, (size_t[]){ 2, 2 });
    ls_param(x.p, "b", (ls_init){ LS_INIT_ONES, 0 }, 1, (size_t[]){ 2 });
    OK(ls_optimizer_append(x.p, o));
    OK(ls_program_compile(x.p, NULL));
    return x;
}

static void close_pair(struct pair *x)
{
    ls_program_release(&x->p);
    ls_store_release(&x->s);
}

static void set_grad(struct pair *x, size_t i, double value)
{
    double g[4] = { value, value, value, value };

    OK(ls_tensor_write(ls_store_grad(x->s, i), g, LS_F64, ls_tensor_count(ls_store_grad(x->s, i))));
}

static double first(const ls_tensor *t)
{
    double x[4];

    OK(ls_tensor_read(t, x, LS_F64, ls_tensor_count(t)));
    return x[0];
}

static void optim_step(struct pair *x, const ls_optimizer *o, double lr, uint64_t t)
{
    OK(ls_optimizer_set(x->p, o, lr, t));
    OK(ls_program_run(x->p, LS_OPTIMIZER_STEP));
}

/* A gradient that is NaN or infinite in one element is refused before anything is written, with clipping and without, by every rule. */
static void test_not_finite(void **state)
{
    static const ls_optimizer all[] = {
        { .kind = LS_SGD }, { .kind = LS_SGD, .momentum = 0.9, .clip = 1 }, { .kind = LS_ADAM, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 },
        { .kind = LS_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .clip = 1 },
        { .kind = LS_LAMB, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1 },
        { .kind = LS_LARS, .trust_coefficient = 0.1, .momentum = 0.9 },
    };
    static const double bad[] = { NAN, INFINITY, -INFINITY };

    (void)state;
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++)
        for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
            struct pair x = open_pair(LS_F32, 0, &all[k]);
            const ls_tensor *m = ls_store_state(x.s, 0, "m"), *v = ls_store_state(x.s, 0, "v");

            set_grad(&x, 0, 1.0);
            set_grad(&x, 1, 2.0);
            optim_step(&x, &all[k], 0.5, 1);
            double w = first(ls_store_value(x.s, 0)), first_m = m ? first(m) : 0, first_v = v ? first(v) : 0;
            set_grad(&x, 1, bad[b]);
            OK(ls_optimizer_set(x.p, &all[k], 0.5, 2));
            assert_int_equal(ls_program_run(x.p, LS_OPTIMIZER_STEP), LS_EINVAL);
            assert_non_null(strstr(ls_errmsg(), "no parameter was updated"));
            assert_false(isfinite(ls_optimizer_norm(x.p)));
            assert_true(first(ls_store_value(x.s, 0)) == w && (!m || first(m) == first_m) && (!v || first(v) == first_v));
            set_grad(&x, 1, 2.0);
            optim_step(&x, &all[k], 0.5, 2);
            assert_true(first(ls_store_value(x.s, 0)) != w);
            close_pair(&x);
        }
}

static void test_clip(void **state)
{
    ls_optimizer o = { .kind = LS_SGD, .clip = 1.0 };
    struct pair x = open_pair(LS_F64, 0, &o);

    (void)state;
    set_grad(&x, 0, 3.0);
    set_grad(&x, 1, 4.0);  /* norm sqrt(4 * 9 + 2 * 16) = sqrt 68 */
    optim_step(&x, &o, 0.5, 1);
    NEAR(ls_optimizer_norm(x.p), sqrt(68.0), 1e-12);
    NEAR(first(ls_store_value(x.s, 0)), 1 - 0.5 * 3 / sqrt(68.0), 1e-7);
    NEAR(first(ls_store_value(x.s, 1)), 1 - 0.5 * 4 / sqrt(68.0), 1e-7);
    set_grad(&x, 0, 0.1);
    set_grad(&x, 1, 0.0);  /* below the limit: untouched */
    optim_step(&x, &o, 1.0, 2);
    NEAR(ls_optimizer_norm(x.p), 0.2, 1e-12);
    NEAR(first(ls_store_value(x.s, 0)), 1 - 0.5 * 3 / sqrt(68.0) - 0.1, 1e-7);
    close_pair(&x);
}

/* Parameters of two dims decay, those of one dim do not; a gradient stays unchanged for the next accumulation. */
static void test_decay_groups(void **state)
{
    static const ls_optimizer_kind kinds[] = { LS_SGD, LS_ADAM, LS_ADAMW, LS_LAMB, LS_LARS };

    (void)state;
    for (int k = 0; k < 5; k++) {
        ls_optimizer o = { .kind = kinds[k], .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .trust_coefficient = 1,
                           .weight_decay = 0.5 };
        struct pair x = open_pair(LS_F64, 0, &o);

        optim_step(&x, &o, 0.125, 1);
        assert_true(first(ls_store_value(x.s, 0)) < 1.0);
        assert_true(first(ls_store_value(x.s, 1)) == 1.0);
        set_grad(&x, 0, 2.0);
        optim_step(&x, &o, 0.125, 2);
        assert_true(first(ls_store_grad(x.s, 0)) == 2.0);
        close_pair(&x);
    }
}

static void test_states(void **state)
{
    const struct { ls_optimizer o; int states; } cases[] = {
        { { .kind = LS_SGD }, 0 }, { { .kind = LS_SGD, .momentum = 0.5 }, 1 }, { { .kind = LS_LARS, .trust_coefficient = 1 }, 0 },
        { { .kind = LS_LARS, .trust_coefficient = 1, .momentum = 0.5 }, 1 }, { LS_OPTIMIZER_DEFAULTS, 2 },
        { { .kind = LS_LAMB, .eps = 1e-6 }, 2 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int master = 0; master < 2; master++) {
            struct pair x = open_pair(LS_BF16, master, &cases[i].o);

            assert_int_equal(ls_store_states(x.s, 0), cases[i].states + master);
            assert_true((ls_store_state(x.s, 0, "master") != NULL) == master);
            close_pair(&x);
        }
}

/* A step of 2^-10 is lost in bf16's 8 bits around 1; the master copy keeps it, and the parameter is its rounding. */
static void test_master(void **state)
{
    ls_optimizer o = { .kind = LS_SGD };

    (void)state;
    for (int master = 0; master < 2; master++) {
        struct pair x = open_pair(LS_BF16, master, &o);

        set_grad(&x, 0, 1.0);
        for (uint64_t t = 1; t <= 8; t++)
            optim_step(&x, &o, 0x1p-10, t);
        assert_true(first(ls_store_value(x.s, 0)) == (master ? 1 - 0x1p-7 : 1.0));
        if (master)
            assert_true(first(ls_store_state(x.s, 0, "master")) == 1 - 0x1p-7);
        close_pair(&x);
    }
}

static void test_frozen(void **state)
{
    ls_optimizer o = { .kind = LS_SGD };
    struct pair x;

    (void)state;
    OK(ls_store_new(NULL, &x.s));
    OK(ls_program_new(x.s, &x.p));
    ls_param(x.p, "w", (ls_init){ LS_INIT_ONES, 0 }, 2, (size_t[]){ 2, 2 });
    ls_param(x.p, "b", (ls_init){ LS_INIT_ONES, 0 }, 1, (size_t[]){ 2 });
    OK(ls_store_freeze(x.s, 0));
    OK(ls_optimizer_append(x.p, &o));
    OK(ls_program_compile(x.p, NULL));
    assert_null(ls_store_grad(x.s, 0));
    set_grad(&x, 1, 1.0);
    optim_step(&x, &o, 0.25, 1);
    NEAR(ls_optimizer_norm(x.p), sqrt(2.0), 1e-6);
    assert_true(first(ls_store_value(x.s, 0)) == 1.0);
    assert_true(first(ls_store_value(x.s, 1)) == 0.75);
    close_pair(&x);
}

static void impossible_optimizers_are_refused(void **state)
{
    const struct { ls_optimizer o; const char *says; } cases[] = {
        { { .kind = LS_ADAMW, .beta1 = 1.0, .beta2 = 0.9, .eps = 1e-8 }, "beta1 1" },
        { { .kind = LS_ADAM, .beta1 = 0.9, .beta2 = -0.1, .eps = 1e-8 }, "beta2 -0.1" },
        { { .kind = LS_LAMB, .beta1 = 0.9, .beta2 = 0.9, .eps = 0 }, "eps 0" },
        { { .kind = LS_SGD, .momentum = 1.5 }, "momentum 1.5" },
        { { .kind = LS_SGD, .nesterov = 1 }, "nesterov" },
        { { .kind = LS_LARS }, "trust_coefficient 0" },
        { { .kind = LS_SGD, .weight_decay = -1 }, "weight_decay -1" },
        { { .kind = LS_SGD, .clip = NAN }, "clip nan" },
        { { .kind = (ls_optimizer_kind)9 }, "kind 9" },
    };
    ls_store *s;
    ls_program *p;

    (void)state;
    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, 1, (size_t[]){ 2 });
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(ls_optimizer_append(p, &cases[i].o), LS_EINVAL);
        if (!strstr(ls_errmsg(), cases[i].says))
            fail_msg("'%s' lacks '%s'", ls_errmsg(), cases[i].says);
    }
    assert_true(isnan(ls_optimizer_norm(p)));
    OK(ls_optimizer_append(p, &(ls_optimizer){ .kind = LS_SGD }));
    assert_int_equal(ls_optimizer_append(p, &(ls_optimizer){ .kind = LS_SGD }), LS_EINVAL);
    OK(ls_program_compile(p, NULL));
    assert_int_equal(ls_optimizer_set(p, &(ls_optimizer){ .kind = LS_SGD }, -1, 1), LS_EINVAL);
    assert_int_equal(ls_optimizer_set(p, &(ls_optimizer){ .kind = LS_SGD }, 1, 0), LS_EINVAL);
    ls_program_release(&p);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup), cmocka_unit_test(test_shapes), cmocka_unit_test(test_edges),
        cmocka_unit_test(test_clip), cmocka_unit_test(test_not_finite), cmocka_unit_test(test_decay_groups), cmocka_unit_test(test_states),
        cmocka_unit_test(test_master), cmocka_unit_test(test_frozen), cmocka_unit_test(impossible_optimizers_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
