/* cuda.c - the CUDA device's row: which GPU, memory, streams, events. See cuda.h. */
#include "device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"

struct cuda_state cuda;

double cuda_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- failures ---- */

ls_status cuda_fail(ls_status st)
{
    if (cuda.failed < 0) return cuda_failed();
    cuda.failed = st;
    snprintf(cuda.message, sizeof cuda.message, "%s", ls_errmsg());
    /* no stream waits for the host any more */
    if (cuda.fallback.ended) *(volatile uint32_t *)cuda.fallback.ended = cuda.fallback.given;
    for (struct device_stream *s = cuda.streams; s; s = s->next) *(volatile uint32_t *)s->ended = s->given;
    flights_fail();
    nccl_abort();
    ipc_abort();
    return cuda_failed();
}

ls_status cuda_failed(void) { return cuda.failed < 0 ? ls_fail(cuda.failed, "%s", cuda.message) : LS_OK; }

/* Restarting may help where the GPU has failed: exit code 3. */
ls_status cuda_check(cudaError_t e, const char *call)
{
    if (e == cudaSuccess) return LS_OK;
    return cuda_fail(ls_fail(e == cudaErrorMemoryAllocation ? LS_ENOMEM : LS_EPEER, "cuda: GPU %d (%s): %s: %s (%s)", cuda.gpu,
                             cuda.properties.name, call, cudaGetErrorString(e), cudaGetErrorName(e)));
}

ls_status cuda_check_driver(int result, const char *call)
{
    if (!result) return LS_OK;
    return cuda_fail(ls_fail(LS_EPEER, "cuda: GPU %d (%s): %s: error %d", cuda.gpu, cuda.properties.name, call, result));
}

/* ---- which GPU ---- */

static void cuda_alone(void) { cuda.alone = true; }

/* What the driver reads in its first call. Other values, which other programs ask for, could let ranks wait for ever. */
static void set_environment(void)
{
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");

    /* As many hardware queues as there can be: streams that share one wait for each other. */
    if (!queues || atoi(queues) < 32) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    /* All kernels are loaded at once. By default a kernel is loaded when it is first launched, and the driver waits for all streams then
     * (CUDA C++ Programming Guide, "Lazy Loading"), one of which may be waiting for what this thread does after the launch. */
    if (!cuda.alone) setenv("CUDA_MODULE_LOADING", "EAGER", 1);
}

static ls_status check_driver(void)
{
    int driver = 0;

    set_environment();
    cudaError_t e = cudaDriverGetVersion(&driver);
    if (e != cudaSuccess) return ls_fail(LS_EUNSUPPORTED, "the version of the NVIDIA driver is not known: %s", cudaGetErrorString(e));
    if (!driver) return ls_fail(LS_EUNSUPPORTED, "there is no NVIDIA driver on this machine (libcuda.so.1 is not found)");
    if (driver / 1000 < CUDART_VERSION / 1000)
        return ls_fail(LS_EUNSUPPORTED, "the NVIDIA driver is too old: it supports CUDA %d.%d; this module needs a driver for CUDA %d.0",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000);
    return LS_OK;
}

static ls_status cuda_count(int *count)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    *count = 0;
    LS_TRY(check_driver());
    cudaError_t e = cudaGetDeviceCount(count);
    if (e == cudaErrorNoDevice || (e == cudaSuccess && !*count))
        return ls_fail(LS_EUNSUPPORTED, "there is no GPU%s%s%s", visible ? " in CUDA_VISIBLE_DEVICES='" : " on this machine",
                       visible ? visible : "", visible ? "'" : "");
    if (e != cudaSuccess) return ls_fail(LS_EUNSUPPORTED, "the GPUs cannot be counted: %s", cudaGetErrorString(e));
    return LS_OK;
}

void cuda_identity(const struct cudaDeviceProp *p, char out[CUDA_IDENTITY])
{
    int at = snprintf(out, CUDA_IDENTITY, "GPU-");

    for (size_t k = 0; k < sizeof p->uuid.bytes; k++)
        at += snprintf(out + at, CUDA_IDENTITY - (size_t)at, "%02x", (unsigned char)p->uuid.bytes[k]);
}

static ls_status cuda_choose(int local_rank, struct device_facts *out)
{
    int count;

    LS_TRY(cuda_count(&count));
    if (!cuda.open) cuda.gpu = local_rank % count;
    LS_TRY(cuda_check(cudaGetDeviceProperties(&cuda.properties, cuda.gpu), "cudaGetDeviceProperties"));
    *out = (struct device_facts){ .memory = cuda.properties.totalGlobalMem, .processors = count, .generation = cuda.properties.major };
    snprintf(out->name, sizeof out->name, "%s", cuda.properties.name);
    cuda_identity(&cuda.properties, out->identity);
    return LS_OK;
}

static void cuda_configure(const struct device_settings *s)
{
    cuda.settings = *s;
    snprintf(cuda.tuned, sizeof cuda.tuned, "%s", s->tuned ? s->tuned : "");
    cuda.settings.tuned = cuda.tuned[0] ? cuda.tuned : NULL;
    snprintf(cuda.libraries, sizeof cuda.libraries, "%s", s->libraries ? s->libraries : "");
    cuda.settings.libraries = cuda.libraries;
}

ls_status cuda_driver_function(const char *name, void **out)
{
    enum cudaDriverEntryPointQueryResult found;
    void *at = NULL;

    LS_TRY(cuda_check(cudaGetDriverEntryPointByVersion(name, &at, 12000, cudaEnableDefault, &found), "cudaGetDriverEntryPointByVersion"));
    if (found != cudaDriverEntryPointSuccess || !at)
        return cuda_fail(ls_fail(LS_EUNSUPPORTED, "cuda: the NVIDIA driver has no %s; update it", name));
    *out = at;
    return LS_OK;
}

static ls_status make_words(void)
{
    void *words = NULL;

    LS_TRY(cuda_check(cudaHostAlloc(&words, STREAMS_MOST * sizeof *cuda.words, cudaHostAllocDefault), "cudaHostAlloc"));
    memset(words, 0, STREAMS_MOST * sizeof *cuda.words);
    cuda.words = words;
    return LS_OK;
}

static ls_status stream_make(struct device_stream *s, const char *name)
{
    struct device_stream made = { 0 };
    int k = 0;

    while (k < STREAMS_MOST && cuda.word_used[k]) k++;
    if (k == STREAMS_MOST) return ls_fail(LS_EUNSUPPORTED, "cuda: no stream is left: %d are open", STREAMS_MOST);
    LS_TRY(cuda_check(cudaStreamCreateWithFlags(&made.handle, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
    snprintf(made.name, sizeof made.name, "%s", name);
    cuda.word_used[made.word = k] = true;
    made.ended = cuda.words + k;
    made.given = *made.ended; /* the word counted the operations of an earlier stream */
    *s = made;
    return LS_OK;
}

static ls_status cuda_open_gpu(void)
{
    size_t available = 0, all = 0;

    set_environment();
    if (!cuda.properties.name[0]) LS_TRY(cuda_check(cudaGetDeviceProperties(&cuda.properties, cuda.gpu), "cudaGetDeviceProperties"));
    LS_TRY(cuda_check(cudaSetDevice(cuda.gpu), "cudaSetDevice"));
    LS_TRY(cuda_check(cudaMemGetInfo(&available, &all), "cudaMemGetInfo"));
    cuda.taken = all - available;
    LS_TRY(cuda_driver_function("cuStreamWaitValue32", (void **)&cuda.wait_value));
    LS_TRY(make_words());
    return stream_make(&cuda.fallback, "default");
}

static ls_status cuda_open(void)
{
    LS_TRY(cuda_failed());
    if (cuda.open) return LS_OK;
    cuda.open = true;
    return cuda_open_gpu();
}

ls_status cuda_stream(struct device_stream *s, struct device_stream **out)
{
    LS_TRY(cuda_open());
    *out = s ? s : &cuda.fallback;
    return LS_OK;
}

static ls_status cuda_taken(size_t *bytes)
{
    LS_TRY(cuda_open());
    *bytes = cuda.taken;
    return LS_OK;
}

/* ---- memory ---- */

struct memory_block {
    char *at;
    size_t bytes;
    enum mem_category category;
};

static struct {
    struct memory_block *at;
    int n, room;
} cuda_blocks;

static ls_status blocks_make_room(void)
{
    int room = cuda_blocks.room ? 2 * cuda_blocks.room : 64;
    struct memory_block *grown =
        cuda_blocks.n < cuda_blocks.room ? cuda_blocks.at : mem_resize(cuda_blocks.at, (size_t)room * sizeof *grown);

    if (!grown) return LS_ENOMEM;
    if (cuda_blocks.n == cuda_blocks.room) cuda_blocks.room = room;
    cuda_blocks.at = grown;
    return LS_OK;
}

ls_status cuda_memory_left(size_t *bytes)
{
    size_t all = 0;

    return cuda_check(cudaMemGetInfo(bytes, &all), "cudaMemGetInfo");
}

ls_status cuda_no_memory(enum mem_category c, size_t bytes)
{
    size_t available = 0, all = 0;
    char groups[64] = "", graphs[64] = "";

    cudaMemGetInfo(&available, &all);
    if (cuda.taken_nccl) snprintf(groups, sizeof groups, "; NCCL's communicators took %zu", cuda.taken_nccl);
    if (cuda.taken_ipc) snprintf(groups, sizeof groups, "; the windows of CUDA IPC took %zu", cuda.taken_ipc);
    if (cuda.taken_graphs) snprintf(graphs, sizeof graphs, "; CUDA graphs took %zu", cuda.taken_graphs);
    return ls_fail(LS_ENOMEM,
                   "out of memory on GPU %d (%s): %zu bytes needed for %s, %zu of %zu are free; the CUDA context and other processes "
                   "took %zu before the first allocation%s%s",
                   cuda.gpu, cuda.properties.name, bytes, mem_category_name(c), available, all, cuda.taken, groups, graphs);
}

static ls_status memory_new(enum mem_category c, size_t bytes, void **out)
{
    if (c == MEM_COMMUNICATION && nccl_memory_used()) return nccl_memory_new(bytes, out);
    cudaError_t e = cudaMalloc(out, MAX(bytes, (size_t)1));
    if (e != cudaErrorMemoryAllocation) return cuda_check(e, "cudaMalloc");
    cudaGetLastError(); /* this one is not kept */
    return cuda_no_memory(c, bytes);
}

static void *cuda_alloc(enum mem_category c, size_t bytes)
{
    void *p = NULL;

    ASSERT(!cuda.capturing);
    if (cuda_open() < 0 || flights_finish() < 0 || blocks_make_room() < 0 || mem_take_device(c, bytes) < 0) return NULL;
    if (memory_new(c, bytes, &p) < 0) {
        mem_give_device(c, bytes);
        return NULL;
    }
    cuda_blocks.at[cuda_blocks.n++] = (struct memory_block){ p, bytes, c };
    return p;
}

static ls_status cuda_sync(void)
{
    LS_TRY(cuda_failed());
    if (!cuda.open) return LS_OK;
    LS_TRY(flights_wait_stream(&cuda.fallback));
    for (const struct device_stream *s = cuda.streams; s; s = s->next) LS_TRY(flights_wait_stream(s));
    return flights_finish();
}

static void cuda_free(void *p)
{
    int k = cuda_blocks.n - 1;

    if (!p) return;
    while (k >= 0 && cuda_blocks.at[k].at != p) k--;
    ASSERT(k >= 0);
    if (cuda_sync() == LS_OK && !nccl_memory_free(p)) cuda_check(cudaFree(p), "cudaFree");
    mem_give_device(cuda_blocks.at[k].category, cuda_blocks.at[k].bytes);
    cuda_blocks.at[k] = cuda_blocks.at[--cuda_blocks.n];
}

/* ---- streams ---- */

static ls_status cuda_stream_new(const char *name, struct device_stream **out)
{
    struct device_stream *s;

    LS_TRY(cuda_open());
    s = mem_zalloc(MEM_OTHER, sizeof *s);
    if (!s) return LS_ENOMEM;
    ls_status st = stream_make(s, name);
    if (st < 0) {
        mem_free(s);
        return st;
    }
    s->next = cuda.streams;
    cuda.streams = s;
    *out = s;
    return LS_OK;
}

static ls_status cuda_stream_sync(struct device_stream *stream)
{
    struct device_stream *s;

    LS_TRY(cuda_stream(stream, &s));
    return flights_wait_stream(s);
}

static void cuda_stream_free(struct device_stream *s)
{
    struct device_stream **at = &cuda.streams;

    if (!s) return;
    if (cuda_sync() < 0) return; /* flights may name it */
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    for (int k = 0; k < STREAM_MARKS; k++)
        if (s->mark[k]) cuda_check(cudaEventDestroy(s->mark[k]), "cudaEventDestroy");
    cuda_check(cudaStreamDestroy(s->handle), "cudaStreamDestroy");
    cuda.word_used[s->word] = false;
    mem_free(s);
}

/* ---- events ---- */

static ls_status cuda_event_new(struct device_event **out)
{
    struct device_event *e;

    LS_TRY(cuda_open());
    e = mem_zalloc(MEM_OTHER, sizeof *e);
    if (!e) return LS_ENOMEM;
    ls_status st = cuda_check(cudaEventCreateWithFlags(&e->handle, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    if (st < 0)
        mem_free(e);
    else
        *out = e;
    return st;
}

static void cuda_event_free(struct device_event *e)
{
    if (!e) return;
    if (cuda.failed == LS_OK) cuda_check(cudaEventDestroy(e->handle), "cudaEventDestroy");
    mem_free(e);
}

static ls_status cuda_event_record(struct device_event *e, struct device_stream *stream)
{
    struct device_stream *s;

    LS_TRY(cuda_stream(stream, &s));
    LS_TRY(flight_room(s));
    e->recorded = true;
    if (cuda.capturing)
        return cuda_check(cudaEventRecordWithFlags(e->handle, s->handle, cudaEventRecordExternal), "cudaEventRecordWithFlags");
    return cuda_check(cudaEventRecord(e->handle, s->handle), "cudaEventRecord");
}

static ls_status cuda_event_wait(struct device_event *e, struct device_stream *stream)
{
    struct device_stream *s;

    LS_TRY(cuda_stream(stream, &s));
    if (!e->recorded) return LS_OK;
    LS_TRY(flight_room(s));
    return cuda_check(cudaStreamWaitEvent(s->handle, e->handle, cuda.capturing ? cudaEventWaitExternal : cudaEventWaitDefault),
                      "cudaStreamWaitEvent");
}

static ls_status cuda_event_sync(struct device_event *e) { return e->recorded ? flights_wait(e->handle) : cuda_failed(); }

/* ---- kernels ---- */

static ls_status cuda_kernel_begin(struct device_stream *stream, const char *name, const struct device_access *access, int accesses)
{
    struct device_stream *s;

    (void)name;
    (void)access;
    (void)accesses;
    return cuda_stream(stream, &s);
}

void *cuda_launch_stream(struct device_stream *s)
{
    if (!s) s = &cuda.fallback;
    return flight_room(s) < 0 ? NULL : s->handle;
}

void cuda_launch_failed(const char *kernel, int error, const char *text)
{
    cuda_fail(ls_fail(error == cudaErrorMemoryAllocation ? LS_ENOMEM : LS_EPEER, "cuda: GPU %d (%s): launch of %s: %s (%s)", cuda.gpu,
                      cuda.properties.name, kernel, text, cudaGetErrorName((cudaError_t)error)));
}

static const struct device_collectives *const collectives[] = { &cuda_nccl, &cuda_ipc, NULL };

const struct device cuda_row = {
    .name = "cuda",
    .kernels = "cuda",
    .accelerator = true,
    .comparison = "cuda",
    .collectives = collectives,
    .alone = cuda_alone,
    .count = cuda_count,
    .choose = cuda_choose,
    .configure = cuda_configure,
    .taken = cuda_taken,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .stream_sync = cuda_stream_sync,
    .sync = cuda_sync,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .fill = cuda_fill,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .copy = cuda_copy,
    .enqueue = cuda_enqueue,
    .kernel_begin = cuda_kernel_begin,
    .graphs = cuda_graphs,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .graphs_taken = cuda_graphs_taken,
};
