/* batch_norm.c - batch norm: statistics, result, and gradients over images. Formulas: ref/batch.c.
 *
 * x, y, dy, dx have one type; w and b may have others; labels are i32; statistics f64. A channel is B runs of S contiguous elements. Sums:
 * each thread has complete channels, with lanes of f64 and runs in order. x - mean is computed in two steps, with mean as a sum of two
 * floats, so that a large mean loses no digits.
 */
#include "kernels/cpu/batch.h"
#include "kernels/cpu/simd/simd.h"

struct batch {
    const struct call *c;
    size_t B, C, S;
};

static struct batch batch_of(const struct call *c)
{
    const struct view *x = &c->in[0];
    struct batch z = { c, x->size[0], x->size[1], 1 };

    for (int d = 2; d < x->ndim; d++) z.S *= x->size[d];
    return z;
}

static bool is_valid(const struct call *c, int labels, size_t b)
{
    return !call_has_in(c, labels) || ((const int32_t *)c->in[labels].data)[b] >= 0;
}

static struct moments moments_at(const struct view *stats, size_t C, size_t k)
{
    const double *s = stats->data;

    return moments_of(s[k], s[C + k], s[2 * C]);
}

/* One channel's x - mean, in vectors. */
struct center {
    vf high, low;
};

INLINE struct center center_of(double mean)
{
    float high = (float)mean;

    return (struct center){ vset(high), vset((float)(mean - high)) };
}

INLINE vf centered(struct center m, vf x) { return (x - m.high) - m.low; }

/* ---- sums ---- */

INLINE void stats_run(ls_dtype T, const void *x, size_t at, size_t S, vd *sum, vd *squares)
{
    EACH(i, n, 0, S)
    {
        vf v = load(T, x, at + i, n);
        vd low = vlow(v), high = vhigh(v);

        *sum += low + high;
        *squares += low * low + high * high;
    }
}

static void stats_channels(void *ctx, size_t begin, size_t end, int thread)
{
    const struct batch *z = ctx;
    double *out = z->c->out[0].data;

    (void)thread;
    for (size_t k = begin; k < end; k++) {
        vd sum = { 0 }, squares = { 0 };

        for (size_t b = 0; b < z->B; b++)
            if (is_valid(z->c, 1, b))
                BY_TYPE(z->c->in[0].dtype, T, stats_run(T, z->c->in[0].data, (b * z->C + k) * z->S, z->S, &sum, &squares))
        out[k] = vdsum(sum);
        out[z->C + k] = vdsum(squares);
    }
}

static void over_channels(struct batch z, threads_range_fn *fn) { threads_for(z.C, row_grain(z.B * z.S), fn, &z); }

static void stats(const struct call *c)
{
    struct batch z = batch_of(c);
    size_t valid = 0;

    for (size_t b = 0; b < z.B; b++) valid += is_valid(c, 1, b);
    ((double *)c->out[0].data)[2 * z.C] = (double)(valid * z.S);
    over_channels(z, stats_channels);
}

INLINE void grad_run(ls_dtype T, const struct call *c, size_t at, size_t S, struct center mean, vd *sum, vd *sum_n)
{
    EACH(i, n, 0, S)
    {
        vf dy = load(T, c->in[0].data, at + i, n), x = centered(mean, load(T, c->in[1].data, at + i, n));

        *sum += vlow(dy) + vhigh(dy);
        *sum_n += vlow(dy) * vlow(x) + vhigh(dy) * vhigh(x);
    }
}

static void grad_channels(void *ctx, size_t begin, size_t end, int thread)
{
    const struct batch *z = ctx;
    const struct call *c = z->c;

    (void)thread;
    for (size_t k = begin; k < end; k++) {
        struct moments m = moments_at(&c->in[2], z->C, k);
        struct center mean = center_of(m.mean);
        vd sum = { 0 }, sum_n = { 0 };

        for (size_t b = 0; b < z->B; b++) BY_TYPE(c->in[0].dtype, T, grad_run(T, c, (b * z->C + k) * z->S, z->S, mean, &sum, &sum_n))
        for (int o = 0; o < 2; o++) {
            ((double *)c->out[o].data)[k] = vdsum(sum);
            ((double *)c->out[o].data)[z->C + k] = vdsum(sum_n) * moments_rstd(&m, c->attr.batch.eps);
        }
    }
}

static void grad_stats(const struct call *c) { over_channels(batch_of(c), grad_channels); }

/* ---- element by element: a run is one channel of one sample ---- */

INLINE void norm_run(ls_dtype T, const struct call *c, size_t at, size_t S, struct center mean, vf scale, vf bias)
{
    EACH(i, n, 0, S)
    store(T, c->out[0].data, at + i, n, centered(mean, load(T, c->in[0].data, at + i, n)) * scale + bias);
}

static void norm_runs(void *ctx, size_t begin, size_t end, int thread)
{
    const struct batch *z = ctx;
    const struct call *c = z->c;
    const struct view *w = &c->in[2], *bias = &c->in[3];

    (void)thread;
    for (size_t r = begin; r < end; r++) {
        size_t k = r % z->C;
        struct moments m = moments_at(&c->in[1], z->C, k);
        struct center mean = center_of(m.mean);
        vf scale = vset((float)(moments_rstd(&m, c->attr.batch.eps) * load_one(w->dtype, w->data, k)));
        vf shift = vset(load_one(bias->dtype, bias->data, k));

        BY_TYPE(c->in[0].dtype, T, norm_run(T, c, r * z->S, z->S, mean, scale, shift))
    }
}

/* dx = scale dy - shift - (x - mean) slope */
struct slope {
    struct center mean;
    vf scale, shift, slope;
};

INLINE void dx_run(ls_dtype T, const struct call *c, size_t at, size_t S, const struct slope *s)
{
    EACH(i, n, 0, S)
    {
        vf dy = load(T, c->in[0].data, at + i, n), x = centered(s->mean, load(T, c->in[1].data, at + i, n));

        store(T, c->out[0].data, at + i, n, s->scale * dy - s->shift - x * s->slope);
    }
}

static struct slope slope_of(const struct batch *z, size_t b, size_t k)
{
    const struct call *c = z->c;
    struct moments m = moments_at(&c->in[3], z->C, k);
    double rstd = moments_rstd(&m, c->attr.batch.eps), scale = rstd * load_one(c->in[2].dtype, c->in[2].data, k);
    double mean = 0, mean_n = 0;

    if (call_has_in(c, 4) && m.count > 0 && is_valid(c, 5, b)) {
        mean = ((const double *)c->in[4].data)[k] / m.count;
        mean_n = ((const double *)c->in[4].data)[z->C + k] / m.count;
    }
    return (struct slope){ center_of(m.mean), vset((float)scale), vset((float)(scale * mean)), vset((float)(scale * mean_n * rstd)) };
}

static void dx_runs(void *ctx, size_t begin, size_t end, int thread)
{
    const struct batch *z = ctx;

    (void)thread;
    for (size_t r = begin; r < end; r++) {
        struct slope s = slope_of(z, r / z->C, r % z->C);

        BY_TYPE(z->c->in[0].dtype, T, dx_run(T, z->c, r * z->S, z->S, &s))
    }
}

static void over_runs(struct batch z, threads_range_fn *fn) { threads_for(z.B * z.C, row_grain(z.S + 16), fn, &z); }

static void simd_batch_norm_norm(const struct call *c) { over_runs(batch_of(c), norm_runs); }
static void simd_batch_norm_norm_dx(const struct call *c) { over_runs(batch_of(c), dx_runs); }

/* ---- accepts() ---- */

static bool is_f64(const struct view *v) { return v->dtype == LS_F64 && view_is_contiguous(v); }
static bool is_labels(const struct call *c, int i) { return !call_has_in(c, i) || is_i32(&c->in[i]); }

static bool stats_accepts(const struct call *c) { return is_plain(&c->in[0]) && is_labels(c, 1) && is_f64(&c->out[0]); }

static bool norm_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_f64(&c->in[1]) && is_plain(&c->in[2]) && is_plain(&c->in[3]) && is_plain(&c->out[0]) &&
           c->out[0].dtype == c->in[0].dtype;
}

static bool grad_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && c->in[1].dtype == c->in[0].dtype && is_f64(&c->in[2]) && is_f64(&c->out[0]) &&
           is_f64(&c->out[1]);
}

static bool simd_batch_norm_dx_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && c->in[1].dtype == c->in[0].dtype && is_plain(&c->in[2]) && is_f64(&c->in[3]) &&
           (!call_has_in(c, 4) || is_f64(&c->in[4])) && is_labels(c, 5) && is_plain(&c->out[0]) && c->out[0].dtype == c->in[0].dtype;
}

const struct kernel SIMD_TABLE(batch_norm)[] = {
    SIMD_ROW(BATCH_STATS, stats_accepts, NULL, stats),
    SIMD_ROW(BATCH_NORM, norm_accepts, NULL, simd_batch_norm_norm),
    SIMD_ROW(BATCH_GRAD_STATS, grad_accepts, NULL, grad_stats),
    SIMD_ROW(BATCH_NORM_DX, simd_batch_norm_dx_accepts, NULL, simd_batch_norm_norm_dx),
    KERNELS_END,
};
