/* optim.cu - the updates; cpu/ref/optim.c has the formulas. A thread updates four elements. What changes from step to step (lr, bias
 * corrections, the clip factor, the norms) is read from the device.
 */
#include "kernels/cuda/total.h"

enum { THREADS = 256 };

struct update {
    int op;
    float beta1, beta2, rest1, rest2, eps, decay, momentum, trust; /* rest: 1 - beta */
    int nesterov, decoupled;
    struct array g, hyper, factor, p, m, v, master;
    global<const double> norms;
    size_t count;
    float value; /* SIGN_STEP */
};

/* What all elements share. */
struct rates {
    float lr, c1, c2, factor, ratio;
};

static __device__ inline struct rates update_rates(const struct update &u)
{
    struct rates r = { 0, 0, 0, 1, 1 };

    if (u.hyper.given) {
        r.lr = array_get(u.hyper, 0);
        r.c1 = array_get(u.hyper, 1);
        r.c2 = array_get(u.hyper, 2);
    }
    if (u.factor.given) r.factor = array_get(u.factor, 0);
    if (u.norms) {
        double pp = u.norms[0], other = u.norms[1];

        if (pp > 0 && other > 0)
            r.ratio = u.op == OP_LAMB ? (float)(sqrt(pp) / sqrt(other)) : (float)(u.trust * sqrt(pp) / (sqrt(other) + u.decay * sqrt(pp)));
    }
    return r;
}

static __device__ inline float adam_moments(const struct update &u, const struct rates &r, float g, float *m, float *v)
{
    *m = u.beta1 * *m + u.rest1 * g;
    *v = u.beta2 * *v + u.rest2 * g * g;
    return r.c1 * *m / (sqrtf(r.c2 * *v) + u.eps);
}

static __device__ inline float momentum_step(const struct update &u, float g, float *m)
{
    if (!u.m.given) return g;
    *m = u.momentum * *m + g;
    return u.nesterov ? g + u.momentum * *m : *m;
}

static __device__ inline float update_one(const struct update &u, const struct rates &r, float p, float g, float *m, float *v)
{
    float decay = u.decay * p;

    g *= r.factor;
    switch (u.op) {
    case OP_SGD:
        if (!u.decoupled) g += decay;
        return p - (u.decoupled ? r.lr * decay : 0) - r.lr * momentum_step(u, g, m);
    case OP_ADAM:
        if (!u.decoupled) g += decay;
        return p - (u.decoupled ? r.lr * decay : 0) - r.lr * adam_moments(u, r, g, m, v);
    case OP_LAMB: return p - r.lr * r.ratio * (r.c1 * *m / (sqrtf(r.c2 * *v) + u.eps) + decay);
    case OP_LARS: return p - r.lr * momentum_step(u, r.ratio * (g + decay), m);
    default: return p + (g > 0 ? -u.value : g < 0 ? u.value : 0);
    }
}

static __global__ void __launch_bounds__(THREADS) update_packs(const __grid_constant__ struct update u)
{
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * 4, left;
    float4s g = { { 0, 0, 0, 0 } }, m = g, v = g, p;
    struct rates r;

    if (i >= u.count) return;
    left = u.count - i;
    r = update_rates(u);
    p = u.master.given ? array_load4(u.master, i, left, true) : array_load4(u.p, i, left, true);
    if (u.g.given) g = array_load4(u.g, i, left, true);
    if (u.m.given) m = array_load4(u.m, i, left, true);
    if (u.v.given) v = array_load4(u.v, i, left, true);
    for (int k = 0; k < 4; k++) p.v[k] = update_one(u, r, p.v[k], g.v[k], &m.v[k], &v.v[k]);
    if (u.master.given) array_store4(u.master, i, left, true, p);
    array_store4(u.p, i, left, true, p);
    if (u.m.given && u.op != OP_LAMB) array_store4(u.m, i, left, true, m);
    if (u.v.given && u.op != OP_LAMB) array_store4(u.v, i, left, true, v);
}

/* LAMB_MOMENTS updates m and v; it and LARS_NORMS leave sums of squares: of p, and of the step or the gradient. */
static __global__ void __launch_bounds__(TOTAL_THREADS) norm_parts(const __grid_constant__ struct update u, global<double> parts)
{
    double pp = 0, other = 0;
    struct rates r = update_rates(u);

    EACH_TOTAL(i, u.count)
    {
        size_t left = u.count - i;
        float4s g = array_load4(u.g, i, left, true), p = array_load4(u.p, i, left, true), m = g, v = g;

        if (u.op == OP_LAMB_MOMENTS) {
            m = array_load4(u.m, i, left, true);
            v = array_load4(u.v, i, left, true);
        }
        for (int k = 0; k < 4; k++) {
            float step = r.factor * g.v[k];

            if (u.op == OP_LAMB_MOMENTS) step = adam_moments(u, r, step, &m.v[k], &v.v[k]) + u.decay * p.v[k];
            if ((size_t)k >= left) continue;
            pp += (double)p.v[k] * p.v[k];
            other += (double)step * step;
        }
        if (u.op == OP_LAMB_MOMENTS) {
            array_store4(u.m, i, left, true, m);
            array_store4(u.v, i, left, true, v);
        }
    }
    if (!parts) return;
    total_leave(parts, 2, 0, pp);
    total_leave(parts, 2, 1, other);
}

static struct update update_of(const struct call *c)
{
    const struct optimizer_attr *a = &c->attr.optim;
    struct update u = {};

    u.op = c->op;
    u.g = u.hyper = u.factor = u.p = u.m = u.v = u.master = array_none();
    u.norms = nullptr;
    u.count = view_count(c->op == OP_LARS_NORMS ? &c->in[0] : &c->out[0]);
    if (c->op == OP_SIGN_STEP) {
        u.value = (float)c->attr.scale.value;
        return u;
    }
    u.beta1 = a->beta1;
    u.beta2 = a->beta2;
    u.rest1 = (float)(1 - (double)a->beta1);
    u.rest2 = (float)(1 - (double)a->beta2);
    u.eps = a->eps;
    u.decay = a->weight_decay;
    u.momentum = a->momentum;
    u.trust = a->trust;
    u.nesterov = a->nesterov;
    u.decoupled = a->decoupled;
    return u;
}

static void run_update(const struct call *c)
{
    struct update u = update_of(c);
    bool second = c->op == OP_ADAM;

    u.g = array_in(c, 0);
    u.p = array_out(c, 0);
    if (c->op == OP_LAMB) {
        u.g = array_none();
        u.m = array_in(c, 0);
        u.v = array_in(c, 1);
        u.hyper = array_in(c, 2);
        u.master = array_out(c, 1);
    } else if (c->op == OP_SIGN_STEP) {
        u.master = array_out(c, 1);
    } else {
        u.hyper = array_in(c, 1);
        u.factor = array_in(c, 2);
        u.m = array_out(c, 1);
        if (second) u.v = array_out(c, 2);
        u.master = array_out(c, second ? 3 : 2);
    }
    if ((c->op == OP_LAMB || c->op == OP_LARS) && call_has_in(c, 3)) u.norms = global_of<const double>(c->in[3].data);
    launch(c, KERNEL(update_packs), blocks_of(u.count, 4 * THREADS), THREADS, 0, u);
}

static size_t norms_scratch(const struct call *c) { return total_bytes(view_count(&c->in[0]), 2); }

static void run_norms(const struct call *c)
{
    struct update u = update_of(c);
    struct total t = total_none();
    int out = c->op == OP_LAMB_MOMENTS ? 2 : 0;
    bool wanted = call_has_out(c, out);
    unsigned blocks = total_blocks(u.count);

    u.g = array_in(c, 0);
    if (c->op == OP_LAMB_MOMENTS) {
        u.hyper = array_in(c, 1);
        u.m = array_out(c, 0);
        u.v = array_out(c, 1);
    }
    u.factor = array_in(c, c->op == OP_LAMB_MOMENTS ? 2 : 1);
    u.p = array_in(c, c->op == OP_LAMB_MOMENTS ? 3 : 2);
    launch(c, KERNEL(norm_parts), blocks, TOTAL_THREADS, 0, u, wanted ? global_of<double>(c->scratch) : global<double>(nullptr));
    if (!wanted) return;
    t.n = 2;
    t.sums = global_of<double>(c->out[out].data);
    total_finish(c, t, c->scratch, blocks);
}

/* Everything is an array, but for the norms. */
static bool update_accepts(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (view_given(&c->in[i]) && !is_array(&c->in[i]) && !(is_array_of(&c->in[i], LS_F64))) return false;
    for (int i = 0; i < c->nout; i++)
        if (view_given(&c->out[i]) && !is_array(&c->out[i]) && !(is_array_of(&c->out[i], LS_F64))) return false;
    return true;
}

const struct kernel kernels_cuda_optim[] = {
    CUDA_ROW(SGD, update_accepts, NULL, run_update),
    CUDA_ROW(ADAM, update_accepts, NULL, run_update),
    CUDA_ROW(LAMB, update_accepts, NULL, run_update),
    CUDA_ROW(LARS, update_accepts, NULL, run_update),
    CUDA_ROW(SIGN_STEP, update_accepts, NULL, run_update),
    CUDA_ROW(LAMB_MOMENTS, update_accepts, norms_scratch, run_norms),
    CUDA_ROW(LARS_NORMS, update_accepts, norms_scratch, run_norms),
    CUDA_ROWS_END,
};
