/* test_native_stub.c - collectives and messages by the CUDA module's NCCL, and by its CUDA IPC, on the stub, call by call: each leaves in
 * device memory the bytes that the same call through the host leaves in host memory, and the host did not make the call.
 */
#include "native_rank.h"

/* ---- collectives ---- */

static bool case_reduces(const struct comm_case *k)
{
    return k->op == LS_COLLECTIVE_ALL_REDUCE || k->op == LS_COLLECTIVE_REDUCE_SCATTER;
}

static bool case_is_native(const struct rank *r, const struct comm_case *k)
{
    if (k->op == LS_COLLECTIVE_ALL_TO_ALL) return r->exchanges;
    return !case_reduces(k) || k->type != LS_U16;
}

/* Offsets of a case's operands in a block of bytes. */
struct places {
    size_t send, recv, recv_bytes, end; /* end: of all, where guards begin */
};

static struct places case_places(const struct comm_run *r)
{
    bool one = r->k->in_place || r->k->op == LS_COLLECTIVE_BROADCAST;
    size_t send = r->send_n * r->size, recv = r->recv_n * r->size;
    struct places p = { .recv_bytes = recv };

    if (one) {
        p.send = send < recv ? r->own * r->size : 0;
        p.recv = recv < send ? r->own * r->size : 0;
        p.end = MAX(send, recv);
    } else {
        p.recv = (send + GUARD + 7) / 8 * 8;
        p.end = p.recv + recv;
    }
    return p;
}

/* Numbers whose sums are exact in each type. */
static void case_fill(const struct comm_run *r, char *block, const struct places *p)
{
    memset(block, 0xa5, p->end + GUARD);
    for (size_t i = 0; i < r->send_n; i++)
        comm_element_set(r->k->type, block + p->send, i, (double)((i * 3 + (size_t)r->rank * 7 + (i >> 5)) % 5));
}

static struct call_args case_arguments(const struct comm_run *r, char *sent, char *received, const struct places *p)
{
    const struct comm_case *k = r->k;

    return (struct call_args){ .op = k->op,
                               .send = sent + p->send,
                               .recv = received + p->recv,
                               .count = k->count,
                               .v = k->v,
                               .counts = k->v ? r->counts : NULL,
                               .recv_counts = k->v && k->op == LS_COLLECTIVE_ALL_TO_ALL ? r->recv_counts : NULL,
                               .type = k->type,
                               .redop = k->redop,
                               .root = k->root };
}

/* Which of the operands are in memory for communication. */
enum { IN_BOTH, IN_RECV, IN_SEND, IN_WAYS };

/* On the host, then on the device. */
static void case_run(struct rank *r, const struct comm_case *k, int in)
{
    struct comm_run run = comm_run_plan(r->comm, k);
    struct places p = case_places(&run);
    char *sent = in == IN_RECV ? r->plain : r->device, *received = in == IN_SEND ? r->plain : r->device;
    struct call_args host = case_arguments(&run, r->want, r->want, &p), device = case_arguments(&run, sent, received, &p);
    int before = calls;

    RANKS_CHECK(p.end + GUARD <= ROOM);
    case_fill(&run, r->want, &p);
    RANKS_TRY(cuda->copy_in(r->stream, r->device, r->want, p.end + GUARD));
    RANKS_TRY(cuda->copy_in(r->stream, r->plain, r->want, p.end + GUARD));
    RANKS_TRY(operation_run(r->comm, &host, NULL));
    RANKS_TRY(comm_enqueue(r->comm, cuda, r->stream, &device));
    RANKS_TRY(cuda->copy_out(r->stream, r->host, received, p.end + GUARD));
    RANKS_TRY(cuda->stream_sync(r->stream));
    if (calls - before != case_is_native(r, k))
        ranks_fail("%s: rank %d of %d: its table was given %d calls", comm_case_text(k), r->rank, r->n, calls - before);
    if (memcmp(r->host + p.recv, r->want + p.recv, p.recv_bytes))
        ranks_fail("%s: rank %d of %d: not the host's result", comm_case_text(k), r->rank, r->n);
    for (size_t i = 0; i < GUARD; i++) RANKS_CHECK((unsigned char)r->host[p.end + i] == 0xa5);
}

static void run_ways(struct rank *r, struct comm_case k)
{
    for (int redop = 0; redop < (case_reduces(&k) ? LS_REDOPS : 1); redop++)
        for (int way = 0; way < 4; way++) {
            k.redop = (ls_redop)redop;
            k.v = way & 1;
            k.in_place = way & 2;
            k.root = (int)(k.count % (size_t)r->n);
            if ((k.v && !comm_op_has_v(k.op)) || (k.in_place && k.op == LS_COLLECTIVE_ALL_TO_ALL && k.v)) continue;
            if (k.redop == LS_AVG && !ls_dtype_is_float(k.type)) continue;
            if (k.redop == LS_AVG && by == BY_NCCL && r->n == 3) continue; /* x / 3 and x * (1 / 3): test_nccl_groups.c */
            for (int in = 0; in < (k.in_place || k.op == LS_COLLECTIVE_BROADCAST ? 1 : IN_WAYS); in++) case_run(r, &k, in);
        }
}

static void body_collectives(int rank, int n, const char *where, void *ctx)
{
    static const size_t counts[] = { 0, 1, 6, 257 };
    struct rank r = rank_open(rank, n, where, ctx);

    for (size_t op = 0; op < COMM_OPS; op++)
        for (int t = 0; t < LS_DTYPES; t++)
            for (size_t k = 0; k < COUNT_OF(counts); k++)
                run_ways(&r, (struct comm_case){ .op = comm_ops[op], .type = (ls_dtype)t, .count = counts[k] });
    rank_close(&r);
}

/* ---- messages ---- */

/* To the rank after this one and from the one before, or the other way round; a rank's two messages are on streams of their own. */
static void native_stub_exchange(struct rank *r, ls_dtype type, size_t count, int step)
{
    int to = (r->rank + step + r->n) % r->n, from = (r->rank - step + r->n) % r->n, before = calls;
    size_t bytes = count * ls_dtype_bytes(type);
    struct call_args send = { .op = LS_COLLECTIVE_SEND, .send = r->device, .count = count, .type = type, .root = to },
                     recv = { .op = LS_COLLECTIVE_RECV, .recv = r->device + ROOM / 2, .count = count, .type = type, .root = from };

    for (size_t i = 0; i < bytes; i++) {
        r->host[i] = (char)(i * 5 + (size_t)r->rank);
        r->want[i] = (char)(i * 5 + (size_t)from);
    }
    RANKS_TRY(cuda->copy_in(r->stream, r->device, r->host, bytes));
    RANKS_TRY(cuda->fill(r->other, r->device + ROOM / 2, 0xa5, bytes + GUARD));
    RANKS_TRY(comm_enqueue(r->comm, cuda, r->stream, &send));
    RANKS_TRY(comm_enqueue(r->comm, cuda, r->other, &recv));
    RANKS_TRY(cuda->copy_out(r->other, r->host, r->device + ROOM / 2, bytes + GUARD));
    RANKS_TRY(cuda->sync());
    RANKS_CHECK(calls - before == (step == 1 || r->n == 2 ? 2 : 0)); /* the other way round the host carries them */
    if (memcmp(r->host, r->want, bytes)) ranks_fail("%zu %s from rank %d to %d are wrong", count, ls_dtype_name(type), from, r->rank);
    for (size_t i = 0; i < GUARD; i++) RANKS_CHECK((unsigned char)r->host[bytes + i] == 0xa5);
}

static void body_messages(int rank, int n, const char *where, void *ctx)
{
    static const size_t counts[] = { 0, 1, 1000 };
    struct rank r = rank_open(rank, n, where, ctx);

    for (int t = 0; t < LS_DTYPES; t++)
        for (size_t k = 0; k < COUNT_OF(counts); k++) {
            native_stub_exchange(&r, (ls_dtype)t, counts[k], 1);
            native_stub_exchange(&r, (ls_dtype)t, counts[k], -1);
        }
    rank_close(&r);
}

/* ---- tests ---- */

TEST_RANKS(test_collectives, body_collectives, &for_collectives, 1)
TEST_RANKS(test_exchanges, body_collectives, &for_exchanges, 1)
TEST_RANKS(test_messages, body_messages, &for_messages, 1)

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_collectives), cmocka_unit_test(test_exchanges),
                                        cmocka_unit_test(test_messages) };
    int failed = 0;

    folder_open();
    for (by = BY_NCCL; by <= BY_IPC; by++) failed += cmocka_run_group_tests_name(by == BY_NCCL ? "NCCL" : "CUDA IPC", tests, NULL, NULL);
    return folder_close(failed);
}
