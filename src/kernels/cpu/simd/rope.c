/* rope.c - rotary positions: the halves of each head rotated by the angles of its position.
 *
 * x and y may have any strides, except that the last dim is contiguous; the table is contiguous.
 */
#include "kernels/cpu/simd/simd.h"

INLINE void rotate(ls_dtype T, ls_dtype tt, const void *x, const void *table, size_t at, float sign, void *y, size_t half)
{
    vf vsign = vset(sign);

    EACH(i, n, 0, half)
    {
        vf cosine = load(tt, table, at + i, n), sine = vsign * load(tt, table, at + half + i, n);
        vf a = load(T, x, i, n), b = load(T, x, half + i, n);

        store(T, y, i, n, a * cosine - b * sine);
        store(T, y, half + i, n, b * cosine + a * sine);
    }
}

static ptrdiff_t simd_rope_row_of(const struct view *v, size_t b, size_t t, size_t h)
{
    return ((ptrdiff_t)b * v->stride[0] + (ptrdiff_t)t * v->stride[1] + (ptrdiff_t)h * v->stride[2]) * (ptrdiff_t)ls_dtype_bytes(v->dtype);
}

static void rope_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    const struct view *x = &c->in[0], *table = &c->in[1], *y = &c->out[0];
    size_t T = x->size[1], H = x->size[2], D = x->size[3];
    float sign = c->attr.rotate.inverse ? -1.0f : 1.0f;

    (void)thread;
    for (size_t row = begin; row < end; row++) {
        size_t t = row / H % T;
        const char *from = (const char *)x->data + simd_rope_row_of(x, row / H / T, t, row % H);
        char *to = (char *)y->data + simd_rope_row_of(y, row / H / T, t, row % H);

        BY_TYPE(x->dtype, X, rotate(X, table->dtype, from, table->data, t * D, sign, to, D / 2))
    }
}

static bool rows_ok(const struct view *v) { return is_fast_type(v->dtype) && v->ndim == 4 && (v->stride[3] == 1 || v->size[3] <= 1); }

static bool rope_accepts(const struct call *c)
{
    return rows_ok(&c->in[0]) && rows_ok(&c->out[0]) && is_plain(&c->in[1]) && c->in[0].dtype == c->out[0].dtype;
}

static void rope(const struct call *c) { threads_for(view_rows(&c->in[0]), row_grain(view_last(&c->in[0])), rope_rows, (void *)c); }

const struct kernel SIMD_TABLE(rope)[] = {
    SIMD_ROW(ROPE, rope_accepts, NULL, rope),
    KERNELS_END,
};
