/* boxes.c - see boxes.h. */
#include "checkpoint/boxes.h"

#include "base/base.h"

size_t box_count(int ndim, const struct box *s)
{
    size_t n = 1;

    for (int d = 0; d < ndim; d++) n *= s->extent[d];
    return n;
}

/* of: the box, restricted to one row in the dims before d; [from, to): the range in the rest. */
static int split_range(int ndim, int d, struct box of, size_t from, size_t to, struct box *out)
{
    size_t inner = 1, base = of.offset[d], first;
    int n = 0;

    for (int k = d + 1; k < ndim; k++) inner *= of.extent[k];
    of.extent[d] = 1;
    if (from % inner) { /* the end of a row, or a part of one */
        first = from / inner;
        of.offset[d] = base + first;
        n += split_range(ndim, d + 1, of, from - first * inner, MIN(to - first * inner, inner), out);
    }
    first = (from + inner - 1) / inner;
    size_t last = to / inner;
    if (first < last) {
        out[n] = of;
        out[n].offset[d] = base + first;
        out[n++].extent[d] = last - first;
    }
    if (to % inner && first <= last) {
        of.offset[d] = base + last;
        n += split_range(ndim, d + 1, of, 0, to - last * inner, out + n);
    }
    return n;
}

int boxes_of_range(int ndim, const struct box *box, size_t from, size_t to, struct box out[BOXES_OF_RANGE])
{
    if (from >= to) return 0;
    if (ndim == 0) {
        out[0] = *box;
        return 1;
    }
    return split_range(ndim, 0, *box, from, to, out);
}

bool boxes_overlap(int ndim, const struct box *a, const struct box *b, struct box *out)
{
    struct box both = { 0 };

    for (int d = 0; d < ndim; d++) {
        size_t begin = MAX(a->offset[d], b->offset[d]);
        size_t end = MIN(a->offset[d] + a->extent[d], b->offset[d] + b->extent[d]);

        if (begin >= end) return false;
        both.offset[d] = begin;
        both.extent[d] = end - begin;
    }
    *out = both;
    return true;
}
