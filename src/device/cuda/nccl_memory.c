/* nccl_memory.c - device memory for the operands of collectives: allocated by NCCL and registered with its communicators, so that NCCL
 * reads and writes it in place, without copies through its own buffers, where the links between the GPUs and the algorithm allow that.
 *
 * NCCL requires memory of ncclMemAlloc() for this, and that a call has registered operands on all ranks of its communicator or on none.
 * Memory of the category MEM_COMMUNICATION is allocated here as soon as a communicator for collectives is open, and is registered with
 * all of these until it is freed or they are finished. Communicators for exchanges have none, because what is sent and what is received
 * may be in different arenas, nor have those for messages, whose two ends belong to different programs.
 */
#include "device/cuda/nccl_library.h"

#include "base/mem.h"

struct nccl_block {
    struct nccl_block *next;
    void *at;
    size_t bytes;
};

struct registration {
    struct registration *next;
    const struct device_group *group;
    const struct nccl_block *block;
    void *handle; /* NCCL's */
};

static struct nccl_block *nccl_memory_blocks;
static struct registration *registrations;

static bool group_registers(const struct device_group *g) { return g->kind == DEVICE_GROUP_COLLECTIVES && g->state == GROUP_OPEN; }

bool nccl_memory_used(void)
{
    const struct device_group *g = nccl_groups;

    while (g && !group_registers(g)) g = g->next;
    return g != NULL;
}

/* ---- registrations ---- */

static ls_status block_register(const struct device_group *g, const struct nccl_block *b)
{
    struct registration *r = mem_zalloc(MEM_OTHER, sizeof *r);

    if (!r) return LS_ENOMEM;
    ls_status st = nccl_check(g, nccl.CommRegister(g->comm, b->at, b->bytes, &r->handle), "ncclCommRegister");
    if (st < 0) {
        mem_free(r);
        return st;
    }
    r->group = g;
    r->block = b;
    r->next = registrations;
    registrations = r;
    return LS_OK;
}

/* Ends the registrations of g or, where g is NULL, of b; those with a communicator that was aborted ended with it. */
static ls_status registrations_end(const struct device_group *g, const struct nccl_block *b)
{
    struct registration **at = &registrations;
    ls_status st = LS_OK;

    while (*at) {
        struct registration *r = *at;

        if (g ? r->group != g : r->block != b) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        if (st == LS_OK && group_registers(r->group))
            st = nccl_check(r->group, nccl.CommDeregister(r->group->comm, r->handle), "ncclCommDeregister");
        mem_free(r);
    }
    return st;
}

ls_status nccl_memory_opened(struct device_group *g)
{
    for (const struct nccl_block *b = nccl_memory_blocks; b && group_registers(g); b = b->next) LS_TRY(block_register(g, b));
    return LS_OK;
}

ls_status nccl_memory_finish(struct device_group *g) { return registrations_end(g, NULL); }
void nccl_memory_closed(const struct device_group *g) { registrations_end(g, NULL); }

/* ---- blocks ---- */

/* NCCL reports a lack of memory as a failure of CUDA, as it does an earlier failure of the GPU, which all functions of CUDA report from
 * then on. It rounds the bytes up to a page of the driver's choice. */
static ls_status block_failed(ncclResult_t r, size_t bytes)
{
    cudaError_t e = cudaStreamQuery(cuda.fallback.handle);

    if (e != cudaSuccess && e != cudaErrorNotReady) return cuda_check(e, "cudaStreamQuery");
    cudaGetLastError(); /* this one is not kept */
    return r == ncclUnhandledCudaError ? cuda_no_memory(MEM_COMMUNICATION, bytes) : nccl_check(NULL, r, "ncclMemAlloc");
}

static ls_status block_register_all(const struct nccl_block *b)
{
    for (const struct device_group *g = nccl_groups; g; g = g->next)
        if (group_registers(g)) LS_TRY(block_register(g, b));
    return LS_OK;
}

ls_status nccl_memory_new(size_t bytes, void **out)
{
    struct nccl_block *b = mem_zalloc(MEM_OTHER, sizeof *b);
    ls_status st;

    if (!b) return LS_ENOMEM;
    ncclResult_t r = nccl.MemAlloc(&b->at, b->bytes = MAX(bytes, (size_t)1));
    if (r != ncclSuccess) {
        mem_free(b);
        return block_failed(r, bytes);
    }
    b->next = nccl_memory_blocks;
    nccl_memory_blocks = b;
    if ((st = block_register_all(b)) < 0) {
        nccl_memory_free(b->at);
        return st;
    }
    *out = b->at;
    return LS_OK;
}

bool nccl_memory_free(void *p)
{
    struct nccl_block **at = &nccl_memory_blocks, *b;

    while (*at && (*at)->at != p) at = &(*at)->next;
    if (!(b = *at)) return false;
    *at = b->next;
    ls_status st = registrations_end(NULL, b);
    if (st == LS_OK) nccl_check(NULL, nccl.MemFree(p), "ncclMemFree");
    mem_free(b);
    return true;
}
