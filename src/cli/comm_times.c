/* comm_times.c - checks and times collectives. The input of a rank is 0, 1, 2, 0, 1, 2, ..., beginning with a value that depends on the
 * rank, so that every sum is a small integer, which all types represent exactly (up to 127 ranks), and depends only on the position.
 */
#include "cli/comm_times.h"

#include <inttypes.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "device/device.h"

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

static size_t comm_times_blocks(const struct comm_times *t) { return has_blocks(t->op) ? (size_t)t->n : 1; }

size_t comm_times_count(const struct comm_times *t, size_t bytes)
{
    return MAX(bytes / ls_dtype_bytes(t->type) / comm_times_blocks(t), (size_t)1);
}

size_t comm_times_bytes(const struct comm_times *t, size_t count) { return count * comm_times_blocks(t) * ls_dtype_bytes(t->type); }

double comm_times_bus(ls_collective op, int n)
{
    double share = (double)(n - 1) / n;

    return op == LS_COLLECTIVE_ALL_REDUCE ? 2 * share : op == LS_COLLECTIVE_BROADCAST || op == LS_COLLECTIVE_SEND ? 1 : share;
}

static ls_status open_on_device(struct comm_times *t)
{
    enum mem_category c = t->plain ? MEM_ACTIVATIONS : MEM_COMMUNICATION;

    if (!(t->host = mem_alloc(MEM_OTHER, t->room))) return LS_ENOMEM;
    LS_TRY(t->device->stream_new("bench comm", &t->stream));
    LS_TRY(t->device->stream_new("bench comm receives", &t->other));
    if (!(t->send = t->device->alloc(c, t->room)) || !(t->recv = t->device->alloc(c, t->room))) return device_no_memory(t->device);
    return LS_OK;
}

ls_status comm_times_open(struct comm_times *t, size_t room)
{
    t->room = MAX(room, (size_t)t->n * 8);
    if (t->device) return open_on_device(t);
    t->send = t->plain ? mem_alloc(MEM_COMMUNICATION, t->room) : ls_comm_alloc(t->comm, t->room);
    t->recv = !t->send ? NULL : t->plain ? mem_alloc(MEM_COMMUNICATION, t->room) : ls_comm_alloc(t->comm, t->room);
    if (t->recv) return LS_OK;
    comm_times_close(t);
    return LS_ENOMEM;
}

void comm_times_close(struct comm_times *t)
{
    char *held[] = { t->recv, t->send };

    if (t->device) t->device->stream_free(t->stream), t->device->stream_free(t->other);
    for (size_t i = 0; i < COUNT_OF(held); i++) {
        if (t->device)
            t->device->free(held[i]);
        else if (t->plain)
            mem_free(held[i]);
        else if (held[i])
            ls_comm_free(t->comm, held[i]);
    }
    mem_free(t->host);
    t->send = t->recv = t->host = NULL;
    t->stream = t->other = NULL;
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

/* Writes this rank's input to p. */
static void fill_send(const struct comm_times *t, char *p, size_t count)
{
    size_t block = count * ls_dtype_bytes(t->type);

    if (t->op == LS_COLLECTIVE_REDUCE_SCATTER)
        comm_times_fill(t, p, count * (size_t)t->n, comm_times_start(t, t->rank));
    else if (t->op == LS_COLLECTIVE_ALL_TO_ALL)
        for (int to = 0; to < t->n; to++) comm_times_fill(t, p + (size_t)to * block, count, comm_times_start(t, t->rank + to));
    else
        comm_times_fill(t, p, count, comm_times_start(t, t->rank));
}

static int comm_times_before(const struct comm_times *t) { return (t->rank + t->n - 1) % t->n; }

/* Counts the wrong elements of the result at p. */
static int64_t wrong_in(const struct comm_times *t, const char *p, size_t count)
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
    case LS_COLLECTIVE_ALL_REDUCE: return count_wrong(t, p, count, sum, 0);
    case LS_COLLECTIVE_REDUCE_SCATTER: return count_wrong(t, p, count, sum, (size_t)t->rank * count);
    case LS_COLLECTIVE_BROADCAST: return count_wrong(t, p, count, same, 0);
    case LS_COLLECTIVE_SEND: return count_wrong(t, p, count, same, comm_times_start(t, comm_times_before(t)));
    default:
        for (int from = 0; from < t->n; from++) {
            size_t phase = t->op == LS_COLLECTIVE_ALL_TO_ALL ? comm_times_start(t, from + t->rank) : comm_times_start(t, from);

            wrong += count_wrong(t, p + (size_t)from * block, count, same, phase);
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

static ls_status enqueue_one(const struct comm_times *t, ls_collective op, struct ends e, size_t count, int root)
{
    return comm_enqueue(t->comm, t->device, op == LS_COLLECTIVE_RECV ? t->other : t->stream,
                        &(struct call_args){ .op = op,
                                             .send = op == LS_COLLECTIVE_RECV || op == LS_COLLECTIVE_BROADCAST ? NULL : e.send,
                                             .recv = op == LS_COLLECTIVE_SEND ? NULL : e.recv,
                                             .count = count,
                                             .type = t->type,
                                             .redop = t->redop,
                                             .root = root });
}

static ls_status call_on_device(const struct comm_times *t, struct ends e, size_t count)
{
    if (t->op == LS_COLLECTIVE_SEND) LS_TRY(enqueue_one(t, LS_COLLECTIVE_RECV, e, count, comm_times_before(t)));
    LS_TRY(enqueue_one(t, t->op, e, count, t->op == LS_COLLECTIVE_SEND ? (t->rank + 1) % t->n : t->root));
    LS_TRY(t->device->stream_sync(t->stream));
    return t->op == LS_COLLECTIVE_SEND ? t->device->stream_sync(t->other) : LS_OK;
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
    if (t->device) return call_on_device(t, e, count);
    switch (t->op) {
    case LS_COLLECTIVE_ALL_REDUCE: return ls_all_reduce(t->comm, e.send, e.recv, count, t->type, t->redop, NULL);
    case LS_COLLECTIVE_ALL_GATHER: return ls_all_gather(t->comm, e.send, e.recv, count, t->type, NULL);
    case LS_COLLECTIVE_REDUCE_SCATTER: return ls_reduce_scatter(t->comm, e.send, e.recv, count, t->type, t->redop, NULL);
    case LS_COLLECTIVE_SEND: return send_and_receive(t, e, count);
    case LS_COLLECTIVE_ALL_TO_ALL: return ls_all_to_all(t->comm, e.send, e.recv, count, t->type, NULL);
    default: return ls_broadcast(t->comm, e.recv, count, t->type, t->root, NULL);
    }
}

static ls_status set_bytes(const struct comm_times *t, char *p, int byte, size_t bytes)
{
    if (t->device) return t->device->fill(t->stream, p, byte, bytes);
    memset(p, byte, bytes);
    return LS_OK;
}

static ls_status give_input(const struct comm_times *t, struct ends e, size_t count)
{
    bool whole = t->op == LS_COLLECTIVE_REDUCE_SCATTER || t->op == LS_COLLECTIVE_ALL_TO_ALL;
    size_t bytes = count * ls_dtype_bytes(t->type) * (whole ? (size_t)t->n : 1);

    fill_send(t, t->device ? t->host : (char *)(uintptr_t)e.send, count);
    return t->device ? device_write(t->device, (void *)(uintptr_t)e.send, t->host, bytes) : LS_OK;
}

static ls_status take_result(const struct comm_times *t, struct ends e, size_t count, int64_t *wrong)
{
    bool whole = t->op == LS_COLLECTIVE_ALL_GATHER || t->op == LS_COLLECTIVE_ALL_TO_ALL;
    size_t bytes = count * ls_dtype_bytes(t->type) * (whole ? (size_t)t->n : 1);

    if (t->device) LS_TRY(device_read(t->device, t->host, e.recv, bytes));
    *wrong = wrong_in(t, t->device ? t->host : e.recv, count);
    return LS_OK;
}

/* Compares one call with the expected values. Afterwards the buffers are 0, so that repeated in-place sums do not reach infinity. */
static ls_status comm_times_check(const struct comm_times *t, struct ends e, size_t count, int64_t *wrong)
{
    size_t bytes = comm_times_bytes(t, count);

    LS_TRY(set_bytes(t, t->recv, 0x5a, bytes));
    LS_TRY(give_input(t, e, count));
    LS_TRY(call(t, e, count));
    LS_TRY(take_result(t, e, count, wrong));
    LS_TRY(ls_barrier(t->comm));
    LS_TRY(set_bytes(t, t->send, 0, bytes));
    return set_bytes(t, t->recv, 0, bytes);
}

/* took[iterations]: seconds of each timed call on this rank. */
static ls_status time_calls(const struct comm_times *t, struct ends e, size_t count, double *took)
{
    double now;

    for (int i = 0; i < t->warmup; i++) LS_TRY(call(t, e, count));
    LS_TRY(ls_barrier(t->comm));
    double before = base_now();
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
