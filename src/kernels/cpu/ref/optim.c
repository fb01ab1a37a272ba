/* optim.c - reference: gradient norm, clipping and the updates.
 *
 * One call updates one parameter tensor, or any range of its elements. With g = factor * gradient, lr = hyper[0], c1 = hyper[1] =
 * 1/(1-beta1^t), c2 = hyper[2] = 1/(1-beta2^t), wd = weight_decay, and |.| the norm of the whole tensor:
 *
 *   sgd   decoupled: p -= lr wd p; else g += wd p
 *         m = momentum m + g;  p -= lr (nesterov ? g + momentum m : m);  without m: p -= lr g
 *   adam  decoupled (AdamW): p -= lr wd p; else g += wd p
 *         m = beta1 m + (1-beta1) g;  v = beta2 v + (1-beta2) g^2;  p -= lr c1 m / (sqrt(c2 v) + eps)
 *   lamb  m, v as adam;  u = c1 m / (sqrt(c2 v) + eps) + wd p
 *         p -= lr r u,  r = |p| / |u|, or 1 when either is 0 or there are no norms              (You et al. 2019)
 *   lars  r = trust |p| / (|g| + wd |p|), or 1 when |p| or |g| is 0 or there are no norms;  g = r (g + wd p); then m and p
 *         as in sgd without decay, so that lars without norms is sgd                            (You et al. 2017)
 *
 * LAMB and LARS take two calls: the first (lamb_moments, lars_norms) adds the squares of its elements to norms[2], the second reads them
 * when those of all elements of the tensor, on all ranks, have been added.
 * The right-hand side of an assignment uses the values before that line. p is the master copy if there is one, and the parameter becomes
 * its rounded copy. Otherwise the parameter itself is updated and rounded each time: to nearest, where a change of less than half its last
 * bit is lost, in bf16 1/512 of its value; or, in bf16, stochastically (struct rounding), where it is kept in the mean (Gupta et al. 2015).
 * beta, 1-beta, eps and so on are computed from the float attributes; norms are summed in double.
 */
#include "kernels/cpu/ref/ref.h"

#include <math.h>
#include <string.h>
#include "base/rng.h"

static void sum_squares(const struct call *c)
{
    double sum = 0;

    for (size_t i = 0; i < view_count(&c->in[0]); i++) sum += pow(ref_get(&c->in[0], i), 2);
    ref_add(&c->out[0], 0, sum);
}

static void clip_factor(const struct call *c)
{
    double norm = sqrt(ref_get(&c->in[0], 0)), most = c->attr.clip.most;

    ref_put(&c->out[0], 0, norm);
    ref_put(&c->out[1], 0, most > 0 && norm > most ? most / norm : 1);
}

/* The operands by name. Absent ones are NULL. */
struct ref_update {
    const struct optimizer_attr *a;
    const struct view *g, *p, *m, *v, *master;
    double lr, c1, c2, factor, step;
    size_t count;
};

static struct ref_update update_of(const struct call *c, bool second_moment)
{
    int last = second_moment ? 3 : 2;
    struct ref_update u = { .a = &c->attr.optim, .g = &c->in[0], .p = &c->out[0], .count = view_count(&c->in[0]) };

    u.m = call_has_out(c, 1) ? &c->out[1] : NULL;
    u.v = second_moment ? &c->out[2] : NULL;
    u.master = call_has_out(c, last) ? &c->out[last] : NULL;
    u.lr = ref_get(&c->in[1], 0);
    u.c1 = ref_get(&c->in[1], 1);
    u.c2 = ref_get(&c->in[1], 2);
    u.step = ref_get(&c->in[1], 3);
    u.factor = ref_get(&c->in[2], 0);
    return u;
}

static double gradient(const struct ref_update *u, size_t i) { return u->factor * ref_get(u->g, i); }
static double parameter(const struct ref_update *u, size_t i) { return ref_get(u->master ? u->master : u->p, i); }

/* A neighbor of p in bf16. */
static double round_stochastically(const struct ref_update *u, size_t i, double p)
{
    const struct rounding *r = &u->a->rounding;
    size_t count;
    uint64_t index = rounding_index(r, i, &count);
    float exact = (float)p;
    uint32_t bits;

    if (isnan(exact)) return exact;
    memcpy(&bits, &exact, sizeof bits);
    bits = (bits + (rng_u32(r->seed, r->stream ^ (uint64_t)u->step, index) >> 16)) & 0xffff0000u;
    memcpy(&exact, &bits, sizeof bits);
    return exact;
}

static void set_parameter(const struct ref_update *u, size_t i, double p)
{
    if (u->a->rounding.run) p = round_stochastically(u, i, p);
    if (u->master) {
        ref_put(u->master, i, p);
        p = ref_get(u->master, i);
    }
    ref_put(u->p, i, p);
}

/* m = momentum m + g; returns the step, without lr. */
static double momentum_step(const struct ref_update *u, size_t i, double g)
{
    double m;

    if (!u->m) return g;
    m = u->a->momentum * ref_get(u->m, i) + g;
    ref_put(u->m, i, m);
    return u->a->nesterov ? g + u->a->momentum * m : m;
}

static void sgd(const struct call *c)
{
    struct ref_update u = update_of(c, false);

    for (size_t i = 0; i < u.count; i++) {
        double p = parameter(&u, i), g = gradient(&u, i), decay = u.a->weight_decay * p;

        if (!u.a->decoupled) g += decay;
        set_parameter(&u, i, p - (u.a->decoupled ? u.lr * decay : 0) - u.lr * momentum_step(&u, i, g));
    }
}

/* Updates m and v; returns c1 m / (sqrt(c2 v) + eps). */
static double adam_step(const struct ref_update *u, size_t i, double g)
{
    double b1 = u->a->beta1, b2 = u->a->beta2;
    double m = b1 * ref_get(u->m, i) + (1 - b1) * g, v = b2 * ref_get(u->v, i) + (1 - b2) * g * g;

    ref_put(u->m, i, m);
    ref_put(u->v, i, v);
    return u->c1 * m / (sqrt(u->c2 * v) + u->a->eps);
}

static void adam(const struct call *c)
{
    struct ref_update u = update_of(c, true);

    for (size_t i = 0; i < u.count; i++) {
        double p = parameter(&u, i), g = gradient(&u, i), decay = u.a->weight_decay * p;

        if (!u.a->decoupled) g += decay;
        set_parameter(&u, i, p - (u.a->decoupled ? u.lr * decay : 0) - u.lr * adam_step(&u, i, g));
    }
}

/* u of lamb, from updated moments. */
static double lamb_step(double m, double v, double p, double c1, double c2, const struct optimizer_attr *a)
{
    return c1 * m / (sqrt(c2 * v) + a->eps) + a->weight_decay * p;
}

/* Adds squares[2] to the norms, if there are any. */
static void add_norms(const struct call *c, int out, const double *squares)
{
    for (size_t i = 0; i < 2 && call_has_out(c, out); i++) ref_add(&c->out[out], i, squares[i]);
}

static void lamb_moments(const struct call *c)
{
    const struct optimizer_attr *a = &c->attr.optim;
    const struct view *m = &c->out[0], *v = &c->out[1];
    double factor = ref_get(&c->in[2], 0), squares[2] = { 0 };

    for (size_t i = 0; i < view_count(&c->in[0]); i++) {
        double g = factor * ref_get(&c->in[0], i), p = ref_get(&c->in[3], i);

        ref_put(m, i, a->beta1 * ref_get(m, i) + (1 - (double)a->beta1) * g);
        ref_put(v, i, a->beta2 * ref_get(v, i) + (1 - (double)a->beta2) * g * g);
        double u = lamb_step(ref_get(m, i), ref_get(v, i), p, ref_get(&c->in[1], 1), ref_get(&c->in[1], 2), a);
        squares[0] += p * p;
        squares[1] += u * u;
    }
    add_norms(c, 2, squares);
}

static void lamb(const struct call *c)
{
    const struct view *m = &c->in[0], *v = &c->in[1], *hyper = &c->in[2];
    struct ref_update u = {
        .a = &c->attr.optim, .p = &c->out[0], .master = call_has_out(c, 1) ? &c->out[1] : NULL, .step = ref_get(hyper, 3)
    };
    double pp = 0, uu = 0, rate = ref_get(hyper, 0);

    if (call_has_in(c, 3)) {
        pp = ref_get(&c->in[3], 0);
        uu = ref_get(&c->in[3], 1);
    }
    if (pp > 0 && uu > 0) rate *= sqrt(pp) / sqrt(uu);
    for (size_t i = 0; i < view_count(m); i++) {
        double p = parameter(&u, i);

        set_parameter(&u, i, p - rate * lamb_step(ref_get(m, i), ref_get(v, i), p, ref_get(hyper, 1), ref_get(hyper, 2), u.a));
    }
}

static void lars_norms(const struct call *c)
{
    double factor = ref_get(&c->in[1], 0), squares[2] = { 0 };

    for (size_t i = 0; i < view_count(&c->in[0]); i++) {
        squares[0] += pow(ref_get(&c->in[2], i), 2);
        squares[1] += pow(factor * ref_get(&c->in[0], i), 2);
    }
    add_norms(c, 0, squares);
}

static void lars(const struct call *c)
{
    struct ref_update u = update_of(c, false);
    double pp = 0, gg = 0, wd = u.a->weight_decay, ratio = 1;

    if (call_has_in(c, 3)) {
        pp = ref_get(&c->in[3], 0);
        gg = ref_get(&c->in[3], 1);
    }
    if (pp > 0 && gg > 0) ratio = u.a->trust * sqrt(pp) / (sqrt(gg) + wd * sqrt(pp));
    for (size_t i = 0; i < u.count; i++) {
        double p = parameter(&u, i), g = ratio * (gradient(&u, i) + wd * p);

        set_parameter(&u, i, p - u.lr * momentum_step(&u, i, g));
    }
}

const struct kernel kernels_ref_optim[] = {
    REF_ROW(SUM_SQUARES, sum_squares, NULL),
    REF_ROW(CLIP_FACTOR, clip_factor, NULL),
    REF_ROW(SGD, sgd, NULL),
    REF_ROW(ADAM, adam, NULL),
    REF_ROW(LAMB_MOMENTS, lamb_moments, NULL),
    REF_ROW(LAMB, lamb, NULL),
    REF_ROW(LARS_NORMS, lars_norms, NULL),
    REF_ROW(LARS, lars, NULL),
    KERNELS_END,
};
