/* helper_kernel_cases.c - cases of elementwise ops, ops along rows and shape ops. */
#include "helper_kernel_gen.h"

#include <math.h>
#include <string.h>
#include "base/rng.h"

/* Pointwise ops */

static void pointwise_case(struct gen *g, int nin, int nout, int ndim, const size_t *size, int layout, int kind)
{
    gen_begin(g);
    g->layout = layout;
    for (int i = 0; i < nin; i++)
        gen_in(g, g->type, -4, 4, ndim, size);
    if (g->op == OP_MSE_GRAD) {
        g->layout = 0;
        gen_in(g, LS_F32, 0.5, 1, DIMS(1));
        g->layout = layout;
    }
    for (int i = 0; i < nout; i++)
        gen_out(g, g->type, ndim, size);
    if (g->op == OP_SCALE || g->op == OP_FILL)
        g->c.call.attr.scale.value = kind ? 1.7 : 0;
    else if (g->op == OP_UNARY || g->op == OP_UNARY_GRAD)
        g->c.call.attr.unary.kind = (enum unary)kind;
    gen_emit(g, "[%zu] kind %d layout %d", ndim ? size[0] : 1, kind, layout);
}

static void pointwise(struct gen *g, int nin, int nout, int kinds)
{
    for (int kind = 0; kind < kinds; kind++) {
        for (size_t i = 0; i < GEN_COUNTS; i++)
            pointwise_case(g, nin, nout, DIMS(gen_counts[i]), 0, kind);
        for (int layout = 0; layout < LAYOUTS; layout++)
            pointwise_case(g, nin, nout, DIMS(3, 5, 7), layout, kind);
        pointwise_case(g, nin, nout, 0, NULL, 0, kind);
    }
}

void add_cases(struct gen *g)
{
    static const size_t shapes[][2] = { { 3, 1 }, { 5, 7 }, { 4, 16 }, { 9, 17 }, { 0, 8 }, { 331, 257 } };

    pointwise(g, 2, 1, 1);
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int one = 0; one < 3; one++) {
            gen_begin(g);
            gen_in(g, g->type, -2, 2, DIMS(2, shapes[i][0], shapes[i][1]));
            if (one == 2)
                gen_in(g, g->type, -2, 2, DIMS(1));
            else
                gen_in(g, one ? LS_F32 : g->type, -2, 2, DIMS(shapes[i][1]));
            gen_out(g, g->type, DIMS(2, shapes[i][0], shapes[i][1]));
            gen_emit(g, "[2,%zu,%zu] + %s", shapes[i][0], shapes[i][1],
                     one == 2 ? "one" : one ? "an f32 suffix" : "a suffix");
        }
}

void accumulate_cases(struct gen *g)
{
    for (size_t t = 0; t < GEN_TYPES; t++)
        for (size_t i = 0; i < GEN_COUNTS; i++) {
            gen_begin(g);
            gen_in(g, gen_types[t], -2, 2, DIMS(gen_counts[i]));
            gen_out_add(g, g->type, -2, 2, DIMS(gen_counts[i]));
            gen_emit(g, "[%zu] += %s", gen_counts[i], ls_dtype_name(gen_types[t]));
        }
    gen_begin(g);
    gen_in(g, LS_F64, -2, 2, DIMS(33));
    gen_out_add(g, LS_F64, -2, 2, DIMS(33));
    gen_emit(g, "[33] of f64");
    for (int layout = 0; layout < LAYOUTS * LAYOUTS; layout++) {
        gen_begin(g);
        g->layout = layout % LAYOUTS;
        gen_in(g, g->type, -2, 2, DIMS(3, 17, 33));
        g->layout = layout / LAYOUTS;
        gen_out_add(g, LS_F32, -2, 2, DIMS(3, 17, 33));
        gen_emit(g, "layouts %d to %d", layout % LAYOUTS, layout / LAYOUTS);
    }
}

void dropout_cases(struct gen *g)
{
    for (size_t i = 0; i < GEN_COUNTS; i++)
        for (uint64_t first = 0; first < 2; first++) {
            gen_begin(g);
            gen_in(g, g->type, 1, 2, DIMS(gen_counts[i]));
            gen_in(g, LS_I64, 70000, 90000, DIMS(1));
            gen_out(g, g->type, DIMS(gen_counts[i]));
            g->c.call.attr.dropout.p = i % 3 == 0 ? 0 : 0.3;
            g->c.call.attr.dropout.seed = 0x123456789abcdef0u;
            g->c.call.attr.dropout.stream = rng_stream("layer");
            g->c.call.attr.dropout.first = first ? 0xffffffff7u : 0;
            gen_emit(g, "[%zu] p %.1f first %d", gen_counts[i], g->c.call.attr.dropout.p, (int)first);
        }
    for (int i = 0; i < 4; i++) {
        size_t C = i < 2 ? 7 : 640, count[2] = { i % 2 ? 3 : 5, i % 2 ? 4 : 0 };

        gen_begin(g);
        gen_in(g, g->type, 1, 2, DIMS(3, count[0] + count[1], C));
        gen_in(g, LS_I64, 1, 9, DIMS(2));
        gen_out(g, g->type, DIMS(3, count[0] + count[1], C));
        g->c.call.attr.dropout.p = 0.3;
        g->c.call.attr.dropout.full = 19;
        memcpy(g->c.call.attr.dropout.begin, (size_t[]){ 2, 12 }, sizeof count);
        memcpy(g->c.call.attr.dropout.count, count, sizeof count);
        gen_emit(g, "chunks of %zu and %zu rows of %zu", count[0], count[1], C);
    }
}

/* Rows */

static const size_t kernel_cases_rows[][2] = {
    { 0, 8 }, { 1, 1 }, { 3, 7 }, { 5, 15 }, { 4, 16 }, { 3, 17 }, { 2, 127 }, { 200, 768 }, { 1031, 33 },
};

void softmax_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(kernel_cases_rows); i++)
        for (int layout = 0; layout < (i < 4 ? LAYOUTS : 1); layout++) {
            gen_begin(g);
            g->layout = layout;
            gen_in(g, g->type, g->op == OP_SOFTMAX ? -9 : 0, g->op == OP_SOFTMAX ? 9 : 0.1,
                   DIMS(kernel_cases_rows[i][0], kernel_cases_rows[i][1]));
            if (g->op == OP_SOFTMAX_GRAD)
                gen_in(g, g->type, -2, 2, DIMS(kernel_cases_rows[i][0], kernel_cases_rows[i][1]));
            gen_out(g, g->type, DIMS(kernel_cases_rows[i][0], kernel_cases_rows[i][1]));
            gen_emit(g, "[%zu,%zu] layout %d", kernel_cases_rows[i][0], kernel_cases_rows[i][1], layout);
        }
}

/* For sums over rows: around chunks of 64 rows, several and the most chunks, and blocks of 128 columns. */
static const size_t column_rows[][2] = {
    { 64, 3 }, { 65, 33 }, { 129, 4 }, { 1100, 4 }, { 64, 131 }, { 70, 160 }, { 24700, 1 },
};

/* w: type of the weights. */
static void norm_case(struct gen *g, size_t R, size_t C, ls_dtype w)
{
    bool rms = g->op == OP_RMS_NORM || g->op == OP_RMS_NORM_DX || g->op == OP_RMS_NORM_DW;
    bool forward = g->op == OP_LAYER_NORM || g->op == OP_RMS_NORM;
    bool dw = g->op == OP_LAYER_NORM_DW || g->op == OP_RMS_NORM_DW;

    gen_begin(g);
    if (!forward)
        gen_in(g, g->type, -2, 2, DIMS(R, C));
    gen_in(g, g->type, -2, 3, DIMS(R, C));
    if (!dw)
        gen_in(g, w, 0.5, 1.5, DIMS(C));
    if (g->op == OP_LAYER_NORM)
        gen_in(g, w, -1, 1, DIMS(C));
    if (!forward && !rms)
        gen_in(g, LS_F32, -0.5, 0.5, DIMS(R));
    if (!forward)
        gen_in(g, LS_F32, 0.5, 2, DIMS(R));
    if (!dw)
        gen_out(g, g->type, DIMS(R, C));
    else
        gen_out_add(g, w, -1, 1, DIMS(C));
    if (g->op == OP_LAYER_NORM || g->op == OP_RMS_NORM)
        gen_out(g, LS_F32, DIMS(R));
    if (g->op == OP_LAYER_NORM)
        gen_out(g, LS_F32, DIMS(R));
    if (g->op == OP_LAYER_NORM_DW)
        gen_out_add(g, w, -1, 1, DIMS(C));
    g->c.call.attr.norm.eps = 1e-5;
    gen_emit(g, "[%zu,%zu] weights %s", R, C, ls_dtype_name(w));
}

void norm_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(kernel_cases_rows); i++) {
        norm_case(g, kernel_cases_rows[i][0], kernel_cases_rows[i][1], LS_F32);
        if (g->type != LS_F32)
            norm_case(g, kernel_cases_rows[i][0], kernel_cases_rows[i][1], g->type);
    }
}

void norm_dw_cases(struct gen *g)
{
    norm_cases(g);
    for (size_t i = 0; i < COUNT_OF(column_rows); i++)
        norm_case(g, column_rows[i][0], column_rows[i][1], i % 2 ? g->type : LS_F32);
}

static void bias_grad_case(struct gen *g, size_t R, size_t C, bool wide)
{
    gen_begin(g);
    gen_in(g, g->type, -2, 2, DIMS(R, C));
    gen_out_add(g, wide ? LS_F32 : g->type, -2, 2, DIMS(C));
    gen_emit(g, "[%zu,%zu] -> %s", R, C, wide ? "f32" : "the same");
}

void bias_grad_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(kernel_cases_rows); i++)
        for (int wide = 0; wide < 2; wide++)
            bias_grad_case(g, kernel_cases_rows[i][0], kernel_cases_rows[i][1], wide);
    for (size_t i = 0; i < COUNT_OF(column_rows); i++)
        bias_grad_case(g, column_rows[i][0], column_rows[i][1], i % 2 == 0);
}

void reduce_cases(struct gen *g)
{
    static const size_t shapes[][3] = {
        { 1, 1, 1 }, { 3, 5, 7 }, { 2, 17, 33 }, { 0, 3, 4 }, { 3, 0, 4 }, { 7, 61, 521 }, { 2, 130, 4 }, { 130, 2, 5 },
    };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int dim = -1; dim < 3; dim++) {
            size_t kept[2] = { shapes[i][dim == 0 ? 1 : 0], shapes[i][dim == 2 ? 1 : 2] };

            gen_begin(g);
            gen_in(g, g->type, -1, 2, DIMS(shapes[i][0], shapes[i][1], shapes[i][2]));
            if (dim < 0)
                gen_out(g, g->type, DIMS(1));
            else
                gen_out(g, g->type, 2, kept);
            g->c.call.attr.reduce.dim = dim;
            gen_emit(g, "[%zu,%zu,%zu] over %d", shapes[i][0], shapes[i][1], shapes[i][2], dim);
        }
}

/* Sums over everything: MSE, SUM_SQUARES */
void total_cases(struct gen *g)
{
    for (size_t i = 0; i < GEN_COUNTS + 2; i++) {
        size_t count = i < GEN_COUNTS ? gen_counts[i] : i == GEN_COUNTS ? TWO_BLOCKS : SEVERAL_BLOCKS;

        gen_begin(g);
        gen_in(g, g->type, -2, 2, DIMS(count));
        if (g->op == OP_MSE)
            gen_in(g, g->type, -2, 2, DIMS(count));
        if (g->op == OP_MSE)
            gen_out(g, LS_F32, DIMS(1));
        else
            gen_out_add(g, LS_F64, 0, 3, DIMS(1));
        gen_emit(g, "[%zu]", count);
    }
}

void clip_cases(struct gen *g)
{
    for (int kind = 0; kind < 4; kind++) {
        gen_begin(g);
        gen_in(g, LS_F64, kind == 3 ? 0 : 4, kind == 3 ? 0 : 9, DIMS(1));
        gen_out(g, LS_F32, DIMS(1));
        gen_out(g, LS_F32, DIMS(1));
        g->c.call.attr.clip.most = kind == 0 ? 0 : kind == 1 ? 1 : 100;
        gen_emit(g, "most %g", g->c.call.attr.clip.most);
    }
}

/* Shapes */

void copy_cases(struct gen *g)
{
    static const size_t shapes[][4] = {
        { 1, 1, 1, 1 }, { 0, 2, 3, 4 }, { 2, 3, 5, 7 }, { 3, 1, 17, 16 }, { 2, 65, 4, 64 },
    };

    for (size_t t = 0; t < GEN_TYPES; t++)
        for (size_t i = 0; i < COUNT_OF(shapes); i++)
            for (int layout = 0; layout < LAYOUTS * LAYOUTS; layout++) {
                gen_begin(g);
                g->layout = layout % LAYOUTS;
                gen_in(g, gen_types[t], -2, 2, 4, shapes[i]);
                g->layout = layout / LAYOUTS;
                gen_out(g, g->type, 4, shapes[i]);
                gen_emit(g, "from %s shape %zu layouts %d to %d", ls_dtype_name(gen_types[t]), i,
                         layout % LAYOUTS, layout / LAYOUTS);
            }
    for (int integer = LS_I64; integer < LS_DTYPES; integer++) {
        gen_begin(g);
        gen_in(g, (ls_dtype)integer, 0, 200, DIMS(3, 5));
        gen_out(g, (ls_dtype)integer, DIMS(3, 5));
        gen_emit(g, "of %s", ls_dtype_name((ls_dtype)integer));
    }
}

void concat_cases(struct gen *g)
{
    for (int dim = 0; dim < 3; dim++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (size_t big = 1; big <= 11; big += 10) {
                size_t size[3] = { 3 * big, 4, 5 * big }, sum = 0;

                gen_begin(g);
                g->layout = layout;
                for (size_t part = 0; part < 4; part++) {
                    size[dim] = 2 * part * big;
                    sum += size[dim];
                    gen_in(g, g->type, -2, 2, 3, size);
                }
                size[dim] = sum;
                g->layout = 0;
                gen_out(g, g->type, 3, size);
                g->c.call.attr.concat.dim = dim;
                gen_emit(g, "dim %d layout %d times %zu", dim, layout, big);
            }
}

void pad_cases(struct gen *g)
{
    for (int dim = 0; dim < 3; dim++)
        for (size_t start = 0; start < 4; start += 3)
            for (size_t big = 1; big <= 11; big += 10) {
                size_t size[3] = { 3 * big, 4, 5 * big };

                gen_begin(g);
                gen_in(g, g->type, -2, 2, 3, size);
                size[dim] += start ? 5 : 0;
                gen_out(g, g->type, 3, size);
                g->c.call.attr.pad.dim = dim;
                g->c.call.attr.pad.start = start;
                gen_emit(g, "dim %d start %zu times %zu", dim, start, big);
            }
}

/* PACK_BLOCKS and UNPACK_BLOCKS: three dims, even and uneven blocks, more blocks than there are rows. */
void pack_cases(struct gen *g)
{
    static const size_t shapes[][3] = { { 4, 6, 8 }, { 5, 7, 3 }, { 1, 17, 1 }, { 0, 3, 4 }, { 51, 40, 50 } };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int variant = 0; variant < (i == 4 ? 4 : 3 * LAYOUTS * 2); variant++) {
            int dim = variant % 3, layout = variant / 3 % LAYOUTS, many = variant / 3 / LAYOUTS;
            size_t count = shapes[i][0] * shapes[i][1] * shapes[i][2];

            gen_begin(g);
            g->layout = g->op == OP_PACK_BLOCKS ? layout : 0;
            gen_in(g, g->type, -2, 2, g->op == OP_PACK_BLOCKS ? 3 : 1, g->op == OP_PACK_BLOCKS ? shapes[i] : &count);
            g->layout = g->op == OP_UNPACK_BLOCKS ? layout : 0;
            gen_out(g, g->type, g->op == OP_UNPACK_BLOCKS ? 3 : 1, g->op == OP_UNPACK_BLOCKS ? shapes[i] : &count);
            g->c.call.attr.blocks.dim = dim;
            g->c.call.attr.blocks.n = many ? 9 : 3;
            g->c.call.attr.blocks.grain = shapes[i][dim] % 4 ? 0 : 2;
            gen_emit(g, "shape %zu dim %d into %d layout %d", i, dim, g->c.call.attr.blocks.n, layout);
        }
}

void cache_write_cases(struct gen *g)
{
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (size_t T = 0; T < 6; T += 1 + 2 * (T == 1)) {
            gen_begin(g);
            g->layout = layout;
            gen_in(g, g->type, -2, 2, DIMS(2, T, 3, 17));
            g->layout = 0;
            gen_in(g, LS_I32, 3, 3, DIMS(1));
            gen_out_add(g, g->type, -2, 2, DIMS(2, 9, 3, 17));
            gen_emit(g, "T %zu layout %d", T, layout);
        }
}

void mul_cases(struct gen *g) { pointwise(g, 2, 1, 1); }
void scale_cases(struct gen *g) { pointwise(g, 1, 1, 2); }
void unary_cases(struct gen *g) { pointwise(g, 1, 1, 4); }
void unary_grad_cases(struct gen *g) { pointwise(g, 2, 1, 4); }
void relu_squared_cases(struct gen *g) { pointwise(g, 1, 1, 1); }
void relu_squared_grad_cases(struct gen *g) { pointwise(g, 2, 1, 1); }
void swiglu_cases(struct gen *g) { pointwise(g, 2, 1, 1); }
void swiglu_grad_cases(struct gen *g) { pointwise(g, 3, 2, 1); }
void mse_grad_cases(struct gen *g) { pointwise(g, 2, 1, 1); }

void fill_cases(struct gen *g)
{
    pointwise(g, 0, 1, 2);
    gen_begin(g);
    gen_out(g, LS_F64, DIMS(33));
    g->c.call.attr.scale.value = 1.7;
    gen_emit(g, "[33] of f64");
}
