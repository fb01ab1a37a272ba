/* layer_norm.c - layer norm along rows and its two gradients. Formulas: ref/norm.c.
 *
 * x, y, dy, dx have one type; w, b and the statistics may have others (statistics f32). The variance is computed from the differences from
 * the mean, in a second pass over a row that is then in the L1 cache.
 */
#include <math.h>
#include "kernels/cpu/simd/columns.h"

INLINE void norm_row(ls_dtype T, const struct call *c, size_t r, size_t C)
{
    const struct view *w = &c->in[1], *b = &c->in[2];
    const char *x = (const char *)c->in[0].data + r * C * ls_dtype_bytes(T);
    char *y = (char *)c->out[0].data + r * C * ls_dtype_bytes(T);
    vf sum = vset(0.0f), squares = vset(0.0f);

    EACH(i, n, 0, C)
    sum += load(T, x, i, n);
    float mean = vsum(sum) / (float)C;
    vf vmean = vset(mean);
    EACH(i, n, 0, C)
    {
        vf d = vkeep(load(T, x, i, n) - vmean, n, 0.0f);

        squares += d * d;
    }
    float rstd = 1.0f / sqrtf(vsum(squares) / (float)C + (float)c->attr.norm.eps);
    vf vrstd = vset(rstd);
    EACH(i, n, 0, C)
    store(T, y, i, n, (load(T, x, i, n) - vmean) * vrstd * load(w->dtype, w->data, i, n) + load(b->dtype, b->data, i, n));
    ((float *)c->out[1].data)[r] = mean;
    ((float *)c->out[2].data)[r] = rstd;
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
    float rstd = ((const float *)c->in[4].data)[r];
    vf mean = vset(((const float *)c->in[3].data)[r]), vrstd = vset(rstd), sum_g = vset(0.0f), sum_gn = vset(0.0f);

    EACH(i, n, 0, C)
    {
        vf g = load(T, dy, i, n) * load(w->dtype, w->data, i, n);

        sum_g += g;
        sum_gn += g * ((load(T, x, i, n) - mean) * vrstd);
    }
    sum_g = vset(vsum(sum_g) / (float)C);
    sum_gn = vset(vsum(sum_gn) / (float)C);
    EACH(i, n, 0, C)
    {
        vf g = load(T, dy, i, n) * load(w->dtype, w->data, i, n), norm = (load(T, x, i, n) - mean) * vrstd;

        store(T, dx, i, n, vrstd * (g - sum_g - norm * sum_gn));
    }
}

static void dx_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    size_t C = view_last(&c->in[0]);

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, for (size_t r = begin; r < end; r++) dx_row(T, c, r, C))
}

INLINE void dw_row(ls_dtype T, const struct call *c, size_t r, size_t C, float *dw, float *db)
{
    const char *dy = (const char *)c->in[0].data + r * C * ls_dtype_bytes(T);
    const char *x = (const char *)c->in[1].data + r * C * ls_dtype_bytes(T);
    vf mean = vset(((const float *)c->in[2].data)[r]), rstd = vset(((const float *)c->in[3].data)[r]);

    EACH(i, n, 0, C)
    {
        vf d = load(T, dy, i, n);

        store(LS_F32, dw, i, n, load(LS_F32, dw, i, n) + d * ((load(T, x, i, n) - mean) * rstd));
        store(LS_F32, db, i, n, load(LS_F32, db, i, n) + d);
    }
}

static void dw_part(const struct call *c, size_t begin, size_t end, float *sums)
{
    size_t C = view_last(&c->in[0]);

    BY_TYPE(c->in[0].dtype, T, for (size_t r = begin; r < end; r++) dw_row(T, c, r, C, sums, sums + C))
}

static bool norm_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && is_plain(&c->in[2]) && is_plain(&c->out[0]) && is_f32(&c->out[1]) &&
           is_f32(&c->out[2]) && c->in[0].dtype == c->out[0].dtype;
}

static bool simd_layer_norm_dx_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && is_plain(&c->in[2]) && is_f32(&c->in[3]) && is_f32(&c->in[4]) &&
           is_plain(&c->out[0]) && c->in[1].dtype == c->in[0].dtype && c->out[0].dtype == c->in[0].dtype;
}

static bool dw_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && is_f32(&c->in[2]) && is_f32(&c->in[3]) && c->in[1].dtype == c->in[0].dtype &&
           is_plain(&c->out[0]) && is_plain(&c->out[1]);
}

static void over_rows(const struct call *c, threads_range_fn *fn)
{
    threads_for(view_rows(&c->in[0]), row_grain(view_last(&c->in[0])), fn, (void *)c);
}

static size_t dw_scratch(const struct call *c) { return columns_scratch(c); }
static void simd_layer_norm_norm(const struct call *c) { over_rows(c, norm_rows); }
static void simd_layer_norm_norm_dx(const struct call *c) { over_rows(c, dx_rows); }
static void norm_dw(const struct call *c) { columns_run(c, dw_part); }

const struct kernel SIMD_TABLE(layer_norm)[] = {
    SIMD_ROW(LAYER_NORM, norm_accepts, NULL, simd_layer_norm_norm),
    SIMD_ROW(LAYER_NORM_DX, simd_layer_norm_dx_accepts, NULL, simd_layer_norm_norm_dx),
    SIMD_ROW(LAYER_NORM_DW, dw_accepts, dw_scratch, norm_dw),
    KERNELS_END,
};
