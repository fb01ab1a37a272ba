/* stub_calls.c - the functions of the CUDA runtime: the machine, copies and fills. See stub.h. */
#include "stub_graph.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/check.h"
#include "emulator.h"

bool stub_run_fails(void); /* stub_state.c */

static const struct device *const stub_calls_queue = &device_check;

static bool context;
static int current;
static pthread_t first_thread; /* the one that made the context */
static _Thread_local bool thread_chosen;

int stub_gpu(void) { return stub_settings()->visible[current]; }

void stub_need_context(const char *call)
{
    if (!context) stub_die("%s: before cudaSetDevice", call);
}

static cudaError_t stub_calls_ended(cudaError_t e) { return stub_set_last(e), e; }

/* ---- the machine ---- */

cudaError_t cudaDriverGetVersion(int *version)
{
    cudaError_t e = stub_call("cudaDriverGetVersion", false);

    *version = stub_settings()->driver;
    return e;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t e = stub_call("cudaGetDeviceCount", false);

    *count = stub_settings()->nvisible;
    if (e == cudaSuccess && stub_settings()->driver < CUDART_VERSION) return stub_calls_ended(cudaErrorInsufficientDriver);
    return e == cudaSuccess && !*count ? stub_calls_ended(cudaErrorNoDevice) : e;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    cudaError_t e = stub_call("cudaGetDeviceProperties", false);

    if (e != cudaSuccess) return e;
    if (device < 0 || device >= stub_settings()->nvisible) return stub_calls_ended(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "stub GPU %d", stub_settings()->visible[device]);
    memset(p->uuid.bytes, 0x11 * stub_settings()->visible[device], sizeof p->uuid.bytes);
    p->totalGlobalMem = stub_settings()->memory;
    p->major = stub_settings()->capability;
    p->multiProcessorCount = 132;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    cudaError_t e = stub_call("cudaDeviceGetAttribute", false);

    if (attr != cudaDevAttrIpcEventSupport) stub_die("cudaDeviceGetAttribute: attribute %d", (int)attr);
    if (device < 0 || device >= stub_settings()->nvisible) return stub_calls_ended(cudaErrorInvalidDevice);
    *value = stub_settings()->ipc;
    return e;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    cudaError_t e = stub_call("cudaDeviceCanAccessPeer", false);

    if (device < 0 || device >= stub_settings()->nvisible || peer < 0 || peer >= stub_settings()->nvisible)
        return stub_calls_ended(cudaErrorInvalidDevice);
    *can = stub_settings()->peers && device != peer;
    return e;
}

void stub_need_thread(const char *call)
{
    if (!thread_chosen) stub_die("%s: on a thread that has not called cudaSetDevice: it would make a context on GPU 0", call);
}

/* Each thread chooses its GPU. Calls of threads other than the first one are not counted: their order is not fixed. */
cudaError_t cudaSetDevice(int device)
{
    cudaError_t e = cudaSuccess;

    thread_chosen = true;
    if (context && !pthread_equal(pthread_self(), first_thread)) {
        if (device != current) stub_die("cudaSetDevice: %d on a thread of a rank that uses GPU %d", device, current);
        return cudaSuccess;
    }
    first_thread = pthread_self();
    e = stub_call("cudaSetDevice", false);
    if (e != cudaSuccess) return e;
    if (device < 0 || device >= stub_settings()->nvisible) return stub_calls_ended(cudaErrorInvalidDevice);
    if (context && device != current) stub_die("cudaSetDevice: from GPU %d to %d; a rank uses one", current, device);
    current = device;
    if (!context) check_set_seed(stub_settings()->seed << 8 | (uint64_t)stub_settings()->visible[device]);
    emulator_seed(stub_settings()->seed);
    context = true;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    cudaError_t e = stub_call("cudaMemGetInfo", false);

    stub_need_context("cudaMemGetInfo");
    *left = stub_memory_left();
    *all = stub_settings()->memory;
    return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    default: return "an error of the stub";
    }
}

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    default: return "cudaErrorUnknown";
    }
}

/* ---- what streams run ---- */

enum { PENDING_MOST = 1024 };

struct queued {
    ls_status (*run)(void *args);
    bool begun;
    _Alignas(16) char args[];
};

/* After a failure no operation runs. */
static ls_status run_queued(void *args)
{
    struct queued *q = args;

    if (!q->begun && stub_run_fails()) return LS_OK;
    q->begun = true;
    return stub_fails() == cudaSuccess ? q->run(q->args) : LS_OK;
}

/* With so many operations that may all be pending a call blocks, which is a deadlock if one of them waits for the host. Operations without
 * arguments only list accesses. */
static void count_operation(const struct device_stream *s, const struct device_operation *o)
{
    struct CUstream_st *x = stub_streams();

    while (x && x->stream != s) x = x->next;
    if (!x || !o->bytes || stub_graph_runs()) return;
    if (x->given++ - x->ended >= PENDING_MOST)
        stub_die("%s: its stream may have %d pending operations: the call blocks", o->name, PENDING_MOST);
}

void stub_enqueue(struct device_stream *s, const struct device_operation *o)
{
    struct device_operation wrapped = *o;
    struct queued *q;

    if (stub_capture_operation(s, o)) return;
    if (!(q = calloc(1, sizeof *q + o->bytes))) stub_die("no memory");
    q->run = o->run;
    count_operation(s, o);
    if (o->bytes) memcpy(q->args, o->args, o->bytes);
    wrapped.run = run_queued;
    wrapped.args = q;
    wrapped.bytes = sizeof *q + o->bytes;
    for (int k = 0; k < o->pointers; k++) wrapped.pointer[k] += offsetof(struct queued, args);
    if (stub_calls_queue->enqueue(s, &wrapped) < 0) stub_die("%s: %s", o->name, ls_errmsg());
    free(q);
}

struct bytes_args {
    void *to;
    const void *from;
    size_t bytes;
    int byte;
};

static ls_status run_copy(void *args)
{
    const struct bytes_args *a = args;

    memcpy(a->to, a->from, a->bytes);
    return LS_OK;
}

static ls_status run_set(void *args)
{
    const struct bytes_args *a = args;

    memset(a->to, a->byte, a->bytes);
    return LS_OK;
}

static void need_device(const char *call, const void *p, size_t bytes)
{
    if (!check_block_of(p, bytes)) stub_die("%s: %p of %zu bytes is not, or not all, memory of cudaMalloc", call, p, bytes);
}

static void need_pinned(const char *call, const void *p, size_t bytes)
{
    if (!stub_is_pinned(p, bytes))
        stub_die("%s: %p of %zu bytes is not, or not all, pinned: with pageable memory the copy would not be asynchronous", call, p, bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    static const char call[] = "cudaMemcpyAsync";
    struct device_stream *s = stub_stream(stream, call);
    cudaError_t e = stub_call(call, false);
    struct bytes_args a = { to, from, bytes, 0 };
    struct device_access touched[] = { { .data = to, .bytes = bytes, .write = true }, { .data = from, .bytes = bytes } };
    struct device_operation o = { .name = "copy", .run = run_copy, .args = &a, .bytes = sizeof a,
                                  .access = { touched[0], touched[1] }, .accesses = 2 };

    if (e != cudaSuccess) return e;
    if (!bytes) stub_die("%s: of 0 bytes", call);
    if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyDeviceToDevice)
        stub_die("%s: direction %d", call, (int)kind);
    (kind == cudaMemcpyDeviceToHost ? need_pinned : need_device)(call, to, bytes);
    (kind == cudaMemcpyHostToDevice ? need_pinned : need_device)(call, from, bytes);
    if (kind == cudaMemcpyDeviceToDevice && (char *)to < (const char *)from + bytes && (const char *)from < (char *)to + bytes)
        stub_die("%s: the bytes overlap", call);
    if (kind != cudaMemcpyDeviceToHost) o.pointer[o.pointers++] = offsetof(struct bytes_args, to);
    if (kind != cudaMemcpyHostToDevice) o.pointer[o.pointers++] = offsetof(struct bytes_args, from);
    stub_enqueue(s, &o);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    static const char call[] = "cudaMemsetAsync";
    struct device_stream *s = stub_stream(stream, call);
    cudaError_t e = stub_call(call, false);
    struct bytes_args a = { to, NULL, bytes, byte };

    if (e != cudaSuccess) return e;
    if (!bytes) stub_die("%s: of 0 bytes", call);
    need_device(call, to, bytes);
    stub_enqueue(s, &(struct device_operation){ .name = "fill", .run = run_set, .args = &a, .bytes = sizeof a,
                                                .pointer = { offsetof(struct bytes_args, to) }, .pointers = 1,
                                                .access = { { .data = to, .bytes = bytes, .write = true } }, .accesses = 1 });
    return cudaSuccess;
}
