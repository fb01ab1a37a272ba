/* ipc_sum.h - what the kernel that CUDA IPC's collectives reduce with is given. */
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
    ls_dtype type; /* one that the kernel takes */
    enum device_redop redop;
};

/* The kernel is of a higher floor, which gives it to the device: see module.h. */
struct ipc_sum_kernel {
    bool (*takes)(ls_dtype type);
    void (*launch)(struct device_stream *s, const struct ipc_sum *x);
};

#ifdef __cplusplus
}
#endif
#endif
