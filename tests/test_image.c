/* test_image.c - the residual network: comparison with PyTorch, running statistics, padding, recomputation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "device/device.h"
#include "base/rng.h"
#include "helper_check.h"
#include "helper_golden.h"
#include "helper_image.h"
#include "lockstep/data.h"
#include "lockstep/optim.h"
#include "ir/program.h"

enum { MOST_VALUES = 1 << 16 };

/* ---- a model with its training program, and batches ---- */

/* Values (gradients, for a parameter that learns) of parameter i as floats. */
static size_t tensor_of(const struct image_run *r, size_t i, int gradient, float *out)
{
    const ls_tensor *t = gradient ? ls_store_grad(r->s, i) : ls_store_value(r->s, i);
    size_t n = ls_tensor_count(t);

    assert_true(n <= MOST_VALUES);
    OK(ls_tensor_read(t, out, LS_F32, n));
    return n;
}

/* All gradients and all running statistics of a and b differ by at most `most` of their norm. */
static void compare_runs(const struct image_run *a, const struct image_run *b, double most)
{
    static float x[MOST_VALUES], y[MOST_VALUES];

    assert_int_equal(ls_store_count(a->s), ls_store_count(b->s));
    for (size_t i = 0; i < ls_store_count(a->s); i++) {
        int learns = !ls_store_is_frozen(a->s, i);
        size_t n = tensor_of(a, i, learns, x);

        assert_int_equal(tensor_of(b, i, learns, y), n);
        if (!(norm_of(x, n) > 0) || !(distance(x, y, n) <= most * norm_of(x, n)))
            fail_msg("%s: off by %.3g of its norm %.3g", ls_store_name(a->s, i), distance(x, y, n) / norm_of(x, n),
                     norm_of(x, n));
    }
}

/* ---- against PyTorch ---- */

static float *copy_of(const struct safetensors *f, const char *prefix, const char *name, size_t *n)
{
    char text[160];

    snprintf(text, sizeof text, "%s%s", prefix, name);
    return golden_numbers(f, text, n);
}

static void image_test_check_tensor(const struct image_run *r, size_t i, const struct safetensors *f, const char *prefix, int gradient,
                         double most)
{
    static float have[MOST_VALUES];
    size_t n, m = tensor_of(r, i, gradient, have);
    float *want = copy_of(f, prefix, ls_store_name(r->s, i), &n);

    assert_int_equal(n, m);
    if (!(norm_of(want, n) > 0) || !(distance(have, want, n) <= most * norm_of(want, n)))
        fail_msg("%s%s: off by %.3g of its norm %.3g, %.3g is allowed", prefix, ls_store_name(r->s, i),
                 distance(have, want, n) / norm_of(want, n), norm_of(want, n), most);
    free(want);
}

static void check_logits(const struct image_run *r, const float *images, const struct safetensors *f)
{
    ls_program *p;
    float have[64];
    size_t n;

    OK(ls_program_new(r->s, &p));
    ls_output(p, "logits", ls_image_logits(p, &r->m, image_input(p, &r->m, r->batch)));
    OK(ls_program_compile(p, NULL));
    OK(ls_program_write(p, "images", images, LS_F32, r->batch * r->pixels));
    OK(ls_program_run(p, LS_FORWARD));
    float *want = golden_numbers(f, "logits", &n);
    assert_true(n <= 64);
    OK(ls_program_read(p, "logits", have, LS_F32, n));
    assert_true(distance(have, want, n) <= 1e-4 * norm_of(want, n));
    free(want);
    ls_program_release(&p);
}

/* Ten steps; gradients of the first, weights, running statistics and evaluation after the last. */
static void ten_steps(const ls_compile_options *options)
{
    static const ls_image_model m = { 3, 8, 10, 4, 3, 2, 5, 0.1, 1e-5 };
    static const ls_optimizer sgd = { .kind = LS_SGD, .momentum = 0.9, .weight_decay = 0.1 };
    struct safetensors *weights, *numbers;
    struct image_run r;
    float *w;
    int32_t labels[8];
    size_t n;

    OK(safetensors_open(TEST_DIR "/golden/resnet/model.safetensors", &weights));
    OK(safetensors_open(TEST_DIR "/golden/resnet/golden.safetensors", &numbers));
    float *x = golden_numbers(numbers, "batch.x", &n);
    float *y = golden_numbers(numbers, "batch.y", &n);
    float *loss = golden_numbers(numbers, "fp32.loss", &n);
    assert_int_equal(n, 10);
    image_run_open(&r, &m, 6, 0, &sgd, options);
    for (size_t i = 0; i < ls_store_count(r.s); i++) {
        w = copy_of(weights, "", ls_store_name(r.s, i), &n);
        OK(ls_store_set(r.s, i, w, LS_F32, n));
        free(w);
    }
    for (int s = 0; s < 10; s++) {
        for (int i = 0; i < 6; i++)
            labels[i] = (int32_t)y[s * 6 + i];
        image_run_write(&r, x + (size_t)s * 6 * r.pixels, labels);
        ls_store_zero_grad(r.s);
        OK(ls_program_run(r.p, LS_FORWARD | LS_BACKWARD));
        if (!(fabs(image_run_loss(&r) - loss[s]) <= 1e-5 * loss[s]))
            fail_msg("loss of step %d: %.9g, PyTorch has %.9g", s + 1, image_run_loss(&r), loss[s]);
        for (size_t i = 0; s == 0 && i < ls_store_count(r.s); i++)
            if (!ls_store_is_frozen(r.s, i))
                image_test_check_tensor(&r, i, numbers, "fp32.grad.", 1, 1e-5);
        OK(ls_optimizer_set(r.p, &sgd, 0.05, (uint64_t)s + 1));
        OK(ls_program_run(r.p, LS_OPTIMIZER_STEP));
    }
    for (size_t i = 0; i < ls_store_count(r.s); i++)
        image_test_check_tensor(&r, i, numbers, "fp32.final.", 0, 1e-4);
    check_logits(&r, x, numbers);
    free(x);
    free(y);
    free(loss);
    image_run_close(&r);
    safetensors_close(&weights);
    safetensors_close(&numbers);
}

static void test_golden(void **state)
{
    enum isa all = isa_all();

    (void)state;
    for (int isa = ISA_ANY; isa <= (int)all; isa++) {
        isa_cap((enum isa)isa);
        ten_steps(NULL);
    }
    isa_cap(ISAS);
    ten_steps(&(ls_compile_options){ .recompute = LS_RECOMPUTE_FULL, .fuse_loss = 1 });
}

/* ---- statistics ---- */

/* Of [B,3,2,2] with known numbers: y has mean 0 and variance 1, the running ones move a tenth of the way. */
static void test_running(void **state)
{
    enum { B = 4, C = 3, S = 4, N = B * S };
    ls_store *s;
    ls_program *p;
    float x[B * C * S], y[B * C * S], mean[C], var[C];
    size_t c3 = C;

    (void)state;
    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    ls_value v = ls_input(p, "x", LS_F32, 4, (size_t[]){ B, C, 2, 2 });
    ls_value w = ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, 1, &c3);
    ls_value b = ls_param(p, "b", (ls_init){ LS_INIT_ZEROS, 0 }, 1, &c3);
    ls_value m = ls_buffer(p, "mean", (ls_init){ LS_INIT_ZEROS, 0 }, 1, &c3);
    ls_value r = ls_buffer(p, "var", (ls_init){ LS_INIT_ONES, 0 }, 1, &c3);
    ls_output(p, "y", ls_batch_norm(p, v, w, b, m, r, LS_NONE, NULL));
    OK(ls_program_compile(p, NULL));
    for (int i = 0; i < B * C * S; i++) /* the second channel's mean is large relative to its deviation */
        x[i] = (float)(rng_normal(1, 2, (uint64_t)i) + (i / S % C == 1 ? 3000 : 0));
    OK(ls_program_write(p, "x", x, LS_F32, B * C * S));
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "y", y, LS_F32, B * C * S));
    OK(ls_tensor_read(ls_store_value(s, 2), mean, LS_F32, C));
    OK(ls_tensor_read(ls_store_value(s, 3), var, LS_F32, C));
    for (int c = 0; c < C; c++) {
        double sum = 0, squares = 0, sum_y = 0, squares_y = 0;

        for (int i = 0; i < N; i++)
            sum += x[(i / S * C + c) * S + i % S];
        for (int i = 0; i < N; i++) {
            double yi = y[(i / S * C + c) * S + i % S];

            squares += pow(x[(i / S * C + c) * S + i % S] - sum / N, 2);
            sum_y += yi;
            squares_y += yi * yi;
        }
        assert_true(fabs(mean[c] - 0.1 * sum / N) <= 1e-6 * fabs(sum / N));
        assert_true(fabs(var[c] - (0.9 + 0.1 * squares / (N - 1))) <= 1e-6 * var[c]);
        assert_true(fabs(sum_y / N) < 1e-5 && fabs(squares_y / N - 1) < 1e-3);
    }
    ls_program_release(&p);
    ls_store_release(&s);
}

/* Two parts' statistics, of unequal sizes, add up to the whole's. */
static void test_additive(void **state)
{
    enum { B = 7, C = 5, S = 6, CUT = 2 };
    float x[B * C * S];
    double whole[2 * C + 1], part[2][2 * C + 1];
    struct call c = { .op = OP_BATCH_STATS, .nin = 1, .nout = 1 };

    (void)state;
    for (int i = 0; i < B * C * S; i++)
        x[i] = (float)rng_normal(3, 4, (uint64_t)i);
    for (int k = 0; k < 3; k++) {
        size_t first = k == 2 ? CUT : 0, end = k == 1 ? CUT : B;

        c.in[0] = view_of(x + first * C * S, LS_F32, 3, (size_t[]){ end - first, C, S });
        c.out[0] = view_of(k ? part[k - 1] : whole, LS_F64, 1, (size_t[]){ 2 * C + 1 });
        kernel_choose(&c, &device_cpu)->run(&c);
    }
    for (int i = 0; i < 2 * C + 1; i++)
        assert_true(fabs(part[0][i] + part[1][i] - whole[i]) <= 1e-12 * (1 + fabs(whole[i])));
    assert_true(whole[2 * C] == B * S);
}

/* Five samples in a batch of eight, the others NaN-free rubbish with label -1: as a batch of five. */
static void test_padding(void **state)
{
    enum { B = 8, VALID = 5 };
    ls_image_model m = image_tiny();
    ls_images d = image_data(&m);
    struct image_run padded, plain;
    float denominator = VALID, *images;
    int32_t labels[B];

    (void)state;
    image_run_open(&padded, &m, B, 1, NULL, NULL);
    image_run_open(&plain, &m, VALID, 1, NULL, NULL);
    images = malloc(B * padded.pixels * sizeof *images);
    image_draw(&d, 0, B, images, labels);
    image_run_write(&plain, images, labels);
    memmove(images + 6 * plain.pixels, images + 4 * plain.pixels, plain.pixels * sizeof *images);  /* sample 5 of 5 */
    labels[6] = labels[4];
    labels[4] = labels[5] = labels[7] = -1;
    for (size_t i = 4 * plain.pixels; i < B * plain.pixels; i++)
        if (labels[i / plain.pixels] < 0)
            images[i] = (float)(100 * rng_normal(5, 6, i));
    image_run_write(&padded, images, labels);
    for (int k = 0; k < 2; k++) {
        struct image_run *r = k ? &plain : &padded;

        OK(ls_program_write(r->p, "denominator", &denominator, LS_F32, 1));
        OK(ls_program_run(r->p, LS_FORWARD | LS_BACKWARD));
    }
    assert_true(fabs(image_run_loss(&padded) - image_run_loss(&plain)) <= 1e-6 * image_run_loss(&plain));
    compare_runs(&plain, &padded, 2e-5);
    free(images);
    image_run_close(&padded);
    image_run_close(&plain);
}

/* Nothing but padding: no gradient, no change of the running statistics, no NaN. */
static void test_all_padding(void **state)
{
    static float x[MOST_VALUES];
    ls_image_model m = image_tiny();
    struct image_run r;
    float *images, one = 1;
    int32_t labels[2] = { -1, -1 };

    (void)state;
    image_run_open(&r, &m, 2, 1, NULL, NULL);
    images = calloc(2 * r.pixels, sizeof *images);
    image_run_write(&r, images, labels);
    OK(ls_program_write(r.p, "denominator", &one, LS_F32, 1));
    OK(ls_program_run(r.p, LS_FORWARD | LS_BACKWARD));
    assert_true(image_run_loss(&r) == 0);
    for (size_t i = 0; i < ls_store_count(r.s); i++) {
        int learns = !ls_store_is_frozen(r.s, i);
        size_t n = tensor_of(&r, i, learns, x);

        for (size_t k = 0; k < n; k++)
            assert_true(x[k] == (!learns && strstr(ls_store_name(r.s, i), "var") ? 1 : 0));
    }
    free(images);
    image_run_close(&r);
}

/* How many instructions of op a segment has. partial: how many of their first results are sums that ranks add up. */
static int count_ops(const ls_program *p, enum segment segment, int op, int *partial)
{
    int n = 0;

    *partial = 0;
    for (int k = 0; k < p->list[segment].n; k++) {
        const struct instruction *i = &p->list[segment].at[k];

        n += i->op == op;
        *partial += i->op == op && i->out[0].id && p->values[i->out[0].id].place[LS_AXIS_DP].kind == LS_PARTIAL;
    }
    return n;
}

/* Statistics and the sums of dx are marked for the ranks to add up; a rank's share of dw and db is not, nor is anything
 * under running statistics. */
static void test_partial(void **state)
{
    enum { NORMS = 9 }; /* one of the stem, two per block, and two of shortcuts */
    ls_image_model m = image_tiny();
    struct image_run r;
    ls_program *p;
    int partial;

    (void)state;
    image_run_open(&r, &m, 2, 0, NULL, NULL);
    assert_int_equal(count_ops(r.p, SEG_FORWARD, OP_BATCH_STATS, &partial), NORMS);
    assert_int_equal(partial, NORMS);
    assert_int_equal(count_ops(r.p, SEG_FORWARD, OP_BATCH_UPDATE_STATS, &partial), NORMS);
    assert_int_equal(count_ops(r.p, SEG_BACKWARD, OP_BATCH_GRAD_STATS, &partial), NORMS);
    assert_int_equal(partial, NORMS);
    for (int k = 0; k < r.p->list[SEG_BACKWARD].n; k++) {
        const struct instruction *i = &r.p->list[SEG_BACKWARD].at[k];

        if (i->op == OP_BATCH_NORM_DW)
            assert_int_equal(r.p->values[i->in[0].id].place[LS_AXIS_DP].kind, LS_REPLICATE);
    }
    OK(ls_program_new(r.s, &p));
    ls_value images = image_input(p, &m, 2);
    ls_value labels = ls_input(p, "labels", LS_I32, 1, (size_t[]){ 2 });
    ls_backward(p, ls_image_loss(p, &m, images, labels, LS_NONE, 0));
    OK(ls_program_compile(p, NULL));
    for (int s = 0; s < SEGMENTS; s++)
        for (int op = 0; op < OPS; op++) {
            count_ops(p, (enum segment)s, op, &partial);
            assert_int_equal(partial, 0);
        }
    ls_program_release(&p);
    image_run_close(&r);
}

/* Recomputed forward does not update running statistics again, does not communicate again, and gives the same bits. */
static void test_recompute(void **state)
{
    enum { B = 4 };
    static const ls_compile_options ways[] = {
        { .recompute = LS_RECOMPUTE_FULL },
        { .recompute = LS_RECOMPUTE_SELECTIVE },
        { .recompute = LS_RECOMPUTE_EVERY, .every = 2 },
        { .recompute = LS_RECOMPUTE_FULL, .split_backward = 1, .fuse_loss = 1 },
    };
    ls_image_model m = image_tiny();
    ls_images d = image_data(&m);
    struct image_run plain, again;
    float *images = malloc(B * m.channels * m.height * m.width * sizeof *images);
    int32_t labels[B];
    int partial;

    (void)state;
    image_draw(&d, 0, B, images, labels);
    image_run_open(&plain, &m, B, 0, NULL, NULL);
    image_run_write(&plain, images, labels);
    OK(ls_program_run(plain.p, LS_FORWARD | LS_BACKWARD));
    for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
        image_run_open(&again, &m, B, 0, NULL, &ways[k]);
        image_run_write(&again, images, labels);
        OK(ls_program_run(again.p, LS_FORWARD | LS_BACKWARD | LS_WEIGHTS));
        assert_true(ways[k].recompute != LS_RECOMPUTE_FULL || ls_program_cost(again.p).recompute_flops > 0);
        assert_int_equal(count_ops(again.p, SEG_BACKWARD, OP_BATCH_STATS, &partial), 0);
        assert_int_equal(count_ops(again.p, SEG_BACKWARD, OP_BATCH_UPDATE_STATS, &partial), 0);
        compare_runs(&plain, &again, 0);
        image_run_close(&again);
    }
    free(images);
    image_run_close(&plain);
}

/* ---- training ---- */

/* After a failure in test_golden, the other tests must not run with the slow reference kernels. */
static int uncap(void **state)
{
    (void)state;
    isa_cap(ISAS);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_golden, uncap),
        cmocka_unit_test(test_running),
        cmocka_unit_test(test_additive),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_all_padding),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_partial),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
