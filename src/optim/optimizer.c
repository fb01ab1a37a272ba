/* optimizer.c - the optimizer pass: norm, clip factor, one update per parameter, in segment LS_OPTIMIZER_STEP.
 *
 *   acc = 0;  acc += |g|^2 for every gradient;  norm = sqrt(acc), factor = min(1, clip / norm)
 *   LAMB, LARS: norms[i] = 0;  norms[i] += both squares of parameter i (and LAMB's moments move)
 *   for every parameter: value, states, master = update(factor * gradient, hyper, norms[i])
 *
 * With clip_previous the factor is an input instead, which the norm of the update before determines.
 *
 * All sums come before all updates, so that ranks that hold shards of a parameter can reduce the sums in between.
 *
 * With in_backward a pass (passes/update_in_backward.c) moves the sums and updates into backward.
 *
 * hyper[4] is an input that ls_optimizer_set() writes before each step: lr, 1/(1-beta1^t), 1/(1-beta2^t), t. The formulas are in
 * kernels/cpu/ref/optim.c. Every parameter of the store that isn't frozen is updated once, in the store's order. Norms and biases (one dim)
 * have no weight decay, and LAMB and LARS do not scale their rate.
 */
#include "lockstep/optim.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/rng.h"
#include "ir/program.h"
#include "runtime/store.h"

static const char HYPER[] = "optimizer.hyper", NORM[] = "optimizer.norm", CLIP[] = "optimizer.clip_factor";

#define OPTIMIZER_FACTS(upper, name, ...) { #name, __VA_ARGS__ },
static const ls_optimizer_facts facts[LS_OPTIMIZERS] = { LS_OPTIMIZER_MAP(OPTIMIZER_FACTS) };

const ls_optimizer_facts *ls_optimizer_facts_of(ls_optimizer_kind kind) { return (unsigned)kind < LS_OPTIMIZERS ? &facts[kind] : NULL; }

struct append;
typedef void append_fn(const struct append *a, int param);
static append_fn append_lamb_moments, append_lars_norms, append_update, append_lamb_update;

/* How each is made of ops: a missing row does not compile. first, second: moments that are always kept (momentum keeps the first where it
 * is not 0). norms: appends what a layer-wise optimizer needs before all updates; NULL: it is not layer-wise. update: appends op. */
struct kind {
    int op, first, second, decoupled;
    append_fn *norms, *update;
};
/* clang-format off */
#define KIND_sgd   { .op = OP_SGD, .update = append_update }
#define KIND_adam  { .op = OP_ADAM, .first = 1, .second = 1, .update = append_update }
#define KIND_adamw { .op = OP_ADAM, .first = 1, .second = 1, .decoupled = 1, .update = append_update }
#define KIND_lamb  { .op = OP_LAMB, .first = 1, .second = 1, .decoupled = 1, .norms = append_lamb_moments, .update = append_lamb_update }
#define KIND_lars  { .op = OP_LARS, .norms = append_lars_norms, .update = append_update }
/* clang-format on */
#define OPTIMIZER_KIND(upper, name, ...) KIND_##name,
static const struct kind optimizer_kinds[LS_OPTIMIZERS] = { LS_OPTIMIZER_MAP(OPTIMIZER_KIND) };

/* State of one append, shared by all parameters. */
struct append {
    ls_program *p;
    const ls_optimizer *o;
    const struct kind *kind;
    ls_value hyper, factor, norms; /* norms [parameters,2] f64; none unless the optimizer is layer-wise */
};

static bool within(double x, double low, double high) { return x >= low && x < high; }

static ls_status optimizer_check(const ls_optimizer *o)
{
    const ls_optimizer_facts *f = ls_optimizer_facts_of(o->kind);

    if (!f) return ls_fail(LS_EINVAL, "optimizer: kind %d does not exist", (int)o->kind);
    if (f->moments && !(within(o->beta1, 0, 1) && within(o->beta2, 0, 1) && within(o->eps, 1e-38, 1)))
        return ls_fail(LS_EINVAL, "optimizer %s: beta1 %g and beta2 %g must be 0 or more and below 1, eps %g above 0 and below 1", f->name,
                       o->beta1, o->beta2, o->eps);
    if (f->momentum && !within(o->momentum, 0, 1))
        return ls_fail(LS_EINVAL, "optimizer %s: momentum %g must be 0 or more and below 1", f->name, o->momentum);
    if (o->nesterov && (!f->nesterov || o->momentum == 0))
        return ls_fail(LS_EINVAL, "optimizer %s: nesterov requires sgd with momentum", f->name);
    if (f->trust && !(o->trust_coefficient > 0))
        return ls_fail(LS_EINVAL, "optimizer %s: trust_coefficient %g must be above 0", f->name, o->trust_coefficient);
    if (!within(o->weight_decay, 0, INFINITY) || !within(o->clip, 0, INFINITY))
        return ls_fail(LS_EINVAL, "optimizer %s: weight_decay %g and clip %g must be 0 or more", f->name, o->weight_decay, o->clip);
    if (o->in_backward && o->clip > 0 && !o->clip_previous)
        return ls_fail(LS_EINVAL,
                       "optimizer %s: in_backward with clip %g: the norm is known only after the last update; use clip_previous or clip 0",
                       f->name, o->clip);
    return LS_OK;
}

static bool clips_by_previous(const ls_optimizer *o) { return o->clip_previous && o->clip > 0; }

/* Appends the global norm as an output, and the clip factor. */
static ls_value append_norm(ls_program *p, const ls_optimizer *o)
{
    ls_dtype type = store_state_type(p->store);
    ls_value acc = ls_constant(p, LS_F64, 1, (size_t[]){ 1 }, 0.0), out[2];
    struct op_attr attr = { .clip = { clips_by_previous(o) ? 0 : o->clip } };

    for (size_t i = 0; i < ls_store_count(p->store); i++)
        if (!ls_store_is_frozen(p->store, i) && store_sign_rate(p->store, i) == 0) {
            ls_value g = program_grad_value(p, (int)i);

            program_emit(p, OP_SUM_SQUARES, NULL, 1, &g, 1, &acc);
        }
    out[0] = program_new_value(p, "norm", type, 1, (size_t[]){ 1 });
    out[1] = program_new_value(p, "clip_factor", type, 1, (size_t[]){ 1 });
    program_emit(p, OP_CLIP_FACTOR, &attr, 1, &acc, 2, out);
    ls_output(p, NORM, out[0]);
    return clips_by_previous(o) ? ls_input(p, CLIP, type, 1, (size_t[]){ 1 }) : out[1];
}

static bool is_matrix(const struct append *a, int param) { return ls_store_ndim(a->p->store, (size_t)param) >= 2; }

/* Both squared norms of this parameter [1,2]; none if its rate is not scaled. */
static ls_value norms_of(const struct append *a, int param)
{
    return a->norms.id && is_matrix(a, param) ? ls_slice(a->p, a->norms, 0, (size_t)param, (size_t)param + 1) : LS_NONE;
}

/* The rounding of a parameter that this rank holds completely; a pass that distributes the program narrows it. */
static struct rounding rounding_of(const struct append *a, int param)
{
    const ls_store *s = a->p->store;
    const struct value *x = program_value(a->p, program_param_value(a->p, param));
    struct rounding r = { .seed = a->o->seed };
    char name[256];

    if (!a->o->stochastic_rounding || x->dtype != LS_BF16 || store_has_master(s, (size_t)param)) return r;
    snprintf(name, sizeof name, "%s.rounding", ls_store_name(s, (size_t)param));
    r.stream = rng_stream(name);
    r.run = r.stride = value_count(x);
    return r;
}

static struct op_attr attributes(const struct append *a, int param)
{
    const ls_optimizer *o = a->o;

    return (struct op_attr){ .optim = { .beta1 = (float)o->beta1,
                                        .beta2 = (float)o->beta2,
                                        .eps = (float)o->eps,
                                        .momentum = (float)o->momentum,
                                        .weight_decay = is_matrix(a, param) ? (float)o->weight_decay : 0,
                                        .trust = (float)o->trust_coefficient,
                                        .nesterov = o->nesterov,
                                        .decoupled = a->kind->decoupled,
                                        .rounding = rounding_of(a, param) } };
}

/* The copy of a parameter that an update reads: the master copy, if there is one. */
static ls_value exact(const struct append *a, int param)
{
    return store_has_master(a->p->store, (size_t)param) ? program_state_value(a->p, param, "master") : program_param_value(a->p, param);
}

static void append_lamb_moments(const struct append *a, int param)
{
    struct op_attr attr = attributes(a, param);
    ls_value g = program_grad_value(a->p, param), norms = norms_of(a, param);
    ls_value in[] = { g, a->hyper, a->factor, exact(a, param) };
    ls_value out[] = { program_state_value(a->p, param, "m"), program_state_value(a->p, param, "v"), norms };

    program_emit(a->p, OP_LAMB_MOMENTS, &attr, 4, in, 3, out);
}

static void append_lars_norms(const struct append *a, int param)
{
    struct op_attr attr = attributes(a, param);
    ls_value g = program_grad_value(a->p, param), norms = norms_of(a, param);

    if (norms.id) program_emit(a->p, OP_LARS_NORMS, &attr, 3, (ls_value[]){ g, a->factor, exact(a, param) }, 1, &norms);
}

static ls_value master_of(const struct append *a, int param)
{
    return store_has_master(a->p->store, (size_t)param) ? program_state_value(a->p, param, "master") : LS_NONE;
}

/* See store_set_sign_rate(). */
static void append_sign_step(const struct append *a, int param)
{
    struct op_attr attr = { .optim = { .sign_rate = store_sign_rate(a->p->store, (size_t)param) } };
    ls_value g = program_grad_value(a->p, param), out[2] = { program_param_value(a->p, param) };

    out[1] = master_of(a, param);
    program_emit(a->p, OP_SIGN_STEP, &attr, 1, &g, 2, out);
}

/* Appends an update that reads the gradient. */
static void append_update(const struct append *a, int param)
{
    struct op_attr attr = attributes(a, param);
    ls_value master = master_of(a, param), norms = norms_of(a, param), out[4] = { program_param_value(a->p, param) };
    ls_value in[] = { program_grad_value(a->p, param), a->hyper, a->factor, norms };
    int n = 1;

    out[n++] = a->kind->first || a->o->momentum > 0 ? program_state_value(a->p, param, "m") : LS_NONE;
    if (a->kind->second) out[n++] = program_state_value(a->p, param, "v");
    out[n++] = master;
    program_emit(a->p, a->kind->op, &attr, a->kind->norms ? 4 : 3, in, n, out);
}

/* Appends LAMB's update, which reads the moments that append_lamb_moments() has updated. */
static void append_lamb_update(const struct append *a, int param)
{
    struct op_attr attr = attributes(a, param);
    ls_value master = master_of(a, param), norms = norms_of(a, param), out[] = { program_param_value(a->p, param), master };
    ls_value in[] = { program_state_value(a->p, param, "m"), program_state_value(a->p, param, "v"), a->hyper, norms };

    program_emit(a->p, a->kind->op, &attr, 4, in, 2, out);
}

static void append_all(struct append *a)
{
    size_t n = ls_store_count(a->p->store);

    a->hyper = ls_input(a->p, HYPER, LS_F32, 1, (size_t[]){ 4 });
    a->factor = append_norm(a->p, a->o);
    ASSERT(!a->kind->norms == !ls_optimizer_facts_of(a->o->kind)->layer_wise);
    if (a->kind->norms) {
        a->norms = ls_constant(a->p, LS_F64, 2, (size_t[]){ n, 2 }, 0.0);
        for (size_t i = 0; i < n; i++)
            if (!ls_store_is_frozen(a->p->store, i) && store_sign_rate(a->p->store, i) == 0) a->kind->norms(a, (int)i);
    }
    for (size_t i = 0; i < n; i++)
        if (!ls_store_is_frozen(a->p->store, i)) (store_sign_rate(a->p->store, i) != 0 ? append_sign_step : a->kind->update)(a, (int)i);
}

ls_status ls_optimizer_append(ls_program *p, const ls_optimizer *o)
{
    struct append a = { .p = p, .o = o };

    LS_TRY(optimizer_check(o));
    if (program_find(p, HYPER).id) return ls_fail(LS_EINVAL, "optimizer: this program already has one");
    if (ls_store_count(p->store) == 0) return ls_fail(LS_EINVAL, "optimizer: the store has no parameters yet; append it after the model");
    struct cursor before = program_cursor_segment(p, SEG_OPTIMIZER, LS_PHASE_OPTIMIZER);
    a.kind = &optimizer_kinds[o->kind];
    append_all(&a);
    p->builder.update_in_backward = o->in_backward;
    program_cursor_end(p, before);
    return ls_program_status(p);
}

ls_status ls_optimizer_set(ls_program *p, const ls_optimizer *o, double lr, uint64_t t)
{
    float hyper[4];

    if (!within(lr, 0, INFINITY) || t == 0)
        return ls_fail(LS_EINVAL, "optimizer: learning rate %g must be 0 or more, step %llu 1 or more", lr, (unsigned long long)t);
    hyper[0] = (float)lr;
    hyper[1] = (float)(1.0 / (1.0 - pow(o->beta1, (double)t)));
    hyper[2] = (float)(1.0 / (1.0 - pow(o->beta2, (double)t)));
    hyper[3] = (float)t;
    return ls_program_write(p, HYPER, hyper, LS_F32, 4);
}

ls_status ls_optimizer_set_norm(ls_program *p, const ls_optimizer *o, double norm)
{
    double factor = norm > o->clip ? o->clip / norm : 1;

    if (!within(norm, 0, INFINITY))
        return ls_fail(LS_EINVAL, "optimizer: the norm %g of the update before must be finite, 0 or more", norm);
    return clips_by_previous(o) ? ls_program_write(p, CLIP, &factor, LS_F64, 1) : LS_OK;
}

ls_status ls_optimizer_read_norm(const ls_program *p, double *norm) { return ls_program_read(p, NORM, norm, LS_F64, 1); }

double ls_optimizer_norm(const ls_program *p)
{
    double norm = NAN;

    return ls_optimizer_read_norm(p, &norm) < 0 ? NAN : norm;
}
