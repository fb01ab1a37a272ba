/* test_nccl_stub.c - collectives and messages by the CUDA module's NCCL, on its stub, call by call: each leaves in device memory the bytes
 * that the same call through the host leaves in host memory, and it was NCCL that made it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "comm/comm.h"
#include "device/collectives.h"
#include "device/device.h"
#include "helper_comm.h"
#include "helper_ranks.h"

enum { ROOM = 64 << 10, GUARD = 64, RANKS = 4, COMM_BYTES = 3 << 20 }; /* COMM_BYTES: of memory that the stub takes for a communicator */

static char folder[] = "/tmp/lockstep_nccl_XXXXXX";

/* ---- the device, whose calls of NCCL are counted ---- */

static const struct device *cuda;
static struct device counted_device;
static struct device_collectives counted;
static int calls;

static ls_status enqueue_counted(struct device_group *g, struct device_stream *s, const struct device_call *c, const struct device_watch *w)
{
    calls++;
    return cuda->collectives->enqueue(g, s, c, w);
}

/* So many buffers are registered with communicators, and so many communicators are open. */
static void check_nccl(int registered, size_t open)
{
    static int (*count)(void);
    void *module = dlopen(getenv("LOCKSTEP_CUDA_MODULE"), RTLD_NOW);
    void *(*symbol)(void *library, const char *name);

    RANKS_CHECK(module);
    *(void **)&symbol = dlsym(module, "stub_dlsym");
    *(void **)&count = symbol(NULL, "stub_nccl_registered");
    if (count() != registered) ranks_fail("%d buffers are registered, not %d", count(), registered);
    if (counted.taken() != open * COMM_BYTES) ranks_fail("NCCL took %zu bytes for %zu communicators", counted.taken(), open);
}

static void device_open(int rank)
{
    struct device_facts facts;
    char version[64];

    if (!(cuda = device_find("cuda"))) ranks_fail("%s", ls_errmsg());
    RANKS_TRY(cuda->choose(rank, &facts));
    RANKS_TRY(cuda->collectives->load(version, sizeof version));
    RANKS_CHECK(strcmp(version, "NCCL 2.28.9") == 0);
    counted = *cuda->collectives;
    counted.enqueue = enqueue_counted;
    counted_device = *cuda;
    counted_device.collectives = &counted;
}

static void *device_block(size_t bytes)
{
    void *p = cuda->alloc(MEM_COMMUNICATION, bytes);

    if (!p) ranks_fail("%s", ls_errmsg());
    return p;
}

/* ---- a rank of a test ---- */

struct rank {
    ls_comm *comm;
    int rank, n;
    struct device_stream *stream, *other;
    char *device, *host, *want; /* the same bytes: on the device, copied from it, and as the host's call leaves them */
};

static struct rank rank_open(int rank, int n, const char *where)
{
    struct rank r = { .rank = rank, .n = n, .host = malloc(ROOM), .want = malloc(ROOM) };

    RANKS_CHECK(r.host && r.want);
    device_open(rank);
    RANKS_TRY(ls_comm_open(where, rank, n, &r.comm));
    ls_comm_set_timeout(r.comm, COMM_TIMEOUT);
    RANKS_TRY(comm_open_native(r.comm, &counted_device, 1));
    RANKS_TRY(cuda->stream_new("one", &r.stream));
    RANKS_TRY(cuda->stream_new("two", &r.other));
    r.device = device_block(ROOM);
    return r;
}

static void rank_close(struct rank *r)
{
    RANKS_TRY(cuda->sync());
    ls_comm_close(&r->comm);
    check_nccl(0, 0);
    cuda->stream_free(r->stream);
    cuda->stream_free(r->other);
    cuda->free(r->device);
    free(r->host);
    free(r->want);
}

/* ---- collectives ---- */

static bool case_reduces(const struct comm_case *k)
{
    return k->op == LS_COLLECTIVE_ALL_REDUCE || k->op == LS_COLLECTIVE_REDUCE_SCATTER;
}

static bool case_is_native(const struct comm_case *k) { return !case_reduces(k) || k->type != LS_U16; }

/* Where the operands of a case are in a block of bytes. */
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

static struct call_args case_arguments(const struct comm_run *r, char *block, const struct places *p)
{
    const struct comm_case *k = r->k;

    return (struct call_args){ .op = k->op,
                               .send = block + p->send,
                               .recv = block + p->recv,
                               .count = k->count,
                               .v = k->v,
                               .counts = k->v ? r->counts : NULL,
                               .recv_counts = k->v && k->op == LS_COLLECTIVE_ALL_TO_ALL ? r->recv_counts : NULL,
                               .type = k->type,
                               .redop = k->redop,
                               .root = k->root };
}

/* On the host, then on the device. */
static void case_run(struct rank *r, const struct comm_case *k)
{
    struct comm_run run = comm_run_plan(r->comm, k);
    struct places p = case_places(&run);
    struct call_args host = case_arguments(&run, r->want, &p), device = case_arguments(&run, r->device, &p);
    int before = calls;

    RANKS_CHECK(p.end + GUARD <= ROOM);
    case_fill(&run, r->want, &p);
    RANKS_TRY(cuda->copy_in(r->stream, r->device, r->want, p.end + GUARD));
    RANKS_TRY(operation_run(r->comm, &host, NULL));
    RANKS_TRY(comm_enqueue(r->comm, cuda, r->stream, &device));
    RANKS_TRY(cuda->copy_out(r->stream, r->host, r->device, p.end + GUARD));
    RANKS_TRY(cuda->stream_sync(r->stream));
    if (calls - before != case_is_native(k))
        ranks_fail("%s: rank %d of %d: NCCL was given %d calls", comm_case_text(k), r->rank, r->n, calls - before);
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
            case_run(r, &k);
        }
}

static void body_collectives(int rank, int n, const char *where, void *ctx)
{
    static const size_t counts[] = { 0, 1, 6, 257 };
    struct rank r = rank_open(rank, n, where);

    (void)ctx;
    for (size_t op = 0; op < COMM_OPS; op++)
        for (int t = 0; t < LS_DTYPES; t++)
            for (size_t k = 0; k < COUNT_OF(counts); k++)
                run_ways(&r, (struct comm_case){ .op = comm_ops[op], .type = (ls_dtype)t, .count = counts[k] });
    rank_close(&r);
}

/* ---- messages ---- */

/* To the rank after this one and from the one before, or the other way round; a rank's two messages are on streams of their own. */
static void exchange(struct rank *r, ls_dtype type, size_t count, int step)
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
    struct rank r = rank_open(rank, n, where);

    (void)ctx;
    for (int t = 0; t < LS_DTYPES; t++)
        for (size_t k = 0; k < COUNT_OF(counts); k++) {
            exchange(&r, (ls_dtype)t, counts[k], 1);
            exchange(&r, (ls_dtype)t, counts[k], -1);
        }
    rank_close(&r);
}

/* ---- more than one at a time ---- */

/* Calls of two comms on two streams, enqueued without a wait: each comm's in its order, whatever the other does. */
static void body_two_comms(int rank, int n, const char *where, void *ctx)
{
    enum { TURNS = 20 };
    struct rank r = rank_open(rank, n, where);
    struct device_stream *stream[] = { r.stream, r.other };
    ls_comm *second, *comm[2];
    float *x, back[2];

    (void)ctx;
    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &second));
    RANKS_TRY(comm_open_native(second, &counted_device, 0));
    comm[0] = r.comm, comm[1] = second;
    x = device_block(sizeof back);
    back[0] = 1, back[1] = 2;
    RANKS_TRY(device_write(cuda, x, back, sizeof back));
    for (int k = 0; k < TURNS; k++) {
        int at = (k + rank) % 2; /* each rank begins with another one */

        for (int each = 0; each < 2; each++, at ^= 1)
            RANKS_TRY(comm_enqueue(comm[at], cuda, stream[at],
                                   &(struct call_args){ .op = LS_COLLECTIVE_ALL_REDUCE,
                                                        .send = x + at,
                                                        .recv = x + at,
                                                        .count = 1,
                                                        .type = LS_F32,
                                                        .redop = k % 2 ? LS_AVG : LS_SUM }));
    }
    RANKS_TRY(device_read(cuda, back, x, sizeof back));
    for (int k = 0; k < TURNS / 2; k++) back[0] /= (float)n, back[1] /= (float)n;
    RANKS_CHECK(back[0] == 1 && back[1] == 2);
    cuda->free(x);
    RANKS_TRY(cuda->sync());
    ls_comm_close(&second);
    rank_close(&r);
}

/* ---- memory ---- */

/* Memory for communication is registered with the communicators for collectives, of which each comm has one, as long as both are there;
 * other memory is not. */
static void body_memory(int rank, int n, const char *where, void *ctx)
{
    struct rank r = rank_open(rank, n, where);
    ls_comm *second;
    char *x, *y;

    (void)ctx;
    check_nccl(1, 3); /* with two communicators for messages */
    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &second));
    RANKS_TRY(comm_open_native(second, &counted_device, 0));
    check_nccl(2, 4);
    x = device_block(ROOM);
    check_nccl(4, 4);
    RANKS_CHECK((y = cuda->alloc(MEM_ACTIVATIONS, ROOM)) != NULL);
    check_nccl(4, 4);
    cuda->free(x);
    cuda->free(y);
    RANKS_CHECK(!cuda->alloc(MEM_COMMUNICATION, (size_t)2 << 30)); /* more than there is, which is no failure of the device */
    RANKS_CHECK(strstr(ls_errmsg(), "needed for communication") && strstr(ls_errmsg(), "; NCCL's communicators took 12582912"));
    RANKS_TRY(cuda->sync());
    check_nccl(2, 4);
    ls_comm_close(&second);
    check_nccl(1, 3);
    rank_close(&r);
}

/* ---- tests ---- */

static void run_ranks(ranks_body *body, int seeds)
{
    char settings[128];

    for (int n = 2; n <= RANKS; n++)
        for (int seed = 0; seed < seeds; seed++) {
            snprintf(settings, sizeof settings, "kernels=cpu nccl=%s seed=%d", folder, seed);
            setenv("LOCKSTEP_CUDA_STUB", settings, 1);
            ranks_pass(n, 400, body, NULL);
        }
}

static void test_collectives(void **state)
{
    (void)state;
    run_ranks(body_collectives, 1);
}

static void test_messages(void **state)
{
    (void)state;
    run_ranks(body_messages, 1);
}

static void test_two_comms(void **state)
{
    (void)state;
    run_ranks(body_two_comms, 5);
}

static void test_memory(void **state)
{
    (void)state;
    run_ranks(body_memory, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_collectives), cmocka_unit_test(test_messages),
                                        cmocka_unit_test(test_two_comms), cmocka_unit_test(test_memory) };
    int failed;

    unsetenv("CUDA_VISIBLE_DEVICES");
    if (!mkdtemp(folder)) return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (rmdir(folder) < 0) failed++, fprintf(stderr, "%s: communicators left files\n", folder);
    return failed;
}
