/* own_kernel.h - lockstep's own CUDA kernels, for calls of a library's row that the library does not take after all. */
#ifndef LS_KERNELS_CUDA_OWN_KERNEL_H
#define LS_KERNELS_CUDA_OWN_KERNEL_H

#include "kernels/kernel.h"

/* The kernel that would be chosen without libraries; NULL if none accepts c. */
const struct kernel *own_kernel(const struct call *c);
/* st: what preparing c with cuBLASLt returned. LS_EUNSUPPORTED becomes LS_OK if there is an own kernel, *own. The first such call of the
 * process is reported. */
ls_status own_kernel_if(ls_status st, const struct call *c, const struct kernel **own);
/* For rows on a library (struct kernel): the first member of what prepare() leaves in c->state is the own kernel, or NULL. */
const struct kernel *own_kernel_instead(const struct call *c);

#endif
