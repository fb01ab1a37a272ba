/* stub_words.c - the functions of the driver by which a stream writes words of pinned memory and waits for them. See stub.h. */
#include "stub_graph.h"

#include <string.h>
#include "base/base.h"

struct word_args {
    volatile uint64_t *at;
    uint64_t value;
    bool whole; /* 64 bits, not 32 */
};

static ls_status run_wait(void *args)
{
    const struct word_args *a = args;
    bool there = a->whole ? (int64_t)(__atomic_load_n(a->at, __ATOMIC_ACQUIRE) - a->value) >= 0
                          : (int32_t)(__atomic_load_n((volatile uint32_t *)a->at, __ATOMIC_ACQUIRE) - (uint32_t)a->value) >= 0;

    return there ? LS_OK : LS_BUSY;
}

static ls_status run_write(void *args)
{
    const struct word_args *a = args;

    __atomic_store_n(a->at, a->value, __ATOMIC_RELEASE);
    return LS_OK;
}

static int give_word(const char *call, cudaStream_t stream, unsigned long long at, uint64_t value, unsigned flags, bool whole,
                     ls_status (*run)(void *args))
{
    struct device_stream *s = stub_stream(stream, call);
    struct word_args a = { (volatile uint64_t *)(uintptr_t)at, value, whole };
    size_t bytes = whole ? sizeof(uint64_t) : sizeof(uint32_t);
    cudaError_t e = stub_call(call, false);

    if (e != cudaSuccess) return (int)e;
    if (run == run_wait && !stub_settings()->cpu_kernels) stub_need_kernels(call);
    if (flags || at % bytes) stub_die("%s: flags %u, address %llx", call, flags, at);
    if (!stub_is_pinned((const void *)(uintptr_t)at, bytes)) stub_die("%s: the word at %llx is not pinned", call, at);
    stub_enqueue(s, &(struct device_operation){ .name = call, .run = run, .args = &a, .bytes = sizeof a });
    return 0;
}

static int wait_value_32(cudaStream_t s, unsigned long long at, uint32_t value, unsigned flags)
{
    return give_word("cuStreamWaitValue32", s, at, value, flags, false, run_wait);
}

static int wait_value_64(cudaStream_t s, unsigned long long at, uint64_t value, unsigned flags)
{
    return give_word("cuStreamWaitValue64", s, at, value, flags, true, run_wait);
}

static int write_value_64(cudaStream_t s, unsigned long long at, uint64_t value, unsigned flags)
{
    static uint64_t writes;

    stub_end_at(&stub_settings()->write_end, ++writes);
    return give_word("cuStreamWriteValue64", s, at, value, flags, true, run_write);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    static const struct {
        const char *name;
        void (*at)(void);
    } functions[] = { { "cuStreamWaitValue32", (void (*)(void))wait_value_32 },
                      { "cuStreamWaitValue64", (void (*)(void))wait_value_64 },
                      { "cuStreamWriteValue64", (void (*)(void))write_value_64 } };
    cudaError_t e = stub_call("cudaGetDriverEntryPointByVersion", false);
    size_t k = 0;

    if (e != cudaSuccess) return e;
    while (k < COUNT_OF(functions) && strcmp(symbol, functions[k].name) != 0) k++;
    if (k == COUNT_OF(functions) || version > CUDART_VERSION || flags != cudaEnableDefault)
        stub_die("cudaGetDriverEntryPointByVersion: %s, version %u, flags %llu", symbol, version, flags);
    memcpy(out, &functions[k].at, sizeof functions[k].at);
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
