/* copy.c - strided copies and conversions, and the ops based on them: concat, pad, cache writes.
 *
 * Before a copy, dims of size 1 are dropped and neighboring dims that are contiguous in both views are joined, so that the innermost dim,
 * which is copied as one run, is as long as possible.
 */
#include "kernels/cpu/simd/simd.h"

struct move {
    const char *x; /* NULL: y becomes zeros */
    char *y;
    ls_dtype xtype, ytype;
    int ndim; /* >= 1 */
    size_t size[LS_DIMS];
    ptrdiff_t xstride[LS_DIMS], ystride[LS_DIMS];
};

/* Innermost dim last. x and y have the same sizes. */
static struct move move_of(const struct view *x, const struct view *y)
{
    struct move m = { .y = y->data, .xtype = x ? x->dtype : y->dtype, .ytype = y->dtype };

    m.x = x ? x->data : NULL;
    for (int d = 0; d < y->ndim; d++) {
        ptrdiff_t xs = x ? x->stride[d] : y->stride[d], ys = y->stride[d], size = (ptrdiff_t)y->size[d];

        if (size == 1) continue;
        if (m.ndim > 0 && m.xstride[m.ndim - 1] == xs * size && m.ystride[m.ndim - 1] == ys * size)
            m.size[m.ndim - 1] *= (size_t)size;
        else
            m.size[m.ndim++] = (size_t)size;
        m.xstride[m.ndim - 1] = xs;
        m.ystride[m.ndim - 1] = ys;
    }
    if (m.ndim == 0) {
        m.size[0] = m.ndim = 1;
        m.xstride[0] = m.ystride[0] = 1;
    }
    return m;
}

#define COPY_ELEMENTS(type) \
    for (size_t i = 0; i < count; i++) ((type *)y)[(ptrdiff_t)i * ys] = ((const type *)x)[(ptrdiff_t)i * xs]

static void move_bits(size_t bytes, const char *x, ptrdiff_t xs, char *y, ptrdiff_t ys, size_t count)
{
    if (xs == 1 && ys == 1) {
        memcpy(y, x, count * bytes);
        return;
    }
    switch (bytes) {
    case 1: COPY_ELEMENTS(uint8_t); break;
    case 2: COPY_ELEMENTS(uint16_t); break;
    case 4: COPY_ELEMENTS(uint32_t); break;
    default: COPY_ELEMENTS(uint64_t); break;
    }
}

INLINE void convert(ls_dtype X, ls_dtype Y, const char *x, ptrdiff_t xs, char *y, ptrdiff_t ys, size_t count)
{
    if (xs == 1 && ys == 1) EACH(i, n, 0, count)
    store(Y, y, i, n, load(X, x, i, n));
    else for (ptrdiff_t i = 0; i < (ptrdiff_t)count; i++)
        store_one(Y, y + i * ys * (ptrdiff_t)ls_dtype_bytes(Y), 0, load_one(X, x + i * xs * (ptrdiff_t)ls_dtype_bytes(X), 0));
}

/* Copies a range of the innermost dim. */
static void move_run(const struct move *m, const char *x, char *y, size_t count)
{
    ptrdiff_t xs = m->xstride[m->ndim - 1], ys = m->ystride[m->ndim - 1];
    size_t bytes = ls_dtype_bytes(m->ytype);

    if (!m->x && ys == 1)
        memset(y, 0, count * bytes);
    else if (!m->x)
        for (ptrdiff_t i = 0; i < (ptrdiff_t)count; i++) memset(y + i * ys * (ptrdiff_t)bytes, 0, bytes);
    else if (m->xtype == m->ytype)
        move_bits(bytes, x, xs, y, ys, count);
    else
        BY_TYPE(m->xtype, X, BY_TYPE(m->ytype, Y, convert(X, Y, x, xs, y, ys, count)))
}

/* Elements [begin, end) in row-major order. */
static void move_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct move *m = ctx;
    size_t inner = m->size[m->ndim - 1];
    ptrdiff_t xbytes = (ptrdiff_t)ls_dtype_bytes(m->xtype), ybytes = (ptrdiff_t)ls_dtype_bytes(m->ytype);

    (void)thread;
    for (size_t i = begin, count; i < end; i += count) {
        size_t rest = i / inner, j = i % inner;
        ptrdiff_t xat = (ptrdiff_t)j * m->xstride[m->ndim - 1], yat = (ptrdiff_t)j * m->ystride[m->ndim - 1];

        count = MIN(inner - j, end - i);
        for (int d = m->ndim - 2; d >= 0; d--) {
            xat += (ptrdiff_t)(rest % m->size[d]) * m->xstride[d];
            yat += (ptrdiff_t)(rest % m->size[d]) * m->ystride[d];
            rest /= m->size[d];
        }
        move_run(m, m->x ? m->x + xat * xbytes : NULL, m->y + yat * ybytes, count);
    }
}

static void move_view(const struct view *x, const struct view *y)
{
    struct move m = move_of(x, y);

    threads_for(view_count(y), GRAIN, move_range, &m);
}

static bool can_move(const struct view *x, const struct view *y)
{
    return x->dtype == y->dtype || (is_fast_type(x->dtype) && is_fast_type(y->dtype));
}

static bool copy_accepts(const struct call *c) { return can_move(&c->in[0], &c->out[0]) && c->in[0].ndim == c->out[0].ndim; }

static void copy(const struct call *c) { move_view(&c->in[0], &c->out[0]); }

static bool concat_accepts(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (!can_move(&c->in[i], &c->out[0])) return false;
    return true;
}

static void concat(const struct call *c)
{
    int dim = c->attr.concat.dim;
    size_t start = 0;

    for (int i = 0; i < c->nin; i++) {
        struct view part = view_narrow(&c->out[0], dim, start, c->in[i].size[dim]);

        move_view(&c->in[i], &part);
        start += c->in[i].size[dim];
    }
}

static bool pad_accepts(const struct call *c) { return can_move(&c->in[0], &c->out[0]); }

static void pad(const struct call *c)
{
    const struct view *dy = &c->in[0], *dx = &c->out[0];
    int dim = c->attr.pad.dim;
    size_t start = c->attr.pad.start, size = dy->size[dim], end = start + size;
    struct view before = view_narrow(dx, dim, 0, start), inside = view_narrow(dx, dim, start, size);
    struct view after = view_narrow(dx, dim, end, dx->size[dim] - end);

    move_view(NULL, &before);
    move_view(dy, &inside);
    move_view(NULL, &after);
}

static bool cache_write_accepts(const struct call *c) { return can_move(&c->in[0], &c->out[0]) && c->in[1].dtype == LS_I32; }

static void cache_write(const struct call *c)
{
    int32_t pos = *(const int32_t *)c->in[1].data;

    ASSERT(pos >= 0 && (size_t)pos + c->in[0].size[1] <= c->out[0].size[1]);
    struct view rows = view_narrow(&c->out[0], 1, (size_t)pos, c->in[0].size[1]);
    move_view(&c->in[0], &rows);
}

const struct kernel SIMD_TABLE(copy)[] = {
    SIMD_ROW(COPY, copy_accepts, NULL, copy),
    SIMD_ROW(CONCAT, concat_accepts, NULL, concat),
    SIMD_ROW(PAD, pad_accepts, NULL, pad),
    SIMD_ROW(CACHE_WRITE, cache_write_accepts, NULL, cache_write),
    KERNELS_END,
};
