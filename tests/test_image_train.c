/* test_image_train.c - drawn pictures, a residual network that learns them, and a linear model that does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "helper_check.h"
#include "helper_image.h"
#include "lockstep/data.h"
#include "lockstep/optim.h"
#include "ir/program.h"

/* ---- data ---- */

static void test_data(void **state)
{
    enum { N = 40 };
    ls_image_model m = image_tiny();
    ls_images d = image_data(&m);
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
    ls_images other = d;
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
    REFUSED(LS_EINVAL, "classes is 11; must be 2 to 10", ls_images_check(&d));
    free(a);
    free(b);
}

/* ---- training ---- */

enum { HELD_OUT = 500, EVALUATED = 100 };

static ls_images held_out(const ls_image_model *m)
{
    ls_images d = image_data(m);

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
        image_draw(&d, at, EVALUATED, images, labels);
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
static void image_train(struct image_run *r, const ls_optimizer *o, double lr, int steps)
{
    ls_images d = image_data(&r->m);
    float *images = malloc(r->batch * r->pixels * sizeof *images);
    int32_t *labels = malloc(r->batch * sizeof *labels);

    for (int s = 0; s < steps; s++) {
        image_draw(&d, (uint64_t)s * r->batch, r->batch, images, labels);
        image_run_write(r, images, labels);
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
    ls_image_model m = image_tiny();
    ls_program *p;
    struct image_run r;

    (void)state;
    image_run_open(&r, &m, 32, 0, &o, NULL);
    image_train(&r, &o, 0.01, 200);
    OK(ls_program_new(r.s, &p));
    ls_output(p, "logits", ls_image_logits(p, &m, image_input(p, &m, EVALUATED)));
    OK(ls_program_compile(p, NULL));
    double share = accuracy(p, &m);
    print_message("    loss %.3f, %.1f%% of unseen pictures right\n", image_run_loss(&r), 100 * share);
    assert_true(share >= 0.95);
    assert_true(image_run_loss(&r) < 0.3);
    ls_program_release(&p);
    image_run_close(&r);
}

static ls_value linear_logits(ls_program *p, const ls_image_model *m, ls_value images, ls_value *x, ls_value *w)
{
    size_t pixels = m->channels * m->height * m->width, batch = ls_value_size(p, images, 0);

    *x = ls_reshape(p, images, 2, (size_t[]){ batch, pixels });
    *w = ls_param(p, "w", (ls_init){ LS_INIT_ZEROS, 0 }, 2, (size_t[]){ m->classes, pixels });
    return ls_linear(p, *x, *w, LS_NONE);
}

/* One matrix on the pixels, trained longer on the same data: the task needs more than that. */
static void test_linear(void **state)
{
    ls_optimizer o = LS_OPTIMIZER_DEFAULTS;
    ls_image_model m = image_tiny();
    struct image_run r = { .m = m, .batch = 32, .pixels = m.channels * m.height * m.width };
    ls_program *p;
    ls_value x, w;

    (void)state;
    OK(ls_store_new(NULL, &r.s));
    OK(ls_program_new(r.s, &r.p));
    ls_value images = image_input(r.p, &m, r.batch);
    linear_logits(r.p, &m, images, &x, &w);
    x = ls_linear_xent(r.p, x, w, ls_input(r.p, "labels", LS_I32, 1, &r.batch), LS_NONE);
    ls_backward(r.p, ls_output(r.p, "loss", x));
    OK(ls_optimizer_append(r.p, &o));
    OK(ls_program_compile(r.p, NULL));
    image_train(&r, &o, 0.003, 400);
    OK(ls_program_new(r.s, &p));
    ls_output(p, "logits", linear_logits(p, &m, image_input(p, &m, EVALUATED), &x, &w));
    OK(ls_program_compile(p, NULL));
    double share = accuracy(p, &m);
    print_message("    %.1f%% of unseen pictures right\n", 100 * share);
    assert_true(share < 0.4);
    ls_program_release(&p);
    image_run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data),
        cmocka_unit_test(test_train),
        cmocka_unit_test(test_linear),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
