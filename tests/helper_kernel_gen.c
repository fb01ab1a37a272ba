/* helper_kernel_gen.c - operands of cases, and which op has which cases.
 *
 * Shape classes: empty (R = 0), one element, 3 x 5 x 7, primes, one element less and more than a vector, enough for
 * several threads; strided layouts of small ones; f32, bf16, f16; with and without optional operands.
 */
#include "helper_kernel_gen.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const ls_dtype gen_types[GEN_TYPES] = { LS_F32, LS_BF16, LS_F16 };
const size_t gen_counts[GEN_COUNTS] = { 0, 1, 7, 15, 16, 17, 31, 33, 105, 127, 40009 };

/* A random number as a function of case, operand and element: the last steps of splitmix64. Philox took a sixth of test_cuda_kernels. */
static double uniform(struct gen *g, int operand, size_t i, double low, double high)
{
    uint64_t x = (((uint64_t)g->count << 8 | (uint64_t)operand) << 32 | i) * 0x9E3779B97F4A7C15u;

    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return low + (high - low) * 0x1p-53 * (double)((x ^ x >> 31) >> 11);
}

/* Numbers from low to high in every element; whole: rounded down. */
static void gen_fill(struct gen *g, const struct view *v, int slot, double low, double high, bool whole)
{
    size_t count = view_count(v);
    double *x = malloc((count + 1) * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < count; i++)
        x[i] = whole ? floor(uniform(g, slot, i, low, high)) : uniform(g, slot, i, low, high);
    elements_put(v, x);
    free(x);
}

struct view *gen_in(struct gen *g, ls_dtype type, double low, double high, int ndim, const size_t *size)
{
    struct kernel_case *c = &g->c;
    int operand = c->call.nin++;
    struct view *v = &c->call.in[operand];

    *v = block_view(&c->in[operand], type, ndim, size, g->layout, g->count % PLACEMENTS);
    gen_fill(g, v, operand, low, high, !ls_dtype_is_float(type));
    return v;
}

void gen_in_absent(struct gen *g) { g->c.call.in[g->c.call.nin++].ndim = VIEW_ABSENT; }
void gen_out_absent(struct gen *g) { g->c.call.out[g->c.call.nout++].ndim = VIEW_ABSENT; }

struct view *gen_out(struct gen *g, ls_dtype type, int ndim, const size_t *size)
{
    int operand = g->c.call.nout++;

    g->c.call.out[operand] = block_view(&g->c.out[operand], type, ndim, size, g->layout, (g->count + 1) % PLACEMENTS);
    return &g->c.call.out[operand];
}

void gen_out_add(struct gen *g, ls_dtype type, double low, double high, int ndim, const size_t *size)
{
    struct view *v = gen_out(g, type, ndim, size);

    gen_fill(g, v, 20 + g->c.call.nout, low, high, false);
}

void gen_begin(struct gen *g)
{
    memset(&g->c, 0, sizeof g->c);
    g->c.call.op = g->op;
    g->layout = 0;
}

void gen_emit(struct gen *g, const char *fmt, ...)
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

static void (*const generators[OPS])(struct gen *g) = {
    [OP_LINEAR] = linear_cases, [OP_LINEAR_DX] = linear_cases, [OP_LINEAR_DW] = linear_cases,
    [OP_LINEAR_UNARY] = linear_unary_cases, [OP_LINEAR_DW_BIAS] = linear_cases, [OP_BIAS_GRAD] = bias_grad_cases,
     [OP_MATMUL] = matmul_cases, [OP_ADD] = add_cases, [OP_MUL] = mul_cases,
    [OP_SCALE] = scale_cases, [OP_UNARY] = unary_cases, [OP_UNARY_GRAD] = unary_grad_cases,
    [OP_RELU_SQUARED] = relu_squared_cases, [OP_RELU_SQUARED_GRAD] = relu_squared_grad_cases,
    [OP_SWIGLU] = swiglu_cases, [OP_SWIGLU_GRAD] = swiglu_grad_cases, [OP_SOFTMAX] = softmax_cases,
    [OP_SOFTMAX_GRAD] = softmax_cases, [OP_LAYER_NORM] = norm_cases, [OP_LAYER_NORM_DX] = norm_cases,
    [OP_LAYER_NORM_DW] = norm_dw_cases, [OP_RMS_NORM] = norm_cases, [OP_RMS_NORM_DX] = norm_cases,
    [OP_RMS_NORM_DW] = norm_dw_cases, [OP_EMBEDDING] = embedding_cases, [OP_EMBEDDING_DW] = embedding_cases,
    [OP_ROPE_TABLE] = rope_table_cases, [OP_ROPE] = rope_cases, [OP_ATTENTION] = attention_cases,
    [OP_ATTENTION_GRAD] = attention_grad_cases, [OP_DROPOUT] = dropout_cases, [OP_LINEAR_XENT] = linear_xent_cases,
    [OP_LINEAR_XENT_GRAD] = linear_xent_grad_cases, [OP_COPY] = copy_cases, [OP_CONCAT] = concat_cases,
    [OP_PAD] = pad_cases, [OP_REDUCE_SUM] = reduce_cases, [OP_REDUCE_MAX] = reduce_cases,
    [OP_MSE] = total_cases, [OP_MSE_GRAD] = mse_grad_cases,
    [OP_PACK_BLOCKS] = pack_cases, [OP_UNPACK_BLOCKS] = pack_cases, [OP_ATTENTION_MERGE] = attention_merge_cases,
    [OP_XENT_COUNT] = xent_count_cases, [OP_XENT_PART] = xent_part_cases, [OP_XENT_COMBINE] = xent_whole_cases,
    [OP_XENT_DLOGITS] = xent_dlogits_cases,
    [OP_CONV2D] = conv_cases, [OP_CONV2D_DX] = conv_cases, [OP_CONV2D_DW] = conv_cases, [OP_MAX_POOL2D] = pool_cases,
    [OP_MAX_POOL2D_GRAD] = pool_cases, [OP_AVG_POOL2D] = pool_cases, [OP_AVG_POOL2D_GRAD] = pool_cases,
    [OP_BATCH_STATS] = batch_cases, [OP_BATCH_USE_STATS] = channel_cases, [OP_BATCH_UPDATE_STATS] = channel_cases,
    [OP_BATCH_NORM] = batch_cases, [OP_BATCH_GRAD_STATS] = batch_cases, [OP_BATCH_NORM_DX] = batch_cases,
    [OP_BATCH_NORM_DW] = channel_cases,
    [OP_ROUTE] = route_cases, [OP_ROUTE_GRAD] = route_grad_cases, [OP_ROUTER_LOSS] = router_loss_cases, [OP_ROUTE_LOAD] = route_load_cases,
    [OP_ROUTER_LOSS_GRAD] = router_loss_cases, [OP_ROUTE_EXCESS] = route_excess_cases, [OP_ROUTE_ROWS] = route_rows_cases,
    [OP_ROWS_PERMUTE] = rows_cases, [OP_ROWS_UNPERMUTE] = rows_cases, [OP_ROWS_DOT] = rows_cases, [OP_GROUPED_LINEAR] = grouped_cases,
    [OP_GROUPED_LINEAR_DX] = grouped_cases, [OP_GROUPED_LINEAR_DW] = grouped_cases, [OP_SIGN_STEP] = sign_cases,
    [OP_FILL] = fill_cases, [OP_ACCUMULATE] = accumulate_cases, [OP_CACHE_WRITE] = cache_write_cases,
    [OP_SUM_SQUARES] = total_cases, [OP_CLIP_FACTOR] = clip_cases, [OP_SGD] = update_cases, [OP_ADAM] = update_cases,
    [OP_LAMB_MOMENTS] = norms_cases, [OP_LAMB] = lamb_cases, [OP_LARS_NORMS] = norms_cases, [OP_LARS] = update_cases,
};

size_t kernel_cases(enum op op, kernel_case_fn *fn, void *ctx)
{
    struct gen g = { .fn = fn, .ctx = ctx, .op = op };

    if (!generators[op])
        return 0;
    for (size_t t = 0; t < GEN_TYPES; t++) {
        g.type = gen_types[t];
        generators[op](&g);
    }
    return g.count;
}
