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
#include "helper_hf.h"
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

/* Greedy text from the cache follows the logits of the whole sequence at each position. */
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

/* ---- several texts at once ---- */

enum { TEXTS = 16, LONGEST = 7 };

static ls_status collect_text(void *ctx, size_t prompt, int32_t id) { return collect_token((struct heard *)ctx + prompt, id); }

/* Prompts of 1 to LONGEST tokens that ask for 1 to 9 more, so that the texts end one after another. */
static void make_prompts(const struct trained *t, int32_t ids[TEXTS][LONGEST], struct generate_prompt out[TEXTS])
{
    for (size_t i = 0; i < TEXTS; i++) {
        out[i] = (struct generate_prompt){ ids[i], 1 + i * 3 % LONGEST, 1 + i * 5 % 9, i };
        for (size_t k = 0; k < out[i].n; k++) ids[i][k] = (int32_t)((7 * i * i + 13 * k + 3) % t->model.vocab);
    }
}

static void check_alone(const struct trained *t, size_t texts, const struct sampling *s, const char *what)
{
    static struct heard together[TEXTS], alone;
    int32_t ids[TEXTS][LONGEST];
    struct generate_prompt prompts[TEXTS];

    make_prompts(t, ids, prompts);
    memset(together, 0, sizeof together);
    OK(generate_batch(t, texts, prompts, s, collect_text, together));
    for (size_t i = 0; i < texts; i++) {
        struct sampling own = *s;

        own.prompt = prompts[i].number;
        memset(&alone, 0, sizeof alone);
        OK(generate(t, prompts[i].ids, prompts[i].n, prompts[i].count, &own, collect_token, &alone));
        assert_int_equal(alone.n, prompts[i].count);
        if (memcmp(&together[i], &alone, sizeof alone) != 0)
            fail_msg("%s: %zu texts: text %zu differs from what is generated for it alone", what, texts, i);
    }
}

static void texts_at_once_are_those_alone(void **state)
{
    static const char *const models[] = { "gpt2", "llama", "llama_scaled", "mixtral", "qwen3_moe", "qwen3", "starcoder2" };
    static const struct sampling how[] = { { .temperature = 0, .top_p = 1 }, { .temperature = 1.5, .top_p = 0.99, .seed = 4 } };

    (void)state;
    for (size_t m = 0; m < COUNT_OF(models); m++)
        for (size_t k = 0; k < 2; k++) {
            struct trained t;

            OK(trained_open(hf_golden_path(models[m]), "cpu", k ? LS_BF16 : LS_F32, NULL, &t));
            check_alone(&t, TEXTS, &how[k], models[m]);
            check_alone(&t, 3, &how[1 - k], models[m]);
            trained_close(&t);
        }
}

/* Two prompts with the same ids get different random numbers; the first those of a single prompt. */
static void prompts_have_their_own_random_numbers(void **state)
{
    static const struct sampling s = { .temperature = 5, .top_p = 1, .seed = 2 };
    static struct heard together[2], alone;
    static const int32_t ids[] = { 3 };
    struct generate_prompt prompts[] = { { ids, 1, 9, 0 }, { ids, 1, 9, 1 } };
    struct trained t;

    (void)state;
    OK(trained_open(hf_golden_path("llama"), "cpu", LS_F32, NULL, &t));
    OK(generate_batch(&t, 2, prompts, &s, collect_text, together));
    OK(generate(&t, ids, 1, 9, &s, collect_token, &alone));
    assert_memory_equal(&together[0], &alone, sizeof alone);
    assert_true(memcmp(together[0].ids, together[1].ids, sizeof together[0].ids) != 0);
    prompts[1].count = 1000;
    REFUSED(LS_EINVAL, "do not fit into the model's", generate_batch(&t, 2, prompts, &s, collect_text, together));
    trained_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_generate),
        cmocka_unit_test(texts_at_once_are_those_alone),
        cmocka_unit_test(prompts_have_their_own_random_numbers),
    };

    return cmocka_run_group_tests(tests, train_folder_make, train_folder_remove);
}
