/* test_plan_options.c - layouts written as options: each field by its own, and the suggestions of a plan that does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"
#include "base/threads.h"
#include "helper_check.h"
#include "helper_plan.h"

/* The fields that suggestions change. */
static void check_same_layout(const ls_layout *a, const ls_layout *b)
{
    struct text differ = { 0 };

    OK(config_layout_options(a, b, &differ));
    if (differ.bytes) fail_msg("the options of a suggestion make another layout; missing: %s", differ.data);
    text_free(&differ);
}

/* A change of one field of the layout, and the options that must say it. */
enum { FIELD_INT, FIELD_REAL, FIELD_BYTES, FIELD_TEXT };
#define ONE(field, kind, ...) { #field, offsetof(ls_layout, field), sizeof(((ls_layout *)0)->field), kind, __VA_ARGS__ }
static const struct { const char *field; size_t at, bytes; int kind, value; const char *text, *options; } one_field[] = {
    ONE(dp, FIELD_INT, 3, NULL, "--launch.ranks=3 --parallel.dp=3"),
    ONE(tp, FIELD_INT, 2, NULL, "--launch.ranks=2 --parallel.tp=2"),
    ONE(cp, FIELD_INT, 2, NULL, "--launch.ranks=2 --parallel.cp=2"),
    ONE(pp, FIELD_INT, 2, NULL, "--launch.ranks=2 --parallel.pp=2 --train.accumulate=1"),
    ONE(vpp, FIELD_INT, 2, NULL, "--parallel.vpp=2"),
    ONE(ep, FIELD_INT, 2, NULL, "--parallel.ep=2"),
    ONE(receive_factor, FIELD_REAL, 2, NULL, "--parallel.receive_factor=2"),
    ONE(zero, FIELD_INT, 3, NULL, "--parallel.zero=3"),
    ONE(replicate, FIELD_INT, 2, NULL, "--parallel.replicate=2"),
    ONE(method, FIELD_INT, LS_METHOD_SERVER, NULL, "--parallel.method=server"),
    ONE(async_turns, FIELD_INT, 1, NULL, "--parallel.async_turns=true"),
    ONE(sp, FIELD_INT, 1, NULL, "--parallel.sp=true"),
    ONE(cp_method, FIELD_INT, LS_CP_ALL_TO_ALL, NULL, "--parallel.cp_method=all_to_all"),
    ONE(tp_chunks, FIELD_INT, 4, NULL, "--parallel.tp_chunks=4"),
    ONE(overlap, FIELD_INT, 0, NULL, "--parallel.overlap=false"),
    ONE(fsdp_unit, FIELD_INT, 2, NULL, "--parallel.fsdp_unit=layers:2"),
    ONE(prefetch, FIELD_INT, 3, NULL, "--parallel.prefetch=3"),
    ONE(reshard_after_forward, FIELD_INT, 0, NULL, "--parallel.reshard_after_forward=false"),
    ONE(unsharded_accumulation, FIELD_INT, 1, NULL, "--parallel.unsharded_accumulation=true"),
    ONE(sync_batch_norm, FIELD_INT, 0, NULL, "--parallel.sync_batch_norm=false"),
    ONE(bucket_bytes, FIELD_BYTES, 1 << 20, NULL, "--parallel.bucket=1MiB"),
    ONE(first_bucket_bytes, FIELD_BYTES, 1001, NULL, "--parallel.first_bucket=1001"),
    ONE(schedule, FIELD_TEXT, 0, "zb-h1", "--parallel.schedule=zb-h1"),
    ONE(stages, FIELD_TEXT, 0, "3,2", "--parallel.stages=3,2"),
    ONE(recompute, FIELD_INT, LS_RECOMPUTE_SELECTIVE, NULL, "--recompute.mode=selective"),
    ONE(micro_batch, FIELD_INT, 7, NULL, "--train.micro_batch=7"),
    ONE(micro_batches, FIELD_INT, 5, NULL, "--train.accumulate=5"),
    ONE(seq_len, FIELD_INT, 33, NULL, "--data.seq_len=33"),
    ONE(compute, FIELD_INT, LS_BF16, NULL, "--precision.compute=bf16"),
    ONE(master, FIELD_INT, 0, NULL, "--precision.master=false"),
    ONE(grads, FIELD_INT, LS_BF16, NULL, "--precision.grads=bf16"),
    ONE(reduce, FIELD_INT, LS_BF16, NULL, "--precision.reduce=bf16"),
    ONE(offload, FIELD_INT, LS_OFFLOAD_CPU, NULL, "--optim.offload=cpu"),
    ONE(offload_parameters, FIELD_INT, LS_OFFLOAD_CPU, NULL, "--parallel.offload_parameters=cpu"),
    ONE(optimizer, FIELD_INT, LS_SGD, NULL, "--optim.name=sgd"),
    ONE(in_backward, FIELD_INT, 1, NULL, "--optim.in_backward=true"),
    ONE(offload_path, FIELD_TEXT, 0, "there", "--run.dir=there"),
};

/* `to` is written as these options, and `from` with these options is `to`. */
static void check_written(struct config *c, struct options *o, const ls_layout *from, const ls_layout *to,
                                       const char *expected)
{
    struct text out = { 0 };
    ls_layout made;

    OK(config_layout_options(from, to, &out));
    assert_string_equal(out.data, expected);
    for (char *rest = out.data, *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');

        *value++ = '\0';
        OK(options_set(o, word + 2, value, "test"));
    }
    OK(config_layout(c, &made));
    check_same_layout(&made, to);
    text_free(&out);
}

static void open_layout(struct config *c, struct options *o, ls_layout *l)
{
    OK(options_open(config_table(), c, VERB_TRAIN, o));
    OK(options_set(o, "parallel.dp", "1", "test"));
    OK(options_set(o, "train.micro_batch", "1", "test"));
    OK(options_set(o, "train.accumulate", "1", "test"));
    OK(options_set(o, "data.seq_len", "1", "test"));
    OK(config_layout(c, l));
}

static void each_field_is_written_as_its_option(void **state)
{
    size_t covered = 0;
    int rows = 0;

    (void)state;
    while (config_layout_option(rows)) rows++;
    assert_int_equal(rows, COUNT_OF(one_field));
    for (size_t k = 0; k < COUNT_OF(one_field); k++) {
        struct options options;
        struct config config;
        ls_layout from;

        open_layout(&config, &options, &from);
        ls_layout to = from;
        void *field = (char *)&to + one_field[k].at;
        if (one_field[k].kind == FIELD_INT) memcpy(field, &one_field[k].value, sizeof(int));
        if (one_field[k].kind == FIELD_REAL) *(double *)field = one_field[k].value;
        if (one_field[k].kind == FIELD_BYTES) *(size_t *)field = (size_t)one_field[k].value;
        if (one_field[k].kind == FIELD_TEXT) *(const char **)field = one_field[k].text;
        check_written(&config, &options, &from, &to, one_field[k].options);
        options_close(&options);
        covered += one_field[k].bytes;
    }
    /* recompute.mode says three fields; the struct has no padding */
    covered += sizeof(((ls_layout *)0)->every) + sizeof(((ls_layout *)0)->budget);
    if (covered != sizeof(ls_layout)) fail_msg("the rows cover %zu of the %zu bytes of ls_layout", covered, sizeof(ls_layout));
}

static void recomputation_and_several_fields_are_written(void **state)
{
    static const struct { ls_recompute mode; int every; size_t budget; const char *options; } modes[] = {
        { LS_RECOMPUTE_FULL, 1, 0, "--recompute.mode=full" },
        { LS_RECOMPUTE_EVERY, 3, 0, "--recompute.mode=every:3" },
        { LS_RECOMPUTE_BUDGET, 1, 3 << 20, "--recompute.mode=budget:3MiB" },
    };
    struct options options;
    struct config config;
    struct text none = { 0 };
    ls_layout from, to;

    (void)state;
    for (size_t k = 0; k < COUNT_OF(modes); k++) {
        open_layout(&config, &options, &from);
        to = from;
        to.recompute = modes[k].mode, to.every = modes[k].every, to.budget = modes[k].budget;
        check_written(&config, &options, &from, &to, modes[k].options);
        options_close(&options);
    }
    open_layout(&config, &options, &from);
    to = from;
    to.dp = 2, to.tp = 2, to.zero = 1, to.compute = LS_BF16;
    check_written(&config, &options, &from, &to,
                  "--launch.ranks=4 --parallel.dp=2 --parallel.tp=2 --parallel.zero=1 --precision.compute=bf16");
    OK(config_layout_options(&to, &to, &none));
    assert_int_equal(none.bytes, 0);
    OK(options_set(&options, "precision.compute", "bf16", "test"));
    OK(config_layout(&config, &from));
    to = from;
    to.compute = LS_F32;
    check_written(&config, &options, &from, &to, "--precision.compute=fp32"); /* not auto, which may be bf16 */
    options_close(&options);
}

/* What each says, given as options, is what the plan then comes to. */
static void suggested_options_fit(void **state)
{
    static const struct { const char *layout; double share; } cases[] = {
        { "train.micro_batch=8", 0.6 }, { "train.micro_batch=8 parallel.dp=4", 0.7 }, { "parallel.dp=4 parallel.pp=2", 0.8 },
        { "train.micro_batch=8 parallel.dp=4", 0.25 }, { "train.micro_batch=1", 0.5 }, { "parallel.tp=2 parallel.dp=2", 0.8 },
    };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        struct remedy remedy[REMEDIES];
        struct plan_bytes was, is;
        struct plan_setup s;
        int n;

        plan_setup_open_small(&s, "model.preset=llama-tiny model.layers=4", cases[k].layout);
        OK(plan_of_largest(&s.job, &s.layout, &was, NULL));
        size_t limit = (size_t)((double)was.total * cases[k].share) + was.other;
        OK(plan_remedies(&s.job, &s.layout, limit, remedy, &n));
        int64_t ranks = s.config.launch.ranks;
        if (n == 0) fail_msg("%s: nothing fits", cases[k].layout);
        for (int i = 0; i < n; i++) {
            char layout[REMEDY_ROOM + 200];
            struct plan_setup t;

            snprintf(layout, sizeof layout, "%.199s %.*s", cases[k].layout, REMEDY_ROOM - 1, remedy[i].options);
            plan_setup_open_small(&t, "model.preset=llama-tiny model.layers=4", layout);
            OK(plan_of_largest(&t.job, &t.layout, &is, NULL));
            if (is.total != remedy[i].total || is.total + is.other > limit)
                fail_msg("%s: %zu bytes, not %zu within %zu", layout, is.total, remedy[i].total, limit);
            check_same_layout(&t.layout, &remedy[i].layout);
            assert_int_equal(t.job.step.global, remedy[i].global);
            assert_int_equal(t.config.launch.ranks, ls_layout_ranks(&remedy[i].layout));
            assert_true(t.config.launch.ranks >= ranks);
            options_close(&t.options);
        }
        options_close(&s.options);
    }
}

static void impossible_limit_has_no_suggestion(void **state)
{
    struct remedy remedy[REMEDIES];
    struct plan_setup s;
    int n;

    (void)state;
    plan_setup_open_small(&s, "model.preset=llama-tiny", "parallel.dp=2");
    OK(plan_remedies(&s.job, &s.layout, 1000, remedy, &n));
    assert_int_equal(n, 0);
    options_close(&s.options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_field_is_written_as_its_option),
        cmocka_unit_test(recomputation_and_several_fields_are_written),
        cmocka_unit_test(suggested_options_fit),
        cmocka_unit_test(impossible_limit_has_no_suggestion),
    };
    threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
