/* test_native_groups.c - groups of NCCL and of CUDA IPC, on the stub: several at a time, those of a mesh, a rank that makes no calls, and
 * what other ranks see of one that waits.
 */
#include "helper_clock.h"
#include "native_rank.h"

#include "comm/engine/engine.h"

/* ---- more than one at a time ---- */

/* Calls of two comms on two streams, enqueued without a wait: each comm's in its order, whatever the other does. */
static void body_two_comms(int rank, int n, const char *where, void *ctx)
{
    enum { TURNS = 20 };
    struct rank r = rank_open(rank, n, where, ctx);
    struct device_stream *stream[] = { r.stream, r.other };
    ls_comm *second, *comm[2];
    float back[2];

    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &second));
    RANKS_TRY(comm_open_native(second, cuda, &counted, &for_collectives));
    comm[0] = r.comm, comm[1] = second;
    float *x = device_block(MEM_COMMUNICATION, sizeof back);
    back[0] = 1, back[1] = 2;
    RANKS_TRY(device_write(cuda, x, back, sizeof back));
    for (int k = 0; k < TURNS; k++) {
        int at = (k + rank) % 2; /* each rank begins with a different one */

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

/* Calls of one comm on two streams without other ordering: each runs after the previous one. */
static void body_two_streams(int rank, int n, const char *where, void *ctx)
{
    enum { TURNS = 30, COUNT = 100 };
    struct rank r = rank_open(rank, n, where, ctx);
    float *x = (float *)(void *)r.device, *host = (float *)(void *)r.host;

    for (int i = 0; i < 2 * COUNT; i++) host[i] = (float)(i + rank);
    RANKS_TRY(device_write(cuda, x, host, 2 * COUNT * sizeof *x));
    for (int k = 0; k < TURNS; k++) {
        float *at = x + k % 2 * COUNT;

        RANKS_TRY(comm_enqueue(r.comm, cuda, k % 2 ? r.other : r.stream,
                               &(struct call_args){ .op = LS_COLLECTIVE_ALL_REDUCE,
                                                    .send = at,
                                                    .recv = at,
                                                    .count = COUNT,
                                                    .type = LS_F32,
                                                    .redop = LS_MAX }));
    }
    RANKS_TRY(cuda->sync());
    RANKS_TRY(device_read(cuda, host, x, 2 * COUNT * sizeof *x));
    for (int i = 0; i < 2 * COUNT; i++) RANKS_CHECK(host[i] == (float)(i + n - 1));
    rank_close(&r);
}

/* ---- a mesh ---- */

/* Makes the call on the group's comm; by the table or not. */
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
        ranks_fail("%s over %s: its table was given %d calls", ls_collective_name(op), ls_group_name(g), calls - before);
}

/* The groups of a mesh, with the CTAs of all of them, carry what a step sends. ctx: its shape. */
static void body_mesh(int rank, int n, const char *where, void *ctx)
{
    const ls_mesh_shape *shape = ctx;
    bool exchanges = shape->cp > 1;
    struct rank r = rank_open(rank, n, where, &(struct native_spec){ 0 });
    ls_comm *world;
    ls_mesh *m;

    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &world)); /* a comm of one rank opens no groups */
    RANKS_TRY(ls_mesh_open(world, shape, &m));
    RANKS_TRY(mesh_open_native(m, cuda, &counted, exchanges));
    mesh_call(&r, m, LS_GROUP_WORLD, LS_COLLECTIVE_ALL_REDUCE, true);
    mesh_call(&r, m, LS_GROUP_DATA, LS_COLLECTIVE_ALL_REDUCE, true);
    mesh_call(&r, m, LS_GROUP_TP, LS_COLLECTIVE_ALL_REDUCE, true);
    mesh_call(&r, m, LS_GROUP_ENDS, LS_COLLECTIVE_ALL_REDUCE, true);
    mesh_call(&r, m, LS_GROUP_PP, LS_COLLECTIVE_SEND, true);
    mesh_call(&r, m, LS_GROUP_PP, LS_COLLECTIVE_ALL_REDUCE, false); /* there is no group for collectives that no step uses */
    mesh_call(&r, m, LS_GROUP_EP, LS_COLLECTIVE_ALL_TO_ALL, true);
    mesh_call(&r, m, LS_GROUP_CP, LS_COLLECTIVE_ALL_TO_ALL, exchanges);
    check_groups(ask_stub("stub_nccl_registered"), shape->pp > 1 ? 7 : 4);
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

/* Rank 0 enqueues a call in each of two groups. Rank 1 makes neither; it only lets time pass until rank 0 has returned from its wait. That
 * wait ends although NCCL's stub aborts the two groups only together, and only after rank 1 has left. ctx: their clock. */
static void body_abort(int rank, int n, const char *where, void *ctx)
{
    test_clock_use(ctx, rank);
    struct rank r = rank_open(rank, n, where, &for_collectives);
    struct call_args a = { .op = LS_COLLECTIVE_ALL_REDUCE, .send = r.device, .recv = r.device, .count = 1, .type = LS_F32 };
    ls_comm *second;

    ls_comm_set_timeout(r.comm, 0.5);
    RANKS_TRY(ls_comm_split(r.comm, 0, rank, &second));
    RANKS_TRY(comm_open_native(second, cuda, &counted, &for_collectives));
    if (rank == 1) {
        while (test_clock_step(0.1)) continue;
        rank_free(&r);
        return;
    }
    RANKS_TRY(comm_enqueue(r.comm, cuda, r.stream, &a));
    a.send = a.recv = r.device + ROOM / 2;
    RANKS_TRY(comm_enqueue(second, cuda, r.other, &a));
    RANKS_CHECK(cuda->sync() == LS_ETIMEOUT);
    RANKS_CHECK(strstr(ls_errmsg(), "rank 1 did not call it within"));
    test_clock_leave();
    rank_free(&r);
}

static void test_abort(void **state)
{
    struct test_clock *clock = test_clock_open(2);
    char settings[128];

    (void)state;
    snprintf(settings, sizeof settings, "kernels=cpu nccl=%s", folder);
    setenv("LOCKSTEP_CUDA_STUB", settings, 1);
    ranks_pass(2, 60, body_abort, clock);
    test_clock_close(&clock);
}

/* ---- what other ranks see ---- */

/* In an all-reduce, not in the barrier of opening. */
static bool rank_waits(const struct rank *r, int rank)
{
    struct board_seen seen;

    engine_enter();
    ls_status st = r->comm->transport->see(r->comm->link, rank, &seen);
    engine_leave();
    return st == LS_OK && seen.waits.state != CALL_NONE && seen.waits.signature.op == LS_COLLECTIVE_ALL_REDUCE;
}

/* Rank 0 is seen to wait for its stream, and the others make their call only then; once its wait is over it is not seen to wait, also
 * where the call has ended before the wait has. */
static void body_waits(int rank, int n, const char *where, void *ctx)
{
    struct rank r = rank_open(rank, n, where, ctx);
    struct call_args a = { .op = LS_COLLECTIVE_ALL_REDUCE, .send = r.device, .recv = r.device, .count = 1, .type = LS_F32 };

    while (rank != 0 && !rank_waits(&r, 0)) usleep(1000);
    RANKS_TRY(comm_enqueue(r.comm, cuda, r.stream, &a));
    RANKS_TRY(cuda->copy_out(r.stream, r.host, r.device, sizeof(float)));
    RANKS_TRY(cuda->stream_sync(r.stream));
    RANKS_CHECK(!rank_waits(&r, rank));
    rank_close(&r);
}

/* ---- tests ---- */

TEST_RANKS(test_two_comms, body_two_comms, &for_both, 5)
TEST_RANKS(test_two_streams, body_two_streams, &for_collectives, 5)
TEST_RANKS(test_waits, body_waits, &for_collectives, 5)

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_two_comms), cmocka_unit_test(test_two_streams), cmocka_unit_test(test_mesh),
                                        cmocka_unit_test(test_abort), cmocka_unit_test(test_waits) };
    int failed = 0;

    folder_open();
    for (by = BY_NCCL; by <= BY_IPC; by++) failed += cmocka_run_group_tests_name(by == BY_NCCL ? "NCCL" : "CUDA IPC", tests, NULL, NULL);
    return folder_close(failed);
}
