/* test_nn.c - models in training: recomputation, fused loss, dropout, tied weights, initialization. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "helper_check.h"
#include "helper_nn.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"
#include "models/hf.h"
#include "models/model.h"
#include "train/faults/fault_points.h"

static const char *device = "cpu";
struct run { ls_store *s; ls_program *p; double loss; };

static struct run train_once(const ls_model *m, ls_dtype type, const ls_compile_options *options, int64_t dropout_step)
{
    enum { B = 2, T = 12 };
    ls_store_options so = { device, type, 1, 42, 0 };
    int32_t x[B * T], y[B * T];
    ls_value step = LS_NONE;
    struct run r;

    OK(ls_store_new(&so, &r.s));
    OK(ls_program_new(r.s, &r.p));
    ls_value tokens = ls_input(r.p, "tokens", LS_I32, 2, (size_t[]){ B, T });
    ls_value targets = ls_input(r.p, "targets", LS_I32, 2, (size_t[]){ B, T });
    if (dropout_step >= 0)
        step = ls_input(r.p, "step", LS_I64, 1, (size_t[]){ 1 });
    ls_backward(r.p, ls_output(r.p, "loss", ls_model_loss(r.p, m, tokens, targets, LS_NONE, step)));
    OK(ls_program_compile(r.p, options));
    for (int i = 0; i < B * T; i++) {
        x[i] = i * 37 % (int)m->vocab;
        y[i] = i % 5 ? (i * 37 + 37) % (int)m->vocab : -1;
    }
    OK(ls_program_write(r.p, "tokens", x, LS_I32, B * T));
    OK(ls_program_write(r.p, "targets", y, LS_I32, B * T));
    if (dropout_step >= 0)
        OK(ls_program_write(r.p, "step", &dropout_step, LS_I64, 1));
    OK(ls_program_run(r.p, LS_FORWARD | LS_BACKWARD | LS_WEIGHTS));
    OK(ls_program_read(r.p, "loss", &r.loss, LS_F64, 1));
    return r;
}

static void close_run(struct run *r)
{
    ls_program_release(&r->p);
    ls_store_release(&r->s);
}

/* The largest |a - b| / |a| over the gradients of all parameters. */
static double difference(const struct run *a, const struct run *b)
{
    double most = 0;

    for (size_t i = 0; i < ls_store_count(a->s); i++) {
        size_t n = ls_tensor_count(ls_store_grad(a->s, i));
        double *x = malloc(2 * n * sizeof *x), *y = x + n, off = 0, norm = 0;

        OK(ls_tensor_read(ls_store_grad(a->s, i), x, LS_F64, n));
        OK(ls_tensor_read(ls_store_grad(b->s, i), y, LS_F64, n));
        for (size_t k = 0; k < n; k++) {
            off += (x[k] - y[k]) * (x[k] - y[k]);
            norm += x[k] * x[k];
        }
        assert_true(norm > 0);
        most = fmax(most, sqrt(off / norm));
        free(x);
    }
    return most;
}

/* Halfway between the arenas of keeping everything and of keeping block inputs only. */
static size_t half_budget(const ls_model *m, ls_dtype type, const struct run *plain)
{
    struct run full = train_once(m, type, &(ls_compile_options){ .recompute = LS_RECOMPUTE_FULL }, 3);
    size_t most = ls_program_cost(plain->p).activations, least = ls_program_cost(full.p).activations;

    assert_true(least < most);
    close_run(&full);
    return (most + least) / 2;
}

/* Whatever is kept or recomputed, and whenever the weight gradients are computed: the same bits. */
static void test_recompute(void **state)
{
    ls_compile_options modes[] = {
        { .recompute = LS_RECOMPUTE_SELECTIVE }, { .recompute = LS_RECOMPUTE_FULL },
        { .recompute = LS_RECOMPUTE_EVERY, .every = 2 }, { .recompute = LS_RECOMPUTE_EVERY, .every = 3 },
        { .split_backward = 1 }, { .recompute = LS_RECOMPUTE_BUDGET },
        { .recompute = LS_RECOMPUTE_FULL, .split_backward = 1, .check_finite = 1 },
    };
    static const char *const names[] = { "gpt2-tiny", "llama-tiny" };
    static const ls_dtype types[] = { LS_F32, LS_BF16 };

    (void)state;
    for (int k = 0; k < 4; k++) {
        ls_model m = nn_preset(names[k / 2]);
        struct run other;

        m.layers = 4;
        m.dropout = k / 2 ? 0 : 0.25;
        m.attention_dropout = m.dropout / 2;
        struct run plain = train_once(&m, types[k % 2], NULL, 3);
        modes[5].bytes = half_budget(&m, types[k % 2], &plain);
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
            other = train_once(&m, types[k % 2], &modes[i], 3);
            if (other.loss != plain.loss || difference(&plain, &other) != 0)
                fail_msg("%s %s, mode %zu: loss %.17g and %.17g, gradients differ by %g", names[k / 2],
                         ls_dtype_name(types[k % 2]), i, plain.loss, other.loss, difference(&plain, &other));
            close_run(&other);
        }
        close_run(&plain);
    }
}

static void test_fused_loss(void **state)
{
    ls_compile_options fused = { .fuse_loss = 1 };
    ls_model m = nn_preset("llama-tiny");
    struct run a = train_once(&m, LS_F64, NULL, -1), b = train_once(&m, LS_F64, &fused, -1);

    (void)state;
    assert_true(fabs(a.loss - b.loss) <= 1e-14 * a.loss);
    assert_true(difference(&a, &b) < 1e-12);
    close_run(&a);
    close_run(&b);
}

/* Three backward runs after one forward give three times the gradients, in the planned memory; nothing else changes. */
static void retained(const char *name, ls_compile_options o, int which)
{
    ls_model m = nn_preset(name);
    struct mem_stats stats;
    double loss;

    m.layers = 3;
    m.dropout = strcmp(name, "gpt2-tiny") ? 0 : 0.25;
    struct run once = train_once(&m, LS_F32, &o, 3);
    o.retain = 1;
    struct run thrice = train_once(&m, LS_F32, &o, 3);
    assert_true(ls_program_cost(thrice.p).activations >= ls_program_cost(once.p).activations);
    assert_int_equal(ls_program_run(once.p, LS_BACKWARD), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "run it again, compile with retain"));
    for (int k = 0; k < 2; k++) OK(ls_program_run(thrice.p, LS_BACKWARD | LS_WEIGHTS));
    OK(ls_program_read(thrice.p, "loss", &loss, LS_F64, 1));
    assert_true(loss == once.loss && thrice.loss == once.loss);
    for (size_t i = 0; i < ls_store_count(once.s); i++) {
        size_t n = ls_tensor_count(ls_store_grad(once.s, i));
        double *x = malloc(2 * n * sizeof *x), *y = x + n, off = 0, norm = 0;

        OK(ls_tensor_read(ls_store_grad(once.s, i), x, LS_F64, n));
        OK(ls_tensor_read(ls_store_grad(thrice.s, i), y, LS_F64, n));
        for (size_t k = 0; k < n; k++) {
            off += (3 * x[k] - y[k]) * (3 * x[k] - y[k]);
            norm += x[k] * x[k];
        }
        if (!(off <= 1e-11 * norm)) fail_msg("%s, options %d: %s: off by %g of %g", name, which, ls_store_name(once.s, i), off, norm);
        free(x);
    }
    close_run(&once);
    mem_read(&stats);
    assert_int_equal(stats.now[MEM_ACTIVATIONS], ls_program_cost(thrice.p).activations);
    close_run(&thrice);
}

static void test_retain(void **state)
{
    const ls_compile_options modes[] = {
        { 0 }, { .recompute = LS_RECOMPUTE_FULL }, { .recompute = LS_RECOMPUTE_SELECTIVE }, { .split_backward = 1 }, { .fuse_loss = 1 },
        { .slots = 2 }, { .slots = 2, .split_backward = 1, .recompute = LS_RECOMPUTE_EVERY, .every = 2 },
    };
    static const char *const names[] = { "gpt2-tiny", "llama-tiny", "mixtral-tiny" };

    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i += n ? 6 : 1) retained(names[n], modes[i], (int)i);
    device = "check"; /* reports operations that are not ordered between the runs */
    retained("gpt2-tiny", modes[3], 3);
    device = "cpu";
}

/* A program has one loss; further ones are added to it. */
static void test_second_loss(void **state)
{
    ls_model m = nn_preset("gpt2-tiny");
    ls_store_options so = { "cpu", LS_F32, 1, 42, 0 };
    ls_store *s;
    ls_program *p;

    (void)state;
    OK(ls_store_new(&so, &s));
    OK(ls_program_new(s, &p));
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, 4 });
    ls_value loss = ls_model_loss(p, &m, tokens, ls_input(p, "targets", LS_I32, 2, (size_t[]){ 1, 4 }), LS_NONE, LS_NONE);
    ls_backward(p, loss);
    OK(ls_program_status(p));
    ls_backward(p, loss);
    assert_int_equal(ls_program_compile(p, NULL), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "already has a loss; add several losses up"));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* Masks depend on step and seed; without a step there are none. */
static void test_dropout(void **state)
{
    ls_model m = nn_preset("gpt2-tiny");

    (void)state;
    struct run plain = train_once(&m, LS_F32, NULL, -1);
    m.dropout = 0.2;
    ls_model other = m;
    other.seed = 1;
    struct run none = train_once(&m, LS_F32, NULL, -1);
    struct run a = train_once(&m, LS_F32, NULL, 5);
    struct run again = train_once(&m, LS_F32, NULL, 5);
    struct run later = train_once(&m, LS_F32, NULL, 6);
    struct run reseeded = train_once(&other, LS_F32, NULL, 5);
    assert_true(none.loss == plain.loss && a.loss == again.loss);
    assert_true(a.loss != plain.loss && a.loss != later.loss && a.loss != reseeded.loss);
    close_run(&plain);
    close_run(&none);
    close_run(&a);
    close_run(&again);
    close_run(&later);
    close_run(&reseeded);
}

/* A tied model is an untied one whose head starts as the embedding: the two gradients add up on the one parameter. */
static void test_tied(void **state)
{
    ls_model tied = nn_preset("llama-tiny"), untied = tied;
    double *e;

    (void)state;
    tied.tied = 1;
    assert_int_equal(ls_model_parameters(&untied) - ls_model_parameters(&tied), tied.vocab * tied.width);
    struct run a = train_once(&tied, LS_F64, NULL, -1);
    struct run b = train_once(&untied, LS_F64, NULL, -1);
    size_t head = (size_t)ls_store_find(b.s, "lm_head.weight");
    assert_int_equal(ls_store_find(a.s, "lm_head.weight"), -1);
    size_t n = ls_tensor_count(ls_store_value(a.s, 0));
    e = malloc(3 * n * sizeof *e);
    double *sum = e + n;
    double *h = sum + n;
    OK(ls_tensor_read(ls_store_value(a.s, 0), e, LS_F64, n));
    OK(ls_store_set(b.s, head, e, LS_F64, n));
    ls_store_zero_grad(b.s);
    OK(ls_program_run(b.p, LS_FORWARD | LS_BACKWARD));
    OK(ls_program_read(b.p, "loss", &b.loss, LS_F64, 1));
    assert_true(a.loss == b.loss);
    OK(ls_tensor_read(ls_store_grad(a.s, 0), sum, LS_F64, n));
    OK(ls_tensor_read(ls_store_grad(b.s, 0), e, LS_F64, n));
    OK(ls_tensor_read(ls_store_grad(b.s, head), h, LS_F64, n));
    for (size_t i = 0; i < n; i++)
        assert_true(fabs(sum[i] - e[i] - h[i]) < 1e-12);
    free(e);
    close_run(&a);
    close_run(&b);
}

/* GPT-2's residual projections start at init_std / sqrt(2 layers), everything else at init_std. */
static void test_initialization(void **state)
{
    ls_model m = nn_preset("gpt2-tiny");

    (void)state;
    m.layers = 8;
    struct run r = train_once(&m, LS_F64, NULL, -1);
    for (size_t i = 0; i < ls_store_count(r.s); i++) {
        const char *name = ls_store_name(r.s, i);
        size_t n = ls_tensor_count(ls_store_value(r.s, i));
        const double *x = ls_tensor_data(ls_store_value(r.s, i));
        double want = strstr(name, "proj.weight") ? 0.02 / 4 : 0.02, sum = 0;

        for (size_t k = 0; k < n; k++)
            sum += x[k] * x[k];
        if (ls_store_ndim(r.s, i) == 2)
            assert_true(fabs(sqrt(sum / (double)n) / want - 1) < 0.05);
        else
            assert_true(sum == (strstr(name, "ln_") && strstr(name, "weight") ? (double)n : 0));
    }
    close_run(&r);
}

static void test_mlp(void **state)
{
    ls_store *s;
    ls_program *p;

    (void)state;
    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_F32, 2, (size_t[]){ 5, 3 });
    ls_value y = ls_mlp(p, "net", x, 3, (size_t[]){ 3, 7, 2 });
    OK(ls_program_status(p));
    assert_int_equal(ls_value_size(p, y, 0), 5);
    assert_int_equal(ls_value_size(p, y, 1), 2);
    assert_int_equal(ls_store_elements(s), 3 * 7 + 7 + 7 * 2 + 2);
    assert_true(ls_store_find(s, "net.0.weight") >= 0 && ls_store_find(s, "net.1.bias") >= 0);
    ls_mlp(p, "net", x, 3, (size_t[]){ 3, 8, 2 });
    REFUSED(LS_EINVAL, "net.0.weight", ls_program_status(p));
    ls_program_release(&p);
    OK(ls_program_new(s, &p));
    ls_mlp(p, "one", ls_input(p, "x", LS_F32, 1, (size_t[]){ 3 }), 1, (size_t[]){ 3 });
    REFUSED(LS_EINVAL, "at least 2 are required", ls_program_status(p));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* Everything that a user of models does before the first step. */
static ls_status nn_test_prepare(ls_store *s, ls_program *p)
{
    ls_optimizer adamw = LS_OPTIMIZER_DEFAULTS;
    ls_model m;

    LS_TRY(model_parse_hf(NN_GPT2_CONFIG "}", sizeof NN_GPT2_CONFIG, "config.json", &m));
    m.dropout = 0.1;
    ls_value x = ls_input(p, "x", LS_I32, 2, (size_t[]){ 1, 4 });
    ls_value y = ls_input(p, "y", LS_I32, 2, (size_t[]){ 1, 4 });
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, ls_input(p, "step", LS_I64, 1, (size_t[]){ 1 })));
    LS_TRY(ls_program_status(p));
    LS_TRY(ls_optimizer_append(p, &adamw));
    LS_TRY(ls_program_compile(p, NULL));
    return ls_store_allocate(s);
}

static ls_status prepare_all(void)
{
    ls_cache *c = NULL;
    ls_store *s = NULL;
    ls_program *p = NULL;
    ls_model m = nn_preset("llama-tiny");
    char *text = NULL;
    size_t bytes;
    ls_status st = ls_cache_new("cpu", &m, LS_F32, 1, 8, &c);

    if (st == LS_OK)
        st = model_write_hf_config(&m, LS_F32, &text, &bytes);
    if (st == LS_OK)
        st = ls_store_new(NULL, &s);
    if (st == LS_OK)
        st = ls_program_new(s, &p);
    if (st == LS_OK)
        st = nn_test_prepare(s, p);
    mem_free(text);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_cache_release(&c);
    return st;
}

/* The Nth allocation fails, for every N: a status, a message, and nothing left behind. */
static void models_fail_cleanly_without_memory(void **state)
{
    struct mem_stats before, after;
    ls_status st = LS_ENOMEM;
    int64_t n;

    (void)state;
    mem_read(&before);
    for (n = 1; st == LS_ENOMEM; n++) {
        mem_fail_at(n);
        st = prepare_all();
        mem_fail_at(0);
        mem_read(&after);
        assert_int_equal(after.total_now, before.total_now);
        if (st < 0 && (st != LS_ENOMEM || !strstr(ls_errmsg(), "out of memory")))
            fail_msg("allocation %lld failed with %d: %s", (long long)n, (int)st, ls_errmsg());
    }
    assert_int_equal(st, LS_OK);
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_fused_loss),
        cmocka_unit_test(test_retain),
        cmocka_unit_test(test_second_loss),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_initialization),
        cmocka_unit_test(test_mlp),
        cmocka_unit_test(models_fail_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
