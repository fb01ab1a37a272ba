/* test_ipc_stub.c - CUDA IPC on the stub: calls that take several rounds, whose sums are shared among the ranks; many calls on two streams
 * without a wait of the host in between; and numbers that show where sums are rounded. Results are compared with
 * those of the same calls through the host.
 */
#include "native_rank.h"

enum { BUFFER = 1 << 20 };

/* ---- calls ---- */

/* A call that all ranks make on complete operands; counts: elements of each rank's block, as this rank passes them. */
struct long_call {
    ls_collective op;
    ls_dtype type;
    ls_redop redop;
    int root;
    size_t count;
    size_t counts[RANKS], recv_counts[RANKS];
    size_t sent, received; /* elements */
};

static size_t total_of(const size_t *counts, int n)
{
    size_t total = 0;

    for (int r = 0; r < n; r++) total += counts[r];
    return total;
}

/* block(from, to): elements of that block; for ops with one block per rank, `to` is the block. */
typedef size_t block_fn(int from, int to, int n, size_t scale);

static struct long_call call_plan(ls_collective op, ls_dtype type, ls_redop redop, int rank, int n, size_t scale, block_fn *block)
{
    size_t whole = scale + 5;
    struct long_call k = { .op = op, .type = type, .redop = redop, .root = n - 1, .count = whole, .sent = whole, .received = whole };

    for (int r = 0; r < n; r++) {
        bool each = op == LS_COLLECTIVE_ALL_TO_ALL;

        k.counts[r] = block(each ? rank : 0, r, n, scale);
        k.recv_counts[r] = block(r, rank, n, scale);
    }
    if (op == LS_COLLECTIVE_ALL_GATHER) k.sent = k.counts[rank], k.received = total_of(k.counts, n);
    if (op == LS_COLLECTIVE_REDUCE_SCATTER) k.sent = total_of(k.counts, n), k.received = k.counts[rank];
    if (op == LS_COLLECTIVE_ALL_TO_ALL) k.sent = total_of(k.counts, n), k.received = total_of(k.recv_counts, n);
    return k;
}

static struct call_args call_arguments(const struct long_call *k, void *sent, void *received)
{
    bool v = k->op == LS_COLLECTIVE_ALL_GATHER || k->op == LS_COLLECTIVE_REDUCE_SCATTER || k->op == LS_COLLECTIVE_ALL_TO_ALL;

    return (struct call_args){ .op = k->op,
                               .send = k->op == LS_COLLECTIVE_BROADCAST ? received : sent,
                               .recv = received,
                               .count = k->count,
                               .v = v,
                               .counts = v ? k->counts : NULL,
                               .recv_counts = k->op == LS_COLLECTIVE_ALL_TO_ALL ? k->recv_counts : NULL,
                               .type = k->type,
                               .redop = k->redop,
                               .root = k->root };
}

/* Small integers, different on each rank. */
static void fill_numbers(ls_dtype t, char *p, size_t count, int rank, uint64_t salt)
{
    for (size_t i = 0; i < count; i++) comm_element_set(t, p, i, (double)((i * 7 + (size_t)rank * 3 + (i >> 9) + salt) % 11));
}

/* ---- long calls ---- */

/* Blocks of very different sizes: some need several rounds of a part of the buffer, some none. */
static size_t block_uneven(int from, int to, int n, size_t scale)
{
    return (from + 2 * to) % 3 == 0 ? scale / (size_t)n + (size_t)to : (from + to) % 2 ? 1 + (size_t)from : 0;
}

static void run_long(struct rank *r, const struct long_call *k, char *host, char *device, size_t room)
{
    size_t size = ls_dtype_bytes(k->type), sent = k->sent * size, received = k->received * size, at = (sent + 63) / 64 * 64;
    struct call_args on_host = call_arguments(k, host, host + at), on_device = call_arguments(k, device, device + at);
    char *got = malloc(received + 1);
    int before = calls;

    RANKS_CHECK(got && at + received <= room);
    fill_numbers(k->type, host, k->sent, r->rank, k->count);
    memset(host + at, 0x5a, received);
    if (k->op == LS_COLLECTIVE_BROADCAST) fill_numbers(k->type, host + at, k->received, r->rank, 1);
    RANKS_TRY(cuda->copy_in(r->stream, device, host, at + received));
    RANKS_TRY(operation_run(r->comm, &on_host, NULL));
    RANKS_TRY(comm_enqueue(r->comm, cuda, r->stream, &on_device));
    RANKS_TRY(cuda->copy_out(r->stream, got, device + at, received));
    RANKS_TRY(cuda->stream_sync(r->stream));
    RANKS_CHECK(calls == before + 1); /* not through the host */
    if (memcmp(got, host + at, received))
        ranks_fail("%s of %zu %s on %d ranks: not the host's result", ls_collective_name(k->op), k->count, ls_dtype_name(k->type), r->n);
    free(got);
}

static void body_long(int rank, int n, const char *where, void *ctx)
{
    static const ls_dtype types[] = { LS_U8, LS_BF16, LS_F64 };
    static const size_t bytes[] = { 3 * BUFFER + 40, BUFFER, 100000 };
    enum { LONG_ROOM = 40 << 20 };
    struct rank r = rank_open(rank, n, where, ctx);
    char *host = malloc(LONG_ROOM), *device = device_block(MEM_ACTIVATIONS, LONG_ROOM);

    RANKS_CHECK(host);
    for (size_t op = 0; op < COMM_OPS; op++)
        for (size_t t = 0; t < COUNT_OF(types); t++) {
            struct long_call k = call_plan(comm_ops[op], types[t], op % 2 ? LS_MAX : LS_SUM, rank, n, bytes[t] / ls_dtype_bytes(types[t]),
                                           block_uneven);

            run_long(&r, &k, host, device, LONG_ROOM);
        }
    cuda->free(device);
    free(host);
    rank_close(&r);
}

/* A message of several rounds in each direction of a ring. */
static void body_long_messages(int rank, int n, const char *where, void *ctx)
{
    enum { COUNT = 2 * BUFFER + 4 * 7, HALF = 3 << 20 };
    struct rank r = rank_open(rank, n, where, ctx);
    char *host = malloc(COUNT), *got = malloc(COUNT), *device = device_block(MEM_ACTIVATIONS, 2 * (size_t)HALF);
    int to = (rank + 1) % n, from = (rank + n - 1) % n;
    struct call_args send = { .op = LS_COLLECTIVE_SEND, .send = device, .count = COUNT, .type = LS_U8, .root = to },
                     recv = { .op = LS_COLLECTIVE_RECV, .recv = device + HALF, .count = COUNT, .type = LS_U8, .root = from };

    RANKS_CHECK(host && got);
    for (size_t i = 0; i < COUNT; i++) host[i] = (char)(i * 5 + (i >> 12) + (size_t)rank);
    RANKS_TRY(cuda->copy_in(r.stream, device, host, COUNT));
    RANKS_TRY(comm_enqueue(r.comm, cuda, r.stream, &send));
    RANKS_TRY(comm_enqueue(r.comm, cuda, r.other, &recv));
    RANKS_TRY(cuda->copy_out(r.other, got, device + HALF, COUNT));
    RANKS_TRY(cuda->sync());
    RANKS_CHECK(calls == 2);
    for (size_t i = 0; i < COUNT; i++)
        if (got[i] != (char)(i * 5 + (i >> 12) + (size_t)from)) ranks_fail("byte %zu of a message is wrong", i);
    cuda->free(device);
    free(host);
    free(got);
    rank_close(&r);
}

/* ---- many calls ---- */

static size_t block_random(int from, int to, int n, size_t scale)
{
    size_t h = (size_t)(from * 31 + to * 17 + n) * 2654435761u + scale * 40503u;

    return h >> 7 & 1 ? h % (scale + 1) : h % 3;
}

enum { CALLS = 60, PART = 8 << 10, PARTS = 3 };

/* Number i of a list of calls that is the same on all ranks, with offsets of its operands. */
static struct long_call sequence_call(int i, int rank, int n, size_t *from, size_t *to)
{
    uint32_t x = (uint32_t)i * 2654435761u + 12345;

    x ^= x >> 15;
    *from = (size_t)(x >> 3) % PARTS * PART;
    *to = (*from + PART * (1 + (x >> 9 & 1))) % (PARTS * PART);
    return call_plan(comm_ops[(x >> 16) % COMM_OPS], LS_I32, x >> 20 & 1 ? LS_MAX : LS_SUM, rank, n, (x >> 21) % 400, block_random);
}

/* Each call reads what earlier calls wrote. The streams alternate: each waits for the other's last call. */
static void body_sequence(int rank, int n, const char *where, void *ctx)
{
    struct rank r = rank_open(rank, n, where, ctx);
    struct device_event *event;
    struct long_call k;
    size_t from, to;

    RANKS_TRY(cuda->event_new(&event));
    fill_numbers(LS_I32, r.want, PART * PARTS / 4, rank, 0);
    RANKS_TRY(cuda->copy_in(r.stream, r.device, r.want, (size_t)PART * PARTS));
    RANKS_TRY(cuda->event_record(event, r.stream));
    for (int i = 0; i < CALLS; i++) {
        struct device_stream *s = i % 3 ? r.other : r.stream;

        k = sequence_call(i, rank, n, &from, &to);
        RANKS_CHECK(k.sent * 4 <= PART && k.received * 4 <= PART);
        struct call_args a = call_arguments(&k, r.device + from, r.device + to);
        RANKS_TRY(cuda->event_wait(event, s));
        RANKS_TRY(comm_enqueue(r.comm, cuda, s, &a));
        RANKS_TRY(cuda->event_record(event, s));
    }
    RANKS_TRY(cuda->event_wait(event, r.stream));
    RANKS_TRY(cuda->copy_out(r.stream, r.host, r.device, (size_t)PART * PARTS));
    RANKS_TRY(cuda->sync());
    RANKS_CHECK(calls == CALLS);
    for (int i = 0; i < CALLS; i++) {
        k = sequence_call(i, rank, n, &from, &to);
        struct call_args a = call_arguments(&k, r.want + from, r.want + to);
        RANKS_TRY(operation_run(r.comm, &a, NULL));
    }
    if (memcmp(r.host, r.want, (size_t)PART * PARTS)) ranks_fail("rank %d of %d: not the host's bytes", rank, n);
    cuda->event_free(event);
    rank_close(&r);
}

/* ---- numbers ---- */

enum { NUMBERS = 100 };

static bool same_numbers(ls_dtype t, const char *a, const char *b)
{
    float x[NUMBERS], y[NUMBERS];

    if (t == LS_F64 || t == LS_F32) return memcmp(a, b, NUMBERS * ls_dtype_bytes(t)) == 0;
    reduce_widen(x, a, NUMBERS, t);
    reduce_widen(y, b, NUMBERS, t);
    for (int i = 0; i < NUMBERS; i++)
        if (x[i] != y[i] && !(isnan(x[i]) && isnan(y[i]))) return false;
    return true;
}

/* Sums that half types cannot hold are rounded once, means are divided, and a maximum is NaN where one of the numbers is. */
static void body_numbers(int rank, int n, const char *where, void *ctx)
{
    static const ls_dtype types[] = { LS_F32, LS_F64, LS_BF16, LS_F16 };
    struct rank r = rank_open(rank, n, where, ctx);

    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (int redop = 0; redop < LS_REDOPS; redop++) {
            size_t bytes = NUMBERS * ls_dtype_bytes(types[t]);
            struct call_args a = { .op = LS_COLLECTIVE_ALL_REDUCE, .send = r.want, .recv = r.want, .count = NUMBERS, .type = types[t] };

            a.redop = (ls_redop)redop;
            for (size_t i = 0; i < NUMBERS; i++) comm_element_set(types[t], r.want, i, (double)((i * 37 + (size_t)rank * 101) % 257));
            if (redop == LS_MAX && types[t] != LS_F32 && types[t] != LS_F64) comm_element_set(types[t], r.want, (size_t)rank, NAN);
            RANKS_TRY(cuda->copy_in(r.stream, r.device, r.want, bytes));
            RANKS_TRY(operation_run(r.comm, &a, NULL));
            a.send = a.recv = r.device;
            RANKS_TRY(comm_enqueue(r.comm, cuda, r.stream, &a));
            RANKS_TRY(cuda->copy_out(r.stream, r.host, r.device, bytes));
            RANKS_TRY(cuda->stream_sync(r.stream));
            if (!same_numbers(types[t], r.host, r.want)) ranks_fail("%s, operator %d: not the host's", ls_dtype_name(types[t]), redop);
        }
    rank_close(&r);
}

/* ---- a failure ---- */

/* The calls that a watch received; its data points here. */
struct told {
    bool over, ended;
};

static ls_status watch_run(void *data) { return (*(struct told **)data)->over ? LS_OK : LS_BUSY; }
static void watch_over(void *data, bool ended) { **(struct told **)data = (struct told){ true, ended }; }
static ls_status watch_broken(void *data, ls_status st) { return (void)data, st; }

static void enqueue_sum(struct rank *r, struct device_group *g, struct told *told)
{
    RANKS_TRY(counted.enqueue(g, r->stream,
                              &(struct device_call){ .op = DEVICE_ALL_REDUCE,
                                                     .send = r->device,
                                                     .recv = r->device,
                                                     .count = 100,
                                                     .type = LS_F32,
                                                     .redop = DEVICE_SUM },
                              &(struct device_watch){ .data = &told,
                                                      .bytes = sizeof told,
                                                      .run = watch_run,
                                                      .over = watch_over,
                                                      .broken = watch_broken }));
}

/* Rank 1 gives up in the middle of a call: its stream continues and signals that it has done its part. The call of rank 0, which can end
 * then, is reported as failed. ctx: set when rank 1 has given up. */
static void body_spoiled(int rank, int n, const char *where, void *ctx)
{
    struct rank r = rank_open(rank, n, where, &(struct native_spec){ 0 });
    char id[DEVICE_GROUP_ID] = "";
    struct told told = { false, false };
    struct device_group *g;
    ls_status st;

    if (rank == 0) RANKS_TRY(counted.id(id));
    RANKS_TRY(ls_broadcast(r.comm, id, sizeof id, LS_U8, 0, NULL));
    RANKS_TRY(counted.open(id, &(struct device_group_spec){ .rank = rank, .n = n, .share = 1, .shares = 1 }, &g));
    while ((st = counted.opened(g)) == LS_BUSY) usleep(100);
    RANKS_TRY(st);
    if (rank == 1) {
        enqueue_sum(&r, g, &told);
        counted.close(g);
        ranks_event_report(ctx);
        rank_free(&r);
        return;
    }
    ranks_event_wait(ctx);
    enqueue_sum(&r, g, &told);
    RANKS_CHECK(cuda->sync() == LS_EPEER);
    RANKS_CHECK(strstr(ls_errmsg(), "another rank of a collective has failed"));
    RANKS_CHECK(told.over && !told.ended);
    rank_free(&r);
}

static void test_spoiled(void **state)
{
    struct ranks_event given_up;

    (void)state;
    setenv("LOCKSTEP_CUDA_STUB", "kernels=cpu", 1);
    ranks_event_open(&given_up);
    ranks_pass(2, 60, body_spoiled, &given_up);
    ranks_event_close(&given_up);
}

/* ---- tests ---- */

TEST_RANKS(test_long, body_long, &for_exchanges, 1)
TEST_RANKS(test_long_messages, body_long_messages, &for_messages, 2)
TEST_RANKS(test_sequence, body_sequence, &for_exchanges, 20)
TEST_RANKS(test_numbers, body_numbers, &for_collectives, 1)

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_long), cmocka_unit_test(test_long_messages), cmocka_unit_test(test_sequence),
                                        cmocka_unit_test(test_numbers), cmocka_unit_test(test_spoiled) };

    by = BY_IPC;
    folder_open();
    return folder_close(cmocka_run_group_tests(tests, NULL, NULL));
}
