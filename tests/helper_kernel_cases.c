/* helper_kernel_cases.c - the cases of every op.
 *
 * Shape classes: nothing (R = 0), one element, 3 x 5 x 7, primes, one under and over a vector, enough for several
 * threads; strided layouts where they are small; f32, bf16, f16; optional operands there and not.
 */
#include "helper_kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"

struct gen {
    kernel_case_fn *fn;
    void    *ctx;
    size_t   count;    /* cases so far */
    enum op  op;
    ls_dtype type;     /* of the main operands */
    int      layout;   /* of the operands that follow */
    struct kernel_case c;
};

#define DIMS(...) (int)COUNT_OF(((size_t[]){ __VA_ARGS__ })), (const size_t[]){ __VA_ARGS__ }

static const ls_dtype types[] = { LS_F32, LS_BF16, LS_F16 };

static double uniform(struct gen *g, int slot, size_t i, double low, double high)
{
    return low + (high - low) * rng_uniform(g->count, (uint64_t)slot, i);
}

static struct view *in(struct gen *g, ls_dtype type, double low, double high, int ndim, const size_t *size)
{
    struct kernel_case *c = &g->c;
    int slot = c->call.nin++;
    struct view *v = &c->call.in[slot];

    *v = block_view(&c->in[slot], type, ndim, size, g->layout, g->count % PLACEMENTS);
    for (size_t i = 0; i < view_count(v); i++)
        element_put(v, i, ls_dtype_is_float(type) ? uniform(g, slot, i, low, high) : floor(uniform(g, slot, i, low, high)));
    return v;
}

static void in_absent(struct gen *g) { g->c.call.in[g->c.call.nin++].ndim = VIEW_ABSENT; }
static void out_absent(struct gen *g) { g->c.call.out[g->c.call.nout++].ndim = VIEW_ABSENT; }

static struct view *out(struct gen *g, ls_dtype type, int ndim, const size_t *size)
{
    int slot = g->c.call.nout++;

    g->c.call.out[slot] = block_view(&g->c.out[slot], type, ndim, size, g->layout, (g->count + 1) % PLACEMENTS);
    return &g->c.call.out[slot];
}

static void out_add(struct gen *g, ls_dtype type, double low, double high, int ndim, const size_t *size)
{
    struct view *v = out(g, type, ndim, size);

    for (size_t i = 0; i < view_count(v); i++)
        element_put(v, i, uniform(g, 20 + g->c.call.nout, i, low, high));
}

static void begin(struct gen *g)
{
    memset(&g->c, 0, sizeof g->c);
    g->c.call.op = g->op;
    g->layout = 0;
}

__attribute__((format(printf, 2, 3))) static void emit(struct gen *g, const char *fmt, ...)
{
    char shape[100];
    va_list args;

    va_start(args, fmt);
    vsnprintf(shape, sizeof shape, fmt, args);
    va_end(args);
    snprintf(g->c.name, sizeof g->c.name, "%s %s %s", op_name(g->op), ls_dtype_name(g->type), shape);
    g->count++;
    g->fn(g->ctx, &g->c);
    for (int i = 0; i < CALL_OPERANDS; i++) {
        block_free(&g->c.in[i]);
        block_free(&g->c.out[i]);
    }
}

/* Pointwise ops */

static const size_t counts[] = { 0, 1, 7, 15, 16, 17, 31, 33, 105, 127, 40009 };
enum { SEVERAL_BLOCKS = 140009 };  /* of those whose sums over everything are formed in */

static void pointwise_case(struct gen *g, int nin, int nout, int ndim, const size_t *size, int layout, int kind)
{
    begin(g);
    g->layout = layout;
    for (int i = 0; i < nin; i++)
        in(g, g->type, -4, 4, ndim, size);
    if (g->op == OP_MSE_GRAD) {
        g->layout = 0;
        in(g, LS_F32, 0.5, 1, DIMS(1));
        g->layout = layout;
    }
    for (int i = 0; i < nout; i++)
        out(g, g->type, ndim, size);
    if (g->op == OP_SCALE || g->op == OP_FILL)
        g->c.call.attr.scale.value = kind ? 1.7 : 0;
    else if (g->op == OP_UNARY || g->op == OP_UNARY_GRAD)
        g->c.call.attr.unary.kind = (enum unary)kind;
    emit(g, "[%zu] kind %d layout %d", ndim ? size[0] : 1, kind, layout);
}

static void pointwise(struct gen *g, int nin, int nout, int kinds)
{
    for (int kind = 0; kind < kinds; kind++) {
        for (size_t i = 0; i < COUNT_OF(counts); i++)
            pointwise_case(g, nin, nout, DIMS(counts[i]), 0, kind);
        for (int layout = 0; layout < LAYOUTS; layout++)
            pointwise_case(g, nin, nout, DIMS(3, 5, 7), layout, kind);
        pointwise_case(g, nin, nout, 0, NULL, 0, kind);
    }
}

static void add_cases(struct gen *g)
{
    static const size_t shapes[][2] = { { 3, 1 }, { 5, 7 }, { 4, 16 }, { 9, 17 }, { 0, 8 }, { 331, 257 } };

    pointwise(g, 2, 1, 1);
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int one = 0; one < 3; one++) {
            begin(g);
            in(g, g->type, -2, 2, DIMS(2, shapes[i][0], shapes[i][1]));
            if (one == 2)
                in(g, g->type, -2, 2, DIMS(1));
            else
                in(g, one ? LS_F32 : g->type, -2, 2, DIMS(shapes[i][1]));
            out(g, g->type, DIMS(2, shapes[i][0], shapes[i][1]));
            emit(g, "[2,%zu,%zu] + %s", shapes[i][0], shapes[i][1], one == 2 ? "one" : one ? "an f32 suffix" : "a suffix");
        }
}

static void accumulate_cases(struct gen *g)
{
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (size_t i = 0; i < COUNT_OF(counts); i++) {
            begin(g);
            in(g, types[t], -2, 2, DIMS(counts[i]));
            out_add(g, g->type, -2, 2, DIMS(counts[i]));
            emit(g, "[%zu] += %s", counts[i], ls_dtype_name(types[t]));
        }
}

static void dropout_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        for (uint64_t first = 0; first < 2; first++) {
            begin(g);
            in(g, g->type, 1, 2, DIMS(counts[i]));
            in(g, LS_I64, 70000, 90000, DIMS(1));
            out(g, g->type, DIMS(counts[i]));
            g->c.call.attr.dropout.p = i % 3 == 0 ? 0 : 0.3;
            g->c.call.attr.dropout.seed = 0x123456789abcdef0u;
            g->c.call.attr.dropout.stream = rng_stream("layer");
            g->c.call.attr.dropout.first = first ? 0xffffffff7u : 0;
            emit(g, "[%zu] p %.1f first %d", counts[i], g->c.call.attr.dropout.p, (int)first);
        }
}

/* Rows */

static const size_t rows[][2] = { { 0, 8 }, { 1, 1 }, { 3, 7 }, { 5, 15 }, { 4, 16 }, { 3, 17 }, { 2, 127 }, { 200, 768 }, { 1031, 33 } };

static void softmax_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (int layout = 0; layout < (i < 4 ? LAYOUTS : 1); layout++) {
            begin(g);
            g->layout = layout;
            in(g, g->type, g->op == OP_SOFTMAX ? -9 : 0, g->op == OP_SOFTMAX ? 9 : 0.1, DIMS(rows[i][0], rows[i][1]));
            if (g->op == OP_SOFTMAX_GRAD)
                in(g, g->type, -2, 2, DIMS(rows[i][0], rows[i][1]));
            out(g, g->type, DIMS(rows[i][0], rows[i][1]));
            emit(g, "[%zu,%zu] layout %d", rows[i][0], rows[i][1], layout);
        }
}

/* w: type of the weights. */
static void norm_case(struct gen *g, size_t R, size_t C, ls_dtype w)
{
    bool rms = g->op == OP_RMS_NORM || g->op == OP_RMS_NORM_DX || g->op == OP_RMS_NORM_DW;
    bool forward = g->op == OP_LAYER_NORM || g->op == OP_RMS_NORM, dw = g->op == OP_LAYER_NORM_DW || g->op == OP_RMS_NORM_DW;

    begin(g);
    if (!forward)
        in(g, g->type, -2, 2, DIMS(R, C));
    in(g, g->type, -2, 3, DIMS(R, C));
    if (!dw)
        in(g, w, 0.5, 1.5, DIMS(C));
    if (g->op == OP_LAYER_NORM)
        in(g, w, -1, 1, DIMS(C));
    if (!forward && !rms)
        in(g, LS_F32, -0.5, 0.5, DIMS(R));
    if (!forward)
        in(g, LS_F32, 0.5, 2, DIMS(R));
    if (!dw)
        out(g, g->type, DIMS(R, C));
    else
        out_add(g, w, -1, 1, DIMS(C));
    if (g->op == OP_LAYER_NORM || g->op == OP_RMS_NORM)
        out(g, LS_F32, DIMS(R));
    if (g->op == OP_LAYER_NORM)
        out(g, LS_F32, DIMS(R));
    if (g->op == OP_LAYER_NORM_DW)
        out_add(g, w, -1, 1, DIMS(C));
    g->c.call.attr.norm.eps = 1e-5;
    emit(g, "[%zu,%zu] weights %s", R, C, ls_dtype_name(w));
}

static void norm_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        norm_case(g, rows[i][0], rows[i][1], LS_F32);
        if (g->type != LS_F32)
            norm_case(g, rows[i][0], rows[i][1], g->type);
    }
}

static void bias_grad_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (int wide = 0; wide < 2; wide++) {
            begin(g);
            in(g, g->type, -2, 2, DIMS(rows[i][0], rows[i][1]));
            out_add(g, wide ? LS_F32 : g->type, -2, 2, DIMS(rows[i][1]));
            emit(g, "[%zu,%zu] -> %s", rows[i][0], rows[i][1], wide ? "f32" : "the same");
        }
}

static void reduce_cases(struct gen *g)
{
    static const size_t shapes[][3] = { { 1, 1, 1 }, { 3, 5, 7 }, { 2, 17, 33 }, { 0, 3, 4 }, { 3, 0, 4 }, { 7, 61, 521 } };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int dim = -1; dim < 3; dim++) {
            size_t kept[2] = { shapes[i][dim == 0 ? 1 : 0], shapes[i][dim == 2 ? 1 : 2] };

            begin(g);
            in(g, g->type, -1, 2, DIMS(shapes[i][0], shapes[i][1], shapes[i][2]));
            if (dim < 0)
                out(g, g->type, DIMS(1));
            else
                out(g, g->type, 2, kept);
            g->c.call.attr.reduce.dim = dim;
            emit(g, "[%zu,%zu,%zu] over %d", shapes[i][0], shapes[i][1], shapes[i][2], dim);
        }
}

/* Sums over everything: MSE, SUM_SQUARES */
static void total_cases(struct gen *g)
{
    for (size_t i = 0; i <= COUNT_OF(counts); i++) {
        size_t count = i < COUNT_OF(counts) ? counts[i] : SEVERAL_BLOCKS;

        begin(g);
        in(g, g->type, -2, 2, DIMS(count));
        if (g->op == OP_MSE)
            in(g, g->type, -2, 2, DIMS(count));
        if (g->op == OP_MSE)
            out(g, LS_F32, DIMS(1));
        else
            out_add(g, LS_F64, 0, 3, DIMS(1));
        emit(g, "[%zu]", count);
    }
}

static void clip_cases(struct gen *g)
{
    for (int kind = 0; kind < 4; kind++) {
        begin(g);
        in(g, LS_F64, kind == 3 ? 0 : 4, kind == 3 ? 0 : 9, DIMS(1));
        out(g, LS_F32, DIMS(1));
        out(g, LS_F32, DIMS(1));
        g->c.call.attr.clip.most = kind == 0 ? 0 : kind == 1 ? 1 : 100;
        emit(g, "most %g", g->c.call.attr.clip.most);
    }
}

/* Products */

static const size_t products[][3] = {  /* R, K, N */
    { 0, 8, 8 }, { 1, 1, 1 }, { 3, 5, 7 }, { 1, 64, 33 }, { 15, 17, 16 }, { 33, 31, 47 }, { 64, 64, 64 }, { 131, 67, 257 },
};

static void linear_case(struct gen *g, size_t R, size_t K, size_t N, int variant)
{
    double w = 1 / sqrt((double)K);

    begin(g);
    if (g->op == OP_LINEAR) {
        in(g, g->type, -2, 2, DIMS(R, K));
        in(g, g->type, -w, w, DIMS(N, K));
        if (variant)
            in(g, g->type, -1, 1, DIMS(N));
        else
            in_absent(g);
        out(g, g->type, DIMS(R, N));
    } else if (g->op == OP_LINEAR_DX) {
        in(g, g->type, -2, 2, DIMS(R, N));
        in(g, g->type, -w, w, DIMS(N, K));
        out(g, g->type, DIMS(R, K));
    } else {
        in(g, g->type, -2, 2, DIMS(R, N));
        in(g, g->type, -2, 2, DIMS(R, K));
        out_add(g, variant ? LS_F32 : g->type, -1, 1, DIMS(N, K));
    }
    emit(g, "R %zu K %zu N %zu variant %d", R, K, N, variant);
}

static void linear_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(products); i++)
        for (int variant = 0; variant < 2; variant++)
            linear_case(g, products[i][0], products[i][1], products[i][2], variant);
}

static void matmul_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(products); i++)
        for (int layout = 0; layout < (products[i][0] < 100 ? LAYOUTS : 2); layout++) {
            size_t M = products[i][0], K = products[i][1], N = products[i][2];

            begin(g);
            g->layout = layout;
            in(g, g->type, -1, 1, DIMS(2, M, K));
            in(g, g->type, -1, 1, DIMS(2, K, N));
            g->layout = 0;
            out(g, g->type, DIMS(2, M, N));
            emit(g, "[2,%zu,%zu] [2,%zu,%zu] layout %d", M, K, K, N, layout);
        }
    begin(g);
    in(g, g->type, -1, 1, DIMS(5, 6));
    in(g, g->type, -1, 1, DIMS(6, 7));
    out(g, g->type, DIMS(5, 7));
    emit(g, "[5,6] [6,7]");
}

/* Tokens */

static void embedding_cases(struct gen *g)
{
    static const size_t shapes[][3] = { { 0, 5, 8 }, { 1, 1, 1 }, { 17, 5, 7 }, { 33, 11, 17 }, { 513, 97, 96 }, { 40, 3, 1000 } };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int wide = 0; wide < 2; wide++) {
            size_t R = shapes[i][0], V = shapes[i][1], C = shapes[i][2];
            ls_dtype other = wide ? LS_F32 : g->type;

            begin(g);
            if (g->op == OP_EMBEDDING_DW)
                in(g, g->type, -2, 2, DIMS(R, C));
            in(g, LS_I32, 0, (double)V, DIMS(R));
            if (g->op == OP_EMBEDDING)
                in(g, other, -2, 2, DIMS(V, C));
            if (g->op == OP_EMBEDDING)
                out(g, g->type, DIMS(R, C));
            else
                out_add(g, other, -2, 2, DIMS(V, C));
            emit(g, "R %zu V %zu C %zu table %s", R, V, C, ls_dtype_name(other));
        }
}

static void rope_table_cases(struct gen *g)
{
    for (int scaled = 0; scaled < 2; scaled++) {
        begin(g);
        in(g, LS_I32, 0, 9000, DIMS(37));
        out(g, LS_F32, DIMS(37, 64));
        g->c.call.attr.rope = (struct rope){ 500000, scaled ? 8 : 1, 1, 4, 8192 };
        emit(g, "scaled %d", scaled);
    }
}

static void rope_cases(struct gen *g)
{
    static const size_t shapes[][4] = { { 0, 1, 1, 2 }, { 1, 1, 1, 2 }, { 2, 3, 5, 14 }, { 2, 5, 3, 32 }, { 1, 7, 2, 66 }, { 2, 129, 4, 64 } };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            const size_t *s = shapes[i];

            begin(g);
            g->layout = layout;
            in(g, g->type, -2, 2, 4, s);
            g->layout = 0;
            in(g, LS_F32, -1, 1, DIMS(s[1], s[3]));
            g->layout = layout % 2 ? 0 : layout;
            out(g, g->type, 4, s);
            g->c.call.attr.rotate.inverse = i % 2 == 1;
            emit(g, "[%zu,%zu,%zu,%zu] layout %d", s[0], s[1], s[2], s[3], layout);
        }
}

struct heads { size_t B, T, S, H, G, D; int causal, layout; };

static const struct heads heads[] = {
    { 1, 1, 1, 1, 1, 1, 0, 0 }, { 1, 3, 3, 1, 1, 8, 1, 0 },      { 2, 5, 7, 4, 2, 16, 1, 1 },    { 2, 7, 5, 3, 1, 20, 0, 2 },
    { 1, 9, 4, 2, 2, 16, 1, 0 }, { 1, 17, 33, 4, 4, 64, 1, 1 },  { 2, 65, 65, 2, 1, 64, 1, 2 },  { 1, 6, 6, 2, 2, 8, 1, 3 },
    { 1, 1, 70, 6, 2, 32, 1, 0 }, { 1, 130, 130, 3, 3, 64, 1, 2 }, { 1, 67, 131, 2, 2, 128, 0, 0 }, { 1, 33, 33, 2, 1, 96, 1, 0 },
};

static void qkv(struct gen *g, const struct heads *z)
{
    g->layout = z->layout;
    in(g, g->type, -2, 2, DIMS(z->B, z->T, z->H, z->D));
    in(g, g->type, -2, 2, DIMS(z->B, z->S, z->G, z->D));
    in(g, g->type, -2, 2, DIMS(z->B, z->S, z->G, z->D));
    g->layout = 0;
    g->c.call.attr.attention.causal = z->causal;
    g->c.call.attr.attention.scale = 1 / sqrt((double)z->D);
}

static void attention_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(heads); i++)
        for (int len = 0; len < 2; len++) {
            const struct heads *z = &heads[i];
            size_t keys = MAX((size_t)1, z->S * 2 / 3);

            begin(g);
            qkv(g, z);
            if (len)
                in(g, LS_I32, (double)keys, (double)keys, DIMS(1));
            out(g, g->type, DIMS(z->B, z->T, z->H, z->D));
            out(g, LS_F32, DIMS(z->B, z->H, z->T));
            emit(g, "B %zu T %zu S %zu H %zu G %zu D %zu causal %d layout %d len %d",
                 z->B, z->T, z->S, z->H, z->G, z->D, z->causal, z->layout, len ? (int)keys : -1);
        }
}

/* o and lse come from the reference, as they would from the forward pass. */
static void attention_grad_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(heads); i++) {
        const struct heads *z = &heads[i];
        struct call forward = { .op = OP_ATTENTION, .nin = 3, .nout = 2 };

        begin(g);
        qkv(g, z);
        forward.out[0] = *in(g, g->type, 0, 0, DIMS(z->B, z->T, z->H, z->D));
        forward.out[1] = *in(g, LS_F32, 0, 0, DIMS(z->B, z->H, z->T));
        memcpy(forward.in, g->c.call.in, sizeof forward.in);
        forward.attr = g->c.call.attr;
        kernel_run(kernel_reference(OP_ATTENTION), &forward, 0, "the forward pass");
        in(g, g->type, -2, 2, DIMS(z->B, z->T, z->H, z->D));
        out(g, g->type, DIMS(z->B, z->T, z->H, z->D));
        out(g, g->type, DIMS(z->B, z->S, z->G, z->D));
        out(g, g->type, DIMS(z->B, z->S, z->G, z->D));
        emit(g, "B %zu T %zu S %zu H %zu G %zu D %zu causal %d layout %d",
             z->B, z->T, z->S, z->H, z->G, z->D, z->causal, z->layout);
    }
}

/* Losses */

static const size_t xents[][3] = {  /* R, C, V */
    { 0, 4, 5 }, { 1, 1, 1 }, { 3, 5, 7 }, { 17, 16, 33 }, { 64, 32, 129 }, { 37, 31, 517 }, { 150, 64, 300 },
};

static void xent_in(struct gen *g, size_t R, size_t C, size_t V, bool denom, bool ignore_all)
{
    struct view *y;

    in(g, g->type, -2, 2, DIMS(R, C));
    in(g, g->type, -1, 1, DIMS(V, C));
    y = in(g, LS_I32, 0, (double)V, DIMS(R));
    for (size_t r = 0; r < R; r++)
        if (ignore_all || r % 5 == 3)
            element_put(y, r, -1);
    if (denom)
        in(g, LS_F32, 40, 60, DIMS(1));
    else
        in_absent(g);
}

static void linear_xent_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(xents); i++)
        for (int variant = 0; variant < 3; variant++) {
            size_t R = xents[i][0], C = xents[i][1], V = xents[i][2];

            begin(g);
            xent_in(g, R, C, V, variant == 1, variant == 2);
            out(g, LS_F32, DIMS(1));
            out(g, LS_F32, DIMS(R));
            emit(g, "R %zu C %zu V %zu %s", R, C, V, variant == 1 ? "denom" : variant == 2 ? "nothing valid" : "plain");
        }
}

/* Bits of variant: 1 denom, 2 lse, 4 no dx, 8 no dw, 16 loss, 32 nothing valid, 64 dw in f32. */
static void linear_xent_grad_case(struct gen *g, size_t R, size_t C, size_t V, int variant)
{
    struct view loss = { 0 };
    struct block block = { 0 };

    begin(g);
    xent_in(g, R, C, V, variant & 1, variant & 32);
    if (variant & 2) {
        struct call forward = { .op = OP_LINEAR_XENT, .nin = 4, .nout = 2 };

        loss = block_view(&block, LS_F32, DIMS(1), 0, PLACED_ALIGNED);
        forward.out[0] = loss;
        forward.out[1] = *in(g, LS_F32, 0, 0, DIMS(R));
        memcpy(forward.in, g->c.call.in, sizeof forward.in);
        kernel_run(kernel_reference(OP_LINEAR_XENT), &forward, 0, "the forward pass");
        block_free(&block);
    } else {
        in_absent(g);
    }
    in(g, LS_F32, 0.5, 2, DIMS(1));
    if (variant & 4)
        out_absent(g);
    else
        out(g, g->type, DIMS(R, C));
    if (variant & 8)
        out_absent(g);
    else
        out_add(g, variant & 64 ? LS_F32 : g->type, -0.1, 0.1, DIMS(V, C));
    if (variant & 16)
        out(g, LS_F32, DIMS(1));
    else
        out_absent(g);
    emit(g, "R %zu C %zu V %zu variant %d", R, C, V, variant);
}

static void linear_xent_grad_cases(struct gen *g)
{
    static const int variants[] = { 0, 1 + 64, 2 + 16, 4 + 64, 8 + 2, 16 + 64 + 1, 32 + 16 + 64, 4 + 8 + 16 };

    for (size_t i = 0; i < COUNT_OF(xents); i++)
        for (size_t v = 0; v < (i < 5 ? COUNT_OF(variants) : 2); v++)
            linear_xent_grad_case(g, xents[i][0], xents[i][1], xents[i][2], variants[v]);
}

/* Shapes */

static void copy_cases(struct gen *g)
{
    static const size_t shapes[][4] = { { 1, 1, 1, 1 }, { 0, 2, 3, 4 }, { 2, 3, 5, 7 }, { 3, 1, 17, 16 }, { 2, 65, 4, 64 } };

    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (size_t i = 0; i < COUNT_OF(shapes); i++)
            for (int layout = 0; layout < LAYOUTS * LAYOUTS; layout++) {
                begin(g);
                g->layout = layout % LAYOUTS;
                in(g, types[t], -2, 2, 4, shapes[i]);
                g->layout = layout / LAYOUTS;
                out(g, g->type, 4, shapes[i]);
                emit(g, "from %s shape %zu layouts %d to %d", ls_dtype_name(types[t]), i, layout % LAYOUTS, layout / LAYOUTS);
            }
    for (int integer = LS_I64; integer < LS_DTYPES; integer++) {
        begin(g);
        in(g, (ls_dtype)integer, 0, 200, DIMS(3, 5));
        out(g, (ls_dtype)integer, DIMS(3, 5));
        emit(g, "of %s", ls_dtype_name((ls_dtype)integer));
    }
}

static void concat_cases(struct gen *g)
{
    for (int dim = 0; dim < 3; dim++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (size_t big = 1; big <= 11; big += 10) {
                size_t size[3] = { 3 * big, 4, 5 * big }, sum = 0;

                begin(g);
                g->layout = layout;
                for (size_t part = 0; part < 4; part++) {
                    size[dim] = 2 * part * big;
                    sum += size[dim];
                    in(g, g->type, -2, 2, 3, size);
                }
                size[dim] = sum;
                g->layout = 0;
                out(g, g->type, 3, size);
                g->c.call.attr.concat.dim = dim;
                emit(g, "dim %d layout %d times %zu", dim, layout, big);
            }
}

static void pad_cases(struct gen *g)
{
    for (int dim = 0; dim < 3; dim++)
        for (size_t start = 0; start < 4; start += 3)
            for (size_t big = 1; big <= 11; big += 10) {
                size_t size[3] = { 3 * big, 4, 5 * big };

                begin(g);
                in(g, g->type, -2, 2, 3, size);
                size[dim] += start ? 5 : 0;
                out(g, g->type, 3, size);
                g->c.call.attr.pad.dim = dim;
                g->c.call.attr.pad.start = start;
                emit(g, "dim %d start %zu times %zu", dim, start, big);
            }
}

static void cache_write_cases(struct gen *g)
{
    for (int layout = 0; layout < LAYOUTS; layout++)
        for (size_t T = 0; T < 6; T += 1 + 2 * (T == 1)) {
            begin(g);
            g->layout = layout;
            in(g, g->type, -2, 2, DIMS(2, T, 3, 17));
            g->layout = 0;
            in(g, LS_I32, 3, 3, DIMS(1));
            out_add(g, g->type, -2, 2, DIMS(2, 9, 3, 17));
            emit(g, "T %zu layout %d", T, layout);
        }
}

/* Optimizers. Bits of variant: 1 master, 2 no momentum, 4 decoupled, 8 nesterov, 16 adapt, 32 no decay, 64 zeros. */
static void update_case(struct gen *g, size_t count, int variant)
{
    bool second = g->op == OP_ADAM || g->op == OP_LAMB, zeros = variant & 64;

    begin(g);
    in(g, variant & 1 ? LS_F32 : g->type, zeros ? 0 : -1, zeros ? 0 : 1, DIMS(count));
    in(g, LS_F32, 0, 0, DIMS(4));
    element_put(&g->c.call.in[1], 0, 0.05);
    element_put(&g->c.call.in[1], 1, 1 / (1 - pow(0.9, 3)));
    element_put(&g->c.call.in[1], 2, 1 / (1 - pow(0.95, 3)));
    element_put(&g->c.call.in[1], 3, 3);
    in(g, LS_F32, 0.5, 1, DIMS(1));
    out_add(g, g->type, zeros ? 0 : -1, zeros ? 0 : 1, DIMS(count));
    if (variant & 2 && !second)
        out_absent(g);
    else
        out_add(g, LS_F32, zeros ? 0 : -1, zeros ? 0 : 1, DIMS(count));
    if (second)
        out_add(g, LS_F32, 0, 1, DIMS(count));
    if (variant & 1)
        out_add(g, LS_F32, -1, 1, DIMS(count));
    else
        out_absent(g);
    g->c.call.attr.optim = (struct optimizer_attr){
        .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = variant & 32 ? 0 : 0.1f, .momentum = 0.9f, .trust = 0.02f,
        .nesterov = variant & 8 ? 1 : 0, .decoupled = variant & 4 ? 1 : 0, .adapt = variant & 16 ? 1 : 0,
    };
    emit(g, "[%zu] variant %d", count, variant);
}

static void update_cases(struct gen *g)
{
    static const int variants[] = { 0, 1 + 4, 2, 2 + 1 + 4, 8, 8 + 4, 16, 16 + 1, 16 + 8 + 32, 16 + 64 };

    for (size_t i = 0; i < COUNT_OF(counts); i++)
        for (size_t v = 0; v < COUNT_OF(variants); v++)
            update_case(g, counts[i], variants[v]);
    update_case(g, SEVERAL_BLOCKS, 16 + 1);
}

static void mul_cases(struct gen *g) { pointwise(g, 2, 1, 1); }
static void scale_cases(struct gen *g) { pointwise(g, 1, 1, 2); }
static void unary_cases(struct gen *g) { pointwise(g, 1, 1, 4); }
static void unary_grad_cases(struct gen *g) { pointwise(g, 2, 1, 4); }
static void swiglu_cases(struct gen *g) { pointwise(g, 2, 1, 1); }
static void swiglu_grad_cases(struct gen *g) { pointwise(g, 3, 2, 1); }
static void mse_grad_cases(struct gen *g) { pointwise(g, 2, 1, 1); }
static void fill_cases(struct gen *g) { pointwise(g, 0, 1, 2); }

static void (*const generators[OPS])(struct gen *g) = {
    [OP_LINEAR] = linear_cases, [OP_LINEAR_DX] = linear_cases, [OP_LINEAR_DW] = linear_cases,
    [OP_BIAS_GRAD] = bias_grad_cases, [OP_MATMUL] = matmul_cases, [OP_ADD] = add_cases, [OP_MUL] = mul_cases,
    [OP_SCALE] = scale_cases, [OP_UNARY] = unary_cases, [OP_UNARY_GRAD] = unary_grad_cases,
    [OP_SWIGLU] = swiglu_cases, [OP_SWIGLU_GRAD] = swiglu_grad_cases, [OP_SOFTMAX] = softmax_cases,
    [OP_SOFTMAX_GRAD] = softmax_cases, [OP_LAYER_NORM] = norm_cases, [OP_LAYER_NORM_DX] = norm_cases,
    [OP_LAYER_NORM_DW] = norm_cases, [OP_RMS_NORM] = norm_cases, [OP_RMS_NORM_DX] = norm_cases,
    [OP_RMS_NORM_DW] = norm_cases, [OP_EMBEDDING] = embedding_cases, [OP_EMBEDDING_DW] = embedding_cases,
    [OP_ROPE_TABLE] = rope_table_cases, [OP_ROPE] = rope_cases, [OP_ATTENTION] = attention_cases,
    [OP_ATTENTION_GRAD] = attention_grad_cases, [OP_DROPOUT] = dropout_cases, [OP_LINEAR_XENT] = linear_xent_cases,
    [OP_LINEAR_XENT_GRAD] = linear_xent_grad_cases, [OP_COPY] = copy_cases, [OP_CONCAT] = concat_cases,
    [OP_PAD] = pad_cases, [OP_REDUCE_SUM] = reduce_cases, [OP_MSE] = total_cases, [OP_MSE_GRAD] = mse_grad_cases,
    [OP_FILL] = fill_cases, [OP_ACCUMULATE] = accumulate_cases, [OP_CACHE_WRITE] = cache_write_cases,
    [OP_SUM_SQUARES] = total_cases, [OP_CLIP_FACTOR] = clip_cases, [OP_SGD] = update_cases, [OP_ADAM] = update_cases,
    [OP_LAMB] = update_cases, [OP_LARS] = update_cases,
};

size_t kernel_cases(enum op op, kernel_case_fn *fn, void *ctx)
{
    struct gen g = { .fn = fn, .ctx = ctx, .op = op };

    if (!generators[op])
        return 0;
    for (size_t t = 0; t < COUNT_OF(types); t++) {
        g.type = types[t];
        generators[op](&g);
    }
    return g.count;
}
