/* stub.h - a CUDA runtime for tests: the functions of the runtime API that lockstep uses, on the checking device (src/device/check.h).
 *
 * The host side of the CUDA module is linked with it instead of libcudart: lockstep_cuda_stub.so, which LOCKSTEP_CUDA_MODULE names. Device
 * addresses fault when the host touches them, streams are drained in a random order, kernels are run by the emulator
 * (tests/cuda_emulator) when their stream has come to them, and operations that touch the same bytes in no order end the process. The
 * arguments of each call are compared with what the documentation of the API allows: a process that breaks it ends with one line and exit
 * code 97. Calls can be made to fail.
 *
 * LOCKSTEP_CUDA_STUB="gpus=2 fail=17": settings, each with its default:
 *   gpus=8       GPUs of the machine, of which CUDA_VISIBLE_DEVICES may leave some
 *   driver=13000 the CUDA version that the driver supports; 0: no driver
 *   capability=9 the first number of the GPUs' compute capability
 *   memory=1073741824 bytes of each GPU
 *   seed=0       of the order in which streams are drained
 *   fail=0       the call with this number fails: allocations for lack of memory, others as a GPU that has failed, as does all after them
 *   fail_gpu=-1  only processes of that GPU have calls that fail; -1: all
 *   fail_run=0   the operation with this number fails when it runs
 *   capture_fail=0 the capture with this number is found to be invalid when it ends
 *   calls=       the file to which each process adds a line at its end: the numbers of calls, of operations, of calls of NCCL, of its
 *                collectives on registered memory, of graphs captured, of launches of graphs, and of calls that ask whether something
 *                has ended
 *   trace=       the file to which a process writes the name of each call, a line each
 *   nccl=        the folder of the files by which ranks communicate in NCCL; none: there is no libnccl
 *   nccl_fail=0  NCCL's call with this number fails
 *   nccl_version= the number that ncclGetVersion returns instead of its own
 *   nccl_async=0 ncclCommGetAsyncError reports an error from its call with this number on
 *   nccl_end=    GPU:HOW:N: the process of that GPU does not make its collective call number N, but ends (kill), is stopped (stop), or
 *                loops for ever (loop)
 *   nccl_open=   GPU:HOW:N: the same, instead of opening its Nth communicator
 *   nccl_close=  GPU:HOW:N: the same, instead of finalizing its Nth communicator
 *   write_end=   GPU:HOW:N: the same, instead of its Nth cuStreamWriteValue64
 *   ipc_open=, ipc_close= GPU:HOW:N: the same, instead of its Nth cudaIpcOpenMemHandle or cudaIpcCloseMemHandle
 *   ipc=1        0: GPUs have no CUDA IPC
 *   peers=1      0: GPUs have no access to each other's memory
 *   kernels=cuda cpu: the kernels of the cpu run, staged through host memory; none: there are none
 *   cublaslt=1   0: there is no libcublasLt
 *   cudnn=1      0: there is no libcudnn
 *   cudnn_version=91900 what cudnnGetVersion returns
 *   cudnn_create=0 the status with which cudnnCreate fails, as where a part of the library is missing
 *   cudnn_pairs=0 what cudnn_pairs_most is instead of its own value
 *   cudnn_proposals=0 so many engines that lockstep may not take are proposed before the others
 *   cudnn_engines=1 0: cuDNN has no engine that lockstep may take (stub_cudnn.h)
 *   library=     the folder that has NCCL, cuBLASLt and cuDNN, in it or below; none: the loader knows them
 *   algorithms=1 0: cuBLASLt has no algorithm for any matmul
 *   epilogues=1  0: cuBLASLt has no algorithm for GELU and bias gradients; 2: it calls them invalid
 *   fastest=1    the algorithm of cuBLASLt (stub_cublaslt.h) that is the fastest
 */
#ifndef LS_TESTS_CUDA_STUB_H
#define LS_TESTS_CUDA_STUB_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include "device/device.h"

enum { STUB_VISIBLE = 64 };

/* The process of a GPU ends instead of making the call with this number; 0: no call. */
struct stub_end {
    uint64_t number;
    int gpu;
    char how[8];
};

struct stub_settings {
    int gpus, driver, capability;
    size_t memory, cudnn_pairs;
    uint64_t seed, fail, fail_run, nccl_fail, nccl_async, capture_fail;
    int nccl_version, cudnn_version, fail_gpu;
    struct stub_end nccl_end, nccl_open, nccl_close, write_end, ipc_open, ipc_close;
    char calls[512], trace[512], nccl[512], library[512];
    bool cpu_kernels, no_kernels, cublaslt, algorithms, cudnn, cudnn_engines, ipc, peers;
    int fastest, epilogues, cudnn_proposals, cudnn_create;
    int visible[STUB_VISIBLE], nvisible; /* GPUs that CUDA_VISIBLE_DEVICES leaves */
};
const struct stub_settings *stub_settings(void);

void stub_die(const char *fmt, ...) LS_PRINTF(1, 2); /* the contract was broken */

/* At the start of each call: cudaSuccess, or the error with which it ends. */
cudaError_t stub_call(const char *name, bool allocates);
cudaError_t stub_fails(void);                                        /* the error of all calls from now on; cudaSuccess: none */
void stub_set_last(cudaError_t e);                                   /* sets what cudaGetLastError() returns */
struct device_stream *stub_stream(cudaStream_t s, const char *call); /* the checking device's stream; s must exist */
/* o on s, unless an operation before it has failed. Dies if the emulator reports something. */
void stub_enqueue(struct device_stream *s, const struct device_operation *o);

/* The time that events measure, after so many microseconds more. */
uint64_t stub_time_passes(unsigned microseconds);

/* Ends this process as the setting says, if this is the call with that number. */
void stub_end_at(const struct stub_end *end, uint64_t number);

bool stub_is_pinned(const void *p, size_t bytes);
void stub_ipc_freed(const void *p); /* dies if another process has it mapped */

void stub_need_context(const char *call);
void stub_need_kernels(const char *call); /* the driver loads all kernels at once: CUDA_MODULE_LOADING as the first call found it */
void stub_need_thread(const char *call); /* this thread has called cudaSetDevice */
void stub_wait_for_all(const char *call); /* a call that may wait for all streams must not be made while one waits for the host */

int stub_gpu(void); /* the GPU of this process, in the machine's numbers */
uint64_t *stub_nccl_calls(void); /* so many calls of NCCL */
uint64_t *stub_nccl_in_place(void); /* so many collectives whose operands are all registered */

/* p was allocated by a library, which alone frees it; on is false: no longer. */
void stub_allocated(void *p, bool on);
bool stub_is_allocated(const void *p);

/* The memory of one GPU; false: there is not so much left. */
bool stub_memory_take(size_t bytes);
void stub_memory_give(size_t bytes);
size_t stub_memory_left(void);

#endif
