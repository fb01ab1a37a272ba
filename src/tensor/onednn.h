/* onednn.h - what the rest of the floor wants of oneDNN; only onednn.c knows its interface. */
#ifndef LS_TENSOR_ONEDNN_H
#define LS_TENSOR_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include "tensor/kernel.h"

/* Tiles of bf16 in hardware, which oneDNN uses and product.h does not; false under a cap of the instruction set. */
bool onednn_has_amx(void);

/* Primitives that prepared calls hold: one for all calls of the same sizes, strides, types, sum and threads. */
size_t onednn_primitives(void);

/* Whether oneDNN's row takes the call. */
bool onednn_accepts(const struct call *c);

#endif
