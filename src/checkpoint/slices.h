/* slices.h - boxes of tensors: a range of elements as boxes, and the intersection of two boxes. */
#ifndef LS_CHECKPOINT_SLICES_H
#define LS_CHECKPOINT_SLICES_H

#include <stdbool.h>
#include "lockstep/tensor.h"

struct slice {
    size_t offset[LS_DIMS], extent[LS_DIMS];
}; /* elements [offset, offset + extent) of a tensor */
enum { SLICES_OF_RANGE = 2 * LS_DIMS };

size_t slice_count(int ndim, const struct slice *s); /* elements */
/* Divides elements [from, to) of a box, row-major, into slices in that order. Returns how many: 0 if from == to. */
int slices_of_range(int ndim, const struct slice *box, size_t from, size_t to, struct slice out[SLICES_OF_RANGE]);
bool slices_overlap(int ndim, const struct slice *a, const struct slice *b, struct slice *out);

#endif
