/* Every operation on every transport: values to the bit, in place, in flight together, uneven blocks, counters.
 *
 * Each test runs on forked ranks over shared memory. The tests of values also run over MPI:  mpirun -n 3 test_comm --mpi
 * Values are small whole numbers, exact in every type and in every order of summing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "comm/steps.h"
#include "comm/transport.h"
#include "helper_ranks.h"

enum { GUARD = 64 };              /* bytes behind a buffer that nobody writes */
static const double PATIENCE = 120;

/* ---- buffers of any type ---- */

static void element_set(ls_dtype t, void *p, size_t i, double x)
{
    float f = (float)x;

    switch (t) {
    case LS_F32: ((float *)p)[i] = f; break;
    case LS_BF16: ((uint16_t *)p)[i] = ls_f32_to_bf16(f); break;
    case LS_F16: ((uint16_t *)p)[i] = ls_f32_to_f16(f); break;
    case LS_F64: ((double *)p)[i] = x; break;
    case LS_I64: ((int64_t *)p)[i] = (int64_t)x; break;
    case LS_I32: ((int32_t *)p)[i] = (int32_t)x; break;
    case LS_U16: ((uint16_t *)p)[i] = (uint16_t)x; break;
    case LS_U8: ((uint8_t *)p)[i] = (uint8_t)x; break;
    case LS_DTYPES: break;
    }
}

/* What rank r sends at element i. */
static double value(int r, size_t i) { return (double)((i * 3 + (size_t)r * 7 + (i >> 9)) % 5); }

static double reduced(int n, size_t i, ls_dtype t, ls_redop op)
{
    double x = value(0, i);

    for (int r = 1; r < n; r++) x = op == LS_MAX ? MAX(x, value(r, i)) : x + value(r, i);
    if (op != LS_AVG) return x;
    return t == LS_F64 ? x / n : (double)((float)x / (float)n);
}

/* ---- one case ---- */

struct kase {
    ls_collective op;
    bool     v, in_place, flying, heap;
    ls_dtype type;
    ls_redop redop;
    size_t   count;
    int      root;
};

struct run {
    const struct kase *k;
    ls_comm *c;
    int      rank, n;
    size_t   size, counts[RANKS_MOST], recv_counts[RANKS_MOST], at[RANKS_MOST + 1], recv_at[RANKS_MOST + 1];
    size_t   send_n, recv_n, own;  /* elements of both buffers; where the small one lies in the big one */
};

/* What rank `from` has for rank `to` in all_to_all. */
static size_t dealt(const struct kase *k, int from, int to) { return k->v ? (size_t)(from * 3 + to * 5) % 4 * k->count / 3 : k->count; }

static const char *case_text(const struct kase *k)
{
    static char text[160];

    snprintf(text, sizeof text, "%s%s %s op %d count %zu root %d%s%s%s", ls_collective_name(k->op), k->v ? "_v" : "",
             ls_dtype_name(k->type), (int)k->redop, k->count, k->root, k->in_place ? " in place" : "", k->flying ? " flying" : "",
             k->heap ? " heap" : "");
    return text;
}

static struct run plan_run(ls_comm *c, const struct kase *k)
{
    struct run r = { .k = k, .c = c, .rank = ls_comm_rank(c), .n = ls_comm_size(c), .size = ls_dtype_bytes(k->type) };

    for (int i = 0; i < r.n; i++) {
        bool deals = k->op == LS_COLLECTIVE_ALL_TO_ALL;

        r.counts[i] = deals ? dealt(k, r.rank, i) : k->v ? (i % 3 == 1 ? 0 : k->count / 2 + (size_t)i) : k->count;
        r.recv_counts[i] = deals ? dealt(k, i, r.rank) : r.counts[i];
        r.at[i + 1] = r.at[i] + r.counts[i];
        r.recv_at[i + 1] = r.recv_at[i] + r.recv_counts[i];
    }
    size_t all = r.at[r.n], own = r.counts[r.rank];

    r.send_n = r.recv_n = k->count;
    if (k->op == LS_COLLECTIVE_ALL_GATHER) r.send_n = own, r.recv_n = all;
    if (k->op == LS_COLLECTIVE_REDUCE_SCATTER) r.send_n = all, r.recv_n = own;
    if (k->op == LS_COLLECTIVE_ALL_TO_ALL) r.send_n = all, r.recv_n = r.recv_at[r.n];
    if (k->op == LS_COLLECTIVE_ALL_GATHER || k->op == LS_COLLECTIVE_REDUCE_SCATTER) r.own = r.at[r.rank];
    return r;
}

/* What element i of the result must be. */
static double wanted(const struct run *r, size_t i)
{
    const struct kase *k = r->k;
    int j = 0;

    switch (k->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return reduced(r->n, i, k->type, k->redop);
    case LS_COLLECTIVE_REDUCE_SCATTER: return reduced(r->n, r->at[r->rank] + i, k->type, k->redop);
    case LS_COLLECTIVE_BROADCAST: return value(k->root, i);
    case LS_COLLECTIVE_ALL_GATHER:
        while (i >= r->at[j + 1]) j++;
        return value(j, i - r->at[j]);
    default:  /* all_to_all: behind what j has for the ranks before this one */
        while (i >= r->recv_at[j + 1]) j++;
        i -= r->recv_at[j];
        for (int to = 0; to < r->rank; to++) i += dealt(k, j, to);
        return value(j, i);
    }
}

static ls_status call(const struct run *r, const void *send, void *recv, ls_work **work)
{
    const struct kase *k = r->k;

    switch (k->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return ls_all_reduce(r->c, send, recv, k->count, k->type, k->redop, work);
    case LS_COLLECTIVE_BROADCAST: return ls_broadcast(r->c, recv, k->count, k->type, k->root, work);
    case LS_COLLECTIVE_ALL_GATHER:
        return k->v ? ls_all_gather_v(r->c, send, recv, r->counts, k->type, work) : ls_all_gather(r->c, send, recv, k->count, k->type, work);
    case LS_COLLECTIVE_REDUCE_SCATTER:
        return k->v ? ls_reduce_scatter_v(r->c, send, recv, r->counts, k->type, k->redop, work)
                    : ls_reduce_scatter(r->c, send, recv, k->count, k->type, k->redop, work);
    default:
        return k->v ? ls_all_to_all_v(r->c, send, r->counts, recv, r->recv_counts, k->type, work)
                    : ls_all_to_all(r->c, send, recv, k->count, k->type, work);
    }
}

static void *block(const struct run *r, size_t elements)
{
    size_t bytes = elements * r->size + GUARD;
    unsigned char *p = r->k->heap ? ls_comm_alloc(r->c, bytes) : mem_alloc(MEM_OTHER, bytes);

    if (!p) ranks_fail("%s: %s", case_text(r->k), ls_errmsg());
    memset(p, 0xa5, bytes);
    return p;
}

static void unblock(const struct run *r, void *p)
{
    if (r->k->heap) ls_comm_free(r->c, p);
    else mem_free(p);
}

static void check(const struct run *r, const unsigned char *recv, const unsigned char *end)
{
    for (size_t i = 0; i < r->recv_n; i++) {
        unsigned char want[8];

        element_set(r->k->type, want, 0, wanted(r, i));
        if (memcmp(want, recv + i * r->size, r->size))
            ranks_fail("%s: rank %d of %d, element %zu of %zu is wrong", case_text(r->k), r->rank, r->n, i, r->recv_n);
    }
    for (int i = 0; i < GUARD; i++)
        if (end[i] != 0xa5) ranks_fail("%s: rank %d of %d wrote behind its buffer", case_text(r->k), r->rank, r->n);
}

static void run_case(ls_comm *c, const struct kase *k)
{
    struct run r = plan_run(c, k);
    bool one = k->in_place || k->op == LS_COLLECTIVE_BROADCAST;
    size_t big = MAX(r.send_n, r.recv_n);
    unsigned char *a = block(&r, one ? big : r.send_n), *b = one ? a : block(&r, r.recv_n), *send = a, *recv = b;
    ls_work *w = NULL;

    if (one && r.send_n < r.recv_n) send = a + r.own * r.size;
    if (one && r.recv_n < r.send_n) recv = a + r.own * r.size;
    if (k->op != LS_COLLECTIVE_BROADCAST || k->root == r.rank)
        for (size_t i = 0; i < r.send_n; i++) element_set(k->type, send, i, value(r.rank, i));
    if (call(&r, send, recv, k->flying ? &w : NULL) < 0 || ls_work_wait(&w) < 0)
        ranks_fail("%s: rank %d: %s", case_text(k), r.rank, ls_errmsg());
    check(&r, recv, one ? a + big * r.size : b + r.recv_n * r.size);
    if (!one) unblock(&r, b);
    unblock(&r, a);
}

/* ---- the table ---- */

static const ls_collective ops[] = { LS_COLLECTIVE_ALL_REDUCE, LS_COLLECTIVE_ALL_GATHER, LS_COLLECTIVE_REDUCE_SCATTER,
                                     LS_COLLECTIVE_BROADCAST, LS_COLLECTIVE_ALL_TO_ALL };

static bool reduces(ls_collective op) { return op == LS_COLLECTIVE_ALL_REDUCE || op == LS_COLLECTIVE_REDUCE_SCATTER; }
static bool has_v(ls_collective op) { return op != LS_COLLECTIVE_ALL_REDUCE && op != LS_COLLECTIVE_BROADCAST; }

/* Both ways round of what a call may be; the case's op, type, count are set. */
static void ways(ls_comm *c, struct kase k, bool heap_too)
{
    for (int redop = 0; redop < (reduces(k.op) ? LS_REDOPS : 1); redop++)
        for (int way = 0; way < 16; way++) {
            k.redop = (ls_redop)redop;
            k.v = way & 1;
            k.in_place = way & 2;
            k.flying = way & 4;
            k.heap = way & 8;
            k.root = (int)(k.count % (size_t)ls_comm_size(c));
            if ((k.v && !has_v(k.op)) || (k.in_place && k.op == LS_COLLECTIVE_ALL_TO_ALL && k.v) || (k.heap && !heap_too)) continue;
            if (k.redop == LS_AVG && !ls_dtype_is_float(k.type)) continue;
            run_case(c, &k);
        }
}

static void table(ls_comm *c)
{
    size_t n = (size_t)ls_comm_size(c), counts[] = { 0, 1, n - 1, n, 1000 };

    for (size_t op = 0; op < COUNT_OF(ops); op++) {
        for (int t = 0; t < LS_DTYPES; t++)
            for (size_t i = 0; i < COUNT_OF(counts); i++) {
                if (t != LS_F32 && t != LS_BF16 && counts[i] > n && n > 4) continue;
                ways(c, (struct kase){ .op = ops[op], .type = (ls_dtype)t, .count = counts[i] }, t <= LS_BF16);
            }
        run_case(c, &(struct kase){ .op = ops[op], .type = LS_F32, .count = 100003, .flying = true });
        run_case(c, &(struct kase){ .op = ops[op], .type = LS_F32, .count = 100003, .in_place = true, .heap = true });
        run_case(c, &(struct kase){ .op = ops[op], .type = LS_BF16, .count = 100003, .in_place = true, .redop = LS_AVG });
    }
}

/* Every step list that there is, over this transport. */
static void lists(ls_comm *c)
{
    size_t n = (size_t)ls_comm_size(c), counts[] = { 0, 1, n - 1, n, 1000 };
    const struct algorithm *a;

    for (int i = 0; (a = algorithm_at(i)); i++) {
        if (a->op == LS_COLLECTIVE_BARRIER) continue;
        RANKS_TRY(algorithm_force(a->op, a->name));
        for (size_t k = 0; k < COUNT_OF(counts); k++) {
            ways(c, (struct kase){ .op = a->op, .type = LS_F32, .count = counts[k] }, false);
            if (counts[k] >= n) ways(c, (struct kase){ .op = a->op, .type = LS_BF16, .count = counts[k] }, false);
        }
        run_case(c, &(struct kase){ .op = a->op, .type = LS_F32, .count = 300007, .in_place = true });
        run_case(c, &(struct kase){ .op = a->op, .type = LS_F16, .count = 100003, .redop = LS_AVG, .flying = true });
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

/* Everyone sends to everyone before anyone receives, with a collective in between. */
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
                element_set(types[t], x, i, (double)(seed >> 8) / 4e6 - 2);
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
    table(odd);
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
    call_refused(ls_all_reduce(c, k, k, 4, LS_I32, LS_AVG, NULL), "all_reduce: an average of i32");
    call_refused(ls_all_reduce(c, x, x, 4, LS_F32, (ls_redop)9, NULL), "operator 9");
    call_refused(ls_all_reduce(c, x, x, 4, (ls_dtype)77, LS_SUM, NULL), "type 77");
    call_refused(ls_all_reduce(c, NULL, x, 4, LS_F32, LS_SUM, NULL), "NULL for 16 bytes");
    call_refused(ls_all_gather(c, x, x + 32, SIZE_MAX / 8, LS_F64, NULL), "do not fit a size");
    call_refused(ls_all_gather_v(c, x, x + 32, NULL, LS_F32, NULL), "all_gather_v: counts is NULL");
    if (n > 1) {
        call_refused(ls_all_gather_v(c, x, x + 32, counts, LS_F32, NULL), "all_gather_v");
        call_refused(ls_all_gather(c, x + 20, x + 16, 8, LS_F32, NULL), "overlap");
        call_refused(ls_send(c, x, 1, LS_F32, n, NULL), "of a comm of");
    }
    call_refused(ls_send(c, x, 1, LS_F32, rank, NULL), "to itself");
    call_refused(ls_broadcast(c, x, 1, LS_F32, -1, NULL), "rank -1 of a comm");
    RANKS_TRY(ls_work_wait(NULL));
}

static void everything(int rank, int n, const char *where, void *ctx)
{
    ls_comm *c;

    (void)ctx;
    RANKS_TRY(ls_comm_open(where, rank, n, &c));
    ls_comm_set_timeout(c, PATIENCE);
    nonsense(c);
    table(c);
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
    for (size_t i = 0; i < COUNT_OF(sizes); i++) ranks_pass(sizes[i], PATIENCE, everything, NULL);
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
    ranks_pass(2, PATIENCE, large_messages, NULL);
}

/* ---- what is counted ---- */

static uint64_t to_all(ls_comm *c)
{
    uint64_t bytes = 0;

    for (int i = 0; i < ls_comm_size(c); i++) bytes += ls_comm_bytes_to(c, i);
    return bytes;
}

static void count_one(ls_comm *c, const struct kase *k, const char *how)
{
    struct run r = plan_run(c, k);
    ls_comm_count before = ls_comm_counted(c, k->op);
    uint64_t peers = to_all(c), bytes = ls_comm_bytes_of(c, k->op, k->count, k->v ? r.counts : NULL, k->type);

    run_case(c, k);
    ls_comm_count after = ls_comm_counted(c, k->op);
    if (after.calls != before.calls + 1 || after.bytes - before.bytes != bytes || to_all(c) - peers != bytes)
        ranks_fail("%s by %s: %llu bytes counted, %llu to peers, formula %llu", case_text(k), how,
                   (unsigned long long)(after.bytes - before.bytes), (unsigned long long)(to_all(c) - peers), (unsigned long long)bytes);
    RANKS_CHECK(after.seconds >= before.seconds && after.exposed > before.exposed);
}

/* Operations told, and how often their times were in no order. */
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
        for (size_t op = 0; op < COUNT_OF(ops); op++)
            for (int v = 0; v < (has_v(ops[op]) ? 2 : 1); v++)
                count_one(c, &(struct kase){ .op = ops[op], .v = v, .type = LS_F32, .count = 30011 }, i < 0 ? "choice" : a->name);
        if (i >= 0) RANKS_TRY(algorithm_force(a->op, NULL));
    }
    RANKS_TRY(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, "ring"));
    RANKS_CHECK(ls_comm_bytes_of(c, LS_COLLECTIVE_ALL_REDUCE, 1000 * (size_t)n, NULL, LS_F32) == 2 * (uint64_t)(n - 1) * 4000);
    RANKS_TRY(algorithm_force(LS_COLLECTIVE_ALL_REDUCE, NULL));
    if (rank == 0) RANKS_TRY(ls_send(c, &x, 1, LS_F32, 1, NULL));
    if (rank == 1) RANKS_TRY(ls_recv(c, &x, 1, LS_F32, 0, NULL));
    RANKS_CHECK(ls_comm_counted(c, LS_COLLECTIVE_SEND).bytes == (rank == 0 ? 4 : 0));
    RANKS_CHECK(ls_comm_counted(c, LS_COLLECTIVE_RECV).calls == (rank == 1) && ls_comm_counted(c, LS_COLLECTIVE_RECV).bytes == 0);
    RANKS_TRY(ls_barrier(c));
    for (int op = 0; op < LS_COLLECTIVES; op++) {
        ls_comm_count own = ls_comm_counted(c, (ls_collective)op), all = comm_counted((ls_collective)op);

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
    for (int n = 2; n <= 5; n++) ranks_pass(n, PATIENCE, counters, NULL);
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
    ranks_pass(3, PATIENCE, steady, NULL);
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
        cmocka_unit_test(bytes_equal_the_formula),
        cmocka_unit_test(repeated_calls_allocate_nothing),
        cmocka_unit_test(plan_comm_counts_sizes_and_bytes),
    };

    if (argc > 1 && !strcmp(argv[1], "--mpi")) return over_mpi();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
