/* own_kernel.h - lockstep's own CUDA kernels, for calls of a library's row that the library does not take after all. */
#ifndef LS_KERNELS_CUDA_OWN_KERNEL_H
#define LS_KERNELS_CUDA_OWN_KERNEL_H

#include "kernels/kernel.h"

/* The kernel that would be chosen without libraries; NULL: there is none. */
const struct kernel *own_kernel(const struct call *c);
/* What preparing c with cuBLASLt ended with: LS_EUNSUPPORTED becomes LS_OK if there is an own kernel, *own. The first such call of the
 * process is reported. */
ls_status own_kernel_instead(ls_status st, const struct call *c, const struct kernel **own);

#endif
