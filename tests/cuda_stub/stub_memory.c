/* stub_memory.c - the functions of the CUDA runtime for memory: of the GPU, and pinned memory of the host. See stub.h. */
#include "stub.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/check.h"

static const struct device *const stub_memory_queue = &device_check;

static cudaError_t stub_memory_ended(cudaError_t e) { return stub_set_last(e), e; }

void stub_wait_for_all(const char *call)
{
    if (stub_fails() == cudaSuccess && !check_run_all()) stub_die("%s would wait for ever: a stream waits for the host", call);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    cudaError_t e = stub_call("cudaMalloc", true);

    stub_need_context("cudaMalloc");
    if (e != cudaSuccess) return e;
    if (!bytes) stub_die("cudaMalloc: of 0 bytes");
    stub_wait_for_all("cudaMalloc");
    if (!stub_memory_take(bytes)) return stub_memory_ended(cudaErrorMemoryAllocation);
    *out = stub_memory_queue->alloc(MEM_OTHER, bytes);
    if (!*out) return stub_memory_ended(cudaErrorMemoryAllocation);
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    cudaError_t e = stub_call("cudaFree", false);
    struct check_block *b = check_block_of(p, 0);

    if (e != cudaSuccess) return e;
    if (!b || b->visible != p) stub_die("cudaFree: %p is not what cudaMalloc returned, or was freed before", p);
    if (stub_is_allocated(p)) stub_die("cudaFree: %p is a library's own memory", p);
    stub_ipc_freed(p);
    stub_wait_for_all("cudaFree");
    stub_memory_give(b->bytes);
    stub_memory_queue->free(p);
    return cudaSuccess;
}

static struct pinned_range {
    struct pinned_range *next;
    char *at;
    size_t bytes;
    bool registered;
} *pinned;

bool stub_is_pinned(const void *p, size_t bytes)
{
    for (const struct pinned_range *r = pinned; r; r = r->next)
        if ((const char *)p >= r->at && (const char *)p + bytes <= r->at + r->bytes) return true;
    return false;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    cudaError_t e = stub_call("cudaHostAlloc", true);
    struct pinned_range *r;

    stub_need_context("cudaHostAlloc");
    if (e != cudaSuccess) return e;
    if (flags != cudaHostAllocDefault || !bytes) stub_die("cudaHostAlloc: flags %u, %zu bytes", flags, bytes);
    r = malloc(sizeof *r);
    if (!r || posix_memalign((void **)&r->at, 4096, bytes)) return free(r), stub_memory_ended(cudaErrorMemoryAllocation);
    memset(r->at, 0xff, bytes);
    r->bytes = bytes;
    r->registered = false;
    r->next = pinned;
    pinned = r;
    *out = r->at;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    cudaError_t e = stub_call("cudaHostRegister", false);
    struct pinned_range *r;

    stub_need_context("cudaHostRegister");
    if (e != cudaSuccess) return e;
    if (flags != cudaHostRegisterMapped || !bytes || (uintptr_t)p % 4096 || bytes % 4096)
        stub_die("cudaHostRegister: flags %u, %zu bytes at %p: not whole pages, or not mapped", flags, bytes, p);
    if (stub_is_pinned(p, 1)) stub_die("cudaHostRegister: %p is pinned already", p);
    if (!(r = malloc(sizeof *r))) return stub_memory_ended(cudaErrorMemoryAllocation);
    *r = (struct pinned_range){ .next = pinned, .at = p, .bytes = bytes, .registered = true };
    pinned = r;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    cudaError_t e = stub_call("cudaHostUnregister", false);
    struct pinned_range **at = &pinned, *r;

    if (e != cudaSuccess) return e;
    while (*at && !((*at)->at == p && (*at)->registered)) at = &(*at)->next;
    if (!(r = *at)) stub_die("cudaHostUnregister: %p is not what cudaHostRegister was given", p);
    *at = r->next;
    free(r);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned flags)
{
    cudaError_t e = stub_call("cudaHostGetDevicePointer", false);

    if (flags || !stub_is_pinned(p, 1)) stub_die("cudaHostGetDevicePointer: flags %u, %p", flags, p);
    *out = p;
    return e;
}
