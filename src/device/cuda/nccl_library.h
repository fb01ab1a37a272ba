/* nccl_library.h - shared by the files of NCCL: its functions, and its communicators.
 *
 *   nccl.c         the library, failures, opening and finishing communicators
 *   nccl_calls.c   collectives and messages
 *   nccl_end.c     destroying and aborting communicators
 *   nccl_memory.c  memory that is registered with communicators
 */
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

enum group_state { GROUP_OPENING, GROUP_GREETING, GROUP_OPEN, GROUP_FINISHING, GROUP_DESTROYING, GROUP_FINISHED, GROUP_ABORTED };

struct nccl_end;

struct device_group {
    struct device_group *next;
    ncclComm_t comm;
    int rank, n;
    enum device_group_kind kind;
    enum group_state state;
    struct nccl_end *end;
    char *scratch; /* device memory */
    size_t scratch_bytes;
    size_t left, taken; /* free bytes of the GPU before it was opened; how many fewer afterwards */
};
extern struct device_group *nccl_groups; /* all that were opened and not closed */

/* LS_OK, or the device has failed; g NULL: not a communicator's call. */
ls_status nccl_check(const struct device_group *g, ncclResult_t r, const char *call);
ls_status nccl_wait(const struct device_group *g);             /* until g is done with what it was given last */
ls_status group_broken(void *group);                           /* LS_OK: g can still end what it was given */
ls_status group_scratch(struct device_group *g, size_t bytes); /* g->scratch has so many bytes, or more */

/* ---- nccl_calls.c ---- */

bool nccl_takes(const struct device_call *c);
ls_status nccl_enqueue(struct device_group *g, struct device_stream *stream, const struct device_call *c, const struct device_watch *w);

/* ---- nccl_end.c ---- */

ls_status nccl_end_new(struct device_group *g);                   /* makes g->end */
void nccl_end_begin(struct device_group *g, bool aborts);         /* aborts or destroys g's communicator, on a thread of its own */
bool nccl_end_is_over(const struct device_group *g);              /* it was not begun, or has ended */
void nccl_end_wait(const struct device_group *g, double seconds); /* until it is over, but no longer than this */
void nccl_end_leave(struct device_group *g);                      /* g is closed, whether it is over or not */

/* ---- nccl_memory.c ---- */

ls_status nccl_memory_opened(struct device_group *g);  /* g is open */
ls_status nccl_memory_finish(struct device_group *g);  /* before g is finished: all calls are over */
void nccl_memory_closed(const struct device_group *g); /* after g was closed or aborted */

#endif
