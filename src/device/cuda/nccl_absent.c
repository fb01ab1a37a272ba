/* nccl_absent.c - in place of nccl.c where NCCL's header was not found when the module was built. */
#include "device/cuda/cuda.h"

void nccl_abort(void) {}
bool nccl_memory_used(void) { return false; }

ls_status nccl_memory_new(size_t bytes, void **out)
{
    (void)bytes;
    *out = NULL;
    return LS_EUNSUPPORTED; /* not called */
}

bool nccl_memory_free(void *p) { return (void)p, false; }
static size_t absent_taken(void) { return 0; }

static ls_status absent_load(char *version, size_t room)
{
    if (room) version[0] = 0;
    return ls_fail(LS_EUNSUPPORTED, "the CUDA module was built without NCCL's header (nccl.h)");
}

/* Nothing else of it is called. */
const struct device_collectives cuda_nccl = { .name = "NCCL", .choice = "nccl", .load = absent_load, .taken = absent_taken };
