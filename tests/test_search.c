/* test_search.c - the search finds the layout that compiling every layout finds; its bounds hold for every layout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/mem.h"
#include "base/threads.h"
#include "helper_check.h"
#include "helper_plan.h"
#include "kernels/kernel.h"
#include "train/plan/prices.h"
#include "train/plan/search.h"

/* Every layout of the space, compiled. */
struct brute {
    struct plan_setup *s;
    const struct cluster *c;
    struct prices *prices;
    int ranks;
    size_t global;
    double room, best;
    double seconds, bytes;         /* the largest ratios of a bound to the value that it bounds */
    int64_t tried, fit, offloaded; /* offloaded: of those that fit */
    ls_layout layout;
};

/* No layout takes less time than its bound. None holds less than its bound by more than the search allows for, unless its price is too high
 * by as much: then the patterns are wrong, not the bound. */
static void bounds_hold(struct brute *b, const ls_layout *l, const struct plan_bytes *plan, const struct step_seconds *seconds)
{
    char text[LS_LAYOUT_TEXT];
    struct price least, price;

    OK(prices_least(b->prices, l, &least));
    if (seconds) b->seconds = fmax(b->seconds, least.seconds / seconds->step);
    price.bytes = 0;
    if (least.bytes > (double)plan->total) OK(prices_price(b->prices, l, 0, 0, &price)); /* with no room, only its bytes */
    if (least.bytes > price.bytes) b->bytes = fmax(b->bytes, least.bytes / (double)plan->total);
    if (b->bytes <= 1 + SEARCH_SLACK / 2 && b->seconds <= 1) return;
    ls_layout_text(l, text, sizeof text);
    fail_msg("%s, %d x %d: at least %.0f bytes and %g s; it holds %zu and takes %g s", text, l->micro_batch, l->micro_batches, least.bytes,
             least.seconds, plan->total, seconds ? seconds->step : 0);
}

static void brute_exactly(struct brute *b, const ls_layout *l)
{
    struct plan_job job = b->s->job;
    struct step_seconds seconds;
    struct plan_bytes plan;

    if (ls_layout_check(&b->s->model.transformer, l) < 0) return;
    b->tried++;
    job.step.global = b->global;
    job.cluster = b->c;
    OK(plan_of_largest(&job, l, &plan, NULL));
    bounds_hold(b, l, &plan, NULL);
    if (!plan_fits(&job, &plan, b->room - group_buffers_of(b->c, l))) return;
    b->fit++;
    b->offloaded += l->offload || l->offload_parameters;
    OK(step_seconds_of(&job, l, b->c, &seconds));
    bounds_hold(b, l, &plan, &seconds);
    if (seconds.step < b->best) b->best = seconds.step, b->layout = *l;
}

static void brute_one(struct brute *b, const ls_layout *l)
{
    ls_layout x = *l;

    for (int state = 0; state <= (b->c->offload.bandwidth > 0); state++)
        for (int parameters = 0; parameters <= state; parameters++) {
            x.offload = state ? LS_OFFLOAD_CPU : LS_OFFLOAD_NONE;
            x.offload_parameters = parameters ? LS_OFFLOAD_CPU : LS_OFFLOAD_NONE;
            brute_exactly(b, &x);
        }
}

static void brute_schedules(struct brute *b, ls_layout l)
{
    static const char *const names[] = { "1f1b", "interleaved", "zb-h1", "zb-v" };

    l.vpp = 1;
    l.schedule = NULL;
    if (l.pp == 1) {
        brute_one(b, &l);
        return;
    }
    for (size_t i = 0; i < COUNT_OF(names); i++)
        for (l.vpp = 1; l.vpp <= SEARCH_VPP_MOST; l.vpp++) {
            l.schedule = names[i];
            if ((l.vpp > 1) == (i % 2 == 1)) brute_one(b, &l);
        }
}

static void brute_inside(struct brute *b, ls_layout l)
{
    int samples = (int)b->global / l.dp, inside = MAX(b->c->processors / (l.tp * l.cp), 1);

    for (l.micro_batch = 1; l.micro_batch <= samples; l.micro_batch++)
        for (l.recompute = LS_RECOMPUTE_NONE; l.recompute <= LS_RECOMPUTE_FULL; l.recompute++)
            for (l.zero = 0; l.zero <= (l.dp * l.cp > 1 ? 3 : 0); l.zero++)
                for (int node = 0; node <= (l.zero > 0); node++) {
                    if (samples % l.micro_batch || (node && (l.dp % inside || inside == 1 || l.dp == inside))) continue;
                    l.micro_batches = samples / l.micro_batch;
                    l.replicate = node ? l.dp / inside : 1;
                    brute_schedules(b, l);
                }
}

static void brute_force(struct brute *b)
{
    ls_layout l = b->s->layout;

    b->best = INFINITY;
    for (l.tp = 1; l.tp <= b->ranks; l.tp++)
        for (l.cp = 1; l.cp <= b->ranks; l.cp++)
            for (l.pp = 1; l.pp <= b->ranks; l.pp++)
                for (l.ep = 1; l.ep <= b->ranks; l.ep++)
                    for (int i = 0; i < (l.tp > 1 ? 2 : 1) * (l.cp > 1 ? 2 : 1); i++) {
                        l.dp = b->ranks / (l.tp * l.cp * l.pp);
                        if (l.dp < 1 || l.dp * l.tp * l.cp * l.pp != b->ranks || b->global % (size_t)l.dp) continue;
                        l.sp = l.tp > 1 && i % 2;
                        l.cp_method = l.cp > 1 && i / (l.tp > 1 ? 2 : 1) ? LS_CP_ALL_TO_ALL : LS_CP_RING;
                        brute_inside(b, l);
                    }
}

static struct cluster search_machine(double link, double network, int processors, double host, double copies)
{
    struct cluster c;

    OK(cluster_read("h100-dgx", &c));
    c.host = 0;
    c.node.bandwidth = link;
    c.network.bandwidth = network;
    c.processors = processors;
    c.offload = (struct cluster_offload){ .bandwidth = copies, .memory = host };
    return c;
}

static const struct {
    const char *model;
    int ranks, global, processors;
    double room, link, network;
    double host, copies; /* memory of a node's host, bytes/s of copies to it; 0: no host to offload to */
    bool nightly;
} search_cases[] = {
    { "model.preset=llama3-8b model.layers=4 data.seq_len=4096", 4, 4, 2, 70e9, 100e9, 5e9, 0, 0, false },
    { "model.preset=llama3-8b model.layers=4 data.seq_len=4096", 4, 4, 2, 17e9, 100e9, 25e9, 0, 0, false },
    { "model.preset=mixtral-8x7b model.layers=2 data.seq_len=2048", 2, 4, 2, 60e9, 300e9, 25e9, 0, 0, false },
    { "model.preset=llama3-8b model.layers=4 data.seq_len=2048", 2, 4, 2, 13e9, 300e9, 25e9, 100e9, 100e9, false },
    { "model.preset=llama3-8b model.layers=4 data.seq_len=2048", 2, 4, 2, 14e9, 300e9, 25e9, 28e9, 100e9, true },
    { "model.preset=llama3-8b model.layers=4 data.seq_len=4096", 4, 4, 2, 17e9, 100e9, 25e9, 100e9, 500e9, true },
    { "model.preset=llama3-8b model.layers=10 data.seq_len=2048", 2, 4, 2, 9e9, 300e9, 25e9, 100e9, 50e9, true },
    { "model.preset=llama3-8b model.layers=6 data.seq_len=2048", 4, 8, 4, 80e9, 300e9, 25e9, 500e9, 50e9, true },
    { "model.preset=gpt2-1.5b model.layers=3 data.seq_len=1024", 6, 12, 3, 6e9, 50e9, 5e9, 0, 0, true },
    { "model.preset=mixtral-8x7b model.layers=4 data.seq_len=2048", 4, 4, 2, 50e9, 300e9, 5e9, 0, 0, true },
    { "model.preset=mixtral-8x7b model.layers=4 data.seq_len=2048", 4, 4, 2, 20e9, 300e9, 5e9, 200e9, 50e9, true },
};

/* Two more searches with prices that they share: the second compiles no patterns, and both find what the first search found. */
static void search_again(const struct plan_job *j, struct search_space space, const struct search_result *first)
{
    struct search_result *r = calloc(1, sizeof *r);

    assert_non_null(r);
    OK(prices_open(j, j->cluster, space.base.seq_len, &space.prices));
    for (int k = 0; k < 2; k++) {
        OK(search_layouts(j, j->cluster, &space, r));
        assert_int_equal(r->compiled, k ? 0 : first->compiled);
        assert_int_equal(r->checked, first->checked);
        assert_int_equal(r->found, first->found);
        assert_memory_equal(&r->best[0].layout, &first->best[0].layout, sizeof first->best[0].layout);
        assert_true(r->best[0].seconds.step == first->best[0].seconds.step);
    }
    assert_true(first->compiled > 0);
    prices_close(&space.prices);
    free(r);
}

static void test_equals_brute_force(void **state)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX");
    bool full = matrix && strcmp(matrix, "full") == 0;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(search_cases); i++) {
        struct cluster c = search_machine(search_cases[i].link, search_cases[i].network, search_cases[i].processors, search_cases[i].host,
                                   search_cases[i].copies);
        struct search_result *r = calloc(1, sizeof *r);
        struct plan_setup s = { 0 };
        char found[LS_LAYOUT_TEXT], right[LS_LAYOUT_TEXT], words[400];

        if (search_cases[i].nightly && !full) {
            free(r);
            continue;
        }
        assert_non_null(r);
        snprintf(words, sizeof words, "%s precision.compute=bf16 data.val_fraction=0", search_cases[i].model);
        plan_setup_open(&s, words);
        struct search_space space = {
            .ranks = search_cases[i].ranks, .global = (size_t)search_cases[i].global, .room = search_cases[i].room, .base = s.layout
        };
        struct brute b = { .s = &s, .c = &c, .ranks = search_cases[i].ranks, .global = space.global, .room = space.room };
        struct plan_job job = s.job;

        job.step.global = space.global;
        job.cluster = &c;
        OK(search_layouts(&job, &c, &space, r));
        OK(prices_open(&job, &c, s.layout.seq_len, &b.prices));
        brute_force(&b);
        if (i == 0) search_again(&job, space, r);
        prices_close(&b.prices);
        ls_layout_text(&r->best[0].layout, found, sizeof found);
        ls_layout_text(&b.layout, right, sizeof right);
        printf("case %zu: %" PRId64 " layouts, %" PRId64 " fit, %" PRId64 " of them by offload; the best takes %g s (%s, %d x %d)\n", i,
               b.tried, b.fit, b.offloaded, b.best, right, b.layout.micro_batch, b.layout.micro_batches);
        printf("        found %g s (%s, %d x %d); %" PRId64 " priced, %d compiled\n", r->best[0].seconds.step, found,
               r->best[0].layout.micro_batch, r->best[0].layout.micro_batches, r->priced, r->exact);
        printf("        bounds: at most %.4f of the seconds, %.4f of the bytes\n", b.seconds, b.bytes);
        assert_true(b.fit > 0 && r->exact > 0);
        assert_true(fabs(r->best[0].seconds.step / b.best - 1) < 1e-9);
        options_close(&s.options);
        free(r);
    }
}

/* Of two layouts that differ in the cp method, the faster one fits according to its price, but not its programs: then it is not the fastest
 * with cp, either. */
static void test_dropped_layout_is_not_named(void **state)
{
    struct cluster c = search_machine(450e9, 50e9, 8, 0, 0);
    struct search_result *r = calloc(1, sizeof *r);
    struct plan_setup s = { 0 };
    struct plan_bytes ring, exchange;
    struct prices *p;
    struct price price;

    (void)state;
    assert_non_null(r);
    plan_setup_open(&s, "model.preset=llama3-70b model.layers=8 data.seq_len=8192 precision.compute=bf16 data.val_fraction=0 "
                        "parallel.dp=512 parallel.cp=2 parallel.zero=3 recompute.mode=selective train.micro_batch=1 train.accumulate=2");
    struct search_space space = { .ranks = 1024, .global = 1024, .base = s.layout, .fixed = ~(unsigned)SEARCH_CP_METHOD };
    struct plan_job job = s.job;
    job.step.global = space.global;
    job.cluster = &c;
    OK(plan_of_places(&job, &s.layout, &ring, NULL));
    s.layout.cp_method = LS_CP_ALL_TO_ALL;
    OK(plan_of_places(&job, &s.layout, &exchange, NULL));
    OK(prices_open(&job, &c, s.layout.seq_len, &p));
    OK(prices_price(p, &s.layout, INFINITY, INFINITY, &price));
    prices_close(&p);
    space.room = 0.5 * (price.bytes + (double)exchange.total) + (double)exchange.other + group_buffers_of(&c, &s.layout);
    printf("ring %zu bytes, all-to-all %zu and %zu, by its price %.0f\n", ring.total, exchange.total, exchange.other, price.bytes);
    assert_true(ring.total < (size_t)price.bytes && (size_t)price.bytes < exchange.total);
    OK(search_layouts(&job, &c, &space, r));
    assert_int_equal(r->found, 1);
    assert_int_equal(r->best[0].layout.cp_method, LS_CP_RING);
    assert_int_equal(r->with[SEARCH_USES_CP].layout.cp_method, LS_CP_RING);
    options_close(&s.options);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_brute_force),
        cmocka_unit_test(test_dropped_layout_is_not_named),
    };

    threads_set(1);
    isa_cap(ISA_ANY); /* as plans for another machine do */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
