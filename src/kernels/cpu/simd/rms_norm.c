/* rms_norm.c - RMS norm along rows and its two gradients. Formulas: ref/norm.c.
 *
 * x, y, dy, dx have one type; w may have another; rstd is f32.
 */
#include <math.h>
#include "kernels/cpu/simd/columns.h"

INLINE void norm_row(ls_dtype T, const struct call *c, size_t r, size_t C)
{
    const struct view *w = &c->in[1];
    const char *x = (const char *)c->in[0].data + r * C * ls_dtype_bytes(T);
    char *y = (char *)c->out[0].data + r * C * ls_dtype_bytes(T);
    vf squares = vset(0.0f);

    EACH(i, n, 0, C)
    {
        vf d = load(T, x, i, n);

        squares += d * d;
    }
    float rstd = 1.0f / sqrtf(vsum(squares) / (float)C + (float)c->attr.norm.eps);
    vf vrstd = vset(rstd);
    EACH(i, n, 0, C)
    store(T, y, i, n, load(T, x, i, n) * vrstd * load(w->dtype, w->data, i, n));
    ((float *)c->out[1].data)[r] = rstd;
}

static void norm_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    size_t C = view_last(&c->in[0]);

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, for (size_t r = begin; r < end; r++) norm_row(T, c, r, C))
}

INLINE void dx_row(ls_dtype T, const struct call *c, size_t r, size_t C)
{
    const struct view *w = &c->in[2];
    const char *dy = (const char *)c->in[0].data + r * C * ls_dtype_bytes(T);
    const char *x = (const char *)c->in[1].data + r * C * ls_dtype_bytes(T);
    char *dx = (char *)c->out[0].data + r * C * ls_dtype_bytes(T);
    vf rstd = vset(((const float *)c->in[3].data)[r]), sum_gn = vset(0.0f);

    EACH(i, n, 0, C)
    sum_gn += load(T, dy, i, n) * load(w->dtype, w->data, i, n) * (load(T, x, i, n) * rstd);
    sum_gn = vset(vsum(sum_gn) / (float)C);
    EACH(i, n, 0, C)
    {
        vf g = load(T, dy, i, n) * load(w->dtype, w->data, i, n), norm = load(T, x, i, n) * rstd;

        store(T, dx, i, n, rstd * (g - norm * sum_gn));
    }
}

static void dx_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    size_t C = view_last(&c->in[0]);

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, for (size_t r = begin; r < end; r++) dx_row(T, c, r, C))
}

INLINE void dw_row(ls_dtype T, const struct call *c, size_t r, size_t C, float *dw)
{
    const char *dy = (const char *)c->in[0].data + r * C * ls_dtype_bytes(T);
    const char *x = (const char *)c->in[1].data + r * C * ls_dtype_bytes(T);
    vf rstd = vset(((const float *)c->in[2].data)[r]);

    EACH(i, n, 0, C)
    store(LS_F32, dw, i, n, load(LS_F32, dw, i, n) + load(T, dy, i, n) * (load(T, x, i, n) * rstd));
}

static void dw_part(const struct call *c, size_t begin, size_t end, float *sums)
{
    size_t C = view_last(&c->in[0]);

    BY_TYPE(c->in[0].dtype, T, for (size_t r = begin; r < end; r++) dw_row(T, c, r, C, sums))
}

static bool norm_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && is_plain(&c->out[0]) && is_f32(&c->out[1]) && c->in[0].dtype == c->out[0].dtype;
}

static bool simd_rms_norm_dx_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && is_plain(&c->in[2]) && is_f32(&c->in[3]) && is_plain(&c->out[0]) &&
           c->in[1].dtype == c->in[0].dtype && c->out[0].dtype == c->in[0].dtype;
}

static bool dw_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && is_f32(&c->in[2]) && c->in[1].dtype == c->in[0].dtype && is_plain(&c->out[0]);
}

static void over_rows(const struct call *c, threads_range_fn *fn)
{
    threads_for(view_rows(&c->in[0]), row_grain(view_last(&c->in[0])), fn, (void *)c);
}

static size_t dw_scratch(const struct call *c) { return columns_scratch(c); }
static void simd_rms_norm_norm(const struct call *c) { over_rows(c, norm_rows); }
static void simd_rms_norm_norm_dx(const struct call *c) { over_rows(c, dx_rows); }
static void norm_dw(const struct call *c) { columns_run(c, dw_part); }

const struct kernel SIMD_TABLE(rms_norm)[] = {
    SIMD_ROW(RMS_NORM, norm_accepts, NULL, simd_rms_norm_norm),
    SIMD_ROW(RMS_NORM_DX, simd_rms_norm_dx_accepts, NULL, simd_rms_norm_norm_dx),
    SIMD_ROW(RMS_NORM_DW, dw_accepts, dw_scratch, norm_dw),
    KERNELS_END,
};
