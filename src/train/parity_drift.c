/* parity_drift.c - two sides that ran freely: how far apart each step finds them. */
#include "train/parity.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"
#include "train/parity_file.h"

static double scalar_drift(const struct parity_file f[2], enum parity_record r, uint64_t step)
{
    double x[2] = { NAN, NAN };

    for (int k = 0; k < 2; k++) {
        struct parity_place p = parity_file_find(&f[k], r, step, 0);

        if (p.data) memcpy(&x[k], p.data, sizeof x[k]);
    }
    return fabs(x[0] - x[1]) / fmax(fabs(x[0]), fabs(x[1]));
}

/* The tensor that is furthest apart; its name into name[160]. */
static double tensor_drift(const struct parity_file f[2], enum parity_record r, uint64_t step, char *name)
{
    double most = 0;

    for (size_t i = 0; i < f[0].parameters; i++) {
        struct parity_place a = parity_file_find(&f[0], r, step, i), b = parity_file_find(&f[1], r, step, i);
        double error = 0, scale = 0;

        for (size_t k = 0; a.data && b.data && k < a.count; k++) {
            double x = parity_f32(a.data, k), y = parity_f32(b.data, k);

            error = fmax(error, fabs(x - y));
            scale = fmax(scale, fmax(fabs(x), fabs(y)));
        }
        if (!(error > most * scale)) continue;
        most = error / scale;
        snprintf(name, 160, "%s", f[0].parameter[i].name);
    }
    return most;
}

static ls_status measure(const struct parity_file f[2], uint64_t *first, uint64_t *steps, struct parity_drift **out)
{
    LS_TRY(parity_file_match(&f[0], &f[1]));
    *first = MAX(f[0].first, f[1].first);
    if (MIN(f[0].steps, f[1].steps) < *first) return ls_fail(LS_EINVAL, "%s and %s have no step in common", f[0].path, f[1].path);
    *steps = MIN(f[0].steps, f[1].steps) - *first;
    *out = mem_array(MEM_OTHER, *steps + 1, sizeof **out);
    if (!*out) return LS_ENOMEM;
    for (uint64_t s = 0; s < *steps; s++) {
        struct parity_drift *d = &(*out)[s];

        d->loss = scalar_drift(f, RECORD_LOSS, *first + s);
        d->norm = scalar_drift(f, RECORD_NORM, *first + s);
        d->gradient = tensor_drift(f, RECORD_GRADIENT, *first + s, d->gradient_name);
        d->weight = tensor_drift(f, RECORD_WEIGHT, *first + s + 1, d->weight_name);
    }
    return LS_OK;
}

ls_status parity_measure_drift(const char *a, const char *b, uint64_t *first, uint64_t *steps, struct parity_drift **drift)
{
    struct parity_file f[2] = { 0 };
    ls_status st = parity_file_open(a, &f[0]);

    if (st == LS_OK) st = parity_file_open(b, &f[1]);
    if (st == LS_OK) st = measure(f, first, steps, drift);
    parity_file_close(&f[0]);
    parity_file_close(&f[1]);
    return st;
}
