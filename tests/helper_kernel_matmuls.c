/* helper_kernel_matmuls.c - cases of matmuls, embedding, rotary positions, attention and cross-entropy.
 */
#include "helper_kernel_gen.h"

#include <math.h>
#include <string.h>
#include "base/rng.h"

/* Matmuls */

static const size_t matmuls[][3] = {  /* R, K, N */
    { 0, 8, 8 }, { 1, 1, 1 }, { 3, 5, 7 }, { 1, 64, 33 }, { 15, 17, 16 }, { 33, 31, 47 }, { 64, 64, 64 },
    { 131, 67, 257 },
};

static void linear_case(struct gen *g, size_t R, size_t K, size_t N, int variant)
{
    double w = 1 / sqrt((double)K);

    gen_begin(g);
    if (g->op == OP_LINEAR) {
        gen_in(g, g->type, -2, 2, DIMS(R, K));
        gen_in(g, g->type, -w, w, DIMS(N, K));
        if (variant)
            gen_in(g, g->type, -1, 1, DIMS(N));
        else
            gen_in_absent(g);
        gen_out(g, g->type, DIMS(R, N));
    } else if (g->op == OP_LINEAR_DX) {
        gen_in(g, g->type, -2, 2, DIMS(R, N));
        gen_in(g, g->type, -w, w, DIMS(N, K));
        gen_out(g, g->type, DIMS(R, K));
    } else {
        gen_in(g, g->type, -2, 2, DIMS(R, N));
        gen_in(g, g->type, -2, 2, DIMS(R, K));
        gen_out_add(g, variant ? LS_F32 : g->type, -1, 1, DIMS(N, K));
        if (g->op == OP_LINEAR_DW_BIAS)
            gen_out_add(g, variant ? LS_F32 : g->type, -1, 1, DIMS(N));
    }
    gen_emit(g, "R %zu K %zu N %zu variant %d", R, K, N, variant);
}

void linear_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(matmuls); i++)
        for (int variant = 0; variant < 2; variant++)
            linear_case(g, matmuls[i][0], matmuls[i][1], matmuls[i][2], variant);
}

/* Bits of variant: 1 bias, 2 y absent. */
void linear_unary_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(matmuls); i++)
        for (int variant = 0; variant < 4; variant++) {
            size_t R = matmuls[i][0], K = matmuls[i][1], N = matmuls[i][2];
            double w = 1 / sqrt((double)K);

            gen_begin(g);
            g->c.call.attr.unary.kind = UNARY_GELU_TANH;
            gen_in(g, g->type, -2, 2, DIMS(R, K));
            gen_in(g, g->type, -w, w, DIMS(N, K));
            if (variant & 1)
                gen_in(g, g->type, -1, 1, DIMS(N));
            else
                gen_in_absent(g);
            if (variant & 2)
                gen_out_absent(g);
            else
                gen_out(g, g->type, DIMS(R, N));
            gen_out(g, g->type, DIMS(R, N));
            gen_emit(g, "R %zu K %zu N %zu variant %d", R, K, N, variant);
        }
}

void matmul_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(matmuls); i++)
        for (int layout = 0; layout < (matmuls[i][0] < 100 ? LAYOUTS : 2); layout++) {
            size_t M = matmuls[i][0], K = matmuls[i][1], N = matmuls[i][2];

            gen_begin(g);
            g->layout = layout;
            gen_in(g, g->type, -1, 1, DIMS(2, M, K));
            gen_in(g, g->type, -1, 1, DIMS(2, K, N));
            g->layout = 0;
            gen_out(g, g->type, DIMS(2, M, N));
            gen_emit(g, "[2,%zu,%zu] [2,%zu,%zu] layout %d", M, K, K, N, layout);
        }
    gen_begin(g);
    gen_in(g, g->type, -1, 1, DIMS(5, 6));
    gen_in(g, g->type, -1, 1, DIMS(6, 7));
    gen_out(g, g->type, DIMS(5, 7));
    gen_emit(g, "[5,6] [6,7]");
}

/* Tokens */

void embedding_cases(struct gen *g)
{
    static const size_t shapes[][3] = {
        { 0, 5, 8 }, { 1, 1, 1 }, { 17, 5, 7 }, { 33, 11, 17 }, { 513, 97, 96 }, { 40, 3, 1000 },
        /* around 16 and 32 rows of a token, and blocks of 128 columns */
        { 9, 1, 3 }, { 16, 1, 4 }, { 17, 1, 600 }, { 33, 1, 129 }, { 80, 3, 1 }, { 75, 2, 127 }, { 81, 3, 128 }, { 600, 5, 8 },
    };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int variant = 0; variant < 3; variant++) {
            size_t R = shapes[i][0], V = shapes[i][1], C = shapes[i][2], part = variant < 2 ? V : V / 2;
            ls_dtype other = variant % 2 ? LS_F32 : g->type;

            gen_begin(g);
            if (g->op == OP_EMBEDDING_DW)
                gen_in(g, g->type, -2, 2, DIMS(R, C));
            gen_in(g, LS_I32, 0, (double)V, DIMS(R));
            if (g->op == OP_EMBEDDING)
                gen_in(g, other, -2, 2, DIMS(part, C));
            if (g->op == OP_EMBEDDING)
                gen_out(g, g->type, DIMS(R, C));
            else
                gen_out_add(g, other, -2, 2, DIMS(part, C));
            g->c.call.attr.embedding.first = V - part > 1 ? V - part - 1 : 0;
            gen_emit(g, "R %zu V %zu C %zu table %s of %zu rows", R, V, C, ls_dtype_name(other), part);
        }
}

void rope_table_cases(struct gen *g)
{
    for (int scaled = 0; scaled < 2; scaled++) {
        gen_begin(g);
        gen_in(g, LS_I32, 0, 9000, DIMS(37));
        gen_out(g, LS_F32, DIMS(37, 64));
        g->c.call.attr.rope = (struct rope){ 500000, scaled ? 8 : 1, 1, 4, 8192 };
        gen_emit(g, "scaled %d", scaled);
    }
}

void rope_cases(struct gen *g)
{
    static const size_t shapes[][4] = {
        { 0, 1, 1, 2 }, { 1, 1, 1, 2 }, { 2, 3, 5, 14 }, { 2, 5, 3, 32 }, { 1, 7, 2, 66 }, { 2, 129, 4, 64 },
    };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            const size_t *s = shapes[i];

            gen_begin(g);
            g->layout = layout;
            gen_in(g, g->type, -2, 2, 4, s);
            g->layout = 0;
            gen_in(g, LS_F32, -1, 1, DIMS(s[1], s[3]));
            g->layout = layout % 2 ? 0 : layout;
            gen_out(g, g->type, 4, s);
            g->c.call.attr.rotate.inverse = i % 2 == 1;
            gen_emit(g, "[%zu,%zu,%zu,%zu] layout %d", s[0], s[1], s[2], s[3], layout);
        }
}

struct heads { size_t B, T, S, H, G, D; int causal, layout; };

static const struct heads heads[] = {
    { 1, 1, 1, 1, 1, 1, 0, 0 },     { 1, 3, 3, 1, 1, 8, 1, 0 },       { 2, 5, 7, 4, 2, 16, 1, 1 },
    { 2, 7, 5, 3, 1, 20, 0, 2 },    { 1, 9, 4, 2, 2, 16, 1, 0 },      { 1, 17, 33, 4, 4, 64, 1, 1 },
    { 2, 65, 65, 2, 1, 64, 1, 2 },  { 1, 6, 6, 2, 2, 8, 1, 3 },       { 1, 1, 70, 6, 2, 32, 1, 0 },
    { 1, 130, 130, 3, 3, 64, 1, 2 }, { 1, 67, 131, 2, 2, 128, 0, 0 }, { 1, 33, 33, 2, 1, 96, 1, 0 },
    /* around tiles of 32 and 64 rows, one head size of each padding */
    { 1, 64, 64, 1, 1, 8, 1, 0 },   { 1, 65, 130, 1, 1, 8, 1, 2 },    { 1, 129, 127, 1, 1, 8, 1, 0 },
    { 1, 64, 64, 1, 1, 8, 0, 0 },   { 1, 33, 64, 1, 1, 8, 1, 0 },     { 1, 64, 128, 1, 1, 8, 0, 0 },  { 1, 33, 128, 1, 1, 8, 0, 0 },
    { 1, 66, 66, 4, 1, 8, 1, 1 },   { 1, 33, 65, 1, 1, 24, 0, 0 },    { 1, 63, 31, 1, 1, 16, 0, 0 },
    { 1, 7, 33, 1, 1, 72, 1, 0 },   { 1, 7, 15, 1, 1, 128, 1, 0 },    { 1, 3, 35, 1, 1, 136, 1, 1 },
    { 1, 5, 6, 1, 1, 256, 1, 0 },   { 2, 3, 2, 4, 1, 88, 0, 0 },     { 1, 90, 12, 1, 1, 8, 1, 0 },
    /* few queries of many keys, in parts of 128 */
    { 1, 1, 300, 4, 1, 16, 1, 0 },  { 2, 2, 260, 4, 2, 8, 1, 1 },     { 1, 1, 40, 2, 1, 136, 0, 0 },  { 1, 2, 9, 3, 1, 256, 1, 0 },
};

/* One query of four heads is NaN. T is 1, so the kernels for few queries take it, too. */
static const struct heads nan_query = { 1, 1, 300, 4, 1, 16, 1, 0 };

static void qkv(struct gen *g, const struct heads *z)
{
    g->layout = z->layout;
    gen_in(g, g->type, -2, 2, DIMS(z->B, z->T, z->H, z->D));
    gen_in(g, g->type, -2, 2, DIMS(z->B, z->S, z->G, z->D));
    gen_in(g, g->type, -2, 2, DIMS(z->B, z->S, z->G, z->D));
    g->layout = 0;
    g->c.call.attr.attention.causal = z->causal;
    g->c.call.attr.attention.scale = 1 / sqrt((double)z->D);
}

/* Shards of a sequence of 600 tokens, heads of 9. */
static void drop(struct gen *g, int variant)
{
    struct attention_drop d = { .p = 0.3, .seed = 0x123456789abcdef0u, .stream = rng_stream("layer"), .heads = 9, .full = 600 };

    if (variant) {
        d.head = 2;
        d.queries = (struct shard_rows){ { 3, 201 }, 2 };
        d.keys = (struct shard_rows){ { 7, 311 }, 5 };
    }
    g->c.call.attr.attention.drop = d;
    gen_in(g, LS_I64, 70000, 90000, DIMS(variant ? 2 : 1));
}

static void attention_case(struct gen *g, const struct heads *z, bool len)
{
    size_t keys = MAX((size_t)1, z->S * 2 / 3);

    gen_begin(g);
    qkv(g, z);
    if (z == &nan_query)
        element_put(&g->c.call.in[0], 2 * z->D + 3, NAN);
    if (len)
        gen_in(g, LS_I32, (double)keys, (double)keys, DIMS(1));
    gen_out(g, g->type, DIMS(z->B, z->T, z->H, z->D));
    gen_out(g, LS_F32, DIMS(z->B, z->H, z->T));
    gen_emit(g, "B %zu T %zu S %zu H %zu G %zu D %zu causal %d layout %d len %d%s", z->B, z->T, z->S, z->H, z->G, z->D, z->causal,
             z->layout, len ? (int)keys : -1, z == &nan_query ? " a NaN" : "");
}

void attention_cases(struct gen *g)
{
    for (int len = 0; len < 2; len++) {
        for (size_t i = 0; i < COUNT_OF(heads); i++)
            attention_case(g, &heads[i], len);
        attention_case(g, &nan_query, len);
    }
    for (size_t i = 0; i < COUNT_OF(heads); i++) {
        const struct heads *z = &heads[i];

        gen_begin(g);
        qkv(g, z);
        gen_in_absent(g);
        drop(g, i % 3 > 0);
        gen_out(g, g->type, DIMS(z->B, z->T, z->H, z->D));
        gen_out(g, LS_F32, DIMS(z->B, z->H, z->T));
        gen_emit(g, "B %zu T %zu S %zu H %zu G %zu D %zu causal %d layout %d dropout", z->B, z->T, z->S, z->H, z->G, z->D, z->causal,
                 z->layout);
    }
}

/* o and lse come from the reference, as they would from the forward pass. ring: they are of all S keys, and the call gets a part of
 * them, as a step of ring attention does. */
static void attention_grad_case(struct gen *g, const struct heads *z, bool ring, bool drops)
{
    struct call forward = { .op = OP_ATTENTION, .nin = 3, .nout = 2 };
    size_t first = ring ? z->S / 3 : 0, keys = z->S - first;

    gen_begin(g);
    qkv(g, z);
    forward.out[0] = *gen_in(g, g->type, 0, 0, DIMS(z->B, z->T, z->H, z->D));
    forward.out[1] = *gen_in(g, LS_F32, 0, 0, DIMS(z->B, z->H, z->T));
    memcpy(forward.in, g->c.call.in, sizeof forward.in);
    forward.in[3].ndim = VIEW_ABSENT;
    forward.attr = g->c.call.attr;
    kernel_run(kernel_reference(OP_ATTENTION), &forward, 0, "the forward pass");
    for (int i = 1; i < 3; i++)
        g->c.call.in[i] = view_narrow(&g->c.call.in[i], 1, first, keys);
    gen_in(g, g->type, -2, 2, DIMS(z->B, z->T, z->H, z->D));
    if (drops) drop(g, (int)(z->T % 2));
    gen_out(g, g->type, DIMS(z->B, z->T, z->H, z->D));
    gen_out(g, g->type, DIMS(z->B, keys, z->G, z->D));
    gen_out(g, g->type, DIMS(z->B, keys, z->G, z->D));
    gen_emit(g, "B %zu T %zu S %zu H %zu G %zu D %zu causal %d layout %d%s%s", z->B, z->T, z->S, z->H, z->G, z->D, z->causal, z->layout,
             ring ? " ring" : "", drops ? " dropout" : "");
}

void attention_grad_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(heads); i++) {
        attention_grad_case(g, &heads[i], false, false);
        if (i % 2 == 0)
            attention_grad_case(g, &heads[i], false, true);
        if (heads[i].S > 2 && !heads[i].causal)
            attention_grad_case(g, &heads[i], true, false);
    }
}

/* Losses */

static const size_t xents[][3] = {  /* R, C, V */
    { 0, 4, 5 }, { 1, 1, 1 }, { 3, 5, 7 }, { 17, 16, 33 }, { 64, 32, 129 }, { 37, 31, 517 }, { 150, 64, 300 },
    { 1030, 3, 5 },  /* several chunks, the last of other size */
};

static void xent_in(struct gen *g, size_t R, size_t C, size_t V, bool denom, bool ignore_all)
{
    gen_in(g, g->type, -2, 2, DIMS(R, C));
    gen_in(g, g->type, -1, 1, DIMS(V, C));
    struct view *y = gen_in(g, LS_I32, 0, (double)V, DIMS(R));
    for (size_t r = 0; r < R; r++)
        if (ignore_all || r % 5 == 3)
            element_put(y, r, -1);
    if (denom)
        gen_in(g, LS_F32, 40, 60, DIMS(1));
    else
        gen_in_absent(g);
}

void linear_xent_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(xents); i++)
        for (int variant = 0; variant < 3; variant++) {
            size_t R = xents[i][0], C = xents[i][1], V = xents[i][2];

            gen_begin(g);
            xent_in(g, R, C, V, variant == 1, variant == 2);
            gen_out(g, LS_F32, DIMS(1));
            gen_out(g, LS_F32, DIMS(R));
            gen_emit(g, "R %zu C %zu V %zu %s", R, C, V,
                     variant == 1 ? "denom" : variant == 2 ? "nothing valid" : "plain");
        }
}

/* Bits of variant: 1 denom, 2 lse, 4 no dx, 8 no dw, 16 loss, 32 nothing valid, 64 dw in f32. */
static void linear_xent_grad_case(struct gen *g, size_t R, size_t C, size_t V, int variant)
{
    struct view loss = { 0 };
    struct block block = { 0 };

    gen_begin(g);
    xent_in(g, R, C, V, variant & 1, variant & 32);
    if (variant & 2) {
        struct call forward = { .op = OP_LINEAR_XENT, .nin = 4, .nout = 2 };

        loss = block_view(&block, LS_F32, DIMS(1), 0, PLACED_ALIGNED);
        forward.out[0] = loss;
        forward.out[1] = *gen_in(g, LS_F32, 0, 0, DIMS(R));
        memcpy(forward.in, g->c.call.in, sizeof forward.in);
        kernel_run(kernel_reference(OP_LINEAR_XENT), &forward, 0, "the forward pass");
        block_free(&block);
    } else {
        gen_in_absent(g);
    }
    gen_in(g, LS_F32, 0.5, 2, DIMS(1));
    if (variant & 4)
        gen_out_absent(g);
    else
        gen_out(g, g->type, DIMS(R, C));
    if (variant & 8)
        gen_out_absent(g);
    else
        gen_out_add(g, variant & 64 ? LS_F32 : g->type, -0.1, 0.1, DIMS(V, C));
    if (variant & 16)
        gen_out(g, LS_F32, DIMS(1));
    else
        gen_out_absent(g);
    gen_emit(g, "R %zu C %zu V %zu variant %d", R, C, V, variant);
}

void linear_xent_grad_cases(struct gen *g)
{
    static const int variants[] = { 0, 1 + 64, 2 + 16, 4 + 64, 8 + 2, 16 + 64 + 1, 32 + 16 + 64, 4 + 8 + 16 };

    for (size_t i = 0; i < COUNT_OF(xents); i++)
        for (size_t v = 0; v < (i < 5 ? COUNT_OF(variants) : 2); v++)
            linear_xent_grad_case(g, xents[i][0], xents[i][1], xents[i][2], variants[v]);
}
