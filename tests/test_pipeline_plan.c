/* test_pipeline_plan.c - plans of all ranks simulated together, with messages that complete only when both sides have posted them and
 * own their buffers until then: every schedule finishes, and every action finds its inputs in its slot.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "parallel/pipeline/pipeline_plan.h"
#include "parallel/pipeline/schedule.h"

enum { RANKS = 6, CHUNKS = 3, SLOTS = 12, LINE = 400 };
enum { IN, OUT, DIN, DOUT, ENDS }; /* buffers of a slot */

/* A buffer: the micro-batch that it holds; under way: a message that both sides have not reached yet. */
struct buffer { int micro; bool under_way; };
struct rank { struct pipeline_plan plan; int at; struct buffer slot[CHUNKS][SLOTS][ENDS]; };
/* Messages of a kind from one rank to another, in order: buffers of those that one side has posted. */
struct line { struct buffer *send[LINE], *recv[LINE]; int sends, recvs, met; };

struct world { const ls_pipeline_schedule *s; struct rank rank[RANKS]; struct line line[2][RANKS][RANKS]; };

static void exchange_all(struct line *l)
{
    while (l->met < MIN(l->sends, l->recvs)) {
        struct buffer *from = l->send[l->met], *to = l->recv[l->met++];

        to->micro = from->micro;
        from->under_way = to->under_way = false;
    }
}

static void pipeline_plan_post(struct world *w, int r, const struct plan_step *s)
{
    bool forward = s->action.kind == LS_ACTION_FORWARD;
    struct buffer *b = &w->rank[r].slot[s->action.chunk][s->slot][forward ? IN : DOUT];
    struct line *l = &w->line[s->action.kind][s->from][r];

    assert_false(b->under_way);
    b->under_way = true;
    l->recv[l->recvs++] = b;
    exchange_all(l);
}

static void deliver(struct world *w, int r, const struct plan_step *s, struct buffer *b)
{
    if (s->to < 0)
        return;
    struct line *l = &w->line[s->action.kind][r][s->to];
    b->under_way = true;
    l->send[l->sends++] = b;
    exchange_all(l);
}

/* False: it waits. */
static bool run_step(struct world *w, int r, const struct plan_step *s)
{
    struct rank *me = &w->rank[r];
    struct buffer *b = me->slot[s->action.chunk][s->slot];
    int stage = ls_pipeline_stage(w->s, r, s->action.chunk), last = w->s->stages * w->s->chunks - 1, m = s->action.micro;

    switch (s->action.kind) {
    case LS_ACTION_FORWARD:
        if (b[IN].under_way || b[OUT].under_way)
            return false;
        if (s->chunk >= 0)
            b[IN].micro = me->slot[s->chunk][s->other][OUT].micro;
        assert_true(stage == 0 || b[IN].micro == m);
        b[IN].micro = b[OUT].micro = m;
        deliver(w, r, s, &b[OUT]);
        return true;
    case LS_ACTION_BACKWARD:
        if (b[DOUT].under_way || b[DIN].under_way)
            return false;
        assert_true(stage == last || b[DOUT].micro == m);
        assert_int_equal(b[IN].micro, m); /* the forward's values are still there */
        b[DIN].micro = m;
        if (s->chunk >= 0)
            me->slot[s->chunk][s->other][DOUT].micro = m;
        deliver(w, r, s, &b[DIN]);
        return true;
    default:
        assert_int_equal(b[IN].micro, m);
        return true;
    }
}

static void play(struct world *w)
{
    bool moved = true;

    while (moved) {
        moved = false;
        for (int r = 0; r < w->s->stages; r++) {
            struct rank *me = &w->rank[r];

            for (; me->at < me->plan.n; me->at++, moved = true)
                if (me->plan.step[me->at].receive)
                    pipeline_plan_post(w, r, &me->plan.step[me->at]);
                else if (!run_step(w, r, &me->plan.step[me->at]))
                    break;
        }
    }
}

static void check_rank(const struct world *w, int r, bool exact)
{
    const struct rank *me = &w->rank[r];
    int last[3][CHUNKS] = { { 0 } };

    if (me->at < me->plan.n)
        fail_msg("%s, %d stages, %d chunks, %d micro-batches: rank %d waits for ever at step %d", w->s->name, w->s->stages, w->s->chunks,
                 w->s->micro, r, me->at);
    for (int c = 0; c < w->s->chunks; c++) {
        assert_true(me->plan.slots[c] == ls_pipeline_schedule_slots(w->s, r, c) || !exact);
        for (int s = 0; s < me->plan.slots[c]; s++)
            for (int e = 0; e < ENDS; e++)
                assert_false(me->slot[c][s][e].under_way);
    }
    for (int k = 0; k < me->plan.n; k++)
        if (!me->plan.step[k].receive)
            last[me->plan.step[k].action.kind][me->plan.step[k].action.chunk] += me->plan.step[k].last;
    for (int kind = 0; kind < 1 + w->s->backward + w->s->split; kind++)
        for (int c = 0; c < w->s->chunks; c++)
            assert_int_equal(last[kind][c], 1);
}

/* exact: no more slots than the schedule says. */
static void check_schedule(const ls_pipeline_schedule *s, bool exact)
{
    static struct world w;
    int stages = s->stages;

    assert_int_equal(ls_pipeline_schedule_check(s), LS_OK);
    memset(&w, 0, sizeof w);
    memset(w.rank, 0xff, sizeof w.rank);
    w.s = s;
    for (int r = 0; r < stages; r++) {
        for (int c = 0; c < CHUNKS; c++)
            for (int k = 0; k < SLOTS * ENDS; k++)
                w.rank[r].slot[c][k / ENDS][k % ENDS] = (struct buffer){ -1, false };
        w.rank[r].at = 0;
        assert_int_equal(pipeline_plan_make(s, r, &w.rank[r].plan), LS_OK);
    }
    play(&w);
    for (int r = 0; r < stages; r++) {
        check_rank(&w, r, exact);
        pipeline_plan_free(&w.rank[r].plan);
    }
}

/* 0: the schedule does not exist. */
static int check_named(const char *name, int stages, int chunks, int micro)
{
    ls_pipeline_schedule s;

    if (ls_pipeline_schedule_make(name, stages, chunks, micro, &s) < 0)
        return 0;
    check_schedule(&s, true);
    ls_pipeline_schedule_free(&s);
    return 1;
}

static void test_every_schedule(void **state)
{
    const char *name;

    (void)state;
    for (int i = 0, n = 0; (name = ls_pipeline_schedule_name(i)); i++, n = 0) {
        for (int stages = 1; stages <= RANKS; stages++)
            for (int chunks = 1; chunks <= CHUNKS; chunks++)
                for (int micro = 1; micro <= SLOTS; micro++)
                    n += check_named(name, stages, chunks, micro);
        assert_true(n >= RANKS * SLOTS);
    }
}

/* ---- unusual schedules ---- */

/* Ranks choose any action whose inputs are available, messages in the order in which they were sent. */
struct game {
    ls_pipeline_schedule *s;
    uint64_t   random;
    ls_action *queue[2][RANKS][RANKS];  /* kind, from, to */
    int        sent[2][RANKS][RANKS], taken[2][RANKS][RANKS];
    bool       done[3][RANKS * CHUNKS][SLOTS];  /* by kind, stage, micro-batch */
};

static unsigned game_draw(struct game *g, unsigned n)
{
    g->random = g->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(g->random >> 33) % n;
}

static bool is_open(const struct game *g, int r, ls_action a)
{
    int stage = ls_pipeline_stage(g->s, r, a.chunk), from = schedule_recv_stage(g->s, r, &a),
        peer = from < 0 ? r : ls_pipeline_rank(g->s, from, NULL);

    if (g->done[a.kind][stage][a.micro] || (a.kind && !g->done[a.kind - 1][stage][a.micro]))
        return false;
    if (peer == r)
        return from < 0 || g->done[a.kind][from][a.micro];
    const ls_action *next = &g->queue[a.kind][peer][r][g->taken[a.kind][peer][r]];
    return g->taken[a.kind][peer][r] < g->sent[a.kind][peer][r] && next->chunk == a.chunk && next->micro == a.micro;
}

static void pipeline_plan_test_take(struct game *g, int r, ls_action a)
{
    int from = schedule_recv_stage(g->s, r, &a), to = schedule_send_stage(g->s, r, &a), chunk;
    int source = from < 0 ? r : ls_pipeline_rank(g->s, from, NULL), target = to < 0 ? r : ls_pipeline_rank(g->s, to, &chunk);

    g->done[a.kind][ls_pipeline_stage(g->s, r, a.chunk)][a.micro] = true;
    if (source != r)
        g->taken[a.kind][source][r]++;
    if (target != r)
        g->queue[a.kind][r][target][g->sent[a.kind][r][target]++] = (ls_action){ a.kind, chunk, a.micro };
    schedule_put(g->s, r, a.kind, a.chunk, a.micro);
}

/* One action of rank r, drawn among those that are open; false: none is. */
static bool move(struct game *g, int r)
{
    ls_action open[3 * CHUNKS * SLOTS];
    unsigned n = 0;

    for (int kind = 0; kind < 1 + g->s->backward + g->s->split; kind++)
        for (int c = 0; c < g->s->chunks; c++)
            for (int m = 0; m < g->s->micro; m++) {
                ls_action a = { (ls_action_kind)kind, c, m };

                if (is_open(g, r, a))
                    open[n++] = a;
            }
    if (n)
        pipeline_plan_test_take(g, r, open[game_draw(g, n)]);
    return n > 0;
}

static void play_random(uint64_t seed)
{
    static struct game g;
    ls_pipeline_schedule s;
    int stages, chunks, left;
    bool split;

    memset(&g, 0, sizeof g);
    g.random = seed;
    stages = 1 + (int)game_draw(&g, 4), chunks = 1 + (int)game_draw(&g, 3), split = game_draw(&g, 2);
    bool turned = chunks == 2 && game_draw(&g, 2);
    assert_int_equal(
        schedule_new("random", stages, chunks, 1 + (int)game_draw(&g, 6), true, split, turned ? LS_STAGES_V : LS_STAGES_LOOP, &s), LS_OK);
    g.s = &s;
    for (int k = 0; k < 2 * RANKS * RANKS; k++)
        g.queue[k / RANKS / RANKS][k / RANKS % RANKS][k % RANKS] = calloc((size_t)schedule_room(&s), sizeof(ls_action));
    for (left = stages * schedule_room(&s); left; )
        left -= move(&g, (int)game_draw(&g, (unsigned)stages));
    check_schedule(&s, false);
    for (int k = 0; k < 2 * RANKS * RANKS; k++)
        free(g.queue[k / RANKS / RANKS][k / RANKS % RANKS][k % RANKS]);
    ls_pipeline_schedule_free(&s);
}

static void test_random_schedules(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++)
        play_random(seed * 7919);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_schedule),
        cmocka_unit_test(test_random_schedules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
