/* pool.c - pooling of images of contiguous f32, one plane per task. Formulas: ref/image.c. */
#include "kernels/kernel.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/threads.h"

/* A plane [H,W] and the windows [OH,OW] on it. */
struct pool {
    const struct call *c;
    size_t planes, H, W, OH, OW;
};

static bool is_f32(const struct view *v) { return v->dtype == LS_F32 && v->ndim == 4 && view_is_contiguous(v); }

static struct pool pool_of(const struct call *c, const struct view *x, const struct view *y)
{
    return (struct pool){ c, x->size[0] * x->size[1], x->size[2], x->size[3], y->size[2], y->size[3] };
}

/* Positions of window i that are inside `size`: [*begin, *end). */
static void clip(size_t i, size_t window, size_t stride, size_t padding, size_t size, size_t *begin, size_t *end)
{
    size_t start = i * stride;

    *begin = start > padding ? start - padding : 0;
    *end = MIN(start + window - padding, size);
}

struct pool_box {
    size_t top, bottom, left, right;
};

static struct pool_box box_of(const struct pool *z, size_t i, size_t j)
{
    size_t stride = z->c->attr.pool.stride, padding = z->c->attr.pool.padding;
    struct pool_box b;

    clip(i, z->c->attr.pool.height, stride, padding, z->H, &b.top, &b.bottom);
    clip(j, z->c->attr.pool.width, stride, padding, z->W, &b.left, &b.right);
    return b;
}

static size_t pool_largest(const struct pool *z, const float *x, struct pool_box b)
{
    size_t best = b.top * z->W + b.left;

    for (size_t h = b.top; h < b.bottom; h++)
        for (size_t v = b.left; v < b.right; v++) {
            float value = x[h * z->W + v];

            if (value > x[best] || (isnan(value) && !isnan(x[best]))) best = h * z->W + v;
        }
    return best;
}

static void max_planes(void *ctx, size_t begin, size_t end, int thread)
{
    const struct pool *z = ctx;

    (void)thread;
    for (size_t n = begin; n < end; n++) {
        const float *x = (const float *)z->c->in[0].data + n * z->H * z->W;
        float *y = (float *)z->c->out[0].data + n * z->OH * z->OW;

        for (size_t i = 0; i < z->OH; i++)
            for (size_t j = 0; j < z->OW; j++) *y++ = x[pool_largest(z, x, box_of(z, i, j))];
    }
}

static void max_grad_planes(void *ctx, size_t begin, size_t end, int thread)
{
    const struct pool *z = ctx;

    (void)thread;
    for (size_t n = begin; n < end; n++) {
        const float *x = (const float *)z->c->in[0].data + n * z->H * z->W;
        const float *dy = (const float *)z->c->in[1].data + n * z->OH * z->OW;
        float *dx = (float *)z->c->out[0].data + n * z->H * z->W;

        memset(dx, 0, z->H * z->W * sizeof *dx);
        for (size_t i = 0; i < z->OH; i++)
            for (size_t j = 0; j < z->OW; j++) dx[pool_largest(z, x, box_of(z, i, j))] += *dy++;
    }
}

static void avg_planes(void *ctx, size_t begin, size_t end, int thread)
{
    const struct pool *z = ctx;
    float count = (float)(z->c->attr.pool.height * z->c->attr.pool.width);

    (void)thread;
    for (size_t n = begin; n < end; n++) {
        const float *x = (const float *)z->c->in[0].data + n * z->H * z->W;
        float *y = (float *)z->c->out[0].data + n * z->OH * z->OW;

        for (size_t i = 0; i < z->OH; i++)
            for (size_t j = 0; j < z->OW; j++) {
                struct pool_box b = box_of(z, i, j);
                double sum = 0;

                for (size_t h = b.top; h < b.bottom; h++)
                    for (size_t v = b.left; v < b.right; v++) sum += x[h * z->W + v];
                *y++ = (float)sum / count;
            }
    }
}

static void avg_grad_planes(void *ctx, size_t begin, size_t end, int thread)
{
    const struct pool *z = ctx;
    float count = (float)(z->c->attr.pool.height * z->c->attr.pool.width);

    (void)thread;
    for (size_t n = begin; n < end; n++) {
        const float *dy = (const float *)z->c->in[0].data + n * z->OH * z->OW;
        float *dx = (float *)z->c->out[0].data + n * z->H * z->W;

        memset(dx, 0, z->H * z->W * sizeof *dx);
        for (size_t i = 0; i < z->OH; i++)
            for (size_t j = 0; j < z->OW; j++) {
                struct pool_box b = box_of(z, i, j);
                float share = *dy++ / count;

                for (size_t h = b.top; h < b.bottom; h++)
                    for (size_t v = b.left; v < b.right; v++) dx[h * z->W + v] += share;
            }
    }
}

static void over_planes(struct pool z, threads_range_fn *fn)
{
    enum { GRAIN = 16384 }; /* elements that are worth another thread */

    threads_for(z.planes, MAX(GRAIN / MAX(z.H * z.W, (size_t)1), (size_t)1), fn, &z);
}

static bool pool_accepts(const struct call *c)
{
    bool fits = is_f32(&c->out[0]);

    for (int i = 0; i < c->nin; i++) fits = fits && is_f32(&c->in[i]);
    return fits;
}

static void max_pool(const struct call *c) { over_planes(pool_of(c, &c->in[0], &c->out[0]), max_planes); }
static void max_pool_grad(const struct call *c) { over_planes(pool_of(c, &c->in[0], &c->in[1]), max_grad_planes); }
static void avg_pool(const struct call *c) { over_planes(pool_of(c, &c->in[0], &c->out[0]), avg_planes); }
static void avg_pool_grad(const struct call *c) { over_planes(pool_of(c, &c->out[0], &c->in[0]), avg_grad_planes); }

#define POOL_ROW(id, function)                                                                                                   \
    {                                                                                                                            \
        .op = OP_##id, .name = "planes", .device = "cpu", .priority = PRIORITY_BLOCKED, .isa = ISA_ANY, .accepts = pool_accepts, \
        .run = function                                                                                                          \
    }

const struct kernel kernels_pool[] = { POOL_ROW(MAX_POOL2D, max_pool), POOL_ROW(MAX_POOL2D_GRAD, max_pool_grad),
                                       POOL_ROW(AVG_POOL2D, avg_pool), POOL_ROW(AVG_POOL2D_GRAD, avg_pool_grad), KERNELS_END };
