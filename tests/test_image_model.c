/* test_image_model.c - image models: refused sizes, and the number of parameters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "helper_check.h"
#include "helper_image.h"
#include "lockstep/data.h"
#include "ir/program.h"

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
    ls_image_model m = image_tiny();
    ls_store *s;

    (void)state;
    OK(ls_store_new(NULL, &s));
    REFUSE(ls_conv2d(p, c, w, LS_NONE, 1, 1), "x is [3]; [B,C,H,W] is expected");
    REFUSE(ls_conv2d(p, w, x, LS_NONE, 1, 0), "H is 3 with 0 of padding on both sides, too small for the window of 5");
    REFUSE(ls_conv2d(p, x, ls_transpose(p, w, 0, 1), LS_NONE, 1, 1), "w must be [O,C,KH,KW] with x's C = 3");
    REFUSE(ls_conv2d(p, x, w, c, 1, 1), "b is [3], but w has 6 output channels");
    REFUSE(ls_conv2d(p, x, w, LS_NONE, 0, 1), "stride 0");
    REFUSE(ls_conv2d(p, x, w, LS_NONE, 1, 3), "padding 3");
    REFUSE(ls_max_pool2d(p, x, 3, 1, 2), "padding 2 is more than half");
    REFUSE(ls_avg_pool2d(p, x, 5, 1, 0), "W is 4 with 0 of padding");
    REFUSE(ls_batch_norm(p, c, c, c, LS_NONE, LS_NONE, LS_NONE, NULL), "x is [3]; [B,C]");
    REFUSE(ls_batch_norm(p, x, w, c, LS_NONE, LS_NONE, LS_NONE, NULL), "w is [6,3,3,3], but x has 3 channels");
    REFUSE(ls_batch_norm(p, x, c, c, c, LS_NONE, LS_NONE, NULL), "running mean given, variance missing");
    REFUSE(ls_batch_norm(p, x, c, c, LS_NONE, LS_NONE, LS_NONE, &evaluation), "both are expected outside of training");
    REFUSE(ls_batch_norm(p, x, c, c, c, c, LS_NONE, NULL), "ls_buffer");
    REFUSE(ls_batch_norm(p, x, c, c, LS_NONE, LS_NONE, c, NULL), "labels are 3 of type f32");
    REFUSE(ls_image_logits(p, &m, x), "images are [2,3,5,4]; expected [B,3,16,16]");
#undef REFUSE
    m.stages = 6;
    REFUSED(LS_EINVAL, "6 stages halve images of 16 x 16 5 times", ls_image_check(&m));
    m = image_tiny();
    m.classes = 0;
    REFUSED(LS_EINVAL, "classes is 0", ls_image_check(&m));
    REFUSED(LS_EINVAL, "unknown image model 'resnet-50'", ls_image_preset("resnet-50", &m));
    ls_store_release(&s);
}

static void test_counts(void **state)
{
    ls_image_model m;

    (void)state;
    for (int i = 0; ls_image_preset_name(i); i++) {
        struct image_run r;
        size_t learn = 0;

        OK(ls_image_preset(ls_image_preset_name(i), &m));
        OK(ls_image_check(&m));
        image_run_open(&r, &m, 1, 0, NULL, &(ls_compile_options){ .plan_only = 1 });
        for (size_t k = 0; k < ls_store_count(r.s); k++) {
            size_t n = 1;

            for (int d = 0; d < ls_store_ndim(r.s, k); d++)
                n *= ls_store_size(r.s, k, d);
            learn += ls_store_is_frozen(r.s, k) ? 0 : n;
        }
        assert_int_equal(learn, ls_image_parameters(&m));
        image_run_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_image_models_are_refused),
        cmocka_unit_test(test_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
