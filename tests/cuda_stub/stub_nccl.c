/* stub_nccl.c - the functions of NCCL: they check their contract and enqueue operations on streams. See stub_nccl.h. */
#include "stub_nccl.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "device/check.h"

static ncclComm_t comms; /* destroyed ones are kept, so that later uses of them are detected */
static uint64_t opened, finalized, launches, asked;
static _Thread_local struct {
    int depth, n;
    ncclComm_t comm; /* communicator of the calls so far; NULL: none */
    cudaStream_t stream;
    struct nccl_part part[NCCL_PARTS];
} group;

ncclResult_t nccl_call(void)
{
    uint64_t number = __atomic_add_fetch(stub_nccl_calls(), 1, __ATOMIC_SEQ_CST);

    return number == stub_settings()->nccl_fail ? ncclSystemError : ncclSuccess;
}

/* c may be given calls. */
void nccl_need_comm(const char *call, ncclComm_t c, bool idle)
{
    const struct ncclComm *x = comms;

    while (x && x != c) x = x->next;
    if (!x) stub_die("%s: %p is not a communicator", call, (void *)c);
    if (x->aborted) stub_die("%s: the communicator was aborted", call);
    if (x->state == NCCL_ENDED) stub_die("%s: the communicator was destroyed", call);
    if (idle && (x->state != NCCL_READY || x->waiting.n))
        stub_die("%s: ncclCommGetAsyncError has not said that the call before is done", call);
}

static uint64_t stub_nccl_draw(void)
{
    static uint64_t x;

    x = (x ? x : stub_settings()->seed + 7) * 6364136223846793005u + 1442695040888963407u;
    return x >> 33;
}

/* ---- questions ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = stub_settings()->nccl_version ? stub_settings()->nccl_version : NCCL_VERSION_CODE;
    return nccl_call();
}

const char *ncclGetErrorString(ncclResult_t r)
{
    switch (r) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "an error of the stub";
    }
}

const char *ncclGetLastError(ncclComm_t comm) { return (void)comm, ""; }

/* ---- communicators ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    uint64_t drawn[2];

    memset(id, 0, sizeof *id);
    if (getrandom(drawn, sizeof drawn, 0) != sizeof drawn) stub_die("ncclGetUniqueId: no random bytes");
    snprintf(id->internal, sizeof id->internal, "nccl_stub_%016llx%016llx", (unsigned long long)drawn[0], (unsigned long long)drawn[1]);
    return nccl_call();
}

static struct nccl_shared *map_file(const char *path, int n, int *file_out)
{
    size_t bytes = NCCL_HEAD + (size_t)(n + n * n) * NCCL_BLOCK;
    int file = open(path, O_RDWR | O_CREAT, 0600);

    if (file < 0 || ftruncate(file, (off_t)bytes) < 0) stub_die("nccl: %s: the file cannot be created", path);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p == MAP_FAILED) stub_die("nccl: %s: the file cannot be mapped", path);
    *file_out = file;
    return p;
}

/* The multiprocessors that the kernels of all communicators may occupy at once. */
static void check_ctas(const char *call, int ctas)
{
    struct cudaDeviceProp p;
    int sum = ctas;

    if (ctas < 1) stub_die("%s: config.maxCTAs is not set: kernels of several communicators could wait for each other", call);
    for (const struct ncclComm *c = comms; c; c = c->next)
        if (c->state != NCCL_ENDED && !c->aborted) sum += c->ctas;
    if (cudaGetDeviceProperties(&p, 0) == cudaSuccess && sum > p.multiProcessorCount)
        stub_die("%s: the kernels of all communicators may have %d CTAs; the GPU has %d multiprocessors", call, sum, p.multiProcessorCount);
}

_Static_assert(sizeof(struct nccl_shared) <= NCCL_HEAD, "there is room for it");

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    static const char call[] = "ncclCommInitRankConfig";
    ncclComm_t c = calloc(1, sizeof *c);
    ncclResult_t r = nccl_call();

    if (!c) stub_die("no memory");
    if (config->size != sizeof *config || config->magic != 0xcafebeef) stub_die("%s: the config was not initialized", call);
    if (config->blocking != 0) stub_die("%s: blocking=%d: the host could not see that a peer has died", call, config->blocking);
    if (n < 2 || n > NCCL_RANKS || rank < 0 || rank >= n) stub_die("%s: rank %d of %d", call, rank, n);
    if (strncmp(id.internal, "nccl_stub_", 10) != 0) stub_die("%s: the id is not one of ncclGetUniqueId", call);
    if (group.depth) stub_die("%s: in a group", call);
    check_ctas(call, config->maxCTAs);
    stub_need_kernels(call);
    *out = NULL;
    stub_end_at(&stub_settings()->nccl_open, ++opened);
    if (r != ncclSuccess) return free(c), r;
    c->n = n;
    c->rank = rank;
    snprintf(c->path, sizeof c->path, "%s/%.60s", stub_settings()->nccl, id.internal);
    c->ctas = config->maxCTAs;
    c->shared = map_file(c->path, n, &c->file);
    if (!nccl_rank_hold(c) || atomic_exchange(&c->shared->joined[rank], 1 + stub_gpu())) stub_die("%s: there are two ranks %d", call, rank);
    c->next = comms;
    comms = *out = c;
    return ncclInProgress;
}

/* All ranks have joined, each on a different GPU. */
static ncclResult_t join(ncclComm_t c)
{
    int gpu[NCCL_RANKS];

    for (int r = 0; r < c->n; r++)
        if (!(gpu[r] = atomic_load(&c->shared->joined[r]))) return ncclInProgress;
    for (int r = 0; r < c->n; r++)
        for (int q = 0; q < r; q++)
            if (gpu[q] == gpu[r]) return ncclInvalidUsage;
    if (!stub_memory_take(NCCL_COMM_BYTES)) return ncclUnhandledCudaError;
    c->state = NCCL_READY;
    unlink(c->path);
    return ncclSuccess;
}

static void launch(ncclComm_t c);

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    ncclResult_t r = nccl_call();

    nccl_need_comm("ncclCommGetAsyncError", c, false);
    if (++asked == stub_settings()->nccl_async) c->broken = ncclRemoteError;
    *state = c->broken;
    if (r != ncclSuccess || c->broken != ncclSuccess) return r;
    if (c->state == NCCL_JOINING) {
        *state = join(c);
    } else if (c->state == NCCL_FINALIZING) {
        *state = c->polls-- > 0 ? ncclInProgress : ncclSuccess;
        if (*state == ncclSuccess) c->state = NCCL_FINALIZED;
    } else if (c->waiting.n) {
        if (c->polls-- > 0 || !nccl_launch_connected(c))
            *state = ncclInProgress;
        else
            launch(c);
    }
    return r;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    nccl_need_comm("ncclCommFinalize", c, true);
    if (c->run != c->given) stub_die("ncclCommFinalize: %llu calls have not ended", (unsigned long long)(c->given - c->run));
    nccl_registrations_end("ncclCommFinalize", c, false);
    stub_end_at(&stub_settings()->nccl_close, ++finalized);
    c->state = NCCL_FINALIZING;
    c->polls = (int)(stub_nccl_draw() % 3);
    atomic_store(&c->shared->left[c->rank], 1);
    return nccl_call() == ncclSuccess ? ncclInProgress : ncclSystemError;
}

/* ---- the end of communicators, which may be on separate threads ---- */

static pthread_mutex_t ending = PTHREAD_MUTEX_INITIALIZER;

static void comm_give_memory(struct ncclComm *c)
{
    if (c->state != NCCL_JOINING) stub_memory_give(NCCL_COMM_BYTES);
    nccl_connections_end(c);
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    nccl_need_comm("ncclCommDestroy", c, false);
    stub_need_thread("ncclCommDestroy");
    if (c->state != NCCL_FINALIZED)
        stub_die("ncclCommDestroy: finalize first, and ask ncclCommGetAsyncError until it is done");
    nccl_wait_left(c);
    pthread_mutex_lock(&ending);
    comm_give_memory(c);
    c->state = NCCL_ENDED;
    pthread_mutex_unlock(&ending);
    return nccl_call();
}

/* No communicator has calls left that were not aborted: streams may wait for each other. */
static bool others_end(void)
{
    for (const struct ncclComm *x = comms; x; x = x->next)
        if (!x->aborted && x->state != NCCL_ENDED && x->run != x->given) return false;
    return true;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    static const struct timespec nap = { .tv_nsec = 100000 };

    nccl_need_comm("ncclCommAbort", c, false);
    stub_need_thread("ncclCommAbort");
    if (group.depth) stub_die("ncclCommAbort: in a group: it would not begin before the group ends");
    pthread_mutex_lock(&ending);
    unlink(c->path);
    comm_give_memory(c);
    nccl_registrations_end("ncclCommAbort", c, true);
    c->aborted = true;
    c->waiting.n = 0;
    atomic_store(&c->shared->left[c->rank], 1);
    pthread_mutex_unlock(&ending);
    while (!others_end()) nanosleep(&nap, NULL);
    nccl_wait_left(c);
    return nccl_call();
}

/* ---- launches ---- */

static void add_access(struct device_operation *o, size_t at, const void *p, size_t bytes, bool write)
{
    if (!bytes) return;
    if (!check_block_of(p, bytes)) stub_die("nccl: %p of %zu bytes is not, or not all, memory of cudaMalloc", p, bytes);
    if (o->pointers == DEVICE_POINTERS) stub_die("nccl: a group of more than %d buffers", DEVICE_POINTERS);
    o->pointer[o->pointers++] = at;
    o->access[o->accesses++] = (struct device_access){ .data = p, .bytes = bytes, .write = write };
}

static void launch(ncclComm_t c)
{
    struct nccl_launch *l = &c->waiting;
    struct device_operation o = { .name = "NCCL", .run = nccl_launch_run, .args = l, .bytes = sizeof *l };

    for (int k = 0; k < l->n; k++) {
        const struct nccl_part *p = &l->part[k];

        add_access(&o, offsetof(struct nccl_launch, part[0].send) + (size_t)k * sizeof *p, p->send, nccl_part_reads(c, p), false);
        add_access(&o, offsetof(struct nccl_launch, part[0].recv) + (size_t)k * sizeof *p, p->recv, nccl_part_writes(c, p), true);
    }
    stub_enqueue(c->stream, &o);
    l->n = 0;
}

static unsigned registered_as(const struct ncclComm *c, const void *p, size_t bytes, unsigned yes, unsigned no)
{
    return !p || !bytes ? 0 : nccl_is_registered(c, p, bytes) ? yes : no;
}

/* Records which operands of each call are registered. In a broadcast, the send operand of every rank counts like the root's. */
static void note_registered(const struct ncclComm *c, struct nccl_launch *l)
{
    unsigned all = 0;

    for (int k = 0; k < l->n; k++) {
        struct nccl_part *p = &l->part[k];
        size_t writes = nccl_part_writes(c, p), reads = p->words.op == NCCL_BROADCAST ? writes : nccl_part_reads(c, p);

        p->words.registered = registered_as(c, p->send, reads, NCCL_SENDS_REGISTERED, NCCL_SENDS_OTHER) |
                              registered_as(c, p->recv, writes, NCCL_RECEIVES_REGISTERED, NCCL_RECEIVES_OTHER);
        all |= p->words.registered;
    }
    *stub_nccl_in_place() += !(all & (NCCL_SENDS_OTHER | NCCL_RECEIVES_OTHER)) && all;
}

/* The collected operations become a call, which begins now or after some queries. */
static ncclResult_t close_group(const char *call)
{
    ncclComm_t c = group.comm;
    ncclResult_t r = nccl_call();

    group.comm = NULL;
    if (r != ncclSuccess || !c) return r;
    nccl_need_comm(call, c, true);
    stub_end_at(&stub_settings()->nccl_end, ++launches);
    c->stream = stub_stream(group.stream, call);
    c->waiting = (struct nccl_launch){ .comm = c, .number = c->given++, .n = group.n };
    memcpy(c->waiting.part, group.part, (size_t)group.n * sizeof *group.part);
    for (int k = 0; k < group.n; k++)
        if (group.part[k].words.op < NCCL_SEND) c->waiting.part[k].number = ++c->collectives;
    note_registered(c, &c->waiting);
    nccl_launch_connects(c);
    c->polls = (int)(stub_nccl_draw() % 3);
    if (c->polls > 0 || !nccl_launch_connected(c)) return ncclInProgress;
    launch(c);
    return ncclSuccess;
}

static bool ranges_overlap(const void *a, size_t m, const void *b, size_t n)
{
    return m && n && (const char *)a < (const char *)b + n && (const char *)b < (const char *)a + m;
}

/* What a part sends and receives may overlap as the documentation says: in place. */
static void check_overlap(const char *call, ncclComm_t c, const struct nccl_part *p)
{
    size_t reads = nccl_part_reads(c, p), writes = nccl_part_writes(c, p),
           block = p->words.count * nccl_bytes((ncclDataType_t)p->words.type);
    const char *send = p->send, *recv = p->recv;
    size_t own = (size_t)c->rank * block;

    if (!ranges_overlap(send, reads, recv, writes)) return;
    if (p->words.op == NCCL_ALL_GATHER ? send == recv + own : p->words.op == NCCL_REDUCE_SCATTER ? recv == send + own : send == recv)
        return;
    stub_die("%s: the buffers overlap, but not in place", call);
}

static void check_group_overlap(const char *call, ncclComm_t c, const struct nccl_part *p)
{
    for (int k = 0; k < group.n; k++) {
        const struct nccl_part *q = &group.part[k];

        if (ranges_overlap(p->recv, nccl_part_writes(c, p), q->recv, nccl_part_writes(c, q)) ||
            ranges_overlap(p->send, nccl_part_reads(c, p), q->recv, nccl_part_writes(c, q)) ||
            ranges_overlap(p->recv, nccl_part_writes(c, p), q->send, nccl_part_reads(c, q)))
            stub_die("%s: the buffers of two calls of a group overlap", call);
    }
}

static ncclResult_t add_part(const char *call, ncclComm_t c, cudaStream_t s, struct nccl_part p)
{
    bool message = p.words.op >= NCCL_SEND;

    if (!group.depth) group.n = 0;
    nccl_need_comm(call, c, !group.depth || !group.comm);
    stub_stream(s, call);
    nccl_bytes((ncclDataType_t)p.words.type);
    if (p.words.root < -1 || p.words.root >= c->n) stub_die("%s: rank %d of %d", call, p.words.root, c->n);
    if (message && p.words.root == c->rank && !group.depth) stub_die("%s: to itself, not in a group", call);
    if (group.depth && group.comm && (group.comm != c || group.stream != s))
        stub_die("%s: another communicator or stream in a group", call);
    if (group.n == NCCL_PARTS) stub_die("%s: more than %d calls in a group", call, NCCL_PARTS);
    check_overlap(call, c, &p);
    check_group_overlap(call, c, &p);
    group.comm = c;
    group.stream = s;
    group.part[group.n++] = p;
    if (!group.depth) return close_group(call);
    ncclResult_t r = nccl_call();
    return r;
}

ncclResult_t ncclGroupStart(void)
{
    if (!group.depth++) group.n = 0, group.comm = NULL;
    return nccl_call();
}

ncclResult_t ncclGroupEnd(void)
{
    if (!group.depth) stub_die("ncclGroupEnd: without ncclGroupStart");
    return --group.depth ? nccl_call() : close_group("ncclGroupEnd");
}

#define PART(op_, count_, type_, redop_, root_, send_, recv_) \
    (struct nccl_part) { .words = { op_, (int)(type_), redop_, root_, count_, 0 }, .send = send_, .recv = recv_ }

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t c,
                        cudaStream_t s)
{
    return add_part("ncclReduce", c, s, PART(NCCL_REDUCE, count, type, (int)op, root, send, recv));
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t c, cudaStream_t s)
{
    return add_part("ncclBroadcast", c, s, PART(NCCL_BROADCAST, count, type, -1, root, send, recv));
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c, cudaStream_t s)
{
    return add_part("ncclAllReduce", c, s, PART(NCCL_ALL_REDUCE, count, type, (int)op, -1, send, recv));
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                               cudaStream_t s)
{
    return add_part("ncclReduceScatter", c, s, PART(NCCL_REDUCE_SCATTER, count, type, (int)op, -1, send, recv));
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t c, cudaStream_t s)
{
    return add_part("ncclAllGather", c, s, PART(NCCL_ALL_GATHER, count, type, -1, -1, send, recv));
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s)
{
    return add_part("ncclSend", c, s, PART(NCCL_SEND, count, type, -1, peer, send, NULL));
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s)
{
    return add_part("ncclRecv", c, s, PART(NCCL_RECV, count, type, -1, peer, NULL, recv));
}
