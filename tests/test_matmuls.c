/* test_matmuls.c - matmuls, attention and cross-entropy at sizes that need several blocks of k, n and m, compared
 * with loops in double; on every instruction set of this processor, and twice to compare bits.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "base/threads.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "kernels/cpu/gemm.h"

static void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);

    assert_non_null(p);
    memset(p, 0xff, (bytes + 127) / 64 * 64);
    return p;
}

static double get(ls_dtype type, const void *p, size_t i)
{
    double x;

    ls_convert(&x, LS_F64, (const char *)p + i * ls_dtype_bytes(type), type, 1);
    return x;
}

/* count numbers in [-0.5, 0.5) that the type holds exactly. */
static void *numbers(ls_dtype type, size_t count, uint64_t seed)
{
    float *x = room(count * sizeof *x);
    void *out = room(count * ls_dtype_bytes(type));

    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(seed >> 40) / (float)(1 << 24) - 0.5f;
    }
    ls_convert(out, type, x, LS_F32, count);
    free(x);
    return out;
}

static void check_near(double got, double want, double tol, const char *what, size_t i)
{
    if (!(fabs(got - want) <= tol))
        fail_msg("%s: element %zu is %.9g, not %.9g (tolerance %.3g)", what, i, got, want, tol);
}

/* One matmul: strides that follow from the sizes and two flags. */
struct gemm_case { size_t m, n, k; bool a_turned, b_turned, add, bias; ls_dtype a, b, c; };

static void check_gemm(const struct gemm_case *t, const struct gemm *p, const float *before, const char *what)
{
    double step = t->c == LS_F32 ? 0 : t->c == LS_BF16 ? 0x1p-8 : 0x1p-11;

    for (size_t s = 0; s < MIN(t->m * t->n, (size_t)4000); s++) {
        size_t at = s * 7919 % (t->m * t->n), i = at / t->n, j = at % t->n;
        double sum = t->add ? (double)before[at] : 0, size = fabs(sum);

        if (t->bias)
            sum += get(LS_F32, p->bias, j);
        for (size_t k = 0; k < t->k; k++) {
            double x = get(t->a, p->a.data, i * (size_t)p->a.row + k * (size_t)p->a.col)
                     * get(t->b, p->b.data, k * (size_t)p->b.row + j * (size_t)p->b.col);

            sum += x;
            size += fabs(x);
        }
        check_near(get(t->c, p->c.data, at), sum, 2e-6 * size + step * fabs(sum) + 1e-7, what, at);
    }
}

static void run_gemm(const struct gemm_case *t, int threads)
{
    struct gemm p = { .m = t->m, .n = t->n, .k = t->k, .add = t->add, .bias_type = LS_F32 };
    size_t bytes = t->m * t->n * ls_dtype_bytes(t->c);
    float *bias = numbers(LS_F32, t->n, 3), *before;
    void *c = numbers(t->c, t->m * t->n, 4), *again = room(bytes);
    char what[120];

    p.a = (struct matrix){ numbers(t->a, t->m * t->k, 1), t->a, t->a_turned ? 1 : (ptrdiff_t)t->k, t->a_turned ? (ptrdiff_t)t->m : 1 };
    p.b = (struct matrix){ numbers(t->b, t->k * t->n, 2), t->b, t->b_turned ? 1 : (ptrdiff_t)t->n, t->b_turned ? (ptrdiff_t)t->k : 1 };
    p.c = (struct matrix){ c, t->c, (ptrdiff_t)t->n, 1 };
    p.bias = t->bias ? bias : NULL;
    before = room(t->m * t->n * sizeof *before);
    ls_convert(before, LS_F32, c, t->c, t->m * t->n);
    memcpy(again, c, bytes);
    size_t need = gemm_scratch(&p, threads);
    void *scratch = room(need);
    snprintf(what, sizeof what, "%s %d threads %zu x %zu x %zu %s %s -> %s%s%s", isa_name(isa_best()), threads, t->m, t->n,
             t->k, ls_dtype_name(t->a), ls_dtype_name(t->b), ls_dtype_name(t->c), t->a_turned ? " a'" : "", t->b_turned ? " b'" : "");
    gemm_run(&p, threads, scratch);
    check_gemm(t, &p, before, what);
    p.c.data = again;
    gemm_run(&p, threads, scratch);
    assert_memory_equal(c, again, bytes);
    free(scratch);
    free(before);
    free(again);
    free(c);
    free(bias);
    free(p.b.data);
    free(p.a.data);
}

/* Calls fn for every instruction set that this processor has vector code for. */
static void on_every_isa(void (*fn)(void))
{
    enum isa all = isa_all();

    for (int isa = ISA_AVX2; isa <= (int)all; isa++) {
        isa_cap((enum isa)isa);
        fn();
    }
    isa_cap(ISAS);
}

static void matmuls(void)
{
    static const struct gemm_case cases[] = {
        { 1, 300, 77, false, true, false, true, LS_F32, LS_F32, LS_F32 }, /* few rows */
        { 7, 131, 64, false, true, false, true, LS_BF16, LS_BF16, LS_BF16 },
        { 5, 9, 33, false, true, true, false, LS_F16, LS_F32, LS_F16 },
        { 97, 200, 150, false, true, false, true, LS_F32, LS_F32, LS_F32 },    /* linear */
        { 97, 200, 151, false, true, false, true, LS_BF16, LS_BF16, LS_BF16 }, /* an odd k */
        { 23, 700, 2100, true, false, false, true, LS_F32, LS_F32, LS_F32 },   /* transposed: few rows, b's columns in place */
        { 65, 701, 300, true, true, false, true, LS_BF16, LS_BF16, LS_BF16 },
        { 129, 3001, 64, false, false, true, true, LS_F32, LS_F32, LS_F16 },
        { 203, 65, 129, false, false, false, false, LS_BF16, LS_BF16, LS_BF16 }, /* linear_dx */
        { 203, 65, 128, false, false, false, false, LS_F16, LS_F16, LS_F16 },
        { 131, 70, 2500, true, false, true, false, LS_F32, LS_F32, LS_F32 }, /* linear_dw: blocks of k */
        { 131, 70, 2501, true, false, true, false, LS_BF16, LS_BF16, LS_F32 },
        { 50, 70, 2501, true, false, true, false, LS_BF16, LS_F32, LS_F32 },
        { 24, 5000, 1100, false, false, false, false, LS_F32, LS_F32, LS_F32 }, /* chunks of n */
        { 64, 64, 0, false, false, false, true, LS_F32, LS_F32, LS_F32 },       /* nothing to sum */
        { 1, 1, 1, true, true, false, false, LS_F32, LS_F32, LS_F32 },
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        run_gemm(&cases[i], 1);
        run_gemm(&cases[i], threads_count());
    }
}

static void test_matmuls(void **state)
{
    (void)state;
    on_every_isa(matmuls);
}

/* Every number of rows that may remain after full tiles, and depths around its steps. */
static void edges(void)
{
    static const size_t depths[] = { 1, 2, 31, 32, 33, 34, 383, 384, 386, 449 };

    for (int turned = 0; turned < 2; turned++) {
        for (size_t m = 17; m <= 66; m++)
            run_gemm(&(struct gemm_case){ m, 70, 66, turned, !turned, m % 2, false, LS_BF16, LS_BF16, LS_F32 }, 1);
        for (size_t d = 0; d < COUNT_OF(depths); d++)
            run_gemm(&(struct gemm_case){ 50, 70, depths[d], turned, !turned, d % 2, false, LS_BF16, LS_BF16, LS_F32 }, 1);
    }
}

static void test_edges(void **state)
{
    (void)state;
    on_every_isa(edges);
}

/* 1 to n */
static size_t below(uint64_t at, size_t n) { return 1 + rng_u32(7, 0, at) % n; }

/* The memory reserved for all matmuls up to a size is enough for each of them. */
static void scratch_most(void)
{
    for (int i = 0; i < 2000; i++) {
        uint64_t at = 5 * (uint64_t)i;
        ls_dtype type = i % 2 ? LS_BF16 : LS_F32, c = i % 4 < 2 ? LS_F32 : LS_BF16;
        struct gemm most = { .m = below(at, 300), .n = below(at + 1, 900), .k = below(at + 2, 60000) };
        int threads = 1 + i % 3;

        most.a = (struct matrix){ NULL, type, (ptrdiff_t)most.k, 1 };
        most.b = (struct matrix){ NULL, type, (ptrdiff_t)most.n, 1 };
        most.c = (struct matrix){ NULL, c, (ptrdiff_t)most.n, 1 };
        struct gemm p = most;
        p.m = below(at + 3, most.m);
        p.k = below(at + 4, most.k);
        if (gemm_scratch(&p, threads) > gemm_scratch_most(&most, threads))
            fail_msg("%s: %zu x %zu x %zu needs %zu bytes, up to %zu x %zu are said to need %zu", isa_name(isa_best()), p.m, p.n, p.k,
                     gemm_scratch(&p, threads), most.m, most.k, gemm_scratch_most(&most, threads));
    }
}

static void test_scratch_most(void **state)
{
    (void)state;
    on_every_isa(scratch_most);
}

/* Runs the call with the entry of that name, or the reference if it does not exist. */
static void run_call(struct call *c, bool reference)
{
    const struct kernel *k = reference ? kernel_reference(c->op) : kernel_choose(c, &device_cpu);
    size_t need = k->scratch ? k->scratch(c) : 0;

    c->scratch = room(need);
    c->state = NULL;
    if (k->prepare)
        assert_int_equal(k->prepare(c), LS_OK);
    k->run(c);
    if (k->release)
        k->release(c);
    free(c->scratch);
}

static struct view operand(ls_dtype type, int ndim, const size_t *size, uint64_t seed)
{
    struct view v = view_of(NULL, type, ndim, size);

    v.data = numbers(type, view_count(&v), seed);
    return v;
}

static void view_compare(const struct view *got, const struct view *want, double tol, const char *what)
{
    double most = 1e-2;

    for (size_t i = 0; i < view_count(want); i++)
        if (isfinite(get(want->dtype, want->data, i)))
            most = fmax(most, fabs(get(want->dtype, want->data, i)));
    for (size_t i = 0; i < view_count(want); i++) {
        double x = get(got->dtype, got->data, i), y = get(want->dtype, want->data, i);

        if (x != y)
            check_near(x, y, tol * most, what, i);
    }
}

/* Runs the call by the best entry, again for equal bits, and by the reference; compares the outputs. */
static void check_call(struct call *c, double tol, const char *what)
{
    struct call best = *c, again = *c;

    for (int i = 0; i < c->nout; i++) {
        best.out[i].data = numbers(c->out[i].dtype, view_count(&c->out[i]), 9);
        again.out[i].data = numbers(c->out[i].dtype, view_count(&c->out[i]), 9);
        c->out[i].data = numbers(c->out[i].dtype, view_count(&c->out[i]), 9);
    }
    assert_string_not_equal(kernel_choose(c, &device_cpu)->name, "reference");
    run_call(&best, false);
    run_call(&again, false);
    run_call(c, true);
    for (int i = 0; i < c->nout; i++) {
        assert_memory_equal(best.out[i].data, again.out[i].data, view_bytes(&c->out[i]));
        view_compare(&best.out[i], &c->out[i], tol, what);
        free(best.out[i].data);
        free(again.out[i].data);
    }
}

static void free_operands(struct call *c, int nin)
{
    for (int i = 0; i < nin; i++)
        free(c->in[i].data);
    for (int i = 0; i < c->nout; i++)
        free(c->out[i].data);
}

static void attention_case(ls_dtype type, size_t B, size_t T, size_t S, size_t H, size_t G, size_t D, bool causal)
{
    size_t q[4] = { B, T, H, D }, k[4] = { B, S, G, D }, lse[3] = { B, H, T };
    struct call c = { .op = OP_ATTENTION, .nin = 3, .nout = 2 }, g = { .op = OP_ATTENTION_GRAD, .nin = 6, .nout = 3 };
    double tol = type == LS_F32 ? 1e-5 : type == LS_BF16 ? 2e-2 : 3e-3;
    char what[100];

    snprintf(what, sizeof what, "%s attention %s T %zu S %zu H %zu G %zu D %zu%s", isa_name(isa_best()), ls_dtype_name(type),
             T, S, H, G, D, causal ? " causal" : "");
    c.attr.attention.causal = causal;
    c.attr.attention.scale = 2 / sqrt((double)D);
    c.in[0] = operand(type, 4, q, 1);
    c.in[1] = operand(type, 4, k, 2);
    c.in[2] = operand(type, 4, k, 3);
    c.out[0] = view_of(NULL, type, 4, q);
    c.out[1] = view_of(NULL, LS_F32, 3, lse);
    check_call(&c, tol, what);
    memcpy(g.in, c.in, 3 * sizeof *g.in);
    g.attr = c.attr;
    g.in[3] = c.out[0];
    g.in[4] = c.out[1];
    g.in[5] = operand(type, 4, q, 5);
    g.out[0] = view_of(NULL, type, 4, q);
    g.out[1] = g.out[2] = view_of(NULL, type, 4, k);
    check_call(&g, tol, what);
    free_operands(&g, 6);
}

static void products_test_attention(void)
{
    attention_case(LS_F32, 1, 401, 401, 2, 2, 24, true);
    attention_case(LS_BF16, 2, 391, 391, 2, 1, 16, true);
    attention_case(LS_F32, 1, 200, 333, 2, 1, 72, true);
    attention_case(LS_BF16, 1, 201, 77, 1, 1, 33, true);   /* early queries see nothing */
    attention_case(LS_BF16, 1, 193, 259, 1, 1, 64, false);
    attention_case(LS_F16, 1, 50, 140, 2, 2, 20, false);
    attention_case(LS_F32, 3, 1, 300, 4, 2, 64, true);     /* one new token */
}

static void test_attention(void **state)
{
    (void)state;
    on_every_isa(products_test_attention);
}

/* The complete vocabulary, several blocks of rows; ignored rows; with and without each optional operand. */
static void xent_case(ls_dtype type, bool given)
{
    enum { R = 61, C = 40, V = 1003 };
    size_t x[2] = { R, C }, w[2] = { V, C }, r[1] = { R }, one[1] = { 1 };
    struct call f = { .op = OP_LINEAR_XENT, .nin = 3, .nout = 2 }, g = { .op = OP_LINEAR_XENT_GRAD, .nin = 6, .nout = 3 };
    int32_t *y = room(R * sizeof *y);
    float *denom = room(sizeof *denom), *dloss = room(sizeof *dloss);

    for (int i = 0; i < R; i++)
        y[i] = i % 5 == 3 ? -1 : i * 37 % V;
    *denom = 17;
    *dloss = 3;
    f.in[0] = operand(type, 2, x, 1);
    f.in[1] = operand(type, 2, w, 2);
    f.in[2] = view_of(y, LS_I32, 1, r);
    f.out[0] = view_of(NULL, LS_F32, 1, one);
    f.out[1] = view_of(NULL, LS_F32, 1, r);
    check_call(&f, 1e-5, "linear_xent");
    memcpy(g.in, f.in, 3 * sizeof *g.in);
    g.in[3] = given ? view_of(denom, LS_F32, 1, one) : (struct view){ .ndim = VIEW_ABSENT };
    g.in[4] = given ? f.out[1] : (struct view){ .ndim = VIEW_ABSENT };
    g.in[5] = view_of(dloss, LS_F32, 1, one);
    g.out[0] = view_of(NULL, type, 2, x);
    g.out[1] = view_of(NULL, LS_F32, 2, w);
    g.out[2] = view_of(NULL, LS_F32, 1, one);
    check_call(&g, type == LS_F32 ? 1e-5 : type == LS_BF16 ? 2e-2 : 3e-3, "linear_xent_grad");
    free_operands(&g, 3);
    free_operands(&f, 0);
    free(denom);
    free(dloss);
}

static void xent(void)
{
    xent_case(LS_F32, false);
    xent_case(LS_F32, true);
    xent_case(LS_BF16, false);
    xent_case(LS_BF16, true);
    xent_case(LS_F16, false);
}

static void test_xent(void **state)
{
    (void)state;
    on_every_isa(xent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmuls), cmocka_unit_test(test_edges), cmocka_unit_test(test_scratch_most),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_xent),
    };

    threads_set(3);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
