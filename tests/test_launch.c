/* test_launch.c - launching ranks: their environment, how each way to end is reported and ends the other ranks, and their output. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/cores.h"
#include "base/mem.h"
#include "helper_launch.h"
#include "helper_launch_rank.h"
#include "train/launch/launch.h"

/* ---- a launcher ---- */

static void launch_assert_err(const char *want)
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
    assert_int_equal(launch_ranks_run(3, "env", "0"), 0);
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
    assert_int_equal(case_finish(launch_ranks(2, "env", "0", true)), 0);
    snprintf(want, sizeof want, "bound=%d ", cores / 2);
    assert_true(case_contains("err", want));
    assert_int_equal(case_finish(launch_ranks(cores + 1, "env", "0", true)), 0);  /* more ranks than cores: not bound */
    snprintf(want, sizeof want, "bound=%d ", cores);
    assert_true(case_contains("err", want));
    case_nothing_is_left();
}

static void successful_launch_is_silent(void **state)
{
    (void)state;
    assert_int_equal(launch_ranks_run(4, "zero", "0"), 0);
    launch_assert_err("");
    assert_int_equal(case_entries(case_folder, "log"), 0);
}

static void rank_0_writes_to_standard_output(void **state)
{
    (void)state;
    assert_int_equal(launch_ranks_run(2, "out0", "0"), 0);
    char *out = case_read("out");
    assert_string_equal(out, "{\"json\":1}\n");
    mem_free(out);
    launch_assert_err("");
}

static void failure_ends_all_ranks_and_is_printed_last(void **state)
{
    (void)state;
    double began = base_now();
    assert_int_equal(launch_ranks_run(4, "exit", "2"), 7);
    assert_true(base_now() - began >= 0.9);  /* the other ranks had a second to exit */
    launch_assert_err("[rank 2] working\nlockstep probe: rank 2: the disk is full\n");
    char *log = case_read("log/rank_0002.err");
    assert_string_equal(log, "working\nlockstep probe: the disk is full\n");
    mem_free(log);
}

static void kill_names_the_signal(void **state)
{
    (void)state;
    assert_int_equal(launch_ranks_run(3, "kill", "1"), 3);
    launch_assert_err("lockstep probe: rank 1 was killed by signal 9 (Killed)\n");
    assert_int_equal(launch_ranks_run(2, "abort", "0"), 3);
    launch_assert_err("lockstep probe: rank 0 was killed by signal 6 (Aborted)\n");
}

static void equal_reports_are_printed_once(void **state)
{
    (void)state;
    assert_int_equal(launch_ranks_run(4, "both", "0"), 1);
    char *err = case_read("err");
    assert_int_equal(line_count(err), 1);
    assert_non_null(strstr(err, ": the text is not there\n"));
    mem_free(err);
    assert_int_equal(launch_ranks_run(3, "threes", "0"), 3);
    launch_assert_err("lockstep probe: rank 1 did not call it\n");
}

static double clock_that_stands(void) { return 1000; }

static void own_failure_is_reported_before_that_of_another_rank(void **state)
{
    (void)state;
    base_test_clock = clock_that_stands; /* of the launcher: the second in which rank 1 may report does not end before it has */
    pid_t pid = launch_ranks(3, "blame", "0", false);
    base_test_clock = NULL;
    assert_int_equal(case_finish(pid), 1);
    case_nothing_is_left();
    launch_assert_err("lockstep probe: rank 1: the disk is full\n");
    assert_true(case_contains("log/rank_0000.err", "did not call it"));
}

static void shared_error_is_reported_after_its_rank_was_killed(void **state)
{
    (void)state;
    assert_int_equal(launch_ranks_run(3, "name", "1"), 1);
    launch_assert_err("lockstep probe: rank 1: the gradient is NaN\n");
    assert_int_equal(launch_ranks_run(3, "name-stay", "0"), 1);
    launch_assert_err("lockstep probe: rank 0: the gradient is NaN\n");
}

static void rank_output_is_prefixed_and_logged(void **state)
{
    char want[6000];

    (void)state;
    assert_int_equal(launch_ranks_run(2, "lines", "1"), 0);
    char *err = case_read("err"), *log = case_read("log/rank_0001.err");
    const char *const lines_of_1[] = { "one", "", "[three]", "lockstep probe: held, but not the end", "no end", "on standard output" };
    for (size_t i = 0; i < COUNT_OF(lines_of_1); i++) {
        snprintf(want, sizeof want, "[rank 1] %s\n", lines_of_1[i]);
        assert_non_null(strstr(err, want));
        assert_non_null(strstr(log, want + strlen("[rank 1] ")));
    }
    snprintf(want, sizeof want, "[rank 1] %04000d\n", 0);  /* a long line is split */
    assert_non_null(strstr(err, want));
    snprintf(want, sizeof want, "[rank 1] %01000d\n", 7);
    assert_non_null(strstr(err, want));
    assert_int_equal(line_count(err), 8);
    assert_int_equal(line_count(log), 7);
    mem_free(err);
    mem_free(log);
}

/* Every line was written by some rank, and the lines of each rank are in order. */
static void lines_never_mix_in_a_flood(void **state)
{
    enum { RANKS = 3 };
    int next[RANKS] = { 0 }, next_out[RANKS] = { 0 };

    (void)state;
    assert_int_equal(launch_ranks_run(RANKS, "flood", "0"), 0);
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

static void zero_ranks_are_refused(void **state)
{
    char *const argv[] = { "test_launch", NULL };
    int code = 55;

    (void)state;
    assert_int_equal(launch_run(&(struct launch){ .argv = argv }, &code), LS_EINVAL);
    assert_int_equal(code, 55);
}

#define LAUNCH_CASE(f) cmocka_unit_test_setup_teardown(f, case_set_up, case_tear_down)

int main(int argc, char *argv[])
{
    if (argc >= 4 && strcmp(argv[1], "--rank") == 0) return launch_rank_main(argv[2], argv[3]);
    launch_signals_reset();
    const struct CMUnitTest tests[] = {
        LAUNCH_CASE(ranks_get_their_environment),
        LAUNCH_CASE(ranks_are_bound_to_their_cores),
        LAUNCH_CASE(successful_launch_is_silent),
        LAUNCH_CASE(rank_0_writes_to_standard_output),
        LAUNCH_CASE(failure_ends_all_ranks_and_is_printed_last),
        LAUNCH_CASE(kill_names_the_signal),
        LAUNCH_CASE(equal_reports_are_printed_once),
        LAUNCH_CASE(own_failure_is_reported_before_that_of_another_rank),
        LAUNCH_CASE(shared_error_is_reported_after_its_rank_was_killed),
        LAUNCH_CASE(rank_output_is_prefixed_and_logged),
        LAUNCH_CASE(lines_never_mix_in_a_flood),
        LAUNCH_CASE(zero_ranks_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
