/* test_cuda_ipc_contract.c - the stub of the CUDA runtime with callers that break the contract of resources that processes share: memory of
 * a GPU, and words of pinned memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/base.h"
#include "helper_child.h"
#include "stub.h"

enum { BYTES = 5000, PAGE = 4096, BROKEN = 97 };

/* The emulator is not linked: nothing here launches a kernel. */
void emulator_seed(uint64_t seed);
void emulator_seed(uint64_t seed) { (void)seed; }

static char *device, *pinned;
static cudaStream_t cuda_ipc_contract_stream;
static cudaIpcMemHandle_t handle; /* of the other process's memory, whose bytes are 5 */
static int to_other[2], from_other[2];
static pid_t other;

static void cuda_ipc_contract_check(cudaError_t e)
{
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s\n", cudaGetErrorString(e));
    _exit(1);
}

static void cuda_ipc_contract_open_gpu(void)
{
    cuda_ipc_contract_check(cudaSetDevice(0));
    cuda_ipc_contract_check(cudaMalloc((void **)&device, BYTES));
    cuda_ipc_contract_check(cudaHostAlloc((void **)&pinned, BYTES, cudaHostAllocDefault));
    cuda_ipc_contract_check(cudaStreamCreateWithFlags(&cuda_ipc_contract_stream, cudaStreamNonBlocking));
}

static void cuda_ipc_contract_finish(void)
{
    cudaError_t e;

    while ((e = cudaStreamQuery(cuda_ipc_contract_stream)) == cudaErrorNotReady)
        ;
    cuda_ipc_contract_check(e);
}

/* The other process: it frees its memory on request. */
static void share_memory(void)
{
    char told;

    close(to_other[1]); /* it ends with the process that would send the request */
    cuda_ipc_contract_open_gpu();
    cuda_ipc_contract_check(cudaMemsetAsync(device, 5, BYTES, cuda_ipc_contract_stream));
    cuda_ipc_contract_finish();
    cuda_ipc_contract_check(cudaIpcGetMemHandle(&handle, device));
    if (write(from_other[1], &handle, sizeof handle) != sizeof handle || read(to_other[0], &told, 1) != 1) _exit(1);
    cuda_ipc_contract_check(cudaFree(device));
    _exit(0);
}

static void start_other(void)
{
    if (pipe(to_other) || pipe(from_other) || (other = fork()) < 0) _exit(1);
    if (!other) share_memory();
    if (read(from_other[0], &handle, sizeof handle) != sizeof handle) _exit(1);
}

/* Its exit code. */
static int end_other(void)
{
    int status;

    if (write(to_other[1], "x", 1) != 1 || waitpid(other, &status, 0) != other) _exit(1);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static char *open_handle(void)
{
    void *p;

    cuda_ipc_contract_check(cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess));
    return p;
}

/* ---- memory ---- */

static void right(void)
{
    char *p = open_handle();

    cuda_ipc_contract_check(cudaMemcpyAsync(pinned, p, BYTES, cudaMemcpyDeviceToHost, cuda_ipc_contract_stream));
    cuda_ipc_contract_finish();
    for (int i = 0; i < BYTES; i++)
        if (pinned[i] != 5) _exit(2);
    cuda_ipc_contract_check(cudaIpcCloseMemHandle(p));
    p = open_handle(); /* again */
    cuda_ipc_contract_check(cudaIpcCloseMemHandle(p));
    _exit(end_other());
}

static void freed_while_mapped(void)
{
    open_handle();
    _exit(end_other()); /* which says why */
}

static void own_handle(void)
{
    cuda_ipc_contract_check(cudaIpcGetMemHandle(&handle, device));
    open_handle();
}

static void handle_within(void) { cudaIpcGetMemHandle(&handle, device + 8); }

static void no_flags(void)
{
    void *p;

    cudaIpcOpenMemHandle(&p, handle, 0);
}

static void open_twice(void)
{
    open_handle();
    open_handle();
}

static void close_twice(void)
{
    char *p = open_handle();

    cuda_ipc_contract_check(cudaIpcCloseMemHandle(p));
    cudaIpcCloseMemHandle(p);
}

static void close_own(void) { cudaIpcCloseMemHandle(device); }
static void free_mapped(void) { cudaFree(open_handle()); }

static void use_after_close(void)
{
    char *p = open_handle();

    cuda_ipc_contract_check(cudaIpcCloseMemHandle(p));
    cudaMemsetAsync(p, 0, BYTES, cuda_ipc_contract_stream);
}

/* ---- words ---- */

typedef int word_fn(cudaStream_t s, unsigned long long at, uint64_t value, unsigned flags);

static word_fn *word_function(const char *name)
{
    enum cudaDriverEntryPointQueryResult found;
    word_fn *f;
    void *at;

    cuda_ipc_contract_check(cudaGetDriverEntryPointByVersion(name, &at, 12000, cudaEnableDefault, &found));
    memcpy(&f, &at, sizeof f);
    return f;
}

static uint64_t *map_words(void)
{
    uint64_t *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) _exit(1);
    return p;
}

/* A stream waits until another one has written a number that is large enough. */
static void right_words(void)
{
    uint64_t *words = map_words();
    cudaStream_t writes;
    void *at;

    cuda_ipc_contract_check(cudaStreamCreateWithFlags(&writes, cudaStreamNonBlocking));
    cuda_ipc_contract_check(cudaHostRegister(words, PAGE, cudaHostRegisterMapped));
    cuda_ipc_contract_check(cudaHostGetDevicePointer(&at, words, 0));
    word_function("cuStreamWaitValue64")(cuda_ipc_contract_stream, (uintptr_t)at, 1ull << 40, 0);
    cuda_ipc_contract_check(cudaMemsetAsync(device, 1, BYTES, cuda_ipc_contract_stream));
    for (int i = 0; i < 1000; i++)
        if (cudaStreamQuery(cuda_ipc_contract_stream) != cudaErrorNotReady) _exit(2);
    word_function("cuStreamWriteValue64")(writes, (uintptr_t)at, (1ull << 40) - 1, 0);
    for (int i = 0; i < 1000; i++)
        if (cudaStreamQuery(cuda_ipc_contract_stream) != cudaErrorNotReady) _exit(3);
    word_function("cuStreamWriteValue64")(writes, (uintptr_t)at, (1ull << 40) + 7, 0);
    cuda_ipc_contract_finish();
    cuda_ipc_contract_check(cudaHostUnregister(words));
}

static void word_not_pinned(void) { word_function("cuStreamWriteValue64")(cuda_ipc_contract_stream, (uintptr_t)map_words(), 1, 0); }
static void word_odd(void) { word_function("cuStreamWriteValue64")(cuda_ipc_contract_stream, (uintptr_t)pinned + 4, 1, 0); }
static void word_flags(void) { word_function("cuStreamWaitValue64")(cuda_ipc_contract_stream, (uintptr_t)pinned, 1, 1); }
static void part_of_page(void) { cudaHostRegister(map_words(), 100, cudaHostRegisterMapped); }

static void registered_twice(void)
{
    uint64_t *words = map_words();

    cuda_ipc_contract_check(cudaHostRegister(words, PAGE, cudaHostRegisterMapped));
    cudaHostRegister(words, PAGE, cudaHostRegisterMapped);
}

static void not_registered(void) { cudaHostUnregister(pinned); }

static void pointer_not_pinned(void)
{
    void *at;

    cudaHostGetDevicePointer(&at, map_words(), 0);
}

/* ---- tests ---- */

typedef void breaking_fn(void);
static breaking_fn *breaks;

static int run_with_gpu(void)
{
    start_other();
    cuda_ipc_contract_open_gpu();
    breaks();
    return 0;
}

static void cuda_ipc_contract_expect(breaking_fn *fn, int code, const char *text)
{
    breaks = fn;
    struct child c = child_run(NULL, run_with_gpu);
    child_expect(&c, code, text);
}

static void cuda_ipc_contract_test_memory(void **state)
{
    (void)state;
    cuda_ipc_contract_expect(right, 0, "");
    cuda_ipc_contract_expect(freed_while_mapped, BROKEN, "is mapped by 1 other processes");
    cuda_ipc_contract_expect(own_handle, BROKEN, "a handle of this process");
    cuda_ipc_contract_expect(handle_within, BROKEN, "is not what cudaMalloc returned");
    cuda_ipc_contract_expect(no_flags, BROKEN, "cudaIpcOpenMemHandle: flags 0");
    cuda_ipc_contract_expect(open_twice, BROKEN, "the handle is open already");
    cuda_ipc_contract_expect(close_twice, BROKEN, "is not what cudaIpcOpenMemHandle returned, or was closed before");
    cuda_ipc_contract_expect(close_own, BROKEN, "is not what cudaIpcOpenMemHandle returned");
    cuda_ipc_contract_expect(free_mapped, BROKEN, "is another process's memory");
    cuda_ipc_contract_expect(use_after_close, BROKEN, "not all, memory of cudaMalloc");
}

static void test_words(void **state)
{
    (void)state;
    cuda_ipc_contract_expect(right_words, 0, "");
    cuda_ipc_contract_expect(word_not_pinned, BROKEN, "is not pinned");
    cuda_ipc_contract_expect(word_odd, BROKEN, "cuStreamWriteValue64: flags 0, address");
    cuda_ipc_contract_expect(word_flags, BROKEN, "cuStreamWaitValue64: flags 1");
    cuda_ipc_contract_expect(part_of_page, BROKEN, "not whole pages, or not mapped");
    cuda_ipc_contract_expect(registered_twice, BROKEN, "is pinned already");
    cuda_ipc_contract_expect(not_registered, BROKEN, "is not what cudaHostRegister was given");
    cuda_ipc_contract_expect(pointer_not_pinned, BROKEN, "cudaHostGetDevicePointer: flags 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(cuda_ipc_contract_test_memory), cmocka_unit_test(test_words) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
