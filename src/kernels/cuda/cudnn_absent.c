/* cudnn_absent.c - built where cuDNN's header was not found: no kernels on it. */
#include "kernels/cuda/parts.h"

const struct kernel kernels_cuda_cudnn[] = { KERNELS_END };
