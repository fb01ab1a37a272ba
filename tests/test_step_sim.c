/* test_step_sim.c - a simulated step: as long as planned without variation, the same bits folded and unfolded, and the effect of variation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/threads.h"
#include "helper_check.h"
#include "helper_plan.h"
#include "kernels/kernel.h"
#include "train/plan/step_sim.h"

static struct cluster step_sim_cluster;

static double simulated(const struct plan_setup *s, const struct variation *v, int index, int *classes)
{
    struct step_sim *sim;
    struct sim_step step;

    OK(step_sim_open(&s->job, &s->layout, &step_sim_cluster, v, &sim));
    OK(step_sim_play(sim, index, NULL, NULL, &step));
    if (classes) *classes = step_sim_classes(sim);
    /* A second simulation from the same start: the first one leaves no trace. */
    struct sim_step again;
    OK(step_sim_play(sim, index, NULL, NULL, &again));
    assert_true(again.seconds == step.seconds);
    assert_true(fabs(step.kernels + step.exposed + step.bubble - step.seconds) <= 1e-9 * step.seconds);
    step_sim_close(&sim);
    return step.seconds;
}

#define LLAMA "model.preset=llama3-8b model.layers=8 precision.compute=bf16 data.seq_len=1024 train.micro_batch=1 "
#define MIXTRAL "model.preset=mixtral-8x7b model.layers=4 precision.compute=bf16 data.seq_len=1024 train.micro_batch=1 "

#define LLAMA_STAGE LLAMA "parallel.pp=2 parallel.dp=4 train.accumulate=4 "

static const char *const one_stage[] = {
    LLAMA "parallel.dp=1 train.accumulate=3",
    LLAMA "parallel.dp=16 train.accumulate=2",
    LLAMA "parallel.dp=16 parallel.zero=1",
    LLAMA "parallel.dp=16 parallel.zero=2 train.accumulate=2",
    LLAMA "parallel.dp=16 parallel.zero=3 train.accumulate=2 recompute.mode=full",
    LLAMA "parallel.dp=32 parallel.replicate=4 parallel.zero=3",
    LLAMA "parallel.dp=4 parallel.tp=4 parallel.sp=true parallel.zero=1",
    LLAMA "parallel.dp=2 parallel.cp=4 parallel.zero=1",
    LLAMA "parallel.dp=2 parallel.cp=4 parallel.cp_method=all_to_all parallel.tp=2",
    MIXTRAL "parallel.dp=16 parallel.ep=8 parallel.zero=1 train.accumulate=2",
    LLAMA "parallel.dp=16 parallel.zero=3 train.accumulate=3 optim.offload=cpu parallel.offload_parameters=cpu",
    LLAMA "parallel.dp=8 parallel.zero=3 train.accumulate=2 optim.offload=file parallel.offload_parameters=cpu",
    LLAMA "parallel.dp=4 parallel.tp=4 parallel.zero=1 optim.offload=cpu",
};

static const char *const stages[] = {
    LLAMA "parallel.pp=4 train.accumulate=8",
    LLAMA "parallel.pp=4 parallel.dp=4 parallel.zero=1 train.accumulate=8",
    LLAMA "parallel.pp=4 parallel.vpp=2 parallel.dp=2 parallel.tp=2 parallel.sp=true train.accumulate=8",
    LLAMA "parallel.pp=2 parallel.vpp=2 parallel.dp=16 parallel.tp=8 parallel.sp=true parallel.zero=1 train.accumulate=8 model.layers=80",
    LLAMA "parallel.pp=2 parallel.vpp=4 parallel.dp=16 parallel.tp=8 parallel.sp=true train.accumulate=8 model.layers=64",
    LLAMA "parallel.pp=4 parallel.schedule=zb-h1 parallel.dp=4 train.accumulate=8",
    LLAMA "parallel.pp=2 parallel.schedule=zb-v parallel.tp=2 train.accumulate=4",
    LLAMA "parallel.pp=4 parallel.schedule=gpipe parallel.cp=2 parallel.dp=2 parallel.zero=1 train.accumulate=4",
    "model.preset=gpt2-124m precision.compute=bf16 data.seq_len=512 train.micro_batch=1 parallel.pp=4 parallel.dp=8 train.accumulate=8",
    MIXTRAL "parallel.pp=2 parallel.dp=8 parallel.ep=4 parallel.zero=1 train.accumulate=4",
    LLAMA "parallel.pp=4 parallel.dp=4 parallel.zero=1 train.accumulate=8 optim.offload=cpu",
};

static void without_variation_a_step_is_as_long_as_planned(void **state)
{
    struct variation none = { .slower = 1 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(one_stage); i++) {
        struct plan_setup s = { 0 };
        struct step_seconds plan;

        plan_setup_open(&s, one_stage[i]);
        OK(step_seconds_of(&s.job, &s.layout, &step_sim_cluster, &plan));
        double got = simulated(&s, &none, 0, NULL);
        if (fabs(got / plan.step - 1) > 1e-9) fail_msg("%s: %.9g s, planned %.9g s", one_stage[i], got, plan.step);
        options_close(&s.options);
    }
}

/* A plan lets all optimizers begin when the last stage has reduced, and simulates each chunk's program separately. */
static void a_pipeline_takes_as_long_as_planned(void **state)
{
    struct variation none = { .slower = 1 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(stages); i++) {
        struct plan_setup s = { 0 };
        struct step_seconds plan;

        plan_setup_open(&s, stages[i]);
        OK(step_seconds_of(&s.job, &s.layout, &step_sim_cluster, &plan));
        double got = simulated(&s, &none, 0, NULL), least = plan.step * (s.layout.dp > 1 || s.layout.vpp > 1 ? 0.985 : 1 - 1e-9);

        if (got > plan.step * (1 + 1e-6) || got < least) fail_msg("%s: %.9g s, planned %.9g s", stages[i], got, plan.step);
        options_close(&s.options);
    }
}

/* The stage before waits for the last micro-batch's gradient, so a stage sends it before it waits for its own reductions. */
static void a_stage_reduces_beside_the_others(void **state)
{
    static const char *const words[] = { LLAMA_STAGE "parallel.zero=0", LLAMA_STAGE "parallel.zero=1 parallel.tp=2" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        struct plan_setup s = { 0 };
        struct ranks ranks;
        struct step step;
        int starts = 0, waits[SEGMENTS] = { 0 };

        plan_setup_open(&s, words[i]);
        OK(ranks_plan(&s.layout, (int)ls_layout_ranks(&s.layout) - 1, &ranks));
        OK(step_open(&s.model, &s.layout, &s.job.step, &ranks, true, &step));
        const ls_program *p = step_program(&step, 0);
        for (int g = 0; g < SEGMENTS; g++)
            for (int n = 0; n < p->list[g].n; n++) {
                const struct instruction *x = &p->list[g].at[n];

                if (!instruction_is_exchange(x) || instruction_exchange(x)->axis != LS_AXIS_DP) continue;
                starts += instruction_is_start(x);
                waits[g] += !instruction_is_start(x);
            }
        assert_true(starts > 0 && waits[SEG_OPTIMIZER] == starts);
        step_close(&step);
        ranks_close(&ranks);
        options_close(&s.options);
    }
}

static void check_folding(const char *words, const struct variation *v, bool folds)
{
    struct plan_setup s = { 0 };
    struct variation unfolded = *v;
    int classes, ranks;

    plan_setup_open(&s, words);
    unfolded.unfolded = true;
    double folded = simulated(&s, v, 0, &classes), all = simulated(&s, &unfolded, 0, &ranks);
    assert_int_equal(ranks, ls_layout_ranks(&s.layout));
    if (folded != all) fail_msg("%s: %.17g s folded, %.17g s unfolded (%d classes of %d)", words, folded, all, classes, ranks);
    if (folds && classes >= ranks) fail_msg("%s: %d classes of %d ranks", words, classes, ranks);
    options_close(&s.options);
}

static void folding_changes_no_bit(void **state)
{
    struct variation one = { .slow = 1, .slower = 1.3, .seed = 3 }, two = { .slow = 2, .slower = 1.3, .seed = 4 };
    struct variation none = { .slower = 1 }, collide = { .slower = 1, .collide = true, .seed = 5 };
    struct cluster plain = step_sim_cluster;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(one_stage); i++) {
        check_folding(one_stage[i], &none, i > 0);
        check_folding(one_stage[i], &one, false);
        check_folding(one_stage[i], &two, false);
    }
    for (size_t i = 0; i < COUNT_OF(stages); i++) {
        check_folding(stages[i], &none, i > 0);
        check_folding(stages[i], &one, false);
        check_folding(stages[i], &two, false);
    }
    step_sim_cluster.processors = 2;
    step_sim_cluster.pod = 2;
    step_sim_cluster.paths = 3;
    step_sim_cluster.spine = (struct cluster_link){ step_sim_cluster.network.bandwidth / 2, 8e-6 };
    for (size_t i = 1; i < COUNT_OF(one_stage); i++) check_folding(one_stage[i], &collide, false);
    for (size_t i = 0; i < COUNT_OF(stages); i++) check_folding(stages[i], &collide, false);
    step_sim_cluster = plain;
}

static void one_slow_rank_is_as_slow_as_all(void **state)
{
    struct variation one = { .slow = 1, .slower = 1.5, .seed = 1 }, all = { .slow = 16, .slower = 1.5 }, none = { .slower = 1 };
    struct plan_setup s = { 0 };
    int classes;

    (void)state;
    plan_setup_open(&s, LLAMA "parallel.dp=16 train.accumulate=2");
    double slow = simulated(&s, &one, 0, &classes), every = simulated(&s, &all, 0, NULL), usual = simulated(&s, &none, 0, NULL);
    assert_int_equal(classes, 2);
    assert_true(slow == every);
    assert_true(slow > usual && slow <= 1.5 * usual);
    options_close(&s.options);
}

static void jitter_is_drawn_anew(void **state)
{
    struct variation jitter = { .slower = 1, .jitter = 0.05, .seed = 1 }, none = { .slower = 1 }, spread = { .slower = 1, .spread = 0.02 };
    struct plan_setup s = { 0 };
    int classes;

    (void)state;
    plan_setup_open(&s, LLAMA "parallel.dp=8 parallel.zero=3 train.accumulate=2");
    double first = simulated(&s, &jitter, 0, &classes), second = simulated(&s, &jitter, 1, NULL), usual = simulated(&s, &none, 0, NULL);
    assert_int_equal(classes, 8);
    assert_true(first > usual && second > usual && first != second && first < 1.2 * usual);
    jitter.seed = 2;
    assert_true(simulated(&s, &jitter, 0, NULL) != first);
    double uneven = simulated(&s, &spread, 0, NULL);
    assert_true(uneven > usual && uneven < 1.1 * usual && uneven == simulated(&s, &spread, 1, NULL));
    options_close(&s.options);
}

/* 8 nodes of 1 processor in 4 pods of 2; one path out of each pod. A ring over all 8 leaves each pod once and is alone on its path; two
 * rings of 4, one through the first processors of the pods and one through the second, share it. */
static void rings_share_a_path(void **state)
{
    struct variation v = { .slower = 1, .collide = true };
    struct cluster plain = step_sim_cluster;

    (void)state;
    step_sim_cluster.processors = 1;
    step_sim_cluster.pod = 2;
    step_sim_cluster.paths = 1;
    step_sim_cluster.spine = (struct cluster_link){ step_sim_cluster.network.bandwidth / 4, step_sim_cluster.network.latency };
    for (int tp = 1; tp <= 2; tp++) {
        struct plan_setup s = { 0 };
        struct step_sim *sim;

        plan_setup_open(&s, tp == 1 ? LLAMA "parallel.dp=8" : LLAMA "parallel.dp=4 parallel.tp=2");
        OK(step_sim_open(&s.job, &s.layout, &step_sim_cluster, &v, &sim));
        /* One path carries all of a pod's spine, 2 x 1/4 of an adapter: what seconds.h expects, for 2 / 1 or 1 rank a pod. */
        assert_true(fabs(step_sim_collisions(sim) - 1) < 1e-12);
        step_sim_close(&sim);
        step_sim_cluster.paths = 2; /* half as wide each: alone on one, the ring of 8 has half of it; the two rings may collide or not */
        double most = 1;
        for (v.seed = 0; v.seed < 8; v.seed++) {
            OK(step_sim_open(&s.job, &s.layout, &step_sim_cluster, &v, &sim));
            double slowed = step_sim_collisions(sim);
            assert_true(fabs(slowed - 2) < 1e-12 || (tp == 2 && fabs(slowed - 1) < 1e-12));
            most = fmax(most, slowed);
            step_sim_close(&sim);
        }
        assert_true(most == 2);
        step_sim_cluster.paths = 1;
        options_close(&s.options);
    }
    step_sim_cluster = plain;
}

static double last_end;
static void note_end(void *ctx, const struct sim_event *e)
{
    int *kinds = ctx;

    assert_true(e->end > e->begin && e->begin >= 0);
    kinds[e->kind]++;
    if (e->kind != SIM_COLLECTIVE) last_end = fmax(last_end, e->end);
}

static void events_fill_the_step(void **state)
{
    struct variation none = { .slower = 1 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(stages); i++) {
        struct plan_setup s = { 0 };
        struct step_sim *sim;
        struct sim_step step;
        int kinds[SIM_MESSAGE + 1] = { 0 };

        plan_setup_open(&s, stages[i]);
        OK(step_sim_open(&s.job, &s.layout, &step_sim_cluster, &none, &sim));
        last_end = 0;
        OK(step_sim_play(sim, 0, note_end, kinds, &step));
        assert_true(last_end == step.seconds);
        assert_true(kinds[SIM_KERNELS] > 0 && kinds[SIM_MESSAGE] > 0);
        step_sim_close(&sim);
        options_close(&s.options);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_variation_a_step_is_as_long_as_planned),
        cmocka_unit_test(a_pipeline_takes_as_long_as_planned),
        cmocka_unit_test(a_stage_reduces_beside_the_others),
        cmocka_unit_test(folding_changes_no_bit),
        cmocka_unit_test(one_slow_rank_is_as_slow_as_all),
        cmocka_unit_test(jitter_is_drawn_anew),
        cmocka_unit_test(rings_share_a_path),
        cmocka_unit_test(events_fill_the_step),
    };

    threads_set(1);
    isa_cap(ISA_ANY); /* as plans for another machine do */
    OK(cluster_read("h100-dgx", &step_sim_cluster));
    step_sim_cluster.host = 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
