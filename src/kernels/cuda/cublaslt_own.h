/* cublaslt_own.h - lockstep's own kernels, for calls that cuBLASLt has no algorithm for. */
#ifndef LS_KERNELS_CUDA_CUBLASLT_OWN_H
#define LS_KERNELS_CUDA_CUBLASLT_OWN_H

#include "kernels/kernel.h"

/* NULL: there is none. */
const struct kernel *cublaslt_own_kernel(const struct call *c);
/* What preparing c ended with: LS_EUNSUPPORTED becomes LS_OK if there is an own kernel, *own. The first such call is reported. */
ls_status cublaslt_or_own(ls_status st, const struct call *c, const struct kernel **own);

#endif
