/* test_doctor.c - `doctor`: flight recorders as flight_recorder.h writes them, and what is reported about them. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "train/doctor/doctor.h"

enum { RANKS = 4, WORLD = 7, SHARD = 8 };

static char doctor_folder[] = "/tmp/lockstep-doctor-XXXXXX";
static struct recorder *recorder[RANKS];

static char *recorder_path(int rank) { return file_path("%s/calls/rank_%04d", doctor_folder, rank); }

static int doctor_set_up(void **state)
{
    (void)state;
    strcpy(doctor_folder + strlen(doctor_folder) - 6, "XXXXXX");
    if (!mkdtemp(doctor_folder)) return -1;
    char *calls = file_path("%s/calls", doctor_folder);
    ls_status st = file_make_folders(calls);
    mem_free(calls);
    for (int i = 0; i < RANKS && st == LS_OK; i++) {
        char *path = recorder_path(i);
        st = recorder_open(path, i, RANKS, &recorder[i]);
        mem_free(path);
    }
    return st;
}

static int doctor_tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < RANKS; i++) recorder_close(&recorder[i]);
    return file_remove_tree(doctor_folder);
}

/* Returns when it was queued. */
static double call_of(int rank, int group, ls_collective op, uint64_t sequence, uint64_t count, enum call_state end)
{
    struct signature s = { .sequence = sequence, .count = count, .group = (uint64_t)group, .op = op, .type = LS_F32,
                           .redop = op == LS_COLLECTIVE_ALL_REDUCE ? LS_SUM : -1, .root = -1 };

    double queued = base_now();

    recorder_use(recorder[rank]);
    uint64_t call = recorder_begin(&s, group == WORLD ? "world" : "shard", queued);
    if (end != CALL_QUEUED) recorder_update(call, CALL_RUNNING, 0, base_now());
    if (end != CALL_QUEUED && end != CALL_RUNNING) recorder_update(call, end, 2, base_now());
    recorder_use(NULL);
    return queued;
}

static double doctor_reduce(int rank, uint64_t sequence, enum call_state end)
{
    return call_of(rank, WORLD, LS_COLLECTIVE_ALL_REDUCE, sequence, 100, end);
}

static void assert_outcome(const char *want)
{
    struct text out = { 0 };
    struct doctor d;

    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    bool has_ended = doctor_outcome(&d, &out);
    if (!want) assert_false(has_ended);
    else if (!has_ended || !strstr(out.data, want)) fail_msg("no '%s' in: %s", want, has_ended ? out.data : "(not ended)");
    text_free(&out);
    doctor_close(&d);
}

static void write_recorder(int rank, const void *data, size_t bytes, off_t at)
{
    char *path = recorder_path(rank);
    int fd = open(path, O_WRONLY);

    assert_int_equal(pwrite(fd, data, bytes, at), (ssize_t)bytes);
    close(fd);
    mem_free(path);
}

/* Rewrites a rank's flight recorder: its process is `pid`, started by `launcher` `ago` seconds ago, and its first call began then. */
static void become(int rank, pid_t pid, pid_t launcher, double ago)
{
    enum { PID = 16, LAUNCHER = 40, OPENED = 64 + offsetof(struct recorder_status, opened), FIRST = 64 + sizeof(struct recorder_status) };
    int64_t number = pid, started_by = launcher;
    double then = base_now() - ago;

    write_recorder(rank, &number, sizeof number, PID);
    write_recorder(rank, &started_by, sizeof started_by, LAUNCHER);
    write_recorder(rank, &then, sizeof then, OPENED);
    write_recorder(rank, &then, sizeof then, FIRST + (off_t)offsetof(struct call_record, queued));
}

/* Starts a process that stops itself. */
static pid_t start_stopped(void)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        raise(SIGSTOP);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    return pid;
}

static void end_stopped(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Returns the number of a process that has ended. */
static pid_t doctor_exited(void)
{
    pid_t pid = fork();

    if (pid == 0) _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

/* The process number in a rank's flight recorder becomes that of a process that has ended. */
static void reap(int rank)
{
    int64_t number = doctor_exited();

    write_recorder(rank, &number, sizeof number, 16);
}

static void assert_said(const struct doctor *d, int finding, const char *const parts[])
{
    struct text out = { 0 };

    assert_in_range(finding, 0, d->n - 1);
    doctor_say(d, &d->finding[finding], &out);
    const char *at = out.data;
    for (int i = 0; parts[i]; i++) {  /* in this order, with times between them */
        const char *found = strstr(at, parts[i]);
        if (!found) fail_msg("no '%s' in: %s", parts[i], out.data);
        at = found + strlen(parts[i]);
    }
    text_free(&out);
}

static void dead_rank_is_named(void **state)
{
    struct doctor d;

    (void)state;
    for (int i = 0; i < RANKS; i++) doctor_reduce(i, 40, CALL_DONE);
    for (int i = 0; i < RANKS; i++)
        if (i != 2) doctor_reduce(i, 41, CALL_RUNNING);
    reap(2);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.ranks, RANKS);
    assert_int_equal(d.n, 1);
    assert_int_equal(d.status[2].life, LIFE_DEAD);
    assert_int_equal(d.status[0].life, LIFE_RUNNING);
    assert_said(&d, 0, (const char *[]){ "rank 2 never called all_reduce #41 of world (f32, 100, sum)",
                                         "; ranks 0, 1, 3 have waited in it for ",
                                         " s; rank 2 is dead (its last call, all_reduce #40 of world (f32, 100, sum), ended ",
                                         " s ago)", NULL });
    doctor_close(&d);
}

static void late_rank_is_reported_as_not_started(void **state)
{
    struct doctor d;

    (void)state;
    doctor_reduce(0, 1, CALL_DONE);
    doctor_reduce(1, 1, CALL_DONE);
    doctor_reduce(0, 2, CALL_QUEUED);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.n, 1);
    assert_true(d.finding[0].missing[1] && d.finding[0].missing[2] && d.finding[0].missing[3]);
    assert_said(&d, 0, (const char *[]){ "ranks 1-3 have not called all_reduce #2 of world", "; rank 0 has waited in it for ",
                                         "; rank 1 is running (its last call, all_reduce #1 ", "; rank 2 is running (it made no call)",
                                         NULL });
    doctor_close(&d);
}

static void stopped_rank_is_named_as_the_cause(void **state)
{
    struct text out = { 0 };
    pid_t pid = start_stopped();
    struct doctor d;
    char want[64];

    (void)state;
    for (int i = 0; i < RANKS; i++) doctor_reduce(i, 5, CALL_RUNNING);
    become(2, pid, 0, 0);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_string_equal(doctor_state(&d, 2), "stopped");
    assert_string_equal(doctor_state(&d, 0), "running");
    assert_true(doctor_stopped(&d, &out));
    snprintf(want, sizeof want, "to continue: kill -CONT %d", (int)pid);
    assert_non_null(strstr(out.data, want));
    assert_int_equal(d.n, 1);
    assert_said(&d, 0, (const char *[]){ "rank 2 is stopped in all_reduce #5 of world", "; ranks 0, 1, 3 have waited in it for ", NULL });
    text_free(&out);
    doctor_close(&d);
    end_stopped(pid);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_string_equal(doctor_state(&d, 2), "dead");
    assert_said(&d, 0, (const char *[]){ "rank 2 died in all_reduce #5 of world", "; ranks 0, 1, 3 have waited in it for ", NULL });
    assert_false(doctor_stopped(&d, &out));
    doctor_close(&d);
}

static void reused_pid_is_another_process(void **state)
{
    pid_t pid = start_stopped();
    struct doctor d;

    (void)state;
    for (int i = 0; i < RANKS; i++) doctor_reduce(i, 5, CALL_RUNNING);
    become(2, pid, 0, 60);  /* the rank's last call began before the process did */
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_string_equal(doctor_state(&d, 2), "dead");
    doctor_close(&d);
    end_stopped(pid);
}

/* If all ranks ended with their launcher, a rank is blamed only if others had waited for it longer than in a healthy run. */
static void end_with_the_launcher_blames_no_rank(void **state)
{
    struct doctor d;
    pid_t pid[RANKS], launcher = doctor_exited();

    (void)state;
    for (int i = 0; i < RANKS; i++) pid[i] = doctor_exited();
    for (int i = 0; i < RANKS; i++) doctor_reduce(i, 5, CALL_DONE);
    double called = doctor_reduce(0, 6, CALL_RUNNING);
    for (int i = 2; i < RANKS; i++) doctor_reduce(i, 6, CALL_RUNNING);
    for (int i = 0; i < RANKS; i++) become(i, pid[i], launcher, 0);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.n, 0);
    doctor_close(&d);
    assert_outcome(", was killed at step 0, and ranks 0-3 ended with it");

    double seen = called + 20;  /* rank 3 was alive in the call for 20 s */
    write_recorder(3, &seen, sizeof seen,
               64 + sizeof(struct recorder_status) + sizeof(struct call_record) + offsetof(struct call_record, seen));
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.n, 1);
    assert_said(&d, 0, (const char *[]){ "rank 1 had not called all_reduce #6 of world",
                                         " when the launcher was killed; ranks 0, 2, 3 had waited in it for 20.",
                                         "; rank 1 is dead (its last call, all_reduce #5", NULL });
    doctor_close(&d);
}

static void successful_job_has_no_finding(void **state)
{
    struct doctor d;

    (void)state;
    for (uint64_t k = 1; k <= 2 * RECORDER_CALLS; k++)
        for (int i = 0; i < RANKS; i++) doctor_reduce(i, k, CALL_DONE);
    for (int i = 0; i < RANKS; i++) reap(i);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.n, 0);
    for (int i = 0; i < RANKS; i++) assert_int_equal(d.status[i].life, LIFE_DEAD);
    doctor_close(&d);
}

static void healthy_ranks_are_not_blamed(void **state)
{
    struct doctor d;

    (void)state;
    for (int i = 0; i < RANKS; i++) doctor_reduce(i, 1, i == 1 ? CALL_DONE : CALL_RUNNING);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.n, 0);
    doctor_close(&d);
}

static void mismatched_calls_are_reported(void **state)
{
    struct doctor d;

    (void)state;
    for (int i = 0; i < RANKS; i++) {
        if (i == 3) call_of(i, WORLD, LS_COLLECTIVE_ALL_GATHER, 5, 64, CALL_FAILED);
        else doctor_reduce(i, 5, CALL_FAILED);
        reap(i);
    }
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.n, 1);
    assert_said(&d, 0, (const char *[]){ "ranks disagree on all_reduce #5 of world (f32, 100, sum)",
                                         "; rank 3 called all_gather #5 of world (f32, 64) instead; ranks 0-2 ended in it", NULL });
    doctor_close(&d);
}

/* Ranks 0 and 1 wait in the world for rank 2, which waits in its shard for rank 3: the finding about rank 3 comes first. */
static void cause_is_listed_before_consequences(void **state)
{
    struct doctor d;

    (void)state;
    for (int i = 2; i < RANKS; i++) call_of(i, SHARD, LS_COLLECTIVE_ALL_GATHER, 1, 8, CALL_DONE);
    doctor_reduce(0, 1, CALL_RUNNING);
    doctor_reduce(1, 1, CALL_RUNNING);
    doctor_reduce(3, 1, CALL_RUNNING);
    call_of(2, SHARD, LS_COLLECTIVE_ALL_GATHER, 2, 8, CALL_RUNNING);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.n, 2);
    doctor_close(&d);

    doctor_tear_down(NULL);
    assert_int_equal(doctor_set_up(NULL), 0);
    for (int i = 2; i < RANKS; i++) call_of(i, SHARD, LS_COLLECTIVE_ALL_GATHER, 1, 8, CALL_DONE);
    doctor_reduce(0, 1, CALL_RUNNING);
    doctor_reduce(1, 1, CALL_RUNNING);
    call_of(2, SHARD, LS_COLLECTIVE_ALL_GATHER, 2, 8, CALL_RUNNING);
    reap(3);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.n, 2);
    assert_said(&d, 0, (const char *[]){ "rank 3 never called all_gather #2 of shard", "; rank 2 has waited in it", "; rank 3 is dead",
                                         NULL });
    assert_said(&d, 1, (const char *[]){ "ranks 2, 3 have not called all_reduce #1 of world",
                                         "; rank 2 is running (it has been in all_gather #2 of shard", NULL });
    assert_true(d.finding[0].cause);
    assert_false(d.finding[1].cause);
    doctor_close(&d);
}

static void malformed_files_are_refused(void **state)
{
    struct doctor d;
    char *path = recorder_path(1), *gone = recorder_path(3), *stranger = file_path("%s/calls/rank_0001.old", doctor_folder);

    (void)state;
    assert_int_equal(file_write(stranger, "x", 1), LS_OK);
    assert_int_equal(file_write(path, "LSCALLS2 but no more", 20), LS_OK);
    unlink(gone);
    doctor_reduce(0, 1, CALL_RUNNING);
    doctor_reduce(2, 1, CALL_RUNNING);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    assert_int_equal(d.ranks, RANKS);
    assert_int_equal(d.status[1].life, LIFE_NONE);
    assert_non_null(strstr(d.status[1].why, "20 bytes"));
    assert_int_equal(d.status[3].life, LIFE_NONE);
    assert_said(&d, 0, (const char *[]){ "ranks 1, 3 never called all_reduce #1 of world", "; ranks 0, 2 have waited",
                                         "; rank 1 has no readable flight recorder: ",
                                         "; rank 3 never started", NULL });
    doctor_close(&d);
    mem_free(path);
    mem_free(gone);
    mem_free(stranger);
}

/* ---- how a run ended ---- */

static void end_rank(int rank, uint64_t step, int code, const char *why)
{
    recorder_use(recorder[rank]);
    recorder_stepped(step, 200, 1234, "tokens");
    if (code >= 0) recorder_ended(code, why);
    recorder_use(NULL);
}

static void write_end(const char *text)
{
    char *path = file_path("%s/calls/ended", doctor_folder);

    assert_int_equal(file_write(path, text, strlen(text)), LS_OK);
    mem_free(path);
}

static void finished_run_is_reported(void **state)
{
    struct doctor d;

    (void)state;
    for (int i = 0; i < RANKS; i++) end_rank(i, 200, i < 3 ? 0 : -1, "");
    assert_outcome(NULL);  /* one rank is still running */
    end_rank(3, 200, 0, "");
    assert_outcome("finished at step 200 of 200, exit 0");
    for (int i = 0; i < RANKS; i++) reap(i);
    assert_outcome("finished at step 200 of 200, exit 0");
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    for (int i = 0; i < RANKS; i++) assert_string_equal(doctor_state(&d, i), "finished");
    doctor_close(&d);
    for (int i = 0; i < RANKS; i++) end_rank(i, 120, 0, "stopped by SIGTERM");
    assert_outcome("stopped by SIGTERM at step 120 of 200, exit 0");
}

static void failed_run_states_its_reason(void **state)
{
    (void)state;
    for (int i = 0; i < RANKS; i++) end_rank(i, 12, i == 2 ? 1 : 3, i == 2 ? "the disk is full" : "rank 2 left");
    assert_outcome("failed at step 12: rank 2: the disk is full; exit 1");
    for (int i = 0; i < RANKS; i++) end_rank(i, 12, 3, "rank 2 was stopped");
    assert_outcome("failed at step 12: rank 2 was stopped; exit 3");
}

static void killed_rank_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < RANKS; i++) end_rank(i, 12, i == 2 ? -1 : 3, "rank 2 was killed by signal 9 (Killed)");
    for (int i = 0; i < RANKS; i++) reap(i);
    assert_outcome("rank 2 ended without a report at step 12");
    write_end("{\"exit\":3,\"line\":\"rank 2 was killed by signal 9 (Killed)\"}");
    assert_outcome("failed at step 12: rank 2 was killed by signal 9 (Killed); exit 3");
    write_end("{\"exit\":");  /* a damaged file counts as missing */
    assert_outcome("rank 2 ended without a report at step 12");
}

static void rank_progress_is_reported(void **state)
{
    struct text out = { 0 };
    struct doctor d;

    (void)state;
    recorder_use(recorder[1]);
    recorder_doing("saving");
    recorder_stepped(41, 200, 1234, "tokens");
    recorder_use(NULL);
    assert_int_equal(doctor_open(doctor_folder, &d), LS_OK);
    doctor_progress(&d, 1, &out);
    assert_non_null(strstr(out.data, "saving for "));
    assert_non_null(strstr(out.data, "step 41 of 200, 1234 tokens/s, last step "));
    assert_true(d.status[1].calls->status.host[0] != '\0');
    text_free(&out);
    doctor_close(&d);
}

static void other_folder_is_refused(void **state)
{
    struct doctor d;

    (void)state;
    assert_int_equal(doctor_open("/proc", &d), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "/proc: not a run folder: it has no calls/rank_NNNN"));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, doctor_set_up, doctor_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(dead_rank_is_named), CASE(late_rank_is_reported_as_not_started), CASE(stopped_rank_is_named_as_the_cause),
        CASE(reused_pid_is_another_process), CASE(end_with_the_launcher_blames_no_rank), CASE(successful_job_has_no_finding),
        CASE(healthy_ranks_are_not_blamed), CASE(mismatched_calls_are_reported), CASE(cause_is_listed_before_consequences),
        CASE(malformed_files_are_refused), CASE(finished_run_is_reported),
        CASE(failed_run_states_its_reason), CASE(killed_rank_is_named), CASE(rank_progress_is_reported), CASE(other_folder_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
