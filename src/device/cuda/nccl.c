/* nccl.c - collectives among GPUs by NCCL, whose library is loaded when it is first needed. See collectives.h and cuda.h.
 *
 * Communicators are nonblocking: a function that would wait for other ranks returns ncclInProgress, and the host asks until it is done,
 * moving flights meanwhile. So a rank that waits in NCCL still sees that a peer has failed, and aborts.
 *
 * What is enqueued later waits for nothing that a peer's program does: the first call with a registered operand asks the service threads
 * of NCCL on the peers. Connections of rings and trees are made when a communicator is opened (NCCL_RUNTIME_CONNECT=0), those of messages
 * and of all_to_all by a first message to each peer that opened() exchanges. NVLink SHARP is off (NCCL_NVLS_ENABLE=0), because with it NCCL
 * waits for the ranks of the node when a call with registered operands is enqueued, and the order of its sums is not documented. Others
 * measured all-reduces on 8 H100 that are a quarter slower without it (NVIDIA/nccl issue 2140: 370 and 480 GB/s).
 *
 * A kernel of NCCL keeps its multiprocessors until the same kernel runs on its peers, so NCCL's guide asks for one order of the calls on
 * all communicators, the same on all ranks. Ranks have no such order: the stages of a pipeline run different programs, so
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 would make them wait for each other in a circle. Instead the kernels of all communicators fit on the GPU at
 * once: each has as many CTAs at most as its share of the multiprocessors.
 */
#include "device/cuda/nccl_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

enum { CTAS_MOST = 64 };               /* NCCL has no more channels */
static const double CLOSE_SECONDS = 2; /* that closing waits for a communicator to end */

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
    if (!nccl.name) return ls_fail(LS_EUNSUPPORTED, "%s has no nccl" #name "; use NCCL 2.19 or later (" CUDA_LIBRARY_OTHER ")", path);
    NCCL_FUNCTIONS(NCCL_FIND)
#undef NCCL_FIND
    return LS_OK;
}

/* where[room]: " of FILE", unless the loader knew it. */
static ls_status open_library(char *where, size_t room)
{
    char path[NCCL_PATH];

    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    void *library = cuda_library_open(NCCL_FILE, path, sizeof path);
    if (!library) return ls_fail(LS_EUNSUPPORTED, "NCCL was not found (" NCCL_FILE ": " CUDA_LIBRARY_PLACES ")");
    snprintf(where, room, "%s%s", path[0] ? " of " : "", path);
    return load_functions(library, path[0] ? path : NCCL_FILE);
}

static ls_status check_version(const char *where, char *version, size_t room)
{
    int v = 0;
    ncclResult_t r = nccl.GetVersion(&v);

    if (r != ncclSuccess) return ls_fail(LS_EUNSUPPORTED, "NCCL cannot be used: ncclGetVersion: %s", nccl.GetErrorString(r));
    if (v >= NCCL_VERSION(2, 9, 0)) /* the number of an earlier version has fewer digits */
        snprintf(version, room, "NCCL %d.%d.%d%s", v / 10000, v / 100 % 100, v % 100, where);
    else
        snprintf(version, room, "NCCL %d.%d.%d%s", v / 1000, v / 100 % 10, v % 100, where);
    if (v < NCCL_LEAST)
        return ls_fail(LS_EUNSUPPORTED, "%s cannot be used: it is older than 2.19; update it (" CUDA_LIBRARY_OTHER ")", version);
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
    if (r == ncclSuccess) return LS_OK;
    if (r == ncclInProgress) return LS_BUSY;
    const char *more = nccl.GetLastError(g ? g->comm : NULL);
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

ls_status group_broken(void *group)
{
    ls_status st = group_ask(group);

    return st < 0 ? st : LS_OK;
}

ls_status nccl_wait(const struct device_group *g)
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
        if (g->comm && g->state < GROUP_DESTROYING) nccl_end_begin(g, true);
        if (g->state < GROUP_DESTROYING) g->state = GROUP_ABORTED;
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

ls_status group_scratch(struct device_group *g, size_t bytes)
{
    if (g->scratch_bytes >= bytes) return LS_OK;
    cuda_row.free(g->scratch);
    g->scratch = cuda_row.alloc(MEM_OTHER, bytes);
    g->scratch_bytes = g->scratch ? bytes : 0;
    return g->scratch ? LS_OK : cuda.failed < 0 ? cuda_failed() : LS_ENOMEM;
}

/* The largest power of two within the group's share: NCCL rounds the channels of messages up to one. */
static int group_ctas(const struct device_group_spec *s)
{
    int most = cuda.properties.multiProcessorCount * s->share / s->shares, n = 1;

    while (2 * n <= MIN(most, CTAS_MOST)) n *= 2;
    return n;
}

static ls_status group_begin(struct device_group *g, const char id[DEVICE_GROUP_ID], const struct device_group_spec *s)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId made;

    memcpy(&made, id, sizeof made);
    config.blocking = 0;
    config.maxCTAs = group_ctas(s);
    LS_TRY(nccl_end_new(g));
    if (g->kind != DEVICE_GROUP_COLLECTIVES) LS_TRY(group_scratch(g, 2 * (size_t)g->n)); /* for the first messages */
    LS_TRY(cuda_memory_left(&g->left));
    return nccl_check(g, nccl.CommInitRankConfig(&g->comm, g->n, made, g->rank, &config), "ncclCommInitRankConfig");
}

static ls_status nccl_open(const char id[DEVICE_GROUP_ID], const struct device_group_spec *s, struct device_group **out)
{
    struct device_stream *stream;
    struct device_group *g;

    LS_TRY(cuda_failed());
    LS_TRY(cuda_stream(NULL, &stream)); /* the GPU is chosen */
    if (!(g = mem_zalloc(MEM_OTHER, sizeof *g))) return LS_ENOMEM;
    g->rank = s->rank;
    g->n = s->n;
    g->kind = s->kind;
    g->next = nccl_groups;
    nccl_groups = *out = g; /* closed by the caller, whatever happens */
    return group_begin(g, id, s);
}

/* A byte to and from each peer, each in a place of its own. */
static ls_status group_greet_all(struct device_group *g)
{
    cudaStream_t s = cuda.fallback.handle;

    LS_TRY(nccl_check(g, nccl.GroupStart(), "ncclGroupStart"));
    for (int r = 0; r < g->n; r++) {
        if (r == g->rank) continue;
        LS_TRY(nccl_check(g, nccl.Send(g->scratch + r, 1, ncclUint8, r, g->comm, s), "ncclSend"));
        LS_TRY(nccl_check(g, nccl.Recv(g->scratch + g->n + r, 1, ncclUint8, r, g->comm, s), "ncclRecv"));
    }
    return nccl_check(g, nccl.GroupEnd(), "ncclGroupEnd");
}

/* The first messages, which make the connections. */
static ls_status group_greet(struct device_group *g)
{
    cudaStream_t s = cuda.fallback.handle;

    g->state = GROUP_GREETING;
    if (g->kind == DEVICE_GROUP_EXCHANGES) return group_greet_all(g);
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

    LS_TRY(cuda_failed());
    ls_status st = g->state == GROUP_OPEN ? LS_OK : group_ask(g);
    if (st != LS_OK) return st < 0 ? cuda_fail(st) : st;
    if (g->state == GROUP_OPENING && g->kind != DEVICE_GROUP_COLLECTIVES) {
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
    if (g->state == GROUP_FINISHING) {
        st = group_ask(g);
        if (st != LS_OK) return st < 0 ? cuda_fail(st) : st;
        g->state = GROUP_DESTROYING;
        nccl_end_begin(g, false);
    }
    if (g->state == GROUP_DESTROYING && nccl_end_is_over(g)) g->state = GROUP_FINISHED;
    return g->state == GROUP_DESTROYING ? LS_BUSY : LS_OK;
}

static size_t nccl_taken(void) { return cuda.taken_nccl; }

/* What its communicator may still use is not freed: the device fails, with the message that there is. */
static void group_stuck(void)
{
    char why[sizeof cuda.message];

    snprintf(why, sizeof why, "%s", ls_errmsg());
    cuda_fail(ls_fail(LS_EPEER, "%s", why[0] ? why : "cuda: NCCL does not end a communicator"));
}

static void nccl_close(struct device_group *g)
{
    struct device_group **at = &nccl_groups;

    if (!g) return;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    if (g->comm && g->state < GROUP_DESTROYING) nccl_end_begin(g, true);
    if (cuda.failed == LS_OK && g->end) {
        nccl_end_wait(g, CLOSE_SECONDS);
        if (!nccl_end_is_over(g)) group_stuck();
    }
    if (g->state != GROUP_FINISHED) g->state = GROUP_ABORTED;
    nccl_memory_closed(g);
    cuda.taken_nccl -= g->taken;
    cuda_row.free(g->scratch);
    if (g->end) nccl_end_leave(g);
    mem_free(g);
}

const struct device_collectives cuda_nccl = {
    .name = "NCCL",
    .choice = "nccl",
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
