/* test_prices.c - prices composed from patterns of a model, compared with those of the programs of every rank. */
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
#include "base/threads.h"
#include "helper_check.h"
#include "helper_plan.h"
#include "kernels/kernel.h"
#include "train/plan/prices.h"

static const struct {
    const char *model, *layout;
} prices_cases[] = {
    { "model.preset=llama3-8b data.seq_len=4096", "parallel.dp=16 parallel.zero=3 train.micro_batch=4" },
    { "model.preset=llama3-70b data.seq_len=8192", "parallel.dp=1024 parallel.zero=3 recompute.mode=full train.micro_batch=1" },
    { "model.preset=llama3-8b", "parallel.dp=1" },
    { "model.preset=llama3-8b", "parallel.dp=16" },
    { "model.preset=llama3-8b", "parallel.dp=16 parallel.zero=1 train.accumulate=4" },
    { "model.preset=llama3-8b", "parallel.dp=64 parallel.zero=2 train.accumulate=2 train.micro_batch=2" },
    { "model.preset=llama3-8b", "parallel.dp=64 parallel.zero=3 recompute.mode=full" },
    { "model.preset=llama3-8b", "parallel.dp=64 parallel.zero=3 parallel.replicate=8 recompute.mode=selective" },
    { "model.preset=llama3-8b", "parallel.dp=16 parallel.tp=4 parallel.sp=true parallel.zero=1 train.accumulate=4" },
    { "model.preset=llama3-8b", "parallel.tp=8 parallel.dp=3 parallel.zero=3" },
    { "model.preset=llama3-8b", "parallel.cp=4 parallel.dp=4 parallel.zero=1" },
    { "model.preset=llama3-8b", "parallel.cp=4" },
    { "model.preset=llama3-8b", "parallel.cp=2 parallel.cp_method=all_to_all parallel.tp=2 parallel.dp=2 parallel.zero=2" },
    { "model.preset=llama3-8b", "parallel.pp=4 train.accumulate=16 parallel.dp=4 parallel.zero=1" },
    { "model.preset=llama3-8b", "parallel.pp=4 parallel.schedule=gpipe train.accumulate=8 parallel.tp=2" },
    { "model.preset=llama3-8b", "parallel.pp=4 parallel.vpp=2 train.accumulate=8 parallel.dp=4 parallel.zero=1" },
    { "model.preset=llama3-8b", "parallel.pp=8 parallel.schedule=zb-h1 train.accumulate=16 parallel.dp=2" },
    { "model.preset=llama3-8b", "parallel.pp=4 parallel.schedule=zb-v train.accumulate=16 parallel.tp=2 parallel.sp=true" },
    { "model.preset=llama3-8b model.layers=22", "parallel.pp=4 parallel.tp=4 parallel.sp=true train.accumulate=5 recompute.mode=full" },
    { "model.preset=llama3-8b model.layers=80",
      "parallel.pp=2 parallel.vpp=2 parallel.dp=16 parallel.tp=8 parallel.sp=true parallel.zero=1 train.accumulate=8" },
    { "model.preset=llama3-8b model.layers=10", "parallel.pp=4 parallel.stages=1,4,4,1 train.accumulate=8 parallel.dp=2" },
    { "model.preset=llama3-8b model.layers=3", "parallel.pp=2 train.accumulate=2 parallel.dp=2 parallel.zero=1" },
    { "model.preset=gpt2-1.5b data.seq_len=1024 train.micro_batch=4", "parallel.dp=32 parallel.zero=1 train.accumulate=2" },
    { "model.preset=gpt2-1.5b data.seq_len=1024 train.micro_batch=4", "parallel.pp=4 parallel.dp=8 parallel.zero=1 train.accumulate=8" },
    { "model.preset=mixtral-8x7b", "parallel.dp=32 parallel.ep=8 parallel.zero=1 train.accumulate=2" },
    { "model.preset=mixtral-8x7b", "parallel.dp=8 parallel.ep=8 parallel.zero=3" },
    { "model.preset=mixtral-8x7b", "parallel.dp=32 parallel.ep=4 parallel.pp=4 parallel.zero=1 train.accumulate=8 recompute.mode=full" },
    { "model.preset=qwen3-1.7b", "parallel.dp=24 parallel.zero=2 train.accumulate=3" },
    { "model.preset=gpt2-1.5b model.layers=3 data.seq_len=1024",
      "parallel.pp=2 parallel.dp=3 parallel.zero=1 train.micro_batch=2 train.accumulate=2" },
    { "model.preset=gpt2-1.5b model.layers=3 data.seq_len=1024",
      "parallel.pp=2 parallel.dp=4 parallel.zero=1 train.micro_batch=2 train.accumulate=2" },
    { "model.preset=gpt2-1.5b model.layers=8 data.seq_len=1024",
      "parallel.pp=2 parallel.dp=3 parallel.zero=1 train.micro_batch=2 train.accumulate=2" },
    { "model.preset=gpt2-1.5b model.layers=8 data.seq_len=1024",
      "parallel.pp=2 parallel.dp=4 parallel.zero=1 train.micro_batch=2 train.accumulate=2" },
    { "model.preset=gpt2-1.5b model.layers=8 model.width=1536 model.heads=24 data.seq_len=1024",
      "parallel.pp=2 parallel.dp=4 parallel.tp=6 train.accumulate=64" }, /* whose groups of tp are in one node only with dp */
    { "model.preset=llama3-8b", "parallel.dp=1 optim.offload=cpu train.accumulate=2" },
    { "model.preset=llama3-8b", "parallel.dp=16 parallel.zero=1 optim.offload=cpu train.micro_batch=4" },
    { "model.preset=llama3-8b", "parallel.dp=24 parallel.zero=3 optim.offload=cpu parallel.offload_parameters=cpu train.accumulate=4" },
    { "model.preset=llama3-8b", "parallel.pp=4 parallel.dp=4 parallel.zero=1 train.accumulate=16 optim.offload=cpu" },
};

static void test_equal_programs(void **state)
{
    double most = 0, largest = 0, seconds = 0, held = 0;
    size_t exactly = 0;
    struct cluster c;

    (void)state;
    OK(cluster_read("h100-dgx", &c));
    c.host = 0;
    for (size_t i = 0; i < COUNT_OF(prices_cases); i++) {
        struct plan_setup s = { 0 };
        struct prices *p;
        struct price price, least;
        struct step_seconds exact;
        struct plan_bytes bytes;
        char words[400];

        snprintf(words, sizeof words, "precision.compute=bf16 data.seq_len=2048 %s %s", prices_cases[i].model, prices_cases[i].layout);
        plan_setup_open(&s, words);
        s.job.cluster = &c;
        OK(prices_open(&s.job, &c, s.layout.seq_len, &p));
        OK(prices_price(p, &s.layout, INFINITY, INFINITY, &price));
        OK(step_seconds_of(&s.job, &s.layout, &c, &exact));
        OK(plan_of_places(&s.job, &s.layout, &bytes, NULL));
        double off = price.seconds / exact.step - 1, more = price.bytes / (double)bytes.total - 1;
        if (fabs(off) > 0.02 || fabs(more) > 0.01)
            fail_msg("%s %s: %+.2f%% seconds, %+.2f%% bytes", prices_cases[i].model, prices_cases[i].layout, 100 * off, 100 * more);
        if (fabs(price.host - (double)bytes.host) > 1e-4 * price.host || (bytes.host > 0) != (s.layout.offload > 0))
            fail_msg("%s %s: %.0f bytes in the host, planned %zu", prices_cases[i].model, prices_cases[i].layout, price.host, bytes.host);
        OK(prices_least(p, &s.layout, &least));
        if (least.seconds > exact.step || least.bytes > (double)bytes.total)
            fail_msg("%s %s: at least %g s and %.0f bytes; it takes %g s and %zu bytes", prices_cases[i].model, prices_cases[i].layout,
                     least.seconds, least.bytes, exact.step, bytes.total);
        seconds += least.seconds / exact.step, held += least.bytes / (double)bytes.total;
        most = fmax(most, fabs(off)), largest = fmax(largest, fabs(more));
        exactly += fabs(off) < 1e-3;
        prices_close(&p);
        options_close(&s.options);
    }
    printf("%zu layouts: at most %.2f%% off, %zu of them less than 0.1%%; bytes at most %.4f%%\n", COUNT_OF(prices_cases), 100 * most,
           exactly, 100 * largest);
    printf("the bounds are %.0f%% of the seconds and %.0f%% of the bytes on average\n", 100 * seconds / COUNT_OF(prices_cases),
           100 * held / COUNT_OF(prices_cases));
    assert_true(seconds > 0.75 * COUNT_OF(prices_cases) && held > 0.75 * COUNT_OF(prices_cases));
    assert_true(exactly >= COUNT_OF(prices_cases) * 2 / 3);
}

/* The ends of a pipeline may have no blocks: they take less than with one, by what a block takes. */
static void test_ends_without_blocks(void **state)
{
    static const char *const stages[] = { "0,1,1,0", "1,1,1,1", "2,1,1,2" };
    double least[3];
    struct cluster c;

    (void)state;
    OK(cluster_read("h100-dgx", &c));
    c.host = 0;
    for (int i = 0; i < 3; i++) {
        struct plan_setup s = { 0 };
        struct prices *p;
        struct price price;

        plan_setup_open(&s,
                        "precision.compute=bf16 data.seq_len=2048 model.preset=llama3-8b model.layers=4 parallel.pp=4 train.accumulate=8");
        OK(prices_open(&s.job, &c, s.layout.seq_len, &p));
        s.layout.stages = stages[i];
        OK(prices_price(p, &s.layout, INFINITY, 0, &price));
        assert_true(price.bounded); /* a bound by the busiest stage, the last, which has the head */
        least[i] = price.seconds;
        prices_close(&p);
        options_close(&s.options);
    }
    if (!(least[0] > 0 && fabs((least[1] - least[0]) / (least[2] - least[1]) - 1) < 0.05))
        fail_msg("0, 1 and 2 blocks take %g, %g and %g s", least[0], least[1], least[2]);
}

/* Prices have the same bits whatever was priced before: cached results are never used for another layout. */
static void test_kept(void **state)
{
    static const char *const words[] = {
        "parallel.dp=16",
        "parallel.dp=16 parallel.zero=1",
        "parallel.dp=16 parallel.zero=3 train.micro_batch=2",
        "parallel.dp=8 parallel.tp=2 parallel.zero=1",
        "parallel.dp=2 parallel.tp=8 parallel.zero=1 parallel.sp=true",
        "parallel.pp=4 parallel.dp=4 train.accumulate=16",
        "parallel.pp=4 parallel.dp=4 train.accumulate=8",
        "parallel.pp=4 parallel.dp=4 train.accumulate=16 train.micro_batch=2",
        "parallel.pp=4 parallel.dp=4 parallel.vpp=2 train.accumulate=16",
        "parallel.pp=4 parallel.dp=4 parallel.schedule=zb-h1 train.accumulate=16",
        "parallel.pp=4 parallel.dp=4 parallel.schedule=zb-v train.accumulate=16",
        "parallel.pp=8 parallel.dp=2 parallel.zero=1 train.accumulate=32",
        "parallel.pp=2 parallel.dp=8 parallel.zero=1 train.accumulate=8 recompute.mode=full",
    };
    enum { N = sizeof words / sizeof words[0] };
    struct plan_setup s[N];
    struct price alone[N];
    struct cluster c;
    struct prices *p;

    (void)state;
    OK(cluster_read("h100-dgx", &c));
    c.host = 0;
    for (int i = 0; i < N; i++) {
        char all[400];

        snprintf(all, sizeof all, "precision.compute=bf16 data.seq_len=2048 model.preset=llama3-8b %s", words[i]);
        plan_setup_open(&s[i], all);
        OK(prices_open(&s[i].job, &c, s[i].layout.seq_len, &p));
        OK(prices_price(p, &s[i].layout, INFINITY, INFINITY, &alone[i]));
        prices_close(&p);
    }
    OK(prices_open(&s[0].job, &c, s[0].layout.seq_len, &p));
    for (int turn = 0; turn < 3; turn++)
        for (int i = 0; i < N; i++) {
            int at = turn == 1 ? N - 1 - i : i;
            struct price price;

            OK(prices_price(p, &s[at].layout, INFINITY, INFINITY, &price));
            if (price.seconds != alone[at].seconds || price.bytes != alone[at].bytes)
                fail_msg("turn %d, %s: %.17g s, %.17g bytes; alone %.17g and %.17g", turn, words[at], price.seconds, price.bytes,
                         alone[at].seconds, alone[at].bytes);
        }
    prices_close(&p);
    for (int i = 0; i < N; i++) options_close(&s[i].options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_programs),
        cmocka_unit_test(test_ends_without_blocks),
        cmocka_unit_test(test_kept),
    };

    threads_set(1);
    isa_cap(ISA_ANY); /* as plans for another machine do */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
