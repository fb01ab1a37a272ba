/* test_cuda_contract.c - the stub of the CUDA runtime with callers that break the contract: each ends with one line that says why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "helper_child.h"
#include "stub.h"

enum { BYTES = 1000, BROKEN = 97 };

/* The emulator is not linked: nothing here launches a kernel. */
void emulator_seed(uint64_t seed);
void emulator_seed(uint64_t seed) { (void)seed; }

static char *device, *other, *pinned;
static char pageable[BYTES];
static cudaStream_t cuda_contract_stream;
static cudaEvent_t event;

static void cuda_contract_check(cudaError_t e)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(e));
        _exit(1);
    }
}

static void cuda_contract_open_gpu(void)
{
    cuda_contract_check(cudaSetDevice(0));
    cuda_contract_check(cudaMalloc((void **)&device, BYTES));
    cuda_contract_check(cudaMalloc((void **)&other, BYTES));
    cuda_contract_check(cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocDefault));
    cuda_contract_check(cudaStreamCreateWithFlags(&cuda_contract_stream, cudaStreamNonBlocking));
    cuda_contract_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
}

static void copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    cuda_contract_check(cudaMemcpyAsync(to, from, bytes, kind, cuda_contract_stream));
}

static void pageable_source(void) { copy(device, pageable, BYTES, cudaMemcpyHostToDevice); }
static void pageable_target(void) { copy(pageable, device, BYTES, cudaMemcpyDeviceToHost); }
static void pinned_end(void) { copy(device, pinned + 1, BYTES, cudaMemcpyHostToDevice); }
static void wrong_direction(void) { copy(pinned, device, BYTES, cudaMemcpyHostToDevice); }
static void device_end(void) { copy(device + 1, pinned, BYTES, cudaMemcpyHostToDevice); }
static void overlap(void) { copy(device, device + 10, BYTES - 10, cudaMemcpyDeviceToDevice); }
static void no_bytes(void) { copy(device, pinned, 0, cudaMemcpyHostToDevice); }
static void default_stream(void) { cudaMemsetAsync(device, 0, BYTES, NULL); }

static void use_after_free(void)
{
    cuda_contract_check(cudaFree(other));
    cuda_contract_check(cudaMemsetAsync(other, 0, BYTES, cuda_contract_stream));
}

static void free_twice(void)
{
    cuda_contract_check(cudaFree(other));
    cudaFree(other);
}

static void free_within(void) { cudaFree(device + 8); }

static void destroyed_stream(void)
{
    cuda_contract_check(cudaStreamDestroy(cuda_contract_stream));
    cudaMemsetAsync(device, 0, BYTES, cuda_contract_stream);
}

static void destroyed_event(void)
{
    cuda_contract_check(cudaEventDestroy(event));
    cudaEventRecord(event, cuda_contract_stream);
}

static void foreign_event(void) { cudaEventRecord((cudaEvent_t)(void *)pinned, cuda_contract_stream); }

static void wait_for_host(void)
{
    int (*wait)(cudaStream_t, unsigned long long, uint32_t, unsigned);
    enum cudaDriverEntryPointQueryResult found;
    void *at;

    cuda_contract_check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &at, 12000, cudaEnableDefault, &found));
    memcpy(&wait, &at, sizeof wait);
    memset(pinned, 0, 4);
    wait(cuda_contract_stream, (uintptr_t)pinned, 1, 0);
}

static void free_while_waiting(void)
{
    wait_for_host();
    cudaFree(other);
}

static void full_stream(void)
{
    for (int i = 0; i < 1025; i++)
        cuda_contract_check(cudaMemsetAsync(device, 0, BYTES, cuda_contract_stream));
}

static void second_gpu(void) { cudaSetDevice(1); }

static void right(void)
{
    cudaError_t e;
    int rounds = 0;

    memset(pinned, 5, BYTES);
    copy(device, pinned, BYTES, cudaMemcpyHostToDevice);
    copy(other, device, BYTES, cudaMemcpyDeviceToDevice);
    cuda_contract_check(cudaMemsetAsync(other, 7, 10, cuda_contract_stream));
    copy(pinned, other, BYTES, cudaMemcpyDeviceToHost);
    cuda_contract_check(cudaEventRecord(event, cuda_contract_stream));
    while ((e = cudaEventQuery(event)) == cudaErrorNotReady)
        rounds++;
    cuda_contract_check(e);
    if (pinned[9] != 7 || pinned[10] != 5 || rounds > 100) _exit(2);
}

typedef void breaking_fn(void);

static void untimed_event(void)
{
    cudaEvent_t events[2];
    float milliseconds;

    cuda_contract_check(cudaEventCreateWithFlags(&events[0], cudaEventDefault));
    cuda_contract_check(cudaEventCreateWithFlags(&events[1], cudaEventDisableTiming));
    cudaEventElapsedTime(&milliseconds, events[0], events[1]);
}

static void event_before_its_record(void)
{
    cudaEvent_t timed;
    float milliseconds;

    cuda_contract_check(cudaEventCreateWithFlags(&timed, cudaEventDefault));
    cudaEventElapsedTime(&milliseconds, timed, timed);
}

/* ---- captures and graphs ---- */

static void begin(void) { cuda_contract_check(cudaStreamBeginCapture(cuda_contract_stream, cudaStreamCaptureModeThreadLocal)); }

static cudaGraphExec_t graph_of_capture(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    cuda_contract_check(cudaStreamEndCapture(cuda_contract_stream, &graph));
    cuda_contract_check(cudaGraphInstantiate(&exec, graph, 0));
    cuda_contract_check(cudaGraphDestroy(graph));
    return exec;
}

static cudaStream_t second_stream(void)
{
    cudaStream_t s;

    cuda_contract_check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static void cuda_contract_finish(cudaStream_t s)
{
    cudaError_t e;

    while ((e = cudaStreamQuery(s)) == cudaErrorNotReady) {
    }
    cuda_contract_check(e);
}

/* A diamond: 1 in all bytes, then 2 and 3 in halves on two streams, then a copy of both. Nothing runs before the launch. */
static void capture_diamond(cudaStream_t side)
{
    cudaEvent_t joined;

    cuda_contract_check(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    begin();
    cuda_contract_check(cudaMemsetAsync(device, 1, BYTES, cuda_contract_stream));
    cuda_contract_check(cudaEventRecord(event, cuda_contract_stream));
    cuda_contract_check(cudaStreamWaitEvent(side, event, cudaEventWaitDefault));
    cuda_contract_check(cudaMemsetAsync(device, 2, BYTES / 2, side));
    cuda_contract_check(cudaEventRecord(joined, side));
    cuda_contract_check(cudaMemsetAsync(device + BYTES / 2, 3, BYTES / 2, cuda_contract_stream));
    cuda_contract_check(cudaStreamWaitEvent(cuda_contract_stream, joined, cudaEventWaitDefault));
    copy(other, device, BYTES, cudaMemcpyDeviceToDevice);
}

static void right_graph(void)
{
    cudaStream_t side = second_stream();

    memset(pinned, 9, BYTES);
    copy(other, pinned, BYTES, cudaMemcpyHostToDevice);
    capture_diamond(side);
    cudaGraphExec_t exec = graph_of_capture();
    copy(pinned, other, BYTES, cudaMemcpyDeviceToHost);
    cuda_contract_finish(cuda_contract_stream);
    if (pinned[0] != 9) _exit(2); /* it has not run */
    for (int k = 0; k < 3; k++) {
        cuda_contract_check(cudaMemsetAsync(device, 5, BYTES, cuda_contract_stream));
        cuda_contract_check(cudaGraphLaunch(exec, cuda_contract_stream));
        copy(pinned, other, BYTES, cudaMemcpyDeviceToHost);
        cuda_contract_finish(cuda_contract_stream);
        if (pinned[0] != 2 || pinned[BYTES - 1] != 3) _exit(3);
        memset(pinned, 9, BYTES);
    }
    cuda_contract_check(cudaGraphExecDestroy(exec));
}

/* Another stream waits for a point within the graph, and the graph for another stream, at each launch. */
static void external_events(void)
{
    cudaStream_t side = second_stream();
    cudaEvent_t filled;

    cuda_contract_check(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
    cuda_contract_check(cudaEventRecord(filled, side));
    begin();
    cuda_contract_check(cudaMemsetAsync(device, 1, BYTES, cuda_contract_stream));
    cuda_contract_check(cudaEventRecordWithFlags(event, cuda_contract_stream, cudaEventRecordExternal));
    cuda_contract_check(cudaStreamWaitEvent(cuda_contract_stream, filled, cudaEventWaitExternal));
    cuda_contract_check(cudaMemcpyAsync(device, other, BYTES / 2, cudaMemcpyDeviceToDevice, cuda_contract_stream));
    cudaGraphExec_t exec = graph_of_capture();
    for (int k = 4; k < 7; k++) {
        cuda_contract_check(cudaMemsetAsync(other, k, BYTES, side));
        cuda_contract_check(cudaEventRecord(filled, side));
        cuda_contract_check(cudaGraphLaunch(exec, cuda_contract_stream));
        cuda_contract_check(cudaStreamWaitEvent(side, event, cudaEventWaitDefault));
        cuda_contract_check(cudaMemcpyAsync(pinned, device + BYTES / 2, BYTES / 2, cudaMemcpyDeviceToHost, side));
        cuda_contract_finish(side);
        cuda_contract_finish(cuda_contract_stream);
        copy(pinned + BYTES / 2, device, BYTES / 2, cudaMemcpyDeviceToHost);
        cuda_contract_finish(cuda_contract_stream);
        if (pinned[0] != 1 || pinned[BYTES - 1] != k) _exit(2);
    }
}

/* A race that one stream would hide: the two halves overlap. */
static void race_in_graph(void)
{
    cudaStream_t side = second_stream();

    begin();
    cuda_contract_check(cudaEventRecord(event, cuda_contract_stream));
    cuda_contract_check(cudaStreamWaitEvent(side, event, cudaEventWaitDefault));
    cuda_contract_check(cudaMemsetAsync(device, 2, BYTES, side));
    cuda_contract_check(cudaMemsetAsync(device, 3, BYTES, cuda_contract_stream));
    cuda_contract_check(cudaEventRecord(event, side));
    cuda_contract_check(cudaStreamWaitEvent(cuda_contract_stream, event, cudaEventWaitDefault));
    cudaGraphExec_t exec = graph_of_capture();
    for (int k = 0; k < 20; k++) cuda_contract_check(cudaGraphLaunch(exec, cuda_contract_stream));
}

static void alloc_in_capture(void) { begin(), cudaMalloc((void **)&other, BYTES); }
static void free_in_capture(void) { begin(), cudaFree(other); }
static void pinned_in_capture(void) { begin(), cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocDefault); }
static void stream_query_in_capture(void) { begin(), cudaStreamQuery(cuda_contract_stream); }
static void event_query_in_capture(void) { begin(), cudaEventQuery(event); }
static void begin_twice(void) { begin(), begin(); }
static void launch_in_capture(void)
{
    begin();
    cudaGraphExec_t exec = graph_of_capture();
    begin();
    cudaGraphLaunch(exec, cuda_contract_stream);
}

static void global_mode(void) { cudaStreamBeginCapture(cuda_contract_stream, cudaStreamCaptureModeGlobal); }

static void end_without_begin(void)
{
    cudaGraph_t graph;

    cudaStreamEndCapture(cuda_contract_stream, &graph);
}

static void wait_outside(void)
{
    cuda_contract_check(cudaEventRecord(event, cuda_contract_stream));
    begin();
    cudaStreamWaitEvent(cuda_contract_stream, event, cudaEventWaitDefault);
}

static void captured_event(void)
{
    begin();
    cuda_contract_check(cudaMemsetAsync(device, 1, BYTES, cuda_contract_stream));
    cuda_contract_check(cudaEventRecord(event, cuda_contract_stream));
    graph_of_capture();
    cudaStreamWaitEvent(cuda_contract_stream, event, cudaEventWaitDefault);
}

static void query_captured_event(void)
{
    begin();
    cuda_contract_check(cudaEventRecord(event, cuda_contract_stream));
    graph_of_capture();
    cudaEventQuery(event);
}

static void time_captured_event(void)
{
    cudaEvent_t timed;
    float milliseconds;

    cuda_contract_check(cudaEventCreateWithFlags(&timed, cudaEventDefault));
    cuda_contract_check(cudaEventRecord(timed, cuda_contract_stream));
    begin();
    cuda_contract_check(cudaEventRecord(timed, cuda_contract_stream));
    graph_of_capture();
    cudaEventElapsedTime(&milliseconds, timed, timed);
}

/* Recorded outside again, it is an event like any other. */
static void event_after_capture(void)
{
    cudaError_t e;

    begin();
    cuda_contract_check(cudaEventRecord(event, cuda_contract_stream));
    graph_of_capture();
    cuda_contract_check(cudaEventRecord(event, cuda_contract_stream));
    while ((e = cudaEventQuery(event)) == cudaErrorNotReady) {
    }
    cuda_contract_check(e);
}

static void unjoined(void)
{
    cudaStream_t side = second_stream();

    begin();
    cuda_contract_check(cudaEventRecord(event, cuda_contract_stream));
    cuda_contract_check(cudaStreamWaitEvent(side, event, cudaEventWaitDefault));
    cuda_contract_check(cudaMemsetAsync(device, 1, BYTES, side));
    graph_of_capture();
}

static void external_outside(void) { cudaEventRecordWithFlags(event, cuda_contract_stream, cudaEventRecordExternal); }

static void graph_destroyed(void)
{
    begin();
    cudaGraphExec_t exec = graph_of_capture();
    cuda_contract_check(cudaGraphExecDestroy(exec));
    cudaGraphLaunch(exec, cuda_contract_stream);
}

static void event_of_graph_destroyed(void)
{
    begin();
    cuda_contract_check(cudaEventRecordWithFlags(event, cuda_contract_stream, cudaEventRecordExternal));
    cudaGraphExec_t exec = graph_of_capture();
    cuda_contract_check(cudaEventDestroy(event));
    cudaGraphLaunch(exec, cuda_contract_stream);
}

static breaking_fn *breaks;

static int run_with_gpu(void)
{
    cuda_contract_open_gpu();
    breaks();
    return 0;
}

static void cuda_contract_expect(breaking_fn *fn, int code, const char *text)
{
    breaks = fn;
    struct child c = child_run(NULL, run_with_gpu);
    child_expect(&c, code, text);
}

static void breaches_are_reported(void **state)
{
    (void)state;
    cuda_contract_expect(right, 0, "");
    cuda_contract_expect(pageable_source, BROKEN, "not all, pinned: with pageable memory the copy would not be asynchronous");
    cuda_contract_expect(pageable_target, BROKEN, "not all, pinned");
    cuda_contract_expect(pinned_end, BROKEN, "not all, pinned");
    cuda_contract_expect(wrong_direction, BROKEN, "not all, memory of cudaMalloc");
    cuda_contract_expect(device_end, BROKEN, "not all, memory of cudaMalloc");
    cuda_contract_expect(overlap, BROKEN, "the bytes overlap");
    cuda_contract_expect(no_bytes, BROKEN, "of 0 bytes");
    cuda_contract_expect(default_stream, BROKEN, "is not a stream");
    cuda_contract_expect(use_after_free, BROKEN, "not all, memory of cudaMalloc");
    cuda_contract_expect(free_twice, BROKEN, "is not what cudaMalloc returned, or was freed before");
    cuda_contract_expect(free_within, BROKEN, "is not what cudaMalloc returned");
    cuda_contract_expect(destroyed_stream, BROKEN, "the stream was destroyed");
    cuda_contract_expect(destroyed_event, BROKEN, "the event was destroyed");
    cuda_contract_expect(foreign_event, BROKEN, "is not an event");
    cuda_contract_expect(untimed_event, BROKEN, "an event was made with cudaEventDisableTiming");
    cuda_contract_expect(event_before_its_record, BROKEN, "an event was not recorded");
    cuda_contract_expect(free_while_waiting, BROKEN, "cudaFree would wait for ever: a stream waits for the host");
    unsetenv("CUDA_MODULE_LOADING");
    cuda_contract_expect(wait_for_host, BROKEN, "the first launch of a kernel would wait for this stream, for ever");
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    cuda_contract_expect(full_stream, BROKEN, "its stream may have 1024 pending operations: the call blocks");
    cuda_contract_expect(second_gpu, BROKEN, "a rank uses one");
}

static void test_captures(void **state)
{
    char settings[32];

    (void)state;
    for (int seed = 0; seed < 20; seed++) {
        snprintf(settings, sizeof settings, "seed=%d", seed);
        setenv("LOCKSTEP_CUDA_STUB", settings, 1);
        cuda_contract_expect(right_graph, 0, "");
        cuda_contract_expect(external_events, 0, "");
    }
    unsetenv("LOCKSTEP_CUDA_STUB");
    cuda_contract_expect(alloc_in_capture, BROKEN, "cudaMalloc: while a stream is captured");
    cuda_contract_expect(free_in_capture, BROKEN, "cudaFree: while a stream is captured");
    cuda_contract_expect(pinned_in_capture, BROKEN, "cudaHostAlloc: while a stream is captured");
    cuda_contract_expect(stream_query_in_capture, BROKEN, "cudaStreamQuery: while a stream is captured");
    cuda_contract_expect(event_query_in_capture, BROKEN, "cudaEventQuery: while a stream is captured");
    cuda_contract_expect(launch_in_capture, BROKEN, "cudaGraphLaunch: while a stream is captured");
    cuda_contract_expect(begin_twice, BROKEN, "the stream is captured already");
    cuda_contract_expect(global_mode, BROKEN, "calls of other threads would end the capture");
    cuda_contract_expect(end_without_begin, BROKEN, "(cudaErrorStreamCaptureUnmatched)");
    cuda_contract_expect(wait_outside, BROKEN, "(cudaErrorStreamCaptureIsolation)");
    cuda_contract_expect(captured_event, BROKEN, "(cudaErrorCapturedEvent)");
    cuda_contract_expect(query_captured_event, BROKEN, "cudaEventQuery: the event was last recorded in a capture (cudaErrorCapturedEvent)");
    cuda_contract_expect(time_captured_event, BROKEN,
                         "cudaEventElapsedTime: the event was last recorded in a capture (cudaErrorCapturedEvent)");
    cuda_contract_expect(event_after_capture, 0, "");
    cuda_contract_expect(unjoined, BROKEN, "(cudaErrorStreamCaptureUnjoined)");
    cuda_contract_expect(external_outside, BROKEN, "cudaEventRecordExternal is for streams that are captured");
    cuda_contract_expect(graph_destroyed, BROKEN, "is not an executable graph, or was destroyed");
    cuda_contract_expect(event_of_graph_destroyed, BROKEN, "an event of the graph was destroyed");
    cuda_contract_expect(race_in_graph, 1, "in no order: a wait is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(breaches_are_reported), cmocka_unit_test(test_captures) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
