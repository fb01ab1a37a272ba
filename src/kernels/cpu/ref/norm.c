/* norm.c - reference: softmax and the norms, along the last dim.
 *   layer norm: y = (x - mean) rstd w + b, rstd = 1 / sqrt(mean of (x - mean)^2 + eps)
 *   RMS norm:   y = x rstd w,              rstd = 1 / sqrt(mean of x^2 + eps)
 */
#include "kernels/cpu/ref/ref.h"

#include <math.h>

static void softmax(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->out[0];
    size_t R = view_rows(x), N = view_last(x);

    for (size_t r = 0; r < R; r++) {
        double most = -INFINITY, sum = 0;

        for (size_t n = 0; n < N; n++) most = fmax(most, ref_get(x, r * N + n));
        for (size_t n = 0; n < N; n++) sum += exp(ref_get(x, r * N + n) - most);
        for (size_t n = 0; n < N; n++) ref_put(y, r * N + n, exp(ref_get(x, r * N + n) - most) / sum);
    }
}

static void softmax_grad(const struct call *c)
{
    const struct view *y = &c->in[0], *dy = &c->in[1], *dx = &c->out[0];
    size_t R = view_rows(y), N = view_last(y);

    for (size_t r = 0; r < R; r++) {
        double dot = 0;

        for (size_t n = 0; n < N; n++) dot += ref_get(y, r * N + n) * ref_get(dy, r * N + n);
        for (size_t n = 0; n < N; n++) ref_put(dx, r * N + n, ref_get(y, r * N + n) * (ref_get(dy, r * N + n) - dot));
    }
}

static void layer_norm(const struct call *c)
{
    const struct view *x = &c->in[0], *w = &c->in[1], *b = &c->in[2];
    size_t R = view_rows(x), C = view_last(x);

    for (size_t r = 0; r < R; r++) {
        double mean = 0, variance = 0;

        for (size_t i = 0; i < C; i++) mean += ref_get(x, r * C + i) / (double)C;
        for (size_t i = 0; i < C; i++) variance += pow(ref_get(x, r * C + i) - mean, 2) / (double)C;
        double rstd = 1 / sqrt(variance + c->attr.norm.eps);
        for (size_t i = 0; i < C; i++)
            ref_put(&c->out[0], r * C + i, (ref_get(x, r * C + i) - mean) * rstd * ref_get(w, i) + ref_get(b, i));
        ref_put(&c->out[1], r, mean);
        ref_put(&c->out[2], r, rstd);
    }
}

/* With n = (x - mean) rstd and g = dy w: dx = rstd (g - mean of g - n (mean of g n)). */
static void layer_norm_dx(const struct call *c)
{
    const struct view *dy = &c->in[0], *x = &c->in[1], *w = &c->in[2];
    size_t R = view_rows(x), C = view_last(x);

    for (size_t r = 0; r < R; r++) {
        double mean = ref_get(&c->in[3], r), rstd = ref_get(&c->in[4], r), mean_g = 0, mean_gn = 0;

        for (size_t i = 0; i < C; i++) {
            double g = ref_get(dy, r * C + i) * ref_get(w, i);

            mean_g += g / (double)C;
            mean_gn += g * (ref_get(x, r * C + i) - mean) * rstd / (double)C;
        }
        for (size_t i = 0; i < C; i++) {
            double g = ref_get(dy, r * C + i) * ref_get(w, i), n = (ref_get(x, r * C + i) - mean) * rstd;

            ref_put(&c->out[0], r * C + i, rstd * (g - mean_g - n * mean_gn));
        }
    }
}

static void layer_norm_dw(const struct call *c)
{
    const struct view *dy = &c->in[0], *x = &c->in[1];
    size_t R = view_rows(x), C = view_last(x);

    for (size_t i = 0; i < C; i++) {
        double dw = 0, db = 0;

        for (size_t r = 0; r < R; r++) {
            double n = (ref_get(x, r * C + i) - ref_get(&c->in[2], r)) * ref_get(&c->in[3], r);

            dw += ref_get(dy, r * C + i) * n;
            db += ref_get(dy, r * C + i);
        }
        ref_add(&c->out[0], i, dw);
        ref_add(&c->out[1], i, db);
    }
}

static void rms_norm(const struct call *c)
{
    const struct view *x = &c->in[0], *w = &c->in[1];
    size_t R = view_rows(x), C = view_last(x);

    for (size_t r = 0; r < R; r++) {
        double mean = 0;

        for (size_t i = 0; i < C; i++) mean += pow(ref_get(x, r * C + i), 2) / (double)C;
        double rstd = 1 / sqrt(mean + c->attr.norm.eps);
        for (size_t i = 0; i < C; i++) ref_put(&c->out[0], r * C + i, ref_get(x, r * C + i) * rstd * ref_get(w, i));
        ref_put(&c->out[1], r, rstd);
    }
}

/* With n = x rstd and g = dy w: dx = rstd (g - n (mean of g n)). */
static void rms_norm_dx(const struct call *c)
{
    const struct view *dy = &c->in[0], *x = &c->in[1], *w = &c->in[2];
    size_t R = view_rows(x), C = view_last(x);

    for (size_t r = 0; r < R; r++) {
        double rstd = ref_get(&c->in[3], r), mean_gn = 0;

        for (size_t i = 0; i < C; i++) mean_gn += ref_get(dy, r * C + i) * ref_get(w, i) * ref_get(x, r * C + i) * rstd / (double)C;
        for (size_t i = 0; i < C; i++) {
            double g = ref_get(dy, r * C + i) * ref_get(w, i), n = ref_get(x, r * C + i) * rstd;

            ref_put(&c->out[0], r * C + i, rstd * (g - n * mean_gn));
        }
    }
}

static void rms_norm_dw(const struct call *c)
{
    const struct view *dy = &c->in[0], *x = &c->in[1];
    size_t R = view_rows(x), C = view_last(x);

    for (size_t i = 0; i < C; i++) {
        double dw = 0;

        for (size_t r = 0; r < R; r++) dw += ref_get(dy, r * C + i) * ref_get(x, r * C + i) * ref_get(&c->in[2], r);
        ref_add(&c->out[0], i, dw);
    }
}

const struct kernel kernels_ref_norm[] = {
    REF_ROW(SOFTMAX, softmax, NULL),
    REF_ROW(SOFTMAX_GRAD, softmax_grad, NULL),
    REF_ROW(LAYER_NORM, layer_norm, NULL),
    REF_ROW(LAYER_NORM_DX, layer_norm_dx, NULL),
    REF_ROW(LAYER_NORM_DW, layer_norm_dw, NULL),
    REF_ROW(RMS_NORM, rms_norm, NULL),
    REF_ROW(RMS_NORM_DX, rms_norm_dx, NULL),
    REF_ROW(RMS_NORM_DW, rms_norm_dw, NULL),
    KERNELS_END,
};
