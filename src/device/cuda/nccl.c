/* nccl.c - collectives among GPUs by NCCL, whose library is loaded when it is first needed. See collectives.h and cuda.h.
 *
 * Communicators are nonblocking: a function that would wait for other ranks returns ncclInProgress, and the host asks until it is done,
 * moving flights meanwhile. So a rank that waits in NCCL still sees that a peer has failed, and aborts. Connections of collectives are made
 * when a communicator is opened (NCCL_RUNTIME_CONNECT=0), those of messages by a first message that opened() exchanges: what is enqueued
 * later waits for no peer, and calls on different communicators may be enqueued in different orders. NVLink SHARP is off
 * (NCCL_NVLS_ENABLE=0), because with it NCCL waits for the ranks of the node when a call with registered operands is enqueued.
 *
 * Blocks of different sizes are a group of broadcasts or reductions, one a block; all_to_all is a group of sends and receives.
 */
#include "device/cuda/nccl_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

struct nccl_functions nccl;
struct device_group *nccl_groups;

_Static_assert(sizeof(ncclUniqueId) <= DEVICE_GROUP_ID, "an id fits");

/* ---- the library ---- */

#define NCCL_FILE "libnccl.so.2"

enum { NCCL_LEAST = NCCL_VERSION(2, 19, 0) }; /* memory that is registered with communicators */
enum { NCCL_PATH = 400 };

static ls_status load_functions(void *library, const char *path)
{
#define NCCL_FIND(name)                                  \
    *(void **)&nccl.name = dlsym(library, "nccl" #name); \
    if (!nccl.name) return ls_fail(LS_EUNSUPPORTED, "%s has no nccl" #name "; use NCCL 2.19 or later", path);
    NCCL_FUNCTIONS(NCCL_FIND)
#undef NCCL_FIND
    return LS_OK;
}

/* where[room]: " of FILE", unless the loader knew it. */
static ls_status open_library(char *where, size_t room)
{
    char path[NCCL_PATH];
    void *library;

    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    library = cuda_library_open(NCCL_FILE, path, sizeof path);
    if (!library) return ls_fail(LS_EUNSUPPORTED, "NCCL was not found (" NCCL_FILE ": " CUDA_LIBRARY_PLACES ")");
    snprintf(where, room, "%s%s", path[0] ? " of " : "", path);
    return load_functions(library, path[0] ? path : NCCL_FILE);
}

static ls_status check_version(const char *where, char *version, size_t room)
{
    int v = 0;
    ncclResult_t r = nccl.GetVersion(&v);

    if (r != ncclSuccess) return ls_fail(LS_EUNSUPPORTED, "NCCL cannot be used: ncclGetVersion: %s", nccl.GetErrorString(r));
    if (v < NCCL_LEAST) return ls_fail(LS_EUNSUPPORTED, "NCCL cannot be used: version %d is older than 2.19", v);
    snprintf(version, room, "NCCL %d.%d.%d%s", v / 10000, v / 100 % 100, v % 100, where);
    return LS_OK;
}

static ls_status nccl_load(char *version, size_t room)
{
    static char found[NCCL_PATH + 40], why[600];
    static bool asked;
    static ls_status st;
    char where[NCCL_PATH + 8];

    if (!asked) {
        asked = true;
        st = open_library(where, sizeof where);
        if (st == LS_OK) st = check_version(where, found, sizeof found);
        if (st < 0) snprintf(why, sizeof why, "%s", ls_errmsg());
    }
    if (st < 0) return ls_fail(st, "%s", why);
    snprintf(version, room, "%s", found);
    return LS_OK;
}

/* ---- failures ---- */

static ls_status nccl_result(const struct device_group *g, ncclResult_t r, const char *call)
{
    const char *more;

    if (r == ncclSuccess) return LS_OK;
    if (r == ncclInProgress) return LS_BUSY;
    more = nccl.GetLastError(g ? g->comm : NULL);
    return ls_fail(LS_EPEER, "cuda: GPU %d (%s): %s: %s%s%s", cuda.gpu, cuda.properties.name, call, nccl.GetErrorString(r),
                   more && *more ? ": " : "", more ? more : "");
}

ls_status nccl_check(const struct device_group *g, ncclResult_t r, const char *call)
{
    ls_status st = nccl_result(g, r, call);

    return st < 0 ? cuda_fail(st) : LS_OK;
}

/* LS_BUSY: g is not done with what it was given last. */
static ls_status group_ask(const struct device_group *g)
{
    ncclResult_t state = ncclSuccess;

    LS_TRY(nccl_result(g, nccl.CommGetAsyncError(g->comm, &state), "ncclCommGetAsyncError"));
    return nccl_result(g, state, "NCCL");
}

static ls_status group_broken(void *group)
{
    ls_status st = group_ask(group);

    return st < 0 ? st : LS_OK;
}

/* Until g is done with what it was given last. */
static ls_status group_wait(const struct device_group *g)
{
    ls_status st = LS_OK;

    for (unsigned turns = 0; cuda.failed == LS_OK && (st = group_ask(g)) == LS_BUSY; turns++) {
        flights_move();
        if (cuda.failed == LS_OK) flights_rest(turns);
    }
    flights_rested();
    LS_TRY(cuda_failed());
    return st < 0 ? cuda_fail(st) : LS_OK;
}

void nccl_abort(void)
{
    for (struct device_group *g = nccl_groups; g; g = g->next) {
        if (g->comm && g->state != GROUP_FINISHED && g->state != GROUP_ABORTED) nccl.CommAbort(g->comm);
        if (g->state != GROUP_FINISHED) g->state = GROUP_ABORTED;
    }
}

/* ---- opening and closing ---- */

static ls_status nccl_id(char id[DEVICE_GROUP_ID])
{
    ncclUniqueId made = { .internal = "" };

    LS_TRY(nccl_check(NULL, nccl.GetUniqueId(&made), "ncclGetUniqueId"));
    memcpy(id, &made, sizeof made);
    return LS_OK;
}

static ls_status scratch_grow(struct device_group *g, size_t bytes)
{
    if (g->scratch_bytes >= bytes) return LS_OK;
    cuda_row.free(g->scratch);
    g->scratch = cuda_row.alloc(g->messages ? MEM_OTHER : MEM_COMMUNICATION, bytes);
    g->scratch_bytes = g->scratch ? bytes : 0;
    return g->scratch ? LS_OK : cuda.failed < 0 ? cuda_failed() : LS_ENOMEM;
}

static ls_status nccl_open(const char id[DEVICE_GROUP_ID], int rank, int n, bool messages, struct device_group **out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct device_stream *stream;
    struct device_group *g;
    ncclUniqueId made;

    LS_TRY(cuda_failed());
    LS_TRY(cuda_stream(NULL, &stream)); /* the GPU is chosen */
    if (!(g = mem_zalloc(MEM_OTHER, sizeof *g))) return LS_ENOMEM;
    memcpy(&made, id, sizeof made);
    config.blocking = 0;
    g->rank = rank;
    g->n = n;
    g->messages = messages;
    g->next = nccl_groups;
    nccl_groups = *out = g;                   /* closed by the caller, whatever happens */
    if (messages) LS_TRY(scratch_grow(g, 1)); /* for the first message */
    LS_TRY(cuda_memory_left(&g->left));
    return nccl_check(g, nccl.CommInitRankConfig(&g->comm, n, made, rank, &config), "ncclCommInitRankConfig");
}

/* The first message, which makes the connection. */
static ls_status group_greet(struct device_group *g)
{
    cudaStream_t s = cuda.fallback.handle;

    g->state = GROUP_GREETING;
    if (g->rank == 0) return nccl_check(g, nccl.Send(g->scratch, 1, ncclUint8, 1, g->comm, s), "ncclSend");
    return nccl_check(g, nccl.Recv(g->scratch, 1, ncclUint8, 0, g->comm, s), "ncclRecv");
}

/* What NCCL has taken for it is what the GPU has lost meanwhile. */
static ls_status group_is_open(struct device_group *g)
{
    size_t left;

    if (g->state == GROUP_OPEN) return LS_OK;
    LS_TRY(cuda_memory_left(&left));
    g->taken = g->left > left ? g->left - left : 0;
    cuda.taken_nccl += g->taken;
    g->state = GROUP_OPEN;
    return nccl_memory_opened(g);
}

static ls_status nccl_opened(struct device_group *g)
{
    cudaError_t e;
    ls_status st;

    LS_TRY(cuda_failed());
    st = g->state == GROUP_OPEN ? LS_OK : group_ask(g);
    if (st != LS_OK) return st < 0 ? cuda_fail(st) : st;
    if (g->state == GROUP_OPENING && g->messages) {
        LS_TRY(group_greet(g));
        return LS_BUSY;
    }
    if (g->state == GROUP_GREETING) {
        e = cudaStreamQuery(cuda.fallback.handle);
        if (e == cudaErrorNotReady) return LS_BUSY;
        LS_TRY(cuda_check(e, "cudaStreamQuery"));
    }
    return group_is_open(g);
}

static ls_status nccl_finish(struct device_group *g)
{
    ls_status st;

    LS_TRY(cuda_failed());
    if (g->state == GROUP_OPEN) {
        LS_TRY(cuda_row.sync());
        LS_TRY(nccl_memory_finish(g));
        g->state = GROUP_FINISHING;
        LS_TRY(nccl_check(g, nccl.CommFinalize(g->comm), "ncclCommFinalize"));
    }
    if (g->state != GROUP_FINISHING) return LS_OK;
    st = group_ask(g);
    if (st == LS_OK) g->state = GROUP_FINISHED;
    return st < 0 ? cuda_fail(st) : st;
}

static size_t nccl_taken(void) { return cuda.taken_nccl; }

static void nccl_close(struct device_group *g)
{
    struct device_group **at = &nccl_groups;

    if (!g) return;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    if (g->state == GROUP_FINISHED)
        nccl.CommDestroy(g->comm);
    else if (g->comm && g->state != GROUP_ABORTED)
        nccl.CommAbort(g->comm);
    if (g->state != GROUP_FINISHED) g->state = GROUP_ABORTED;
    nccl_memory_closed(g);
    cuda.taken_nccl -= g->taken;
    cuda_row.free(g->scratch);
    mem_free(g);
}

/* ---- calls ---- */

static const struct {
    ncclDataType_t type;
    int elements; /* of it in one of ours */
} nccl_type[LS_DTYPES] = {
    [LS_F32] = { ncclFloat32, 1 }, [LS_BF16] = { ncclBfloat16, 1 }, [LS_F16] = { ncclFloat16, 1 }, [LS_F64] = { ncclFloat64, 1 },
    [LS_I64] = { ncclInt64, 1 },   [LS_I32] = { ncclInt32, 1 },     [LS_U16] = { ncclUint8, 2 },   [LS_U8] = { ncclUint8, 1 },
};

static const ncclRedOp_t nccl_redop[] = { [DEVICE_SUM] = ncclSum, [DEVICE_AVG] = ncclAvg, [DEVICE_MAX] = ncclMax };

static bool nccl_takes(const struct device_call *c)
{
    bool reduces = c->op == DEVICE_ALL_REDUCE || c->op == DEVICE_REDUCE_SCATTER;

    return !reduces || nccl_type[c->type].elements == 1;
}

/* A call on its way to NCCL. */
struct nccl_call {
    struct device_group *g;
    const struct device_call *c;
    const char *send;
    cudaStream_t s;
    ncclDataType_t type;
    size_t per, bytes; /* elements of NCCL's and bytes in one of ours */
};

static bool blocks_even(const struct nccl_call *k)
{
    const size_t *at = k->c->at;

    for (int r = 1; r < k->g->n; r++)
        if (at[r + 1] - at[r] != at[1] - at[0]) return false;
    return true;
}

static size_t block_count(const struct nccl_call *k, const size_t *at, int r) { return (at[r + 1] - at[r]) * k->per; }
static char *block_data(const struct nccl_call *k, const void *p, const size_t *at, int r)
{
    return (char *)(uintptr_t)p + at[r] * k->bytes;
}

static ls_status give_gathered(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    for (int r = 0; r < k->g->n; r++) {
        char *to = block_data(k, c->recv, c->at, r);
        size_t count = block_count(k, c->at, r);

        if (count)
            LS_TRY(
                nccl_check(k->g, nccl.Broadcast(r == k->g->rank ? k->send : to, to, count, k->type, r, k->g->comm, k->s), "ncclBroadcast"));
    }
    return LS_OK;
}

static ls_status give_scattered(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    for (int r = 0; r < k->g->n; r++) {
        const char *from = block_data(k, k->send, c->at, r);
        size_t count = block_count(k, c->at, r);

        if (count)
            LS_TRY(nccl_check(
                k->g, nccl.Reduce(from, r == k->g->rank ? c->recv : NULL, count, k->type, nccl_redop[c->redop], r, k->g->comm, k->s),
                "ncclReduce"));
    }
    return LS_OK;
}

static ls_status give_exchanged(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    for (int r = 0; r < k->g->n; r++) {
        size_t out = block_count(k, c->at, r), in = block_count(k, c->recv_at, r);

        if (out) LS_TRY(nccl_check(k->g, nccl.Send(block_data(k, k->send, c->at, r), out, k->type, r, k->g->comm, k->s), "ncclSend"));
        if (in) LS_TRY(nccl_check(k->g, nccl.Recv(block_data(k, c->recv, c->recv_at, r), in, k->type, r, k->g->comm, k->s), "ncclRecv"));
    }
    return LS_OK;
}

static ls_status give_blocks(const struct nccl_call *k)
{
    ls_status st;

    LS_TRY(nccl_check(k->g, nccl.GroupStart(), "ncclGroupStart"));
    st = k->c->op == DEVICE_ALL_GATHER ? give_gathered(k) : k->c->op == DEVICE_REDUCE_SCATTER ? give_scattered(k) : give_exchanged(k);
    LS_TRY(st);
    return nccl_check(k->g, nccl.GroupEnd(), "ncclGroupEnd");
}

/* NCCL's sends and receives of a group read and write in no order: what is sent is copied first where the result replaces it. */
static size_t saved_bytes(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    return c->op == DEVICE_ALL_TO_ALL && c->send == c->recv ? c->at[k->g->n] * k->bytes : 0;
}

static ls_status save_sent(struct nccl_call *k)
{
    size_t bytes = saved_bytes(k);

    if (!bytes) return LS_OK;
    k->send = k->g->scratch;
    return cuda_check(cudaMemcpyAsync(k->g->scratch, k->c->send, bytes, cudaMemcpyDeviceToDevice, k->s), "cudaMemcpyAsync");
}

static ls_status call_give(const struct nccl_call *k)
{
    const struct device_call *c = k->c;
    size_t count = c->count * k->per;
    ncclComm_t comm = k->g->comm;

    switch (c->op) {
    case DEVICE_ALL_REDUCE:
        return nccl_check(k->g, nccl.AllReduce(k->send, c->recv, count, k->type, nccl_redop[c->redop], comm, k->s), "ncclAllReduce");
    case DEVICE_BROADCAST: return nccl_check(k->g, nccl.Broadcast(c->recv, c->recv, count, k->type, c->root, comm, k->s), "ncclBroadcast");
    case DEVICE_SEND: return nccl_check(k->g, nccl.Send(k->send, count, k->type, 1, comm, k->s), "ncclSend");
    case DEVICE_RECV: return nccl_check(k->g, nccl.Recv(c->recv, count, k->type, 0, comm, k->s), "ncclRecv");
    default: break;
    }
    if (c->op == DEVICE_ALL_TO_ALL || !blocks_even(k)) return give_blocks(k);
    count = block_count(k, c->at, 0);
    if (c->op == DEVICE_ALL_GATHER) return nccl_check(k->g, nccl.AllGather(k->send, c->recv, count, k->type, comm, k->s), "ncclAllGather");
    return nccl_check(k->g, nccl.ReduceScatter(k->send, c->recv, count, k->type, nccl_redop[c->redop], comm, k->s), "ncclReduceScatter");
}

/* The same on all ranks but for all_to_all, where it is true as well if only this rank sends and receives nothing. */
static bool call_empty(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    if (c->op == DEVICE_ALL_TO_ALL) return !c->at[k->g->n] && !c->recv_at[k->g->n];
    return c->op == DEVICE_ALL_GATHER || c->op == DEVICE_REDUCE_SCATTER ? !c->at[k->g->n] : !c->count;
}

static ls_status nccl_enqueue(struct device_group *g, struct device_stream *stream, const struct device_call *c,
                              const struct device_watch *w)
{
    struct nccl_call k = { .g = g,
                           .c = c,
                           .send = c->send,
                           .type = nccl_type[c->type].type,
                           .per = (size_t)nccl_type[c->type].elements,
                           .bytes = ls_dtype_bytes(c->type) };
    struct device_stream *s;
    struct flight *f;
    ls_status st = cuda_stream(stream, &s);

    if (st == LS_OK) st = scratch_grow(g, saved_bytes(&k));
    if (st < 0) {
        w->over(w->data, false);
        return st;
    }
    LS_TRY(flight_call_begin(s, w, group_broken, g, &f));
    k.s = s->handle;
    if (!call_empty(&k)) {
        st = save_sent(&k);
        if (st == LS_OK) st = call_give(&k);
        if (st == LS_OK) st = group_wait(g);
        if (st < 0) return cuda_fail(st);
    }
    return flight_call_end(f);
}

const struct device_collectives cuda_nccl = {
    .name = "NCCL",
    .load = nccl_load,
    .takes = nccl_takes,
    .id = nccl_id,
    .open = nccl_open,
    .opened = nccl_opened,
    .taken = nccl_taken,
    .finish = nccl_finish,
    .close = nccl_close,
    .enqueue = nccl_enqueue,
};
