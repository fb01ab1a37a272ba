/* nccl_library.h - shared by nccl.c and nccl_memory.c: the functions of NCCL, and its communicators. */
#ifndef LS_DEVICE_CUDA_NCCL_LIBRARY_H
#define LS_DEVICE_CUDA_NCCL_LIBRARY_H

#include <nccl.h>
#include "device/cuda/cuda.h"

/* clang-format off */
#define NCCL_FUNCTIONS(X) \
    X(GetVersion) X(GetErrorString) X(GetLastError) X(GetUniqueId) \
    X(CommInitRankConfig) X(CommFinalize) X(CommDestroy) X(CommAbort) X(CommGetAsyncError) \
    X(MemAlloc) X(MemFree) X(CommRegister) X(CommDeregister) \
    X(AllReduce) X(AllGather) X(ReduceScatter) X(Reduce) X(Broadcast) X(Send) X(Recv) X(GroupStart) X(GroupEnd)
/* clang-format on */

struct nccl_functions {
#define NCCL_POINTER(name) __typeof__(nccl##name) *name;
    NCCL_FUNCTIONS(NCCL_POINTER)
#undef NCCL_POINTER
};
extern struct nccl_functions nccl;

enum group_state { GROUP_OPENING, GROUP_GREETING, GROUP_OPEN, GROUP_FINISHING, GROUP_FINISHED, GROUP_ABORTED };

struct device_group {
    struct device_group *next;
    ncclComm_t comm;
    int rank, n;
    bool messages;
    enum group_state state;
    char *scratch; /* device memory */
    size_t scratch_bytes;
    size_t left, taken; /* free bytes of the GPU before it was opened; how many fewer after */
};
extern struct device_group *nccl_groups; /* all that were opened and not closed */

/* LS_OK, or the device has failed; g NULL: not a communicator's call. */
ls_status nccl_check(const struct device_group *g, ncclResult_t r, const char *call);

/* ---- nccl_memory.c ---- */

ls_status nccl_memory_opened(struct device_group *g);  /* g is open */
ls_status nccl_memory_finish(struct device_group *g);  /* before g is finished: all calls are over */
void nccl_memory_closed(const struct device_group *g); /* after g was closed or aborted */

#endif
