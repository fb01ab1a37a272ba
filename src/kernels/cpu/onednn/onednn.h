/* onednn.h - what the rest of the floor wants of oneDNN; only onednn.c knows its interface. */
#ifndef LS_KERNELS_CPU_ONEDNN_ONEDNN_H
#define LS_KERNELS_CPU_ONEDNN_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include "kernels/kernel.h"

/* Primitives that prepared calls hold: one for all calls of the same sizes, strides, types, sum and threads. */
size_t onednn_primitives(void);

#endif
