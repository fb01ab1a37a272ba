/* optim_sgd.c - SGD with momentum, and LARS, which is SGD with a learning rate per tensor. */
#include "kernels/cpu/simd/update.h"

/* decay is added to the gradient, shrink scales the parameter. */
INLINE void sgd_step(const struct update *u, float decay, float shrink, size_t begin, size_t end)
{
    vf momentum = vset(u->a->momentum), lr = vset(u->lr), ratio = vset(u->ratio);

    EACH(i, n, begin, end)
    {
        vf p = get_parameter(u, i, n), step = ratio * (get_gradient(u, i, n) + vset(decay) * p);

        if (u->m) {
            vf m = momentum * load(LS_F32, u->m, i, n) + step;

            store(LS_F32, u->m, i, n, m);
            if (u->a->nesterov)
                step += momentum * m;
            else
                step = m;
        }
        put_parameter(u, i, n, p - vset(shrink) * p - lr * step);
    }
}

static void sgd_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct update *u = ctx;
    float wd = u->a->weight_decay;

    (void)thread;
    sgd_step(u, u->a->decoupled ? 0 : wd, u->a->decoupled ? u->lr * wd : 0, begin, end);
}

static void sgd(const struct call *c)
{
    struct update u = update_of(c, false);

    threads_for(u.count, GRAIN, sgd_range, &u);
}

static void lars_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct update *u = ctx;

    (void)thread;
    sgd_step(u, u->a->weight_decay, 0, begin, end);
}

/* sums: squares of p, squares of g */
static void norms_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct update *u = ctx;

    (void)thread;
    for (size_t block = begin; block < end; block++) {
        size_t first = block * UPDATE_BLOCK, last = MIN(first + UPDATE_BLOCK, u->count);
        vd pp = { 0 }, gg = { 0 };

        EACH(i, n, first, last)
        {
            pp = squares(pp, get_parameter(u, i, n));
            gg = squares(gg, get_gradient(u, i, n));
        }
        u->sums[2 * block] = vdsum(pp);
        u->sums[2 * block + 1] = vdsum(gg);
    }
}

static bool norms_accepts(const struct call *c) { return is_plain(&c->in[0]) && is_f32(&c->in[1]) && is_plain(&c->in[2]); }

static void lars_norms(const struct call *c)
{
    struct update u = {
        .a = &c->attr.optim,
        .g = c->in[0].data,
        .p = c->in[2].data,
        .gtype = c->in[0].dtype,
        .ptype = c->in[2].dtype,
        .factor = *(const float *)c->in[1].data,
        .sums = c->scratch,
        .count = view_count(&c->in[0]),
    };

    threads_for(update_blocks(u.count), 1, norms_range, &u);
    update_fold(&u, c->out[0].data);
}

static void lars(const struct call *c)
{
    struct update u = update_of(c, false);
    const double *norms = call_has_in(c, 3) ? c->in[3].data : NULL;

    if (norms && norms[0] > 0 && norms[1] > 0)
        u.ratio = (float)(u.a->trust * sqrt(norms[0]) / (sqrt(norms[1]) + u.a->weight_decay * sqrt(norms[0])));
    threads_for(u.count, GRAIN, lars_range, &u);
}

const struct kernel SIMD_TABLE(optim_sgd)[] = {
    SIMD_ROW(SGD, update_accepts, NULL, sgd),
    SIMD_ROW(LARS_NORMS, norms_accepts, update_scratch, lars_norms),
    SIMD_ROW(LARS, update_accepts, NULL, lars),
    KERNELS_END,
};
