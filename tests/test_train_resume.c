/* test_train_resume.c - runs that are stopped, resumed and pruned: bit for bit, with one line of metrics per step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <signal.h>

#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "helper_check.h"
#include "helper_train.h"
#include "train/run/trainer.h"

/* ---- a config of a tiny run ---- */

/* The content hash of a file of the newest checkpoint of a run. */
static void hash_of_file(const char *run, const char *start, char out[33])
{
    char *path = train_path(run), *found;
    ls_checkpoint_info *info;

    OK(ls_checkpoint_resolve(path, &found));
    OK(ls_checkpoint_inspect(found, &info));
    out[0] = '\0';
    for (size_t i = 0; i < info->nfiles; i++)
        if (strncmp(info->files[i].name, start, strlen(start)) == 0) memcpy(out, info->files[i].hash, 33);
    assert_int_equal(strlen(out), 32);
    ls_checkpoint_info_release(&info);
    ls_free(found);
    mem_free(path);
}

static void same_bits(const char *a, const char *b)
{
    static const char *const files[] = { "parameters_", "optimizer_" };
    char left[33], right[33];

    for (size_t i = 0; i < COUNT_OF(files); i++) {
        hash_of_file(a, files[i], left);
        hash_of_file(b, files[i], right);
        assert_string_equal(left, right);
    }
}

/* ---- a run ---- */

static void resumes(const char *prefix, const char *name, const char *value, const char *name2, const char *value2)
{
    char straight[40], parts[40];
    struct train_setup s;

    snprintf(straight, sizeof straight, "%s_straight", prefix);
    snprintf(parts, sizeof parts, "%s_parts", prefix);
    for (int i = 0; i < 3; i++) {
        train_setup_open(&s, i == 0 ? straight : parts);
        train_setup_set(&s, name, value);
        train_setup_set(&s, name2, value2);
        if (i == 1) train_setup_set(&s, "train.steps", "3");
        OK(train_setup_run(&s, NULL, NULL));
        options_close(&s.options);
    }
    same_bits(straight, parts);
}

static void test_resume(void **state)
{
    (void)state;
    resumes("adamw", "optim.name", "adamw", "optim.schedule", "cosine");
    resumes("bf16", "precision.compute", "bf16", "data.tokenizer", "bpe");
    resumes("sgd", "optim.name", "sgd", "model.preset", "gpt2-tiny");
    resumes("dropout", "model.dropout", "0.1", "model.architecture", "gpt2");
}

/* Lines that a stopped run wrote after its checkpoint are removed; so is an incomplete line. */
static void test_metrics_rewind(void **state)
{
    static const char before[] = "{\"step\":1}\n{\"step\":2}\nnoise\n{\"step\":3}\n{\"step\":4,\"lo";
    char *path = train_path("lines.jsonl"), *text;

    (void)state;
    OK(file_write(path, before, sizeof before - 1));
    OK(metrics_rewind(path, 2));
    OK(file_read(path, &text, NULL));
    assert_string_equal(text, "{\"step\":1}\n{\"step\":2}\n");
    mem_free(text);
    mem_free(path);
}

/* ---- signals and failures ---- */

static void raise_at_three(void *ctx, const struct trainer *t, const struct metrics *m)
{
    (void)t;
    if (m->step == 3) raise(*(int *)ctx);
}

static void test_signals(void **state)
{
    struct trainer *t;
    struct train_setup s;

    (void)state;
    train_setup_open(&s, "signal");
    OK(train_setup_run(&s, &(struct trainer_watch){ .ctx = &(int){ SIGTERM }, .stepped = raise_at_three }, &t));
    assert_int_equal(t->stopped_by, SIGTERM);
    assert_int_equal(t->saved_step, 3);
    trainer_close(&t);
    options_close(&s.options);

    train_setup_open(&s, "signal");
    OK(train_setup_run(&s, NULL, &t));
    assert_int_equal(t->first_step, 3);
    assert_int_equal(t->state.step, 6);
    trainer_close(&t);
    options_close(&s.options);

    train_setup_open(&s, "usr1");
    OK(train_setup_run(&s, &(struct trainer_watch){ .ctx = &(int){ SIGUSR1 }, .stepped = raise_at_three }, &t));
    assert_int_equal(t->state.step, 6);
    trainer_close(&t);
    options_close(&s.options);
    char *path = train_path("usr1/checkpoints/step_00000003");
    assert_true(file_is_folder(path));
    mem_free(path);
}

/* Another run's later checkpoints in the same folder do not cause this run's own to be removed. */
static void later_checkpoint(void *ctx, const struct trainer *t, const struct metrics *m)
{
    ls_train_state later = t->state;

    (void)ctx;
    later.step = 100 + m->step;
    if (m->step <= 2) OK(ls_checkpoint_save(t->folder.checkpoints, t->step.store, &t->step.model.transformer, &later, NULL));
}

static void test_prune(void **state)
{
    char *path = train_path("prune/checkpoints/step_00000006"), *dropped = train_path("prune/checkpoints/step_00000004");
    struct train_setup s;

    (void)state;
    train_setup_open(&s, "prune");
    train_setup_set(&s, "checkpoint.every", "2");
    train_setup_set(&s, "checkpoint.keep", "1");
    OK(train_setup_run(&s, &(struct trainer_watch){ .stepped = later_checkpoint }, NULL));
    options_close(&s.options);
    OK(ls_checkpoint_verify(path));
    assert_false(file_exists(dropped));
    mem_free(path);
    mem_free(dropped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_metrics_rewind),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_prune),
    };

    return cmocka_run_group_tests(tests, train_folder_make, train_folder_remove);
}
