/* onednn.h - the functions of onednn.c that the rest of the floor uses; only onednn.c uses oneDNN's interface. */
#ifndef LS_KERNELS_CPU_ONEDNN_ONEDNN_H
#define LS_KERNELS_CPU_ONEDNN_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include "kernels/kernel.h"

/* Number of primitives in use by prepared calls: one for all calls of the same sizes, strides, types, sum and threads. */
size_t onednn_primitives(void);

#endif
