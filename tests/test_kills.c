/* test_kills.c - ranks that die, stop or leave at random points of a loop of collectives, over shared memory and under the launcher.
 *
 * Each trial must end with exit code 3 and a last line that names the right rank, well before the deadline, with no process
 * and no file left behind. `test_kills TRIALS SEED` or LOCKSTEP_KILLS=TRIALS runs more trials than the suite.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/mem.h"
#include "helper_clock.h"
#include "helper_launch.h"
#include "helper_ranks.h"
#include "lockstep/comm.h"

enum { TRIALS = 30, COUNT = 3000, SYNC_POINTS = 40, ASYNC_MICROSECONDS = 20000 };
static const double STALL = 0.5;      /* seconds on the test's clock: the deadline of a comm whose peer stands still */

enum fault { KILL, LEAVE, STOP, FAULTS };
static const char *const fault_names[FAULTS] = { "kill", "leave", "stop" };

/* What a rank's command line says. point < SYNC_POINTS: before that part of the work; else a time in microseconds. clock: the file of the
 * clock of a stop's trial, on which time passes after the victim was stopped. */
struct trial { int ranks, victim; enum fault fault; int point; char *clock; };

/* ---- a rank ---- */

static struct trial trial;

static void suffer(int signal_number)
{
    (void)signal_number;
    if (trial.fault == KILL) raise(SIGKILL);
    if (trial.fault == STOP) {
        test_clock_stop();
        raise(SIGSTOP);
    }
    _exit(0);
}

static void arm(int microseconds)
{
    struct itimerval t = { .it_value = { .tv_usec = microseconds + 1 } };

    signal(SIGALRM, suffer);
    setitimer(ITIMER_REAL, &t, NULL);
}

/* One of several ways to communicate; the last has three operations in flight. */
static ls_status work_part(ls_comm *c, int k, float *a, float *b, float *d)
{
    int rank = ls_comm_rank(c), n = ls_comm_size(c);
    ls_work *w[3] = { NULL };
    ls_status st;

    switch (k % 6) {
    case 0: return ls_all_reduce(c, a, a, COUNT, LS_F32, LS_AVG, NULL);
    case 1: return ls_barrier(c);
    case 2: return ls_broadcast(c, b, COUNT, LS_F32, k % n, NULL);
    case 3: return ls_all_gather(c, a, b, COUNT, LS_F32, NULL);
    case 4:
        st = ls_send(c, a, 100, LS_F32, (rank + 1) % n, &w[0]);
        if (st == LS_OK) st = ls_recv(c, d, 100, LS_F32, (rank + n - 1) % n, &w[1]);
        break;
    default:
        st = ls_all_reduce(c, a, a, COUNT, LS_F32, LS_AVG, &w[0]);
        if (st == LS_OK) st = ls_reduce_scatter(c, b, d, COUNT, LS_F32, LS_MAX, &w[1]);
        if (st == LS_OK) st = ls_all_gather(c, d + COUNT, b + 4 * COUNT, 7, LS_F32, &w[2]);
    }
    for (int i = 0; i < 3; i++) {
        ls_status one = ls_work_wait(&w[i]);
        if (st == LS_OK) st = one;
    }
    return st;
}

static ls_status talk(void)
{
    static float a[COUNT], b[5 * COUNT], d[2 * COUNT];
    int rank = atoi(getenv("RANK"));
    bool victim = rank == trial.victim;
    ls_comm *c;

    if (victim && trial.fault != STOP && trial.point >= SYNC_POINTS) arm(trial.point - SYNC_POINTS);  /* maybe before it joins */
    if (trial.fault == STOP) test_clock_use(test_clock_open_file(trial.clock, trial.ranks), rank);
    if (trial.fault == LEAVE) test_clock_by_reads(); /* the launcher has more than a moment to report how the victim ended */
    LS_TRY(ls_comm_open(getenv("LOCKSTEP_COMM"), rank, trial.ranks, &c));
    if (trial.fault == STOP) ls_comm_set_timeout(c, STALL);
    if (victim && trial.fault == STOP && trial.point >= SYNC_POINTS) arm(trial.point - SYNC_POINTS);
    for (int k = 0; ; k++) {
        if (victim && trial.point == k) suffer(0);
        LS_TRY(work_part(c, k, a, b, d));
    }
}

static int rank_main(char *argv[])
{
    trial = (struct trial){ atoi(argv[2]), atoi(argv[3]), (enum fault)atoi(argv[4]), atoi(argv[5]), argv[6] };
    ls_status st = talk();
    if (trial.fault == STOP) test_clock_leave();
    fprintf(stderr, "lockstep probe: %s\n", ls_errmsg());
    return st == LS_EPEER || st == LS_ETIMEOUT ? 3 : 1;
}

/* ---- trials ---- */

static int      trials = TRIALS;
static uint64_t kills_seed = 1;

static uint64_t next_random(void)
{
    uint64_t z = kills_seed += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int below(int n) { return (int)(next_random() % (uint64_t)n); }

/* A stop takes the launcher's second: one in five. */
static struct trial trial_draw(void)
{
    int ranks = 2 + below(3), kind = below(5), sync = below(2);

    return (struct trial){ ranks, below(ranks), kind < 2 ? KILL : kind < 4 ? LEAVE : STOP,
                           sync ? below(SYNC_POINTS) : SYNC_POINTS + below(ASYNC_MICROSECONDS), NULL };
}

/* The last line names only the victim as the cause, and how it ended or that it was stopped. */
static bool right_line(const struct trial *t, const char *err)
{
    static const char *const how[FAULTS] = { "was killed by signal 9 (Killed)", "exited with code ", "was stopped by signal 19" };
    const char *last = err;
    char want[64];

    for (const char *end; (end = strchr(last, '\n')) && end[1]; ) last = end + 1;
    if (strncmp(last, "lockstep probe: ", 16) != 0) return false;
    snprintf(want, sizeof want, "rank %d %s", t->victim, how[t->fault]);
    const char *at = strstr(last, want);
    return t->fault == STOP ? at != NULL : at == last + 16;
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = { 0 };

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

/* Time passes from the stop on, until another rank has its verdict. */
static void outlast_the_stop(struct test_clock *c, const struct trial *t, pid_t launcher)
{
    while (!test_clock_stopped(c, t->victim) && !has_ended(launcher)) ranks_poll_pause();
    for (int i = 0; i < 100 && !has_ended(launcher) && test_clock_step_all(c, 0.1);) i++;
}

static bool run_trial(int number, const struct trial *t)
{
    char text[4][16], clock[200];
    char *const argv[] = { "test_kills", "--rank", text[0], text[1], text[2], text[3], clock, NULL };
    const int value[4] = { t->ranks, t->victim, (int)t->fault, t->point };

    assert_int_equal(case_set_up(NULL), 0);
    snprintf(clock, sizeof clock, "%s/.clock", case_folder);
    for (int i = 0; i < 4; i++) snprintf(text[i], sizeof text[i], "%d", value[i]);
    struct test_clock *c = t->fault == STOP ? test_clock_open_file(clock, t->ranks) : NULL;
    pid_t launcher = case_launch(t->ranks, argv, false);
    if (c) outlast_the_stop(c, t, launcher);
    int code = case_finish(launcher);
    test_clock_close(&c);
    char *err = case_read("err");
    bool good = code == 3 && right_line(t, err);
    if (!good)
        print_error("trial %d (%s of rank %d of %d, point %d): exit code %d: %s\n", number, fault_names[t->fault],
                    t->victim, t->ranks, t->point, code, err);
    mem_free(err);
    case_nothing_is_left();
    case_tear_down(NULL);
    return good;
}

static void killed_rank_is_named_and_nothing_is_left(void **state)
{
    int bad = 0;

    (void)state;
    print_message("%d trials, seed %llu\n", trials, (unsigned long long)kills_seed);
    for (int i = 0; i < trials; i++) {
        struct trial t = trial_draw();
        bad += !run_trial(i, &t);
    }
    assert_int_equal(bad, 0);
}

int main(int argc, char *argv[])
{
    if (argc == 7 && strcmp(argv[1], "--rank") == 0) return rank_main(argv);
    const struct CMUnitTest tests[] = { cmocka_unit_test(killed_rank_is_named_and_nothing_is_left) };
    const char *more = getenv("LOCKSTEP_KILLS");
    if (more) trials = atoi(more);
    if (argc > 1) trials = atoi(argv[1]);
    if (argc > 2) kills_seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
