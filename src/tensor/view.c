/* view.c - properties of strided views. */
#include "kernels/kernel.h"

#include "base/base.h"

bool view_given(const struct view *v) { return v->ndim != VIEW_ABSENT; }

bool call_has_in(const struct call *c, int i) { return i < c->nin && view_given(&c->in[i]); }

bool call_has_out(const struct call *c, int i) { return i < c->nout && view_given(&c->out[i]); }

size_t view_count(const struct view *v)
{
    size_t count = 1;

    if (!view_given(v)) return 0;
    for (int d = 0; d < v->ndim; d++) count *= v->size[d];
    return count;
}

size_t view_bytes(const struct view *v) { return view_count(v) * ls_dtype_bytes(v->dtype); }

/* Strides of dims of size 1 are never used, and a view without elements has no wrong strides. */
bool view_is_contiguous(const struct view *v)
{
    size_t want = 1;

    if (!view_given(v)) return false;
    if (view_count(v) == 0) return true;
    for (int d = v->ndim - 1; d >= 0; d--) {
        if (v->size[d] != 1 && v->stride[d] != (ptrdiff_t)want) return false;
        want *= v->size[d];
    }
    return true;
}

bool view_reach(const struct view *v, ptrdiff_t *low, ptrdiff_t *high)
{
    *low = *high = 0;
    for (int d = 0; d < v->ndim; d++) {
        ptrdiff_t far = ((ptrdiff_t)v->size[d] - 1) * v->stride[d];

        if (!v->size[d]) return false;
        *(far < 0 ? low : high) += far;
    }
    return true;
}

struct view view_of(void *data, ls_dtype type, int ndim, const size_t *size)
{
    struct view v = { .data = data, .dtype = type, .ndim = ndim };
    ptrdiff_t stride = 1;

    ASSERT(ndim >= 0 && ndim <= LS_DIMS);
    for (int d = ndim - 1; d >= 0; d--) {
        v.size[d] = size[d];
        v.stride[d] = stride;
        stride *= (ptrdiff_t)size[d];
    }
    return v;
}

struct view view_narrow(const struct view *v, int dim, size_t start, size_t size)
{
    struct view out = *v;

    ASSERT(dim >= 0 && dim < v->ndim && start <= v->size[dim] && size <= v->size[dim] - start);
    if (size > 0) out.data = (char *)v->data + (ptrdiff_t)start * v->stride[dim] * (ptrdiff_t)ls_dtype_bytes(v->dtype);
    out.size[dim] = size;
    return out;
}

size_t view_rows(const struct view *v)
{
    size_t rows = 1;

    if (!view_given(v)) return 0;
    for (int d = 0; d < v->ndim - 1; d++) rows *= v->size[d];
    return rows;
}

size_t view_last(const struct view *v) { return v->ndim > 0 ? v->size[v->ndim - 1] : 1; }

/* Elements of dims 2 and on, of one index of dim 1. */
static size_t inner_count(const struct view *x)
{
    size_t inner = 1;

    for (int d = 2; d < x->ndim; d++) inner *= x->size[d];
    return inner;
}

uint64_t dropout_index(const struct call *c, size_t i, size_t *run)
{
    const struct view *x = &c->in[0], *step = &c->in[1];
    size_t full = c->attr.dropout.full, count = view_count(x), inner = full ? inner_count(x) : 1;
    size_t first = full ? c->attr.dropout.count[0] * inner : 0, mine = full ? x->size[1] * inner : count;
    size_t row = full ? full * inner : x->ndim > 0 && x->size[0] > 0 ? count / x->size[0] : 0, at = full ? i % mine : i;
    uint64_t index = c->attr.dropout.first;

    if (view_count(step) > 1) index += (uint64_t)((const int64_t *)step->data)[step->stride[0]] * row;
    if (!full) {
        *run = count - i;
        return index + i;
    }
    ASSERT(x->ndim >= 2 && c->attr.dropout.count[0] + c->attr.dropout.count[1] == x->size[1]);
    *run = (at < first ? first : mine) - at;
    return index + i / mine * row + (at < first ? c->attr.dropout.begin[0] * inner + at : c->attr.dropout.begin[1] * inner + at - first);
}
