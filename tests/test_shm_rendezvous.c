/* test_shm_rendezvous.c - how ranks join a shared-memory region: by descriptor, by name, and refused attempts. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/transports/shm/shm_link.h"
#include "helper_clock.h"
#include "helper_shm.h"

static void join_and_leave(int rank, int n, const char *where)
{
    for (int round = 0; round < 3; round++) {
        struct link *l = shm_join(where, rank, n);
        SHM_CHECK(l->base.rank == rank && l->base.n == n && l->base.group > 0);
        SHM_TRY(shm_barrier(l));
        shm_leave(l);
    }
}

static void ranks_join_by_descriptor(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) shm_run(n, join_and_leave);
}

static void ranks_join_by_name(void **state)
{
    struct shm_job j = { 0 };
    char name[64];

    (void)state;
    for (int n = 1; n <= 4; n++) {
        shm_job_start_at(&j, n, shm_unique_name(name, sizeof name), join_and_leave);
        shm_job_finish(&j);
    }
}

static void come_with_other_sizes(int rank, int n, const char *where)
{
    struct link *l = NULL;

    test_clock_by_reads(); /* rank 0 does not leave before all have its answer */
    ls_status st = transport_shm.open(where, rank, rank == 2 ? n + 1 : n, SHM_TIMEOUT, &l);

    SHM_CHECK(st < 0 && !l);
    SHM_CHECK(strstr(ls_errmsg(), "rank 2"));
    SHM_CHECK(strstr(ls_errmsg(), "of 4"));
}

static void mismatched_rank_counts_are_refused(void **state)
{
    struct shm_job j = { 0 };
    char name[64];

    (void)state;
    shm_job_start_at(&j, 3, shm_unique_name(name, sizeof name), come_with_other_sizes);
    shm_job_finish(&j);
    shm_run(3, come_with_other_sizes);
}

static void hold_name(int rank, int n, const char *where)
{
    struct link *l = shm_join(where, rank, n), *second = NULL;

    if (rank == 0) {
        SHM_CHECK(transport_shm.open(where, 0, n, 1, &second) == LS_EINVAL);
        SHM_CHECK(strstr(ls_errmsg(), "another job uses this name"));
    }
    SHM_TRY(shm_barrier(l));
    shm_leave(l);
}

static void name_in_use_is_refused(void **state)
{
    struct shm_job j = { 0 };
    char name[64];

    (void)state;
    shm_job_start_at(&j, 2, shm_unique_name(name, sizeof name), hold_name);
    shm_job_finish(&j);
}

static void invalid_names_are_refused(void **state)
{
    static const struct { const char *where; int rank, n; ls_status st; const char *text; } cases[] = {
        { "fd:999", 0, 2, LS_EINVAL, "no such open descriptor" },
        { "fd:x", 0, 2, LS_EINVAL, "number of a descriptor" },
        { "fd:0", 0, 2, LS_EINVAL, "not a region" },
        { "", 0, 2, LS_EINVAL, "a name must have" },
        { "a", 2, 2, LS_EINVAL, "rank 2 of 2" },
        { "nobody-serves-this", 1, 2, LS_ETIMEOUT, "rank 0, which creates the shared memory, did not start" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct link *l = NULL;
        assert_int_equal(transport_shm.open(cases[i].where, cases[i].rank, cases[i].n, 0.2, &l), cases[i].st);
        assert_non_null(strstr(ls_errmsg(), cases[i].text));
        assert_null(l);
    }
}

static struct test_clock *joining;

/* The timeout passes when ranks 0 and 2 both wait for rank 1. */
static void come_alone(int rank, int n, const char *where)
{
    struct link *l = NULL;

    test_clock_use(joining, rank);
    if (rank == 1) {
        SHM_CHECK(test_clock_step(0));
        test_clock_move(0.4);
        return;
    }
    SHM_CHECK(transport_shm.open(where, rank, n, 0.3, &l) == LS_ETIMEOUT);
    SHM_CHECK(strstr(ls_errmsg(), "rank 1 of 3 has not joined the job within 0.3 s"));
}

static void missing_rank_is_named(void **state)
{
    (void)state;
    joining = test_clock_open(3);
    shm_run(3, come_alone);
    test_clock_close(&joining);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_join_by_descriptor),
        cmocka_unit_test(ranks_join_by_name),
        cmocka_unit_test(mismatched_rank_counts_are_refused),
        cmocka_unit_test(name_in_use_is_refused),
        cmocka_unit_test(invalid_names_are_refused),
        cmocka_unit_test(missing_rank_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
