/* test_kernels_values.c - values that random cases do not reach: accuracy over the complete range, infinities and NaN, exact
 * rounding, results that must not depend on the number of threads; for every vector entry that the machine can run.
 */
#include "helper_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "base/threads.h"

/* Calls fn with each entry of c's op that is not the reference. */
static void each_entry(struct call *c, void (*fn)(const struct kernel *k, struct call *c))
{
    const struct kernel *k;
    int ran = 0;

    for (int i = 0; (k = kernel_at(i)); i++)
        if (k->op == c->op && k != kernel_reference(c->op) && k->isa <= isa_best() && k->accepts(c)) {
            fn(k, c);
            ran++;
        }
    assert_true(ran > 0 || isa_best() == ISA_ANY);
}

enum { POINTS = 60013 };
static float points[POINTS], results[POINTS], wanted[POINTS], ones[POINTS];

/* Relative where the result is within the range of normal floats, and tighter where activations live. */
static void compare_points(const struct kernel *k, struct call *c)
{
    kernel_run(k, c, 0xff, "activation");
    for (int i = 0; i < POINTS; i++) {
        double x = points[i], w = wanted[i], g = results[i], rel = fabs(x) < 4 ? 3e-6 : 5e-5;
        double floor = c->op == OP_UNARY ? 1e-36 : 2e-7;  /* slopes cross zero */

        if (isnan(w) ? !isnan(g) : isinf(w) ? g != w : !(fabs(g - w) <= rel * fabs(w) + floor))
            fail_msg("%s of kind %d by %s at %.9g: %.9g, the reference has %.9g", op_name(c->op),
                     (int)c->attr.unary.kind, k->name, x, g, w);
    }
}

static void test_activations(void **state)
{
    static const float special[] = {
        0, -0.0f, 1e-40f, -1e-40f, 1e-30f, 88, -88, 104, -104, 1e4f, -1e4f, 1e19f, -1e19f,
    };
    static const enum op ops[] = { OP_UNARY, OP_UNARY_GRAD };
    size_t n = POINTS;

    (void)state;
    for (int i = 0; i < POINTS; i++) {
        points[i] = (float)(i - POINTS / 2) / 2500.0f;
        ones[i] = 1;
    }
    memcpy(points, special, sizeof special);
    points[COUNT_OF(special)] = NAN;
    for (size_t k = 0; k < COUNT_OF(ops); k++)
        for (int kind = UNARY_RELU; kind <= UNARY_SILU; kind++) {
            enum op op = ops[k];
            struct call c = { .op = op, .nin = op == OP_UNARY ? 1 : 2, .nout = 1 };

            c.attr.unary.kind = (enum unary)kind;
            if (op == OP_UNARY_GRAD && kind == UNARY_RELU)
                continue;  /* a step: 0 or 1, NaN's slope is 0 */
            c.in[0] = view_of(points, LS_F32, 1, &n);
            c.in[1] = view_of(ones, LS_F32, 1, &n);
            c.out[0] = view_of(wanted, LS_F32, 1, &n);
            kernel_run(kernel_reference(op), &c, 0, "reference");
            c.out[0] = view_of(results, LS_F32, 1, &n);
            each_entry(&c, compare_points);
        }
}

/* Every bf16 and f16, their neighbors half a step away, which are ties, and just off the ties. */
enum { PATTERNS = 65536 * 4 };
static float patterns[PATTERNS];
static uint16_t kernels_values_rounded[PATTERNS];

static void compare_rounding(const struct kernel *k, struct call *c)
{
    kernel_run(k, c, 0, "copy");
    for (int i = 0; i < PATTERNS; i++) {
        uint16_t want = c->out[0].dtype == LS_BF16 ? ls_f32_to_bf16(patterns[i]) : ls_f32_to_f16(patterns[i]);
        bool both_nan = isnan(patterns[i]) && (kernels_values_rounded[i] & 0x7fff) > (c->out[0].dtype == LS_BF16 ? 0x7f80 : 0x7c00);

        if (kernels_values_rounded[i] != want && !both_nan)
            fail_msg("%s rounds %a to %s %04x, not %04x", k->name, (double)patterns[i], ls_dtype_name(c->out[0].dtype),
                     kernels_values_rounded[i], want);
    }
}

static void test_rounding(void **state)
{
    size_t n = PATTERNS;

    (void)state;
    for (int type = LS_BF16; type <= LS_F16; type++) {
        struct call c = { .op = OP_COPY, .nin = 1, .nout = 1 };

        for (uint32_t h = 0; h < 65536; h++)
            for (uint32_t off = 0; off < 4; off++) {
                float f = type == LS_BF16 ? ls_bf16_to_f32((uint16_t)h) : ls_f16_to_f32((uint16_t)h);
                uint32_t u, half = type == LS_BF16 ? 0x8000 : 0x1000;

                memcpy(&u, &f, sizeof u);
                u += off == 0 ? 0 : half + off - 2;
                memcpy(&patterns[h * 4 + off], &u, sizeof u);
            }
        c.in[0] = view_of(patterns, LS_F32, 1, &n);
        c.out[0] = view_of(kernels_values_rounded, (ls_dtype)type, 1, &n);
        each_entry(&c, compare_rounding);
    }
}

static void check_masked(const struct kernel *k, struct call *c)
{
    const float *y = c->out[0].data;

    kernel_run(k, c, 0, "softmax");
    for (int i = 0; i < 37; i++)
        if (i % 3 == 0 ? y[i] != 0 : !(fabsf(y[i] - 1.0f / 24) < 1e-6f))
            fail_msg("%s: softmax of a masked row has %g at %d", k->name, (double)y[i], i);
}

static void test_masked_softmax(void **state)
{
    float x[37], y[37];
    struct call c = { .op = OP_SOFTMAX, .nin = 1, .nout = 1 };

    (void)state;
    for (int i = 0; i < 37; i++)
        x[i] = i % 3 == 0 ? -INFINITY : -1000;
    c.in[0] = view_of(x, LS_F32, 2, (size_t[]){ 1, 37 });
    c.out[0] = view_of(y, LS_F32, 2, (size_t[]){ 1, 37 });
    each_entry(&c, check_masked);
}

static void check_huge(const struct kernel *k, struct call *c)
{
    double *acc = c->out[0].data;

    *acc = 0;
    kernel_run(k, c, 0, "sum_squares");
    if (!(fabs(*acc / (1000 * 1e60) - 1) < 1e-6))
        fail_msg("%s: the squares of 1000 numbers of 1e30 sum to %g", k->name, *acc);
}

/* The squares of large floats overflow. */
static void test_huge_squares(void **state)
{
    float x[1000];
    double acc;
    size_t n = 1000, one = 1;
    struct call c = { .op = OP_SUM_SQUARES, .nin = 1, .nout = 1 };

    (void)state;
    for (int i = 0; i < 1000; i++)
        x[i] = 1e30f;
    c.in[0] = view_of(x, LS_F32, 1, &n);
    c.out[0] = view_of(&acc, LS_F64, 1, &one);
    each_entry(&c, check_huge);
}

/* The mask of a part of a tensor is that part of the whole's mask. */
static void check_parts(const struct kernel *k, struct call *c)
{
    float whole[5000], part[5000];
    struct call p = *c;
    size_t n = 5000;

    c->out[0] = view_of(whole, LS_F32, 1, &n);
    kernel_run(k, c, 0, "dropout");
    for (size_t start = 1; start < 5000; start += 977) {
        size_t rest = 5000 - start;

        p.in[0] = view_of((float *)c->in[0].data + start, LS_F32, 1, &rest);
        p.out[0] = view_of(part, LS_F32, 1, &rest);
        p.attr.dropout.first = c->attr.dropout.first + start;
        kernel_run(k, &p, 0, "dropout");
        assert_memory_equal(part, whole + start, rest * sizeof *part);
    }
}

static void test_dropout_parts(void **state)
{
    float x[5000], y[5000];
    int64_t step = 12;
    size_t n = 5000, one = 1;
    struct call c = { .op = OP_DROPOUT, .nin = 2, .nout = 1, .attr.dropout = { .p = 0.5, .seed = 42, .stream = 99, .first = 6 } };

    (void)state;
    for (int i = 0; i < 5000; i++)
        x[i] = (float)(i + 1);
    c.in[0] = view_of(x, LS_F32, 1, &n);
    c.in[1] = view_of(&step, LS_I64, 1, &one);
    c.out[0] = view_of(y, LS_F32, 1, &n);
    each_entry(&c, check_parts);
}

/* Two chunks of dim 1 of [B,T,C], and samples that begin later: the whole's elements there. */
enum { SB = 3, ST = 11, SC = 21 };

static void check_chunks(const struct kernel *k, struct call *c)
{
    static float whole[SB][ST][SC], x[SB * 6 * SC], y[SB * 6 * SC];
    static const size_t row[6] = { 1, 2, 7, 8, 9, 10 };
    int64_t step[2] = { 12, 1 };
    struct call p = *c;

    c->out[0] = view_of(whole, LS_F32, 3, (size_t[]){ SB, ST, SC });
    kernel_run(k, c, 0, "dropout");
    for (size_t i = 0; i < 2 * 6 * SC; i++)
        x[i] = ((float (*)[ST][SC])c->in[0].data)[1 + i / SC / 6][row[i / SC % 6]][i % SC];
    p.in[0] = view_of(x, LS_F32, 3, (size_t[]){ 2, 6, SC });
    p.in[1] = view_of(step, LS_I64, 1, (size_t[]){ 2 }); /* one sample comes before */
    p.out[0] = view_of(y, LS_F32, 3, (size_t[]){ 2, 6, SC });
    p.attr.dropout.full = ST;
    p.attr.dropout.begin[0] = 1;
    p.attr.dropout.begin[1] = 7;
    p.attr.dropout.count[0] = 2;
    p.attr.dropout.count[1] = 4;
    kernel_run(k, &p, 0, "dropout of chunks");
    for (size_t i = 0; i < 2 * 6 * SC; i++)
        if (y[i] != whole[1 + i / SC / 6][row[i / SC % 6]][i % SC])
            fail_msg("dropout by %s: element %zu of the chunks is not the whole's", k->name, i);
}

static void test_dropout_chunks(void **state)
{
    static float x[SB * ST * SC], y[SB * ST * SC];
    int64_t step = 12;
    size_t one = 1;
    struct call c = { .op = OP_DROPOUT, .nin = 2, .nout = 1, .attr.dropout = { .p = 0.5, .seed = 42, .stream = 99, .first = 6 } };

    (void)state;
    for (int i = 0; i < SB * ST * SC; i++)
        x[i] = (float)(i + 1);
    c.in[0] = view_of(x, LS_F32, 3, (size_t[]){ SB, ST, SC });
    c.in[1] = view_of(&step, LS_I64, 1, &one);
    c.out[0] = view_of(y, LS_F32, 3, (size_t[]){ SB, ST, SC });
    each_entry(&c, check_chunks);
}

/* Sums that the header promises for any number of threads. */
static void check_threads(const struct kernel *k, struct call *c)
{
    size_t bytes = view_bytes(&c->out[0]);
    char *first = malloc(bytes);

    assert_non_null(first);
    for (int threads = 1; threads <= 5; threads++) {
        threads_set(threads);
        memset(c->out[0].data, 0, bytes);
        kernel_run(k, c, 0, op_name(c->op));
        if (threads == 1)
            memcpy(first, c->out[0].data, bytes);
        else if (memcmp(first, c->out[0].data, bytes) != 0)
            fail_msg("%s by %s: %d threads give other bits than one", op_name(c->op), k->name, threads);
    }
    free(first);
}

static void test_threads(void **state)
{
    enum { R = 700, C = 300 };
    static float x[R * C], out[R * C];
    static int32_t ids[R];
    double acc[1];
    size_t one = 1;
    struct call c = { .op = OP_BIAS_GRAD, .nin = 1, .nout = 1 };

    (void)state;
    for (size_t i = 0; i < R * C; i++)
        x[i] = (float)rng_normal(1, 2, i);
    for (size_t i = 0; i < R; i++)
        ids[i] = (int32_t)(rng_u32(1, 3, i) % 50);
    c.in[0] = view_of(x, LS_F32, 2, (size_t[]){ R, C });
    c.out[0] = view_of(out, LS_F32, 1, (size_t[]){ C });
    each_entry(&c, check_threads);
    c.op = OP_SUM_SQUARES;
    c.out[0] = view_of(acc, LS_F64, 1, &one);
    each_entry(&c, check_threads);
    c.op = OP_EMBEDDING_DW;
    c.nin = 2;
    c.in[1] = view_of(ids, LS_I32, 1, (size_t[]){ R });
    c.out[0] = view_of(out, LS_F32, 2, (size_t[]){ 50, C });
    each_entry(&c, check_threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_masked_softmax),
        cmocka_unit_test(test_huge_squares),
        cmocka_unit_test(test_dropout_parts),
        cmocka_unit_test(test_dropout_chunks),
        cmocka_unit_test(test_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
