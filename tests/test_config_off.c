/* test_config_off.c - an option that is set to its `off` value is accepted wherever it may be left unset. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "train/config/config.h"
#include "comm/comm.h"

/* Options under which the features that other options need are off: words "section.key=value". */
static const char *const contexts[] = {
    "", "model.preset=resnet-tiny", "model.preset=gpt2-tiny", "model.preset=mixtral-tiny", "data.val_fraction=0", "optim.name=sgd",
    "optim.name=lars",
    "optim.schedule=constant", "precision.compute=fp32", "data.text=", "parallel.dp=2 parallel.zero=3", "parallel.dp=2", "parallel.tp=2",
};

static const char *const verbs[] = { "train", "plan", "bench train", "generate", "data", "parity", "eval", "bench comm", "bench gemm" };

static void option_set(struct options *o, const char *name, const char *value)
{
    const struct option *row = options_find(config_table(), name);

    if (!(row->verbs & o->verb)) return;
    if (options_set(o, name, value, "command line") != LS_OK) fail_msg("%s", ls_errmsg());
}

static void set_context(struct options *o, const char *words)
{
    char copy[128], *rest = copy;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');

        *equals = '\0';
        option_set(o, word, equals + 1);
    }
}

/* Status of the checks with one further option; name NULL: none. */
static ls_status check_with(unsigned verb, const char *context, const char *name, const char *value)
{
    struct world world = { .rank = 0, .size = 1, .local_size = 1, .launcher = LAUNCHER_NONE };
    struct options o;
    struct config c;

    assert_int_equal(options_open(config_table(), &c, verb, &o), LS_OK);
    option_set(&o, "data.text", "text.txt");
    if (!strstr(context, "resnet")) option_set(&o, "data.seq_len", "16");
    set_context(&o, context);
    if (name) option_set(&o, name, value);
    if (strstr(context, "=2") && c.launch.ranks == 0) c.launch.ranks = 2;
    ls_status st = config_ranks(&c, verb, &world);
    if (st == LS_OK) st = config_check(&c, verb);
    options_close(&o);
    return st;
}

static void off_value_is_accepted_where_unset_is(void **state)
{
    const struct option_table *t = config_table();
    int checked = 0;

    (void)state;
    for (size_t v = 0; v < COUNT_OF(verbs); v++)
        for (size_t k = 0; k < COUNT_OF(contexts); k++) {
            ls_status unset = check_with(1u << v, contexts[k], NULL, NULL);

            if (1u << v == VERB_TRAIN && unset != LS_OK) fail_msg("%s: %s", contexts[k], ls_errmsg());

            for (size_t i = 0; i < t->count && unset == LS_OK; i++) {
                const struct option *row = &t->rows[i];

                if (!row->off || !(row->verbs >> v & 1) || strstr(contexts[k], row->name)) continue;
                if (check_with(1u << v, contexts[k], row->name, row->off) != LS_OK)
                    fail_msg("%s, %s: --%s=%s: %s", verbs[v], contexts[k], row->name, row->off, ls_errmsg());
                checked++;
            }
        }
    assert_true(checked > 500);
}

/* Off is false, except for resharding, where true means that nothing is kept. */
static void every_switch_declares_its_off_value(void **state)
{
    const struct option_table *t = config_table();

    (void)state;
    for (size_t i = 0; i < t->count; i++)
        if (t->rows[i].kind == OPTION_KIND_BOOL) {
            assert_non_null(t->rows[i].off);
            assert_string_equal(t->rows[i].off, strcmp(t->rows[i].name, "parallel.reshard_after_forward") == 0 ? "true" : "false");
        }
}

/* Also a value that names what happens anyway. */
static void what_happens_anyway_may_be_named(void **state)
{
    (void)state;
    assert_int_equal(check_with(VERB_TRAIN, "", "launch.comm", "host"), LS_OK);
    assert_int_equal(check_with(VERB_TRAIN, "", "launch.comm", "nccl"), LS_EINVAL);
}

/* Options that request an absent feature are still refused. */
static void other_values_are_refused(void **state)
{
    static const char *const asked[][3] = {
        { "data.val_fraction=0", "train.eval_every", "5" }, { "", "optim.momentum", "0.5" },
        { "", "parallel.reshard_after_forward", "false" },
        { "model.preset=resnet-tiny", "data.val_fraction", "0.1" }, { "", "model.aux_loss", "0.1" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(asked); i++) {
        assert_int_equal(check_with(VERB_TRAIN, asked[i][0], NULL, NULL), LS_OK);
        assert_int_equal(check_with(VERB_TRAIN, asked[i][0], asked[i][1], asked[i][2]), LS_EINVAL);
        assert_non_null(strstr(ls_errmsg(), "does nothing here"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_value_is_accepted_where_unset_is),
        cmocka_unit_test(every_switch_declares_its_off_value),
        cmocka_unit_test(what_happens_anyway_may_be_named),
        cmocka_unit_test(other_values_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
