/* pinned.c - pinned blocks of host memory, through which all bytes between host and device pass. They are kept until the process ends. */
#include "device/cuda/cuda.h"

#include "base/mem.h"

static struct {
    struct pinned *free;
    struct pinned *kept; /* given back after a failure: the GPU may still write to them */
} pool;

enum { PINNED_LEAST = 4 << 10 };

/* A block is given out for no less than three quarters of its bytes, small ones aside. */
static bool block_fits(const struct pinned *p, size_t bytes)
{
    return p->bytes >= bytes && (p->bytes <= PINNED_LEAST || p->bytes / 4 * 3 <= bytes);
}

static struct pinned *pinned_find(size_t bytes)
{
    for (struct pinned **at = &pool.free; *at; at = &(*at)->next) {
        struct pinned *p = *at;

        if (!block_fits(p, bytes)) continue;
        *at = p->next;
        return p;
    }
    return NULL;
}

static ls_status pinned_new(size_t bytes, struct pinned **out)
{
    struct pinned *p = mem_zalloc(MEM_OTHER, sizeof *p);
    void *data = NULL;
    ls_status st = p ? mem_take(MEM_OTHER, bytes) : LS_ENOMEM;

    if (st < 0) goto free_block;
    st = cuda_check(cudaHostAlloc(&data, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    if (st < 0) {
        mem_give(MEM_OTHER, bytes);
        goto free_block;
    }
    *p = (struct pinned){ .data = data, .bytes = bytes };
    *out = p;
    return LS_OK;

free_block:
    mem_free(p);
    return cuda_fail(st);
}

ls_status pinned_take(size_t bytes, struct pinned **out)
{
    size_t size = MAX((bytes + PINNED_LEAST - 1) / PINNED_LEAST * PINNED_LEAST, (size_t)PINNED_LEAST);

    ASSERT(!cuda.capturing);
    *out = pinned_find(size);
    if (*out) return LS_OK;
    flights_move();
    *out = pinned_find(size);
    return *out ? LS_OK : pinned_new(size, out);
}

void pinned_give(struct pinned *p)
{
    struct pinned **list = cuda.failed < 0 ? &pool.kept : &pool.free;

    p->next = *list;
    *list = p;
}
