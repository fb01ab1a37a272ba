/* helper_kernel_optim.c - cases of the optimizers. */
#include "helper_kernel_gen.h"

#include <math.h>

/* Bits of variant: 1 master, 2 no momentum, 4 decoupled, 8 nesterov, 16 norms, 32 no decay, 64 zeros, 128 stochastic rounding of exactly
 * computed values. */
static void hyper_in(struct gen *g, int variant)
{
    struct view *v = gen_in(g, LS_F32, 0, 0, DIMS(4));
    bool exact = variant & 128;

    element_put(v, 0, exact ? 0x1p-7 : 0.05);
    element_put(v, 1, exact ? 1 : 1 / (1 - pow(0.9, 3)));
    element_put(v, 2, exact ? 1 : 1 / (1 - pow(0.95, 3)));
    element_put(v, 3, 3);
}

/* Few bits per element, and no zeros. */
static void few_bits(struct view *v, double unit)
{
    for (size_t i = 0; i < view_count(v); i++) element_put(v, i, unit * (double)((i * 37 % 64) * 2 + 1) * (i % 3 ? 1 : -1));
}

/* Parts of parameters: the whole, columns of a sharded matrix (runs that are longer and shorter than a vector), a shard of them. */
static struct rounding rounding_case(size_t count)
{
    static const struct rounding part[] = {
        { 7, 0x123456789abcdef0, 0, 0, 1u << 20, 1u << 20 }, { 7, 0x0fedcba987654321, 0, 3, 5, 11 },
        { 7, 0x0123456789abcdef, 1001, 6, 37, 74 }, { 7, 0xffffffffffffffff, 3, ((size_t)1 << 34) + 1, 1u << 10, 1u << 11 },
    };

    return part[count % COUNT_OF(part)];
}

static void norms_in(struct gen *g, int variant)
{
    if (variant & 16)
        gen_in(g, LS_F64, variant & 64 ? 0 : 1, variant & 64 ? 0 : 3, DIMS(2));
    else
        gen_in_absent(g);
}

static void update_emit(struct gen *g, size_t count, int variant)
{
    g->c.call.attr.optim = (struct optimizer_attr){
        .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = variant & 32 ? 0 : 0.1f,
        .momentum = 0.9f, .trust = 0.02f,
        .nesterov = variant & 8 ? 1 : 0, .decoupled = variant & 4 ? 1 : 0,
    };
    if (variant & 128) {
        struct optimizer_attr *a = &g->c.call.attr.optim;

        a->beta1 = a->beta2 = a->eps = a->weight_decay = 0;
        a->momentum = 0.5f;
        a->rounding = rounding_case(count);
    }
    gen_emit(g, "[%zu] variant %d", count, variant);
}

static void update_case(struct gen *g, size_t count, int variant)
{
    bool second = g->op == OP_ADAM, zeros = variant & 64;

    gen_begin(g);
    gen_in(g, variant & 1 ? LS_F32 : g->type, zeros ? 0 : -1, zeros ? 0 : 1, DIMS(count));
    hyper_in(g, variant);
    gen_in(g, LS_F32, 0.5, 1, DIMS(1));
    if (g->op == OP_LARS)
        norms_in(g, variant);
    gen_out_add(g, g->type, zeros ? 0 : -1, zeros ? 0 : 1, DIMS(count));
    if (variant & 2 && !second)
        gen_out_absent(g);
    else
        gen_out_add(g, LS_F32, zeros ? 0 : -1, zeros ? 0 : 1, DIMS(count));
    if (second)
        gen_out_add(g, LS_F32, 0, 1, DIMS(count));
    if (variant & 1)
        gen_out_add(g, LS_F32, -1, 1, DIMS(count));
    else
        gen_out_absent(g);
    if (variant & 128) {
        few_bits(&g->c.call.in[0], 0x1p-3);
        element_put(&g->c.call.in[2], 0, 1);
        if (call_has_out(&g->c.call, 1)) few_bits(&g->c.call.out[1], 0x1p-2);
    }
    update_emit(g, count, variant);
}

/* g factor p -> norms, and with moments g hyper factor p -> m v norms. */
static void norms_case(struct gen *g, size_t count, int variant)
{
    bool moments = g->op == OP_LAMB_MOMENTS;

    gen_begin(g);
    gen_in(g, variant & 1 ? LS_F32 : g->type, -1, 1, DIMS(count));
    if (moments)
        hyper_in(g, variant);
    gen_in(g, LS_F32, 0.5, 1, DIMS(1));
    gen_in(g, variant & 1 ? LS_F32 : g->type, -1, 1, DIMS(count));
    for (int k = 0; k < 2 && moments; k++)
        gen_out_add(g, LS_F32, 0, 1, DIMS(count));
    if (moments && !(variant & 16))
        gen_out_absent(g);
    else
        gen_out_add(g, LS_F64, 0, 1, DIMS(2));
    update_emit(g, count, variant);
}

/* m v hyper norms -> p master */
static void lamb_case(struct gen *g, size_t count, int variant)
{
    gen_begin(g);
    for (int k = 0; k < 2; k++)
        gen_in(g, LS_F32, 0, 1, DIMS(count));
    hyper_in(g, variant);
    norms_in(g, variant);
    gen_out_add(g, g->type, -1, 1, DIMS(count));
    if (variant & 1)
        gen_out_add(g, LS_F32, -1, 1, DIMS(count));
    else
        gen_out_absent(g);
    if (variant & 128) {
        few_bits(&g->c.call.in[0], 0x1p-3);
        for (size_t i = 0; i < count; i++) element_put(&g->c.call.in[1], i, i % 2 ? 0.25 : 4);
    }
    update_emit(g, count, variant);
}

static void each_update(struct gen *g, void (*make)(struct gen *g, size_t count, int variant))
{
    static const int variants[] = { 0, 1 + 4, 2, 2 + 1 + 4, 8, 8 + 4, 16, 16 + 1, 16 + 8 + 32, 16 + 64 };

    for (size_t i = 0; i < GEN_COUNTS; i++)
        for (size_t v = 0; v < COUNT_OF(variants); v++)
            make(g, gen_counts[i], variants[v]);
    make(g, SEVERAL_BLOCKS, 16 + 1);
    if (g->type != gen_types[GEN_TYPES - 1] || make == norms_case) return;
    g->type = LS_BF16; /* after all others, whose numbers do not depend on these */
    for (size_t i = 0; i < GEN_COUNTS; i++)
        for (int v = 0; v < 2; v++) make(g, gen_counts[i] + (size_t)v, v ? 128 : 128 + 2);
}

void update_cases(struct gen *g) { each_update(g, update_case); }

void norms_cases(struct gen *g)
{
    each_update(g, norms_case);
    norms_case(g, TWO_BLOCKS, 16 + 1);
}

void lamb_cases(struct gen *g) { each_update(g, lamb_case); }
