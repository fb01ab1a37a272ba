/* loader.h - the memory of a loader. */
#ifndef LS_DATA_LOADER_H
#define LS_DATA_LOADER_H

#include <stddef.h>
#include "lockstep/data.h"

enum { LOADER_DEPTH = 4 }; /* batches kept ready by default */

/* Bytes of a loader's batches of `count` tokens with their targets; including the one that was taken last. */
static inline size_t loader_bytes(size_t count) { return (LOADER_DEPTH + 1) * count * 2 * sizeof(int); }

/* An injected fault: called by a loader's thread before it reads a batch. */
typedef void loader_fault_fn(void);
extern loader_fault_fn *loader_fault; /* NULL unless train/faults/fault_points.h has armed one */

#endif
