/* Launching: what ranks find, how each way to end is told and ends the others, what they say, signals, and nothing left behind.
 *
 * A case runs a launcher in a process of its own, whose ranks are this program again: `test_launch --rank WHAT`.
 */
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "helper_launch.h"
#include "train/launch.h"

enum { FLOOD_LINES = 20000 };
static const double SOON = 30;     /* seconds in which things happen that take none on a machine that is not busy */

/* ---- a rank ---- */

static int my_rank(void) { return atoi(getenv("RANK")); }
static bool i_am(const char *rank) { return my_rank() == atoi(rank); }

_Noreturn static void sleep_on(void)
{
    signal(SIGTERM, SIG_IGN);
    for (;;) pause();
}

static const char *value(const char *name) { return getenv(name) ? getenv(name) : "(none)"; }

static int say_environment(void)
{
    char null[256] = "";
    cpu_set_t set;
    sigset_t blocked;

    sched_getaffinity(0, sizeof set, &set);
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    ssize_t n = readlink("/proc/self/fd/0", null, sizeof null - 1);
    const char *colon = strrchr(value("LOCKSTEP_COMM"), ':');
    bool inherited = colon && fcntl(atoi(colon + 1), F_GETFD) == 0;
    fprintf(stderr, "env %s %s %s %s %s %s %s %.7s omp=%s inherited=%d group=%d null=%d bound=%d term=%d int=%d\n", value("RANK"),
            value("LOCAL_RANK"), value("WORLD_SIZE"), value("LOCAL_WORLD_SIZE"), value("GROUP_RANK"), value("MASTER_ADDR"),
            value("MASTER_PORT"), value("LOCKSTEP_COMM"), value("OMP_NUM_THREADS"), inherited,
            getpgrp() == getpid(), n > 0 && strcmp(null, "/dev/null") == 0, CPU_COUNT(&set), sigismember(&blocked, SIGTERM),
            sigismember(&blocked, SIGINT));
    return 0;
}

static int flood(void)
{
    for (int i = 0; i < FLOOD_LINES; i++) {
        fprintf(stderr, "line %d of rank %d: %.*s.\n", i, my_rank(), i % 90,
                "################################################################################################");
        if (i % 3 == 0) printf("out %d of rank %d.\n", i, my_rank());
    }
    return 0;
}

/* A group member, and one that left for a session of its own. */
static void leave_children(void)
{
    for (int i = 0; i < 2; i++) {
        if (fork() != 0) continue;
        if (i == 1) {
            setsid();
            if (fork() != 0) _exit(0);
        }
        sleep_on();
    }
}

static void on_signal(int s)
{
    const char *text = s == SIGUSR1 ? "usr1\n" : s == SIGINT ? "int\n" : s == SIGHUP ? "hup\n" : "term\n";
    ssize_t done = write(STDERR_FILENO, text, strlen(text));

    if (s != SIGUSR1 || done < 0) _exit(0);
}

/* Rank `who` tells all ranks why the job ends, and is killed before it can say so itself, or stays until it is. Another rank fails too. */
static int name_cause(const char *who, bool stays)
{
    ls_comm *c = NULL;
    char byte;

    if (ls_comm_open(getenv("LOCKSTEP_COMM"), my_rank(), atoi(getenv("WORLD_SIZE")), &c) != LS_OK) return 9;
    if (i_am(who)) {
        ls_fail(LS_EINVAL, "the gradient is NaN");
        comm_fail(c, LS_EINVAL);
        if (stays) sleep_on();
        raise(SIGKILL);
    }
    ls_status st = ls_recv(c, &byte, 1, LS_U8, atoi(who), NULL);
    fprintf(stderr, "lockstep probe: rank %d: stopped by %s\n", my_rank(), ls_errmsg());
    return st == LS_EINVAL ? 1 : 9;
}

static int rank_main(const char *what, const char *who)
{
    setvbuf(stderr, NULL, _IOLBF, BUFSIZ);
    if (strcmp(what, "zero") == 0) return 0;
    if (strcmp(what, "env") == 0) return say_environment();
    if (strcmp(what, "flood") == 0) return flood();
    if (strcmp(what, "lines") == 0) {
        if (!i_am("1")) return 0;
        fprintf(stderr, "one\n\n[three]\n%05000d\nlockstep probe: held, but not the end\n", 7);
        printf("said aloud\n");
        fprintf(stderr, "no end");
        return 0;
    }
    if (strcmp(what, "out0") == 0) return i_am("0") ? printf("{\"json\":1}\n") < 0 : 0;
    if (strcmp(what, "both") == 0) {
        fprintf(stderr, "lockstep probe: the text is not there\n");
        return 1;
    }
    if (strcmp(what, "blame") == 0) {  /* a rank is blamed before it fails */
        if (!i_am("1")) {
            fprintf(stderr, "lockstep probe: rank 1 never came\n");
            return 3;
        }
        usleep(100000);
        fprintf(stderr, "lockstep probe: the disk is full\n");
        return 1;
    }
    if (strncmp(what, "name", 4) == 0) return name_cause(who, strcmp(what, "name-stay") == 0);
    if (strcmp(what, "threes") == 0) {
        fprintf(stderr, "lockstep probe: rank 1 never came\n");
        return 3;
    }
    if (strcmp(what, "family") == 0) {
        leave_children();
        return 0;
    }
    if (strcmp(what, "obey") == 0) {
        signal(SIGUSR1, on_signal);
        signal(SIGTERM, on_signal);
        signal(SIGINT, on_signal);
        signal(SIGHUP, on_signal);
        fprintf(stderr, "ready\n");
        for (;;) pause();
    }
    if (strcmp(what, "stubborn") == 0) {
        signal(SIGTERM, SIG_IGN);
        fprintf(stderr, "ready\n");
        sleep_on();
    }
    if (!i_am(who)) {
        if (strcmp(what, "family-exit") == 0) leave_children();
        sleep_on();
    }
    if (strcmp(what, "kill") == 0) raise(SIGKILL);
    if (strcmp(what, "abort") == 0) abort();
    fprintf(stderr, "working\nlockstep probe: the disk is full\n");
    return 7;
}

/* ---- a launcher ---- */

static pid_t launch(int ranks, const char *what, const char *who, bool bind)
{
    char *const argv[] = { "test_launch", "--rank", (char *)what, (char *)who, NULL };

    return case_launch(ranks, argv, bind);
}

static int case_run(int ranks, const char *what, const char *who)
{
    int code = case_finish(launch(ranks, what, who, false));

    case_nothing_is_left();
    return code;
}

static int lines(const char *text)
{
    int n = 0;

    for (; *text; text++) n += *text == '\n';
    return n;
}

static void assert_err(const char *want)
{
    char *err = case_read("err");

    assert_string_equal(err, want);
    mem_free(err);
}

/* ---- cases ---- */

static void ranks_get_their_environment(void **state)
{
    (void)state;
    setenv("OMP_NUM_THREADS", "5", 1);
    setenv("RANK", "77", 1);
    assert_int_equal(case_run(3, "env", "0"), 0);
    unsetenv("OMP_NUM_THREADS");
    unsetenv("RANK");
    for (int i = 0; i < 3; i++) {
        char want[256];

        snprintf(want, sizeof want, "[rank %d] env %d %d 3 3 0 127.0.0.1 29500 shm:fd: omp=5 inherited=1 group=1 null=%d bound=", i,
                 i, i, i > 0);
        char *err = case_read("err"), *at = strstr(err, want);
        if (i > 0) assert_non_null(at);
        else assert_non_null(strstr(err, "[rank 0] env 0 0 3 3 0 127.0.0.1 29500 shm:fd: "));
        assert_null(strstr(err, "term=1"));
        assert_null(strstr(err, "int=1"));
        mem_free(err);
    }
}

static void ranks_are_bound_to_their_cores(void **state)
{
    int cores = cores_count();
    char want[64];

    (void)state;
    if (cores < 2) skip();
    assert_int_equal(case_finish(launch(2, "env", "0", true)), 0);
    snprintf(want, sizeof want, "bound=%d ", cores / 2);
    assert_true(case_contains("err", want));
    assert_int_equal(case_finish(launch(cores + 1, "env", "0", true)), 0);  /* more ranks than processors: not bound */
    snprintf(want, sizeof want, "bound=%d ", cores);
    assert_true(case_contains("err", want));
    case_nothing_is_left();
}

static void successful_launch_is_silent(void **state)
{
    (void)state;
    assert_int_equal(case_run(4, "zero", "0"), 0);
    assert_err("");
    assert_int_equal(case_entries(case_folder, "log"), 0);
}

static void rank_0_keeps_standard_output(void **state)
{
    (void)state;
    assert_int_equal(case_run(2, "out0", "0"), 0);
    char *out = case_read("out");
    assert_string_equal(out, "{\"json\":1}\n");
    mem_free(out);
    assert_err("");
}

static void failure_ends_all_ranks_and_is_printed_last(void **state)
{
    (void)state;
    double began = base_now();
    assert_int_equal(case_run(4, "exit", "2"), 7);
    assert_true(base_now() - began >= 0.9);  /* the others had their second */
    assert_err("[rank 2] working\nlockstep probe: rank 2: the disk is full\n");
    char *log = case_read("log/rank_0002.err");
    assert_string_equal(log, "working\nlockstep probe: the disk is full\n");
    mem_free(log);
}

static void kill_names_the_signal(void **state)
{
    (void)state;
    assert_int_equal(case_run(3, "kill", "1"), 3);
    assert_err("lockstep probe: rank 1 was killed by signal 9 (Killed)\n");
    assert_int_equal(case_run(2, "abort", "0"), 3);
    assert_err("lockstep probe: rank 0 was killed by signal 6 (Aborted)\n");
}

static void cause_is_printed_once(void **state)
{
    (void)state;
    assert_int_equal(case_run(4, "both", "0"), 1);
    char *err = case_read("err");
    assert_int_equal(lines(err), 1);
    assert_non_null(strstr(err, ": the text is not there\n"));
    mem_free(err);
    assert_int_equal(case_run(3, "threes", "0"), 3);
    assert_err("lockstep probe: rank 1 never came\n");
}

static void failure_outranks_blame(void **state)
{
    (void)state;
    assert_int_equal(case_run(3, "blame", "0"), 1);
    assert_err("lockstep probe: rank 1: the disk is full\n");
    assert_true(case_contains("log/rank_0000.err", "never came"));
}

static void cause_outlives_the_rank_that_named_it(void **state)
{
    (void)state;
    assert_int_equal(case_run(3, "name", "1"), 1);
    assert_err("lockstep probe: rank 1: the gradient is NaN\n");
    assert_int_equal(case_run(3, "name-stay", "0"), 1);
    assert_err("lockstep probe: rank 0: the gradient is NaN\n");
}

static void rank_output_is_prefixed_and_logged(void **state)
{
    char want[6000];

    (void)state;
    assert_int_equal(case_run(2, "lines", "1"), 0);
    char *err = case_read("err"), *log = case_read("log/rank_0001.err");
    const char *const lines_of_1[] = { "one", "", "[three]", "lockstep probe: held, but not the end", "no end", "said aloud" };
    for (size_t i = 0; i < COUNT_OF(lines_of_1); i++) {
        snprintf(want, sizeof want, "[rank 1] %s\n", lines_of_1[i]);
        assert_non_null(strstr(err, want));
        assert_non_null(strstr(log, want + strlen("[rank 1] ")));
    }
    snprintf(want, sizeof want, "[rank 1] %04000d\n", 0);  /* a long line goes on in the next */
    assert_non_null(strstr(err, want));
    snprintf(want, sizeof want, "[rank 1] %01000d\n", 7);
    assert_non_null(strstr(err, want));
    assert_int_equal(lines(err), 8);
    assert_int_equal(lines(log), 7);
    mem_free(err);
    mem_free(log);
}

/* Every line is one that some rank wrote, and each rank's come in its order. */
static void lines_never_mix_in_a_flood(void **state)
{
    enum { RANKS = 3 };
    int next[RANKS] = { 0 }, next_out[RANKS] = { 0 };

    (void)state;
    assert_int_equal(case_run(RANKS, "flood", "0"), 0);
    char *err = case_read("err");
    for (char *line = err, *end; (end = strchr(line, '\n')); line = end + 1) {
        int prefix, i, rank;
        bool out = false;

        *end = '\0';
        if (sscanf(line, "[rank %d] line %d of rank %d: ", &prefix, &i, &rank) != 3 &&
            (sscanf(line, "[rank %d] out %d of rank %d", &prefix, &i, &rank) != 3 || !(out = true)))
            fail_msg("not a line of a rank: %s", line);
        assert_int_equal(prefix, rank);
        assert_in_range(rank, 0, RANKS - 1);
        assert_int_equal(end[-1], '.');
        assert_int_equal(i, out ? next_out[rank] : next[rank]);
        if (out) next_out[rank] += 3;
        else next[rank]++;
    }
    for (int i = 0; i < RANKS; i++) assert_int_equal(next[i], FLOOD_LINES);
    assert_true(next_out[1] >= FLOOD_LINES);
    mem_free(err);
}

static void processes_of_ranks_are_reaped(void **state)
{
    (void)state;
    assert_int_equal(case_run(2, "family", "0"), 0);
    assert_int_equal(case_run(3, "family-exit", "1"), 7);
}

static void launcher_death_ends_the_ranks(void **state)
{
    (void)state;
    pid_t pid = launch(3, "stubborn", "0", false);
    case_wait_for("err", "[rank 0] ready");
    case_wait_for("err", "[rank 1] ready");
    case_wait_for("err", "[rank 2] ready");
    assert_int_equal(case_processes(), 3);  /* the launcher set its mark after its own start */
    kill(pid, SIGKILL);
    assert_int_equal(case_finish(pid), 1000 + SIGKILL);
    case_nothing_is_left();
}

static void signals_are_forwarded(void **state)
{
    static const struct { int number; const char *said; } asked[] = { { SIGTERM, "term" }, { SIGINT, "int" }, { SIGHUP, "hup" } };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(asked); k++) {
        pid_t pid = launch(2, "obey", "0", false);
        char want[64];

        case_wait_for("err", "[rank 0] ready");
        case_wait_for("err", "[rank 1] ready");
        kill(pid, SIGUSR1);
        case_wait_for("err", "[rank 0] usr1");
        case_wait_for("err", "[rank 1] usr1");
        kill(pid, asked[k].number);
        assert_int_equal(case_finish(pid), 0);
        for (int i = 0; i < 2; i++) {
            snprintf(want, sizeof want, "[rank %d] %s\n", i, asked[k].said);
            assert_true(case_contains("err", want));
        }
        char *err = case_read("err");
        assert_int_equal(lines(err), 6);  /* each signal once */
        mem_free(err);
        case_nothing_is_left();
    }
}

static void second_signal_kills(void **state)
{
    (void)state;
    pid_t pid = launch(2, "stubborn", "0", false);
    case_wait_for("err", "[rank 0] ready");
    case_wait_for("err", "[rank 1] ready");
    kill(pid, SIGTERM);
    usleep(50000);
    kill(pid, SIGTERM);
    assert_int_equal(case_finish(pid), 128 + SIGTERM);
    assert_true(case_contains("err", "lockstep probe: all ranks were killed: a second signal asked for the end, the first was 15"));
    case_nothing_is_left();
}

static char state_of(pid_t pid)
{
    char path[64], line[512] = "";

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f) return '?';
    if (!fgets(line, sizeof line, f)) line[0] = '\0';
    fclose(f);
    char *end = strrchr(line, ')');
    return end && end[1] ? end[2] : '?';
}

static void wait_state(pid_t pid, const char *states)
{
    double began = base_now();

    while (!strchr(states, state_of(pid))) {
        if (base_now() - began > SOON) fail_msg("process %d is '%c', none of %s", (int)pid, state_of(pid), states);
        usleep(2000);
    }
}

static pid_t child_of(pid_t parent)
{
    char path[96], text[256] = "";

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (!fgets(text, sizeof text, f)) text[0] = '\0';
    fclose(f);
    return (pid_t)atoi(text);
}

static void suspending_the_job_suspends_the_ranks(void **state)
{
    (void)state;
    pid_t pid = launch(1, "obey", "0", false);
    case_wait_for("err", "[rank 0] ready");
    pid_t rank = child_of(pid);
    if (rank == 0) skip();  /* a kernel that does not list children */
    kill(pid, SIGTSTP);
    wait_state(pid, "T");
    wait_state(rank, "T");
    kill(pid, SIGCONT);
    wait_state(rank, "SR");
    kill(pid, SIGTERM);
    assert_int_equal(case_finish(pid), 0);
    case_nothing_is_left();
}

static void existing_children_are_kept(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        pid_t mine = fork();
        if (mine == 0) sleep_on();
        case_redirect("err", STDERR_FILENO);
        case_redirect("out", STDOUT_FILENO);
        char *const argv[] = { "test_launch", "--rank", "family", "0", NULL };
        int code = 98;
        ls_status st = launch_run(&(struct launch){ .ranks = 2, .argv = argv }, &code);
        bool alive = kill(mine, 0) == 0 && waitpid(mine, NULL, WNOHANG) == 0;
        kill(mine, SIGKILL);
        waitpid(mine, NULL, 0);
        _exit(st != LS_OK ? 97 : alive ? code : 96);
    }
    assert_int_equal(case_finish(pid), 0);
    case_nothing_is_left();
}

static void zero_ranks_are_refused(void **state)
{
    char *const argv[] = { "test_launch", NULL };
    int code = 55;

    (void)state;
    assert_int_equal(launch_run(&(struct launch){ .argv = argv }, &code), LS_EINVAL);
    assert_int_equal(code, 55);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, case_set_up, case_tear_down)

int main(int argc, char *argv[])
{
    if (argc >= 4 && strcmp(argv[1], "--rank") == 0) return rank_main(argv[2], argv[3]);
    static const int sent[] = { SIGINT, SIGHUP, SIGTERM };

    for (size_t i = 0; i < COUNT_OF(sent); i++) signal(sent[i], SIG_DFL);  /* in the background of a script, or under nohup, some are ignored */
    const struct CMUnitTest tests[] = {
        CASE(ranks_get_their_environment), CASE(ranks_are_bound_to_their_cores), CASE(successful_launch_is_silent),
        CASE(rank_0_keeps_standard_output), CASE(failure_ends_all_ranks_and_is_printed_last), CASE(kill_names_the_signal),
        CASE(cause_is_printed_once), CASE(failure_outranks_blame), CASE(cause_outlives_the_rank_that_named_it), CASE(rank_output_is_prefixed_and_logged),
        CASE(lines_never_mix_in_a_flood), CASE(processes_of_ranks_are_reaped),
        CASE(launcher_death_ends_the_ranks), CASE(signals_are_forwarded), CASE(second_signal_kills),
        CASE(suspending_the_job_suspends_the_ranks), CASE(existing_children_are_kept),
        CASE(zero_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
