/* test_launch_signals.c - signals to the launcher, its suspension and death; no process is left behind. */
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
#include "base/mem.h"
#include "helper_launch.h"
#include "helper_launch_rank.h"
#include "train/launch/launch.h"

static const double LAUNCH_SOON = 60;     /* seconds after which a test fails; on an idle machine nothing takes that long */

/* ---- cases ---- */

static void processes_of_ranks_are_reaped(void **state)
{
    (void)state;
    assert_int_equal(launch_ranks_run(2, "family", "0"), 0);
    assert_int_equal(launch_ranks_run(3, "family-exit", "1"), 7);
}

static void launcher_death_ends_the_ranks(void **state)
{
    (void)state;
    pid_t pid = launch_ranks(3, "stubborn", "0", false);
    case_wait_for("err", "[rank 0] ready");
    case_wait_for("err", "[rank 1] ready");
    case_wait_for("err", "[rank 2] ready");
    assert_int_equal(case_processes(), 3);  /* the launcher itself is not counted: it set its mark after its start */
    kill(pid, SIGKILL);
    assert_int_equal(case_finish(pid), 1000 + SIGKILL);
    case_nothing_is_left();
}

static void signals_are_forwarded(void **state)
{
    static const struct { int number; const char *line; } signals[] = { { SIGTERM, "term" }, { SIGINT, "int" }, { SIGHUP, "hup" } };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(signals); k++) {
        pid_t pid = launch_ranks(2, "obey", "0", false);
        char want[64];

        case_wait_for("err", "[rank 0] ready");
        case_wait_for("err", "[rank 1] ready");
        kill(pid, SIGUSR1);
        case_wait_for("err", "[rank 0] usr1");
        case_wait_for("err", "[rank 1] usr1");
        kill(pid, signals[k].number);
        assert_int_equal(case_finish(pid), 0);
        for (int i = 0; i < 2; i++) {
            snprintf(want, sizeof want, "[rank %d] %s\n", i, signals[k].line);
            assert_true(case_contains("err", want));
        }
        char *err = case_read("err");
        assert_int_equal(line_count(err), 6);  /* each signal once */
        mem_free(err);
        case_nothing_is_left();
    }
}

static void second_signal_kills(void **state)
{
    (void)state;
    pid_t pid = launch_ranks(2, "stubborn", "0", false);
    case_wait_for("err", "[rank 0] ready");
    case_wait_for("err", "[rank 1] ready");
    kill(pid, SIGTERM);
    case_wait_for("err", "[rank 0] ignored");  /* a second signal that arrives before the first is handled is lost */
    kill(pid, SIGTERM);
    assert_int_equal(case_finish(pid), 128 + SIGTERM);
    assert_true(case_contains("err", "lockstep probe: all ranks were killed by a second signal after signal 15"));
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
        if (base_now() - began > LAUNCH_SOON) fail_msg("process %d is '%c', none of %s", (int)pid, state_of(pid), states);
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
    pid_t pid = launch_ranks(1, "obey", "0", false);
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
        if (mine == 0) launch_sleep_on();
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

#define LAUNCH_CASE(f) cmocka_unit_test_setup_teardown(f, case_set_up, case_tear_down)

int main(int argc, char *argv[])
{
    if (argc >= 4 && strcmp(argv[1], "--rank") == 0) return launch_rank_main(argv[2], argv[3]);
    launch_signals_reset();
    const struct CMUnitTest tests[] = {
        LAUNCH_CASE(processes_of_ranks_are_reaped),
        LAUNCH_CASE(launcher_death_ends_the_ranks),
        LAUNCH_CASE(signals_are_forwarded),
        LAUNCH_CASE(second_signal_kills),
        LAUNCH_CASE(suspending_the_job_suspends_the_ranks),
        LAUNCH_CASE(existing_children_are_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
