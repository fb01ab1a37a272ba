/* slices.h - boxes of tensors: what a stretch of elements is as boxes, and where two boxes meet. */
#ifndef LS_CHECKPOINT_SLICES_H
#define LS_CHECKPOINT_SLICES_H

#include <stdbool.h>
#include "lockstep/tensor.h"

struct slice {
    size_t offset[LS_DIMS], extent[LS_DIMS];
}; /* elements [offset, offset + extent) of a tensor */
enum { SLICES_OF_RANGE = 2 * LS_DIMS };

size_t slice_count(int ndim, const struct slice *s); /* elements */
/* Elements [from, to) of a box, row-major, as slices one after another in that order. Returns how many: none when from == to. */
int slices_of_range(int ndim, const struct slice *box, size_t from, size_t to, struct slice out[SLICES_OF_RANGE]);
bool slices_meet(int ndim, const struct slice *a, const struct slice *b, struct slice *out);

#endif
