#include "helper_comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/mem.h"
#include "comm/algorithms/steps.h"
#include "comm/transports/transport.h"
#include "helper_ranks.h"

enum {
    COMM_GUARD = 64, /* bytes after a buffer that must not be written */
    COMM_KINDS = 5,
};

void comm_element_set(ls_dtype t, void *p, size_t i, double x)
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

/* Elements of one kind have the same value, in each rank's send buffer and in each result. */
static size_t comm_kind(size_t i) { return (i * 3 + (i >> 9)) % COMM_KINDS; }
static double comm_kind_value(int r, size_t kind) { return (double)((kind + (size_t)r * 7) % COMM_KINDS); }

/* to[count] = elements first, first + 1, .. of a buffer whose elements of each kind have that value. */
static void comm_elements(ls_dtype t, void *to, size_t first, size_t count, const double value[COMM_KINDS])
{
    uint64_t bits[COMM_KINDS] = { 0 };
    size_t size = ls_dtype_bytes(t);

    for (size_t kind = 0; kind < COMM_KINDS; kind++) comm_element_set(t, &bits[kind], 0, value[kind]);
    for (size_t i = 0; i < count; i++) {
        uint64_t x = bits[comm_kind(first + i)];

        if (size == 8) ((uint64_t *)to)[i] = x;
        else if (size == 4) ((uint32_t *)to)[i] = (uint32_t)x;
        else if (size == 2) ((uint16_t *)to)[i] = (uint16_t)x;
        else ((uint8_t *)to)[i] = (uint8_t)x;
    }
}

/* The same for elements of rank r's send buffer. */
static void comm_elements_of(int r, ls_dtype t, void *to, size_t first, size_t count)
{
    double value[COMM_KINDS];

    for (size_t kind = 0; kind < COMM_KINDS; kind++) value[kind] = comm_kind_value(r, kind);
    comm_elements(t, to, first, count, value);
}

/* The result of a reduction over n ranks, for elements of a kind. */
static double comm_reduced(int n, size_t kind, ls_dtype t, ls_redop op)
{
    double x = comm_kind_value(0, kind);

    for (int r = 1; r < n; r++) x = op == LS_MAX ? MAX(x, comm_kind_value(r, kind)) : x + comm_kind_value(r, kind);
    if (op != LS_AVG) return x;
    return t == LS_F64 ? x / n : (double)((float)x / (float)n);
}

/* Elements that rank `from` sends to rank `to` in all_to_all. */
static size_t comm_case_dealt(const struct comm_case *k, int from, int to)
{
    return k->v ? (size_t)(from * 3 + to * 5) % 4 * k->count / 3 : k->count;
}

const char *comm_case_text(const struct comm_case *k)
{
    static char text[160];

    snprintf(text, sizeof text, "%s%s %s op %d count %zu root %d%s%s%s", ls_collective_name(k->op), k->v ? "_v" : "",
             ls_dtype_name(k->type), (int)k->redop, k->count, k->root, k->in_place ? " in place" : "", k->flying ? " flying" : "",
             k->heap ? " heap" : "");
    return text;
}

struct comm_run comm_run_plan(ls_comm *c, const struct comm_case *k)
{
    struct comm_run r = { .k = k, .c = c, .rank = ls_comm_rank(c), .n = ls_comm_size(c), .size = ls_dtype_bytes(k->type) };

    for (int i = 0; i < r.n; i++) {
        bool deals = k->op == LS_COLLECTIVE_ALL_TO_ALL;

        r.counts[i] = deals ? comm_case_dealt(k, r.rank, i) : k->v ? (i % 3 == 1 ? 0 : k->count / 2 + (size_t)i) : k->count;
        r.recv_counts[i] = deals ? comm_case_dealt(k, i, r.rank) : r.counts[i];
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

/* The expected result of a reduction, from element `first` on. */
static void comm_run_expect_reduced(const struct comm_run *r, unsigned char *want, size_t first)
{
    double reduced[COMM_KINDS];

    for (size_t kind = 0; kind < COMM_KINDS; kind++) reduced[kind] = comm_reduced(r->n, kind, r->k->type, r->k->redop);
    comm_elements(r->k->type, want, first, r->recv_n, reduced);
}

/* The expected result: want[recv_n]. */
static void comm_run_expect(const struct comm_run *r, unsigned char *want)
{
    const struct comm_case *k = r->k;

    switch (k->op) {
    case LS_COLLECTIVE_ALL_REDUCE: comm_run_expect_reduced(r, want, 0); return;
    case LS_COLLECTIVE_REDUCE_SCATTER: comm_run_expect_reduced(r, want, r->at[r->rank]); return;
    case LS_COLLECTIVE_BROADCAST: comm_elements_of(k->root, k->type, want, 0, r->recv_n); return;
    case LS_COLLECTIVE_ALL_GATHER:
        for (int j = 0; j < r->n; j++) comm_elements_of(j, k->type, want + r->at[j] * r->size, 0, r->counts[j]);
        return;
    default: /* all_to_all: after j's elements for the ranks before this one */
        for (int j = 0; j < r->n; j++) {
            size_t first = 0;

            for (int to = 0; to < r->rank; to++) first += comm_case_dealt(k, j, to);
            comm_elements_of(j, k->type, want + r->recv_at[j] * r->size, first, r->recv_counts[j]);
        }
    }
}

static ls_status comm_run_call(const struct comm_run *r, const void *send, void *recv, ls_work **work)
{
    const struct comm_case *k = r->k;

    switch (k->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return ls_all_reduce(r->c, send, recv, k->count, k->type, k->redop, work);
    case LS_COLLECTIVE_BROADCAST: return ls_broadcast(r->c, recv, k->count, k->type, k->root, work);
    case LS_COLLECTIVE_ALL_GATHER:
        return k->v ? ls_all_gather_v(r->c, send, recv, r->counts, k->type, work)
                    : ls_all_gather(r->c, send, recv, k->count, k->type, work);
    case LS_COLLECTIVE_REDUCE_SCATTER:
        return k->v ? ls_reduce_scatter_v(r->c, send, recv, r->counts, k->type, k->redop, work)
                    : ls_reduce_scatter(r->c, send, recv, k->count, k->type, k->redop, work);
    default:
        return k->v ? ls_all_to_all_v(r->c, send, r->counts, recv, r->recv_counts, k->type, work)
                    : ls_all_to_all(r->c, send, recv, k->count, k->type, work);
    }
}

static void *comm_run_block(const struct comm_run *r, size_t elements)
{
    size_t bytes = elements * r->size + COMM_GUARD;
    unsigned char *p = r->k->heap ? ls_comm_alloc(r->c, bytes) : mem_alloc(MEM_OTHER, bytes);

    if (!p) ranks_fail("%s: %s", comm_case_text(r->k), ls_errmsg());
    memset(p, 0xa5, bytes);
    return p;
}

static void comm_run_unblock(const struct comm_run *r, void *p)
{
    if (r->k->heap) ls_comm_free(r->c, p);
    else mem_free(p);
}

static void comm_run_check(const struct comm_run *r, const unsigned char *recv, const unsigned char *end)
{
    unsigned char *want = malloc(r->recv_n * r->size + 1);

    if (!want) ranks_fail("%s: no memory", comm_case_text(r->k));
    comm_run_expect(r, want);
    if (memcmp(want, recv, r->recv_n * r->size) != 0)
        for (size_t i = 0; i < r->recv_n; i++)
            if (memcmp(want + i * r->size, recv + i * r->size, r->size) != 0)
                ranks_fail("%s: rank %d of %d, element %zu of %zu is wrong", comm_case_text(r->k), r->rank, r->n, i, r->recv_n);
    free(want);
    for (int i = 0; i < COMM_GUARD; i++)
        if (end[i] != 0xa5) ranks_fail("%s: rank %d of %d wrote after its buffer", comm_case_text(r->k), r->rank, r->n);
}

void comm_case_run(ls_comm *c, const struct comm_case *k)
{
    struct comm_run r = comm_run_plan(c, k);
    bool one = k->in_place || k->op == LS_COLLECTIVE_BROADCAST;
    size_t big = MAX(r.send_n, r.recv_n);
    unsigned char *a = comm_run_block(&r, one ? big : r.send_n), *b = one ? a : comm_run_block(&r, r.recv_n), *send = a, *recv = b;
    ls_work *w = NULL;

    if (one && r.send_n < r.recv_n) send = a + r.own * r.size;
    if (one && r.recv_n < r.send_n) recv = a + r.own * r.size;
    if (k->op != LS_COLLECTIVE_BROADCAST || k->root == r.rank)
        comm_elements_of(r.rank, k->type, send, 0, r.send_n);
    if (comm_run_call(&r, send, recv, k->flying ? &w : NULL) < 0 || ls_work_wait(&w) < 0)
        ranks_fail("%s: rank %d: %s", comm_case_text(k), r.rank, ls_errmsg());
    comm_run_check(&r, recv, one ? a + big * r.size : b + r.recv_n * r.size);
    if (!one) comm_run_unblock(&r, b);
    comm_run_unblock(&r, a);
}

const ls_collective comm_ops[COMM_OPS] = { LS_COLLECTIVE_ALL_REDUCE, LS_COLLECTIVE_ALL_GATHER, LS_COLLECTIVE_REDUCE_SCATTER,
                                     LS_COLLECTIVE_BROADCAST, LS_COLLECTIVE_ALL_TO_ALL };

bool comm_op_has_v(ls_collective op) { return op != LS_COLLECTIVE_ALL_REDUCE && op != LS_COLLECTIVE_BROADCAST; }
