/* kernels_ref_shape.c - reference: copies, gathers, sums over a dim. */
#include "tensor/kernels_ref.h"

/* The one op that also copies integers, and exactly: an i64 need not fit a double. */
static void copy(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->out[0];
    size_t xsize = ls_dtype_bytes(x->dtype), ysize = ls_dtype_bytes(y->dtype);

    for (size_t i = 0; i < view_count(x); i++)
        ls_convert((char *)y->data + view_offset(y, i) * (ptrdiff_t)ysize, y->dtype,
                   (char *)x->data + view_offset(x, i) * (ptrdiff_t)xsize, x->dtype, 1);
}

static void copy_view(const struct view *x, const struct view *y)
{
    copy(&(struct call){ .op = OP_COPY, .nin = 1, .nout = 1, .in[0] = *x, .out[0] = *y });
}

static void concat(const struct call *c)
{
    int dim = c->attr.concat.dim;
    size_t start = 0;

    for (int i = 0; i < c->nin; i++) {
        struct view y = view_narrow(&c->out[0], dim, start, c->in[i].size[dim]);

        copy_view(&c->in[i], &y);
        start += c->in[i].size[dim];
    }
}

static void pad(const struct call *c)
{
    const struct view *dy = &c->in[0], *dx = &c->out[0];
    int dim = c->attr.pad.dim;
    struct view inside = view_narrow(dx, dim, c->attr.pad.start, dy->size[dim]);

    for (size_t i = 0; i < view_count(dx); i++)
        ref_put(dx, i, 0);
    copy_view(dy, &inside);
}

static void cache_write(const struct call *c)
{
    const struct view *x = &c->in[0], *cache = &c->out[0];
    int64_t pos = ref_int(&c->in[1], 0);
    struct view rows;

    ASSERT(pos >= 0 && (size_t)pos + x->size[1] <= cache->size[1]);
    rows = view_narrow(cache, 1, (size_t)pos, x->size[1]);
    copy_view(x, &rows);
}

static void reduce_sum(const struct call *c)
{
    const struct view *x = &c->in[0];
    int dim = c->attr.reduce.dim;
    size_t n = dim < 0 ? view_count(x) : x->size[dim], inner = 1;

    for (int d = x->ndim - 1; dim >= 0 && d > dim; d--)
        inner *= x->size[d];
    for (size_t i = 0; i < view_count(&c->out[0]); i++) {
        double sum = 0;

        for (size_t j = 0; j < n; j++)
            sum += ref_get(x, (i / inner * n + j) * inner + i % inner);
        ref_put(&c->out[0], i, sum);
    }
}

static void embedding(const struct call *c)
{
    const struct view *w = &c->in[1];
    size_t C = view_last(w);

    for (size_t r = 0; r < view_count(&c->in[0]); r++) {
        int64_t id = ref_int(&c->in[0], r);

        ASSERT(id >= 0 && (size_t)id < w->size[0]);
        for (size_t i = 0; i < C; i++)
            ref_put(&c->out[0], r * C + i, ref_get(w, (size_t)id * C + i));
    }
}

/* The sum of a row of dw is formed before it is added, as everywhere: a row is found once for all its ids. */
static void embedding_dw(const struct call *c)
{
    const struct view *dy = &c->in[0], *ids = &c->in[1], *dw = &c->out[0];
    size_t C = view_last(dy), R = view_count(ids), V = dw->size[0];

    for (size_t first = 0; first < R; first++) {
        int64_t id = ref_int(ids, first);
        bool seen = false;

        ASSERT(id >= 0 && (size_t)id < V);
        for (size_t r = 0; r < first && !seen; r++)
            seen = ref_int(ids, r) == id;
        for (size_t i = 0; i < C && !seen; i++) {
            double sum = 0;

            for (size_t r = first; r < R; r++)
                if (ref_int(ids, r) == id)
                    sum += ref_get(dy, r * C + i);
            ref_add(dw, (size_t)id * C + i, sum);
        }
    }
}

const struct kernel kernels_ref_shape[] = {
    REF_ROW(COPY, copy, NULL),
    REF_ROW(CONCAT, concat, NULL),
    REF_ROW(PAD, pad, NULL),
    REF_ROW(CACHE_WRITE, cache_write, NULL),
    REF_ROW(REDUCE_SUM, reduce_sum, NULL),
    REF_ROW(EMBEDDING, embedding, NULL),
    REF_ROW(EMBEDDING_DW, embedding_dw, NULL),
    REF_END,
};
