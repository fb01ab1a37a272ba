/* onednn_load.h - functions of oneDNN's module for tests. */
#ifndef LS_KERNELS_CPU_ONEDNN_LOAD_H
#define LS_KERNELS_CPU_ONEDNN_LOAD_H

#include <stdbool.h>
#include <stddef.h>

/* Loads the module if it is not loaded yet; false: it cannot be used, and oneDNN's rows accept nothing. */
bool onednn_found(void);
/* Number of primitives in use by prepared calls: one for all calls of the same sizes, strides, types, sum and threads. */
size_t onednn_primitives(void);

#endif
