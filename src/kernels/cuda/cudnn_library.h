/* cudnn_library.h - cuDNN's functions, from libcudnn as it is found when it is first needed; the only file that includes its header.
 *
 *   cudnn_library.c     finds the library and its functions, makes the handle
 *   cudnn_graph.c       builds operation graphs
 *   cudnn_plan.c        chooses an engine for a graph, runs it
 *   cudnn_attention.c   attention and its gradient as graphs of matmuls, softmax and mask
 *   cudnn_conv.c        convolutions and their gradients as graphs
 *   cudnn_rows.c        the rows of the kernel table
 *   cudnn_absent.c      in their place, where NVIDIA's header was not found
 */
#ifndef LS_KERNELS_CUDA_CUDNN_LIBRARY_H
#define LS_KERNELS_CUDA_CUDNN_LIBRARY_H

#include <cudnn.h>
#include <stdbool.h>
#include "lockstep/status.h"

/* clang-format off */
#define CUDNN_FUNCTIONS(F) \
    F(GetVersion) F(GetErrorString) F(Create) F(SetStream) F(BackendCreateDescriptor) F(BackendDestroyDescriptor) \
    F(BackendSetAttribute) F(BackendGetAttribute) F(BackendFinalize) F(BackendExecute)
/* clang-format on */

/* cudnn.Create is cudnnCreate, and so on. */
struct cudnn_functions {
#define CUDNN_FUNCTION(name) __typeof__(cudnn##name) *name;
    CUDNN_FUNCTIONS(CUDNN_FUNCTION)
#undef CUDNN_FUNCTION
};
extern struct cudnn_functions cudnn;

/* Looks for the library the first time; warns once if it is missing or too old. False with run.cudnn=false. */
bool cudnn_found(void);
/* After cudnn_found(). The handle for this process' GPU, made the first time. LS_EUNSUPPORTED: the library cannot be used here. */
ls_status cudnn_handle(cudnnHandle_t *out);
const char *cudnn_version(void);           /* "9.19.0" */
bool cudnn_is_allocation(cudnnStatus_t s); /* a lack of memory */
/* LS_OK, or the device has failed. */
ls_status cudnn_check(cudnnStatus_t s, const char *call);

#endif
