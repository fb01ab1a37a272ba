/* test_shm_death.c - ranks that die or leave: verdicts, the rank that they name, memory that the other ranks can read afterwards. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/transports/shm/shm_link.h"
#include "helper_clock.h"
#include "helper_shm.h"

/* Nothing of this name (or of ours at all, in a folder) is on the machine. */
static void check_nothing_left(const char *name)
{
    DIR *d = opendir("/dev/shm");
    FILE *sockets = fopen("/proc/net/unix", "r");
    char line[512];

    for (struct dirent *e; d && (e = readdir(d)); ) assert_null(strstr(e->d_name, "lockstep"));
    if (d) closedir(d);
    while (sockets && fgets(line, sizeof line, sockets)) {
        line[strcspn(line, "\n")] = '\0';
        const char *end = strrchr(line, '/');
        assert_false(end && strstr(line, "@lockstep/") && strcmp(end + 1, name) == 0);
    }
    if (sockets) fclose(sockets);
}

static int passed[2];  /* a pipe: each rank writes a byte once it has passed the barrier */

static void wait_for_verdict(int rank, int n, const char *where)
{
    struct link *l = shm_join(where, rank, n);
    struct request r = shm_request(LS_COLLECTIVE_BARRIER, NULL, NULL, 0, LS_U8, LS_SUM);

    SHM_TRY(shm_barrier(l));
    SHM_CHECK(write(passed[1], "", 1) == 1);
    if (rank == 2)
        for (;;) pause();
    ls_status st = shm_drive(l, &r);
    SHM_CHECK(st == LS_EPEER && strstr(ls_errmsg(), "rank 2"));
    shm_leave(l);
}

/* Rank 2 is killed once all have passed the barrier: before, it could be missed in there. */
static void kill_behind_barrier(struct shm_job *j)
{
    char byte;

    for (int i = 0; i < j->n; i++) assert_int_equal(read(passed[0], &byte, 1), 1);
    kill(j->pid[2], SIGKILL);
}

static void killed_rank_is_detected(void **state)
{
    struct shm_job j = { 0 };
    char name[64];

    (void)state;
    assert_int_equal(pipe(passed), 0);
    for (int by_name = 0; by_name < 2; by_name++) {
        if (by_name) shm_job_start_at(&j, 3, shm_unique_name(name, sizeof name), wait_for_verdict);
        else shm_job_start(&j, 3, wait_for_verdict);
        kill_behind_barrier(&j);  /* and is left a zombie while the others look */
        assert_int_equal(shm_job_wait_rank(&j, 0), 0);
        assert_int_equal(shm_job_wait_rank(&j, 1), 0);
        assert_int_equal(shm_job_wait_rank(&j, 2), 128 + SIGKILL);
        region_close(&j.region);
    }
    close(passed[0]);
    close(passed[1]);
    check_nothing_left(name);
}

static void wait_for_report(int rank, int n, const char *where)
{
    test_clock_by_reads(); /* the parent has more than a moment to report how rank 2 ended */
    wait_for_verdict(rank, n, where);
}

static void launcher_verdict_wins(void **state)
{
    struct shm_job j = { 0 };

    (void)state;
    assert_int_equal(pipe(passed), 0);
    shm_job_start(&j, 3, wait_for_report);
    kill_behind_barrier(&j);
    assert_int_equal(shm_job_wait_rank(&j, 2), 128 + SIGKILL);
    assert_null(region_verdict(j.region));
    region_note_gone(j.region, 2, "was killed by signal 9 (Killed)");
    region_note_gone(j.region, 1, "exited with code 1");
    assert_string_equal(region_verdict(j.region), "rank 2 was killed by signal 9 (Killed)");
    assert_int_equal(shm_job_wait_rank(&j, 0), 0);
    assert_int_equal(shm_job_wait_rank(&j, 1), 0);
    region_close(&j.region);
    close(passed[0]);
    close(passed[1]);
}

static void need_one_who_left(int rank, int n, const char *where)
{
    struct link *l = shm_join(where, rank, n);

    ls_status st = shm_barrier(l);

    if (rank == 1) {
        SHM_TRY(st);
    } else {
        if (st == LS_OK) st = shm_barrier(l);  /* one of the others may have been here before */
        SHM_CHECK(st == LS_EPEER && strstr(ls_errmsg(), "rank 1 left"));
    }
    shm_leave(l);
}

static void rank_that_leaves_early_is_named(void **state)
{
    (void)state;
    shm_run(3, need_one_who_left);
}

static void fail_on_one(int rank, int n, const char *where)
{
    struct link *l = shm_join(where, rank, n);

    (void)shm_barrier(l); /* the verdict may exist before it ends */
    if (rank == 1) (transport_shm.fail)(l, LS_ETIMEOUT, "rank 0 did not call it within 5 s");
    while (transport_shm.failed(l) == LS_OK) (void)transport_shm.idle(l, 0.01);
    SHM_CHECK(transport_shm.failed(l) == LS_ETIMEOUT && strcmp(ls_errmsg(), "rank 0 did not call it within 5 s") == 0);
    (transport_shm.fail)(l, LS_EPEER, "later");
    SHM_CHECK(transport_shm.failed(l) == LS_ETIMEOUT && strcmp(ls_errmsg(), "rank 0 did not call it within 5 s") == 0);
    shm_leave(l);
}

static void first_verdict_stays(void **state)
{
    (void)state;
    shm_run(4, fail_on_one);
}

static void look_at_records(int rank, int n, const char *where)
{
    struct link *l = shm_join(where, rank, n);
    struct call_record r = { .signature = { .sequence = 40 + (uint64_t)rank, .op = LS_COLLECTIVE_BARRIER }, .state = CALL_RUNNING,
                             .started = 1.5 };

    SHM_CHECK(transport_shm.peek(l, rank, &r) == LS_OK && r.state == CALL_NONE);
    r = (struct call_record){ .signature = { .sequence = 40 + (uint64_t)rank }, .state = CALL_RUNNING, .started = 1.5 };
    transport_shm.note(l, &r);
    SHM_TRY(shm_barrier(l));
    for (int i = 0; i < n; i++) {
        SHM_TRY(transport_shm.peek(l, i, &r));
        SHM_CHECK(r.signature.sequence == 40 + (uint64_t)i && r.state == CALL_RUNNING && r.started == 1.5);
    }
    SHM_TRY(shm_barrier(l));
    shm_leave(l);
}

static void latest_calls_are_visible_to_other_ranks(void **state)
{
    (void)state;
    shm_run(3, look_at_records);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_rank_is_detected),
        cmocka_unit_test(launcher_verdict_wins),
        cmocka_unit_test(rank_that_leaves_early_is_named),
        cmocka_unit_test(first_verdict_stays),
        cmocka_unit_test(latest_calls_are_visible_to_other_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
