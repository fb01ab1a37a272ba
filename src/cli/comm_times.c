/* comm_times.c - checks and times collectives. The input of a rank is 0, 1, 2, 0, 1, 2, ..., beginning with a value that depends on the
 * rank, so that every sum is a small integer, which all types represent exactly (up to 127 ranks), and depends only on the position.
 */
#include "cli/comm_times.h"

#include <inttypes.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

enum { PERIOD = 3, TILE = 1023 * PERIOD }; /* elements */

struct ends {
    const void *send;
    void *recv;
};

bool comm_times_has(ls_collective op)
{
    return op == LS_COLLECTIVE_ALL_REDUCE || op == LS_COLLECTIVE_ALL_GATHER || op == LS_COLLECTIVE_REDUCE_SCATTER ||
           op == LS_COLLECTIVE_BROADCAST || op == LS_COLLECTIVE_ALL_TO_ALL || op == LS_COLLECTIVE_SEND;
}

static bool has_blocks(ls_collective op)
{
    return op == LS_COLLECTIVE_ALL_GATHER || op == LS_COLLECTIVE_REDUCE_SCATTER || op == LS_COLLECTIVE_ALL_TO_ALL;
}

static size_t blocks(const struct comm_times *t) { return has_blocks(t->op) ? (size_t)t->n : 1; }

size_t comm_times_count(const struct comm_times *t, size_t bytes) { return MAX(bytes / ls_dtype_bytes(t->type) / blocks(t), (size_t)1); }

size_t comm_times_bytes(const struct comm_times *t, size_t count) { return count * blocks(t) * ls_dtype_bytes(t->type); }

double comm_times_bus(ls_collective op, int n)
{
    double share = (double)(n - 1) / n;

    return op == LS_COLLECTIVE_ALL_REDUCE ? 2 * share : op == LS_COLLECTIVE_BROADCAST || op == LS_COLLECTIVE_SEND ? 1 : share;
}

ls_status comm_times_open(struct comm_times *t, size_t room)
{
    t->room = MAX(room, (size_t)t->n * 8);
    t->send = t->plain ? mem_alloc(MEM_COMMUNICATION, t->room) : ls_comm_alloc(t->comm, t->room);
    t->recv = !t->send ? NULL : t->plain ? mem_alloc(MEM_COMMUNICATION, t->room) : ls_comm_alloc(t->comm, t->room);
    if (t->recv) return LS_OK;
    comm_times_close(t);
    return LS_ENOMEM;
}

void comm_times_close(struct comm_times *t)
{
    char *held[] = { t->recv, t->send };

    for (size_t i = 0; i < COUNT_OF(held); i++) {
        if (t->plain)
            mem_free(held[i]);
        else if (held[i])
            ls_comm_free(t->comm, held[i]);
    }
    t->send = t->recv = NULL;
}

/* ---- values ---- */

/* tile[i] = value[(phase + i) mod 3] */
static void make_tile(ls_dtype type, const float value[PERIOD], size_t phase, void *tile)
{
    float x[TILE];

    for (size_t i = 0; i < TILE; i++) x[i] = value[(phase + i) % PERIOD];
    ls_convert(tile, type, x, LS_F32, TILE);
}

static void comm_times_fill(const struct comm_times *t, void *p, size_t count, size_t phase)
{
    static const float value[PERIOD] = { 0, 1, 2 };
    size_t size = ls_dtype_bytes(t->type);
    double tile[TILE];

    make_tile(t->type, value, phase, tile);
    for (size_t i = 0; i < count; i += TILE) memcpy((char *)p + i * size, tile, MIN(count - i, (size_t)TILE) * size);
}

static int64_t count_wrong(const struct comm_times *t, const void *p, size_t count, const float value[PERIOD], size_t phase)
{
    size_t size = ls_dtype_bytes(t->type);
    double tile[TILE];
    int64_t wrong = 0;

    make_tile(t->type, value, phase, tile);
    for (size_t i = 0; i < count; i += TILE) {
        const char *at = (const char *)p + i * size;
        size_t part = MIN(count - i, (size_t)TILE);

        if (memcmp(at, tile, part * size) == 0) continue;
        for (size_t k = 0; k < part; k++) wrong += memcmp(at + k * size, (char *)tile + k * size, size) != 0;
    }
    return wrong;
}

/* Element i of rank r's input is (start(r) + i) mod 3. */
static size_t comm_times_start(const struct comm_times *t, int r) { return t->op == LS_COLLECTIVE_BROADCAST ? r != t->root : (size_t)r; }

static void fill_send(const struct comm_times *t, struct ends e, size_t count)
{
    char *p = (char *)(uintptr_t)e.send;
    size_t block = count * ls_dtype_bytes(t->type);

    if (t->op == LS_COLLECTIVE_REDUCE_SCATTER)
        comm_times_fill(t, p, count * (size_t)t->n, comm_times_start(t, t->rank));
    else if (t->op == LS_COLLECTIVE_ALL_TO_ALL)
        for (int to = 0; to < t->n; to++) comm_times_fill(t, p + (size_t)to * block, count, comm_times_start(t, t->rank + to));
    else
        comm_times_fill(t, p, count, comm_times_start(t, t->rank));
}

static int comm_times_before(const struct comm_times *t) { return (t->rank + t->n - 1) % t->n; }

static int64_t wrong_in(const struct comm_times *t, struct ends e, size_t count)
{
    static const float same[PERIOD] = { 0, 1, 2 };
    size_t block = count * ls_dtype_bytes(t->type);
    float sum[PERIOD] = { 0 };
    int64_t wrong = 0;

    for (int r = 0; r < t->n; r++)
        for (int k = 0; k < PERIOD; k++) {
            float x = (float)((r + k) % PERIOD);

            sum[k] = t->redop == LS_MAX ? MAX(sum[k], x) : sum[k] + x;
        }
    for (int k = 0; k < PERIOD && t->redop == LS_AVG; k++) sum[k] /= (float)t->n;
    switch (t->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return count_wrong(t, e.recv, count, sum, 0);
    case LS_COLLECTIVE_REDUCE_SCATTER: return count_wrong(t, e.recv, count, sum, (size_t)t->rank * count);
    case LS_COLLECTIVE_BROADCAST: return count_wrong(t, e.recv, count, same, 0);
    case LS_COLLECTIVE_SEND: return count_wrong(t, e.recv, count, same, comm_times_start(t, comm_times_before(t)));
    default:
        for (int from = 0; from < t->n; from++) {
            size_t phase = t->op == LS_COLLECTIVE_ALL_TO_ALL ? comm_times_start(t, from + t->rank) : comm_times_start(t, from);

            wrong += count_wrong(t, (char *)e.recv + (size_t)from * block, count, same, phase);
        }
        return wrong;
    }
}

/* ---- calls ---- */

static struct ends ends_of(const struct comm_times *t, size_t count, bool in_place)
{
    size_t mine = (size_t)t->rank * count * ls_dtype_bytes(t->type);

    if (t->op == LS_COLLECTIVE_BROADCAST) return (struct ends){ in_place ? t->recv : t->send, in_place ? t->recv : t->send };
    if (!in_place || t->op == LS_COLLECTIVE_SEND) return (struct ends){ t->send, t->recv };
    if (t->op == LS_COLLECTIVE_ALL_GATHER) return (struct ends){ t->recv + mine, t->recv };
    if (t->op == LS_COLLECTIVE_REDUCE_SCATTER) return (struct ends){ t->send, t->send + mine };
    return (struct ends){ t->recv, t->recv };
}

static ls_status send_and_receive(const struct comm_times *t, struct ends e, size_t count)
{
    ls_work *work = NULL;

    LS_TRY(ls_recv(t->comm, e.recv, count, t->type, comm_times_before(t), &work));
    LS_TRY(ls_send(t->comm, e.send, count, t->type, (t->rank + 1) % t->n, NULL));
    return ls_work_wait(&work);
}

static ls_status call(const struct comm_times *t, struct ends e, size_t count)
{
    switch (t->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return ls_all_reduce(t->comm, e.send, e.recv, count, t->type, t->redop, NULL);
    case LS_COLLECTIVE_ALL_GATHER: return ls_all_gather(t->comm, e.send, e.recv, count, t->type, NULL);
    case LS_COLLECTIVE_REDUCE_SCATTER: return ls_reduce_scatter(t->comm, e.send, e.recv, count, t->type, t->redop, NULL);
    case LS_COLLECTIVE_SEND: return send_and_receive(t, e, count);
    case LS_COLLECTIVE_ALL_TO_ALL: return ls_all_to_all(t->comm, e.send, e.recv, count, t->type, NULL);
    default: return ls_broadcast(t->comm, e.recv, count, t->type, t->root, NULL);
    }
}

/* Compares one call with the expected values. Afterwards the buffers are 0, so that repeated in-place sums do not reach infinity. */
static ls_status comm_times_check(const struct comm_times *t, struct ends e, size_t count, int64_t *wrong)
{
    size_t bytes = comm_times_bytes(t, count);

    memset(t->recv, 0x5a, bytes);
    fill_send(t, e, count);
    LS_TRY(call(t, e, count));
    *wrong = wrong_in(t, e, count);
    LS_TRY(ls_barrier(t->comm));
    memset(t->send, 0, bytes);
    memset(t->recv, 0, bytes);
    return LS_OK;
}

/* took[iterations]: seconds of each timed call on this rank. */
static ls_status time_calls(const struct comm_times *t, struct ends e, size_t count, double *took)
{
    double before, now;

    for (int i = 0; i < t->warmup; i++) LS_TRY(call(t, e, count));
    LS_TRY(ls_barrier(t->comm));
    before = base_now();
    for (int i = 0; i < t->iterations; i++) {
        LS_TRY(call(t, e, count));
        now = base_now();
        took[i] = now - before;
        before = now;
    }
    return LS_OK;
}

/* Sorts took. */
static struct comm_time summary_of(double *took, size_t count, int64_t wrong)
{
    double median = base_median(took, count);

    return (struct comm_time){ .seconds = median, .least = took[0], .most = took[count - 1], .wrong = wrong };
}

ls_status comm_times_take(const struct comm_times *t, size_t count, bool in_place, struct comm_time *out)
{
    struct ends e = ends_of(t, count, in_place);
    int64_t wrong = 0;
    double *took;

    ASSERT(comm_times_bytes(t, count) <= t->room && t->iterations > 0);
    if (!t->unchecked) LS_TRY(comm_times_check(t, e, count, &wrong));
    LS_TRY(ls_all_reduce(t->comm, &wrong, &wrong, 1, LS_I64, LS_SUM, NULL));
    if (!(took = mem_array(MEM_OTHER, (size_t)t->iterations, sizeof *took))) return LS_ENOMEM;
    ls_status st = time_calls(t, e, count, took);
    if (st == LS_OK) st = ls_all_reduce(t->comm, took, took, (size_t)t->iterations, LS_F64, LS_MAX, NULL);
    if (st == LS_OK) *out = summary_of(took, (size_t)t->iterations, wrong);
    mem_free(took);
    return st;
}

ls_status comm_times_verdict(const struct comm_times *t, int64_t wrong)
{
    if (wrong == 0) return LS_OK;
    return ls_fail(LS_EIO, "%s over %s: %" PRId64 " elements of the result are wrong", ls_collective_name(t->op),
                   ls_comm_transport(t->comm), wrong);
}
