/* test_plan.c - plans of ranks that do not exist here: the largest rank is found, and the suggestions fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "helper_check.h"
#include "train/plan/plan.h"

struct setup { struct config config; struct options options; struct task_model model; struct plan_job job; ls_layout layout; };

/* options: "name=value name=value". */
static void apply(struct setup *s, const char *words)
{
    char text[REMEDY_ROOM + 200], *word, *rest = text;

    snprintf(text, sizeof text, "%s", words);
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');

        if (!*word) continue;
        assert_non_null(value);
        *value++ = '\0';
        OK(options_set(&s->options, strncmp(word, "--", 2) == 0 ? word + 2 : word, value, "test"));
    }
}

static ls_status try_setup(struct setup *s, const char *model, const char *layout)
{
    struct world world = { .size = 1, .local_size = 1 };

    OK(options_open(config_table(), &s->config, VERB_PLAN, &s->options));
    apply(s, "precision.compute=fp32 data.seq_len=32 train.micro_batch=2");
    apply(s, model);
    apply(s, layout);
    LS_TRY(config_ranks(&s->config, VERB_PLAN, &world));
    LS_TRY(config_check(&s->config, VERB_PLAN));
    LS_TRY(config_check_fit(&s->config));
    LS_TRY(task_model_of(&s->config, 0, &s->model));
    return plan_of_config(&s->config, &s->model, &s->job, &s->layout);
}

static void open_setup(struct setup *s, const char *model, const char *layout) { OK(try_setup(s, model, layout)); }

/* Sizes that are not divisible, so that shares are uneven. */
static const char *const models[] = {
    "model.preset=llama-tiny model.layers=5 model.width=60 model.heads=5 model.kv_heads=5 model.ffn=101 model.vocab=257",
    "model.preset=gpt2-tiny model.layers=5 model.vocab=263",
    "model.preset=mixtral-tiny model.layers=5 model.experts=5 model.vocab=251",
    "model.preset=qwen3-tiny model.layers=5 model.width=60 model.heads=5 model.kv_heads=5 model.head_size=6 model.ffn=101 model.vocab=257",
};

static const struct { const char *layout; bool experts; } layouts[] = {
    { "parallel.dp=3", false },
    { "parallel.dp=5 parallel.zero=1", false },
    { "parallel.dp=7 parallel.zero=2 train.accumulate=2", false },
    { "parallel.dp=5 parallel.zero=3", false },
    { "parallel.dp=6 parallel.zero=3 parallel.replicate=2", false },
    { "parallel.tp=2", false },
    { "parallel.tp=3 parallel.dp=2 parallel.zero=1", false },
    { "parallel.tp=2 parallel.sp=true parallel.dp=3 parallel.zero=3", false },
    { "parallel.tp=3 parallel.sp=true data.seq_len=31", false },
    { "parallel.cp=2 data.seq_len=29", false },
    { "parallel.cp=3 parallel.dp=2 parallel.zero=2 data.seq_len=31", false },
    { "parallel.cp=2 parallel.cp_method=all_to_all data.seq_len=31", false },
    { "parallel.cp=4 data.seq_len=27", false },
    { "parallel.cp=3 parallel.tp=2 parallel.zero=3 data.seq_len=29", false },
    { "parallel.pp=2 parallel.dp=2 parallel.zero=1", false },
    { "parallel.pp=3", false },
    { "parallel.pp=3 parallel.tp=2 parallel.schedule=gpipe", false },
    { "parallel.pp=2 parallel.vpp=2 train.accumulate=4", false },
    { "parallel.pp=2 parallel.schedule=zb-h1", false },
    { "parallel.pp=2 parallel.cp=2 parallel.tp=2 data.seq_len=31", false },
    { "parallel.ep=2 parallel.dp=2", true },
    { "parallel.ep=2 parallel.dp=4 parallel.zero=3", true },
    { "parallel.ep=3 parallel.dp=3 parallel.zero=1", true },
    { "parallel.ep=2 parallel.dp=2 parallel.tp=2 parallel.sp=true", true },
    { "parallel.ep=2 parallel.cp=2 parallel.pp=2 data.seq_len=31", true },
    { "recompute.mode=full parallel.pp=2 parallel.dp=3 parallel.zero=2", false },
};

/* All ranks one by one; true when some differ. */
static bool compare_with_all(const struct setup *s, const char *what)
{
    struct plan_bytes found, one, most = { .total = 0 };
    size_t least = SIZE_MAX, state = 0;
    double bound = plan_least_state(&s->job, &s->layout);

    OK(plan_of_places(&s->job, &s->layout, &found, NULL));
    for (int r = 0; r < s->config.launch.ranks; r++) {
        OK(plan_of_rank(&s->job, &s->layout, r, &one));
        assert_int_equal(one.rank, r);
        if (one.total > most.total) most = one;
        least = MIN(least, one.total);
        state = MAX(state, one.cost.parameters + one.cost.optimizer);
    }
    if (bound > (double)state || bound < (double)state / 4)
        fail_msg("%s: at most %zu bytes of parameters and optimizer state on a rank, but the bound is %.0f", what, state, bound);
    if (found.total != most.total)
        fail_msg("%s: rank %d with %zu bytes is said to be the largest, rank %d has %zu", what, found.rank, found.total, most.rank,
                 most.total);
    OK(plan_of_rank(&s->job, &s->layout, found.rank, &one));
    assert_int_equal(one.total, found.total);
    return least < most.total;
}

static void largest_rank_is_found(void **state)
{
    int meshes = 0, distribution = 0;

    (void)state;
    for (size_t k = 0; k < COUNT_OF(layouts); k++)
        for (size_t i = 0; i < COUNT_OF(models); i++) {
            struct setup s;

            if (layouts[k].experts != (i == 2) && !(i == 2 && k < 8)) continue;
            open_setup(&s, models[i], layouts[k].layout);
            distribution += compare_with_all(&s, layouts[k].layout);
            meshes++;
            options_close(&s.options);
        }
    assert_true(meshes >= 50);
    assert_true(distribution >= 30);  /* in most of them ranks differ */
}

/* Middle stages with the same number of blocks are planned once, unless one has more in flight or recomputes other blocks. */
static void stages_that_are_alike_are_planned_once(void **state)
{
    static const struct {
        const char *layout;
        int most; /* stages that may be compiled */
    } alike[] = {
        { "parallel.pp=6", 3 },
        { "parallel.pp=6 parallel.schedule=gpipe parallel.dp=2 parallel.zero=1", 3 },
        { "parallel.pp=6 parallel.schedule=zb-h1", 3 },
        { "parallel.pp=6 parallel.schedule=zb-v", 6 },
        { "parallel.pp=3 parallel.vpp=4 train.accumulate=6", 3 },
        { "parallel.pp=6 parallel.stages=1,3,2,3,2,1 parallel.tp=2", 4 },
        { "parallel.pp=6 recompute.mode=full", 3 },
        { "parallel.pp=6 recompute.mode=every:3", 6 },
        { "parallel.pp=6 parallel.dp=2 parallel.zero=3 parallel.fsdp_unit=layers:2", 6 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(alike); i++) {
        struct plan_bytes found;
        struct setup s;
        int compiled;

        open_setup(&s, "model.preset=llama-tiny model.layers=12", alike[i].layout);
        compare_with_all(&s, alike[i].layout);
        OK(plan_of_places(&s.job, &s.layout, &found, &compiled));
        int places = (s.layout.dp > 1 ? 2 : 1) * (s.layout.tp > 1 ? 2 : 1), more = 3 * (s.layout.dp > 1);
        if (compiled > alike[i].most * places + more) fail_msg("%s: %d ranks are compiled", alike[i].layout, compiled);
        if (alike[i].most == s.layout.pp && compiled < s.layout.pp) fail_msg("%s: only %d ranks are compiled", alike[i].layout, compiled);
        options_close(&s.options);
    }
}

/* 20 random layouts that are possible; under LOCKSTEP_MATRIX=full 1,000. */
static void largest_rank_of_random_layouts_is_found(void **state)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX");
    int want = matrix && strcmp(matrix, "full") == 0 ? 1000 : 20, seen = 0;
    unsigned seed = 7;

    (void)state;
    for (int tries = 0; seen < want && tries < 20 * want; tries++) {
        static const char *const modes[] = { "none", "selective", "full" }, *const flags[] = { "false", "true" };
        static const char *const schedules[] = { "auto", "gpipe", "zb-h1" };
        char layout[500];
        struct setup s;
        int r[12];

        for (size_t i = 0; i < COUNT_OF(r); i++) {
            seed = seed * 1664525u + 1013904223u;
            r[i] = (int)(seed >> 16 & 0x7fff);
        }
        int pp = 1 + r[0] % 3, dp = 1 + r[1] % 5, cp = 1 + r[2] % 4, tp = 1 + r[3] % 3;
        int at = snprintf(layout, sizeof layout,
                          "parallel.pp=%d parallel.dp=%d parallel.cp=%d parallel.tp=%d data.seq_len=%d train.micro_batch=%d "
                          "recompute.mode=%s", pp, dp, cp, tp, 23 + r[4] % 17, 1 + r[5] % 3, modes[r[6] % 3]);
        if (dp * cp > 1) at += snprintf(layout + at, sizeof layout - (size_t)at, " parallel.zero=%d", r[7] % 4);
        if (tp > 1) at += snprintf(layout + at, sizeof layout - (size_t)at, " parallel.sp=%s", flags[r[8] % 2]);
        if (pp > 1) at += snprintf(layout + at, sizeof layout - (size_t)at, " parallel.schedule=%s", schedules[r[9] % 3]);
        if (cp > 1 && r[10] % 2) snprintf(layout + at, sizeof layout - (size_t)at, " parallel.cp_method=all_to_all");
        if (try_setup(&s, models[r[11] % COUNT_OF(models)], layout) == LS_OK) {
            compare_with_all(&s, layout);
            seen++;
        }
        options_close(&s.options);
    }
    assert_int_equal(seen, want);
}

static void largest_of_many_ranks_takes_few_plans(void **state)
{
    struct plan_bytes found;
    struct setup s;
    int compiled;

    (void)state;
    open_setup(&s, "model.preset=llama-tiny model.layers=8 model.heads=8 model.kv_heads=8",
               "parallel.pp=8 parallel.dp=16 parallel.tp=8 parallel.zero=1");
    assert_int_equal(s.config.launch.ranks, 1024);
    OK(plan_of_largest(&s.job, &s.layout, &found, &compiled));
    assert_in_range(compiled, 3, 3 * 2 * 2); /* the first stage, one for the six in the middle, and the last */
    options_close(&s.options);
}

/* The fields that suggestions change. */
static void check_same_layout(const ls_layout *a, const ls_layout *b)
{
    struct text differ = { 0 };

    OK(config_layout_options(a, b, &differ));
    if (differ.bytes) fail_msg("the options of a suggestion make another layout; missing: %s", differ.data);
    text_free(&differ);
}

/* A change of one field of the layout, and the options that must express it. */
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
    ONE(offload_path, FIELD_TEXT, 0, "there", "--run.dir=there"),
};

/* `to` is written as these options, and `from` with these options is `to`. */
static void check_options(struct config *c, struct options *o, const ls_layout *from, const ls_layout *to, const char *expected)
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
        ls_layout from, to;

        open_layout(&config, &options, &from);
        to = from;
        void *field = (char *)&to + one_field[k].at;
        if (one_field[k].kind == FIELD_INT) memcpy(field, &one_field[k].value, sizeof(int));
        if (one_field[k].kind == FIELD_REAL) *(double *)field = one_field[k].value;
        if (one_field[k].kind == FIELD_BYTES) *(size_t *)field = (size_t)one_field[k].value;
        if (one_field[k].kind == FIELD_TEXT) *(const char **)field = one_field[k].text;
        check_options(&config, &options, &from, &to, one_field[k].options);
        options_close(&options);
        covered += one_field[k].bytes;
    }
    /* recompute.mode sets three fields; the struct has no padding */
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
        check_options(&config, &options, &from, &to, modes[k].options);
        options_close(&options);
    }
    open_layout(&config, &options, &from);
    to = from;
    to.dp = 2, to.tp = 2, to.zero = 1, to.compute = LS_BF16;
    check_options(&config, &options, &from, &to,
                  "--launch.ranks=4 --parallel.dp=2 --parallel.tp=2 --parallel.zero=1 --precision.compute=bf16");
    OK(config_layout_options(&to, &to, &none));
    assert_int_equal(none.bytes, 0);
    OK(options_set(&options, "precision.compute", "bf16", "test"));
    OK(config_layout(&config, &from));
    to = from;
    to.compute = LS_F32;
    check_options(&config, &options, &from, &to, "--precision.compute=fp32"); /* not auto, which may be bf16 */
    options_close(&options);
}

/* A layout that was built field by field has the plan of the equivalent options. */
static void plan_of_a_layout_needs_no_config(void **state)
{
    struct plan_bytes from_options, from_layout;
    ls_layout l = ls_layout_default();
    struct plan_job job = { .evaluates = true };
    struct setup s;

    (void)state;
    open_setup(&s, models[0], "parallel.pp=2 parallel.dp=4 parallel.zero=1 parallel.tp=2 parallel.sp=true recompute.mode=full "
                              "train.accumulate=4 optim.name=sgd");
    l.pp = 2, l.dp = 4, l.zero = 1, l.tp = 2, l.sp = 1, l.recompute = LS_RECOMPUTE_FULL;
    l.micro_batch = 2, l.micro_batches = 4, l.seq_len = 32, l.offload_path = ".";
    job.model = &s.model;
    job.step = (struct step_options){ .optimizer = s.job.step.optimizer, .device = "cpu", .seed = 1, .global = 32 };
    OK(plan_of_largest(&s.job, &s.layout, &from_options, NULL));
    OK(plan_of_largest(&job, &l, &from_layout, NULL));
    assert_int_equal(from_layout.rank, from_options.rank);
    assert_int_equal(from_layout.total, from_options.total);
    assert_int_equal(from_layout.other, from_options.other);
    l.recompute = LS_RECOMPUTE_NONE;
    OK(plan_of_largest(&job, &l, &from_layout, NULL));
    assert_true(from_layout.total > from_options.total);
    options_close(&s.options);
}

/* The bytes of each suggestion are those of a plan with its options. */
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
        struct setup s;
        int n;

        open_setup(&s, "model.preset=llama-tiny model.layers=4", cases[k].layout);
        OK(plan_of_largest(&s.job, &s.layout, &was, NULL));
        size_t limit = (size_t)((double)was.total * cases[k].share) + was.other;
        OK(plan_remedies(&s.job, &s.layout, limit, remedy, &n));
        int64_t ranks = s.config.launch.ranks;
        if (n == 0) fail_msg("%s: nothing fits", cases[k].layout);
        for (int i = 0; i < n; i++) {
            char layout[REMEDY_ROOM + 200];
            struct setup t;

            snprintf(layout, sizeof layout, "%.199s %.*s", cases[k].layout, REMEDY_ROOM - 1, remedy[i].options);
            open_setup(&t, "model.preset=llama-tiny model.layers=4", layout);
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
    struct setup s;
    int n;

    (void)state;
    open_setup(&s, "model.preset=llama-tiny", "parallel.dp=2");
    OK(plan_remedies(&s.job, &s.layout, 1000, remedy, &n));
    assert_int_equal(n, 0);
    options_close(&s.options);
}

/* On a GPU the step's bytes are in its memory; offloaded tensors and the run's other bytes are in the host's. */
static void two_memories_have_a_limit_each(void **state)
{
    struct plan_job gpu = { .host = 1000 }, cpu = { 0 };
    struct plan_bytes b = { .total = 500, .other = 400, .host = 600 };

    (void)state;
    assert_true(plan_host_room(&gpu) == 1000);
    assert_true(plan_fits(&gpu, &b, 500));
    assert_false(plan_fits(&gpu, &b, 499));
    b.other = 401;
    assert_false(plan_fits(&gpu, &b, 500));
    b.host = 0;
    assert_true(plan_host_room(&cpu) == 0);
    assert_true(plan_fits(&cpu, &b, 901));
    assert_false(plan_fits(&cpu, &b, 900));
}

struct turns { pthread_t caller; int next; };
static ls_status take_turn(void *ctx, int task)
{
    struct turns *x = ctx;

    return task == x->next++ && pthread_equal(pthread_self(), x->caller) ? LS_OK : ls_fail(LS_EIO, "task %d runs beside others", task);
}

/* Programs for a device that one thread at a time uses are compiled by the caller, in turn. */
static void other_devices_are_planned_in_turn(void **state)
{
    struct turns x = { pthread_self(), 0 };
    struct setup s;

    (void)state;
    open_setup(&s, models[0], "parallel.dp=4 parallel.zero=1");
    s.job.step.device = "check";
    OK(plan_tasks(&s.job, 500, take_turn, &x));
    assert_int_equal(x.next, 500);
    options_close(&s.options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(largest_rank_is_found),
        cmocka_unit_test(stages_that_are_alike_are_planned_once),
        cmocka_unit_test(largest_rank_of_random_layouts_is_found),
        cmocka_unit_test(largest_of_many_ranks_takes_few_plans),
        cmocka_unit_test(plan_of_a_layout_needs_no_config),
        cmocka_unit_test(each_field_is_written_as_its_option),
        cmocka_unit_test(recomputation_and_several_fields_are_written),
        cmocka_unit_test(suggested_options_fit),
        cmocka_unit_test(impossible_limit_has_no_suggestion),
        cmocka_unit_test(two_memories_have_a_limit_each),
        cmocka_unit_test(other_devices_are_planned_in_turn),
    };
    threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
