/* pointwise.c - add, mul, scale, fill, accumulate: one pass at the speed of memory. */
#include "kernels/cpu/simd/simd.h"

static void run_over(size_t count, threads_range_fn *fn, const struct call *c) { threads_for(count, GRAIN, fn, (void *)c); }

/* a + b over count elements; b may be of another type. */
INLINE void add_stretch(ls_dtype T, const void *a, size_t ai, ls_dtype bt, const void *b, size_t bi, void *y, size_t count)
{
    EACH(i, n, 0, count)
    store(T, y, ai + i, n, load(T, a, ai + i, n) + load(bt, b, bi + i, n));
}

INLINE void add_one(ls_dtype T, const void *a, float b, void *y, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    store(T, y, i, n, load(T, a, i, n) + vset(b));
}

/* b repeats every `repeat` elements: adds it one repetition at a time. */
INLINE void add_repeated(ls_dtype T, const struct call *c, size_t repeat, size_t begin, size_t end)
{
    const struct view *a = &c->in[0], *b = &c->in[1];

    for (size_t i = begin, count; i < end; i += count) {
        count = MIN(repeat - i % repeat, end - i);
        if (b->dtype == T)
            add_stretch(T, a->data, i, T, b->data, i % repeat, c->out[0].data, count);
        else
            add_stretch(T, a->data, i, b->dtype, b->data, i % repeat, c->out[0].data, count);
    }
}

static void add_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    const struct view *a = &c->in[0], *b = &c->in[1];
    size_t repeat = view_count(b);

    (void)thread;
    if (repeat == 1)
        BY_TYPE(a->dtype, T, add_one(T, a->data, load_one(b->dtype, b->data, 0), c->out[0].data, begin, end))
    else
        BY_TYPE(a->dtype, T, add_repeated(T, c, repeat, begin, end))
}

static bool add_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && is_plain(&c->out[0]) && c->in[0].dtype == c->out[0].dtype;
}

static void simd_pointwise_add(const struct call *c) { run_over(view_count(&c->in[0]), add_range, c); }

INLINE void mul_of(ls_dtype T, const void *a, const void *b, void *y, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    store(T, y, i, n, load(T, a, i, n) * load(T, b, i, n));
}

static void mul_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, mul_of(T, c->in[0].data, c->in[1].data, c->out[0].data, begin, end))
}

static bool mul_accepts(const struct call *c) { return add_accepts(c) && c->in[1].dtype == c->in[0].dtype; }

static void mul(const struct call *c) { run_over(view_count(&c->in[0]), mul_range, c); }

INLINE void scale_of(ls_dtype T, const void *x, float factor, void *y, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    store(T, y, i, n, load(T, x, i, n) * vset(factor));
}

static void scale_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, scale_of(T, c->in[0].data, (float)c->attr.scale.value, c->out[0].data, begin, end))
}

static bool scale_accepts(const struct call *c) { return is_plain(&c->in[0]) && is_plain(&c->out[0]) && c->in[0].dtype == c->out[0].dtype; }

static void scale(const struct call *c) { run_over(view_count(&c->in[0]), scale_range, c); }

static void fill_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    vf value = vset((float)c->attr.scale.value);

    (void)thread;
    if (c->attr.scale.value == 0) {
        size_t bytes = ls_dtype_bytes(c->out[0].dtype);

        memset((char *)c->out[0].data + begin * bytes, 0, (end - begin) * bytes);
        return;
    }
    BY_TYPE(c->out[0].dtype, T, EACH(i, n, begin, end) store(T, c->out[0].data, i, n, value))
}

/* Zero has the same bytes in every type. */
static bool fill_accepts(const struct call *c)
{
    return view_is_contiguous(&c->out[0]) && (c->attr.scale.value == 0 || is_fast_type(c->out[0].dtype));
}

static void simd_pointwise_fill(const struct call *c) { run_over(view_count(&c->out[0]), fill_range, c); }

INLINE void accumulate_of(ls_dtype T, ls_dtype xt, const void *x, void *y, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    store(T, y, i, n, load(T, y, i, n) + load(xt, x, i, n));
}

static void accumulate_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->out[0].dtype, T, BY_TYPE(c->in[0].dtype, X, accumulate_of(T, X, c->in[0].data, c->out[0].data, begin, end)))
}

/* Number of trailing elements that are contiguous in both views. */
static size_t common_run(const struct view *x, const struct view *y)
{
    size_t run = 1;

    for (int d = y->ndim - 1; d >= 0; d--) {
        if (y->size[d] != 1 && (x->stride[d] != (ptrdiff_t)run || y->stride[d] != (ptrdiff_t)run)) break;
        run *= y->size[d];
    }
    return run;
}

static char *run_of(const struct view *v, size_t element)
{
    return (char *)v->data + view_offset(v, element) * (ptrdiff_t)ls_dtype_bytes(v->dtype);
}

/* Strided views: run by run. */
static void accumulate_runs(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    const struct view *x = &c->in[0], *y = &c->out[0];
    size_t run = common_run(x, y);

    (void)thread;
    for (size_t i = begin; i < end; i++)
        BY_TYPE(y->dtype, T, BY_TYPE(x->dtype, X, accumulate_of(T, X, run_of(x, i * run), run_of(y, i * run), 0, run)))
}

static bool accumulate_accepts(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->out[0];
    bool same = x->ndim == y->ndim;

    for (int d = 0; same && d < y->ndim; d++) same = x->size[d] == y->size[d];
    return is_fast_type(x->dtype) && is_fast_type(y->dtype) &&
           ((view_is_contiguous(x) && view_is_contiguous(y)) || (same && common_run(x, y) > 1));
}

static void accumulate(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->out[0];

    if (view_is_contiguous(x) && view_is_contiguous(y)) {
        run_over(view_count(x), accumulate_range, c);
        return;
    }
    size_t run = common_run(x, y);
    threads_for(view_count(y) / run, row_grain(run), accumulate_runs, (void *)c);
}

const struct kernel SIMD_TABLE(pointwise)[] = {
    SIMD_ROW(ADD, add_accepts, NULL, simd_pointwise_add),
    SIMD_ROW(MUL, mul_accepts, NULL, mul),
    SIMD_ROW(SCALE, scale_accepts, NULL, scale),
    SIMD_ROW(FILL, fill_accepts, NULL, simd_pointwise_fill),
    SIMD_ROW(ACCUMULATE, accumulate_accepts, NULL, accumulate),
    KERNELS_END,
};
