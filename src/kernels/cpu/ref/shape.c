/* shape.c - reference: copies, gathers, sums over a dim. */
#include "kernels/cpu/ref/ref.h"

#include <math.h>

/* The only op that also copies integers, and exactly: an i64 may not fit a double. */
static void ref_shape_copy(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->out[0];
    size_t xsize = ls_dtype_bytes(x->dtype), ysize = ls_dtype_bytes(y->dtype);

    for (size_t i = 0; i < view_count(x); i++)
        ls_convert((char *)y->data + view_offset(y, i) * (ptrdiff_t)ysize, y->dtype, (char *)x->data + view_offset(x, i) * (ptrdiff_t)xsize,
                   x->dtype, 1);
}

static void copy_view(const struct view *x, const struct view *y)
{
    ref_shape_copy(&(struct call){ .op = OP_COPY, .nin = 1, .nout = 1, .in[0] = *x, .out[0] = *y });
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

    for (size_t i = 0; i < view_count(dx); i++) ref_put(dx, i, 0);
    copy_view(dy, &inside);
}

static void cache_write(const struct call *c)
{
    const struct view *x = &c->in[0], *cache = &c->out[0];
    int64_t pos = ref_int(&c->in[1], 0);

    ASSERT(pos >= 0 && (size_t)pos + x->size[1] <= cache->size[1]);
    struct view rows = view_narrow(cache, 1, (size_t)pos, x->size[1]);
    copy_view(x, &rows);
}

/* Without elements a sum is 0, the largest is -inf. */
static void shape_reduce(const struct call *c, bool largest)
{
    const struct view *x = &c->in[0];
    int dim = c->attr.reduce.dim;
    size_t n = dim < 0 ? view_count(x) : x->size[dim], inner = 1;

    for (int d = x->ndim - 1; dim >= 0 && d > dim; d--) inner *= x->size[d];
    for (size_t i = 0; i < view_count(&c->out[0]); i++) {
        double all = largest ? -INFINITY : 0;

        for (size_t j = 0; j < n; j++) {
            double one = ref_get(x, (i / inner * n + j) * inner + i % inner);

            all = !largest ? all + one : one > all || isnan(one) ? one : all;
        }
        ref_put(&c->out[0], i, all);
    }
}

static void reduce_sum(const struct call *c) { shape_reduce(c, false); }
static void reduce_max(const struct call *c) { shape_reduce(c, true); }

/* The row of w or dw for position r of ids; at least the number of w's rows: none. */
static size_t ref_shape_row_of(const struct call *c, const struct view *ids, size_t r)
{
    ASSERT(ref_int(ids, r) >= 0);
    return (size_t)ref_int(ids, r) - c->attr.embedding.first;
}

static void embedding(const struct call *c)
{
    const struct view *w = &c->in[1];
    size_t C = view_last(w);

    for (size_t r = 0; r < view_count(&c->in[0]); r++) {
        size_t row = ref_shape_row_of(c, &c->in[0], r);

        for (size_t i = 0; i < C; i++) ref_put(&c->out[0], r * C + i, row < w->size[0] ? ref_get(w, row * C + i) : 0);
    }
}

/* As everywhere, the sum of a row of dw is formed before it is added: each row is visited once for all its ids. */
static void embedding_dw(const struct call *c)
{
    const struct view *dy = &c->in[0], *ids = &c->in[1], *dw = &c->out[0];
    size_t C = view_last(dy), R = view_count(ids);

    for (size_t first = 0; first < R; first++) {
        size_t row = ref_shape_row_of(c, ids, first);
        bool done = row >= dw->size[0];

        for (size_t r = 0; r < first && !done; r++) done = ref_shape_row_of(c, ids, r) == row;
        for (size_t i = 0; i < C && !done; i++) {
            double sum = 0;

            for (size_t r = first; r < R; r++)
                if (ref_shape_row_of(c, ids, r) == row) sum += ref_get(dy, r * C + i);
            ref_add(dw, row * C + i, sum);
        }
    }
}

/* Block b of the split dim, which begins at element *at of the flat buffer; *at moves past it. */
static struct view block_of(const struct call *c, const struct view *x, const struct view *flat, int b, size_t *at, struct view *part)
{
    int dim = c->attr.blocks.dim, n = c->attr.blocks.n;
    size_t begin = shard_begin(x->size[dim], c->attr.blocks.grain, b, n), end = shard_begin(x->size[dim], c->attr.blocks.grain, b + 1, n);
    struct view block = view_narrow(x, dim, begin, end - begin);

    *part = view_narrow(flat, 0, *at, view_count(&block));
    *at += view_count(&block);
    return block;
}

static void copy_block(const struct view *from, const struct view *to)
{
    for (size_t i = 0; i < view_count(from); i++) ref_put(to, i, ref_get(from, i));
}

static void ref_shape_pack(const struct call *c)
{
    size_t at = 0;

    for (int b = 0; b < c->attr.blocks.n; b++) {
        struct view part, block = block_of(c, &c->in[0], &c->out[0], b, &at, &part);

        copy_block(&block, &part);
    }
}

static void ref_shape_unpack(const struct call *c)
{
    size_t at = 0;

    for (int b = 0; b < c->attr.blocks.n; b++) {
        struct view part, block = block_of(c, &c->out[0], &c->in[0], b, &at, &part);

        copy_block(&part, &block);
    }
}

const struct kernel kernels_ref_shape[] = {
    REF_ROW(COPY, ref_shape_copy, NULL),
    REF_ROW(CONCAT, concat, NULL),
    REF_ROW(PAD, pad, NULL),
    REF_ROW(CACHE_WRITE, cache_write, NULL),
    REF_ROW(REDUCE_SUM, reduce_sum, NULL),
    REF_ROW(REDUCE_MAX, reduce_max, NULL),
    REF_ROW(EMBEDDING, embedding, NULL),
    REF_ROW(EMBEDDING_DW, embedding_dw, NULL),
    REF_ROW(PACK_BLOCKS, ref_shape_pack, NULL),
    REF_ROW(UNPACK_BLOCKS, ref_shape_unpack, NULL),
    KERNELS_END,
};
