/* merge.c - attention over two sets of keys, merged by their running statistics.
 *
 * Views may have any strides, except that the last dim of o and o2 is contiguous; o's types are floating, lse is f32.
 */
#include <math.h>
#include "kernels/cpu/simd/simd.h"

INLINE void blend(ls_dtype T, ls_dtype T2, void *o, const void *o2, float a, float b, size_t D)
{
    EACH(i, n, 0, D)
    store(T, o, i, n, vset(a) * load(T, o, i, n) + vset(b) * load(T2, o2, i, n));
}

static char *simd_merge_row_of(const struct view *v, size_t b, size_t t, size_t h)
{
    return (char *)v->data +
           ((ptrdiff_t)b * v->stride[0] + (ptrdiff_t)t * v->stride[1] + (ptrdiff_t)h * v->stride[2]) * (ptrdiff_t)ls_dtype_bytes(v->dtype);
}

static void merge_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    const struct view *o = &c->out[0], *o2 = &c->in[0];
    size_t T = o->size[1], H = o->size[2];

    (void)thread;
    for (size_t row = begin; row < end; row++) {
        size_t b = row / H / T, t = row / H % T, h = row % H;
        float *lse = (float *)simd_merge_row_of(&c->out[1], b, h, t), old = *lse, new = *(float *)simd_merge_row_of(&c->in[1], b, h, t);
        float most = old > new ? old : new;

        if (most == -INFINITY) continue; /* no key yet */
        float sum = expf(old - most) + expf(new - most);
        BY_TYPE(o->dtype, X,
                BY_TYPE(o2->dtype, X2,
                        blend(X, X2, simd_merge_row_of(o, b, t, h), simd_merge_row_of(o2, b, t, h), expf(old - most) / sum,
                              expf(new - most) / sum, o->size[3])))
        *lse = most + logf(sum);
    }
}

static bool rows_ok(const struct view *v) { return is_fast_type(v->dtype) && v->ndim == 4 && (v->stride[3] == 1 || v->size[3] <= 1); }

static bool merge_accepts(const struct call *c)
{
    return rows_ok(&c->in[0]) && rows_ok(&c->out[0]) && c->in[1].dtype == LS_F32 && c->out[1].dtype == LS_F32;
}

static void merge(const struct call *c) { threads_for(view_rows(&c->out[0]), row_grain(view_last(&c->out[0])), merge_rows, (void *)c); }

const struct kernel SIMD_TABLE(merge)[] = {
    SIMD_ROW(ATTENTION_MERGE, merge_accepts, NULL, merge),
    KERNELS_END,
};
