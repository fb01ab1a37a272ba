/* arena_bytes.h - memory that a comm's transport can access without a copy, counted in the memory ledger. */
#ifndef LS_RUNTIME_ARENA_BYTES_H
#define LS_RUNTIME_ARENA_BYTES_H

#include "device/device.h"
#include "lockstep/comm.h"

/* The source of an allocation. comm NULL: the device's own memory. */
struct bytes_home {
    const struct device *device;
    ls_comm *comm;
    enum mem_category category;
};

/* Returns zeroed memory; NULL with the message set. Free it with the same source and size, before the comm is closed. */
void *bytes_alloc(const struct bytes_home *h, size_t bytes);
void bytes_free(const struct bytes_home *h, void *p, size_t bytes); /* p NULL is a no-op */

#endif
