/* test_store_load.c - values that a loader sets are not initialized first: counted in elements, for stores, generation, evaluation and
 * runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/base.h"
#include "base/mem.h"
#include "checkpoint/hf/hf_tensors.h"
#include "helper_check.h"
#include "helper_train.h"
#include "lockstep/checkpoint.h"
#include "lockstep/nn.h"
#include "lockstep/ops.h"
#include "lockstep/program.h"
#include "runtime/store.h"
#include "train/run/evaluate_saved.h"
#include "train/run/generate.h"

/* Elements of the run's model that are not zeros at first: llama-tiny of one layer has no zeros. */
static uint64_t run_model_elements(const struct trainer *t) { return ls_model_parameters(&t->step.model.transformer); }

static void run_trainer(const char *run, const char *option, const char *value, uint64_t *drawn, uint64_t *elements)
{
    uint64_t before = store_drawn();
    struct train_setup s;
    struct trainer *t;

    train_setup_open(&s, run);
    if (option) train_setup_set(&s, option, value);
    OK(train_setup_run(&s, NULL, &t));
    *drawn = store_drawn() - before;
    *elements = run_model_elements(t);
    trainer_close(&t);
    options_close(&s.options);
}

static void check_opened(const char *path, ls_dtype type)
{
    uint64_t before = store_drawn();
    struct trained t;

    OK(trained_open(path, "cpu", type, NULL, &t));
    OK(store_check_loaded(t.store));
    assert_int_equal(store_drawn() - before, 0);
    trained_close(&t);
}

static void check_evaluated(const char *path)
{
    uint64_t before = store_drawn();
    struct train_setup s;
    struct evaluated found;

    train_setup_open(&s, "unused");
    OK(config_check(&s.config, VERB_TRAIN));
    OK(evaluate_saved(&s.config, path, (struct evaluate_watch){ 0 }, &found));
    assert_int_equal(store_drawn() - before, 0);
    options_close(&s.options);
}

/* A new run initializes every element once; a run that starts from its weights initializes none. */
static void loaded_weights_are_not_initialized(void **state)
{
    char *run = train_path("first"), *hf = train_path("first-hf"), *saved;
    uint64_t drawn, elements;

    (void)state;
    run_trainer("first", NULL, NULL, &drawn, &elements);
    assert_int_equal(drawn, elements);
    run_trainer("first", "train.steps", "8", &drawn, &elements); /* resumed */
    assert_int_equal(drawn, 0);
    OK(ls_checkpoint_resolve(run, &saved));
    OK(ls_checkpoint_export(saved, hf, NULL));
    run_trainer("second", "checkpoint.resume", saved, &drawn, &elements);
    assert_int_equal(drawn, 0);
    check_opened(run, LS_F32);
    check_opened(run, LS_BF16);
    check_opened(hf, LS_F32);
    check_evaluated(saved);
    check_evaluated(hf);
    ls_free(saved);
    mem_free(run);
    mem_free(hf);
}

/* ---- a store that waits for its values ---- */

static void small_program(ls_store *s, ls_program **out)
{
    OK(ls_program_new(s, out));
    ls_value w = ls_param(*out, "w", (ls_init){ LS_INIT_NORMAL, 1 }, 1, (size_t[]){ 6 });
    ls_value b = ls_param(*out, "b", (ls_init){ LS_INIT_ONES, 0 }, 1, (size_t[]){ 6 });

    ls_output(*out, "sum", ls_add(*out, w, b));
    OK(ls_program_compile(*out, NULL));
}

static void nothing_runs_before_all_values_are_given(void **state)
{
    static const float values[6] = { 1, 2, 3, 4, 5, 6 };
    uint64_t before = store_drawn();
    float got[6];
    ls_program *p;
    ls_store *s;

    (void)state;
    OK(ls_store_new(NULL, &s));
    ls_store_await_load(s);
    small_program(s, &p);
    REFUSED(LS_EINVAL, "parameter 'w' has no value", ls_program_run(p, LS_FORWARD));
    REFUSED(LS_EINVAL, "parameter 'w' has no value", ls_store_read(s, 0, "parameter", got, LS_F32, 6));
    OK(ls_store_set(s, 0, values, LS_F32, 6));
    REFUSED(LS_EINVAL, "parameter 'b' has no value", ls_program_run(p, LS_FORWARD));
    REFUSED(LS_EINVAL, "parameter 'b' has no value", ls_store_write(s, 1, "parameter", values, LS_F32, 6));
    OK(ls_store_set(s, 1, values, LS_F32, 6));
    OK(ls_program_run(p, LS_FORWARD));
    OK(ls_program_read(p, "sum", got, LS_F32, 6));
    assert_true(got[0] == 2 && got[5] == 12);
    assert_int_equal(store_drawn() - before, 0);
    ls_program_release(&p);
    ls_store_release(&s);
}

static void nothing_is_awaited_by_default(void **state)
{
    uint64_t before = store_drawn();
    ls_program *p;
    ls_store *s;

    (void)state;
    OK(ls_store_new(NULL, &s));
    small_program(s, &p);
    assert_int_equal(store_drawn() - before, 12);
    OK(ls_program_run(p, LS_FORWARD));
    ls_program_release(&p);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loaded_weights_are_not_initialized),
        cmocka_unit_test(nothing_runs_before_all_values_are_given),
        cmocka_unit_test(nothing_is_awaited_by_default),
    };

    return cmocka_run_group_tests(tests, train_folder_make, train_folder_remove);
}
