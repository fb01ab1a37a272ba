/* test_train_options.c - rules between options of a training run: batch sizes, warmup, options without effect. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "helper_check.h"
#include "helper_train.h"
#include "train/run/trainer.h"

static void check_batch(const char *global, const char *micro, const char *accumulate, int64_t g, int64_t m, int64_t a)
{
    struct train_setup s;

    train_setup_open(&s, "none");
    train_setup_set(&s, "train.global_batch", global);
    train_setup_set(&s, "train.micro_batch", micro);
    train_setup_set(&s, "train.accumulate", accumulate);
    if (g == 0) {
        REFUSED(LS_EINVAL, "train.global_batch = train.micro_batch * train.accumulate * parallel.dp does not hold",
                config_check(&s.config, VERB_TRAIN));
    } else {
        OK(config_check(&s.config, VERB_TRAIN));
        assert_int_equal(s.config.train.global_batch, g);
        assert_int_equal(s.config.train.micro_batch, m);
        assert_int_equal(s.config.train.accumulate, a);
    }
    options_close(&s.options);
}

static void test_batch_sizes(void **state)
{
    (void)state;
    check_batch("-1", "4", "-1", 4, 4, 1);
    check_batch("32", "4", "-1", 32, 4, 8);
    check_batch("32", "-1", "8", 32, 4, 8);
    check_batch("32", "-1", "-1", 32, 8, 4);
    check_batch("3", "-1", "-1", 3, 3, 1);
    check_batch("-1", "-1", "-1", 8, 8, 1);
    check_batch("-1", "4", "8", 32, 4, 8);
    check_batch("32", "4", "8", 32, 4, 8);
    check_batch("33", "4", "-1", 33, 4, 9);
    check_batch("33", "4", "9", 33, 4, 9);
    check_batch("33", "4", "10", 0, 0, 0);
    check_batch("32", "4", "4", 0, 0, 0);
    check_batch("-1", "-1", "4", 32, 8, 4);
}

static void test_batch_sizes_of_nothing(void **state)
{
    static const char *const names[] = { "train.global_batch", "train.micro_batch", "train.accumulate" };
    struct train_setup s;

    (void)state;
    train_setup_open(&s, "none");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char expected[80];

        snprintf(expected, sizeof expected, "%s: 0 is out of range: -1, or at least 1", names[i]);
        REFUSED(LS_EINVAL, expected, options_set(&s.options, names[i], "0", "test"));
    }
    options_close(&s.options);
}

static void test_batch_sizes_that_are_too_large(void **state)
{
    static const struct { const char *micro, *accumulate, *words; } cases[] = {
        { "1000000000000", "-1", "train.micro_batch=1000000000000 is out of range: at most 2147483647" },
        { "1", "2147483648", "train.accumulate=2147483648 is out of range: at most 2147483647" },
        { "2147483647", "2147483647", "the product is too large" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct train_setup s;

        train_setup_open(&s, "none");
        train_setup_set(&s, "launch.ranks", "4");
        train_setup_set(&s, "train.micro_batch", cases[i].micro);
        train_setup_set(&s, "train.accumulate", cases[i].accumulate);
        REFUSED(LS_EINVAL, cases[i].words, config_check(&s.config, VERB_TRAIN));
        options_close(&s.options);
    }
}

static void option_refused(const char *name, const char *value, const char *with, const char *its, const char *words)
{
    struct train_setup s;

    train_setup_open(&s, "none");
    train_setup_set(&s, with, its);
    train_setup_set(&s, name, value);
    REFUSED(LS_EINVAL, words, config_check(&s.config, VERB_TRAIN));
    options_close(&s.options);
}

static void test_warmup(void **state)
{
    static const struct { const char *steps; int64_t warmup; } cases[] = {
        { "1", 0 }, { "9", 4 }, { "99", 49 }, { "900", 50 },
    };
    struct train_setup s;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        train_setup_open(&s, "none");
        train_setup_set(&s, "optim.warmup", "-1");
        train_setup_set(&s, "train.schedule_steps", cases[i].steps);
        OK(config_check(&s.config, VERB_TRAIN));
        assert_int_equal(s.config.optim.warmup, cases[i].warmup);
        options_close(&s.options);
    }
}

static void test_options_without_effect(void **state)
{
    (void)state;
    option_refused("optim.momentum", "0.5", "optim.name", "adamw", "optim.momentum does nothing here");
    option_refused("optim.beta2", "0.5", "optim.name", "sgd", "optim.beta2 does nothing here");
    option_refused("optim.decay", "2", "optim.schedule", "cosine", "optim.decay does nothing here");
    option_refused("optim.warmup", "7", "train.schedule_steps", "6", "optim.warmup=7 is longer than the schedule of 6 steps");
    option_refused("data.vocab_size", "500", "data.tokenizer", "bytes", "data.vocab_size does nothing here");
    option_refused("train.eval_every", "2", "data.val_fraction", "0", "train.eval_every does nothing here");
    option_refused("recompute.mode", "every:0", "optim.name", "adamw", "every:K");
    option_refused("recompute.mode", "sometimes", "optim.name", "adamw", "'sometimes' is not a mode");
    option_refused("optim.min_lr", "1", "optim.lr", "0.1", "optim.min_lr=1 is greater than optim.lr=0.1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_sizes), cmocka_unit_test(test_batch_sizes_of_nothing),
        cmocka_unit_test(test_batch_sizes_that_are_too_large),
        cmocka_unit_test(test_options_without_effect),
        cmocka_unit_test(test_warmup),
    };

    return cmocka_run_group_tests(tests, train_folder_make, train_folder_remove);
}
