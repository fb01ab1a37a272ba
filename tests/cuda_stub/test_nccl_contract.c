/* test_nccl_contract.c - the stub of NCCL itself: two ranks that make an all_reduce as documented, and each way of breaking the contract,
 * which ends the process with a line that says what is wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/base.h"
#include "device/device.h"
#include "helper_child.h"

enum { COUNT = 100, BYTES = COUNT * 4, BOTH = 2 * BYTES, BROKEN_CONTRACT = 97, TWO_RANKS = 2 };

/* Violations of the contract, and the stub's messages. */
#define WRONGS(X)                                                                                                        \
    X(NOTHING, "")                                                                                                       \
    X(CONFIG, "ncclCommInitRankConfig: the config was not initialized")                                                  \
    X(BLOCKING, "ncclCommInitRankConfig: blocking=1: the host could not see that a peer has died")                       \
    X(CTAS, "ncclCommInitRankConfig: config.maxCTAs is not set")                                                         \
    X(MANY_CTAS, "the kernels of all communicators may have 133 CTAs; the GPU has 132 multiprocessors")                  \
    X(RANK, "ncclCommInitRankConfig: rank 2 of 2")                                                                       \
    X(ID, "ncclCommInitRankConfig: the id is not one of ncclGetUniqueId")                                                \
    X(LAZY, "ncclCommInitRankConfig: the first launch of a kernel would wait for this stream, for ever")                 \
    X(IN_GROUP, "ncclCommInitRankConfig: in a group")                                                                    \
    X(TWICE, "ncclCommInitRankConfig: there are two ranks 0")                                                            \
    X(NOT_A_COMM, "ncclAllReduce: (nil) is not a communicator")                                                          \
    X(NOT_ASKED, "ncclAllReduce: ncclCommGetAsyncError has not said that the call before is done")                       \
    X(ABORTED, "ncclAllReduce: the communicator was aborted")                                                            \
    X(HOST_MEMORY, "is not, or not all, memory of cudaMalloc")                                                           \
    X(PAST_THE_END, "is not, or not all, memory of cudaMalloc")                                                          \
    X(STREAM, "ncclAllReduce: (nil) is not a stream")                                                                    \
    X(TYPE, "nccl: type 6500 is not one that lockstep sends")                                                            \
    X(OVERLAP, "ncclAllReduce: the buffers overlap, but not in place")                                                   \
    X(ROOT, "ncclBroadcast: rank 2 of 2")                                                                                \
    X(SELF, "ncclSend: to itself, not in a group")                                                                       \
    X(GROUP_OVERLAP, "ncclBroadcast: the buffers of two calls of a group overlap")                                       \
    X(GROUP_STREAM, "ncclBroadcast: another communicator or stream in a group")                                          \
    X(GROUP_END, "ncclGroupEnd: without ncclGroupStart")                                                                 \
    X(GROUP_TOO_LARGE, "more than 20 calls in a group")                                                                  \
    X(OPERATOR, "nccl: operator 1 is not one that lockstep gives")                                                       \
    X(OTHER_COUNT, "nccl: collective 1: rank")                                                                           \
    X(OTHER_OPERATOR, "nccl: collective 1: rank")                                                                        \
    X(OTHER_MESSAGE, "nccl: rank 0 sends 100 elements of type 7, rank 1 receives 99 of type 7")                          \
    X(FINALIZED_EARLY, "ncclCommFinalize: 1 calls have not ended")                                                       \
    X(DESTROYED_EARLY, "ncclCommDestroy: finalize first, and ask ncclCommGetAsyncError until it is done")                \
    X(DESTROYED_UNASKED, "ncclCommDestroy: finalize first, and ask ncclCommGetAsyncError until it is done")              \
    X(DESTROYED_ELSEWHERE, "ncclCommDestroy: on a thread that has not called cudaSetDevice")                             \
    X(ABORTED_IN_GROUP, "ncclCommAbort: in a group: it would not begin before the group ends")                           \
    X(DESTROYED, "ncclCommAbort: the communicator was destroyed")                                                       \
    X(REGISTERED_OTHER, "of 800 bytes is not, or not all, memory of ncclMemAlloc")                                       \
    X(REGISTERED_TWICE, "of 800 bytes is registered already")                                                            \
    X(FREED_REGISTERED, "ncclMemFree: 800 bytes are still registered")                                                   \
    X(FREED_BY_CUDA, "is a library's own memory")                                                                        \
    X(FREED_TWICE, "is not what ncclMemAlloc returned, or was freed before")                                             \
    X(DEREGISTERED_TWICE, "is not registered with the communicator")                                                     \
    X(FINALIZED_REGISTERED, "ncclCommFinalize: 800 bytes are still registered")                                          \
    X(REGISTERED_SOME, "nccl: the operands of a call are registered on some ranks and not on others")                    \
    X(REGISTERED_ROOT, "nccl: the operands of a call are registered on some ranks and not on others")                    \
    X(REGISTERED_SENDER, "nccl: a message is sent from registered memory and received elsewhere, or the other way round")

#include "helper_wrongs.h"

static char nccl_contract_folder[] = "/tmp/lockstep_nccl_XXXXXX";

/* ---- the functions of the stub ---- */

static void *(*stub_symbol)(void *library, const char *name);

#define STUB(name) ((__typeof__(name) *)stub_symbol(NULL, #name))

static const struct device *cuda;
static char *data; /* [BOTH] on the device */
static cudaStream_t nccl_contract_stream;
static ncclComm_t comm;
static pid_t peer; /* on rank 0: the process of rank 1 */

static void need(bool right, const char *what)
{
    if (right) return;
    fprintf(stderr, "%s: %s\n", what, ls_errmsg());
    _exit(1);
}

static void nccl_contract_open_gpu(int rank)
{
    struct device_facts facts;
    float ones[2 * COUNT];

    if (now == WRONG_LAZY) device_set_alone(), unsetenv("CUDA_MODULE_LOADING");
    need((cuda = device_find("cuda")) != NULL, "the device");
    need(cuda->choose(rank, &facts) == LS_OK, "choose");
    need((data = cuda->alloc(MEM_OTHER, sizeof ones)) != NULL, "memory");
    for (int k = 0; k < 2 * COUNT; k++) ones[k] = 1;
    need(device_write(cuda, data, ones, sizeof ones) == LS_OK, "write");
    need(STUB(cudaStreamCreateWithFlags)(&nccl_contract_stream, cudaStreamNonBlocking) == cudaSuccess, "the stream");
}

/* In a loop that waits: what ends rank 1 ends rank 0. */
static void follow_peer(void)
{
    int status;

    if (!peer || waitpid(peer, &status, WNOHANG) != peer) return;
    if (!WIFEXITED(status) || WEXITSTATUS(status)) _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    peer = 0; /* it has done its part */
}

/* Waits until NCCL has completed its last call. */
static void comm_wait(void)
{
    ncclResult_t state = ncclInProgress;

    while (state == ncclInProgress) {
        follow_peer();
        need(STUB(ncclCommGetAsyncError)(comm, &state) == ncclSuccess, "ncclCommGetAsyncError");
    }
    need(state == ncclSuccess, "the state");
}

static void stream_wait(void)
{
    cudaError_t e;

    while ((e = STUB(cudaStreamQuery)(nccl_contract_stream)) == cudaErrorNotReady) follow_peer();
    need(e == cudaSuccess, "cudaStreamQuery");
}

static void comm_open(int rank, ncclUniqueId id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = OR(BLOCKING, 0, 1);
    if (now != WRONG_CTAS) config.maxCTAs = OR(MANY_CTAS, 8, 133);
    if (now == WRONG_CONFIG) config.magic = 0;
    if (now == WRONG_ID) id.internal[0] = 'x';
    if (now == WRONG_IN_GROUP) STUB(ncclGroupStart)();
    for (int k = 0; k < OR(TWICE, 1, 2); k++) STUB(ncclCommInitRankConfig)(&comm, TWO_RANKS, id, OR(RANK, rank, 2), &config);
}

/* ---- what both ranks do ---- */

static void all_reduce(int rank)
{
    static float host[COUNT];
    char *from = OR(HOST_MEMORY, data, (char *)host), *to = OR(OVERLAP, data + BYTES, data + 4);
    size_t count = now == WRONG_OTHER_COUNT && rank ? COUNT - 1 : COUNT;
    ncclRedOp_t op = OR(OPERATOR, ncclSum, ncclProd);

    if (now == WRONG_OTHER_OPERATOR && rank) op = ncclMax;
    if (now == WRONG_PAST_THE_END) to += 4;
    STUB(ncclAllReduce)
    (from, to, count, OR(TYPE, ncclFloat32, (ncclDataType_t)6500), op, OR(NOT_A_COMM, comm, NULL),
     OR(STREAM, nccl_contract_stream, NULL));
    comm_wait();
}

static void messages(int rank)
{
    if (rank == 0)
        STUB(ncclSend)(data, COUNT, ncclFloat32, now == WRONG_SELF ? 0 : 1, comm, nccl_contract_stream);
    else
        STUB(ncclRecv)(data, COUNT - 1, ncclFloat32, 0, comm, nccl_contract_stream);
    comm_wait();
}

static void groups(void)
{
    cudaStream_t other;

    need(STUB(cudaStreamCreateWithFlags)(&other, cudaStreamNonBlocking) == cudaSuccess, "the other stream");
    if (now == WRONG_GROUP_END) STUB(ncclGroupEnd)();
    STUB(ncclGroupStart)();
    STUB(ncclBroadcast)(data, data, 1, ncclFloat32, OR(ROOT, 0, 2), comm, nccl_contract_stream);
    for (int k = 1; k <= OR(GROUP_TOO_LARGE, 1, 20); k++) {
        char *at = data + (now == WRONG_GROUP_OVERLAP ? 0 : 4 * k);

        STUB(ncclBroadcast)(at, at, 1, ncclFloat32, 1, comm, OR(GROUP_STREAM, nccl_contract_stream, other));
    }
    STUB(ncclGroupEnd)();
}

static void nccl_contract_memory(int rank)
{
    void *p, *handle;

    need(STUB(ncclMemAlloc)(&p, BOTH) == ncclSuccess, "ncclMemAlloc");
    for (int k = 0; k < OR(REGISTERED_TWICE, 1, 2); k++)
        STUB(ncclCommRegister)(comm, OR(REGISTERED_OTHER, p, (void *)data), BOTH, &handle);
    if (now == WRONG_FREED_BY_CUDA) STUB(cudaFree)(p);
    if (now == WRONG_FINALIZED_REGISTERED) STUB(ncclCommFinalize)(comm);
    if (now == WRONG_REGISTERED_SOME && rank == 0) data = p;
    if (now == WRONG_REGISTERED_ROOT) STUB(ncclBroadcast)(rank == 0 ? data : p, p, 1, ncclFloat32, 0, comm, nccl_contract_stream);
    if (now == WRONG_REGISTERED_SENDER && rank == 0) STUB(ncclSend)(p, 1, ncclFloat32, 1, comm, nccl_contract_stream);
    if (now == WRONG_REGISTERED_SENDER && rank == 1) STUB(ncclRecv)(data, 1, ncclFloat32, 0, comm, nccl_contract_stream);
    if (now >= WRONG_REGISTERED_ROOT) {
        comm_wait();
        stream_wait();
    }
    if (now >= WRONG_REGISTERED_SOME) return;
    if (now != WRONG_FREED_REGISTERED) STUB(ncclCommDeregister)(comm, handle);
    if (now == WRONG_DEREGISTERED_TWICE) STUB(ncclCommDeregister)(comm, handle);
    for (int k = 0; k < OR(FREED_TWICE, 1, 2); k++) STUB(ncclMemFree)(p);
}

static bool result_is_right(void)
{
    float sums[COUNT];

    need(device_read(cuda, sums, data + BYTES, sizeof sums) == LS_OK, "read");
    for (int k = 0; k < COUNT; k++)
        if (sums[k] != TWO_RANKS) return false;
    return true;
}

static void *destroy_elsewhere(void *unused)
{
    STUB(ncclCommDestroy)(comm);
    return unused;
}

static void comm_close(void)
{
    pthread_t thread;

    if (now == WRONG_ABORTED_IN_GROUP) {
        STUB(ncclGroupStart)();
        STUB(ncclCommAbort)(comm);
    }
    if (now != WRONG_DESTROYED_EARLY) {
        STUB(ncclCommFinalize)(comm);
        if (now != WRONG_DESTROYED_UNASKED) comm_wait();
    }
    if (now == WRONG_DESTROYED_ELSEWHERE) {
        need(pthread_create(&thread, NULL, destroy_elsewhere, NULL) == 0, "pthread_create");
        pthread_join(thread, NULL);
    }
    STUB(ncclCommDestroy)(comm);
    if (now == WRONG_DESTROYED) STUB(ncclCommAbort)(comm);
}

static int run_rank(int rank, ncclUniqueId id)
{
    nccl_contract_open_gpu(rank);
    comm_open(rank, id);
    if (now != WRONG_NOT_ASKED) comm_wait();
    if (now == WRONG_ABORTED) STUB(ncclCommAbort)(comm);
    if (now == WRONG_SELF || now == WRONG_OTHER_MESSAGE) messages(rank);
    if (now >= WRONG_ROOT && now <= WRONG_GROUP_TOO_LARGE) groups();
    if (now == WRONG_FINALIZED_EARLY) {
        if (rank == 0) all_reduce(rank), STUB(ncclCommFinalize)(comm);
        for (;;) pause(); /* the other does not make the call */
    }
    if (now == WRONG_NOTHING || now >= WRONG_REGISTERED_OTHER) nccl_contract_memory(rank);
    all_reduce(rank);
    stream_wait();
    if (!result_is_right()) return 1;
    comm_close();
    return 0;
}

/* Rank 0 is this process, whose exit code counts, rank 1 a child of it, which ends with it. */
static int both_ranks(void)
{
    void *library = dlopen(getenv("LOCKSTEP_CUDA_MODULE"), RTLD_NOW);
    pid_t parent = getpid();
    ncclUniqueId id;
    int status;

    need(library != NULL, "the module");
    *(void **)&stub_symbol = dlsym(library, "stub_dlsym");
    STUB(ncclGetUniqueId)(&id);
    peer = fork();
    need(peer >= 0, "fork");
    if (peer == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        _exit(run_rank(1, id));
    }
    if (run_rank(0, id)) return 1;
    if (!peer) return 0;
    need(waitpid(peer, &status, 0) == peer, "waitpid");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void nccl_breaches_are_reported(void **state)
{
    char settings[128];

    (void)state;
    snprintf(settings, sizeof settings, "kernels=cpu nccl=%s", nccl_contract_folder);
    for (int k = 0; k < WRONG_COUNT; k++) {
        now = (enum wrong)k;
        struct child c = child_run(settings, both_ranks);
        if (c.code != (now == WRONG_NOTHING ? 0 : BROKEN_CONTRACT) || !strstr(c.err, wrongs[k].says))
            fail_msg("%s: exit code %d, '%s', expected '%s'", wrongs[k].name, c.code, c.err, wrongs[k].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(nccl_breaches_are_reported) };
    char command[64];

    unsetenv("CUDA_VISIBLE_DEVICES");
    if (!mkdtemp(nccl_contract_folder)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -rf %s",
             nccl_contract_folder); /* ranks that broke the contract left their communicators' files */
    return system(command) ? 1 : failed;
}
