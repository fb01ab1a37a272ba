/* parity_compare.c - compares the files of two sides step by step, in the order in which a step computes its results. */
#include "train/parity/parity.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"
#include "models/model.h"
#include "train/parity/parity_file.h"
#include "train/parity/parity_update.h"

const char *parity_kind_name(enum parity_kind k)
{
    static const char *const names[PARITY_KINDS] = { "start", "loss", "gradient", "norm", "weight", "state", "statistic", "copies" };

    return names[k];
}

const char *parity_noun(const struct parity_difference *d)
{
    if (d->kind != PARITY_START) return parity_kind_name(d->kind);
    return d->copies ? "copies" : strchr(d->name, '/') ? "state" : "weight";
}

const char *parity_direction(const struct parity_result *r, enum parity_kind k)
{
    static const char *const names[PARITY_KINDS] = {
        "initialization", "forward", "backward", "backward", "optimizer", "optimizer", "forward", "optimizer",
    };

    return k == PARITY_START && r->loaded ? "checkpoint" : names[k];
}

struct comparison {
    const struct parity_bounds *bounds;
    struct parity_result *result;
    struct parity_file file[2];
    int leader; /* index of the reference, whose states both sides start their steps from */
    uint64_t step;
    double norm[2]; /* norm of each side's gradients in this step */
    double floor;   /* least scale of a gradient: parity_bounds.h */
};

/* ---- differences ---- */

static struct parity_difference new_difference(const struct comparison *c, enum parity_kind kind, const char *name, const char *suffix)
{
    struct parity_difference d = { .kind = kind, .step = c->step };

    snprintf(d.name, sizeof d.name, "%s%s", name, suffix);
    return d;
}

/* |a - b|; infinite if one of them is NaN. */
static double distance(double a, double b)
{
    double d = fabs(a - b);

    return isnan(d) ? INFINITY : d;
}

/* error / allowed; infinite if one of them is not finite or nothing is allowed. */
static double share(double error, double allowed)
{
    return error <= 0 ? 0 : isfinite(error) && isfinite(allowed) && allowed > 0 ? error / allowed : INFINITY;
}

static void set_place(struct parity_difference *d, size_t element, double a, double b, double error, double allowed, double scale)
{
    d->element = element;
    d->a = a;
    d->b = b;
    d->scale = scale;
    d->relative = share(error, scale);
    d->allowed = scale > 0 ? allowed / scale : 0;
    d->ulp = error / (scale > 0 ? ldexp(1, ilogb(scale) - 23) : ldexp(1, -149));
}

static void parity_compare_note(struct comparison *c, const struct parity_difference *d)
{
    struct parity_result *r = c->result;

    if (d->of_allowed > 1 && r->equal) {
        r->first = *d;
        r->equal = false;
    }
    if (d->of_allowed > r->largest[d->kind].of_allowed) r->largest[d->kind] = *d;
}

static void count_bits(struct comparison *c, const void *a, const void *b, size_t bytes)
{
    c->result->compared++;
    c->result->same_bits += memcmp(a, b, bytes) == 0;
}

static double parity_compare_largest(struct parity_place p)
{
    double most = 0;

    for (size_t i = 0; i < p.count; i++) {
        double x = fabs(parity_f32(p.data, i));

        if (x > most) most = x; /* not fmax(), which is a call */
    }
    return most;
}

static struct parity_place record(const struct comparison *c, int which, enum parity_record r, uint64_t step, size_t i)
{
    return parity_file_find(&c->file[which], r, step, i);
}

static const char *name_of(const struct comparison *c, size_t i) { return c->file[0].parameter[i].name; }

/* A record that only one side has is a difference. */
static bool have_both(struct comparison *c, struct parity_place a, struct parity_place b, struct parity_difference *d)
{
    if (a.data && b.data) return true;
    if (!a.data && !b.data) return false;
    d->a = a.data ? 0 : NAN;
    d->b = b.data ? 0 : NAN;
    d->relative = d->of_allowed = INFINITY;
    parity_compare_note(c, d);
    return false;
}

/* ---- one side against the other ---- */

static void compare_scalar(struct comparison *c, enum parity_kind kind, enum parity_record r, double allowed)
{
    struct parity_place a = record(c, 0, r, c->step, 0), b = record(c, 1, r, c->step, 0);
    struct parity_difference d = new_difference(c, kind, parity_kind_name(kind), "");
    double x, y;

    if (!have_both(c, a, b, &d)) return;
    memcpy(&x, a.data, sizeof x);
    memcpy(&y, b.data, sizeof y);
    double scale = fmax(fabs(x), fabs(y)), error = distance(x, y);

    set_place(&d, 0, x, y, error, allowed * scale, scale);
    d.of_allowed = share(error, allowed * scale);
    count_bits(c, a.data, b.data, sizeof x);
    parity_compare_note(c, &d);
}

/* Parameters and optimizer states before the first step must have the same bits. */
static void compare_start(struct comparison *c, enum parity_record r, const char *suffix, size_t i)
{
    struct parity_place a = record(c, 0, r, c->step, i), b = record(c, 1, r, c->step, i);
    struct parity_difference d = new_difference(c, PARITY_START, name_of(c, i), suffix);

    if (!have_both(c, a, b, &d)) return;
    for (size_t k = 0; k < a.count && d.of_allowed == 0; k++) {
        double x = parity_f32(a.data, k), y = parity_f32(b.data, k);

        if (memcmp(a.data + 4 * k, b.data + 4 * k, 4) == 0) continue;
        set_place(&d, k, x, y, distance(x, y), 0, fmax(parity_compare_largest(a), parity_compare_largest(b)));
        d.of_allowed = INFINITY;
    }
    c->result->states++;
    count_bits(c, a.data, b.data, 4 * a.count);
    parity_compare_note(c, &d);
}

static double squares_of(struct parity_place p)
{
    double squares = 0;

    for (size_t k = 0; k < p.count; k++) squares += (double)parity_f32(p.data, k) * parity_f32(p.data, k);
    return squares;
}

/* The least scale of a parameter's gradient: parity_bounds.h. */
static double least_scale(const struct comparison *c, size_t i)
{
    size_t inputs = c->bounds->has_model ? model_normed_inputs(&c->bounds->model, name_of(c, i)) : 0;
    struct parity_place w = record(c, c->leader, RECORD_WEIGHT, c->step, i);

    if (!inputs || !w.data) return c->floor;
    double size = sqrt(squares_of(w) / (double)w.count * (double)inputs);
    return size > 0 && size < 1 ? c->floor / size : c->floor;
}

/* Compares the largest error and, unless mean is 0, the root mean square error. */
static void compare_tensor(struct comparison *c, enum parity_kind kind, enum parity_record r, size_t i, double most, double mean)
{
    uint64_t step = kind == PARITY_GRADIENT ? c->step : c->step + 1;
    struct parity_place a = record(c, 0, r, step, i), b = record(c, 1, r, step, i);
    struct parity_difference d = new_difference(c, kind, name_of(c, i), "");
    double floor = kind == PARITY_GRADIENT ? least_scale(c, i) : 0, worst = -1, errors = 0, squares = 0;

    if (!have_both(c, a, b, &d)) return;
    double scale = fmax(fmax(parity_compare_largest(a), parity_compare_largest(b)), floor);

    for (size_t k = 0; k < a.count; k++) {
        double x = parity_f32(a.data, k), y = parity_f32(b.data, k), error = distance(x, y);

        errors += error * error;
        squares += x * x;
        if (error <= worst) continue;
        worst = error;
        set_place(&d, k, x, y, error, most * scale, scale);
        d.of_allowed = share(error, most * scale);
    }
    if (kind == PARITY_GRADIENT) d.gradient_rms = PARITY_FLOOR * c->floor;
    if (mean > 0) {
        double root = sqrt(errors / (double)a.count), allowed = mean * fmax(sqrt(squares / (double)a.count), floor);

        d.mean = share(root, scale);
        d.mean_allowed = scale > 0 ? allowed / scale : 0;
        d.of_allowed = fmax(d.of_allowed, share(root, allowed));
    }
    count_bits(c, a.data, b.data, 4 * a.count);
    parity_compare_note(c, &d);
}

/* ---- one side against the update rule ---- */

static void add_gradient(struct comparison *c, int which, size_t i, double *squares, size_t *elements)
{
    struct parity_place g = record(c, which, RECORD_GRADIENT, c->step, i);

    if (!g.data || c->file[which].parameter[i].shape.sign_rate != 0) return; /* such parameters are not part of the norm */
    *squares += squares_of(g);
    *elements += g.count;
}

static void measure_gradients(struct comparison *c)
{
    for (int which = 0; which < 2; which++) {
        double squares = 0;
        size_t elements = 0;

        for (size_t i = 0; i < c->file[which].parameters; i++) add_gradient(c, which, i, &squares, &elements);
        c->norm[which] = sqrt(squares);
        if (which == 0) c->floor = sqrt(squares / (double)MAX(elements, (size_t)1)) / PARITY_FLOOR;
    }
}

static void compare_norm(struct comparison *c)
{
    struct parity_place a = record(c, 0, RECORD_NORM, c->step, 0), b = record(c, 1, RECORD_NORM, c->step, 0);
    struct parity_difference d = new_difference(c, PARITY_NORM, "norm", "");
    double norm[2];

    if (!have_both(c, a, b, &d)) return;
    memcpy(&norm[0], a.data, sizeof norm[0]);
    memcpy(&norm[1], b.data, sizeof norm[1]);
    for (int which = 0; which < 2; which++) {
        double error = distance(norm[which], c->norm[which]), allowed = c->bounds->norm * c->norm[which];

        if (share(error, allowed) <= d.of_allowed) continue;
        set_place(&d, 0, norm[0], norm[1], error, allowed, c->norm[which]);
        d.of_allowed = share(error, allowed);
        d.side = (char)('a' + which);
        d.expected = c->norm[which];
    }
    count_bits(c, a.data, b.data, sizeof norm[0]);
    parity_compare_note(c, &d);
}

/* The norm by which a side's update is clipped. */
static double clip_norm(const struct comparison *c, int which)
{
    struct parity_place before = { 0 };
    double norm = 0;

    if (!c->bounds->optimizer.clip_previous) return c->norm[which];
    if (c->step > 0) before = record(c, which, RECORD_NORM, c->step - 1, 0);
    if (before.data) memcpy(&norm, before.data, sizeof norm);
    return norm;
}

static const struct updated {
    enum parity_kind kind;
    enum parity_record record;
    const char *suffix;
} updated[UPDATE_RESULTS] = {
    [UPDATE_WEIGHT] = { PARITY_WEIGHT, RECORD_WEIGHT, "" },
    [UPDATE_M] = { PARITY_STATE, RECORD_M, "/m" },
    [UPDATE_V] = { PARITY_STATE, RECORD_V, "/v" },
};

/* The new records of one parameter on both sides; given: both have them. */
struct update_pair {
    struct parity_place now[2];
    bool given;
    double scale;
};

static struct update_pair update_pair_of(const struct comparison *c, const struct updated *h, size_t i)
{
    struct update_pair p;

    for (int which = 0; which < 2; which++) p.now[which] = record(c, which, h->record, c->step + 1, i);
    p.given = p.now[0].data && p.now[1].data;
    p.scale = p.given ? fmax(parity_compare_largest(p.now[0]), parity_compare_largest(p.now[1])) : 0;
    return p;
}

static void examine_element(const struct update_pair *p, int which, size_t k, const struct update_expected *e, struct parity_difference *d)
{
    double error = distance(parity_f32(p->now[which].data, k), e->value), of_allowed = share(error, e->allowed);

    if (of_allowed <= d->of_allowed) return;
    set_place(d, k, parity_f32(p->now[0].data, k), parity_f32(p->now[1].data, k), error, e->allowed, p->scale);
    d->of_allowed = of_allowed;
    d->side = (char)('a' + which);
    d->expected = e->value;
}

static void examine_update(const struct update_pair pair[UPDATE_RESULTS], int which, const struct update_rule *u,
                           struct parity_difference d[UPDATE_RESULTS])
{
    for (size_t k = 0; k < u->elements; k++) {
        struct update_expected e[UPDATE_RESULTS];

        update_rule_expect(u, k, e);
        for (int h = 0; h < UPDATE_RESULTS; h++)
            if (pair[h].given) examine_element(&pair[h], which, k, &e[h], &d[h]);
    }
}

/* Sets *u to the update of one side. The state before the update is the reference's; in the first step it is the side's own. */
static bool set_rule(const struct comparison *c, int which, size_t i, struct update_rule *u)
{
    const struct parity_shape *shape = &c->file[which].parameter[i].shape;
    int old = c->step == c->file[which].first ? which : c->leader;

    update_rule_step(u, &c->bounds->optimizer, c->bounds->lr, c->step + 1, clip_norm(c, which));
    u->r = (struct update_records){
        .gradient = record(c, which, RECORD_GRADIENT, c->step, i).data,
        .weight = record(c, old, RECORD_WEIGHT, c->step, i).data,
        .m = record(c, old, RECORD_M, c->step, i).data,
        .v = record(c, old, RECORD_V, c->step, i).data,
    };
    u->elements = shape->elements;
    u->matrix = shape->dims >= 2;
    u->sign_rate = shape->sign_rate;
    u->weight_unit = c->bounds->weight_unit[which];
    if (!u->r.gradient || !u->r.weight || (update_rule_reads_v(u) && !(u->r.m && u->r.v))) return false;
    update_rule_begin(u);
    return true;
}

static ls_status compare_update(struct comparison *c, size_t i)
{
    struct update_pair pair[UPDATE_RESULTS];
    struct parity_difference d[UPDATE_RESULTS];
    struct update_rule rule[2];

    for (int which = 0; which < 2; which++)
        if (!set_rule(c, which, i, &rule[which]))
            return ls_fail(LS_EINVAL,
                           "%s: '%s' has no optimizer states, but the optimizer of --a needs them; use the same optimizer on both sides",
                           c->file[which].path, name_of(c, i));
    for (int h = 0; h < UPDATE_RESULTS; h++) {
        pair[h] = update_pair_of(c, &updated[h], i);
        d[h] = new_difference(c, updated[h].kind, name_of(c, i), updated[h].suffix);
    }
    for (int which = 0; which < 2; which++) examine_update(pair, which, &rule[which], d);
    for (int h = 0; h < UPDATE_RESULTS; h++) {
        if (!have_both(c, pair[h].now[0], pair[h].now[1], &d[h])) continue;
        count_bits(c, pair[h].now[0].data, pair[h].now[1].data, 4 * pair[h].now[0].count);
        parity_compare_note(c, &d[h]);
    }
    return LS_OK;
}

/* Compares the copies of all ranks after `updates` updates. */
static void compare_copies(struct comparison *c, enum parity_kind kind, uint64_t updates)
{
    for (size_t i = 0; i < c->file[0].parameters; i++) {
        struct parity_difference d = new_difference(c, kind, name_of(c, i), "");
        double stale[2] = { 0 };

        for (int which = 0; which < 2; which++) {
            struct parity_place p = record(c, which, RECORD_COPIES, updates, i);

            if (p.data) memcpy(&stale[which], p.data, sizeof stale[which]);
        }
        if (stale[0] + stale[1] > 0) {
            set_place(&d, 0, stale[0], stale[1], stale[0] + stale[1], 0, 1);
            d.copies = true;
            d.of_allowed = INFINITY;
        }
        parity_compare_note(c, &d);
    }
}

/* ---- files ---- */

static void count_taken(struct comparison *c)
{
    struct parity_place p = record(c, !c->leader, RECORD_TAKEN, c->step, 0);
    double taken = 0;

    if (p.data) memcpy(&taken, p.data, sizeof taken);
    c->result->taken += (uint64_t)taken;
}

static ls_status compare_step(struct comparison *c)
{
    size_t n = c->file[0].parameters;

    count_taken(c);
    measure_gradients(c);
    compare_scalar(c, PARITY_LOSS, RECORD_LOSS, c->bounds->loss);
    for (size_t i = 0; i < n; i++)
        if (!c->file[0].parameter[i].shape.frozen) compare_tensor(c, PARITY_GRADIENT, RECORD_GRADIENT, i, c->bounds->most, c->bounds->mean);
    compare_norm(c);
    for (size_t i = 0; i < n; i++)
        if (!c->file[0].parameter[i].shape.frozen)
            LS_TRY(compare_update(c, i));
        else
            compare_tensor(c, PARITY_STATISTIC, RECORD_WEIGHT, i, c->bounds->statistic, 0);
    compare_copies(c, PARITY_COPIES, c->step + 1);
    return LS_OK;
}

/* The file of a side that resumed a checkpoint begins at a later step than the other. */
static ls_status compare_files(struct comparison *c)
{
    const struct parity_file *a = &c->file[0], *b = &c->file[1];

    LS_TRY(parity_file_match(a, b));
    if (a->steps != b->steps)
        return ls_fail(LS_EINVAL, "%s has %llu steps, %s has %llu; give both the same --steps", a->path, (unsigned long long)a->steps,
                       b->path, (unsigned long long)b->steps);
    c->step = MAX(a->first, b->first);
    c->result->loaded = c->step > 0;
    c->result->tensors = a->parameters;
    c->result->steps = a->steps - c->step;
    for (size_t i = 0; i < a->parameters; i++) {
        compare_start(c, RECORD_WEIGHT, "", i);
        compare_start(c, RECORD_M, "/m", i);
        compare_start(c, RECORD_V, "/v", i);
    }
    compare_copies(c, PARITY_START, c->step);
    for (; c->step < a->steps; c->step++) LS_TRY(compare_step(c));
    return LS_OK;
}

ls_status parity_compare(const char *a, const char *b, bool b_leads, const struct parity_bounds *bounds, struct parity_result *out)
{
    struct parity_result result = { .equal = true };
    struct comparison c = { .bounds = bounds, .result = &result, .leader = b_leads };
    ls_status st = parity_file_open(a, &c.file[0]);

    if (st == LS_OK) st = parity_file_open(b, &c.file[1]);
    if (st == LS_OK) st = compare_files(&c);
    parity_file_close(&c.file[0]);
    parity_file_close(&c.file[1]);
    if (st == LS_OK) *out = result;
    return st;
}
