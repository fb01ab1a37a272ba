/* sums.h - the kernel that CUDA IPC's collectives reduce with (device/cuda/ipc_sum.h), for rows.c, which gives it to the device. */
#ifndef LS_KERNELS_CUDA_SUMS_H
#define LS_KERNELS_CUDA_SUMS_H

#include "device/cuda/ipc_sum.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct ipc_sum_kernel cuda_ipc_sum; /* ipc_sum.cu */

#ifdef __cplusplus
}
#endif
#endif
