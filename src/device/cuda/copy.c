/* copy.c - fills and copies. Bytes of the host pass through pinned blocks: see cuda.h. */
#include "device/cuda/cuda.h"

#include <string.h>

ls_status cuda_fill(struct device_stream *stream, void *dst, int byte, size_t bytes)
{
    struct device_stream *s;

    if (!bytes) return LS_OK;
    LS_TRY(cuda_stream(stream, &s));
    LS_TRY(flight_room(s));
    return cuda_check(cudaMemsetAsync(dst, byte, bytes, s->handle), "cudaMemsetAsync");
}

ls_status cuda_copy(struct device_stream *stream, void *dst, const void *src, size_t bytes)
{
    struct device_stream *s;

    if (!bytes) return LS_OK;
    LS_TRY(cuda_stream(stream, &s));
    LS_TRY(flight_room(s));
    return cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, s->handle), "cudaMemcpyAsync");
}

/* One block's bytes; host is read now, or written when the copy has been waited for. */
static ls_status copy_block(struct device_stream *s, void *device, void *host, size_t bytes, bool in)
{
    struct pinned *block;

    LS_TRY(flight_room(s));
    LS_TRY(flights_wait_copies());
    LS_TRY(pinned_take(bytes, &block));
    if (in) memcpy(block->data, host, bytes);
    ls_status st = cuda_check(cudaMemcpyAsync(in ? device : block->data, in ? block->data : device, bytes,
                                              in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, s->handle),
                              "cudaMemcpyAsync");
    if (st == LS_OK) return flight_add(s, block, in ? NULL : host, bytes);
    pinned_give(block);
    return st;
}

static ls_status copy_blocks(struct device_stream *stream, char *device, char *host, size_t bytes, bool in)
{
    struct device_stream *s;

    if (!bytes) return LS_OK;
    LS_TRY(cuda_stream(stream, &s));
    if (in) LS_TRY(flights_wait_host(host, bytes));
    for (size_t at = 0; at < bytes; at += PINNED_COPY)
        LS_TRY(copy_block(s, device + at, host + at, MIN((size_t)PINNED_COPY, bytes - at), in));
    return LS_OK;
}

ls_status cuda_copy_in(struct device_stream *s, void *dst, const void *host, size_t bytes)
{
    return copy_blocks(s, dst, (char *)(uintptr_t)host, bytes, true);
}

ls_status cuda_copy_out(struct device_stream *s, void *host, const void *src, size_t bytes)
{
    return copy_blocks(s, (char *)(uintptr_t)src, host, bytes, false);
}
