/* optim_adam.c - Adam, AdamW, and the two calls of LAMB: moments and norms, then the parameters. */
#include "kernels/cpu/simd/update.h"

/* c1 m / (sqrt(c2 v) + eps) */
INLINE vf adam_direction(const struct update *u, vf m, vf v) { return vset(u->c1) * m / (vsqrt(vset(u->c2) * v) + vset(u->a->eps)); }

/* Updates the moments with g and returns the direction. */
INLINE vf adam_moments(const struct update *u, vf g, size_t i, size_t n)
{
    vf rest1 = vset((float)(1 - (double)u->a->beta1)), rest2 = vset((float)(1 - (double)u->a->beta2));
    vf m = vset(u->a->beta1) * load(LS_F32, u->m, i, n) + rest1 * g;
    vf v = vset(u->a->beta2) * load(LS_F32, u->v, i, n) + rest2 * g * g;

    store(LS_F32, u->m, i, n, m);
    store(LS_F32, u->v, i, n, v);
    return adam_direction(u, m, v);
}

static void adam_range(void *ctx, size_t begin, size_t end, int thread)
{
    struct update u = *(const struct update *)ctx;
    float wd = u.a->weight_decay;
    vf decay = vset(u.a->decoupled ? 0 : wd), shrink = vset(u.a->decoupled ? u.lr * wd : 0), lr = vset(u.lr);

    (void)thread;
    EACH(i, n, begin, end)
    {
        vf p = get_parameter(&u, i, n);

        put_parameter(&u, i, n, p - shrink * p - lr * adam_moments(&u, get_gradient(&u, i, n) + decay * p, i, n));
    }
}

static void adam(const struct call *c)
{
    struct update u = update_of(c, true);

    threads_for(u.count, GRAIN, adam_range, &u);
}

/* sums: squares of p, squares of the step */
static void moments_range(void *ctx, size_t begin, size_t end, int thread)
{
    struct update u = *(const struct update *)ctx;
    vf wd = vset(u.a->weight_decay);

    (void)thread;
    for (size_t block = begin; block < end; block++) {
        size_t first = block * UPDATE_BLOCK, last = MIN(first + UPDATE_BLOCK, u.count);
        vd pp = { 0 }, ss = { 0 };

        EACH(i, n, first, last)
        {
            vf p = get_parameter(&u, i, n), step = adam_moments(&u, get_gradient(&u, i, n), i, n) + wd * p;

            pp = squares(pp, p);
            ss = squares(ss, vkeep(step, n, 0.0f));
        }
        u.sums[2 * block] = vdsum(pp);
        u.sums[2 * block + 1] = vdsum(ss);
    }
}

static bool moments_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_f32(&c->in[1]) && is_f32(&c->in[2]) && is_plain(&c->in[3]) && is_f32(&c->out[0]) && is_f32(&c->out[1]);
}

static void lamb_moments(const struct call *c)
{
    const float *hyper = c->in[1].data;
    struct update u = {
        .a = &c->attr.optim,
        .g = c->in[0].data,
        .p = c->in[3].data,
        .gtype = c->in[0].dtype,
        .ptype = c->in[3].dtype,
        .m = c->out[0].data,
        .v = c->out[1].data,
        .c1 = hyper[1],
        .c2 = hyper[2],
        .factor = *(const float *)c->in[2].data,
        .sums = c->scratch,
        .count = view_count(&c->in[0]),
    };

    threads_for(update_blocks(u.count), 1, moments_range, &u);
    if (call_has_out(c, 2)) update_fold(&u, c->out[2].data);
}

static void lamb_range(void *ctx, size_t begin, size_t end, int thread)
{
    struct update u = *(const struct update *)ctx;
    vf wd = vset(u.a->weight_decay), rate = vset(u.lr * u.ratio);

    (void)thread;
    EACH(i, n, begin, end)
    {
        vf p = get_parameter(&u, i, n), m = load(LS_F32, u.m, i, n), v = load(LS_F32, u.v, i, n);

        put_parameter(&u, i, n, p - rate * (adam_direction(&u, m, v) + wd * p));
    }
}

static bool lamb_accepts(const struct call *c)
{
    return is_f32(&c->in[0]) && is_f32(&c->in[1]) && is_f32(&c->in[2]) && is_plain(&c->out[0]) &&
           (!call_has_out(c, 1) || is_f32(&c->out[1]));
}

static void lamb(const struct call *c)
{
    const float *hyper = c->in[2].data;
    const double *norms = call_has_in(c, 3) ? c->in[3].data : NULL;
    struct update u = {
        .a = &c->attr.optim,
        .p = c->out[0].data,
        .ptype = c->out[0].dtype,
        .m = c->in[0].data,
        .v = c->in[1].data,
        .master = call_has_out(c, 1) ? c->out[1].data : NULL,
        .lr = hyper[0],
        .c1 = hyper[1],
        .c2 = hyper[2],
        .stream = update_stream(&c->attr.optim, hyper),
        .ratio = 1,
        .count = view_count(&c->in[0]),
    };

    if (norms && norms[0] > 0 && norms[1] > 0) u.ratio = (float)(sqrt(norms[0]) / sqrt(norms[1]));
    threads_for(u.count, GRAIN, lamb_range, &u);
}

const struct kernel SIMD_TABLE(optim_adam)[] = {
    SIMD_ROW(ADAM, update_accepts, NULL, adam),
    SIMD_ROW(LAMB_MOMENTS, moments_accepts, update_scratch, lamb_moments),
    SIMD_ROW(LAMB, lamb_accepts, NULL, lamb),
    KERNELS_END,
};
