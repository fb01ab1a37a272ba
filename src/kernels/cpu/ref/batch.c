/* batch.c - reference: batch norm, per channel (dim 1) over samples and positions. Formulas, with stats and sums as batch.h has them, n =
 * (x - mean) rstd, N elements of a channel and v[b] 1 for valid samples, else 0:
 *
 *   y = n w + b,   rstd = 1 / sqrt(var + eps),   var = mean of x^2 - mean^2
 *   dx = w rstd (dy - v[b] (sum dy + n sum dy n) / N)        dw += sum dy n        db += sum dy
 *   track: mean' += momentum (mean - mean'),   var' += momentum (var N / (N - 1) - var');   N < 2: neither changes
 */
#include "kernels/cpu/ref/ref.h"

#include "kernels/cpu/batch.h"

/* x[B,C,S]: dims 2 .. as one. */
struct shape {
    size_t B, C, S;
};

static struct shape shape_of(const struct view *x)
{
    struct shape s = { x->size[0], x->size[1], 1 };

    for (int d = 2; d < x->ndim; d++) s.S *= x->size[d];
    return s;
}

static struct moments moments_at(const struct view *stats, size_t C, size_t c)
{
    return moments_of(ref_get(stats, c), ref_get(stats, C + c), ref_get(stats, 2 * C));
}

static bool is_valid(const struct call *c, int labels, size_t b) { return !call_has_in(c, labels) || ref_int(&c->in[labels], b) >= 0; }

static void stats(const struct call *c)
{
    struct shape s = shape_of(&c->in[0]);
    double valid = 0;

    for (size_t b = 0; b < s.B; b++) valid += is_valid(c, 1, b);
    for (size_t k = 0; k < s.C; k++) {
        double sum = 0, squares = 0;

        for (size_t b = 0; b < s.B; b++)
            for (size_t i = 0; i < s.S && is_valid(c, 1, b); i++) {
                double x = ref_get(&c->in[0], (b * s.C + k) * s.S + i);

                sum += x;
                squares += x * x;
            }
        ref_put(&c->out[0], k, sum);
        ref_put(&c->out[0], s.C + k, squares);
    }
    ref_put(&c->out[0], 2 * s.C, valid * (double)s.S);
}

/* The statistics of one element that had this mean and variance. */
static void recall(const struct call *c)
{
    size_t C = view_count(&c->in[0]);

    for (size_t k = 0; k < C; k++) {
        double mean = ref_get(&c->in[0], k);

        ref_put(&c->out[0], k, mean);
        ref_put(&c->out[0], C + k, ref_get(&c->in[1], k) + mean * mean);
    }
    ref_put(&c->out[0], 2 * C, 1);
}

static void track(const struct call *c)
{
    const struct view *mean = &c->out[0], *var = &c->out[1];
    size_t C = view_count(mean);

    for (size_t k = 0; k < C; k++) {
        struct moments m = moments_at(&c->in[0], C, k);

        if (m.count < 2) continue;
        ref_add(mean, k, c->attr.batch.momentum * (m.mean - ref_get(mean, k)));
        ref_add(var, k, c->attr.batch.momentum * (m.var * m.count / (m.count - 1) - ref_get(var, k)));
    }
}

static void ref_batch_norm(const struct call *c)
{
    struct shape s = shape_of(&c->in[0]);

    for (size_t b = 0; b < s.B; b++)
        for (size_t k = 0; k < s.C; k++) {
            struct moments m = moments_at(&c->in[1], s.C, k);
            double rstd = moments_rstd(&m, c->attr.batch.eps), w = ref_get(&c->in[2], k), bias = ref_get(&c->in[3], k);

            for (size_t i = 0, at = (b * s.C + k) * s.S; i < s.S; i++, at++)
                ref_put(&c->out[0], at, (ref_get(&c->in[0], at) - m.mean) * rstd * w + bias);
        }
}

static void grad_stats(const struct call *c)
{
    struct shape s = shape_of(&c->in[0]);

    for (size_t k = 0; k < s.C; k++) {
        struct moments m = moments_at(&c->in[2], s.C, k);
        double rstd = moments_rstd(&m, c->attr.batch.eps), sum = 0, sum_n = 0;

        for (size_t b = 0; b < s.B; b++)
            for (size_t i = 0, at = (b * s.C + k) * s.S; i < s.S; i++, at++) {
                double dy = ref_get(&c->in[0], at);

                sum += dy;
                sum_n += dy * (ref_get(&c->in[1], at) - m.mean) * rstd;
            }
        for (int o = 0; o < 2; o++) {
            ref_put(&c->out[o], k, sum);
            ref_put(&c->out[o], s.C + k, sum_n);
        }
    }
}

static void ref_batch_norm_dx(const struct call *c)
{
    struct shape s = shape_of(&c->in[0]);

    for (size_t b = 0; b < s.B; b++)
        for (size_t k = 0; k < s.C; k++) {
            struct moments m = moments_at(&c->in[3], s.C, k);
            double rstd = moments_rstd(&m, c->attr.batch.eps), w = ref_get(&c->in[2], k), mean = 0, mean_n = 0;

            if (call_has_in(c, 4) && m.count > 0 && is_valid(c, 5, b)) {
                mean = ref_get(&c->in[4], k) / m.count;
                mean_n = ref_get(&c->in[4], s.C + k) / m.count;
            }
            for (size_t i = 0, at = (b * s.C + k) * s.S; i < s.S; i++, at++) {
                double n = (ref_get(&c->in[1], at) - m.mean) * rstd;

                ref_put(&c->out[0], at, w * rstd * (ref_get(&c->in[0], at) - mean - n * mean_n));
            }
        }
}

static void norm_dw(const struct call *c)
{
    size_t C = view_count(&c->out[0]);

    for (size_t k = 0; k < C; k++) {
        ref_add(&c->out[0], k, ref_get(&c->in[0], C + k));
        ref_add(&c->out[1], k, ref_get(&c->in[0], k));
    }
}

const struct kernel kernels_ref_batch[] = {
    REF_ROW(BATCH_STATS, stats, NULL),           REF_ROW(BATCH_USE_STATS, recall, NULL),
    REF_ROW(BATCH_UPDATE_STATS, track, NULL),    REF_ROW(BATCH_NORM, ref_batch_norm, NULL),
    REF_ROW(BATCH_GRAD_STATS, grad_stats, NULL), REF_ROW(BATCH_NORM_DX, ref_batch_norm_dx, NULL),
    REF_ROW(BATCH_NORM_DW, norm_dw, NULL),       KERNELS_END,
};
