/* ipc_sum.h - the kernel that CUDA IPC's collectives reduce with. */
#ifndef LS_DEVICE_CUDA_IPC_SUM_H
#define LS_DEVICE_CUDA_IPC_SUM_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/collectives.h"

enum { IPC_RANKS = 64 };

/* out[i] = the sum, mean or maximum of in[0][i] .. in[n - 1][i], added in this order: half types in f32 and rounded once, the mean as
 * sum / n, a maximum NaN if one of them is, as include/lockstep/comm.h says. in[r] is aligned to 16 bytes; out may be in[r] for some r. */
struct ipc_sum {
    void *out;
    const void *in[IPC_RANKS];
    int n;
    size_t count;
    ls_dtype type; /* ipc_sums() */
    enum device_redop redop;
};

bool ipc_sums(ls_dtype type);
void ipc_sum_launch(struct device_stream *s, const struct ipc_sum *x); /* src/kernels/cuda/ipc_sum.cu */

#ifdef __cplusplus
}
#endif
#endif
