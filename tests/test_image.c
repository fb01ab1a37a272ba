/* test_image.c - the image model and its data: against PyTorch, against padding, recomputation and accumulation, and
 * trained until it tells shapes apart that a linear model doesn't.
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
#include "base/base.h"
#include "base/rng.h"
#include "helper_check.h"
#include "helper_golden.h"
#include "lockstep/data.h"
#include "lockstep/optim.h"
#include "program/program.h"

enum { MOST_VALUES = 1 << 16 };

static ls_image_model tiny(void)
{
    ls_image_model m;

    OK(ls_image_preset("resnet-tiny", &m));
    return m;
}

/* ---- a model with its training program, and batches ---- */

struct run {
    ls_image_model m;
    ls_store      *s;
    ls_program    *p;
    size_t         batch, pixels;  /* pixels: elements of an image */
};

static ls_value images_input(ls_program *p, const ls_image_model *m, size_t batch)
{
    return ls_input(p, "images", LS_F32, 4, (size_t[]){ batch, m->channels, m->height, m->width });
}

/* denominator 0: the batch's own count. optimizer NULL: none. */
static void open_run(struct run *r, const ls_image_model *m, size_t batch, int denominator, const ls_optimizer *optimizer,
                     const ls_compile_options *options)
{
    ls_store_options so = LS_STORE_DEFAULTS;
    ls_value images, labels, d = LS_NONE, loss;

    *r = (struct run){ .m = *m, .batch = batch, .pixels = m->channels * m->height * m->width };
    so.seed = 7;
    OK(ls_store_new(&so, &r->s));
    OK(ls_program_new(r->s, &r->p));
    images = images_input(r->p, m, batch);
    labels = ls_input(r->p, "labels", LS_I32, 1, &batch);
    if (denominator)
        d = ls_input(r->p, "denominator", LS_F32, 1, (size_t[]){ 1 });
    loss = ls_output(r->p, "loss", ls_image_loss(r->p, m, images, labels, d, 1));
    ls_backward(r->p, loss);
    if (optimizer)
        OK(ls_optimizer_append(r->p, optimizer));
    OK(ls_program_compile(r->p, options));
}

static void close_run(struct run *r)
{
    ls_program_release(&r->p);
    ls_store_release(&r->s);
}

static void write_batch(struct run *r, const float *images, const int32_t *labels)
{
    OK(ls_program_write(r->p, "images", images, LS_F32, r->batch * r->pixels));
    OK(ls_program_write(r->p, "labels", labels, LS_I32, r->batch));
}

static double loss_of(const struct run *r)
{
    double loss;

    OK(ls_program_read(r->p, "loss", &loss, LS_F64, 1));
    return loss;
}

static ls_images data_of(const ls_image_model *m)
{
    ls_images d = LS_IMAGES_DEFAULTS;

    d.channels = m->channels, d.height = m->height, d.width = m->width, d.classes = m->classes;
    OK(ls_images_check(&d));
    return d;
}

static void pictures_draw(const ls_images *d, uint64_t first, size_t n, float *images, int32_t *labels)
{
    for (size_t i = 0; i < n; i++)
        ls_images_get(d, first + i, images + i * d->channels * d->height * d->width, labels + i);
}

/* Values (gradients, for a parameter that learns) of parameter i as floats. */
static size_t tensor_of(const struct run *r, size_t i, int gradient, float *out)
{
    const ls_tensor *t = gradient ? ls_store_grad(r->s, i) : ls_store_value(r->s, i);
    size_t n = ls_tensor_count(t);

    assert_true(n <= MOST_VALUES);
    OK(ls_tensor_read(t, out, LS_F32, n));
    return n;
}

/* All gradients and all running statistics of a and b differ by at most `most` of their norm. */
static void compare_runs(const struct run *a, const struct run *b, double most)
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

static void check_tensor(const struct run *r, size_t i, const struct safetensors *f, const char *prefix, int gradient,
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

static void check_logits(const struct run *r, const float *images, const struct safetensors *f)
{
    ls_program *p;
    float have[64], *want;
    size_t n;

    OK(ls_program_new(r->s, &p));
    ls_output(p, "logits", ls_image_logits(p, &r->m, images_input(p, &r->m, r->batch)));
    OK(ls_program_compile(p, NULL));
    OK(ls_program_write(p, "images", images, LS_F32, r->batch * r->pixels));
    OK(ls_program_run(p, LS_FORWARD));
    want = golden_numbers(f, "logits", &n);
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
    struct run r;
    float *x, *y, *w, *loss;
    int32_t labels[8];
    size_t n;

    OK(safetensors_open(TEST_DIR "/golden/resnet/model.safetensors", &weights));
    OK(safetensors_open(TEST_DIR "/golden/resnet/golden.safetensors", &numbers));
    x = golden_numbers(numbers, "batch.x", &n);
    y = golden_numbers(numbers, "batch.y", &n);
    loss = golden_numbers(numbers, "fp32.loss", &n);
    assert_int_equal(n, 10);
    open_run(&r, &m, 6, 0, &sgd, options);
    for (size_t i = 0; i < ls_store_count(r.s); i++) {
        w = copy_of(weights, "", ls_store_name(r.s, i), &n);
        OK(ls_store_set(r.s, i, w, LS_F32, n));
        free(w);
    }
    for (int s = 0; s < 10; s++) {
        for (int i = 0; i < 6; i++)
            labels[i] = (int32_t)y[s * 6 + i];
        write_batch(&r, x + (size_t)s * 6 * r.pixels, labels);
        ls_store_zero_grad(r.s);
        OK(ls_program_run(r.p, LS_FORWARD | LS_BACKWARD));
        if (!(fabs(loss_of(&r) - loss[s]) <= 1e-5 * loss[s]))
            fail_msg("loss of step %d: %.9g, PyTorch has %.9g", s + 1, loss_of(&r), loss[s]);
        for (size_t i = 0; s == 0 && i < ls_store_count(r.s); i++)
            if (!ls_store_is_frozen(r.s, i))
                check_tensor(&r, i, numbers, "fp32.grad.", 1, 1e-5);
        OK(ls_optimizer_set(r.p, &sgd, 0.05, (uint64_t)s + 1));
        OK(ls_program_run(r.p, LS_OPTIMIZER_STEP));
    }
    for (size_t i = 0; i < ls_store_count(r.s); i++)
        check_tensor(&r, i, numbers, "fp32.final.", 0, 1e-4);
    check_logits(&r, x, numbers);
    free(x);
    free(y);
    free(loss);
    close_run(&r);
    safetensors_close(&weights);
    safetensors_close(&numbers);
}

static void test_golden(void **state)
{
    enum isa best = isa_best();

    (void)state;
    for (int isa = ISA_ANY; isa <= (int)best; isa++) {
        isa_cap((enum isa)isa);
        ten_steps(NULL);
    }
    isa_cap(ISAS - 1);
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
    ls_value v, w, b, m, r;

    (void)state;
    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    v = ls_input(p, "x", LS_F32, 4, (size_t[]){ B, C, 2, 2 });
    w = ls_param(p, "w", (ls_init){ LS_INIT_ONES, 0 }, 1, &c3);
    b = ls_param(p, "b", (ls_init){ LS_INIT_ZEROS, 0 }, 1, &c3);
    m = ls_buffer(p, "mean", (ls_init){ LS_INIT_ZEROS, 0 }, 1, &c3);
    r = ls_buffer(p, "var", (ls_init){ LS_INIT_ONES, 0 }, 1, &c3);
    ls_output(p, "y", ls_batch_norm(p, v, w, b, m, r, LS_NONE, NULL));
    OK(ls_program_compile(p, NULL));
    for (int i = 0; i < B * C * S; i++)  /* the second channel's mean is large beside its deviation */
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
        kernel_choose(&c)->run(&c);
    }
    for (int i = 0; i < 2 * C + 1; i++)
        assert_true(fabs(part[0][i] + part[1][i] - whole[i]) <= 1e-12 * (1 + fabs(whole[i])));
    assert_true(whole[2 * C] == B * S);
}

/* Five samples in a batch of eight, the others NaN-free rubbish with label -1: as a batch of five. */
static void test_padding(void **state)
{
    enum { B = 8, VALID = 5 };
    ls_image_model m = tiny();
    ls_images d = data_of(&m);
    struct run padded, plain;
    float denominator = VALID, *images;
    int32_t labels[B];

    (void)state;
    open_run(&padded, &m, B, 1, NULL, NULL);
    open_run(&plain, &m, VALID, 1, NULL, NULL);
    images = malloc(B * padded.pixels * sizeof *images);
    pictures_draw(&d, 0, B, images, labels);
    write_batch(&plain, images, labels);
    memmove(images + 6 * plain.pixels, images + 4 * plain.pixels, plain.pixels * sizeof *images);  /* sample 5 of 5 */
    labels[6] = labels[4];
    labels[4] = labels[5] = labels[7] = -1;
    for (size_t i = 4 * plain.pixels; i < B * plain.pixels; i++)
        if (labels[i / plain.pixels] < 0)
            images[i] = (float)(100 * rng_normal(5, 6, i));
    write_batch(&padded, images, labels);
    for (int k = 0; k < 2; k++) {
        struct run *r = k ? &plain : &padded;

        OK(ls_program_write(r->p, "denominator", &denominator, LS_F32, 1));
        OK(ls_program_run(r->p, LS_FORWARD | LS_BACKWARD));
    }
    assert_true(fabs(loss_of(&padded) - loss_of(&plain)) <= 1e-6 * loss_of(&plain));
    compare_runs(&plain, &padded, 2e-5);
    free(images);
    close_run(&padded);
    close_run(&plain);
}

/* Nothing but padding: no gradient, no change of the running statistics, no NaN. */
static void test_all_padding(void **state)
{
    static float x[MOST_VALUES];
    ls_image_model m = tiny();
    struct run r;
    float *images, one = 1;
    int32_t labels[2] = { -1, -1 };

    (void)state;
    open_run(&r, &m, 2, 1, NULL, NULL);
    images = calloc(2 * r.pixels, sizeof *images);
    write_batch(&r, images, labels);
    OK(ls_program_write(r.p, "denominator", &one, LS_F32, 1));
    OK(ls_program_run(r.p, LS_FORWARD | LS_BACKWARD));
    assert_true(loss_of(&r) == 0);
    for (size_t i = 0; i < ls_store_count(r.s); i++) {
        int learns = !ls_store_is_frozen(r.s, i);
        size_t n = tensor_of(&r, i, learns, x);

        for (size_t k = 0; k < n; k++)
            assert_true(x[k] == (!learns && strstr(ls_store_name(r.s, i), "var") ? 1 : 0));
    }
    free(images);
    close_run(&r);
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
    enum { NORMS = 9 };  /* of the stem, two a block, and two shortcuts */
    ls_image_model m = tiny();
    struct run r;
    ls_program *p;
    ls_value images, labels;
    int partial;

    (void)state;
    open_run(&r, &m, 2, 0, NULL, NULL);
    assert_int_equal(count_ops(r.p, SEG_FORWARD, OP_BATCH_STATS, &partial), NORMS);
    assert_int_equal(partial, NORMS);
    assert_int_equal(count_ops(r.p, SEG_FORWARD, OP_BATCH_TRACK, &partial), NORMS);
    assert_int_equal(count_ops(r.p, SEG_BACKWARD, OP_BATCH_GRAD_STATS, &partial), NORMS);
    assert_int_equal(partial, NORMS);
    for (int k = 0; k < r.p->list[SEG_BACKWARD].n; k++) {
        const struct instruction *i = &r.p->list[SEG_BACKWARD].at[k];

        if (i->op == OP_BATCH_NORM_DW)
            assert_int_equal(r.p->values[i->in[0].id].place[LS_AXIS_DP].kind, LS_REPLICATE);
    }
    OK(ls_program_new(r.s, &p));
    images = images_input(p, &m, 2);
    labels = ls_input(p, "labels", LS_I32, 1, (size_t[]){ 2 });
    ls_backward(p, ls_image_loss(p, &m, images, labels, LS_NONE, 0));
    OK(ls_program_compile(p, NULL));
    for (int s = 0; s < SEGMENTS; s++)
        for (int op = 0; op < OPS; op++) {
            count_ops(p, (enum segment)s, op, &partial);
            assert_int_equal(partial, 0);
        }
    ls_program_release(&p);
    close_run(&r);
}

/* The forward made again moves no running statistics again, asks no rank again, and gives the same bits. */
static void test_recompute(void **state)
{
    enum { B = 4 };
    static const ls_compile_options ways[] = {
        { .recompute = LS_RECOMPUTE_FULL },
        { .recompute = LS_RECOMPUTE_SELECTIVE },
        { .recompute = LS_RECOMPUTE_EVERY, .every = 2 },
        { .recompute = LS_RECOMPUTE_FULL, .split_backward = 1, .fuse_loss = 1 },
    };
    ls_image_model m = tiny();
    ls_images d = data_of(&m);
    struct run plain, again;
    float *images = malloc(B * m.channels * m.height * m.width * sizeof *images);
    int32_t labels[B];
    int partial;

    (void)state;
    pictures_draw(&d, 0, B, images, labels);
    open_run(&plain, &m, B, 0, NULL, NULL);
    write_batch(&plain, images, labels);
    OK(ls_program_run(plain.p, LS_FORWARD | LS_BACKWARD));
    for (size_t k = 0; k < sizeof ways / sizeof ways[0]; k++) {
        open_run(&again, &m, B, 0, NULL, &ways[k]);
        write_batch(&again, images, labels);
        OK(ls_program_run(again.p, LS_FORWARD | LS_BACKWARD | LS_WEIGHTS));
        assert_true(ways[k].recompute != LS_RECOMPUTE_FULL || ls_program_cost(again.p).recompute_flops > 0);
        assert_int_equal(count_ops(again.p, SEG_BACKWARD, OP_BATCH_STATS, &partial), 0);
        assert_int_equal(count_ops(again.p, SEG_BACKWARD, OP_BATCH_TRACK, &partial), 0);
        compare_runs(&plain, &again, 0);
        close_run(&again);
    }
    free(images);
    close_run(&plain);
}

/* ---- what is refused, and counts ---- */

static void impossible_image_models_are_refused(void **state)
{
#define REFUSE(call, says)                                                           \
    do {                                                                             \
        ls_program *p;                                                               \
        ls_value x, w, c;                                                            \
        OK(ls_program_new(s, &p));                                                  \
        x = ls_input(p, "x", LS_F32, 4, (size_t[]){ 2, 3, 5, 4 });                   \
        w = ls_input(p, "w", LS_F32, 4, (size_t[]){ 6, 3, 3, 3 });                   \
        c = ls_input(p, "c", LS_F32, 1, (size_t[]){ 3 });                            \
        (void)x, (void)w, (void)c;                                                   \
        assert_int_equal((call).id, 0);                                              \
        REFUSED(LS_EINVAL, says, ls_program_status(p));                                  \
        ls_program_release(&p);                                                      \
    } while (0)
    static const ls_batch_norm_options evaluation = { 1e-5, 0.1, 0 };
    ls_image_model m = tiny();
    ls_store *s;

    (void)state;
    OK(ls_store_new(NULL, &s));
    REFUSE(ls_conv2d(p, c, w, LS_NONE, 1, 1), "x is [3]; [B,C,H,W] is wanted");
    REFUSE(ls_conv2d(p, w, x, LS_NONE, 1, 0), "H is 3 with 0 of padding on both sides; the window of 5 does not fit");
    REFUSE(ls_conv2d(p, x, ls_transpose(p, w, 0, 1), LS_NONE, 1, 1), "w must be [O,C,KH,KW] with x's C = 3");
    REFUSE(ls_conv2d(p, x, w, c, 1, 1), "b is [3], w makes 6 channels");
    REFUSE(ls_conv2d(p, x, w, LS_NONE, 0, 1), "stride 0");
    REFUSE(ls_conv2d(p, x, w, LS_NONE, 1, 3), "padding 3");
    REFUSE(ls_max_pool2d(p, x, 3, 1, 2), "padding 2 is more than half");
    REFUSE(ls_avg_pool2d(p, x, 5, 1, 0), "W is 4 with 0 of padding");
    REFUSE(ls_batch_norm(p, c, c, c, LS_NONE, LS_NONE, LS_NONE, NULL), "x is [3]; [B,C]");
    REFUSE(ls_batch_norm(p, x, w, c, LS_NONE, LS_NONE, LS_NONE, NULL), "w is [6,3,3,3], x has 3 channels");
    REFUSE(ls_batch_norm(p, x, c, c, c, LS_NONE, LS_NONE, NULL), "running mean given, variance missing");
    REFUSE(ls_batch_norm(p, x, c, c, LS_NONE, LS_NONE, LS_NONE, &evaluation), "both are wanted outside of training");
    REFUSE(ls_batch_norm(p, x, c, c, c, c, LS_NONE, NULL), "ls_buffer");
    REFUSE(ls_batch_norm(p, x, c, c, LS_NONE, LS_NONE, c, NULL), "labels are 3 of type f32");
    REFUSE(ls_image_logits(p, &m, x), "images are [2,3,5,4]; [B,3,16,16] is wanted");
#undef REFUSE
    m.stages = 6;
    REFUSED(LS_EINVAL, "stages 6 halve images of 16 x 16 5 times", ls_image_check(&m));
    m = tiny();
    m.classes = 0;
    REFUSED(LS_EINVAL, "classes is 0", ls_image_check(&m));
    REFUSED(LS_EINVAL, "no image model 'resnet-50'", ls_image_preset("resnet-50", &m));
    ls_store_release(&s);
}

static void test_counts(void **state)
{
    ls_image_model m;

    (void)state;
    for (int i = 0; ls_image_preset_name(i); i++) {
        struct run r;
        size_t learn = 0;

        OK(ls_image_preset(ls_image_preset_name(i), &m));
        OK(ls_image_check(&m));
        open_run(&r, &m, 1, 0, NULL, &(ls_compile_options){ .plan_only = 1 });
        for (size_t k = 0; k < ls_store_count(r.s); k++) {
            size_t n = 1;

            for (int d = 0; d < ls_store_ndim(r.s, k); d++)
                n *= ls_store_size(r.s, k, d);
            learn += ls_store_is_frozen(r.s, k) ? 0 : n;
        }
        assert_int_equal(learn, ls_image_parameters(&m));
        close_run(&r);
    }
}

/* ---- data ---- */

static void test_data(void **state)
{
    enum { N = 40 };
    ls_image_model m = tiny();
    ls_images d = data_of(&m), other;
    size_t pixels = m.channels * m.height * m.width;
    float *a = malloc(pixels * sizeof *a), *b = malloc(pixels * sizeof *b);
    int32_t la, lb;
    int seen[N] = { 0 }, moved = 0;

    (void)state;
    d.samples = N;
    d.first = 100;
    for (uint64_t i = 0; i < 2 * N; i++) {  /* an epoch has every picture once; the next has another order */
        uint64_t picture = ls_images_picture(&d, i);

        assert_in_range(picture, 100, 100 + N - 1);
        seen[picture - 100]++;
        moved += i >= N && picture != ls_images_picture(&d, i - N);
        if (i % N == N - 1)
            for (int k = 0; k < N; k++)
                assert_int_equal(seen[k], i / N + 1);
    }
    assert_true(moved > N / 2);
    other = d;
    other.shuffle = 0;
    other.first = ls_images_picture(&d, 17);
    ls_images_get(&d, 17, a, &la);
    ls_images_get(&other, 0, b, &lb);
    assert_memory_equal(a, b, pixels * sizeof *a);
    assert_int_equal(la, lb);
    assert_int_equal(la, other.first % 10);
    ls_images_get(&other, 10, b, &lb);  /* the same class, another picture */
    assert_int_equal(la, lb);
    assert_memory_not_equal(a, b, pixels * sizeof *a);
    other.seed++;
    ls_images_get(&other, 0, b, &lb);
    assert_memory_not_equal(a, b, pixels * sizeof *a);
    for (size_t i = 0; i < pixels; i++)
        assert_true(fabsf(a[i]) < 4);
    assert_string_equal(ls_images_class(4), "triangle");
    assert_null(ls_images_class(10));
    d.classes = 11;
    REFUSED(LS_EINVAL, "classes is 11; 2 to 10", ls_images_check(&d));
    free(a);
    free(b);
}

/* ---- training ---- */

enum { HELD_OUT = 500, EVALUATED = 100 };

static ls_images held_out(const ls_image_model *m)
{
    ls_images d = data_of(m);

    d.first = d.samples;
    d.samples = HELD_OUT;
    d.shuffle = 0;
    return d;
}

/* p: images [EVALUATED,..] -> logits. The share of held-out pictures whose largest logit is the right one's. */
static double accuracy(ls_program *p, const ls_image_model *m)
{
    static float logits[EVALUATED * LS_IMAGE_CLASSES];
    ls_images d = held_out(m);
    size_t pixels = m->channels * m->height * m->width;
    float *images = malloc(EVALUATED * pixels * sizeof *images);
    int32_t labels[EVALUATED];
    int right = 0;

    for (uint64_t at = 0; at < HELD_OUT; at += EVALUATED) {
        pictures_draw(&d, at, EVALUATED, images, labels);
        OK(ls_program_write(p, "images", images, LS_F32, EVALUATED * pixels));
        OK(ls_program_run(p, LS_FORWARD));
        OK(ls_program_read(p, "logits", logits, LS_F32, EVALUATED * m->classes));
        for (size_t i = 0; i < EVALUATED; i++) {
            size_t best = 0;

            for (size_t k = 1; k < m->classes; k++)
                if (logits[i * m->classes + k] > logits[i * m->classes + best])
                    best = k;
            right += best == (size_t)labels[i];
        }
    }
    free(images);
    return (double)right / HELD_OUT;
}

/* Steps of AdamW at a rate that falls to 0 over the second half; r.p is the training program. */
static void image_train(struct run *r, const ls_optimizer *o, double lr, int steps)
{
    ls_images d = data_of(&r->m);
    float *images = malloc(r->batch * r->pixels * sizeof *images);
    int32_t *labels = malloc(r->batch * sizeof *labels);

    for (int s = 0; s < steps; s++) {
        pictures_draw(&d, (uint64_t)s * r->batch, r->batch, images, labels);
        write_batch(r, images, labels);
        ls_store_zero_grad(r->s);
        OK(ls_program_run(r->p, LS_FORWARD | LS_BACKWARD));
        OK(ls_optimizer_set(r->p, o, lr * fmin(1, 2.0 * (steps - s) / steps), (uint64_t)s + 1));
        OK(ls_program_run(r->p, LS_OPTIMIZER_STEP));
    }
    free(images);
    free(labels);
}

static void test_train(void **state)
{
    ls_optimizer o = LS_OPTIMIZER_DEFAULTS;
    ls_image_model m = tiny();
    ls_program *p;
    struct run r;
    double share;

    (void)state;
    open_run(&r, &m, 32, 0, &o, NULL);
    image_train(&r, &o, 0.01, 200);
    OK(ls_program_new(r.s, &p));
    ls_output(p, "logits", ls_image_logits(p, &m, images_input(p, &m, EVALUATED)));
    OK(ls_program_compile(p, NULL));
    share = accuracy(p, &m);
    print_message("    loss %.3f, %.1f%% of unseen pictures right\n", loss_of(&r), 100 * share);
    assert_true(share >= 0.95);
    assert_true(loss_of(&r) < 0.3);
    ls_program_release(&p);
    close_run(&r);
}

static ls_value linear_logits(ls_program *p, const ls_image_model *m, ls_value images, ls_value *x, ls_value *w)
{
    size_t pixels = m->channels * m->height * m->width, batch = ls_value_size(p, images, 0);

    *x = ls_reshape(p, images, 2, (size_t[]){ batch, pixels });
    *w = ls_param(p, "w", (ls_init){ LS_INIT_ZEROS, 0 }, 2, (size_t[]){ m->classes, pixels });
    return ls_linear(p, *x, *w, LS_NONE);
}

/* One matrix on the pixels, on the same data, longer: the task needs more than that. */
static void test_linear(void **state)
{
    ls_optimizer o = LS_OPTIMIZER_DEFAULTS;
    ls_image_model m = tiny();
    struct run r = { .m = m, .batch = 32, .pixels = m.channels * m.height * m.width };
    ls_program *p;
    ls_value images, x, w;
    double share;

    (void)state;
    OK(ls_store_new(NULL, &r.s));
    OK(ls_program_new(r.s, &r.p));
    images = images_input(r.p, &m, r.batch);
    linear_logits(r.p, &m, images, &x, &w);
    x = ls_linear_xent(r.p, x, w, ls_input(r.p, "labels", LS_I32, 1, &r.batch), LS_NONE);
    ls_backward(r.p, ls_output(r.p, "loss", x));
    OK(ls_optimizer_append(r.p, &o));
    OK(ls_program_compile(r.p, NULL));
    image_train(&r, &o, 0.003, 400);
    OK(ls_program_new(r.s, &p));
    ls_output(p, "logits", linear_logits(p, &m, images_input(p, &m, EVALUATED), &x, &w));
    OK(ls_program_compile(p, NULL));
    share = accuracy(p, &m);
    print_message("    %.1f%% of unseen pictures right\n", 100 * share);
    assert_true(share < 0.4);
    ls_program_release(&p);
    close_run(&r);
}

/* A failure in test_golden must not leave the other tests to the reference, which is slow. */
static int uncap(void **state)
{
    (void)state;
    isa_cap(ISAS - 1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_golden, uncap), cmocka_unit_test(test_running), cmocka_unit_test(test_additive),
        cmocka_unit_test(test_padding),     cmocka_unit_test(test_all_padding), cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_partial),
        cmocka_unit_test(impossible_image_models_are_refused),     cmocka_unit_test(test_counts),  cmocka_unit_test(test_data),
        cmocka_unit_test(test_train),       cmocka_unit_test(test_linear),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
