/* test_task.c - every task's row is complete, presets choose it, and its samples are a function of their number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/base.h"
#include "base/mem.h"
#include "helper_check.h"
#include "train/run/random_tokens.h"

struct setup { struct options options; struct config config; };

static void open_setup(struct setup *s, const char *preset)
{
    static const char *const set[][2] = {
        { "train.global_batch", "5" }, { "train.accumulate", "3" }, { "precision.compute", "fp32" },
    };

    OK(options_open(config_table(), &s->config, VERB_PARITY, &s->options));
    OK(options_set(&s->options, "model.preset", preset, "test"));
    for (size_t i = 0; i < COUNT_OF(set); i++) OK(options_set(&s->options, set[i][0], set[i][1], "test"));
    OK(config_check(&s->config, VERB_PARITY));
}

static void rows_are_complete(void **state)
{
    const struct task *t, *other;

    (void)state;
    for (int i = 0; (t = task_at(i)); i++) {
        assert_true(t->name[0] && t->unit[0] && t->units[0] && t->unit_short[0] && t->values[0]);
        assert_non_null(t->idle);
        assert_true(t->preset && t->list_presets && t->model && t->saved_model && t->parameters && t->describe && t->chain);
        assert_true(t->loss && t->feed && t->sample_values && t->flops && t->draw);
        assert_true(t->open_data && t->open_samples && t->get_sample && t->open_saved && t->evaluated);
        assert_non_null(t->preset(0));
        for (int k = 0; k < i && (other = task_at(k)); k++) {
            assert_string_not_equal(t->name, other->name);
            assert_string_not_equal(t->units, other->units);
        }
    }
    assert_non_null(task_at(1));
}

static void presets_choose_the_task(void **state)
{
    const struct task *t;
    int all = 0;

    (void)state;
    for (int i = 0; (t = task_at(i)); i++)
        for (int k = 0; t->preset(k); k++, all++) {
            struct setup s;
            struct task_model m;
            char what[TASK_TEXT];

            open_setup(&s, t->preset(k));
            assert_ptr_equal(task_of(&s.config), t);
            assert_string_equal(task_preset(all), t->preset(k));
            OK(task_model_of(&s.config, 0, &m));
            assert_ptr_equal(m.task, t);
            assert_true(t->parameters(&m) > 0);
            t->describe(&m, true, what);
            assert_true(what[0]);
            options_close(&s.options);
        }
    assert_null(task_preset(all));
}

/* A Hugging Face folder determines its model. */
static void folders_have_the_first_task(void **state)
{
    const struct task *last = NULL;
    struct setup s;

    (void)state;
    for (int i = 0; task_at(i); i++) last = task_at(i);
    open_setup(&s, last->preset(0));
    assert_ptr_equal(task_of(&s.config), last);
    OK(options_set(&s.options, "model.hf", "folder", "test"));
    assert_ptr_equal(task_of(&s.config), task_at(0));
    options_close(&s.options);
}

static void idle_options_exist(void **state)
{
    const struct option_table *table = config_table();
    const struct task *t;

    (void)state;
    for (int i = 0; (t = task_at(i)); i++)
        for (const struct task_idle *idle = t->idle; idle->name; idle++) {
            size_t length = strlen(idle->name), found = 0;

            if (idle->name[length - 1] == '*') length--;
            for (size_t k = 0; k < table->count; k++)
                found += strncmp(table->rows[k].name, idle->name, length) == 0 && (idle->name[length] || !table->rows[k].name[length]);
            if (!found) fail_msg("%s: no option %s", t->name, idle->name);
        }
}

/* The step that begins at sample 2 has, two rows earlier, what the step that begins at sample 0 has. */
static void draws_depend_on_the_sample(void **state)
{
    enum { SHIFT = 2 };
    struct ranks alone = RANKS_ALONE;
    const struct task *t;

    (void)state;
    for (int i = 0; (t = task_at(i)); i++) {
        const char *preset = NULL;
        struct task_model m;
        struct setup c;
        struct step s;

        for (int k = 0; t->preset(k) && !preset; k++)
            if (strstr(t->preset(k), "-tiny")) preset = t->preset(k);
        assert_non_null(preset);
        open_setup(&c, preset);
        OK(task_model_of(&c.config, 0, &m));
        OK(step_open_config(&c.config, &m, &alone, STEP_INITIALIZED, &s));
        size_t rows = s.accumulate * s.batch, row = s.feed.values * TASK_VALUE_BYTES, targets = s.seq_len * sizeof *s.targets;
        char *inputs = mem_alloc(MEM_OTHER, rows * row), *then = mem_alloc(MEM_OTHER, rows * targets);

        assert_non_null(inputs);
        assert_non_null(then);
        t->draw(&s, 0);
        memcpy(inputs, s.inputs, rows * row);
        memcpy(then, s.targets, rows * targets);
        t->draw(&s, SHIFT);
        assert_memory_equal(s.inputs, inputs + SHIFT * row, (rows - SHIFT) * row);
        assert_memory_equal(s.targets, then + SHIFT * targets, (rows - SHIFT) * targets);
        assert_memory_not_equal(s.inputs, inputs, row);
        random_tokens(&s, 0, 0);  /* rows beyond the step's samples do not count */
        for (size_t k = 0; k < rows * s.seq_len; k++) assert_int_equal(s.targets[k] < 0, k >= s.global * s.seq_len);
        mem_free(inputs);
        mem_free(then);
        step_close(&s);
        options_close(&c.options);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_complete), cmocka_unit_test(presets_choose_the_task), cmocka_unit_test(folders_have_the_first_task),
        cmocka_unit_test(idle_options_exist), cmocka_unit_test(draws_depend_on_the_sample),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
