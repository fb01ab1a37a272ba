/* test_shm_collectives.c - native collectives of the shared-memory transport compared with loops, and split links. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "comm/reduce.h"
#include "comm/transports/shm/shm_link.h"
#include "helper_shm.h"

/* ---- whole collectives ---- */

static const size_t COUNTS[] = { 0, 1, 3, 1000, 2049, 70001, 300007 };

/* Small whole numbers: their sums are exact in every type, in any order. */
static float number_at(int rank, size_t i) { return (float)((i * 13 + (size_t)rank * 5) % 23) - 7.0f; }

static void numbers_fill(float *x, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++) x[i] = number_at(rank, i);
}

static float reduced_at(int n, size_t i, ls_redop op)
{
    float sum = number_at(0, i), most = sum;

    for (int j = 1; j < n; j++) {
        sum += number_at(j, i);
        most = MAX(most, number_at(j, i));
    }
    return op == LS_MAX ? most : op == LS_AVG ? sum / (float)n : sum;
}

static float *buffer(struct link *l, size_t count, bool shared)
{
    float *p = shared ? transport_shm.alloc(l, count * sizeof *p + 64) : malloc(count * sizeof *p + 64);

    SHM_CHECK(p);
    return p;
}

static void drop(struct link *l, float *p, bool shared)
{
    if (shared) transport_shm.free(l, p);
    else free(p);
}

/* mixed: some ranks' buffers in heaps, some not. */
enum backing { PLAIN, SHARED, MIXED, BACKINGS };
static bool is_shared(enum backing b, int rank) { return b == SHARED || (b == MIXED && rank % 2 == 0); }

static bool all_shared(enum backing b, int n)
{
    for (int i = 0; i < n; i++)
        if (!is_shared(b, i)) return false;
    return true;
}

static void all_reduces(struct link *l, size_t count, enum backing b)
{
    bool shared = is_shared(b, l->base.rank);
    float *send = buffer(l, count, shared), *recv = buffer(l, count, shared);

    for (int op = 0; op < LS_REDOPS; op++)
        for (int in_place = 0; in_place < 2; in_place++) {
            float *to = in_place ? send : recv;
            numbers_fill(send, count, l->base.rank);
            struct request r = shm_request(LS_COLLECTIVE_ALL_REDUCE, send, to, count, LS_F32, (ls_redop)op);
            SHM_TRY(shm_drive(l, &r));
            for (size_t i = 0; i < count; i++) SHM_CHECK(to[i] == reduced_at(l->base.n, i, (ls_redop)op));
        }
    drop(l, send, shared);
    drop(l, recv, shared);
}

/* Borders of blocks of unequal sizes, some empty; at[n] elements in all. */
static void borders(size_t count, int n, bool uneven, size_t *at)
{
    at[0] = 0;
    for (int i = 0; i < n; i++) at[i + 1] = at[i] + (uneven ? i % 3 == 1 ? 0 : count + (size_t)i : count);
}

static void all_gathers(struct link *l, size_t count, enum backing b, bool uneven)
{
    int n = l->base.n, me = l->base.rank;
    bool shared = is_shared(b, me);
    size_t at[SHM_RANKS + 1];

    borders(count, n, uneven, at);
    float *send = buffer(l, at[me + 1] - at[me], shared), *recv = buffer(l, at[n], shared);
    for (int in_place = 0; in_place < 2; in_place++) {
        float *from = in_place ? recv + at[me] : send;
        memset(recv, 0, at[n] * sizeof *recv);
        numbers_fill(from, at[me + 1] - at[me], me);
        struct request r = shm_request(LS_COLLECTIVE_ALL_GATHER, from, recv, count, LS_F32, LS_SUM);
        r.at = uneven ? at : NULL;
        SHM_TRY(shm_drive(l, &r));
        for (int j = 0; j < n; j++)
            for (size_t i = at[j]; i < at[j + 1]; i++) SHM_CHECK(recv[i] == number_at(j, i - at[j]));
    }
    drop(l, send, shared);
    drop(l, recv, shared);
}

static void reduce_scatters(struct link *l, size_t count, enum backing b, bool uneven)
{
    int n = l->base.n, me = l->base.rank;
    bool shared = is_shared(b, me);
    size_t at[SHM_RANKS + 1];

    borders(count, n, uneven, at);
    float *send = buffer(l, at[n], shared), *recv = buffer(l, at[me + 1] - at[me], false);
    for (int in_place = 0; in_place < 2; in_place++) {
        float *to = in_place ? send + at[me] : recv;
        numbers_fill(send, at[n], me);
        struct request r = shm_request(LS_COLLECTIVE_REDUCE_SCATTER, send, to, count, LS_F32, LS_AVG);
        r.at = uneven ? at : NULL;
        SHM_TRY(shm_drive(l, &r));
        for (size_t i = at[me]; i < at[me + 1]; i++) SHM_CHECK(to[i - at[me]] == reduced_at(n, i, LS_AVG));
    }
    drop(l, send, shared);
    drop(l, recv, false);
}

static void all_to_alls(struct link *l, size_t count, enum backing b)
{
    int n = l->base.n, me = l->base.rank;
    bool shared = is_shared(b, me);
    float *send = buffer(l, (size_t)n * count, shared), *recv = buffer(l, (size_t)n * count, shared);

    for (int in_place = 0; in_place < 2; in_place++) {
        float *to = in_place ? send : recv;
        numbers_fill(send, (size_t)n * count, me);
        struct request r = shm_request(LS_COLLECTIVE_ALL_TO_ALL, send, to, count, LS_F32, LS_SUM);
        SHM_TRY(shm_drive(l, &r));
        if (in_place && (size_t)n * count * sizeof *send > SMALL_MOST)
            SHM_CHECK(l->now.way == (all_shared(b, n) ? WAY_SWAP : WAY_STAGED));
        for (int j = 0; j < n; j++)
            for (size_t i = 0; i < count; i++) SHM_CHECK(to[(size_t)j * count + i] == number_at(j, (size_t)me * count + i));
    }
    drop(l, send, shared);
    drop(l, recv, shared);
}

/* The number of elements that rank i sends to rank j. */
static size_t sent_to(size_t count, int i, int j) { return (i + j) % 3 == 0 ? 0 : count / (size_t)(i + 1) + (size_t)j; }

static void uneven_all_to_alls(struct link *l, size_t count, enum backing b)
{
    int n = l->base.n, me = l->base.rank;
    bool shared = is_shared(b, me);
    size_t at[SHM_RANKS + 1] = { 0 }, recv_at[SHM_RANKS + 1] = { 0 };

    for (int j = 0; j < n; j++) {
        at[j + 1] = at[j] + sent_to(count, me, j);
        recv_at[j + 1] = recv_at[j] + sent_to(count, j, me);
    }
    float *send = buffer(l, at[n], shared), *recv = buffer(l, recv_at[n], false);
    numbers_fill(send, at[n], me);
    struct request r = shm_request(LS_COLLECTIVE_ALL_TO_ALL, send, recv, 0, LS_F32, LS_SUM);
    r.at = at;
    r.recv_at = recv_at;
    SHM_TRY(shm_drive(l, &r));
    for (int j = 0; j < n; j++) {
        size_t before = 0;
        for (int i = 0; i < me; i++) before += sent_to(count, j, i);
        for (size_t i = 0; i < sent_to(count, j, me); i++) SHM_CHECK(recv[recv_at[j] + i] == number_at(j, before + i));
    }
    drop(l, send, shared);
    drop(l, recv, false);
}

/* The number of elements that ranks i and j send each other, in place. */
static size_t swapped(size_t count, int i, int j) { return (i + j) % 3 == 0 ? 0 : count / (size_t)(MIN(i, j) + 1) + (size_t)(i + j); }

static void uneven_swaps(struct link *l, size_t count, enum backing b)
{
    int n = l->base.n, me = l->base.rank;
    bool shared = is_shared(b, me);
    size_t at[SHM_RANKS + 1] = { 0 };

    for (int j = 0; j < n; j++) at[j + 1] = at[j] + swapped(count, me, j);
    float *x = buffer(l, at[n], shared);
    numbers_fill(x, at[n], me);
    struct request r = shm_request(LS_COLLECTIVE_ALL_TO_ALL, x, x, 0, LS_F32, LS_SUM);
    r.at = r.recv_at = at;
    SHM_TRY(shm_drive(l, &r));
    for (int j = 0; j < n; j++) {
        size_t before = 0;
        for (int i = 0; i < me; i++) before += swapped(count, j, i);
        for (size_t i = 0; i < swapped(count, me, j); i++) SHM_CHECK(x[at[j] + i] == number_at(j, before + i));
    }
    drop(l, x, shared);
}

static void broadcasts(struct link *l, size_t count, enum backing b)
{
    bool shared = is_shared(b, l->base.rank);
    float *x = buffer(l, count, shared);

    for (int root = 0; root < l->base.n; root++) {
        numbers_fill(x, count, l->base.rank);
        struct request r = shm_request(LS_COLLECTIVE_BROADCAST, NULL, x, count, LS_F32, LS_SUM);
        r.root = r.signature.root = root;
        SHM_TRY(shm_drive(l, &r));
        for (size_t i = 0; i < count; i++) SHM_CHECK(x[i] == number_at(root, i));
    }
    drop(l, x, shared);
}

static void run_collectives(int rank, int n, const char *where)
{
    struct link *l = shm_join(where, rank, n);

    for (size_t c = 0; c < COUNT_OF(COUNTS); c++)
        for (int b = 0; b < BACKINGS; b++) {
            all_reduces(l, COUNTS[c], (enum backing)b);
            all_gathers(l, COUNTS[c], (enum backing)b, false);
            all_gathers(l, COUNTS[c], (enum backing)b, true);
            reduce_scatters(l, COUNTS[c], (enum backing)b, false);
            reduce_scatters(l, COUNTS[c], (enum backing)b, true);
            all_to_alls(l, COUNTS[c], (enum backing)b);
            uneven_all_to_alls(l, COUNTS[c], (enum backing)b);
            uneven_swaps(l, COUNTS[c], (enum backing)b);
            broadcasts(l, COUNTS[c], (enum backing)b);
            SHM_TRY(shm_barrier(l));
        }
    shm_leave(l);
}

static void collectives_equal_reference(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) shm_run(n, run_collectives);
}

/* Every method gives the same bits on every rank: sums of numbers whose rounding shows the order. */
static void sum_in_every_way(int rank, int n, const char *where)
{
    enum { COUNT = 50021 };
    static const ls_dtype types[] = { LS_F32, LS_BF16, LS_F16 };
    struct link *l = shm_join(where, rank, n);
    float *x = buffer(l, COUNT, false);
    unsigned char *plain = (void *)buffer(l, COUNT, false), *shared = (void *)buffer(l, COUNT, true),
        *all = (void *)buffer(l, (size_t)n * COUNT, false);
    const void *term[SHM_RANKS];

    for (size_t t = 0; t < COUNT_OF(types); t++) {
        size_t e = ls_dtype_bytes(types[t]), small = SMALL_MOST / e;
        for (size_t i = 0; i < COUNT; i++) x[i] = 1.0f / (float)(i + 3 + (size_t)rank * 17) * (rank % 2 ? -1.0f : 3.0f);
        ls_convert(plain, types[t], x, LS_F32, COUNT);
        memcpy(shared, plain, COUNT * e);
        struct request r = shm_request(LS_COLLECTIVE_ALL_GATHER, plain, all, COUNT, types[t], LS_SUM);
        SHM_TRY(shm_drive(l, &r));
        for (int j = 0; j < n; j++) term[j] = all + (size_t)j * COUNT * e;
        reduce_many(x, term, n, COUNT, types[t], LS_SUM, 1);

        unsigned char *in_post = all;  /* the first elements again, by the post */
        memcpy(in_post, plain, small * e);
        r = shm_request(LS_COLLECTIVE_ALL_REDUCE, in_post, in_post, small, types[t], LS_SUM);
        SHM_TRY(shm_drive(l, &r));
        r = shm_request(LS_COLLECTIVE_ALL_REDUCE, plain, plain, COUNT, types[t], LS_SUM);
        SHM_TRY(shm_drive(l, &r));
        r = shm_request(LS_COLLECTIVE_ALL_REDUCE, shared, shared, COUNT, types[t], LS_SUM);
        SHM_TRY(shm_drive(l, &r));
        SHM_CHECK(memcmp(in_post, x, small * e) == 0);
        SHM_CHECK(memcmp(plain, x, COUNT * e) == 0);
        SHM_CHECK(memcmp(shared, x, COUNT * e) == 0);
    }
    shm_leave(l);
}

static void every_path_gives_the_same_bits(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n++) shm_run(n, sum_in_every_way);
}

static void call_different_things(int rank, int n, const char *where)
{
    struct link *l = NULL;
    float x[100] = { 0 };
    struct request r = shm_request(LS_COLLECTIVE_ALL_REDUCE, x, x, rank == 1 ? 99 : 100, LS_F32, LS_SUM);

    if (transport_shm.open(where, rank, n, SHM_TIMEOUT, &l) < 0) {  /* the others were through with it before */
        SHM_CHECK(strstr(ls_errmsg(), "99") && strstr(ls_errmsg(), "100"));
        return;
    }
    SHM_CHECK(shm_drive(l, &r) == LS_EPEER);
    SHM_CHECK(strstr(ls_errmsg(), "99") && strstr(ls_errmsg(), "100"));
    SHM_CHECK(shm_barrier(l) == LS_EPEER);
    shm_leave(l);
}

static void mismatched_collective_ends_the_job_on_every_rank(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++) shm_run(n, call_different_things);
}

/* ---- splits ---- */

static void split_often(int rank, int n, const char *where)
{
    struct link *l = shm_join(where, rank, n);
    float *x = buffer(l, 5000, true);

    for (uint64_t round = 0; round < 20; round++) {
        int members[SHM_RANKS], count = 0, me = 0;
        struct link *part = NULL;
        for (int i = 0; i < n; i++)
            if ((i + (int)round) % 2 == (rank + (int)round) % 2) {
                if (i == rank) me = count;
                members[count++] = i;
            }
        SHM_TRY(transport_shm.split(l, count, members, me, 100 + 2 * round + (uint64_t)(rank % 2), &part));
        SHM_CHECK(part->base.rank == me && part->base.n == count);
        for (size_t i = 0; i < 5000; i++) x[i] = 1.0f;
        struct request r = shm_request(LS_COLLECTIVE_ALL_REDUCE, x, x, 5000, LS_F32, LS_SUM);
        SHM_TRY(shm_drive(part, &r));
        for (size_t i = 0; i < 5000; i++) SHM_CHECK(x[i] == (float)count);
        shm_leave(part);
        SHM_TRY(shm_barrier(l));
    }
    if (rank == 0) SHM_CHECK(l->region->heap.n <= 8);  /* areas of closed links were freed */
    drop(l, x, true);
    shm_leave(l);
}

static void links_are_split_and_closed(void **state)
{
    (void)state;
    shm_run(5, split_often);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_equal_reference),
        cmocka_unit_test(every_path_gives_the_same_bits),
        cmocka_unit_test(mismatched_collective_ends_the_job_on_every_rank),
        cmocka_unit_test(links_are_split_and_closed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
