/* stub_ipc.c - the functions of the CUDA runtime that share memory of a GPU among processes. See stub.h.
 *
 * Memory that is shared is a file, which its process keeps open; the handle names it as /proc/PID/fd/N. After the bytes the file has a page
 * with a counter: how many other processes have mapped them. Until that is 0 the memory must not be freed.
 */
#include "stub.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/base.h"
#include "device/check.h"

enum { PAGE = 4096 };

struct handle {
    int process, file;
    size_t bytes;
};
_Static_assert(sizeof(struct handle) <= sizeof(cudaIpcMemHandle_t), "a handle fits");

/* Memory of this process for which there is a handle, or which it has mapped. */
static struct shared_memory {
    struct shared_memory *next;
    void *at;
    atomic_int *mapped; /* number of processes that have mapped it */
    struct handle handle;
    bool own;
} *all;

static cudaError_t stub_ipc_ended(cudaError_t e) { return stub_set_last(e), e; }

static size_t pages_of(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static struct shared_memory **shared_at(const void *p)
{
    struct shared_memory **at = &all;

    while (*at && (*at)->at != p) at = &(*at)->next;
    return at;
}

static struct shared_memory *shared_new(void *p, int file, struct handle h, bool own)
{
    struct shared_memory *m = malloc(sizeof *m);
    void *count = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)pages_of(h.bytes));

    if (!m || count == MAP_FAILED) stub_die("no memory");
    *m = (struct shared_memory){ all, p, count, h, own };
    return all = m;
}

static void shared_free(struct shared_memory **at)
{
    struct shared_memory *m = *at;

    *at = m->next;
    munmap(m->mapped, PAGE);
    free(m);
}

void stub_ipc_freed(const void *p)
{
    struct shared_memory **at = shared_at(p);

    if (!*at) return;
    if (!(*at)->own) stub_die("cudaFree: %p is another process's memory", p);
    if (atomic_load((*at)->mapped)) stub_die("cudaFree: %p is mapped by %d other processes", p, atomic_load((*at)->mapped));
    shared_free(at);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *p)
{
    cudaError_t e = stub_call("cudaIpcGetMemHandle", false);
    struct check_block *b = check_block_of(p, 0);

    if (e != cudaSuccess) return e;
    if (!b || b->visible != p) stub_die("cudaIpcGetMemHandle: %p is not what cudaMalloc returned", p);
    if (!stub_settings()->ipc) return stub_ipc_ended(cudaErrorInvalidValue);
    struct handle h = (struct handle){ (int)getpid(), check_file(b), b->bytes };
    if (!*shared_at(p)) {
        if (ftruncate(h.file, (off_t)(pages_of(h.bytes) + PAGE)) != 0) stub_die("no memory");
        shared_new(p, h.file, h, true);
    }
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    static uint64_t opened;
    cudaError_t e = stub_call("cudaIpcOpenMemHandle", false);
    struct handle h;
    char path[64];
    int file;

    stub_end_at(&stub_settings()->ipc_open, ++opened);
    stub_need_context("cudaIpcOpenMemHandle");
    if (e != cudaSuccess) return e;
    memcpy(&h, &handle, sizeof h);
    if (flags != cudaIpcMemLazyEnablePeerAccess) stub_die("cudaIpcOpenMemHandle: flags %u", flags);
    if (h.process == (int)getpid()) stub_die("cudaIpcOpenMemHandle: a handle of this process");
    for (const struct shared_memory *m = all; m; m = m->next)
        if (m->handle.process == h.process && m->handle.file == h.file) stub_die("cudaIpcOpenMemHandle: the handle is open already");
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.process, h.file);
    if ((file = open(path, O_RDWR | O_CLOEXEC)) < 0) return stub_ipc_ended(cudaErrorInvalidResourceHandle);
    if (!(*out = check_map(file, h.bytes))) return close(file), stub_ipc_ended(cudaErrorMemoryAllocation);
    atomic_fetch_add(shared_new(*out, file, h, false)->mapped, 1);
    close(file);
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    cudaError_t e = stub_call("cudaIpcCloseMemHandle", false);
    struct shared_memory **at = shared_at(p);
    static uint64_t closed;

    stub_end_at(&stub_settings()->ipc_close, ++closed);
    if (e != cudaSuccess) return e;
    if (!*at || (*at)->own) stub_die("cudaIpcCloseMemHandle: %p is not what cudaIpcOpenMemHandle returned, or was closed before", p);
    stub_wait_for_all("cudaIpcCloseMemHandle");
    atomic_fetch_sub((*at)->mapped, 1);
    shared_free(at);
    device_check.free(p);
    return cudaSuccess;
}
