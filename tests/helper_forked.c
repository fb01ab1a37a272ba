/* helper_forked.c */
#include "helper_forked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include "comm/segment.h"

enum { RANKS_MOST = 16, PATIENCE = 120 };  /* seconds that a rank may take on a busy machine */

void forked_wrong(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: process %d: %s (%s)\n", file, line, (int)getpid(), what, ls_errmsg());
    _exit(1);
}

static void be_rank(const char *where, int rank, int n, forked_fn *fn, void *ctx)
{
    ls_comm *comm;

    alarm(PATIENCE);
    RANK_OK(ls_comm_open(where, rank, n, &comm));
    fn(comm, ctx);
    RANK_OK(ls_barrier(comm));
    ls_comm_close(&comm);
    fflush(NULL);
    _exit(0);
}

void forked_run(int n, forked_fn *fn, void *ctx)
{
    struct segment *segment;
    pid_t pid[RANKS_MOST];
    char where[64];
    int failed = 0;

    assert_true(n <= RANKS_MOST);
    assert_int_equal(segment_create(n, &segment), LS_OK);
    snprintf(where, sizeof where, "shm:fd:%d", segment_fd(segment));
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (!pid[r])
            be_rank(where, r, n, fn, ctx);
    }
    for (int r = 0; r < n; r++) {
        int status;

        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    segment_close(&segment);
    assert_int_equal(failed, 0);
}
