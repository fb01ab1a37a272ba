/* ipc.c - groups of CUDA IPC: opened, finished and closed by their ranks together. See ipc.h. */
#include "device/cuda/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "base/mem.h"

static const double CLOSE_SECONDS = 2; /* that closing waits for a stream to pass what was enqueued */

struct ipc_functions ipc;
static struct device_group *groups;

static ls_status ipc_load(char *version, size_t room)
{
    int there = 0;
    cudaError_t e = cudaDeviceGetAttribute(&there, cudaDevAttrIpcEventSupport, cuda.gpu);

    snprintf(version, room, "CUDA IPC");
    if (e != cudaSuccess) return ls_fail(LS_EUNSUPPORTED, "CUDA IPC cannot be used: cudaDeviceGetAttribute: %s", cudaGetErrorString(e));
    return there ? LS_OK : ls_fail(LS_EUNSUPPORTED, "the driver has no CUDA IPC for this GPU");
}

/* *out: index of the GPU with that identity among those that this process sees; -1: none. */
static ls_status gpu_of(const char *identity, int *out)
{
    int count = 0;

    *out = -1;
    LS_TRY(cuda_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
    for (int k = 0; k < count && *out < 0; k++) {
        struct cudaDeviceProp p;
        char own[CUDA_IDENTITY];

        LS_TRY(cuda_check(cudaGetDeviceProperties(&p, k), "cudaGetDeviceProperties"));
        cuda_identity(&p, own);
        if (strcmp(own, identity) == 0) *out = k;
    }
    return LS_OK;
}

static ls_status ipc_reaches(const char *identity, bool *out)
{
    int gpu, can = 0;

    LS_TRY(gpu_of(identity, &gpu));
    if (gpu >= 0) LS_TRY(cuda_check(cudaDeviceCanAccessPeer(&can, cuda.gpu, gpu), "cudaDeviceCanAccessPeer"));
    *out = can;
    return LS_OK;
}

static ls_status find_functions(void)
{
    if (ipc.wait) return LS_OK;
    LS_TRY(cuda_driver_function("cuStreamWriteValue64", (void **)&ipc.write));
    return cuda_driver_function("cuStreamWaitValue64", (void **)&ipc.wait);
}

/* ---- the file ---- */

/* "process:descriptor": the file is open there until all ranks have mapped it. */
static ls_status ipc_id(char id[DEVICE_GROUP_ID])
{
    int fd = memfd_create("lockstep cuda ipc", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, sizeof(struct ipc_shared)) != 0) {
        ls_fail(LS_EIO, "CUDA IPC: a file in memory cannot be made: %s", strerror(errno));
        if (fd >= 0) close(fd);
        return LS_EIO;
    }
    snprintf(id, DEVICE_GROUP_ID, "%ld:%d", (long)getpid(), fd);
    return LS_OK;
}

static ls_status map_shared(struct device_group *g, const char *id)
{
    char path[64];
    long process;
    int at;

    if (sscanf(id, "%ld:%d", &process, &at) != 2) return ls_fail(LS_EINVAL, "CUDA IPC: '%s' names no group", id);
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", process, at);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return ls_fail(LS_EUNSUPPORTED,
                       "CUDA IPC: rank %d of a group cannot open %s, a file of its rank 0: %s; use launch.comm=host where ranks see "
                       "different processes",
                       g->rank, path, strerror(errno));
    g->shared = mmap(NULL, sizeof *g->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (g->shared != MAP_FAILED) return LS_OK;
    g->shared = NULL;
    return ls_fail(LS_ENOMEM, "CUDA IPC: %s cannot be mapped: %s", path, strerror(errno));
}

static void come_to(struct device_group *g, enum ipc_stage stage) { atomic_store(&g->shared->rank[g->rank].stage, (int)stage); }

static bool all_came_to(const struct device_group *g, enum ipc_stage stage)
{
    for (int r = 0; r < g->n; r++)
        if (atomic_load(&g->shared->rank[r].stage) < (int)stage) return false;
    return true;
}

/* ---- opening ---- */

static size_t own_buffer(void)
{
    size_t bytes = IPC_BUFFER_LEAST;

    while (bytes < IPC_BUFFER_MOST && 2 * bytes <= cuda.properties.totalGlobalMem / 4096) bytes *= 2;
    return bytes;
}

static ls_status window_new(struct device_group *g)
{
    size_t bytes = IPC_BUFFERS * own_buffer();
    void *p = NULL;
    cudaError_t e = cudaMalloc(&p, bytes);

    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* this one is not kept */
        return cuda_no_memory(MEM_COMMUNICATION, bytes);
    }
    LS_TRY(cuda_check(e, "cudaMalloc"));
    g->window[g->rank] = p;
    cuda.taken_ipc += g->taken = bytes;
    g->shared->rank[g->rank].buffer = bytes / IPC_BUFFERS;
    return cuda_check(cudaIpcGetMemHandle(&g->shared->rank[g->rank].window, p), "cudaIpcGetMemHandle");
}

static ls_status words_pin(struct device_group *g)
{
    size_t bytes = ((size_t)g->n * (size_t)g->n * IPC_WORDS * sizeof(uint64_t) + WORDS_PAGE - 1) / WORDS_PAGE * WORDS_PAGE;
    void *at = NULL;

    LS_TRY(cuda_check(cudaHostRegister(g->shared->word, bytes, cudaHostRegisterMapped), "cudaHostRegister"));
    g->pinned = true;
    LS_TRY(cuda_check(cudaHostGetDevicePointer(&at, g->shared->word, 0), "cudaHostGetDevicePointer"));
    g->words = (uintptr_t)at;
    return LS_OK;
}

static ls_status group_begin(struct device_group *g, const char *id)
{
    LS_TRY(find_functions());
    LS_TRY(map_shared(g, id));
    LS_TRY(words_pin(g));
    LS_TRY(window_new(g));
    LS_TRY(flight_event(&g->ended));
    come_to(g, IPC_JOINED);
    return LS_OK;
}

/* Rank 0 closes the file once all have mapped it. */
static int file_of(const struct device_group *g, const char *id)
{
    int fd = -1;

    return g->rank == 0 && sscanf(id, "%*d:%d", &fd) == 1 ? fd : -1;
}

static ls_status ipc_open(const char id[DEVICE_GROUP_ID], const struct device_group_spec *s, struct device_group **out)
{
    struct device_stream *stream;
    struct device_group *g;

    LS_TRY(cuda_failed());
    LS_TRY(cuda_stream(NULL, &stream)); /* the GPU is chosen */
    ASSERT(s->n <= IPC_RANKS);
    if (!(g = mem_zalloc(MEM_OTHER, sizeof *g))) return LS_ENOMEM;
    g->rank = s->rank;
    g->n = s->n;
    g->file = file_of(g, id);
    g->next = groups;
    groups = *out = g; /* closed by the caller, whatever happens */
    return group_begin(g, id);
}

static ls_status windows_open(struct device_group *g)
{
    g->buffer = IPC_BUFFER_MOST;
    for (int r = 0; r < g->n; r++) g->buffer = MIN(g->buffer, (size_t)g->shared->rank[r].buffer);
    for (int r = 0; r < g->n; r++) {
        void *p = NULL;

        if (r == g->rank) continue;
        LS_TRY(cuda_check(cudaIpcOpenMemHandle(&p, g->shared->rank[r].window, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle"));
        g->window[r] = p;
    }
    return LS_OK;
}

static void file_close(struct device_group *g)
{
    if (g->file >= 0) close(g->file);
    g->file = -1;
}

static ls_status ipc_opened(struct device_group *g)
{
    LS_TRY(cuda_failed());
    if (g->state == IPC_OPENING) {
        if (!all_came_to(g, IPC_JOINED)) return LS_BUSY;
        file_close(g);
        LS_TRY(windows_open(g));
        come_to(g, IPC_MAPPED);
        g->state = IPC_OPENED;
    }
    if (g->state == IPC_OPENED && !all_came_to(g, IPC_MAPPED)) return LS_BUSY;
    g->state = IPC_OPEN;
    return LS_OK;
}

static size_t ipc_taken(void) { return cuda.taken_ipc; }

/* ---- failures ---- */

/* A rank that has failed no longer waits for what it sums or copies, and reports that it is done with it. */
bool ipc_spoiled(void *group)
{
    const struct device_group *g = group;

    for (int r = 0; r < g->n; r++)
        if (atomic_load(&g->shared->rank[r].failed)) return true;
    return false;
}

/* No stream of this process waits for another rank any more. Peers that go on may write their numbers over this one: until it has been
 * seen, it is written again. */
static void words_release(struct device_group *g)
{
    for (int r = 0; r < g->n; r++)
        for (int w = 0; w < IPC_WORDS; w++) __atomic_store_n(ipc_word_of(g, g->rank, r, w), (uint64_t)INT64_MAX / 2, __ATOMIC_RELEASE);
}

static void group_abort(struct device_group *g)
{
    if (!g->shared || g->state >= IPC_CLOSING) return;
    atomic_store(&g->shared->rank[g->rank].failed, 1);
    words_release(g);
}

void ipc_abort(void)
{
    for (struct device_group *g = groups; g; g = g->next) group_abort(g);
}

/* ---- closing ---- */

/* What finishing returns while it waits for the others: not for one whose device has failed, or that has closed the group meanwhile. The
 * thread's message is that of an earlier failure, if there was one: it is kept. */
static ls_status finish_waits(const struct device_group *g)
{
    for (int r = 0; r < g->n; r++)
        if (atomic_load(&g->shared->rank[r].failed)) return LS_EPEER;
    return LS_BUSY;
}

static ls_status windows_close(struct device_group *g)
{
    for (int r = 0; r < g->n; r++) {
        if (r == g->rank || !g->window[r]) continue;
        LS_TRY(cuda_check(cudaIpcCloseMemHandle(g->window[r]), "cudaIpcCloseMemHandle"));
        g->window[r] = NULL;
    }
    return LS_OK;
}

/* A window is freed once no rank has it mapped. */
static ls_status group_end(struct device_group *g)
{
    LS_TRY(cuda_check(cudaFree(g->window[g->rank]), "cudaFree"));
    g->window[g->rank] = NULL;
    cuda.taken_ipc -= g->taken;
    LS_TRY(cuda_check(cudaHostUnregister(g->shared->word), "cudaHostUnregister"));
    g->pinned = false;
    return cuda_check(cudaEventDestroy(g->ended), "cudaEventDestroy");
}

static ls_status ipc_finish(struct device_group *g)
{
    LS_TRY(cuda_failed());
    if (g->state == IPC_OPEN) {
        LS_TRY(cuda_row.sync());
        come_to(g, IPC_DONE);
        g->state = IPC_FINISHING;
    }
    if (g->state == IPC_FINISHING) {
        if (!all_came_to(g, IPC_DONE)) return finish_waits(g);
        LS_TRY(windows_close(g));
        come_to(g, IPC_UNMAPPED);
        g->state = IPC_CLOSING;
    }
    if (g->state == IPC_CLOSING) {
        if (!all_came_to(g, IPC_UNMAPPED)) return finish_waits(g);
        g->state = IPC_FINISHED;
        return group_end(g);
    }
    return LS_OK;
}

static bool stream_is_open(const struct device_stream *s)
{
    const struct device_stream *open = cuda.streams;

    while (open && open != s) open = open->next;
    return open || s == &cuda.fallback;
}

/* A stream that was freed was past all that it was given. After a failure none is freed, and a call that failed midway has recorded no
 * event. */
static bool group_drained(const struct device_group *g)
{
    if (!g->call || !stream_is_open(g->on)) return true;
    return (cuda.failed < 0 ? cudaStreamQuery(g->on->handle) : cudaEventQuery(g->ended)) != cudaErrorNotReady;
}

/* Until the streams are past what the group was given, which may wait for what other groups were given. */
static void group_drain(const struct device_group *g)
{
    static const struct timespec nap = { .tv_nsec = 100000 };
    double began = cuda_now();

    while (cuda_now() - began < CLOSE_SECONDS && !group_drained(g)) {
        for (struct device_group *other = groups; other; other = other->next)
            if (other->shared && atomic_load(&other->shared->rank[other->rank].failed)) words_release(other);
        nanosleep(&nap, NULL);
    }
}

/* What a rank that did not finish may still read is not freed. */
static void ipc_close(struct device_group *g)
{
    struct device_group **at = &groups;

    if (!g) return;
    file_close(g);
    if (g->state != IPC_FINISHED) {
        group_abort(g);
        if (g->shared && g->ended) group_drain(g);
    }
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    if (g->shared && !g->pinned) munmap(g->shared, sizeof *g->shared);
    mem_free(g);
}

const struct device_collectives cuda_ipc = {
    .name = "CUDA IPC",
    .choice = "ipc",
    .one_machine = true,
    .most = IPC_RANKS,
    .shares = true,
    .reaches = ipc_reaches,
    .load = ipc_load,
    .takes = ipc_takes,
    .id = ipc_id,
    .open = ipc_open,
    .opened = ipc_opened,
    .taken = ipc_taken,
    .finish = ipc_finish,
    .close = ipc_close,
    .enqueue = ipc_enqueue,
};
