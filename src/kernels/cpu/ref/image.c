/* image.c - reference: convolution and pooling of images.
 *
 *   y[b,o,i,j] = bias[o] + sum over c,k,l of w[o,c,k,l] x[b,c, i stride + k - padding, j stride + l - padding]
 *
 * x is zero outside for convolutions and averages; a maximum only covers elements inside.
 */
#include "kernels/cpu/ref/ref.h"

#include <math.h>

static size_t at4(const struct view *v, size_t b, size_t c, size_t i, size_t j)
{
    return ((b * v->size[1] + c) * v->size[2] + i) * v->size[3] + j;
}

/* Position k of window i along a dim of `size`; false: outside. */
static bool image_inside(size_t i, size_t k, size_t stride, size_t padding, size_t size, size_t *at)
{
    size_t from_pad = i * stride + k;

    *at = from_pad - padding;
    return from_pad >= padding && *at < size;
}

/* The sum over k,l for one input channel. */
static double window(const struct call *c, size_t b, size_t o, size_t ch, size_t i, size_t j)
{
    const struct view *x = &c->in[0], *w = &c->in[1];
    size_t stride = c->attr.conv.stride, padding = c->attr.conv.padding, h, v;
    double sum = 0;

    for (size_t k = 0; k < w->size[2]; k++)
        for (size_t l = 0; l < w->size[3]; l++)
            if (image_inside(i, k, stride, padding, x->size[2], &h) && image_inside(j, l, stride, padding, x->size[3], &v))
                sum += ref_get(w, at4(w, o, ch, k, l)) * ref_get(x, at4(x, b, ch, h, v));
    return sum;
}

static void conv2d(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->out[0];

    for (size_t b = 0; b < y->size[0]; b++)
        for (size_t o = 0; o < y->size[1]; o++)
            for (size_t i = 0; i < y->size[2]; i++)
                for (size_t j = 0; j < y->size[3]; j++) {
                    double sum = call_has_in(c, 2) ? ref_get(&c->in[2], o) : 0;

                    for (size_t ch = 0; ch < x->size[1]; ch++) sum += window(c, b, o, ch, i, j);
                    ref_put(y, at4(y, b, o, i, j), sum);
                }
}

/* Window i whose position k is `at`; false: there is none. */
static bool window_of(size_t at, size_t k, size_t stride, size_t padding, size_t windows, size_t *i)
{
    size_t start = at + padding;

    if (start < k || (start - k) % stride != 0) return false;
    *i = (start - k) / stride;
    return *i < windows;
}

static void conv2d_dx(const struct call *c)
{
    const struct view *dy = &c->in[0], *w = &c->in[1], *dx = &c->out[0];
    size_t stride = c->attr.conv.stride, padding = c->attr.conv.padding, i, j;

    for (size_t n = 0; n < view_count(dx); n++) {
        size_t v = n % dx->size[3], h = n / dx->size[3] % dx->size[2], ch = n / dx->size[3] / dx->size[2] % dx->size[1];
        size_t b = n / dx->size[3] / dx->size[2] / dx->size[1];
        double sum = 0;

        for (size_t k = 0; k < w->size[2]; k++)
            for (size_t l = 0; l < w->size[3]; l++)
                if (window_of(h, k, stride, padding, dy->size[2], &i) && window_of(v, l, stride, padding, dy->size[3], &j))
                    for (size_t o = 0; o < dy->size[1]; o++) sum += ref_get(dy, at4(dy, b, o, i, j)) * ref_get(w, at4(w, o, ch, k, l));
        ref_put(dx, n, sum);
    }
}

static void conv2d_dw(const struct call *c)
{
    const struct view *dy = &c->in[0], *x = &c->in[1], *dw = &c->out[0];
    size_t stride = c->attr.conv.stride, padding = c->attr.conv.padding, h, v;

    for (size_t n = 0; n < view_count(dw); n++) {
        size_t l = n % dw->size[3], k = n / dw->size[3] % dw->size[2], ch = n / dw->size[3] / dw->size[2] % dw->size[1];
        size_t o = n / dw->size[3] / dw->size[2] / dw->size[1];
        double sum = 0;

        for (size_t b = 0; b < dy->size[0]; b++)
            for (size_t i = 0; i < dy->size[2]; i++)
                for (size_t j = 0; j < dy->size[3]; j++)
                    if (image_inside(i, k, stride, padding, x->size[2], &h) && image_inside(j, l, stride, padding, x->size[3], &v))
                        sum += ref_get(dy, at4(dy, b, o, i, j)) * ref_get(x, at4(x, b, ch, h, v));
        ref_add(dw, n, sum);
    }
}

/* ---- pooling ---- */

/* Element of x that is the first largest of the window of plane (b,c); a NaN is larger than all. */
static size_t image_largest(const struct call *c, size_t b, size_t ch, size_t i, size_t j)
{
    const struct view *x = &c->in[0];
    size_t h, v, best = 0;
    double most = -INFINITY;
    bool found = false;

    for (size_t k = 0; k < c->attr.pool.height; k++)
        for (size_t l = 0; l < c->attr.pool.width; l++)
            if (image_inside(i, k, c->attr.pool.stride, c->attr.pool.padding, x->size[2], &h) &&
                image_inside(j, l, c->attr.pool.stride, c->attr.pool.padding, x->size[3], &v)) {
                double value = ref_get(x, at4(x, b, ch, h, v));

                if (!found || value > most || (isnan(value) && !isnan(most))) {
                    most = value;
                    best = at4(x, b, ch, h, v);
                }
                found = true;
            }
    return best;
}

static void max_pool2d(const struct call *c)
{
    const struct view *y = &c->out[0];

    for (size_t b = 0; b < y->size[0]; b++)
        for (size_t ch = 0; ch < y->size[1]; ch++)
            for (size_t i = 0; i < y->size[2]; i++)
                for (size_t j = 0; j < y->size[3]; j++) ref_put(y, at4(y, b, ch, i, j), ref_get(&c->in[0], image_largest(c, b, ch, i, j)));
}

static size_t max_grad_scratch(const struct call *c) { return view_count(&c->out[0]) * sizeof(double); }

/* The sums are formed in scratch, so that gradients of half types are rounded once. */
static void max_pool2d_grad(const struct call *c)
{
    const struct view *dy = &c->in[1], *dx = &c->out[0];
    double *sum = c->scratch;

    for (size_t n = 0; n < view_count(dx); n++) sum[n] = 0;
    for (size_t b = 0; b < dy->size[0]; b++)
        for (size_t ch = 0; ch < dy->size[1]; ch++)
            for (size_t i = 0; i < dy->size[2]; i++)
                for (size_t j = 0; j < dy->size[3]; j++) sum[image_largest(c, b, ch, i, j)] += ref_get(dy, at4(dy, b, ch, i, j));
    for (size_t n = 0; n < view_count(dx); n++) ref_put(dx, n, sum[n]);
}

static void avg_pool2d(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->out[0];
    size_t height = c->attr.pool.height, width = c->attr.pool.width, h, v;

    for (size_t b = 0; b < y->size[0]; b++)
        for (size_t ch = 0; ch < y->size[1]; ch++)
            for (size_t n = 0; n < y->size[2] * y->size[3]; n++) {
                size_t i = n / y->size[3], j = n % y->size[3];
                double sum = 0;

                for (size_t k = 0; k < height; k++)
                    for (size_t l = 0; l < width; l++)
                        if (image_inside(i, k, c->attr.pool.stride, c->attr.pool.padding, x->size[2], &h) &&
                            image_inside(j, l, c->attr.pool.stride, c->attr.pool.padding, x->size[3], &v))
                            sum += ref_get(x, at4(x, b, ch, h, v));
                ref_put(y, at4(y, b, ch, i, j), sum / (double)(height * width));
            }
}

static void avg_pool2d_grad(const struct call *c)
{
    const struct view *dy = &c->in[0], *dx = &c->out[0];
    size_t height = c->attr.pool.height, width = c->attr.pool.width, i, j;

    for (size_t n = 0; n < view_count(dx); n++) {
        size_t v = n % dx->size[3], h = n / dx->size[3] % dx->size[2], ch = n / dx->size[3] / dx->size[2] % dx->size[1];
        size_t b = n / dx->size[3] / dx->size[2] / dx->size[1];
        double sum = 0;

        for (size_t k = 0; k < height; k++)
            for (size_t l = 0; l < width; l++)
                if (window_of(h, k, c->attr.pool.stride, c->attr.pool.padding, dy->size[2], &i) &&
                    window_of(v, l, c->attr.pool.stride, c->attr.pool.padding, dy->size[3], &j))
                    sum += ref_get(dy, at4(dy, b, ch, i, j));
        ref_put(dx, n, sum / (double)(height * width));
    }
}

const struct kernel kernels_ref_image[] = {
    REF_ROW(CONV2D, conv2d, NULL),
    REF_ROW(CONV2D_DX, conv2d_dx, NULL),
    REF_ROW(CONV2D_DW, conv2d_dw, NULL),
    REF_ROW(MAX_POOL2D, max_pool2d, NULL),
    REF_ROW(MAX_POOL2D_GRAD, max_pool2d_grad, max_grad_scratch),
    REF_ROW(AVG_POOL2D, avg_pool2d, NULL),
    REF_ROW(AVG_POOL2D_GRAD, avg_pool2d_grad, NULL),
    KERNELS_END,
};
