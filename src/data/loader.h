/* loader.h - what a loader holds. */
#ifndef LS_DATA_LOADER_H
#define LS_DATA_LOADER_H

#include <stddef.h>

enum { LOADER_DEPTH = 4 }; /* batches that are ready at once, where ls_batches leaves it open */

/* Bytes of a loader's batches of `count` tokens with their targets; the one that was taken last is kept too. */
static inline size_t loader_bytes(size_t count) { return (LOADER_DEPTH + 1) * count * 2 * sizeof(int); }

#endif
