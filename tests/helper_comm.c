#include "helper_comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/mem.h"
#include "comm/algorithms/steps.h"
#include "comm/transports/transport.h"
#include "helper_ranks.h"

enum { COMM_GUARD = 64 }; /* bytes after a buffer that must not be written */

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

/* Element i of rank r's send buffer. */
static double comm_element(int r, size_t i) { return (double)((i * 3 + (size_t)r * 7 + (i >> 9)) % 5); }

static double comm_reduced(int n, size_t i, ls_dtype t, ls_redop op)
{
    double x = comm_element(0, i);

    for (int r = 1; r < n; r++) x = op == LS_MAX ? MAX(x, comm_element(r, i)) : x + comm_element(r, i);
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

/* Expected element i of the result. */
static double comm_run_expected(const struct comm_run *r, size_t i)
{
    const struct comm_case *k = r->k;
    int j = 0;

    switch (k->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return comm_reduced(r->n, i, k->type, k->redop);
    case LS_COLLECTIVE_REDUCE_SCATTER: return comm_reduced(r->n, r->at[r->rank] + i, k->type, k->redop);
    case LS_COLLECTIVE_BROADCAST: return comm_element(k->root, i);
    case LS_COLLECTIVE_ALL_GATHER:
        while (i >= r->at[j + 1]) j++;
        return comm_element(j, i - r->at[j]);
    default: /* all_to_all: after j's elements for the ranks before this one */
        while (i >= r->recv_at[j + 1]) j++;
        i -= r->recv_at[j];
        for (int to = 0; to < r->rank; to++) i += comm_case_dealt(k, j, to);
        return comm_element(j, i);
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
    for (size_t i = 0; i < r->recv_n; i++) {
        unsigned char want[8];

        comm_element_set(r->k->type, want, 0, comm_run_expected(r, i));
        if (memcmp(want, recv + i * r->size, r->size))
            ranks_fail("%s: rank %d of %d, element %zu of %zu is wrong", comm_case_text(r->k), r->rank, r->n, i, r->recv_n);
    }
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
        for (size_t i = 0; i < r.send_n; i++) comm_element_set(k->type, send, i, comm_element(r.rank, i));
    if (comm_run_call(&r, send, recv, k->flying ? &w : NULL) < 0 || ls_work_wait(&w) < 0)
        ranks_fail("%s: rank %d: %s", comm_case_text(k), r.rank, ls_errmsg());
    comm_run_check(&r, recv, one ? a + big * r.size : b + r.recv_n * r.size);
    if (!one) comm_run_unblock(&r, b);
    comm_run_unblock(&r, a);
}

const ls_collective comm_ops[COMM_OPS] = { LS_COLLECTIVE_ALL_REDUCE, LS_COLLECTIVE_ALL_GATHER, LS_COLLECTIVE_REDUCE_SCATTER,
                                     LS_COLLECTIVE_BROADCAST, LS_COLLECTIVE_ALL_TO_ALL };

bool comm_op_has_v(ls_collective op) { return op != LS_COLLECTIVE_ALL_REDUCE && op != LS_COLLECTIVE_BROADCAST; }
