/* test_nccl_stub.c - collectives and messages by the CUDA module's NCCL, on its stub, call by call: each leaves in device memory the bytes
 * that the same call through the host leaves in host memory, and it was NCCL that made it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "comm/comm.h"
#include "comm/reduce.h"
#include "device/collectives.h"
#include "device/device.h"
#include "helper_comm.h"
#include "helper_ranks.h"
#include "lockstep/mesh.h"
#include "parallel/mesh/mesh.h"

/* COMM_BYTES, PEER_BYTES: of memory that the stub takes for a communicator, and for a connection of messages. */
enum { ROOM = 64 << 10, GUARD = 64, RANKS = 4, COMM_BYTES = 3 << 20, PEER_BYTES = 1 << 20 };

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

static int ask_stub(const char *function)
{
    int (*count)(void);
    void *module = dlopen(getenv("LOCKSTEP_CUDA_MODULE"), RTLD_NOW);
    void *(*symbol)(void *library, const char *name);

    RANKS_CHECK(module);
    *(void **)&symbol = dlsym(module, "stub_dlsym");
    *(void **)&count = symbol(NULL, function);
    return count();
}

/* So many buffers are registered with communicators, and so many communicators are open; their connections were made as they were opened,
 * and counted. */
static void check_nccl(int registered, size_t open)
{
    size_t peers = (size_t)ask_stub("stub_nccl_connections");

    if (ask_stub("stub_nccl_registered") != registered)
        ranks_fail("%d buffers are registered, not %d", ask_stub("stub_nccl_registered"), registered);
    if (counted.taken() != open * COMM_BYTES + peers * PEER_BYTES)
        ranks_fail("NCCL took %zu bytes for %zu communicators and %zu connections", counted.taken(), open, peers);
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

static void *device_block(enum mem_category category, size_t bytes)
{
    void *p = cuda->alloc(category, bytes);

    if (!p) ranks_fail("%s", ls_errmsg());
    return p;
}

/* ---- a rank of a test ---- */

struct rank {
    ls_comm *comm;
    int rank, n;
    struct device_stream *stream, *other;
    /* The same bytes: on the device, in memory for communication and in other memory; copied from it; as the host's call leaves them. */
    char *device, *plain, *host, *want;
    bool collectives, exchanges;
    size_t open; /* communicators */
};

static const struct native_spec for_collectives = { .collectives = true, .share = 1, .shares = 8 },
                                for_exchanges = { .exchanges = true, .share = 1, .shares = 8 },
                                for_messages = { .step = 1, .share = 1, .shares = 8 },
                                for_both = { .collectives = true, .step = 1, .share = 1, .shares = 8 };

static struct rank rank_open(int rank, int n, const char *where, const struct native_spec *s)
{
    struct rank r = { .rank = rank, .n = n, .collectives = s->collectives, .exchanges = s->exchanges };

    r.host = malloc(ROOM);
    r.want = malloc(ROOM);
    RANKS_CHECK(r.host && r.want);
    device_open(rank);
    RANKS_TRY(ls_comm_open(where, rank, n, &r.comm));
    ls_comm_set_timeout(r.comm, COMM_TIMEOUT);
    RANKS_TRY(comm_open_native(r.comm, &counted_device, s));
    r.open = (s->collectives || s->exchanges) + 2 * (s->step != 0);
    RANKS_TRY(cuda->stream_new("one", &r.stream));
    RANKS_TRY(cuda->stream_new("two", &r.other));
    r.device = device_block(MEM_COMMUNICATION, ROOM);
    r.plain = device_block(MEM_ACTIVATIONS, ROOM);
    check_nccl(s->collectives, r.open);
    return r;
}

static void rank_close(struct rank *r)
{
    RANKS_TRY(cuda->sync());
    check_nccl(r->collectives, r->open);
    ls_comm_close(&r->comm);
    check_nccl(0, 0);
    cuda->stream_free(r->stream);
    cuda->stream_free(r->other);
    cuda->free(r->device);
    cuda->free(r->plain);
    free(r->host);
    free(r->want);
}

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
            if (k.redop == LS_AVG && (!ls_dtype_is_float(k.type) || r->n == 3)) continue; /* x / 3 and x * (1 / 3): body_numbers() */
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
    struct rank r = rank_open(rank, n, where, ctx);

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
    struct rank r = rank_open(rank, n, where, ctx);
    struct device_stream *stream[] = { r.stream, r.other };
    ls_comm *second, *comm[2];
    float *x, back[2];

    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &second));
    RANKS_TRY(comm_open_native(second, &counted_device, &for_collectives));
    comm[0] = r.comm, comm[1] = second;
    x = device_block(MEM_COMMUNICATION, sizeof back);
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
    struct rank r = rank_open(rank, n, where, ctx);
    ls_comm *second, *third;
    char *x, *y;

    check_nccl(1, 3); /* with two communicators for messages */
    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &second));
    RANKS_TRY(comm_open_native(second, &counted_device, &for_collectives));
    check_nccl(2, 4);
    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &third));
    RANKS_TRY(comm_open_native(third, &counted_device, &for_exchanges));
    check_nccl(2, 5);
    ls_comm_close(&third);
    check_nccl(2, 4);
    x = device_block(MEM_COMMUNICATION, ROOM);
    check_nccl(4, 4);
    RANKS_CHECK((y = cuda->alloc(MEM_ACTIVATIONS, ROOM)) != NULL);
    check_nccl(4, 4);
    cuda->free(x);
    cuda->free(y);
    RANKS_CHECK(!cuda->alloc(MEM_COMMUNICATION, (size_t)2 << 30)); /* more than there is, which is no failure of the device */
    RANKS_CHECK(strstr(ls_errmsg(), "needed for communication") && strstr(ls_errmsg(), "; NCCL's communicators took 14680064"));
    RANKS_TRY(cuda->sync());
    check_nccl(2, 4);
    ls_comm_close(&second);
    check_nccl(1, 3);
    rank_close(&r);
}

/* ---- numbers ---- */

static double element_read(ls_dtype t, const void *p)
{
    float x;

    if (t == LS_F32) return *(const float *)p;
    reduce_widen(&x, p, 1, t);
    return x;
}

/* x of each rank, reduced by NCCL and by the host; both are the same on all ranks. */
static void reduce_both(struct rank *r, ls_dtype type, ls_redop redop, double x, double *nccl, double *host)
{
    size_t bytes = ls_dtype_bytes(type);
    struct call_args a = { .op = LS_COLLECTIVE_ALL_REDUCE, .send = r->want, .recv = r->want, .count = 1, .type = type, .redop = redop };

    comm_element_set(type, r->want, 0, x);
    RANKS_TRY(cuda->copy_in(r->stream, r->device, r->want, bytes));
    RANKS_TRY(operation_run(r->comm, &a, NULL));
    *host = element_read(type, r->want);
    a.send = a.recv = r->device;
    RANKS_TRY(comm_enqueue(r->comm, cuda, r->stream, &a));
    RANKS_TRY(cuda->copy_out(r->stream, r->host, r->device, bytes));
    RANKS_TRY(cuda->stream_sync(r->stream));
    *nccl = element_read(type, r->host);
}

/* Rule 5 of collectives.h: where NCCL's results differ from the host's. */
static void body_numbers(int rank, int n, const char *where, void *ctx)
{
    struct rank r = rank_open(rank, n, where, ctx);
    double nccl, host;

    reduce_both(&r, LS_BF16, LS_SUM, rank == 0 ? 256 : 1, &nccl, &host); /* between 256 and 512 bf16 has the even numbers */
    RANKS_CHECK(nccl == 256 && host == (n == 2 ? 256 : n == 3 ? 258 : 260));
    reduce_both(&r, LS_F32, LS_SUM, rank == 0 ? 256 : 1, &nccl, &host);
    RANKS_CHECK(nccl == 255 + n && host == nccl);
    reduce_both(&r, LS_F32, LS_AVG, 7, &nccl, &host); /* 7 * fl(1 / 3) is rounded */
    RANKS_CHECK(host == 7 && (nccl == 7) == (n != 3));
    reduce_both(&r, LS_F32, LS_MAX, rank == 1 ? NAN : rank, &nccl, &host);
    RANKS_CHECK(nccl == (n == 2 ? 0 : n - 1) && isnan(host));
    rank_close(&r);
}

/* ---- a mesh ---- */

/* Makes the call on the group's comm; by NCCL or not. */
static void mesh_call(struct rank *r, const ls_mesh *m, ls_group g, ls_collective op, bool native)
{
    ls_comm *c = ls_mesh_comm(m, g);
    int before = calls, own = c ? ls_comm_rank(c) : 0;
    size_t counts[2] = { 1, 1 };
    struct call_args a = { .op = op, .send = r->device, .recv = r->device + ROOM / 2, .count = 1, .type = LS_F32 };

    if (!c) return;
    RANKS_CHECK(ls_comm_size(c) == 2 || op == LS_COLLECTIVE_ALL_REDUCE);
    if (op == LS_COLLECTIVE_ALL_TO_ALL) a.counts = a.recv_counts = counts, a.v = true;
    if (op == LS_COLLECTIVE_SEND && own) a.op = LS_COLLECTIVE_RECV;
    a.root = op == LS_COLLECTIVE_SEND ? !own : 0;
    RANKS_TRY(comm_enqueue(c, cuda, r->stream, &a));
    RANKS_TRY(cuda->stream_sync(r->stream));
    if (calls - before != native)
        ranks_fail("%s over %s: NCCL was given %d calls", ls_collective_name(op), ls_group_name(g), calls - before);
}

/* The communicators of a mesh, with the CTAs of all of them, carry what a step sends. ctx: its shape. */
static void body_mesh(int rank, int n, const char *where, void *ctx)
{
    const ls_mesh_shape *shape = ctx;
    bool exchanges = shape->cp > 1;
    struct rank r = rank_open(rank, n, where, &(struct native_spec){ 0 });
    ls_comm *world;
    ls_mesh *m;

    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &world)); /* the rank's own has its groups, which are none */
    RANKS_TRY(ls_mesh_open(world, shape, &m));
    RANKS_TRY(mesh_open_native(m, &counted_device, exchanges));
    mesh_call(&r, m, LS_GROUP_WORLD, LS_COLLECTIVE_ALL_REDUCE, true);
    mesh_call(&r, m, LS_GROUP_DATA, LS_COLLECTIVE_ALL_REDUCE, true);
    mesh_call(&r, m, LS_GROUP_TP, LS_COLLECTIVE_ALL_REDUCE, true);
    mesh_call(&r, m, LS_GROUP_ENDS, LS_COLLECTIVE_ALL_REDUCE, true);
    mesh_call(&r, m, LS_GROUP_PP, LS_COLLECTIVE_SEND, true);
    mesh_call(&r, m, LS_GROUP_PP, LS_COLLECTIVE_ALL_REDUCE, false); /* there is no communicator for what no step does */
    mesh_call(&r, m, LS_GROUP_EP, LS_COLLECTIVE_ALL_TO_ALL, true);
    mesh_call(&r, m, LS_GROUP_CP, LS_COLLECTIVE_ALL_TO_ALL, exchanges);
    check_nccl(ask_stub("stub_nccl_registered"), shape->pp > 1 ? 7 : 4);
    ls_mesh_close(&m);
    ls_comm_close(&world);
    rank_close(&r);
}

static void test_mesh(void **state)
{
    static const ls_mesh_shape shapes[] = { { .pp = 2, .dp = 1, .cp = 1, .tp = 2, .ep = 1, .replicate = 1 },
                                            { .pp = 1, .dp = 2, .cp = 2, .tp = 1, .ep = 2, .replicate = 1 } };
    char settings[128];

    (void)state;
    snprintf(settings, sizeof settings, "kernels=cpu nccl=%s", folder);
    setenv("LOCKSTEP_CUDA_STUB", settings, 1);
    for (size_t k = 0; k < COUNT_OF(shapes); k++) ranks_pass(RANKS, 400, body_mesh, (void *)(uintptr_t)&shapes[k]);
}

/* ---- a failure ---- */

/* Rank 1 makes neither of the calls that rank 0 has given to two communicators, and it is there until rank 0 has returned from its
 * wait: which ends, though NCCL aborts neither communicator without the other, nor before rank 1 has left. ctx: rank 0 has returned. */
static void body_abort(int rank, int n, const char *where, void *ctx)
{
    struct rank r = rank_open(rank, n, where, &for_collectives);
    struct call_args a = { .op = LS_COLLECTIVE_ALL_REDUCE, .send = r.device, .recv = r.device, .count = 1, .type = LS_F32 };
    struct ranks_event *returned = ctx;
    ls_comm *second;

    ls_comm_set_timeout(r.comm, 0.5);
    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &second));
    RANKS_TRY(comm_open_native(second, &counted_device, &for_collectives));
    if (rank == 1) {
        ranks_event_wait(returned);
        return;
    }
    RANKS_TRY(comm_enqueue(r.comm, cuda, r.stream, &a));
    a.send = a.recv = r.device + ROOM / 2;
    RANKS_TRY(comm_enqueue(second, cuda, r.other, &a));
    RANKS_CHECK(cuda->sync() == LS_ETIMEOUT);
    RANKS_CHECK(strstr(ls_errmsg(), "rank 1 did not call it within"));
    ranks_event_report(returned);
}

static void test_abort(void **state)
{
    struct ranks_event returned;
    char settings[128];

    (void)state;
    ranks_event_open(&returned);
    snprintf(settings, sizeof settings, "kernels=cpu nccl=%s", folder);
    setenv("LOCKSTEP_CUDA_STUB", settings, 1);
    ranks_pass(2, 60, body_abort, &returned);
    ranks_event_close(&returned);
}

/* ---- tests ---- */

static void run_ranks(ranks_body *body, const struct native_spec *s, int seeds)
{
    char settings[128];

    for (int n = 2; n <= RANKS; n++)
        for (int seed = 0; seed < seeds; seed++) {
            snprintf(settings, sizeof settings, "kernels=cpu nccl=%s seed=%d", folder, seed);
            setenv("LOCKSTEP_CUDA_STUB", settings, 1);
            ranks_pass(n, 400, body, (void *)(uintptr_t)s);
        }
}

#define TEST_RANKS(name, body, spec, seeds)  \
    static void name(void **state)           \
    {                                        \
        (void)state;                         \
        run_ranks(body, spec, seeds);        \
    }

TEST_RANKS(test_collectives, body_collectives, &for_collectives, 1)
TEST_RANKS(test_exchanges, body_collectives, &for_exchanges, 1)
TEST_RANKS(test_messages, body_messages, &for_messages, 1)
TEST_RANKS(test_two_comms, body_two_comms, &for_both, 5)
TEST_RANKS(test_memory, body_memory, &for_both, 1)
TEST_RANKS(test_numbers, body_numbers, &for_collectives, 1)

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_collectives), cmocka_unit_test(test_exchanges),
                                        cmocka_unit_test(test_messages),    cmocka_unit_test(test_two_comms),
                                        cmocka_unit_test(test_memory),      cmocka_unit_test(test_numbers),
                                        cmocka_unit_test(test_mesh),        cmocka_unit_test(test_abort) };
    int failed;

    unsetenv("CUDA_VISIBLE_DEVICES");
    if (!mkdtemp(folder)) return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (rmdir(folder) < 0) failed++, fprintf(stderr, "%s: communicators left files\n", folder);
    return failed;
}
