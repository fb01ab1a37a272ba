/* test_ranks.c - the helper of tests on several ranks (helper_ranks.h) with ranks that pass, fail, hang, die and leave processes behind. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "helper_clock.h"
#include "helper_ranks.h"
#include "lockstep/comm.h"

enum { PASS, FAIL, HANG, DIE, LEAVE };

enum { ROLES = 5 };

/* What each rank does, and its process. Shared. */
struct roles {
    int how[ROLES];
    _Atomic pid_t pid[ROLES];
};

static struct roles *roles_new(const int how[ROLES])
{
    struct roles *r = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(r != MAP_FAILED);
    memcpy(r->how, how, sizeof r->how);
    return r;
}

static void behave(int rank, int n, const char *where, void *ctx)
{
    struct roles *r = ctx;

    (void)where;
    ranks_say("%d of %d", rank, n);
    atomic_store(&r->pid[rank], getpid());
    switch (r->how[rank]) {
    case FAIL: ranks_fail("rank %d does not like it", rank);
    case HANG: for (;;) pause();
    case DIE: raise(SIGKILL); break;
    case LEAVE: _exit(7);
    default: break;
    }
}

static struct roles *watched;

/* The time limit of the rank that hangs passes when all others have been reaped. */
static double time_of_watch(void)
{
    for (int i = 0; i < ROLES; i++) {
        pid_t pid = atomic_load(&watched->pid[i]);

        if (watched->how[i] != HANG && (!pid || kill(pid, 0) == 0 || errno != ESRCH)) return 1000;
    }
    return atomic_load(&watched->pid[2]) ? 2000 : 1000; /* it has said what it says */
}

static void every_end_is_reported(void **state)
{
    struct rank_end e[ROLES];

    (void)state;
    watched = roles_new((int[ROLES]){ PASS, FAIL, HANG, DIE, LEAVE });
    base_test_clock = time_of_watch;
    ranks_run(ROLES, &(struct ranks_options){ .seconds = 3 }, behave, watched, e);
    base_test_clock = NULL;
    munmap(watched, sizeof *watched);
    assert_null(rank_trouble(0, &e[0]));
    assert_string_equal(e[0].said, "0 of 5");
    assert_string_equal(rank_trouble(1, &e[1]), "rank 1 exited with code 1: rank 1 does not like it");
    assert_string_equal(rank_trouble(2, &e[2]), "rank 2 was still there at the time limit: 2 of 5");
    assert_string_equal(rank_trouble(3, &e[3]), "rank 3 was killed by signal 9: 3 of 5");
    assert_string_equal(rank_trouble(4, &e[4]), "rank 4 exited with code 7: 4 of 5");
}

static void passing_ranks_pass(void **state)
{
    struct roles *r = roles_new((int[ROLES]){ PASS, PASS, PASS, PASS });

    (void)state;
    ranks_pass(4, 120, behave, r);
    munmap(r, sizeof *r);
}

static void pass_barriers(int rank, int n, const char *where, void *ctx)
{
    ls_comm *c;

    (void)ctx;
    test_clock_by_reads(); /* the parent has more than a moment to report how rank 1 ended */
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    /* A rank that has not yet left the first barrier may be notified of the death there. */
    bool heard = ls_barrier(c) < 0;
    if (rank == 1) raise(SIGKILL);
    ranks_say("%s", heard || ls_barrier(c) < 0 ? ls_errmsg() : "no failure");
    ls_comm_close(&c);
}

/* With `gone` the others are notified at once how a rank ended, as by a launcher. */
static void death_is_reported_to_other_ranks(void **state)
{
    struct rank_end e[3];

    (void)state;
    ranks_run(3, &(struct ranks_options){ .seconds = 120, .gone = true }, pass_barriers, NULL, e);
    assert_int_equal(e[1].signal, SIGKILL);
    for (int i = 0; i < 3; i += 2) {
        if (e[i].code) fail_msg("%s", rank_trouble(i, &e[i]));
        assert_string_equal(e[i].said, "rank 1 was killed by signal 9");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_end_is_reported),
        cmocka_unit_test(passing_ranks_pass),
        cmocka_unit_test(death_is_reported_to_other_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
