/* test_comm_verdicts.c - the line that every rank prints when a rank makes a mismatched call, is late, is stopped or dies. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "comm/algorithms/steps.h"
#include "helper_clock.h"
#include "helper_ranks.h"
#include "train/faults/fault_points.h"

static const double LIMIT = 120; /* seconds after which a test is killed */

struct fault { const char *what; int rank; const char *algorithm; };

/* The rank at fault makes a wrong call as call 2; every rank reports it in one line. */
static void go_wrong(int rank, int n, const char *where, void *ctx)
{
    const struct fault *f = ctx;
    bool mine = rank == f->rank, order = !strcmp(f->what, "order");
    float x[64] = { 0 }, all[64 * RANKS_MOST];
    ls_status st = LS_OK;
    ls_comm *c;

    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    if (f->algorithm) RANKS_TRY(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, f->algorithm));
    st = ls_barrier(c);  /* a rank may still be in the barrier when the others report the mismatch */
    if (mine && !order) comm_inject(c, f->what);
    if (st >= 0 && mine && order) st = ls_all_gather(c, x, all, 64, LS_F32, NULL);
    if (st >= 0) st = ls_all_reduce(c, x, x, 64, LS_F32, LS_SUM, NULL);
    if (st >= 0) st = ls_all_gather(c, x, all, 64, LS_F32, NULL);
    if (st >= 0) st = ls_barrier(c);
    ranks_say("%s", ls_errmsg());
    if (st != LS_EPEER) ranks_fail("%s on rank %d: rank %d got status %d: %s", f->what, f->rank, rank, (int)st, ls_errmsg());
    RANKS_CHECK(ls_all_reduce(c, x, x, 64, LS_F32, LS_SUM, NULL) == LS_EPEER);
    ranks_say("%s", ls_errmsg());
    ls_comm_close(&c);
}

static void same_line(int n, const struct rank_end *e, const char *text)
{
    for (int i = 0; i < n; i++) {
        if (e[i].code || e[i].late) fail_msg("%s", rank_trouble(i, &e[i]));
        if (!strstr(e[i].said, text)) fail_msg("rank %d says \"%s\"; wanted \"...%s...\"", i, e[i].said, text);
        assert_string_equal(e[i].said, e[0].said);
    }
}

static void mismatch_is_reported_on_all_ranks(void **state)
{
    static const char *const whats[] = { "count", "type", "op", "skip", "order" };
    static const char *const algorithms[] = { NULL, "ring", "direct", "tree" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(whats); i++)
        for (size_t a = 0; a < COUNT_OF(algorithms); a++)
            for (int rank = 0; rank < 3; rank++) {
                struct fault f = { whats[i], rank, algorithms[a] };
                struct rank_end e[3];
                char who[32];

                ranks_run(3, &(struct ranks_options){ .seconds = LIMIT }, go_wrong, &f, e);
                snprintf(who, sizeof who, "rank %d called", rank);
                same_line(3, e, who);
                same_line(3, e, "#2 of world: rank ");
            }
}

/* Time passes while the other ranks wait in their calls, until one of them has a verdict. */
static void outlast_the_timeout(void)
{
    while (test_clock_step(0.1)) continue;
}

/* The late rank makes its call after another rank has reported its verdict. */
struct late { const char *algorithm; struct test_clock *clock; };

static void come_late(int rank, int n, const char *where, void *ctx)
{
    const struct late *l = ctx;
    float x = 1;
    ls_comm *c;

    test_clock_use(l->clock, rank);
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    if (l->algorithm) RANKS_TRY(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, l->algorithm));
    RANKS_TRY(ls_barrier(c));
    ls_comm_set_timeout(c, 3);
    if (rank == 2) outlast_the_timeout();
    ls_status st = ls_all_reduce(c, &x, &x, 1, LS_F32, LS_SUM, NULL);
    test_clock_leave();
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    ls_comm_close(&c);
}

static void late_rank_is_named(void **state)
{
    static char *const algorithms[] = { NULL, "ring" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(algorithms); i++) {
        struct late l = { algorithms[i], test_clock_open(4) };
        struct rank_end e[4];

        ranks_run(4, &(struct ranks_options){ .seconds = LIMIT }, come_late, &l, e);
        test_clock_close(&l.clock);
        same_line(4, e, "all_reduce #2 of world (f32, 1, sum): rank 2 did not call it within 3 s: its last call was barrier #1, ");
        same_line(4, e, "which ended ");
        same_line(4, e, " s ago; ranks 0, 1, 3 wait in all_reduce #2");
    }
}

enum { LARGE = 1 << 18 };  /* elements: too many to be copied when the call is made */

/* Rank 1 is stopped inside the call until rank 0 has its verdict. Rank 2, whose call is not waited for, moves the clock. */
static void stop_inside(int rank, int n, const char *where, void *ctx)
{
    int32_t pid = (int32_t)getpid(), pids[RANKS_MOST];
    float *x = mem_zalloc(MEM_OTHER, LARGE * sizeof *x);
    ls_work *w = NULL;
    ls_comm *c;

    test_clock_use(ctx, rank);
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    RANKS_TRY(ls_all_gather(c, &pid, pids, 1, LS_I32, NULL));
    ls_comm_set_timeout(c, 1);
    if (rank != 1) ranks_wait_state(pids[1], 'T');
    ls_status st = ls_all_reduce(c, x, x, LARGE, LS_F32, LS_SUM, &w);
    if (rank == 1) {
        test_clock_stop();
        raise(SIGSTOP);
    }
    if (rank == 2) outlast_the_timeout();
    if (st >= 0) st = ls_work_wait(&w);
    test_clock_leave();
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    if (rank == 0) kill(pids[1], SIGCONT);
    ls_comm_close(&c);
    mem_free(x);
}

static void stopped_rank_is_named(void **state)
{
    struct test_clock *clock = test_clock_open(3);
    struct rank_end e[3];

    (void)state;
    ranks_run(3, &(struct ranks_options){ .seconds = LIMIT }, stop_inside, clock, e);
    test_clock_close(&clock);
    same_line(3, e, "all_reduce #2 of world (f32, 262144, sum): rank 1 was stopped in it and made no progress for 1 s; ranks 0, 2 wait in");
}

static void send_late(int rank, int n, const char *where, void *ctx)
{
    float x = 1;
    ls_comm *c;

    test_clock_use(ctx, rank);
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    RANKS_TRY(ls_barrier(c));
    ls_comm_set_timeout(c, 0.5);
    if (rank == 1) outlast_the_timeout();
    ls_status st = rank ? ls_send(c, &x, 1, LS_F32, 0, NULL) : ls_recv(c, &x, 1, LS_F32, 1, NULL);
    test_clock_leave();
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    ls_comm_close(&c);
}

static void late_sender_is_named(void **state)
{
    struct test_clock *clock = test_clock_open(2);
    struct rank_end e[2];

    (void)state;
    ranks_run(2, &(struct ranks_options){ .seconds = LIMIT }, send_late, clock, e);
    test_clock_close(&clock);
    same_line(2, e, "recv #1 of world (f32, 1, from rank 1): rank 1 did not call the matching send within 0.5 s: its last call was ");
    same_line(2, e, "its last call was barrier #1, which ended ");
}

/* ---- waits over several groups ---- */

static int in_pairs(void *ctx, int rank) { return (rank + *(int *)ctx) % 4 / 2; }

/* Pairs 0-1 and 2-3, and pairs 1-2 and 3-0. Rank 2 is late in both of its pairs; rank 0 waits for rank 1, which waits for rank 2. */
static void come_late_to_a_pair(int rank, int n, const char *where, void *ctx)
{
    static const bool other_pair[4] = { false, true, false, false };  /* whether a rank waits in its second pair */
    ls_comm *c, *pair[2];
    float x = 1;

    test_clock_use(ctx, rank);
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    for (int i = 0; i < 2; i++) {
        RANKS_TRY(comm_split_by(c, in_pairs, &(int){ i }, &pair[i]));
        comm_name(pair[i], i ? "far" : "near");
    }
    ls_comm_set_timeout(c, 1);
    if (rank == 2) outlast_the_timeout();
    ls_status st = ls_all_reduce(pair[other_pair[rank]], &x, &x, 1, LS_F32, LS_SUM, NULL);
    test_clock_leave();
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    for (int i = 0; i < 2; i++) ls_comm_close(&pair[i]);
    ls_comm_close(&c);
}

static void root_cause_is_named_across_groups(void **state)
{
    struct test_clock *clock = test_clock_open(4);
    struct rank_end e[4];

    (void)state;
    ranks_run(4, &(struct ranks_options){ .seconds = LIMIT }, come_late_to_a_pair, clock, e);
    test_clock_close(&clock);
    same_line(4, e, "(f32, 1, sum): rank 2 did not call it within 1 s: its last call was barrier #2 of world, which ended ");
}

/* Ranks 0 and 1 make the calls of two groups in different orders. Rank 2, which is in neither call, moves the clock. */
static void call_crosswise(int rank, int n, const char *where, void *ctx)
{
    ls_comm *c, *both[2];
    float x = 1;

    test_clock_use(ctx, rank);
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    for (int i = 0; i < 2; i++) {
        RANKS_TRY(ls_comm_split(c, rank < 2 ? 0 : 1, rank, &both[i]));
        comm_name(both[i], i ? "second" : "first");
    }
    ls_comm_set_timeout(c, 1);
    if (rank == 2) outlast_the_timeout();
    ls_status st = rank < 2 ? ls_all_reduce(both[rank], &x, &x, 1, LS_F32, LS_SUM, NULL) : ls_barrier(c);
    test_clock_leave();
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    for (int i = 0; i < 2; i++) ls_comm_close(&both[i]);
    ls_comm_close(&c);
}

static void cycle_of_waits_is_named(void **state)
{
    struct test_clock *clock = test_clock_open(3);
    struct rank_end e[3];

    (void)state;
    ranks_run(3, &(struct ranks_options){ .seconds = LIMIT }, call_crosswise, clock, e);
    test_clock_close(&clock);
    same_line(3, e, "deadlock: the ranks made their calls in different orders: rank ");
    same_line(3, e, "rank 0 waits for rank 1 in all_reduce #1 of first (f32, 1, sum)");
    same_line(3, e, "rank 1 waits for rank 0 in all_reduce #1 of second (f32, 1, sum)");
}

static void die_at_work(int rank, int n, const char *where, void *ctx)
{
    enum { COUNT = 100000 };
    static float x[COUNT];
    ls_status st = LS_OK;
    ls_work *w;
    ls_comm *c;

    (void)ctx;
    test_clock_by_reads(); /* the parent has more than a moment to report how rank 1 ended */
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    for (int i = 0; i < 100000 && st >= 0; i++) {
        if (rank == 1 && i == 5) raise(SIGKILL);
        st = ls_all_reduce(c, x, x, COUNT, LS_F32, LS_SUM, &w);
        if (st >= 0) st = ls_work_wait(&w);
    }
    if (st != LS_EPEER) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    ls_comm_close(&c);
}

static void dead_rank_is_named(void **state)
{
    struct rank_end e[3];

    (void)state;
    ranks_run(3, &(struct ranks_options){ .seconds = LIMIT, .gone = true }, die_at_work, NULL, e);
    assert_int_equal(e[1].signal, SIGKILL);
    for (int i = 0; i < 3; i += 2) {
        if (e[i].code || e[i].late) fail_msg("%s", rank_trouble(i, &e[i]));
        assert_string_equal(e[i].said, "rank 1 was killed by signal 9");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mismatch_is_reported_on_all_ranks),
        cmocka_unit_test(late_rank_is_named),
        cmocka_unit_test(late_sender_is_named),
        cmocka_unit_test(stopped_rank_is_named),
        cmocka_unit_test(dead_rank_is_named),
        cmocka_unit_test(root_cause_is_named_across_groups),
        cmocka_unit_test(cycle_of_waits_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
