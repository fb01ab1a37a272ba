/* test_pipeline_overlap.c - a pipeline overlaps what its schedule overlaps: a run is compared with the simulated timeline, in logical
 * time.
 *
 * Each rank records the actions that it runs. No action may end before all actions have begun that begin earlier in the simulated
 * timeline. A runtime that adds a dependency to those of the schedule (a send that waits for its receive, a message that is sent
 * late, another order) does not finish; one that adds none always does, however slow the machine is. bench/mesh.py prints idle time in
 * seconds next to that of the simulated timeline.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include "base/base.h"
#include "base/threads.h"
#include "helper_forked.h"
#include "helper_pipeline.h"
#include "ir/program.h"

enum { RANKS = 4, ACTIONS_MOST = 64 };

/* Shared by the ranks. */
struct board { atomic_int missed, begun[RANKS][ACTIONS_MOST]; };

/* A rank's view: its run is at action `next` of its list. */
struct gate {
    struct board        *board;
    struct setting      *setting;
    ls_pipeline_timeline played;
    double               end[ACTIONS_MOST], timeout;
    int                  next, norms;
};

static double action_length(const ls_pipeline_schedule *s, const ls_action *a)
{
    return a->kind == LS_ACTION_BACKWARD && !s->split ? 2 : 1;
}

/* The first action of rank q that the timeline begins before `end` and that has not begun; count when there is none. */
static int gate_missing(const struct gate *g, int q, double end)
{
    const ls_pipeline_schedule *s = &g->setting->schedule;
    int k = 0;

    while (k < s->count[q] && (g->played.begin[q][k] >= end || atomic_load(&g->board->begun[q][k]))) k++;
    return k;
}

/* Action `next` has begun: it is the one of the list, and ends when the timeline lets it. */
static void gate_pass(struct gate *g, const ls_program *p, ls_action_kind kind)
{
    const ls_pipeline_schedule *s = &g->setting->schedule;
    int me = ls_comm_rank(g->setting->world), k = g->next++;
    double deadline = base_now() + g->timeout;

    RANKS_CHECK(k < s->count[me]);
    const ls_action *a = &s->list[me][k];
    if (a->kind != kind || ls_pipeline_program(g->setting->pipeline, a->chunk) != p || p->run.tag[p->run.slot] != a->micro)
        ranks_fail("action %d is of kind %d and micro-batch %d; the list has kind %d, chunk %d, micro-batch %d", k, (int)kind,
                   p->run.tag[p->run.slot], (int)a->kind, a->chunk, a->micro);
    atomic_store(&g->board->begun[me][k], 1);
    for (int q = 0; q < s->stages; q++)
        while (gate_missing(g, q, g->end[k]) < s->count[q] && !atomic_load(&g->board->missed)) {
            sched_yield();
            if (base_now() > deadline) atomic_store(&g->board->missed, 1);
        }
}

/* One block per stage: its attention is in the forward, attention's gradient in the backward, those of its two norms in the weights. */
static void gate_watch(void *ctx, const ls_program *p, const struct instruction *i, double began, double ended)
{
    struct gate *g = ctx;

    (void)began;
    (void)ended;
    if (i->op == OP_ATTENTION) gate_pass(g, p, LS_ACTION_FORWARD);
    if (i->op == OP_ATTENTION_GRAD) gate_pass(g, p, LS_ACTION_BACKWARD);
    if (i->op == OP_RMS_NORM_DW && i->block && g->setting->schedule.split && g->norms++ % 2 == 0) gate_pass(g, p, LS_ACTION_WEIGHTS);
}

static ls_status stages_build(void *ctx, ls_program *p, const ls_stage *stage)
{
    struct setting *s = ctx;
    ls_partition_options o = LS_PARTITION_DEFAULTS;
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, 4 }), targets = ls_input(p, "targets", LS_I32, 2, (size_t[]){ 1, 4 });
    ls_value denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });

    ls_backward(p, ls_output(p, "loss", ls_model_loss(p, &s->model, tokens, targets, denominator, LS_NONE)));
    o.stage = *stage;
    return ls_partition(p, s->mesh, &s->model, &o);
}

static ls_status stages_feed(void *ctx, ls_program *p, int chunk, int micro)
{
    static const int32_t tokens[4] = { 1, 2, 3, 4 };
    static const float one = 1;

    (void)ctx;
    (void)chunk;
    program_tag(p, micro);
    if (ls_program_has(p, "tokens")) LS_TRY(ls_program_write(p, "tokens", tokens, LS_I32, 4));
    if (ls_program_has(p, "targets")) LS_TRY(ls_program_write(p, "targets", tokens, LS_I32, 4));
    return ls_program_has(p, "denominator") ? ls_program_write(p, "denominator", &one, LS_F32, 1) : LS_OK;
}

static void timeline_play(const ls_pipeline_schedule *s, ls_pipeline_timeline *out)
{
    double forward[16], backward[16], weights[16];

    for (int k = 0; k < 16; k++) {
        forward[k] = weights[k] = 1;
        backward[k] = s->split ? 1 : 2;
    }
    RANKS_TRY(ls_pipeline_play(s, &(ls_pipeline_times){ .forward = forward, .backward = backward, .weights = weights }, out));
}

/* Relations between the times of a run. */
static void check_times(const struct setting *s)
{
    ls_pipeline_spent t = ls_pipeline_last_times(s->pipeline);

    RANKS_CHECK(t.forward > 0 && t.backward > 0 && (t.weights > 0) == s->schedule.split);
    RANKS_CHECK(t.forward + t.backward + t.weights + t.waiting <= t.total * 1.0001);
}

/* early: the timeline starts the first action of the last rank immediately, which is impossible. */
struct held { struct board *board; const char *schedule; int chunks, micro; bool early; };

static void run_held(ls_comm *world, void *ctx)
{
    const struct held *h = ctx;
    struct setting s = { .world = world, .model = *distributed_model(NET_LLAMA) };
    struct gate g = { .board = h->board, .setting = &s, .timeout = h->early ? 0.5 : 60 };
    ls_pipeline_options o = { .schedule = &s.schedule, .build = stages_build, .ctx = &s, .compile = LS_COMPILE_DEFAULTS };
    ls_mesh_shape shape = LS_MESH_DEFAULTS;
    int me = ls_comm_rank(world);

    threads_set(1);
    shape.pp = ls_comm_size(world);
    s.model.layers = (size_t)(shape.pp * h->chunks);
    RANKS_TRY(ls_mesh_open(world, &shape, &s.mesh));
    RANKS_TRY(ls_store_new(&(ls_store_options){ "cpu", LS_F32, 0, 7, 0 }, &s.store));
    RANKS_TRY(ls_pipeline_schedule_make(h->schedule, shape.pp, h->chunks, h->micro, &s.schedule));
    RANKS_TRY(ls_pipeline_open(s.store, s.mesh, &o, &s.pipeline));
    timeline_play(&s.schedule, &g.played);
    RANKS_CHECK(s.schedule.count[me] <= ACTIONS_MOST);
    for (int k = 0; k < s.schedule.count[me]; k++) g.end[k] = g.played.begin[me][k] + action_length(&s.schedule, &s.schedule.list[me][k]);
    if (h->early) g.played.begin[shape.pp - 1][0] = 0;
    for (int c = 0; c < h->chunks; c++) program_watch(ls_pipeline_program(s.pipeline, c), gate_watch, &g);
    RANKS_TRY(ls_pipeline_run(s.pipeline, stages_feed, NULL, &s));
    check_times(&s);
    RANKS_CHECK(g.next == s.schedule.count[me]);
    ls_pipeline_played_free(&s.schedule, &g.played);
    trial_close(&s);
}

static bool held_misses(const char *schedule, int chunks, int micro, bool early)
{
    struct board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(b != MAP_FAILED);
    forked_run(RANKS, run_held, &(struct held){ b, schedule, chunks, micro, early });
    bool missed = atomic_load(&b->missed);
    munmap(b, sizeof *b);
    return missed;
}

static void run_overlaps_as_played(void **state)
{
    static const struct { const char *schedule; int chunks, micro; } cases[] = {
        { "gpipe", 1, 4 }, { "1f1b", 1, 4 }, { "interleaved", 2, 4 }, { "zb-h1", 1, 4 }, { "zb-v", 2, 4 },
        { "gpipe", 1, 6 }, { "1f1b", 1, 7 }, { "interleaved", 2, 8 }, { "zb-h1", 1, 7 }, { "zb-v", 2, 7 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (held_misses(cases[i].schedule, cases[i].chunks, cases[i].micro, false))
            fail_msg("%s, %d micro-batches: an action that should run beside others did not begin", cases[i].schedule, cases[i].micro);
}

/* The gate can fail: no run can follow an impossible timeline. */
static void impossible_timeline_is_missed(void **state)
{
    (void)state;
    assert_true(held_misses("gpipe", 1, 4, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_overlaps_as_played),
        cmocka_unit_test(impossible_timeline_is_missed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
