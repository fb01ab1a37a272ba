/* test_comm_verdicts.c - the line that every rank prints when a rank makes a mismatched call, is late, is stopped or dies; and the flight
 * recorder of a killed rank. */
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
#include "base/pulse.h"
#include "comm/failure/flight_recorder.h"
#include "comm/comm.h"
#include "comm/algorithms/steps.h"
#include "comm/transports/shm/segment.h"
#include "helper_ranks.h"

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

/* Between two polls of an event that nothing signals. */
static void poll_pause(void) { nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL); }

static void wait_state(pid_t pid, char state)
{
    char path[64], line[512] = "", *end;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    do {
        RANKS_CHECK((f = fopen(path, "re")));
        RANKS_CHECK(fgets(line, sizeof line, f));
        fclose(f);
        RANKS_CHECK((end = strrchr(line, ')')) && end[1]);
        if (end[2] != state) poll_pause();
    } while (end[2] != state);
}

/* The late rank makes its call after another rank has reported its verdict through the pipe. */
struct late { const char *algorithm; int found[2]; };

static void late_open(struct late *l)
{
    assert_int_equal(pipe(l->found), 0);
}

static void late_close(struct late *l)
{
    close(l->found[0]);
    close(l->found[1]);
}

static void late_wait(const struct late *l)
{
    char byte;

    RANKS_CHECK(read(l->found[0], &byte, 1) == 1);
}

static void late_report(const struct late *l) { RANKS_CHECK(write(l->found[1], "", 1) == 1); }

enum { LATE_SECONDS = 3 };  /* enough for the other ranks to make the call on a busy machine */

static void come_late(int rank, int n, const char *where, void *ctx)
{
    const struct late *l = ctx;
    float x = 1;
    ls_comm *c;

    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    if (l->algorithm) RANKS_TRY(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, l->algorithm));
    RANKS_TRY(ls_barrier(c));
    ls_comm_set_timeout(c, LATE_SECONDS);
    if (rank == 2) late_wait(l);
    ls_status st = ls_all_reduce(c, &x, &x, 1, LS_F32, LS_SUM, NULL);
    late_report(l);
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    ls_comm_close(&c);
}

static void late_rank_is_named(void **state)
{
    static char *const algorithms[] = { NULL, "ring" };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(algorithms); i++) {
        struct late l = { .algorithm = algorithms[i] };
        struct rank_end e[4];

        late_open(&l);
        ranks_run(4, &(struct ranks_options){ .seconds = LIMIT }, come_late, &l, e);
        late_close(&l);
        same_line(4, e, "all_reduce #2 of world (f32, 1, sum): rank 2 did not call it within 3 s: its last call was barrier #1, ");
        same_line(4, e, "which ended ");
        same_line(4, e, " s ago; ranks 0, 1, 3 wait in all_reduce #2");
    }
}

enum { LARGE = 1 << 18 };  /* elements: too many to be copied when the call is made */

/* Rank 1 is stopped inside the call until rank 0 has reported its verdict. */
static void stop_inside(int rank, int n, const char *where, void *ctx)
{
    int32_t pid = (int32_t)getpid(), pids[RANKS_MOST];
    float *x = mem_zalloc(MEM_OTHER, LARGE * sizeof *x);
    ls_work *w = NULL;
    ls_comm *c;

    (void)ctx;
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    RANKS_TRY(ls_all_gather(c, &pid, pids, 1, LS_I32, NULL));
    ls_comm_set_timeout(c, 1);
    if (rank != 1) wait_state(pids[1], 'T');
    ls_status st = ls_all_reduce(c, x, x, LARGE, LS_F32, LS_SUM, &w);
    if (rank == 1) raise(SIGSTOP);
    if (st >= 0) st = ls_work_wait(&w);
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    if (rank == 0) kill(pids[1], SIGCONT);
    ls_comm_close(&c);
    mem_free(x);
}

static void stopped_rank_is_named(void **state)
{
    struct rank_end e[3];

    (void)state;
    ranks_run(3, &(struct ranks_options){ .seconds = LIMIT }, stop_inside, NULL, e);
    same_line(3, e, "all_reduce #2 of world (f32, 262144, sum): rank 1 was stopped in it and made no progress for 1 s; ranks 0, 2 wait in");
}

static void send_late(int rank, int n, const char *where, void *ctx)
{
    float x = 1;
    ls_comm *c;

    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    RANKS_TRY(ls_barrier(c));
    ls_comm_set_timeout(c, 0.5);
    if (rank == 1) late_wait(ctx);
    ls_status st = rank ? ls_send(c, &x, 1, LS_F32, 0, NULL) : ls_recv(c, &x, 1, LS_F32, 1, NULL);
    late_report(ctx);
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    ls_comm_close(&c);
}

static void late_sender_is_named(void **state)
{
    struct rank_end e[2];
    struct late l = { 0 };

    (void)state;
    late_open(&l);
    ranks_run(2, &(struct ranks_options){ .seconds = LIMIT }, send_late, &l, e);
    late_close(&l);
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

    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    for (int i = 0; i < 2; i++) {
        RANKS_TRY(comm_split_by(c, in_pairs, &(int){ i }, &pair[i]));
        comm_name(pair[i], i ? "far" : "near");
    }
    ls_comm_set_timeout(c, 1);
    if (rank == 2) late_wait(ctx);
    ls_status st = ls_all_reduce(pair[other_pair[rank]], &x, &x, 1, LS_F32, LS_SUM, NULL);
    late_report(ctx);
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    for (int i = 0; i < 2; i++) ls_comm_close(&pair[i]);
    ls_comm_close(&c);
}

static void root_cause_is_named_across_groups(void **state)
{
    struct rank_end e[4];
    struct late l = { 0 };

    (void)state;
    late_open(&l);
    ranks_run(4, &(struct ranks_options){ .seconds = LIMIT }, come_late_to_a_pair, &l, e);
    late_close(&l);
    same_line(4, e, "(f32, 1, sum): rank 2 did not call it within 1 s: its last call was barrier #2 of world, which ended ");
}

/* Two ranks make the calls of two groups in different orders. */
static void call_crosswise(int rank, int n, const char *where, void *ctx)
{
    ls_comm *c, *both[2];
    float x = 1;

    (void)ctx;
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    for (int i = 0; i < 2; i++) {
        RANKS_TRY(ls_comm_split(c, 0, rank, &both[i]));
        comm_name(both[i], i ? "second" : "first");
    }
    ls_comm_set_timeout(c, 1);
    ls_status st = ls_all_reduce(both[rank], &x, &x, 1, LS_F32, LS_SUM, NULL);
    if (st != LS_ETIMEOUT) ranks_fail("status %d: %s", (int)st, ls_errmsg());
    ranks_say("%s", ls_errmsg());
    for (int i = 0; i < 2; i++) ls_comm_close(&both[i]);
    ls_comm_close(&c);
}

static void cycle_of_waits_is_named(void **state)
{
    struct rank_end e[2];

    (void)state;
    ranks_run(2, &(struct ranks_options){ .seconds = LIMIT }, call_crosswise, NULL, e);
    same_line(2, e, "deadlock: the ranks made their calls in different orders: rank ");
    same_line(2, e, "rank 0 waits for rank 1 in all_reduce #1 of first (f32, 1, sum)");
    same_line(2, e, "rank 1 waits for rank 0 in all_reduce #1 of second (f32, 1, sum)");
}

/* The last call in a flight recorder. `seen` is the time when its rank last found the call stalled and looked for a verdict. */
static struct call_record last_call(const char *path)
{
    struct recorder_read *r = mem_zalloc(MEM_OTHER, sizeof *r);

    RANKS_TRY(recorder_read(path, r));
    struct call_record last = r->n ? r->last[r->n - 1] : (struct call_record){ 0 };
    mem_free(r);
    return last;
}

static double seconds_stalled(const char *path)
{
    struct call_record last = last_call(path);

    return last.signature.op == LS_COLLECTIVE_ALL_REDUCE ? last.seen - last.queued : 0;
}

/* Returns after the recorded rank has looked for a verdict since `time`, or when its call has failed. */
static double wait_look(const char *path, double time)
{
    struct call_record last;

    while ((last = last_call(path)).seen <= time && last.state != CALL_FAILED) poll_pause();
    return last.seen;
}

/* Rank 1 is busy and pulses until rank 0, whose flight recorder is in the file, has looked for a verdict for three times the timeout. */
static void be_busy(int rank, int n, const char *where, void *ctx)
{
    struct recorder *recorder;
    float x = 1;
    ls_comm *c;

    RANKS_TRY(recorder_open(rank ? NULL : ctx, rank, n, &recorder));
    recorder_use(recorder);
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    RANKS_TRY(ls_barrier(c));
    ls_comm_set_timeout(c, 1);
    while (rank == 1 && seconds_stalled(ctx) < 3) {
        pulse();
        poll_pause();
    }
    RANKS_TRY(ls_all_reduce(c, &x, &x, 1, LS_F32, LS_SUM, NULL));
    if (x != (float)n) ranks_fail("the sum is %g", (double)x);
    ls_comm_close(&c);
    recorder_close(&recorder);
}

static void busy_rank_extends_the_timeout(void **state)
{
    char path[] = "/tmp/test_comm_busy_XXXXXX";
    struct rank_end e[3];
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    ranks_run(3, &(struct ranks_options){ .seconds = LIMIT }, be_busy, path, e);
    close(fd);
    unlink(path);
    for (int i = 0; i < 3; i++)
        if (e[i].code || e[i].late || e[i].signal) fail_msg("%s", rank_trouble(i, &e[i]));
}

/* A second job of ranks 2 and 3, in a segment of its own. */
struct suspension {
    struct late waits, stopped, timed_out; /* rank 0 is about to wait; rank 0 is stopped; the call of the second job has timed out */
    char where[32], path[32];              /* address of the second job; file of rank 0's flight recorder */
};

/* Rank 2 calls an all-reduce of the second job, which rank 3 does not call. Returns after the second job's timeout. */
static void outlast_a_timeout(int rank, const struct suspension *s)
{
    float x = 1;
    ls_comm *c;

    RANKS_TRY(ls_comm_open(s->where, rank - 2, 2, &c));
    ls_comm_set_timeout(c, 3);
    if (rank == 2) {
        late_wait(&s->stopped);
        RANKS_CHECK(ls_all_reduce(c, &x, &x, 1, LS_F32, LS_SUM, NULL) == LS_ETIMEOUT);
        for (int i = 0; i < 2; i++) late_report(&s->timed_out);
    } else {
        late_wait(&s->timed_out);
    }
    ls_comm_close(&c);
}

/* Rank 1 stops rank 0, which waits for it, for longer than the timeout, and shows no progress meanwhile. Rank 0 must not blame it. */
static void suspend_a_waiting_rank(int rank, int n, const char *where, void *ctx)
{
    const struct suspension *s = ctx;
    int32_t pid = (int32_t)getpid(), pids[RANKS_MOST];
    struct recorder *recorder;
    float x = 1;
    ls_comm *c;

    RANKS_TRY(recorder_open(rank ? NULL : s->path, rank, n, &recorder));
    recorder_use(recorder);
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    RANKS_TRY(ls_all_gather(c, &pid, pids, 1, LS_I32, NULL));
    ls_comm_set_timeout(c, 2);
    if (rank == 0) late_report(&s->waits);
    if (rank == 1) {
        late_wait(&s->waits);
        wait_state(pids[0], 'S');  /* in the call: it sleeps while it waits */
        kill(pids[0], SIGSTOP);
        wait_state(pids[0], 'T');
        late_report(&s->stopped);
        late_wait(&s->timed_out);
        double resumed = base_now();
        kill(pids[0], SIGCONT);
        wait_look(s->path, wait_look(s->path, resumed)); /* the first look is complete when the second begins */
    }
    if (rank > 1) outlast_a_timeout(rank, s);
    RANKS_TRY(ls_all_reduce(c, &x, &x, 1, LS_F32, LS_SUM, NULL));
    ls_comm_close(&c);
    recorder_close(&recorder);
}

static void suspended_rank_blames_nobody(void **state)
{
    struct rank_end e[4];
    struct suspension s = { .path = "/tmp/test_comm_stopped_XXXXXX" };
    struct segment *second = NULL;
    int fd = mkstemp(s.path);

    (void)state;
    assert_true(fd >= 0);
    late_open(&s.waits);
    late_open(&s.stopped);
    late_open(&s.timed_out);
    assert_int_equal(segment_create(2, &second), LS_OK);
    snprintf(s.where, sizeof s.where, "shm:fd:%d", segment_fd(second));
    ranks_run(4, &(struct ranks_options){ .seconds = LIMIT }, suspend_a_waiting_rank, &s, e);
    segment_close(&second);
    close(fd);
    unlink(s.path);
    late_close(&s.waits);
    late_close(&s.stopped);
    late_close(&s.timed_out);
    for (int i = 0; i < 4; i++)
        if (e[i].code || e[i].late || e[i].signal) fail_msg("%s", rank_trouble(i, &e[i]));
}

static void die_at_work(int rank, int n, const char *where, void *ctx)
{
    enum { COUNT = 100000 };
    static float x[COUNT];
    ls_status st = LS_OK;
    ls_work *w;
    ls_comm *c;

    (void)ctx;
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

/* ---- the flight recorder ---- */

static void call_and_die(int rank, int n, const char *where, void *ctx)
{
    struct recorder *recorder;
    float x = 1;
    ls_comm *c;
    ls_work *w;

    RANKS_TRY(recorder_open(rank ? NULL : ctx, rank, n, &recorder));
    recorder_use(recorder);
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    for (int i = 0; i < 299; i++) RANKS_TRY(ls_barrier(c));
    if (rank == 0) RANKS_TRY(ls_all_reduce(c, &x, &x, 1, LS_F32, LS_SUM, &w));
    raise(SIGKILL);
}

static void recorded_calls_outlive_their_rank(void **state)
{
    char path[] = "/tmp/test_comm_calls_XXXXXX";
    struct rank_end e[2];
    struct recorder_read *r = mem_zalloc(MEM_OTHER, sizeof *r);
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    ranks_run(2, &(struct ranks_options){ .seconds = LIMIT }, call_and_die, path, e);
    assert_int_equal(e[0].signal, SIGKILL);
    if (recorder_read(path, r) < 0) fail_msg("%s", ls_errmsg());
    assert_int_equal(r->rank, 0);
    assert_int_equal(r->ranks, 2);
    assert_int_equal(r->calls, 300);
    assert_int_equal(r->n, RECORDER_CALLS);
    for (int i = 0; i < r->n; i++) {
        const struct call_record *k = &r->last[i];

        assert_int_equal(k->signature.sequence, 300 - RECORDER_CALLS + i + 1);
        assert_string_equal(k->name, "world");
        assert_int_equal(k->signature.op, i + 1 < r->n ? LS_COLLECTIVE_BARRIER : LS_COLLECTIVE_ALL_REDUCE);
        if (i + 1 < r->n) assert_int_equal(k->state, CALL_DONE);
        else assert_true(k->state == CALL_QUEUED || k->state == CALL_RUNNING);
    }
    assert_int_equal(ftruncate(fd, 100), 0);
    assert_int_equal(recorder_read(path, r), LS_EFORMAT);
    close(fd);
    unlink(path);
    mem_free(r);
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
        cmocka_unit_test(busy_rank_extends_the_timeout),
        cmocka_unit_test(suspended_rank_blames_nobody),
        cmocka_unit_test(recorded_calls_outlive_their_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
