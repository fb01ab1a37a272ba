/* test_train.c - a training run: its folder, metrics, memory and falling loss. */
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
#include "base/crc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "helper_check.h"
#include "helper_train.h"
#include "train/run/trainer.h"

/* ---- TensorBoard ---- */

static uint64_t little(const unsigned char *at, int bytes)
{
    uint64_t value = 0;

    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

/* Reads a file of records; every length and both checksums must be correct. Returns their number. */
static int count_records(const char *path)
{
    char *text;
    size_t bytes, at = 0;
    int records = 0;

    OK(file_read(path, &text, &bytes));
    for (const unsigned char *data = (unsigned char *)text; at < bytes; records++) {
        assert_true(bytes - at >= 16);
        uint64_t length = little(data + at, 8);
        assert_true(length <= bytes - at - 16);
        assert_int_equal(little(data + at + 8, 4), crc32c_masked(data + at, 8));
        assert_int_equal(little(data + at + 12 + length, 4), crc32c_masked(data + at + 12, length));
        at += 16 + length;
    }
    assert_int_equal(at, bytes);
    mem_free(text);
    return records;
}

/* ---- a run ---- */

static void test_metrics_and_folder(void **state)
{
    static const char *const keys[] = { "step",         "loss", "grad_norm", "lr", "tokens", "tokens_per_second",
                                        "step_seconds", "mfu",  "hfu" };
    static const char *const bytes[] = { "parameters",    "gradients", "optimizer", "activations",
                                         "communication", "other",     "peak" };
    struct trainer *t;
    struct train_setup s;
    char *text;
    int lines = 0;

    (void)state;
    train_setup_open(&s, "metrics");
    OK(train_setup_run(&s, NULL, &t));
    char *path = train_path("metrics/metrics.jsonl");
    OK(file_read(path, &text, NULL));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_node *root;

        OK(json_parse(line, strlen(line), "metrics", &root));
        for (size_t i = 0; i < COUNT_OF(keys); i++) assert_true(isfinite(json_real(json_get(root, keys[i]), NAN)));
        for (size_t i = 0; i < COUNT_OF(bytes); i++)
            assert_true(json_int(json_get(json_get(root, "memory"), bytes[i]), -1) >= 0);
        assert_int_equal(json_kind_of(json_get(root, "comm")), JSON_OBJECT);
        assert_int_equal(json_int(json_get(root, "step"), 0), ++lines);
        assert_int_equal(json_int(json_get(root, "tokens"), 0), 2 * 2 * 16);
        assert_int_equal(json_int(json_get(root, "tokens_seen"), 0), lines * 2 * 2 * 16);
        assert_true((json_kind_of(json_get(root, "val_loss")) == JSON_REAL) == (lines % 3 == 0));
        json_close(&root);
    }
    assert_int_equal(lines, 6);
    mem_free(text);
    mem_free(path);
    path = mem_strdup(t->folder.events.path);
    trainer_close(&t);
    options_close(&s.options);
    assert_int_equal(count_records(path), 2 + 6);
    mem_free(path);
}

/* The plan's bytes are the ledger's, in every category, and the steps after the first allocate nothing. */
struct allocations { uint64_t calls[8]; };

static void note_calls(void *ctx, const struct trainer *t, const struct metrics *m)
{
    struct allocations *a = ctx;
    struct mem_stats now;

    (void)t;
    mem_read(&now);
    a->calls[m->step] = now.calls;
}

static void memory_equals_plan(void **state)
{
    static const char *const modes[] = { "none", "selective", "full", "every:1" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        struct allocations a = { { 0 } };
        struct trainer *t;
        struct train_setup s;
        char name[16];

        snprintf(name, sizeof name, "memory%zu", i);
        train_setup_open(&s, name);
        train_setup_set(&s, "recompute.mode", modes[i]);
        train_setup_set(&s, "precision.compute", i % 2 ? "bf16" : "fp32");
        train_setup_set(&s, "train.eval_every", "0");
        OK(train_setup_run(&s, &(struct trainer_watch){ .ctx = &a, .stepped = note_calls }, &t));
        const ls_cost planned = t->planned;
        assert_int_equal(t->most.peak[MEM_PARAMETERS], planned.parameters);
        assert_int_equal(t->most.peak[MEM_GRADIENTS], planned.gradients);
        assert_int_equal(t->most.peak[MEM_OPTIMIZER], planned.optimizer);
        assert_int_equal(t->most.peak[MEM_ACTIVATIONS], planned.activations);
        for (int step = 3; step <= 6; step++) assert_int_equal(a.calls[step], a.calls[2]);
        trainer_close(&t);
        options_close(&s.options);
    }
}

/* Work that is done twice counts only for HFU. */
static void test_recomputed_work(void **state)
{
    struct train_setup s;
    char *path = train_path("twice/metrics.jsonl"), *text;
    int lines = 0;

    (void)state;
    train_setup_open(&s, "twice");
    train_setup_set(&s, "recompute.mode", "full");
    OK(train_setup_run(&s, NULL, NULL));
    OK(file_read(path, &text, NULL));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        json_node *root;

        OK(json_parse(line, strlen(line), "metrics", &root));
        assert_true(json_real(json_get(root, "mfu"), 0) > 0);
        assert_true(json_real(json_get(root, "mfu"), 0) < json_real(json_get(root, "hfu"), 0));
        json_close(&root);
    }
    assert_int_equal(lines, 6);
    mem_free(text);
    mem_free(path);
    options_close(&s.options);
}

static void training_lowers_the_loss(void **state)
{
    struct trainer *t;
    struct train_setup s;

    (void)state;
    train_setup_open(&s, "learns");
    train_setup_set(&s, "train.steps", "60");
    train_setup_set(&s, "train.schedule_steps", "60");
    train_setup_set(&s, "train.eval_every", "0");
    train_setup_set(&s, "optim.lr", "0.01");
    OK(train_setup_run(&s, NULL, &t));
    assert_true(t->val_loss < 3.0); /* it starts at log(257) = 5.55 */
    trainer_close(&t);
    options_close(&s.options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_and_folder),
        cmocka_unit_test(memory_equals_plan),
        cmocka_unit_test(test_recomputed_work),
        cmocka_unit_test(training_lowers_the_loss),
    };

    return cmocka_run_group_tests(tests, train_folder_make, train_folder_remove);
}
