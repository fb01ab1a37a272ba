/* test_comm.c - every collective over a transport, compared with plain loops: types, counts, in place, in flight, splits, refused calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "comm/algorithms/steps.h"
#include "comm/engine/engine.h"
#include "comm/transports/transport.h"
#include "helper_comm.h"
#include "helper_ranks.h"

/* ---- the table ---- */

static bool reduces(ls_collective op) { return op == LS_COLLECTIVE_ALL_REDUCE || op == LS_COLLECTIVE_REDUCE_SCATTER; }

/* Both directions of a call; the case's op, type and count are set. */
static void ways(ls_comm *c, struct comm_case k, bool heap_too)
{
    for (int redop = 0; redop < (reduces(k.op) ? LS_REDOPS : 1); redop++)
        for (int way = 0; way < 16; way++) {
            k.redop = (ls_redop)redop;
            k.v = way & 1;
            k.in_place = way & 2;
            k.flying = way & 4;
            k.heap = way & 8;
            k.root = (int)(k.count % (size_t)ls_comm_size(c));
            if ((k.v && !comm_op_has_v(k.op)) || (k.in_place && k.op == LS_COLLECTIVE_ALL_TO_ALL && k.v) || (k.heap && !heap_too)) continue;
            if (k.redop == LS_AVG && !ls_dtype_is_float(k.type)) continue;
            comm_case_run(c, &k);
        }
}

static void comm_table(ls_comm *c)
{
    size_t n = (size_t)ls_comm_size(c), counts[] = { 0, 1, n - 1, n, 1000 };

    for (size_t op = 0; op < COUNT_OF(comm_ops); op++) {
        for (int t = 0; t < LS_DTYPES; t++)
            for (size_t i = 0; i < COUNT_OF(counts); i++) {
                if (t != LS_F32 && t != LS_BF16 && counts[i] > n && n > 4) continue;
                ways(c, (struct comm_case){ .op = comm_ops[op], .type = (ls_dtype)t, .count = counts[i] }, t <= LS_BF16);
            }
        comm_case_run(c, &(struct comm_case){ .op = comm_ops[op], .type = LS_F32, .count = 100003, .flying = true });
        comm_case_run(c, &(struct comm_case){ .op = comm_ops[op], .type = LS_F32, .count = 100003, .in_place = true, .heap = true });
        comm_case_run(c, &(struct comm_case){ .op = comm_ops[op], .type = LS_BF16, .count = 100003, .in_place = true, .redop = LS_AVG });
    }
}

/* Every existing step list, over this transport. */
static void lists(ls_comm *c)
{
    size_t n = (size_t)ls_comm_size(c), counts[] = { 0, 1, n - 1, n, 1000 };
    const struct algorithm *a;

    for (int i = 0; (a = algorithm_at(i)); i++) {
        if (a->op == LS_COLLECTIVE_BARRIER) continue;
        RANKS_TRY(algorithm_force(a->op, a->name));
        for (size_t k = 0; k < COUNT_OF(counts); k++) {
            ways(c, (struct comm_case){ .op = a->op, .type = LS_F32, .count = counts[k] }, false);
            if (counts[k] >= n) ways(c, (struct comm_case){ .op = a->op, .type = LS_BF16, .count = counts[k] }, false);
        }
        comm_case_run(c, &(struct comm_case){ .op = a->op, .type = LS_F32, .count = 300007, .in_place = true });
        comm_case_run(c, &(struct comm_case){ .op = a->op, .type = LS_F16, .count = 100003, .redop = LS_AVG, .flying = true });
        RANKS_TRY(algorithm_force(a->op, NULL));
    }
}

/* ---- more than one at a time ---- */

static void in_flight(ls_comm *c)
{
    enum { OPS = 8, COUNT = 5000 };
    int rank = ls_comm_rank(c), n = ls_comm_size(c);
    float *x = mem_array(MEM_OTHER, OPS * COUNT, sizeof *x), *big = mem_array(MEM_OTHER, (size_t)n * COUNT, sizeof *big);
    ls_work *w[OPS], *gather;

    for (int k = 0; k < OPS; k++) {
        for (int i = 0; i < COUNT; i++) x[k * COUNT + i] = (float)(rank + k);
        RANKS_TRY(ls_all_reduce(c, x + k * COUNT, x + k * COUNT, COUNT, LS_F32, LS_SUM, &w[k]));
    }
    for (int i = 0; i < COUNT; i++) big[rank * COUNT + i] = (float)rank;
    RANKS_TRY(ls_all_gather(c, big + rank * COUNT, big, COUNT, LS_F32, &gather));
    for (int k = OPS - 1; k >= 0; k--) {  /* waited for in another order */
        RANKS_TRY(ls_work_wait(&w[k]));
        for (int i = 0; i < COUNT; i++) RANKS_CHECK(x[k * COUNT + i] == (float)(n * (n - 1) / 2 + n * k));
    }
    while (gather) RANKS_TRY(ls_work_test(&gather));
    for (int i = 0; i < n * COUNT; i++) RANKS_CHECK(big[i] == (float)(i / COUNT));
    mem_free(x);
    mem_free(big);
}

/* Every rank sends to every rank before any of them receives, with a collective in between. */
static void messages(ls_comm *c, size_t count)
{
    int rank = ls_comm_rank(c), n = ls_comm_size(c);
    int32_t *out = mem_array(MEM_OTHER, count * (size_t)n, sizeof *out), *in = mem_array(MEM_OTHER, count * (size_t)n, sizeof *in);
    ls_work *send[RANKS_MOST] = { 0 }, *recv[RANKS_MOST] = { 0 }, *sum;
    double one = 1;

    for (size_t i = 0; i < count * (size_t)n; i++) out[i] = (int32_t)(i * 7) + rank;
    for (int p = 0; p < n; p++)
        if (p != rank) RANKS_TRY(ls_send(c, out + (size_t)p * count, count, LS_I32, p, &send[p]));
    RANKS_TRY(ls_all_reduce(c, &one, &one, 1, LS_F64, LS_SUM, &sum));
    for (int p = n - 1; p >= 0; p--)
        if (p != rank) RANKS_TRY(ls_recv(c, in + (size_t)p * count, count, LS_I32, p, p % 2 ? &recv[p] : NULL));
    for (int p = 0; p < n; p++) {
        RANKS_TRY(ls_work_wait(&recv[p]));
        RANKS_TRY(ls_work_wait(&send[p]));
        for (size_t i = 0; p != rank && i < count; i++)
            RANKS_CHECK(in[(size_t)p * count + i] == (int32_t)(((size_t)rank * count + i) * 7) + p);
    }
    RANKS_TRY(ls_work_wait(&sum));
    RANKS_CHECK(one == n);
    mem_free(out);
    mem_free(in);
}

/* Random numbers: a repeat gives the same bits, and all ranks have them. */
static void repeats(ls_comm *c)
{
    enum { COUNT = 40009 };
    static const ls_dtype types[] = { LS_F32, LS_BF16, LS_F16, LS_F64 };
    int rank = ls_comm_rank(c), n = ls_comm_size(c);

    for (size_t t = 0; t < COUNT_OF(types); t++) {
        size_t bytes = COUNT * ls_dtype_bytes(types[t]);
        unsigned char *x = mem_alloc(MEM_OTHER, bytes), *once = mem_alloc(MEM_OTHER, bytes), *all = mem_alloc(MEM_OTHER, bytes * (size_t)n);

        for (int turn = 0; turn < 2; turn++) {
            uint32_t seed = (uint32_t)rank * 97 + 1;

            for (size_t i = 0; i < COUNT; i++) {
                seed = seed * 1664525u + 1013904223u;
                comm_element_set(types[t], x, i, (double)(seed >> 8) / 4e6 - 2);
            }
            RANKS_TRY(ls_all_reduce(c, x, x, COUNT, types[t], LS_AVG, NULL));
            if (turn) RANKS_CHECK(memcmp(x, once, bytes) == 0);
            memcpy(once, x, bytes);
        }
        RANKS_TRY(ls_all_gather(c, x, all, bytes, LS_U8, NULL));
        for (int p = 0; p < n; p++) RANKS_CHECK(memcmp(all + (size_t)p * bytes, x, bytes) == 0);
        mem_free(x);
        mem_free(once);
        mem_free(all);
    }
}

static int thirds(void *ctx, int rank) { return *(int *)ctx ? rank / 3 : rank % 3; }

static void splits(ls_comm *c)
{
    int rank = ls_comm_rank(c), n = ls_comm_size(c), blocks = 1;
    ls_comm *odd, *by, *none;
    int64_t sum = rank, all[RANKS_MOST] = { 0 };

    RANKS_TRY(ls_comm_split(c, rank % 2, -rank, &odd));  /* the highest rank first */
    RANKS_CHECK(ls_comm_size(odd) == (n + 1 - rank % 2) / 2);
    RANKS_CHECK((engine_spin_seconds(odd) == 0) ==
                (n > sysconf(_SC_NPROCESSORS_ONLN))); /* the machine is overcommitted, whatever odd's size */
    RANKS_TRY(ls_all_gather(odd, &sum, all, 1, LS_I64, NULL));
    for (int i = 0; i + 1 < ls_comm_size(odd); i++) RANKS_CHECK(all[i] == all[i + 1] + 2);
    RANKS_CHECK(all[ls_comm_rank(odd)] == rank);
    RANKS_TRY(comm_split_by(c, thirds, &blocks, &by));
    RANKS_CHECK(ls_comm_rank(by) == rank % 3 && ls_comm_size(by) == MIN(3, n - rank / 3 * 3));
    RANKS_TRY(ls_all_reduce(by, &sum, &sum, 1, LS_I64, LS_MAX, NULL));
    RANKS_CHECK(sum == MIN(n - 1, rank / 3 * 3 + 2));
    RANKS_TRY(ls_comm_split(c, rank == 0 ? -1 : 0, 0, &none));
    RANKS_CHECK((none == NULL) == (rank == 0));
    ls_comm_close(&none);
    ls_comm_close(&by);
    comm_table(odd);
    ls_comm_close(&odd);
}

static void call_refused(ls_status st, const char *text)
{
    if (st != LS_EINVAL || !strstr(ls_errmsg(), text)) ranks_fail("status %d, \"%s\"; wanted \"...%s...\"", (int)st, ls_errmsg(), text);
}

static void nonsense(ls_comm *c)
{
    float x[64] = { 0 };
    int32_t k[4] = { 0 };
    size_t counts[RANKS_MOST] = { SIZE_MAX, SIZE_MAX };
    int n = ls_comm_size(c), rank = ls_comm_rank(c);

    call_refused(ls_all_reduce(c, x, x + 1, 2, LS_F32, LS_SUM, NULL), "all_reduce: send [");
    call_refused(ls_all_reduce(c, k, k, 4, LS_I32, LS_AVG, NULL), "all_reduce: the average of i32");
    call_refused(ls_all_reduce(c, x, x, 4, LS_F32, (ls_redop)9, NULL), "9 is not a valid operator");
    call_refused(ls_all_reduce(c, x, x, 4, (ls_dtype)77, LS_SUM, NULL), "77 is not a valid dtype");
    call_refused(ls_all_reduce(c, NULL, x, 4, LS_F32, LS_SUM, NULL), "buffer is NULL, but 16 bytes");
    call_refused(ls_all_gather(c, x, x + 32, SIZE_MAX / 8, LS_F64, NULL), "overflow size_t");
    call_refused(ls_all_gather_v(c, x, x + 32, NULL, LS_F32, NULL), "all_gather_v: counts is NULL");
    if (n > 1) {
        call_refused(ls_all_gather_v(c, x, x + 32, counts, LS_F32, NULL), "all_gather_v");
        call_refused(ls_all_gather(c, x + 20, x + 16, 8, LS_F32, NULL), "overlap");
        call_refused(ls_send(c, x, 1, LS_F32, n, NULL), "is out of range");
    }
    call_refused(ls_send(c, x, 1, LS_F32, rank, NULL), "with itself");
    call_refused(ls_broadcast(c, x, 1, LS_F32, -1, NULL), "rank -1 is out of range");
    RANKS_TRY(ls_work_wait(NULL));
}

static void everything(int rank, int n, const char *where, void *ctx)
{
    ls_comm *c;

    (void)ctx;
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    ls_comm_set_timeout(c, COMM_TIMEOUT);
    nonsense(c);
    comm_table(c);
    in_flight(c);
    messages(c, 1000);
    repeats(c);
    if (n > 1) splits(c);
    if (n > 1) lists(c);
    RANKS_TRY(ls_barrier(c));
    ls_comm_close(&c);
}

static void collectives_equal_reference(void **state)
{
    static const int sizes[] = { 1, 2, 3, 4, 5, 8 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) ranks_pass(sizes[i], COMM_TIMEOUT, everything, NULL);
}

/* Both ranks send 32 MB before they receive. */
static void large_messages(int rank, int n, const char *where, void *ctx)
{
    ls_comm *c;

    (void)ctx;
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    messages(c, 4 << 20);
    ls_comm_close(&c);
}

static void large_messages_arrive(void **state)
{
    (void)state;
    ranks_pass(2, COMM_TIMEOUT, large_messages, NULL);
}

/* ---- main ---- */

/* Under mpirun: the values alone, on one world. */
static int over_mpi(void)
{
    struct world w;

    if (world_find(&w) < 0) {
        fprintf(stderr, "%s\n", ls_errmsg());
        return 1;
    }
    everything(w.rank, w.size, "mpi:", NULL);
    if (w.rank == 0) printf("%d ranks: all values are right\n", w.size);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_equal_reference),
        cmocka_unit_test(large_messages_arrive),
    };

    if (argc > 1 && !strcmp(argv[1], "--mpi")) return over_mpi();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
