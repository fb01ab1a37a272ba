/* test_cuda_contract.c - the stub of the CUDA runtime on callers that break the contract: each ends with one line that says why. */
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
static cudaStream_t stream;
static cudaEvent_t event;

static void check(cudaError_t e)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(e));
        _exit(1);
    }
}

static void open_gpu(void)
{
    check(cudaSetDevice(0));
    check(cudaMalloc((void **)&device, BYTES));
    check(cudaMalloc((void **)&other, BYTES));
    check(cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocDefault));
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
}

static void copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    check(cudaMemcpyAsync(to, from, bytes, kind, stream));
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
    check(cudaFree(other));
    check(cudaMemsetAsync(other, 0, BYTES, stream));
}

static void free_twice(void)
{
    check(cudaFree(other));
    cudaFree(other);
}

static void free_within(void) { cudaFree(device + 8); }

static void destroyed_stream(void)
{
    check(cudaStreamDestroy(stream));
    cudaMemsetAsync(device, 0, BYTES, stream);
}

static void destroyed_event(void)
{
    check(cudaEventDestroy(event));
    cudaEventRecord(event, stream);
}

static void foreign_event(void) { cudaEventRecord((cudaEvent_t)(void *)pinned, stream); }

static void free_while_waiting(void)
{
    int (*wait)(cudaStream_t, unsigned long long, uint32_t, unsigned);
    enum cudaDriverEntryPointQueryResult found;
    void *at;

    check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &at, 12000, cudaEnableDefault, &found));
    memcpy(&wait, &at, sizeof wait);
    memset(pinned, 0, 4);
    wait(stream, (uintptr_t)pinned, 1, 0);
    cudaFree(other);
}

static void second_gpu(void) { cudaSetDevice(1); }

static void right(void)
{
    cudaError_t e;
    int rounds = 0;

    memset(pinned, 5, BYTES);
    copy(device, pinned, BYTES, cudaMemcpyHostToDevice);
    copy(other, device, BYTES, cudaMemcpyDeviceToDevice);
    check(cudaMemsetAsync(other, 7, 10, stream));
    copy(pinned, other, BYTES, cudaMemcpyDeviceToHost);
    check(cudaEventRecord(event, stream));
    while ((e = cudaEventQuery(event)) == cudaErrorNotReady)
        rounds++;
    check(e);
    if (pinned[9] != 7 || pinned[10] != 5 || rounds > 100) _exit(2);
}

typedef void breaking_fn(void);

static void untimed_event(void)
{
    cudaEvent_t events[2];
    float milliseconds;

    check(cudaEventCreateWithFlags(&events[0], cudaEventDefault));
    check(cudaEventCreateWithFlags(&events[1], cudaEventDisableTiming));
    cudaEventElapsedTime(&milliseconds, events[0], events[1]);
}

static void event_before_its_record(void)
{
    cudaEvent_t timed;
    float milliseconds;

    check(cudaEventCreateWithFlags(&timed, cudaEventDefault));
    cudaEventElapsedTime(&milliseconds, timed, timed);
}

static breaking_fn *breaks;

static int run_with_gpu(void)
{
    open_gpu();
    breaks();
    return 0;
}

static void expect(breaking_fn *fn, int code, const char *text)
{
    struct child c;

    breaks = fn;
    c = child_run(NULL, run_with_gpu);
    child_expect(&c, code, text);
}

static void test_contract(void **state)
{
    (void)state;
    expect(right, 0, "");
    expect(pageable_source, BROKEN, "not all, pinned: with pageable memory the copy would not be asynchronous");
    expect(pageable_target, BROKEN, "not all, pinned");
    expect(pinned_end, BROKEN, "not all, pinned");
    expect(wrong_direction, BROKEN, "not all, memory of cudaMalloc");
    expect(device_end, BROKEN, "not all, memory of cudaMalloc");
    expect(overlap, BROKEN, "the bytes overlap");
    expect(no_bytes, BROKEN, "of 0 bytes");
    expect(default_stream, BROKEN, "is not a stream");
    expect(use_after_free, BROKEN, "not all, memory of cudaMalloc");
    expect(free_twice, BROKEN, "is not what cudaMalloc returned, or was freed before");
    expect(free_within, BROKEN, "is not what cudaMalloc returned");
    expect(destroyed_stream, BROKEN, "the stream was destroyed");
    expect(destroyed_event, BROKEN, "the event was destroyed");
    expect(foreign_event, BROKEN, "is not an event");
    expect(untimed_event, BROKEN, "an event was made with cudaEventDisableTiming");
    expect(event_before_its_record, BROKEN, "an event was not recorded");
    expect(free_while_waiting, BROKEN, "cudaFree would wait for ever: a stream waits for the host");
    expect(second_gpu, BROKEN, "a rank uses one");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_contract) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
