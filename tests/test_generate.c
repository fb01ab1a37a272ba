/* test_generate.c - sampling from logits, and text generated with the key-value cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "base/mem.h"
#include "helper_check.h"
#include "helper_train.h"
#include "train/run/generate.h"
#include "train/run/sample.h"
#include "train/run/trainer.h"

/* ---- sampling ---- */

static void test_sampling(void **state)
{
    static const float logits[] = { 1.0f, 3.0f, 2.0f, 3.0f, -1.0f };
    struct candidate scratch[5];
    struct sampling s = { .temperature = 0, .top_p = 1, .seed = 5 };
    double sum = 0, p[5];
    int seen[5] = { 0 };
    enum { DRAWS = 20000 };

    (void)state;
    assert_int_equal(sample_next(logits, 5, &s, 0, scratch), 1);  /* a tie goes to the smaller id */
    s.temperature = 2;
    for (int i = 0; i < DRAWS; i++) seen[sample_next(logits, 5, &s, (uint64_t)i, scratch)]++;
    for (int i = 0; i < 5; i++) sum += p[i] = exp(logits[i] / 2.0);
    for (int i = 0; i < 5; i++) assert_true(fabs(seen[i] / (double)DRAWS - p[i] / sum) < 0.015);
    assert_int_equal(sample_next(logits, 5, &s, 77, scratch), sample_next(logits, 5, &s, 77, scratch));
    s.top_k = 2;
    for (int i = 0; i < 200; i++) assert_true(logits[sample_next(logits, 5, &s, (uint64_t)i, scratch)] == 3.0f);
    s.top_k = 0;
    s.top_p = 0.01;
    for (int i = 0; i < 200; i++) assert_int_equal(sample_next(logits, 5, &s, (uint64_t)i, scratch), 1);
}

/* ---- generating ---- */

struct heard { int32_t ids[64]; int n; };

static ls_status collect_token(void *ctx, int32_t id)
{
    struct heard *h = ctx;

    h->ids[h->n++] = id;
    return LS_OK;
}

/* Greedy text from the cache is what the whole sequence's logits say at each place. */
static void test_generate(void **state)
{
    static const int32_t prompt[] = { 't', 'h', 'e', ' ' };
    struct sampling greedy = { .temperature = 0, .top_p = 1 };
    struct heard h = { .n = 4 };
    struct trained t;
    struct train_setup s;
    char *path = train_path("generate");
    float *logits;

    (void)state;
    train_setup_open(&s, "generate");
    OK(train_setup_run(&s, NULL, NULL));
    options_close(&s.options);
    OK(trained_open(path, "cpu", LS_F32, NULL, &t));
    memcpy(h.ids, prompt, sizeof prompt);
    OK(generate(&t, prompt, 4, 20, &greedy, collect_token, &h));
    logits = mem_array(MEM_OTHER, (size_t)h.n * t.model.vocab, sizeof *logits);
    assert_non_null(logits);
    OK(generate_logits(&t, h.ids, (size_t)h.n, logits));
    for (int i = 4; i < h.n; i++)
        assert_int_equal(sample_next(logits + (size_t)(i - 1) * t.model.vocab, t.model.vocab, &greedy, 0, NULL),
                         h.ids[i]);
    REFUSED(LS_EINVAL, "do not fit into the model's 128 positions", generate(&t, prompt, 4, 1000, &greedy, collect_token, &h));
    mem_free(logits);
    trained_close(&t);
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_generate),
    };

    return cmocka_run_group_tests(tests, train_folder_make, train_folder_remove);
}
