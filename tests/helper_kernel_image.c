/* helper_kernel_image.c - cases of convolution, pooling and batch norm. */
#include "helper_kernel_gen.h"

/* ---- convolution: B C H W, O KH KW, stride padding ---- */

struct conv_shape { size_t B, C, H, W, O, KH, KW, stride, padding; };

static const struct conv_shape convs[] = {
    { 1, 1, 1, 1, 1, 1, 1, 1, 0 }, { 0, 2, 3, 3, 4, 3, 3, 1, 1 },  { 2, 3, 5, 7, 4, 3, 3, 1, 1 },
    { 3, 2, 7, 5, 3, 3, 2, 2, 1 }, { 2, 5, 4, 3, 7, 1, 1, 1, 0 },  { 2, 5, 5, 5, 7, 1, 1, 2, 0 },
    { 1, 3, 9, 9, 2, 5, 5, 3, 2 }, { 2, 2, 3, 3, 9, 3, 3, 1, 0 },  { 5, 8, 9, 8, 17, 3, 3, 1, 1 },
    { 2, 1, 6, 6, 2, 5, 5, 1, 4 }, { 4, 16, 16, 16, 16, 3, 3, 2, 1 },
};

static void conv_case(struct gen *g, const struct conv_shape *s, int layout, int bias)
{
    size_t x[4] = { s->B, s->C, s->H, s->W }, w[4] = { s->O, s->C, s->KH, s->KW };
    size_t y[4] = { s->B, s->O, (s->H + 2 * s->padding - s->KH) / s->stride + 1,
                    (s->W + 2 * s->padding - s->KW) / s->stride + 1 };

    gen_begin(g);
    g->layout = layout;
    gen_in(g, g->type, -1, 1, 4, g->op == OP_CONV2D ? x : y);
    gen_in(g, g->type, -1, 1, 4, g->op == OP_CONV2D_DW ? x : w);
    if (g->op == OP_CONV2D && bias)
        gen_in(g, bias == 1 ? g->type : LS_F32, -1, 1, DIMS(s->O));
    else if (g->op == OP_CONV2D)
        gen_in_absent(g);
    if (g->op == OP_CONV2D_DW)
        gen_out_add(g, bias == 1 ? LS_F32 : g->type, -1, 1, 4, w);
    else
        gen_out(g, g->type, 4, g->op == OP_CONV2D ? y : x);
    g->c.call.attr.conv.stride = s->stride;
    g->c.call.attr.conv.padding = s->padding;
    gen_emit(g, "[%zu,%zu,%zu,%zu] by [%zu,%zu,%zu] stride %zu padding %zu layout %d variant %d", s->B, s->C, s->H, s->W,
             s->O, s->KH, s->KW, s->stride, s->padding, layout, bias);
}

void conv_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(convs); i++)
        for (int bias = 0; bias < 3; bias++)
            conv_case(g, &convs[i], 0, bias);
    for (int layout = 1; layout < LAYOUTS; layout++)
        conv_case(g, &convs[2], layout, 0);
}

/* ---- pooling: planes H W, window height width, stride padding ---- */

static const struct { size_t B, C, H, W, height, width, stride, padding; } pools[] = {
    { 1, 1, 1, 1, 1, 1, 1, 0 }, { 0, 3, 4, 4, 2, 2, 2, 0 }, { 2, 3, 5, 7, 3, 3, 2, 1 }, { 2, 3, 4, 5, 4, 5, 1, 0 },
    { 3, 2, 7, 6, 2, 2, 2, 0 }, { 1, 2, 6, 5, 2, 3, 1, 1 }, { 4, 33, 12, 13, 3, 3, 1, 1 }, { 2, 1, 5, 5, 2, 2, 3, 0 },
};

void pool_cases(struct gen *g)
{
    bool down = g->op == OP_MAX_POOL2D || g->op == OP_AVG_POOL2D;

    for (size_t i = 0; i < COUNT_OF(pools); i++)
        for (int layout = 0; layout < (i < 4 ? LAYOUTS : 1); layout++) {
            size_t x[4] = { pools[i].B, pools[i].C, pools[i].H, pools[i].W };
            size_t y[4] = { x[0], x[1], (x[2] + 2 * pools[i].padding - pools[i].height) / pools[i].stride + 1,
                            (x[3] + 2 * pools[i].padding - pools[i].width) / pools[i].stride + 1 };

            gen_begin(g);
            g->layout = layout;
            if (g->op != OP_AVG_POOL2D_GRAD)
                gen_in(g, g->type, -3, 1, 4, x);
            if (!down)
                gen_in(g, g->type, -1, 2, 4, y);
            gen_out(g, g->type, 4, down ? y : x);
            g->c.call.attr.pool.height = pools[i].height;
            g->c.call.attr.pool.width = pools[i].width;
            g->c.call.attr.pool.stride = pools[i].stride;
            g->c.call.attr.pool.padding = pools[i].padding;
            gen_emit(g, "[%zu,%zu,%zu,%zu] window %zu x %zu layout %d", x[0], x[1], x[2], x[3], pools[i].height,
                     pools[i].width, layout);
        }
}

/* ---- batch norm ---- */

/* Plausible statistics: `count` elements with means near `mean`, and deviations about 1. */
static void stats_in(struct gen *g, size_t C, double mean, double count)
{
    struct view *v = gen_in(g, LS_F64, -0.5, 0.5, DIMS(2 * C + 1));

    for (size_t k = 0; k < C; k++) {
        double m = mean + element_get(v, k), var = 1 + element_get(v, C + k);

        element_put(v, k, m * count);
        element_put(v, C + k, (m * m + var) * count);
    }
    element_put(v, 2 * C, count);
}

/* Kinds: 0 plain, 1 with labels of which some are negative, 2 without a sum (DX), 3 without any element. */
static void labels_in(struct gen *g, int kind, size_t B)
{
    if (kind == 0 || kind == 2)
        gen_in_absent(g);
    else
        gen_in(g, LS_I32, kind == 3 ? -2 : -1, kind == 3 ? -1 : 3, DIMS(B));
}

static void batch_case(struct gen *g, int ndim, const size_t *x, int kind, ls_dtype w)
{
    size_t B = x[0], C = x[1];
    double mean = kind == 1 ? 40 : 0, count = kind == 3 ? 0 : 12;

    gen_begin(g);
    if (g->op == OP_BATCH_GRAD_STATS || g->op == OP_BATCH_NORM_DX)
        gen_in(g, g->type, -2, 2, ndim, x);
    gen_in(g, g->type, mean - 2, mean + 2, ndim, x);
    if (g->op == OP_BATCH_NORM_DX)
        gen_in(g, w, 0.5, 1.5, DIMS(C));
    if (g->op == OP_BATCH_STATS)
        labels_in(g, kind, B);
    else
        stats_in(g, C, mean, count);
    if (g->op == OP_BATCH_NORM) {
        gen_in(g, w, 0.5, 1.5, DIMS(C));
        gen_in(g, w, -1, 1, DIMS(C));
        labels_in(g, kind, B);
    }
    if (g->op == OP_BATCH_NORM_DX && kind == 2)
        gen_in_absent(g);
    else if (g->op == OP_BATCH_NORM_DX)
        gen_in(g, LS_F64, -3, 3, DIMS(2 * C));
    if (g->op == OP_BATCH_NORM_DX)
        labels_in(g, kind, B);
    if (g->op == OP_BATCH_STATS)
        gen_out(g, LS_F64, DIMS(2 * C + 1));
    else if (g->op == OP_BATCH_GRAD_STATS) {
        gen_out(g, LS_F64, DIMS(2 * C));
        gen_out(g, LS_F64, DIMS(2 * C));
    } else
        gen_out(g, g->type, ndim, x);
    g->c.call.attr.batch.eps = 1e-5;
    g->c.call.attr.batch.momentum = 0.1;
    gen_emit(g, "[%zu,%zu,%zu..] weights %s kind %d", B, C, ndim > 2 ? x[2] : 1, ls_dtype_name(w), kind);
}

void batch_cases(struct gen *g)
{
    static const struct { int ndim; size_t size[4]; } shapes[] = {
        { 4, { 1, 1, 1, 1 } }, { 4, { 0, 3, 2, 2 } }, { 2, { 5, 7 } }, { 4, { 3, 5, 3, 5 } }, { 4, { 2, 3, 4, 4 } },
        { 3, { 4, 2, 33 } }, { 4, { 7, 16, 16, 16 } }, { 2, { 129, 17 } },
    };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int kind = 0; kind < 4; kind++) {
            batch_case(g, shapes[i].ndim, shapes[i].size, kind, LS_F32);
            if (g->type != LS_F32)
                batch_case(g, shapes[i].ndim, shapes[i].size, kind, g->type);
        }
}

/* Ops with one number per channel: BATCH_USE_STATS, BATCH_UPDATE_STATS, BATCH_NORM_DW. */
void channel_cases(struct gen *g)
{
    static const size_t channels[] = { 1, 7, 16, 33 };

    for (size_t i = 0; i < COUNT_OF(channels); i++)
        for (int count = 0; count < 3; count++) {
            size_t C = channels[i];

            gen_begin(g);
            if (g->op == OP_BATCH_USE_STATS) {
                gen_in(g, g->type, -2, 2, DIMS(C));
                gen_in(g, g->type, 0.5, 2, DIMS(C));
                gen_out(g, LS_F64, DIMS(2 * C + 1));
            } else {
                if (g->op == OP_BATCH_UPDATE_STATS)
                    stats_in(g, C, 1, count * 4);
                else
                    gen_in(g, LS_F64, -3, 3, DIMS(2 * C));
                gen_out_add(g, g->type, -1, 1, DIMS(C));
                gen_out_add(g, g->type, 0.5, 2, DIMS(C));
            }
            g->c.call.attr.batch.momentum = 0.1;
            gen_emit(g, "[%zu] of %d", C, count * 4);
        }
}
