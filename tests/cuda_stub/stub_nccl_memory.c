/* stub_nccl_memory.c - ncclMemAlloc() and memory registered with communicators: their contract. See stub_nccl.h. */
#include "stub_nccl.h"

#include <stdlib.h>
#include "device/check.h"

struct nccl_block {
    struct nccl_block *next;
    char *at;
    size_t bytes;
};

struct nccl_registration {
    struct nccl_registration *next;
    ncclComm_t comm;
    const char *at;
    size_t bytes;
};

static struct nccl_block *stub_nccl_memory_blocks;
static struct nccl_registration *registrations;

int stub_nccl_registered(void)
{
    int n = 0;

    for (const struct nccl_registration *r = registrations; r; r = r->next) n++;
    return n;
}

bool nccl_is_registered(const struct ncclComm *c, const void *p, size_t bytes)
{
    const char *at = p;

    for (const struct nccl_registration *r = registrations; r; r = r->next)
        if (r->comm == c && at >= r->at && at + bytes <= r->at + r->bytes) return true;
    return false;
}

void nccl_registrations_end(const char *call, const struct ncclComm *c, bool aborted)
{
    for (struct nccl_registration **at = &registrations; *at;) {
        struct nccl_registration *r = *at;

        if (r->comm == c && !aborted) stub_die("%s: %zu bytes are still registered", call, r->bytes);
        if (r->comm == c) {
            *at = r->next;
            free(r);
        } else {
            at = &r->next;
        }
    }
}

ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
    struct nccl_block *b = calloc(1, sizeof *b);
    ncclResult_t r = nccl_call();

    if (!b) stub_die("no memory");
    if (r == ncclSuccess && cudaMalloc(out, bytes) != cudaSuccess) r = ncclUnhandledCudaError;
    if (r != ncclSuccess) return free(b), r;
    *b = (struct nccl_block){ .next = stub_nccl_memory_blocks, .at = *out, .bytes = bytes };
    stub_nccl_memory_blocks = b;
    stub_allocated(*out, true);
    return r;
}

ncclResult_t ncclMemFree(void *p)
{
    struct nccl_block **at = &stub_nccl_memory_blocks, *b;

    while (*at && (*at)->at != p) at = &(*at)->next;
    if (!(b = *at)) stub_die("ncclMemFree: %p is not what ncclMemAlloc returned, or was freed before", p);
    for (const struct nccl_registration *r = registrations; r; r = r->next)
        if (r->at >= b->at && r->at < b->at + b->bytes) stub_die("ncclMemFree: %zu bytes are still registered", r->bytes);
    *at = b->next;
    free(b);
    stub_allocated(p, false);
    if (cudaFree(p) != cudaSuccess) return ncclUnhandledCudaError;
    return nccl_call();
}

ncclResult_t ncclCommRegister(const ncclComm_t c, void *p, size_t bytes, void **handle)
{
    struct nccl_registration *x = calloc(1, sizeof *x);
    const struct nccl_block *b = stub_nccl_memory_blocks;
    ncclResult_t r = nccl_call();

    nccl_need_comm("ncclCommRegister", c, true);
    while (b && !((char *)p >= b->at && (char *)p + bytes <= b->at + b->bytes)) b = b->next;
    if (!b) stub_die("ncclCommRegister: %p of %zu bytes is not, or not all, memory of ncclMemAlloc", p, bytes);
    if (nccl_is_registered(c, p, bytes)) stub_die("ncclCommRegister: %p of %zu bytes is registered already", p, bytes);
    if (!x) stub_die("no memory");
    if (r != ncclSuccess) return free(x), r;
    *x = (struct nccl_registration){ .next = registrations, .comm = c, .at = p, .bytes = bytes };
    registrations = *handle = x;
    return r;
}

ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
    struct nccl_registration **at = &registrations;

    nccl_need_comm("ncclCommDeregister", c, true);
    while (*at && *at != handle) at = &(*at)->next;
    if (!*at || (*at)->comm != c) stub_die("ncclCommDeregister: %p is not registered with the communicator", handle);
    if (c->run != c->given) stub_die("ncclCommDeregister: %llu calls have not ended", (unsigned long long)(c->given - c->run));
    *at = (*at)->next;
    free(handle);
    return nccl_call();
}
