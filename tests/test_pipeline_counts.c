/* test_pipeline_counts.c - memory, messages and waits of pipelines; refused schedules; and how the other ranks end if one fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/threads.h"
#include "helper_forked.h"
#include "helper_pipeline.h"
#include "ir/program.h"
#include "train/faults/fault_points.h"

enum { CHANNELS = 16, MESSAGE = PIPELINE_BATCH * PIPELINE_TIME * CHANNELS * 4 /* bytes */ };

static void open_trial(ls_comm *world, const struct trial *t, struct setting *s)
{
    threads_set(1);
    if (trial_open(world, t, s) < 0)
        ranks_fail("%s: %s", trial_name(t, ls_comm_size(world)), ls_errmsg());
}

static void setting_run(struct setting *s)
{
    ls_store_zero_grad(s->store);
    if (ls_pipeline_run(s->pipeline, trial_before, trial_after, s) < 0)
        ranks_fail("%s: %s", s->schedule.name, ls_errmsg());
}

/* ---- memory ---- */

static size_t category_held(enum mem_category c)
{
    struct mem_stats now;

    mem_read(&now);
    return now.now[c];
}

/* GPipe holds M micro-batches of activations, 1F1B min(M, P - r): bytes of slots, exactly, and the ledger says the same. */
static void check_memory(ls_comm *world, void *ctx)
{
    enum { MICRO = 6 };
    size_t slot[2], shared[2], bytes[2];

    (void)ctx;
    for (int k = 0; k < 2; k++) {
        struct trial t = { .schedule = k ? "1f1b" : "gpipe", .chunks = 1, .micro = MICRO, .net = NET_LLAMA };
        int want = k ? MIN(MICRO, ls_comm_size(world) - ls_comm_rank(world)) : MICRO;
        size_t nothing = category_held(MEM_ACTIVATIONS);
        struct setting s;

        open_trial(world, &t, &s);
        const ls_program *p = ls_pipeline_program(s.pipeline, 0);
        slot[k] = p->results.arena_bytes[ARENA_SLOT];
        shared[k] = p->results.arena_bytes[ARENA_ACTIVATIONS];
        bytes[k] = category_held(MEM_ACTIVATIONS) - nothing;
        RANKS_CHECK(p->arguments.options.slots == want && slot[k] > 0);
        RANKS_CHECK(bytes[k] == shared[k] + (size_t)want * slot[k]);
        RANKS_CHECK(ls_program_cost(p).activations == bytes[k]);
        setting_run(&s);
        RANKS_CHECK(category_held(MEM_ACTIVATIONS) - nothing == bytes[k]);
        trial_close(&s);
    }
    RANKS_CHECK(slot[0] == slot[1] && shared[0] == shared[1]);
}

static void memory_is_the_slots_in_flight(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++)
        forked_run(n, check_memory, NULL);
}

/* The second run allocates only the memory of messages in flight, which is the same in every run. */
static void check_steady(ls_comm *world, void *ctx)
{
    struct trial t = { .schedule = "zb-h1", .chunks = 1, .micro = 5, .net = NET_GPT2 };
    struct mem_stats at[3];
    struct setting s;

    (void)ctx;
    open_trial(world, &t, &s);
    setting_run(&s);
    for (int k = 0; k < 3; k++) {
        RANKS_TRY(ls_barrier(world));
        mem_read(&at[k]);
        setting_run(&s);
    }
    RANKS_CHECK(at[1].calls == at[0].calls && at[2].calls == at[0].calls);
    RANKS_CHECK(at[2].total_now == at[0].total_now && at[2].total_peak == at[0].total_peak);
    trial_close(&s);
}

static void test_steady_state(void **state)
{
    (void)state;
    forked_run(3, check_steady, NULL);
}

/* ---- messages ---- */

struct counts { uint64_t forward[8], back[8]; ls_comm_count sent[2]; };

static struct counts pipeline_counts_count(const struct setting *s)
{
    const ls_comm *forward = ls_mesh_comm(s->mesh, LS_GROUP_PP), *back = ls_mesh_comm(s->mesh, LS_GROUP_PP_BACK);
    struct counts c = { 0 };

    for (int q = 0; q < ls_comm_size(s->world); q++) {
        c.forward[q] = ls_comm_bytes_to(forward, q);
        c.back[q] = ls_comm_bytes_to(back, q);
    }
    c.sent[0] = ls_comm_counters(forward, LS_COLLECTIVE_SEND);
    c.sent[1] = ls_comm_counters(back, LS_COLLECTIVE_SEND);
    return c;
}

/* Only neighbors talk: a stage's output for each micro-batch goes to the rank of the next stage, the gradient to that of the one
 * before; nothing where both are on one rank. */
static void check_messages_of(ls_comm *world, const struct trial *t)
{
    int n = ls_comm_size(world), me = ls_comm_rank(world), messages = 0;
    uint64_t forward[8] = { 0 }, back[8] = { 0 };
    struct setting s;
    size_t said;

    open_trial(world, t, &s);
    for (int c = 0; c < t->chunks; c++) {
        int stage = ls_pipeline_stage(&s.schedule, me, c),
            to = stage + 1 < n * t->chunks ? ls_pipeline_rank(&s.schedule, stage + 1, NULL) : me;
        int from = stage > 0 ? ls_pipeline_rank(&s.schedule, stage - 1, NULL) : me;

        forward[to] += to == me ? 0 : (uint64_t)t->micro * MESSAGE;
        back[from] += from == me || !s.schedule.backward ? 0 : (uint64_t)t->micro * MESSAGE;
        messages += (to != me) * t->micro + (from != me && s.schedule.backward) * t->micro;
    }
    setting_run(&s);
    RANKS_TRY(ls_barrier(world));
    struct counts was = pipeline_counts_count(&s);
    setting_run(&s);
    RANKS_TRY(ls_barrier(world));
    struct counts now = pipeline_counts_count(&s);
    for (int q = 0; q < n; q++)
        if (now.forward[q] - was.forward[q] != forward[q] || now.back[q] - was.back[q] != back[q])
            ranks_fail("%s: rank %d sent %llu and %llu bytes to %d; %llu and %llu were due", trial_name(t, n), me,
                       (unsigned long long)(now.forward[q] - was.forward[q]), (unsigned long long)(now.back[q] - was.back[q]), q,
                       (unsigned long long)forward[q], (unsigned long long)back[q]);
    RANKS_CHECK(now.sent[0].calls + now.sent[1].calls - was.sent[0].calls - was.sent[1].calls == (uint64_t)messages);
    size_t bytes = ls_pipeline_bytes(s.pipeline, &said);
    RANKS_CHECK(said == (size_t)messages && bytes == said * MESSAGE);
    if (t->chunks == 1) {  /* P - 1 sends of a micro-batch forward, P - 1 back */
        double all = messages;

        RANKS_TRY(ls_all_reduce(world, &all, &all, 1, LS_F64, LS_SUM, NULL));
        RANKS_CHECK(all == (s.schedule.backward ? 2 : 1) * t->micro * (n - 1));
    }
    trial_close(&s);
}

static void check_messages(ls_comm *world, void *ctx)
{
    const char *name;

    (void)ctx;
    for (int i = 0; (name = ls_pipeline_schedule_name(i)); i++) {
        int chunks = strcmp(name, "interleaved") == 0 || strcmp(name, "zb-v") == 0 || strcmp(name, "forward-v") == 0 ? 2 : 1;

        check_messages_of(world, &(struct trial){ .schedule = name, .chunks = chunks, .micro = 4, .net = NET_LLAMA_TIED });
    }
}

static void test_messages(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++)
        forked_run(n, check_messages, NULL);
}

/* ---- what is refused ---- */

static void trial_refused(ls_comm *world, struct trial t, const char *why)
{
    struct setting s;

    if (trial_open(world, &t, &s) != LS_EINVAL || !strstr(ls_errmsg(), why))
        ranks_fail("'%s' is not in '%s'", why, ls_errmsg());
    trial_close(&s);
}

static void check_refusals(ls_comm *world, void *ctx)
{
    static const int gap[] = { 0, 4, 4, PIPELINE_LAYERS }, late[] = { 1, 4, 5, PIPELINE_LAYERS }, few[] = { 0, 4, 5, 8 };
    struct trial t = { .schedule = "1f1b", .chunks = 1, .micro = 3, .net = NET_GPT2 };
    ls_pipeline_schedule s;
    ls_pipeline_options o = { .schedule = &s };
    struct setting open;
    ls_pipeline *none = NULL;

    (void)ctx;
    t.begin = gap;
    trial_refused(world, t, "stage 1 of 3 has blocks 4 to 4 of the model's 9");
    t.begin = late;
    trial_refused(world, t, "the first from block 0");
    t.begin = few;
    trial_refused(world, t, "the last to block 9");
    t.begin = NULL;
    t.schedule = "interleaved";
    t.chunks = 4;
    trial_refused(world, t, "model.layers=9 in parallel.pp=3 * parallel.vpp=4 stages: every stage needs at least one layer");
    t = (struct trial){ .schedule = "1f1b", .chunks = 1, .micro = 3, .net = NET_GPT2 };
    open_trial(world, &t, &open);
    RANKS_TRY(ls_pipeline_schedule_make("1f1b", 2, 1, 4, &s));
    RANKS_CHECK(ls_pipeline_open(open.store, open.mesh, &o, &none) == LS_EINVAL && !none);
    RANKS_CHECK(strstr(ls_errmsg(), "the schedule has 2 stages, but the mesh has pp 3"));
    s.list[0][0].micro = 9;
    RANKS_CHECK(ls_pipeline_open(open.store, open.mesh, &o, &none) == LS_EINVAL && !none);
    ls_pipeline_schedule_free(&s);
    trial_close(&open);
}

static void test_refusals(void **state)
{
    (void)state;
    forked_run(3, check_refusals, NULL);
}

/* ---- failures ---- */

/* One allocation after another fails: a message, and everything is given back. */
static void check_allocations(ls_comm *world, void *ctx)
{
    const struct trial t = { .schedule = "interleaved", .chunks = 2, .micro = 2, .net = NET_LLAMA_TIED };
    struct mem_stats before, after;
    struct setting s;
    ls_status st = LS_ENOMEM;
    int n;

    (void)ctx;
    threads_set(1);
    open_trial(world, &t, &s);
    trial_close(&s);
    for (n = 1; st == LS_ENOMEM; n += n < 200 ? 1 : 7) {
        mem_read(&before);
        mem_fail_at(n);
        st = trial_open(world, &t, &s);
        mem_fail_at(0);
        RANKS_CHECK(st == LS_OK || (st == LS_ENOMEM && ls_errmsg()[0]));
        trial_close(&s);
        mem_read(&after);
        if (after.total_now != before.total_now)
            ranks_fail("allocation %d fails: %zu bytes stay", n, after.total_now - before.total_now);
    }
    RANKS_CHECK(st == LS_OK && n > 500);
}

static void test_allocations(void **state)
{
    (void)state;
    forked_run(1, check_allocations, NULL);
}

static ls_status fail_at_two(void *ctx, ls_program *p, int chunk, int micro)
{
    struct setting *s = ctx;

    if (ls_comm_rank(s->world) == 1 && micro == 2)
        return ls_fail(LS_EIO, "no more data");
    return trial_before(ctx, p, chunk, micro);
}

/* The rank keeps its own message, the others receive it or reach the deadline; no rank hangs, and everything is released. */
static void fail_on_one(int rank, int n, const char *where, void *ctx)
{
    struct trial t = { .schedule = "1f1b", .chunks = 1, .micro = 5, .net = NET_LLAMA };
    struct setting s;
    ls_comm *world;

    (void)ctx;
    RANKS_TRY(ls_comm_open(where, rank, n, &world));
    ls_comm_set_timeout(world, 1000); /* no rank waits that long */
    open_trial(world, &t, &s);
    ls_status st = ls_pipeline_run(s.pipeline, fail_at_two, NULL, &s);
    if (rank == 1)
        RANKS_CHECK(st == LS_EIO && strcmp(ls_errmsg(), "no more data") == 0);
    else
        RANKS_CHECK(st == LS_EIO && strcmp(ls_errmsg(), "rank 1: no more data") == 0);
    trial_close(&s);
    ls_comm_close(&world);
}

static void failed_rank_ends_the_job(void **state)
{
    (void)state;
    ranks_pass(3, 60, fail_on_one, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_the_slots_in_flight),
        cmocka_unit_test(test_steady_state),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(failed_rank_ends_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
