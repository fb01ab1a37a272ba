/* test_comm_counts.c - counters of collectives: bytes compared with formulas, allocations, a comm without peers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "comm/algorithms/steps.h"
#include "helper_comm.h"
#include "helper_ranks.h"

/* ---- counted operations and bytes ---- */

static uint64_t to_all(ls_comm *c)
{
    uint64_t bytes = 0;

    for (int i = 0; i < ls_comm_size(c); i++) bytes += ls_comm_bytes_to(c, i);
    return bytes;
}

static void count_one(ls_comm *c, const struct comm_case *k, const char *how)
{
    struct comm_run r = comm_run_plan(c, k);
    ls_comm_count before = ls_comm_counters(c, k->op);
    uint64_t peers = to_all(c), bytes = ls_comm_bytes_of(c, k->op, k->count, k->v ? r.counts : NULL, k->type);

    comm_case_run(c, k);
    ls_comm_count after = ls_comm_counters(c, k->op);
    if (after.calls != before.calls + 1 || after.bytes - before.bytes != bytes || to_all(c) - peers != bytes)
        ranks_fail("%s by %s: %llu bytes counted, %llu to peers, formula %llu", comm_case_text(k), how,
                   (unsigned long long)(after.bytes - before.bytes), (unsigned long long)(to_all(c) - peers), (unsigned long long)bytes);
    RANKS_CHECK(after.seconds >= before.seconds && after.exposed > before.exposed);
}

/* Operations reported, and how often their times were out of order. */
struct watched { uint64_t calls[LS_COLLECTIVES], bytes[LS_COLLECTIVES]; int wrong; };

static void call_watch(void *ctx, const struct comm_seen *e)
{
    struct watched *w = ctx;
    bool message = e->op == LS_COLLECTIVE_SEND || e->op == LS_COLLECTIVE_RECV;

    w->calls[e->op]++;
    w->bytes[e->op] += e->bytes;
    w->wrong += !(e->queued <= e->started && e->started <= e->ended) || ls_comm_size(e->comm) < 2;
    w->wrong += e->rank != ls_comm_rank(e->comm) || (message ? e->peer != 1 - e->rank : e->peer != -1) || e->sequence == 0;
}

static void counters(int rank, int n, const char *where, void *ctx)
{
    struct watched seen = { .wrong = 0 };
    const struct algorithm *a = NULL;
    ls_comm *c;
    float x = 1;

    (void)ctx;
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    comm_watch(call_watch, &seen);
    for (int i = -1; i < 0 || (a = algorithm_at(i)); i++) {
        if (i >= 0 && a->op == LS_COLLECTIVE_BARRIER) continue;
        if (i >= 0) RANKS_TRY(algorithm_force(a->op, a->name));
        for (size_t op = 0; op < COUNT_OF(comm_ops); op++)
            for (int v = 0; v < (comm_op_has_v(comm_ops[op]) ? 2 : 1); v++)
                count_one(c, &(struct comm_case){ .op = comm_ops[op], .v = v, .type = LS_F32, .count = 30011 }, i < 0 ? "choice" : a->name);
        if (i >= 0) RANKS_TRY(algorithm_force(a->op, NULL));
    }
    RANKS_TRY(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, "ring"));
    RANKS_CHECK(ls_comm_bytes_of(c, LS_COLLECTIVE_ALL_REDUCE, 1000 * (size_t)n, NULL, LS_F32) == 2 * (uint64_t)(n - 1) * 4000);
    RANKS_TRY(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, NULL));
    if (rank == 0) RANKS_TRY(ls_send(c, &x, 1, LS_F32, 1, NULL));
    if (rank == 1) RANKS_TRY(ls_recv(c, &x, 1, LS_F32, 0, NULL));
    RANKS_CHECK(ls_comm_counters(c, LS_COLLECTIVE_SEND).bytes == (rank == 0 ? 4 : 0));
    RANKS_CHECK(ls_comm_counters(c, LS_COLLECTIVE_RECV).calls == (rank == 1) && ls_comm_counters(c, LS_COLLECTIVE_RECV).bytes == 0);
    RANKS_TRY(ls_barrier(c));
    for (int op = 0; op < LS_COLLECTIVES; op++) {
        ls_comm_count own = ls_comm_counters(c, (ls_collective)op), all = comm_counted((ls_collective)op);

        RANKS_CHECK(own.calls == all.calls && own.bytes == all.bytes && own.exposed == all.exposed);
        RANKS_CHECK(seen.calls[op] == own.calls && seen.bytes[op] == own.bytes);
    }
    RANKS_CHECK(seen.wrong == 0);
    comm_watch(NULL, NULL);
    ls_comm_close(&c);
}

static void bytes_equal_the_formula(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n++) ranks_pass(n, COMM_TIMEOUT, counters, NULL);
}

static void steady(int rank, int n, const char *where, void *ctx)
{
    enum { COUNT = 3000 };
    static float x[COUNT];
    struct mem_stats before, after;
    ls_work *w[3];
    ls_comm *c;

    (void)ctx;
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    for (int list = 0; list < 2; list++) {
        RANKS_TRY(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, list ? "ring" : NULL));
        for (int turn = 0; turn < 4; turn++) {
            mem_read(&before);
            for (int i = 0; i < 3; i++) RANKS_TRY(ls_all_reduce(c, x, x, COUNT - (size_t)i * 100, LS_F32, LS_SUM, i == 1 ? NULL : &w[i]));
            RANKS_TRY(ls_work_wait(&w[0]));
            RANKS_TRY(ls_work_wait(&w[2]));
            mem_read(&after);
            if (turn) RANKS_CHECK(after.calls == before.calls);
        }
    }
    ls_comm_close(&c);
}

static void repeated_calls_allocate_nothing(void **state)
{
    (void)state;
    ranks_pass(3, COMM_TIMEOUT, steady, NULL);
}

/* ---- a comm without peers ---- */

static int halves(void *ctx, int rank) { return rank / *(int *)ctx; }

static void plan_comm_counts_sizes_and_bytes(void **state)
{
    int per = 4;
    ls_comm *c, *shard;
    float x = 0;

    (void)state;
    assert_int_equal(ls_comm_open("plan:", 5, 8, &c), LS_OK);
    assert_string_equal(ls_comm_transport(c), "plan");
    assert_int_equal(ls_comm_rank(c), 5);
    assert_int_equal(ls_comm_size(c), 8);
    assert_int_equal(ls_comm_bytes_of(c, LS_COLLECTIVE_ALL_REDUCE, 8000, NULL, LS_F32), 2 * 7 * 4000);
    assert_int_equal(ls_comm_bytes_of(c, LS_COLLECTIVE_ALL_GATHER, 1000, NULL, LS_BF16), 7 * 2000);
    assert_int_equal(ls_all_reduce(c, &x, &x, 1, LS_F32, LS_SUM, NULL), LS_EUNSUPPORTED);
    assert_int_equal(comm_split_by(c, halves, &per, &shard), LS_OK);
    assert_int_equal(ls_comm_rank(shard), 1);
    assert_int_equal(ls_comm_size(shard), 4);
    ls_comm_close(&shard);
    ls_comm_close(&c);
    assert_null(c);
    assert_int_equal(ls_comm_open("plan:", 8, 8, &c), LS_EINVAL);
    assert_int_equal(ls_comm_open("pigeon:", 0, 2, &c), LS_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_equal_the_formula),
        cmocka_unit_test(repeated_calls_allocate_nothing),
        cmocka_unit_test(plan_comm_counts_sizes_and_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
