#include "helper_shm.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

void shm_wrong(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: process %d: %s (%s)\n", file, line, (int)getpid(), what, ls_errmsg());
    _exit(1);
}

void shm_job_start_at(struct shm_job *j, int n, const char *where, shm_rank_fn *fn)
{
    j->n = n;
    snprintf(j->where, sizeof j->where, "%s", where);
    for (int i = 0; i < n; i++) {
        j->pid[i] = fork();
        assert_true(j->pid[i] >= 0);
        if (j->pid[i] > 0) continue;
        alarm((unsigned)SHM_TIMEOUT * 2);
        fn(i, n, j->where);
        _exit(0);
    }
}

void shm_job_start(struct shm_job *j, int n, shm_rank_fn *fn)
{
    char where[64];

    assert_int_equal(region_create(n, &j->region), LS_OK);
    snprintf(where, sizeof where, "fd:%d", region_fd(j->region));
    shm_job_start_at(j, n, where, fn);
}

int shm_job_wait_rank(struct shm_job *j, int rank)
{
    int status;

    assert_int_equal(waitpid(j->pid[rank], &status, 0), j->pid[rank]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void shm_job_finish(struct shm_job *j)
{
    int failed = 0;

    for (int i = 0; i < j->n; i++) failed += shm_job_wait_rank(j, i) != 0;
    region_close(&j->region);
    assert_int_equal(failed, 0);
}

void shm_run(int n, shm_rank_fn *fn)
{
    struct shm_job j = { 0 };

    shm_job_start(&j, n, fn);
    shm_job_finish(&j);
}

struct link *shm_join(const char *where, int rank, int n)
{
    struct link *l = NULL;

    SHM_TRY(transport_shm.open(where, rank, n, SHM_TIMEOUT, &l));
    return l;
}

void shm_leave(struct link *l) { transport_shm.close(&l); }

ls_status shm_drive(struct link *l, struct request *r)
{
    double deadline = base_now() + SHM_TIMEOUT;
    ls_status st = transport_shm.begin(l, r);

    while (st >= 0 && (st = transport_shm.advance(l, r)) == LS_BUSY) {
        LS_TRY(transport_shm.idle(l, 0.01));
        SHM_CHECK(base_now() < deadline);
    }
    return st;
}

struct request shm_request(ls_collective op, const void *send, void *recv, size_t count, ls_dtype type, ls_redop redop)
{
    static uint64_t sequence;

    return (struct request){
        .signature = { .sequence = ++sequence, .count = count, .group = 1, .op = (int32_t)op, .type = (int32_t)type,
                       .redop = (int32_t)redop, .root = -1 },
        .send = send, .recv = recv, .count = count, .type = type, .redop = redop, .root = -1,
    };
}

ls_status shm_barrier(struct link *l)
{
    struct request r = shm_request(LS_COLLECTIVE_BARRIER, NULL, NULL, 0, LS_U8, LS_SUM);

    return shm_drive(l, &r);
}

char *shm_unique_name(char *out, size_t bytes)
{
    static int number;

    snprintf(out, bytes, "test-%d-%d", (int)getpid(), ++number);
    return out;
}
