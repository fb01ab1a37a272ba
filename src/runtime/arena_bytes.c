/* arena_bytes.c - see arena_bytes.h.
 *
 * Where the transport has memory of its own, which is host memory, and the device computes in such memory, the bytes are the transport's;
 * otherwise the device's allocator has them, in the given category.
 */
#include "runtime/arena_bytes.h"

#include <stdbool.h>
#include "base/base.h"
#include "comm/comm.h"

static bool of_transport(const struct bytes_home *h) { return h->comm && h->device->host_visible && comm_has_memory(h->comm); }

static void *arena_bytes_take(const struct bytes_home *h, size_t bytes)
{
    if (mem_take(h->category, bytes) < 0) return NULL;
    void *p = ls_comm_alloc(h->comm, MAX(bytes, 1));
    if (!p) mem_give(h->category, bytes);
    return p;
}

void *bytes_alloc(const struct bytes_home *h, size_t bytes)
{
    if (!of_transport(h)) return device_alloc_zeroed(h->device, h->category, bytes);

    void *p = arena_bytes_take(h, bytes);
    if (p && (h->device->fill(NULL, p, 0, bytes) < 0 || h->device->stream_sync(NULL) < 0)) {
        bytes_free(h, p, bytes);
        return NULL;
    }
    return p;
}

void bytes_free(const struct bytes_home *h, void *p, size_t bytes)
{
    if (!p) return;
    if (!of_transport(h)) {
        h->device->free(p);
        return;
    }
    ls_comm_free(h->comm, p);
    mem_give(h->category, bytes);
}
