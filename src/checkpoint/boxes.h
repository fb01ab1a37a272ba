/* boxes.h - boxes in tensors: a range of elements as boxes, and the intersection of two boxes. */
#ifndef LS_CHECKPOINT_BOXES_H
#define LS_CHECKPOINT_BOXES_H

#include <stdbool.h>
#include "lockstep/tensor.h"

struct box {
    size_t offset[LS_DIMS], extent[LS_DIMS];
}; /* elements [offset, offset + extent) of a tensor */
enum { BOXES_OF_RANGE = 2 * LS_DIMS };

size_t box_count(int ndim, const struct box *s); /* elements */
/* Divides elements [from, to) of a box, row-major, into boxes in that order. Returns how many: 0 if from == to. */
int boxes_of_range(int ndim, const struct box *box, size_t from, size_t to, struct box out[BOXES_OF_RANGE]);
bool boxes_overlap(int ndim, const struct box *a, const struct box *b, struct box *out);

#endif
