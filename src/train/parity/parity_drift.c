/* parity_drift.c - measures how far two sides that ran freely are apart in each step.
 *
 * A tensor's drift is the root mean square of its difference, relative to its own root mean square or, if that is smaller, to a floor: for
 * gradients a quarter of the root mean square of all parameters' gradients (parity_bounds.h), for weights the root mean square of all
 * parameters.
 *
 * Some gradients are only rounding: a key bias adds the same number to all scores of a query, which softmax ignores. The two sides of such
 * a gradient differ by as much as its own size, and Adam turns it into updates of the usual size. These tensors are left out and listed.
 * They are recognized in the first step, which both sides compute from equal weights: the gradient is below the bound for rounding, and the
 * two sides differ by at least half of it.
 */
#include "train/parity/parity.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"
#include "train/parity/parity_file.h"

static double scalar_drift(const struct parity_file f[2], enum parity_record r, uint64_t step)
{
    double x[2] = { NAN, NAN };

    for (int k = 0; k < 2; k++) {
        struct parity_place p = parity_file_find(&f[k], r, step, 0);

        if (p.data) memcpy(&x[k], p.data, sizeof x[k]);
    }
    return fabs(x[0] - x[1]) / fmax(fabs(x[0]), fabs(x[1]));
}

static bool is_compared(const struct parity_file f[2], size_t i) { return !f[0].parameter[i].shape.frozen; }

/* Sums of squares: of a tensor on each side, and of the difference. */
struct squares {
    double of[2], difference;
    size_t elements;
};

static struct squares squares_of(const struct parity_file f[2], enum parity_record r, uint64_t step, size_t i)
{
    struct parity_place a = parity_file_find(&f[0], r, step, i), b = parity_file_find(&f[1], r, step, i);
    struct squares s = { .elements = a.data && b.data ? a.count : 0 };

    for (size_t k = 0; k < s.elements; k++) {
        double x = parity_f32(a.data, k), y = parity_f32(b.data, k);

        s.of[0] += x * x;
        s.of[1] += y * y;
        s.difference += (x - y) * (x - y);
    }
    return s;
}

static double root_mean_square(double squares, size_t elements) { return sqrt(squares / (double)MAX(elements, (size_t)1)); }

static double tensor_rms(const struct squares *s) { return root_mean_square(fmax(s->of[0], s->of[1]), s->elements); }

/* Root mean square of all tensors of a step, on the side where it is larger. */
static double total_rms(const struct parity_file f[2], enum parity_record r, uint64_t step)
{
    struct squares sum = { 0 };

    for (size_t i = 0; i < f[0].parameters; i++) {
        if (!is_compared(f, i)) continue;
        struct squares s = squares_of(f, r, step, i);

        for (int k = 0; k < 2; k++) sum.of[k] += s.of[k];
        sum.elements += s.elements;
    }
    return tensor_rms(&sum);
}

static ls_status find_rounding(const struct parity_file f[2], const struct parity_bounds *bounds, struct parity_drifts *d)
{
    double most = bounds->mean * total_rms(f, RECORD_GRADIENT, d->first);

    d->rounding = mem_array(MEM_OTHER, f[0].parameters + 1, sizeof *d->rounding);
    if (!d->rounding) return LS_ENOMEM;
    for (size_t i = 0; i < f[0].parameters; i++) {
        struct squares s = squares_of(f, RECORD_GRADIENT, d->first, i);
        double own = tensor_rms(&s), difference = root_mean_square(s.difference, s.elements);

        if (is_compared(f, i) && difference > 0 && own <= most && difference >= own / 2)
            d->rounding[d->roundings++] = (struct parity_rounding){ .parameter = i };
    }
    for (size_t n = 0; n < d->roundings; n++)
        snprintf(d->rounding[n].name, sizeof d->rounding[n].name, "%s", f[0].parameter[d->rounding[n].parameter].name);
    return LS_OK;
}

static bool is_rounding(const struct parity_drifts *d, size_t i)
{
    for (size_t n = 0; n < d->roundings; n++)
        if (d->rounding[n].parameter == i) return true;
    return false;
}

/* The largest drift of a tensor. Writes the tensor's name into name[160]. */
static double tensor_drift(const struct parity_file f[2], const struct parity_drifts *d, enum parity_record r, uint64_t step, char *name)
{
    double floor = total_rms(f, r, step) / (r == RECORD_GRADIENT ? PARITY_FLOOR : 1), most = 0;

    for (size_t i = 0; i < f[0].parameters; i++) {
        struct squares s = squares_of(f, r, step, i);
        double scale = fmax(tensor_rms(&s), floor), error = root_mean_square(s.difference, s.elements);

        if (!is_compared(f, i) || is_rounding(d, i) || error <= most * scale) continue;
        most = scale > 0 ? error / scale : INFINITY;
        snprintf(name, 160, "%s", f[0].parameter[i].name);
    }
    return most;
}

static ls_status drift_of_files(const struct parity_file f[2], const struct parity_bounds *bounds, struct parity_drifts *out)
{
    LS_TRY(parity_file_match(&f[0], &f[1]));
    out->first = MAX(f[0].first, f[1].first);
    if (MIN(f[0].steps, f[1].steps) < out->first) return ls_fail(LS_EINVAL, "%s and %s have no common step", f[0].path, f[1].path);
    out->steps = MIN(f[0].steps, f[1].steps) - out->first;
    out->step = mem_array(MEM_OTHER, out->steps + 1, sizeof *out->step);
    if (!out->step) return LS_ENOMEM;
    LS_TRY(find_rounding(f, bounds, out));
    for (uint64_t s = 0; s < out->steps; s++) {
        struct parity_drift *d = &out->step[s];

        *d = (struct parity_drift){ 0 };
        d->loss = scalar_drift(f, RECORD_LOSS, out->first + s);
        d->norm = scalar_drift(f, RECORD_NORM, out->first + s);
        d->gradient = tensor_drift(f, out, RECORD_GRADIENT, out->first + s, d->gradient_name);
        d->weight = tensor_drift(f, out, RECORD_WEIGHT, out->first + s + 1, d->weight_name);
    }
    return LS_OK;
}

ls_status parity_drift_measure(const char *a, const char *b, const struct parity_bounds *bounds, struct parity_drifts *out)
{
    struct parity_file f[2] = { 0 };
    struct parity_drifts drifts = { 0 };
    ls_status st = parity_file_open(a, &f[0]);

    if (st == LS_OK) st = parity_file_open(b, &f[1]);
    if (st == LS_OK) st = drift_of_files(f, bounds, &drifts);
    parity_file_close(&f[0]);
    parity_file_close(&f[1]);
    *out = drifts;
    if (st != LS_OK) parity_drift_close(out);
    return st;
}

void parity_drift_close(struct parity_drifts *d)
{
    mem_free(d->step);
    mem_free(d->rounding);
    *d = (struct parity_drifts){ 0 };
}
