/* test_plan.c - plans of ranks that do not exist here: the largest rank is found, by few plans, with or without a config. */
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
#include "base/threads.h"
#include "helper_check.h"
#include "helper_plan.h"

/* Sizes that are not divisible, so that shares are uneven. */
static const char *const plan_models[] = {
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
static bool compare_with_all(const struct plan_setup *s, const char *what)
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
        for (size_t i = 0; i < COUNT_OF(plan_models); i++) {
            struct plan_setup s;

            if (layouts[k].experts != (i == 2) && !(i == 2 && k < 8)) continue;
            plan_setup_open_small(&s, plan_models[i], layouts[k].layout);
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
        struct plan_setup s;
        int compiled;

        plan_setup_open_small(&s, "model.preset=llama-tiny model.layers=12", alike[i].layout);
        compare_with_all(&s, alike[i].layout);
        OK(plan_of_places(&s.job, &s.layout, &found, &compiled));
        int places = (s.layout.dp > 1 ? 2 : 1) * (s.layout.tp > 1 ? 2 : 1), more = 3 * (s.layout.dp > 1);
        if (compiled > alike[i].most * places + more) fail_msg("%s: %d ranks are compiled", alike[i].layout, compiled);
        if (alike[i].most == s.layout.pp && compiled < s.layout.pp) fail_msg("%s: only %d ranks are compiled", alike[i].layout, compiled);
        options_close(&s.options);
    }
}

/* A random layout of pp, dp, cp and tp up to these, each a power of 2 if `even`, when sizes are divisible, too. */
static void random_layout(unsigned *seed, bool even, char *layout, size_t room, const char **model)
{
    static const char *const modes[] = { "none", "selective", "full" }, *const flags[] = { "false", "true" };
    static const char *const schedules[] = { "auto", "gpipe", "zb-h1" };
    int r[12];

    for (size_t i = 0; i < COUNT_OF(r); i++) {
        *seed = *seed * 1664525u + 1013904223u;
        r[i] = (int)(*seed >> 16 & 0x7fff);
    }
    int pp = 1 + r[0] % 3, dp = 1 + r[1] % 5, cp = 1 + r[2] % 4, tp = 1 + r[3] % 3, tokens = 23 + r[4] % 17;
    *model = plan_models[r[11] % COUNT_OF(plan_models)];
    if (even) {
        pp = 1 << r[0] % 3, dp = 1 << r[1] % 3, cp = 1 << r[2] % 3, tp = 1 << r[3] % 3, tokens = 64;
        *model = "model.preset=llama-tiny model.layers=8 model.heads=8 model.kv_heads=4 model.width=64 model.ffn=64 model.vocab=128";
    }
    int at = snprintf(layout, room,
                      "parallel.pp=%d parallel.dp=%d parallel.cp=%d parallel.tp=%d data.seq_len=%d train.micro_batch=%d "
                      "recompute.mode=%s", pp, dp, cp, tp, tokens, 1 + r[5] % 3, modes[r[6] % 3]);
    if (dp * cp > 1) at += snprintf(layout + at, room - (size_t)at, " parallel.zero=%d", r[7] % 4);
    if (tp > 1) at += snprintf(layout + at, room - (size_t)at, " parallel.sp=%s", flags[r[8] % 2]);
    if (pp > 1) at += snprintf(layout + at, room - (size_t)at, " parallel.schedule=%s", schedules[r[9] % 3]);
    if (cp > 1 && r[10] % 2) snprintf(layout + at, room - (size_t)at, " parallel.cp_method=all_to_all");
}

/* 20 random layouts that are possible; under LOCKSTEP_MATRIX=full 1,000, or 100 even ones, which have up to 256 ranks. Returns how many
 * ranks were planned, as a share of all. */
static double compare_random_layouts(unsigned seed, bool even)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX"), *model;
    int want = matrix && strcmp(matrix, "full") == 0 ? even ? 100 : 1000 : 20, seen = 0, planned = 0, ranks = 0;

    for (int tries = 0; seen < want && tries < 20 * want; tries++) {
        struct plan_bytes found;
        struct plan_setup s;
        char layout[500];
        int compiled;

        random_layout(&seed, even, layout, sizeof layout, &model);
        if (plan_setup_try_small(&s, model, layout) == LS_OK) {
            compare_with_all(&s, layout);
            OK(plan_of_places(&s.job, &s.layout, &found, &compiled));
            planned += compiled;
            ranks += (int)s.config.launch.ranks;
            seen++;
        }
        options_close(&s.options);
    }
    assert_int_equal(seen, want);
    return (double)planned / ranks;
}

static void largest_rank_of_random_layouts_is_found(void **state)
{
    (void)state;
    compare_random_layouts(7, false);
}

/* Where sizes are divisible, ranks hold the same and few of them are planned. */
static void largest_rank_of_even_layouts_is_found(void **state)
{
    double share = compare_random_layouts(8, true);

    (void)state;
    printf("%.0f%% of the ranks were planned\n", 100 * share);
    assert_true(share < 0.5);
}

/* Rings of more ranks than the eight whose order of messages is planned for. */
static void largest_rank_of_a_long_ring_is_found(void **state)
{
    static const char *const layout[] = { "parallel.dp=2 parallel.cp=9 parallel.tp=2 data.seq_len=36 parallel.zero=1",
                                          "parallel.cp=10 parallel.tp=2 parallel.dp=2 data.seq_len=47" };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(layout); k++) {
        struct plan_setup s;

        plan_setup_open_small(&s, plan_models[0], layout[k]);
        compare_with_all(&s, layout[k]);
        options_close(&s.options);
    }
}

static void largest_of_many_ranks_takes_few_plans(void **state)
{
    struct plan_bytes found;
    struct plan_setup s;
    int compiled;

    (void)state;
    plan_setup_open_small(&s, "model.preset=llama-tiny model.layers=8 model.heads=8 model.kv_heads=8",
               "parallel.pp=8 parallel.dp=16 parallel.tp=8 parallel.zero=1");
    assert_int_equal(s.config.launch.ranks, 1024);
    OK(plan_of_largest(&s.job, &s.layout, &found, &compiled));
    assert_in_range(compiled, 3, 3 * 2 * 2); /* the first stage, one for the six in the middle, and the last */
    options_close(&s.options);
}

/* A layout that was made field by field has the plan of the options that say the same. */
static void plan_of_a_layout_needs_no_config(void **state)
{
    struct plan_bytes from_options, from_layout;
    ls_layout l = ls_layout_default();
    struct plan_job job = { .evaluates = true };
    struct plan_setup s;

    (void)state;
    plan_setup_open_small(&s, plan_models[0],
                          "parallel.pp=2 parallel.dp=4 parallel.zero=1 parallel.tp=2 parallel.sp=true recompute.mode=full "
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

/* On a GPU the step's own bytes are in its memory; what is offloaded, and what else the run holds, in the host's. */
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
    struct plan_setup s;

    (void)state;
    plan_setup_open_small(&s, plan_models[0], "parallel.dp=4 parallel.zero=1");
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
        cmocka_unit_test(largest_rank_of_even_layouts_is_found),
        cmocka_unit_test(largest_rank_of_a_long_ring_is_found),
        cmocka_unit_test(largest_of_many_ranks_takes_few_plans),
        cmocka_unit_test(plan_of_a_layout_needs_no_config),
        cmocka_unit_test(two_memories_have_a_limit_each),
        cmocka_unit_test(other_devices_are_planned_in_turn),
    };
    threads_set(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
