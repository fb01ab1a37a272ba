/* test_comm_progress.c - ranks that make progress, are suspended or are killed, seen through another rank's flight recorder. */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "comm/comm.h"
#include "comm/failure/flight_recorder.h"
#include "comm/transports/shm/segment.h"
#include "helper_ranks.h"

static const double LIMIT = 120; /* seconds after which a test is killed */

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

    while ((last = last_call(path)).seen <= time && last.state != CALL_FAILED) ranks_poll_pause();
    return last.seen;
}

/* The flight recorder of this rank; rank 0's is in a file that the others read. */
static struct recorder *record(int rank, int n, const char *path)
{
    struct recorder *r;

    RANKS_TRY(recorder_open(rank ? NULL : path, rank, n, &r));
    recorder_use(r);
    return r;
}

/* Rank 1 is busy and pulses until rank 0, whose flight recorder is in the file, has looked for a verdict for three times the timeout. */
static void be_busy(int rank, int n, const char *where, void *ctx)
{
    struct recorder *recorder = record(rank, n, ctx);
    float x = 1;
    ls_comm *c;

    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    RANKS_TRY(ls_barrier(c));
    ls_comm_set_timeout(c, 1);
    while (rank == 1 && seconds_stalled(ctx) < 3) {
        pulse();
        ranks_poll_pause();
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

/* ---- a rank that is blocked in the kernel, as on a disk: the parent of a child made by vfork() is, until the child ends ---- */

enum { CHILD_STACK = 256 << 10 };

struct blocked {
    const char *path;           /* path of rank 0's flight recorder */
    double timeout, least;      /* the timeout; how long rank 0's call has been stalled when the child ends; 0: until it has failed */
    struct ranks_event entered; /* rank 1 is blocked */
    pid_t rank;                 /* rank 1's process */
};

static int outlast(void *ctx)
{
    const struct blocked *b = ctx;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != b->rank) return 1;
    ranks_wait_state(b->rank, 'D');
    for (int i = 0; i < 2; i++) ranks_event_report(&b->entered);
    if (b->least > 0)
        while (seconds_stalled(b->path) < b->least) ranks_poll_pause();
    else
        while (last_call(b->path).state != CALL_FAILED) ranks_poll_pause();
    return 0;
}

static void be_blocked(int rank, int n, const char *where, void *ctx)
{
    static _Alignas(64) char stack[CHILD_STACK];
    struct blocked *b = ctx;
    struct recorder *recorder = record(rank, n, b->path);
    float x = 1;
    ls_comm *c;

    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    RANKS_TRY(ls_barrier(c));
    if (rank != 1) {
        ranks_event_wait(&b->entered);
        ls_comm_set_timeout(c, b->timeout);
    } else {
        b->rank = getpid();
        int child = clone(outlast, stack + CHILD_STACK, CLONE_VFORK | SIGCHLD, ctx), status = 0;

        if (child < 0 || waitpid(child, &status, 0) != child || status) ranks_fail("the child ended with %d", status);
    }
    ls_status st = ls_all_reduce(c, &x, &x, 1, LS_F32, LS_SUM, NULL);
    if (st < 0) ranks_fail("%s", ls_errmsg());
    if (x != (float)n) ranks_fail("the sum is %g", (double)x);
    ls_comm_close(&c);
    recorder_close(&recorder);
}

static void run_blocked(struct blocked *b, struct rank_end e[3])
{
    char path[] = "/tmp/test_comm_blocked_XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    b->path = path;
    ranks_event_open(&b->entered);
    ranks_run(3, &(struct ranks_options){ .seconds = LIMIT }, be_blocked, b, e);
    ranks_event_close(&b->entered);
    close(fd);
    unlink(path);
}

static void blocked_rank_extends_the_timeout(void **state)
{
    struct blocked b = { .timeout = 2, .least = 5 };
    struct rank_end e[3];

    (void)state;
    run_blocked(&b, e);
    for (int i = 0; i < 3; i++)
        if (e[i].code || e[i].late || e[i].signal) fail_msg("%s", rank_trouble(i, &e[i]));
}

static void rank_that_stays_blocked_is_named(void **state)
{
    static const char says[] = "rank 1 is blocked in the kernel, as on a disk, and made no progress for ";
    struct blocked b = { .timeout = 0.3 };
    struct rank_end e[3];

    (void)state;
    run_blocked(&b, e);
    for (int i = 0; i < 3; i++) {
        const char *said = strstr(e[i].said, says);

        if (!said || strtod(said + strlen(says), NULL) < 10 * b.timeout || !strstr(said, " s: its last call was barrier #1"))
            fail_msg("rank %d says: %s", i, e[i].said);
    }
}

/* A second job of ranks 2 and 3, in a segment of its own. */
struct suspension {
    struct ranks_event waits, stopped, timed_out; /* rank 0 is about to wait; rank 0 is stopped; the call of the second job has timed out */
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
        ranks_event_wait(&s->stopped);
        RANKS_CHECK(ls_all_reduce(c, &x, &x, 1, LS_F32, LS_SUM, NULL) == LS_ETIMEOUT);
        for (int i = 0; i < 2; i++) ranks_event_report(&s->timed_out);
    } else {
        ranks_event_wait(&s->timed_out);
    }
    ls_comm_close(&c);
}

/* Rank 1 stops rank 0, which waits for it, for longer than the timeout, and shows no progress meanwhile. Rank 0 must not blame it. */
static void suspend_a_waiting_rank(int rank, int n, const char *where, void *ctx)
{
    const struct suspension *s = ctx;
    int32_t pid = (int32_t)getpid(), pids[RANKS_MOST];
    struct recorder *recorder = record(rank, n, s->path);
    float x = 1;
    ls_comm *c;

    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    RANKS_TRY(ls_all_gather(c, &pid, pids, 1, LS_I32, NULL));
    ls_comm_set_timeout(c, 2);
    if (rank == 0) ranks_event_report(&s->waits);
    if (rank == 1) {
        ranks_event_wait(&s->waits);
        ranks_wait_state(pids[0], 'S');  /* in the call: it sleeps while it waits */
        kill(pids[0], SIGSTOP);
        ranks_wait_state(pids[0], 'T');
        ranks_event_report(&s->stopped);
        ranks_event_wait(&s->timed_out);
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
    ranks_event_open(&s.waits);
    ranks_event_open(&s.stopped);
    ranks_event_open(&s.timed_out);
    assert_int_equal(segment_create(2, &second), LS_OK);
    snprintf(s.where, sizeof s.where, "shm:fd:%d", segment_fd(second));
    ranks_run(4, &(struct ranks_options){ .seconds = LIMIT }, suspend_a_waiting_rank, &s, e);
    segment_close(&second);
    close(fd);
    unlink(s.path);
    ranks_event_close(&s.waits);
    ranks_event_close(&s.stopped);
    ranks_event_close(&s.timed_out);
    for (int i = 0; i < 4; i++)
        if (e[i].code || e[i].late || e[i].signal) fail_msg("%s", rank_trouble(i, &e[i]));
}

/* ---- a killed rank ---- */

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

/* Rank 1 comes 0.3 s later; when rank 0 returns, it has shown progress since then. */
static void wait_for_a_late_rank(int rank, int n, const char *where, void *ctx)
{
    static _Atomic double alive;
    float x = 1;
    ls_comm *c;

    (void)ctx;
    pulse_watch(&alive);
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    for (int wait = 0; wait < 2; wait++) {
        ls_work *work = NULL;
        double before = base_now();

        if (rank == 0) RANKS_TRY(ls_send(c, &x, 1, LS_F32, 1, NULL));
        if (rank == 1) RANKS_TRY(ls_recv(c, &x, 1, LS_F32, 0, NULL));
        if (rank == 1) base_sleep(0.3);
        RANKS_TRY(ls_all_reduce(c, &x, &x, 1, LS_F32, LS_MAX, wait ? &work : NULL));
        RANKS_TRY(ls_work_wait(&work));
        RANKS_CHECK(rank == 1 || alive - before > 0.25); /* less by a tick */
    }
    ls_comm_close(&c);
    pulse_unwatch(&alive);
}

static void call_that_has_ended_shows_progress(void **state)
{
    (void)state;
    ranks_pass(2, LIMIT, wait_for_a_late_rank, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(busy_rank_extends_the_timeout),
        cmocka_unit_test(blocked_rank_extends_the_timeout),
        cmocka_unit_test(rank_that_stays_blocked_is_named),
        cmocka_unit_test(suspended_rank_blames_nobody),
        cmocka_unit_test(recorded_calls_outlive_their_rank),
        cmocka_unit_test(call_that_has_ended_shows_progress),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
