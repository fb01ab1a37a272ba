/* parity_update.c - the optimizers' update rules in double, with a running bound of the error of single precision. */
#include "train/parity/parity_update.h"

#include <float.h>
#include <math.h>
#include "base/base.h"

static const double U = 0x1p-24;

/* A value and a bound of its error. */
typedef struct update_expected number;

static number exact(double x) { return (number){ x, 0 }; }

static number parity_update_add(number a, number b)
{
    double x = a.value + b.value;

    return (number){ x, a.allowed + b.allowed + U * (fabs(x) + a.allowed + b.allowed) };
}

static number multiply(number a, number b)
{
    double x = a.value * b.value, off = fabs(a.value) * b.allowed + fabs(b.value) * a.allowed + a.allowed * b.allowed;

    return (number){ x, off + U * (fabs(x) + off) + FLT_MIN }; /* FLT_MIN: below it, the errors of single precision are not relative */
}

static number square_root(number a)
{
    double x = sqrt(a.value), off = a.value > a.allowed ? a.allowed / (x + sqrt(a.value - a.allowed)) : sqrt(a.allowed);

    return (number){ x, off + U * (x + off) };
}

static number parity_update_divide(number a, number b)
{
    double x = a.value / b.value, least = fabs(b.value) - b.allowed;
    double off = least > 0 ? (a.allowed + fabs(x) * b.allowed) / least : INFINITY;

    return (number){ x, off + U * (fabs(x) + off) };
}

static number constant(double x) { return (number){ x, U * fabs(x) }; } /* a constant that is rounded once */

/* ---- parts of the rules ---- */

/* For each optimizer: what it adds the weight decay to, and the norm by which it divides the weight's norm to scale the learning rate. A
 * missing row does not compile. */
enum decay_kind { DECAY_OF_GRADIENT, DECAY_OF_WEIGHT, DECAY_OF_STEP };
enum ratio_kind { RATIO_TO_NOTHING, RATIO_TO_GRADIENT, RATIO_TO_STEP };
/* clang-format off */
#define RULE_sgd   { DECAY_OF_GRADIENT, RATIO_TO_NOTHING }
#define RULE_adam  { DECAY_OF_GRADIENT, RATIO_TO_NOTHING }
#define RULE_adamw { DECAY_OF_WEIGHT, RATIO_TO_NOTHING }
#define RULE_lamb  { DECAY_OF_STEP, RATIO_TO_STEP }
#define RULE_lars  { DECAY_OF_GRADIENT, RATIO_TO_GRADIENT }
/* clang-format on */
#define RULE_ROW(upper, name, ...) RULE_##name,
static const struct update_kind {
    enum decay_kind decay;
    enum ratio_kind ratio;
} update_kinds[LS_OPTIMIZERS] = { LS_OPTIMIZER_MAP(RULE_ROW) };

static const struct update_kind *update_kind_of(const struct update_rule *u) { return &update_kinds[u->optimizer->kind]; }

static double decay_of(const struct update_rule *u) { return u->matrix ? (float)u->optimizer->weight_decay : 0; }

static number scaled_gradient(const struct update_rule *u, size_t i)
{
    return multiply((number){ u->factor, u->factor_error }, exact(parity_f32(u->r.gradient, i)));
}

static number weight(const struct update_rule *u, size_t i) { return exact(parity_f32(u->r.weight, i)); }

/* The gradient that is added to the moments. */
static number effective_gradient(const struct update_rule *u, size_t i)
{
    number g = scaled_gradient(u, i);

    if (update_kind_of(u)->decay == DECAY_OF_GRADIENT) g = parity_update_add(g, multiply(exact(decay_of(u)), weight(u, i)));
    return update_kind_of(u)->ratio == RATIO_TO_GRADIENT ? multiply((number){ u->ratio, u->ratio_error }, g) : g;
}

static number new_m(const struct update_rule *u, size_t i, number g)
{
    float keep = (float)(u->moments ? u->optimizer->beta1 : u->optimizer->momentum);
    number old = multiply(exact(keep), exact(parity_f32(u->r.m, i)));

    return parity_update_add(old, u->moments ? multiply(constant(1 - (double)keep), g) : g);
}

static number new_v(const struct update_rule *u, size_t i, number g)
{
    float keep = (float)u->optimizer->beta2;
    number old = multiply(exact(keep), exact(parity_f32(u->r.v, i)));

    return parity_update_add(old, multiply(multiply(constant(1 - (double)keep), g), g));
}

/* c1 m / (sqrt(c2 v) + eps) of the new moments. */
static number direction(const struct update_rule *u, number m, number v)
{
    number scale = square_root(multiply(exact(u->c2), v));

    return parity_update_divide(multiply(exact(u->c1), m), parity_update_add(scale, exact((float)u->optimizer->eps)));
}

static number momentum_step(const struct update_rule *u, number g, number m)
{
    if (!u->r.m) return g;
    return u->optimizer->nesterov ? parity_update_add(g, multiply(exact((float)u->optimizer->momentum), m)) : m;
}

/* An element's gradient and new states, each computed once. */
struct parts {
    number g, m, v;
};

static struct parts parts_of(const struct update_rule *u, size_t i)
{
    struct parts p = { .g = effective_gradient(u, i) };

    if (u->r.m) p.m = new_m(u, i, p.g);
    if (u->r.v) p.v = new_v(u, i, p.g);
    return p;
}

/* The step before it is multiplied by the learning rate. */
static number parity_update_step_of(const struct update_rule *u, size_t i, const struct parts *p)
{
    if (!u->moments) return momentum_step(u, p->g, p->m);
    number d = direction(u, p->m, p->v);
    return update_kind_of(u)->decay == DECAY_OF_STEP ? parity_update_add(d, multiply(exact(decay_of(u)), weight(u, i))) : d;
}

/* ---- the rules ---- */

bool update_rule_reads_v(const struct update_rule *u) { return u->sign_rate == 0 && u->moments; }

/* Rounds the settings to single precision as the kernels do; they compute 1 - beta in double and round it. */
void update_rule_step(struct update_rule *u, const ls_optimizer *o, double lr, uint64_t t, double norm)
{
    bool clips = o->clip > 0 && norm > o->clip;

    u->optimizer = o;
    u->moments = ls_optimizer_facts_of(o->kind)->moments;
    u->lr = (float)lr;
    u->c1 = (float)(1.0 / (1.0 - pow(o->beta1, (double)t)));
    u->c2 = (float)(1.0 / (1.0 - pow(o->beta2, (double)t)));
    u->factor = clips ? o->clip / norm : 1;
    u->factor_error = clips ? 2 * U * u->factor : 0;
}

/* LAMB: |p| / |step|. LARS: trust_coefficient |p| / (|g| + weight_decay |p|). The kernels sum in double. */
static void set_ratio(struct update_rule *u)
{
    bool lamb = update_kind_of(u)->ratio == RATIO_TO_STEP;
    double pp = 0, ss = 0, off = 0;

    for (size_t i = 0; i < u->elements; i++) {
        struct parts parts = lamb ? parts_of(u, i) : (struct parts){ 0 };
        double p = parity_f32(u->r.weight, i);
        number s = lamb ? parity_update_step_of(u, i, &parts) : scaled_gradient(u, i);

        pp += p * p;
        ss += s.value * s.value;
        off += s.allowed * s.allowed;
    }
    if (!(pp > 0 && ss > 0)) return;
    number p = { sqrt(pp), 0 }, s = { sqrt(ss), sqrt(off) };
    number decay = { lamb ? 0 : decay_of(u) * p.value, 0 };
    number top = { (lamb ? 1 : (float)u->optimizer->trust_coefficient) * p.value, 0 };
    number ratio = parity_update_divide(top, parity_update_add(s, decay));
    u->ratio = ratio.value;
    u->ratio_error = ratio.allowed + 2 * U * fabs(ratio.value);
}

void update_rule_begin(struct update_rule *u)
{
    u->ratio = 1;
    u->ratio_error = 0;
    if (u->matrix && u->sign_rate == 0 && update_kind_of(u)->ratio != RATIO_TO_NOTHING) set_ratio(u);
}

static struct update_expected sign_step(const struct update_rule *u, size_t i)
{
    float g = parity_f32(u->r.gradient, i);
    number rate = constant(g > 0 ? -u->sign_rate : g < 0 ? u->sign_rate : 0);

    return parity_update_add(weight(u, i), rate);
}

void update_rule_expect(const struct update_rule *u, size_t i, struct update_expected out[UPDATE_RESULTS])
{
    bool decoupled = update_kind_of(u)->decay == DECAY_OF_WEIGHT;
    number p = weight(u, i), rate = exact(u->lr), x;
    struct parts parts = parts_of(u, i);

    if (u->sign_rate != 0) {
        x = sign_step(u, i);
    } else {
        if (update_kind_of(u)->ratio == RATIO_TO_STEP) rate = multiply(rate, (number){ u->ratio, u->ratio_error });
        number s = multiply(rate, parity_update_step_of(u, i, &parts));
        number shrunk = decoupled ? multiply(multiply(exact(u->lr), exact(decay_of(u))), p) : exact(0);

        shrunk.value = -shrunk.value;
        s.value = -s.value;
        x = parity_update_add(parity_update_add(p, shrunk), s);
    }
    x.allowed += u->weight_unit > U ? u->weight_unit * (fabs(x.value) + x.allowed) : 0;
    out[UPDATE_WEIGHT] = x;
    out[UPDATE_M] = parts.m;
    out[UPDATE_V] = parts.v;
}
