/* test_op_costs.c - FLOPs and bytes of every op, against numbers worked out by hand from its definition.
 *
 * A row names the operands of one instruction with their shapes, all dims of different sizes where the op allows it. FLOPs: a matmul of
 * [m,k] and [k,n] has 2 m n k, written in this order; what only passes over memory has none. Bytes: each operand once, in the order of the
 * operands, except where a comment says what is read and written. An op without a row fails.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "ir/op_info.h"
#include "ir/program.h"
#include "kernels/op_shapes.h"

/* operands: inputs -> outputs, "x[2,3]bf16", f32 without a type; "-" is an absent operand. again: FLOPs that the kernel recomputes, counted
 * by HFU alone. full: T of the whole sequence, or V of the whole vocabulary, of which a rank has a shard. */
struct cost_row { int op; const char *operands; double flops, again; size_t bytes; struct op_attr attr; size_t full; };

#define COST(id, text, model, extra, ...) \
    { .op = OP_##id, .operands = text, .flops = model, .again = extra, .bytes = __VA_ARGS__ }
#define PASS(id, text, ...) COST(id, text, 0, 0, __VA_ARGS__) /* over memory */
#define CAUSAL .attr.attention = { .causal = true }
#define HALF_FULL .attr.grouped = { .filled = 0.5 } /* half of the rows are expected to have a token */

static const struct cost_row cost_rows[] = {
    /* ---- matmuls ---- */
    COST(LINEAR, "x[2,3,5] w[7,5] b[7] -> y[2,3,7]", 2. * 6 * 7 * 5, 0, 4 * (30 + 35 + 7 + 42)),
    COST(LINEAR, "x[6,5]bf16 w[7,5]bf16 - -> y[6,7]bf16", 2. * 6 * 7 * 5, 0, 2 * (30 + 35 + 42)),
    COST(LINEAR_DX, "dy[2,3,7] w[7,5] -> dx[2,3,5]", 2. * 6 * 5 * 7, 0, 4 * (42 + 35 + 30)),
    COST(LINEAR_DW, "dy[2,3,7]bf16 x[2,3,5]bf16 -> dw[7,5]", 2. * 7 * 5 * 6, 0, 2 * (42 + 30) + 4 * 35),
    COST(LINEAR_DW_BIAS, "dy[6,7] x[6,5] -> dw[7,5] db[7]", 2. * 7 * 5 * 6, 0, 4 * (42 + 30 + 35 + 7)),
    COST(LINEAR_UNARY, "x[6,5] w[7,5] b[7] -> y[6,7] a[6,7]", 2. * 6 * 7 * 5, 0, 4 * (30 + 35 + 7 + 42 + 42)),
    COST(LINEAR_UNARY, "x[6,5] w[7,5] b[7] -> - a[6,7]", 2. * 6 * 7 * 5, 0, 4 * (30 + 35 + 7 + 42)),
    COST(MATMUL, "a[2,3,4,5] b[2,3,5,7] -> c[2,3,4,7]", 6 * (2. * 4 * 7 * 5), 0, 4 * (120 + 210 + 168)), /* 6 matmuls */
    /* S = 2 senders have sent M = 10 rows at most; each row is multiplied by one expert's [N,K] */
    COST(GROUPED_LINEAR, "x[10,5] w[3,7,5] counts[2,3]i32 -> y[10,7]", 2. * 5 * 7 * 5, 0, 4 * (50 + 105 + 6 + 70), HALF_FULL),
    COST(GROUPED_LINEAR_DX, "dy[10,7] w[3,7,5] counts[2,3]i32 -> dx[10,5]", 2. * 5 * 5 * 7, 0, 4 * (70 + 105 + 6 + 50), HALF_FULL),
    COST(GROUPED_LINEAR_DW, "dy[10,7] x[10,5] counts[2,3]i32 -> dw[3,7,5]", 2. * 7 * 5 * 5, 0, 4 * (70 + 50 + 6 + 105), HALF_FULL),
    COST(GROUPED_LINEAR, "x[10,5] w[3,7,5] counts[2,3]i32 -> y[10,7]", 2. * 10 * 7 * 5, 0, 4 * (50 + 105 + 6 + 70),
         .attr.grouped = { .filled = 1 }),

    /* ---- attention: scores q k^T and the sum of the values, each 2 pairs D per head; B = 2, H = 4, G = 1 ---- */
    COST(ATTENTION, "q[2,3,4,8] k[2,5,1,8] v[2,5,1,8] - - -> o[2,3,4,8] lse[2,4,3]", 2 * (2. * 2 * 4 * (3 * 5) * 8), 0,
         4 * (192 + 80 + 80 + 192 + 24)),
    /* the last of 3 queries sees all 5 keys, those before it one fewer each */
    COST(ATTENTION, "q[2,3,4,8] k[2,5,1,8] v[2,5,1,8] len[1]i32 step[1]i64 -> o[2,3,4,8] lse[2,4,3]",
         2 * (2. * 2 * 4 * (3 + 4 + 5) * 8), 0, 4 * (192 + 80 + 80) + 4 + 8 + 4 * (192 + 24), CAUSAL),
    /* dv, dp, dq, dk; the kernel computes the scores again */
    COST(ATTENTION_GRAD, "q[2,3,4,8] k[2,5,1,8] v[2,5,1,8] o[2,3,4,8] lse[2,4,3] do[2,3,4,8] - -> dq[2,3,4,8] dk[2,5,1,8] dv[2,5,1,8]",
         4 * (2. * 2 * 4 * (3 * 5) * 8), 2. * 2 * 4 * (3 * 5) * 8, 4 * (192 + 80 + 80 + 192 + 24 + 192 + 192 + 80 + 80)),
    COST(ATTENTION_GRAD, "q[2,3,4,8] k[2,5,1,8] v[2,5,1,8] o[2,3,4,8] lse[2,4,3] do[2,3,4,8] - -> dq[2,3,4,8] dk[2,5,1,8] dv[2,5,1,8]",
         4 * (2. * 2 * 4 * (3 + 4 + 5) * 8), 2. * 2 * 4 * (3 + 4 + 5) * 8, 4 * (192 + 80 + 80 + 192 + 24 + 192 + 192 + 80 + 80), CAUSAL),
    PASS(ATTENTION_MERGE, "o2[2,3,4,8] lse2[2,4,3] -> o[2,3,4,8] lse[2,4,3]", 4 * (192 + 24 + 192 + 24)),
    /* 3 of T = 12 queries; all 12 keys travel past, of which a causal query sees (1 + 2 + .. + 12) / 12 = 6.5 on average */
    COST(RING_ATTENTION, "q[2,3,4,8] k[2,3,1,8] v[2,3,1,8] -> o[2,3,4,8] lse[2,4,3]", 2 * (2. * 2 * 4 * (3 * 12) * 8), 0,
         4 * (192 + 48 + 48 + 192 + 24), .full = 12),
    COST(RING_ATTENTION, "q[2,3,4,8] k[2,3,1,8] v[2,3,1,8] -> o[2,3,4,8] lse[2,4,3]", 2 * (2. * 2 * 4 * (3 * 6.5) * 8), 0,
         4 * (192 + 48 + 48 + 192 + 24), CAUSAL, .full = 12),
    COST(RING_ATTENTION_GRAD, "q[2,3,4,8] k[2,3,1,8] v[2,3,1,8] o[2,3,4,8] lse[2,4,3] do[2,3,4,8] -> dq[2,3,4,8] dk[2,3,1,8] dv[2,3,1,8]",
         4 * (2. * 2 * 4 * (3 * 6.5) * 8), 2. * 2 * 4 * (3 * 6.5) * 8, 4 * (192 + 48 + 48 + 192 + 24 + 192 + 192 + 48 + 48), CAUSAL,
         .full = 12),
    PASS(CACHE_WRITE, "x[2,3,1,8] pos[1]i32 -> cache[2,20,1,8]", 4 * (48 + 1 + 48)), /* reads x, writes as many elements */

    /* ---- the loss: logits x w^T; gradients dlogits w and dlogits^T x ---- */
    COST(LINEAR_XENT, "x[6,5] w[7,5] y[6]i32 denom[1] -> loss[1] lse[6]", 2. * 6 * 7 * 5, 0, 4 * (30 + 35 + 6 + 1 + 1 + 6)),
    COST(LINEAR_XENT_GRAD, "x[6,5] w[7,5] y[6]i32 denom[1] lse[6] dloss[1] -> dx[6,5] dw[7,5] -", 2. * 6 * 5 * 7 + 2. * 7 * 5 * 6,
         2. * 6 * 7 * 5, 4 * (30 + 35 + 6 + 1 + 6 + 1 + 30 + 35)),
    COST(LINEAR_XENT_GRAD, "x[6,5] w[7,5] y[6]i32 denom[1] lse[6] dloss[1] -> - dw[7,5] -", 2. * 7 * 5 * 6, 2. * 6 * 7 * 5,
         4 * (30 + 35 + 6 + 1 + 6 + 1 + 35)),
    COST(LINEAR_XENT_GRAD, "x[6,5] w[7,5] y[6]i32 denom[1] - dloss[1] -> dx[6,5] dw[7,5] loss[1]", /* with the forward's logits */
         2. * 6 * 7 * 5 + 2. * 6 * 5 * 7 + 2. * 7 * 5 * 6, 0, 4 * (30 + 35 + 6 + 1 + 1 + 30 + 35 + 1)),
    COST(VOCAB_XENT, "x[6,5] w[7,5] y[6]i32 denom[1] -> loss[1] lse[6]", 2. * 6 * 7 * 5, 0, 4 * (30 + 35 + 6 + 1 + 1 + 6), .full = 14),
    COST(VOCAB_XENT_GRAD, "x[6,5] w[7,5] y[6]i32 denom[1] lse[6] dloss[1] -> dx[6,5] dw[7,5]", 2. * 6 * 5 * 7 + 2. * 7 * 5 * 6,
         2. * 6 * 7 * 5, 4 * (30 + 35 + 6 + 1 + 6 + 1 + 30 + 35), .full = 14),
    PASS(XENT_COUNT, "y[6]i32 -> denom[1]", 4 * (6 + 1)),
    PASS(XENT_PART, "l[6,7] y[6]i32 -> stats[6,3]", 4 * (42 + 6 + 18)),
    PASS(XENT_COMBINE, "stats[2,6,3] y[6]i32 denom[1] -> loss[1] lse[6]", 4 * (36 + 6 + 1 + 1 + 6)),
    PASS(XENT_DLOGITS, "l[6,7] y[6]i32 lse[6] denom[1] dloss[1] -> dl[6,7]", 4 * (42 + 6 + 6 + 1 + 1 + 42)),
    PASS(MSE, "a[6,5] b[6,5] -> loss[1]", 4 * (30 + 30 + 1)),
    PASS(MSE_GRAD, "a[6,5] b[6,5] dloss[1] -> da[6,5]", 4 * (30 + 30 + 1 + 30)),

    /* ---- images: each element of y [B,O,OH,OW] takes C KH KW multiply-adds, those with padding too ---- */
    COST(CONV2D, "x[2,3,8,9] w[5,3,2,4] b[5] -> y[2,5,7,6]", 2. * (2 * 5 * 7 * 6) * (3 * 2 * 4), 0, 4 * (432 + 120 + 5 + 420)),
    COST(CONV2D_DX, "dy[2,5,7,6] w[5,3,2,4] -> dx[2,3,8,9]", 2. * (2 * 5 * 7 * 6) * (3 * 2 * 4), 0, 4 * (420 + 120 + 432)),
    COST(CONV2D_DW, "dy[2,5,7,6] x[2,3,8,9] -> dw[5,3,2,4]", 2. * (2 * 5 * 7 * 6) * (3 * 2 * 4), 0, 4 * (420 + 432 + 120)),
    PASS(MAX_POOL2D, "x[2,3,8,6] -> y[2,3,4,3]", 4 * (288 + 72)),
    PASS(MAX_POOL2D_GRAD, "x[2,3,8,6] dy[2,3,4,3] -> dx[2,3,8,6]", 4 * (288 + 72 + 288)),
    PASS(AVG_POOL2D, "x[2,3,8,6] -> y[2,3,4,3]", 4 * (288 + 72)),
    PASS(AVG_POOL2D_GRAD, "dy[2,3,4,3] -> dx[2,3,8,6]", 4 * (72 + 288)),
    PASS(BATCH_STATS, "x[2,3,4,5] y[2]i32 -> stats[7]f64", 4 * (120 + 2) + 8 * 7),
    PASS(BATCH_USE_STATS, "mean[3] var[3] -> stats[7]f64", 4 * (3 + 3) + 8 * 7),
    PASS(BATCH_UPDATE_STATS, "stats[7]f64 -> mean[3] var[3]", 8 * 7 + 4 * (3 + 3)),
    PASS(BATCH_NORM, "x[2,3,4,5] stats[7]f64 w[3] b[3] y[2]i32 -> y[2,3,4,5]", 4 * 120 + 8 * 7 + 4 * (3 + 3 + 2 + 120)),
    PASS(BATCH_GRAD_STATS, "dy[2,3,4,5] x[2,3,4,5] stats[7]f64 -> sums[6]f64 own[6]f64", 4 * (120 + 120) + 8 * (7 + 6 + 6)),
    PASS(BATCH_NORM_DX, "dy[2,3,4,5] x[2,3,4,5] w[3] stats[7]f64 sums[6]f64 y[2]i32 -> dx[2,3,4,5]",
         4 * (120 + 120 + 3) + 8 * (7 + 6) + 4 * (2 + 120)),
    PASS(BATCH_NORM_DW, "own[6]f64 -> dw[3] db[3]", 8 * 6 + 4 * (3 + 3)),

    /* ---- elementwise, rows, shapes ---- */
    PASS(ADD, "a[6,5] b[5] -> y[6,5]", 4 * (30 + 5 + 30)),
    PASS(MUL, "a[6,5] b[6,5] -> y[6,5]", 4 * (30 + 30 + 30)),
    PASS(SCALE, "x[6,5] -> y[6,5]", 4 * (30 + 30)),
    PASS(UNARY, "x[6,5] -> y[6,5]", 4 * (30 + 30)),
    PASS(UNARY_GRAD, "x[6,5] dy[6,5] -> dx[6,5]", 4 * (30 + 30 + 30)),
    PASS(RELU_SQUARED, "x[6,5] -> y[6,5]", 4 * (30 + 30)),
    PASS(RELU_SQUARED_GRAD, "x[6,5] dy[6,5] -> dx[6,5]", 4 * (30 + 30 + 30)),
    PASS(SWIGLU, "g[6,5] u[6,5] -> y[6,5]", 4 * (30 + 30 + 30)),
    PASS(SWIGLU_GRAD, "g[6,5] u[6,5] dy[6,5] -> dg[6,5] du[6,5]", 4 * (5 * 30)),
    PASS(SOFTMAX, "x[6,5] -> y[6,5]", 4 * (30 + 30)),
    PASS(SOFTMAX_GRAD, "y[6,5] dy[6,5] -> dx[6,5]", 4 * (30 + 30 + 30)),
    PASS(LAYER_NORM, "x[6,5] w[5] b[5] -> y[6,5] mean[6] rstd[6]", 4 * (30 + 5 + 5 + 30 + 6 + 6)),
    PASS(LAYER_NORM_DX, "dy[6,5] x[6,5] w[5] mean[6] rstd[6] -> dx[6,5]", 4 * (30 + 30 + 5 + 6 + 6 + 30)),
    PASS(LAYER_NORM_DW, "dy[6,5] x[6,5] mean[6] rstd[6] -> dw[5] db[5]", 4 * (30 + 30 + 6 + 6 + 5 + 5)),
    PASS(RMS_NORM, "x[6,5] w[5] -> y[6,5] rstd[6]", 4 * (30 + 5 + 30 + 6)),
    PASS(RMS_NORM_DX, "dy[6,5] x[6,5] w[5] rstd[6] -> dx[6,5]", 4 * (30 + 30 + 5 + 6 + 30)),
    PASS(RMS_NORM_DW, "dy[6,5] x[6,5] rstd[6] -> dw[5]", 4 * (30 + 30 + 6 + 5)),
    PASS(BIAS_GRAD, "dy[6,7] -> db[7]", 4 * (42 + 7)),
    PASS(EMBEDDING, "ids[6]i32 w[50,5]bf16 -> y[6,5]bf16", 4 * 6 + 2 * (30 + 30)),       /* reads 6 of the 50 rows */
    PASS(EMBEDDING_DW, "dy[6,5]bf16 ids[6]i32 -> dw[50,5]", 2 * 30 + 4 * 6 + 4 * (30 + 30)), /* reads and writes 6 rows of dw */
    PASS(ROPE_TABLE, "pos[6]i32 -> table[6,8]", 4 * (6 + 48)),
    PASS(ROPE, "x[2,6,3,8] table[6,8] -> y[2,6,3,8]", 4 * (288 + 48 + 288)),
    PASS(DROPOUT, "x[6,5] step[2]i64 -> y[6,5]", 4 * 30 + 8 * 2 + 4 * 30),
    PASS(COPY, "x[6,5] -> y[6,5]bf16", 4 * 30 + 2 * 30),
    PASS(CONCAT, "a[6,5] b[6,2] c[6,4] -> y[6,11]", 4 * (30 + 12 + 24 + 66)),
    PASS(REDUCE_SUM, "x[6,5] -> y[6]", 4 * (30 + 6)),
    PASS(REDUCE_MAX, "x[6,5] -> y[5]", 4 * (30 + 5)),
    PASS(FILL, "-> y[6,5]", 4 * 30),
    PASS(PACK_BLOCKS, "x[6,5] -> flat[30]", 4 * (30 + 30)),
    PASS(UNPACK_BLOCKS, "flat[30] -> y[6,5]", 4 * (30 + 30)),
    PASS(PAD, "dy[6,2] -> dx[6,5]", 4 * (12 + 30)),
    PASS(ACCUMULATE, "x[6,5]bf16 -> y[6,5]", 2 * 30 + 4 * 30),

    /* ---- experts: E = 4, K = 2 of them per token ---- */
    PASS(ROUTE, "logits[3,5,4] bias[4] samples[2] -> weight[3,5,2] index[3,5,2]i32", 4 * (60 + 4 + 2 + 30 + 30)),
    PASS(ROUTE_GRAD, "dweight[3,5,2] logits[3,5,4] index[3,5,2]i32 -> dlogits[3,5,4]", 4 * (30 + 60 + 30 + 60)),
    PASS(ROUTE_LOAD, "index[3,5,2]i32 -> load[3,4]", 4 * (30 + 12)),
    PASS(ROUTE_EXCESS, "index[3,5,2]i32 -> excess[4]", 4 * (30 + 4)),
    PASS(ROUTER_LOSS, "logits[3,5,4] load[3,4] samples[2] -> loss[1]", 4 * (60 + 12 + 2 + 1)),
    PASS(ROUTER_LOSS_GRAD, "logits[3,5,4] load[3,4] samples[2] dloss[1] -> dlogits[3,5,4]", 4 * (60 + 12 + 2 + 1 + 60)),
    PASS(ROUTE_ROWS, "index[3,5,2]i32 -> rows[3,5,2]i32 counts[1,4]i32", 4 * (30 + 30 + 4)),
    PASS(ROWS_PERMUTE, "x[3,5,7] rows[3,5,2]i32 weight[3,5,2] -> y[30,7]", 4 * (105 + 30 + 30 + 210)),
    PASS(ROWS_UNPERMUTE, "y[30,7] rows[3,5,2]i32 weight[3,5,2] -> x[3,5,7]", 4 * (210 + 30 + 30 + 105)),
    PASS(ROWS_DOT, "x[3,5,7] y[30,7] rows[3,5,2]i32 -> dweight[3,5,2]", 4 * (105 + 210 + 30 + 30)),
    PASS(SHUFFLE_COUNTS, "counts[1,4]i32 -> there[2,2]i32", 4 * (4 + 4)),
    PASS(SHUFFLE, "rows[30,7] counts[1,4]i32 there[2,2]i32 -> y[60,7]", 4 * (210 + 4 + 4 + 420)),

    /* ---- the optimizer ---- */
    PASS(SUM_SQUARES, "g[6,5]bf16 -> acc[1]f64", 2 * 30 + 8),
    PASS(CLIP_FACTOR, "acc[1]f64 -> norm[1] factor[1]", 8 + 4 + 4),
    PASS(SGD, "g[6,5] hyper[4] factor[1] -> p[6,5]bf16 m[6,5] master[6,5]", 4 * (30 + 4 + 1) + 2 * 30 + 4 * (30 + 30)),
    PASS(ADAM, "g[6,5] hyper[4] factor[1] -> p[6,5]bf16 m[6,5] v[6,5] master[6,5]", 4 * (30 + 4 + 1) + 2 * 30 + 4 * (30 + 30 + 30)),
    PASS(ADAM, "g[6,5] hyper[4] factor[1] -> p[6,5] m[6,5] v[6,5] -", 4 * (30 + 4 + 1 + 30 + 30 + 30)),
    PASS(LAMB_MOMENTS, "g[6,5] hyper[4] factor[1] p[6,5] -> m[6,5] v[6,5] norms[1,2]f64", 4 * (30 + 4 + 1 + 30 + 30 + 30) + 8 * 2),
    PASS(LAMB, "m[6,5] v[6,5] hyper[4] norms[1,2]f64 -> p[6,5] -", 4 * (30 + 30 + 4) + 8 * 2 + 4 * 30),
    PASS(LARS_NORMS, "g[6,5] factor[1] p[6,5] -> norms[1,2]f64", 4 * (30 + 1 + 30) + 8 * 2),
    PASS(LARS, "g[6,5] hyper[4] factor[1] norms[1,2]f64 -> p[6,5] m[6,5] -", 4 * (30 + 4 + 1) + 8 * 2 + 4 * (30 + 30)),
    PASS(SIGN_STEP, "g[6,5] -> p[6,5] -", 4 * (30 + 30)),

    /* ---- without kernels: a view touches no bytes ---- */
    PASS(VIEW, "x[6,5] -> y[5,6]", 0),
    PASS(MOVE, "x[6,5] -> y[3,5]", 4 * (30 + 15)),
    PASS(COMM_START, "x[30] -> y[15]", 4 * (30 + 15)),
    PASS(COMM_WAIT, "x[30] -> y[15]", 4 * (30 + 15)),
    PASS(LOAD, "-> state[30]", 4 * 30),
    PASS(LOAD_WAIT, "-> state[30]", 4 * 30),
    PASS(SAVE, "state[30] ->", 4 * 30),
    PASS(SAVE_WAIT, "state[30] ->", 4 * 30),
};

/* ---- an instruction of a row ---- */

static struct value cost_values[2 * CALL_OPERANDS + 1];

static ls_dtype read_type(const char **at)
{
    static const struct { const char *name; ls_dtype type; } types[] = { { "bf16", LS_BF16 }, { "i32", LS_I32 }, { "i64", LS_I64 },
                                                                         { "f64", LS_F64 } };

    for (size_t k = 0; k < COUNT_OF(types); k++)
        if (strncmp(*at, types[k].name, strlen(types[k].name)) == 0)
            return *at += strlen(types[k].name), types[k].type;
    return LS_F32;
}

/* Reads "x[2,3]i32" or "-" into the program's next value. */
static ls_value read_operand(ls_program *p, const char **at)
{
    struct value *v = &p->values[p->nvalues];

    if (**at == '-')
        return (*at)++, LS_NONE;
    assert_true(p->nvalues < (int)COUNT_OF(cost_values));
    *v = (struct value){ .root = p->nvalues };
    *at = strchr(*at, '[');
    assert_non_null(*at);
    while (**at != ']')
        v->size[v->ndim++] = strtoul(*at + 1, (char **)at, 10);
    ++*at;
    v->dtype = read_type(at);
    assert_true(!**at || isspace(**at));
    return (ls_value){ p->nvalues++ };
}

static struct instruction read_instruction(ls_program *p, const struct cost_row *r)
{
    struct instruction i = { .op = r->op, .attr = r->attr };
    bool outputs = false;

    memset(cost_values, 0, sizeof cost_values);
    *p = (ls_program){ .values = cost_values, .nvalues = 1 };
    for (const char *at = r->operands; *at; at += *at == ' ')
        if (strncmp(at, "->", 2) == 0)
            outputs = true, at += 2;
        else if (outputs)
            i.out[i.nout++] = read_operand(p, &at);
        else
            i.in[i.nin++] = read_operand(p, &at);
    if (op_payload(r->op) == PAYLOAD_across)
        i.own.across.full = r->full;
    return i;
}

static struct view view_or_absent(const ls_program *p, ls_value v)
{
    const struct value *x = &p->values[v.id];

    return v.id ? view_of(NULL, x->dtype, x->ndim, x->size) : (struct view){ .ndim = VIEW_ABSENT };
}

/* ---- tests ---- */

static void every_op_has_a_row(void **state)
{
    int rows[PROGRAM_OPS] = { 0 };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(cost_rows); k++)
        rows[cost_rows[k].op]++;
    for (int op = 0; op < PROGRAM_OPS; op++)
        if (!rows[op])
            fail_msg("%s has no row: add its operands with the FLOPs and bytes of its definition", program_op_name(op));
}

/* Operands as the op's row in op_list.h describes them. */
static void shapes_are_those_of_the_op(void **state)
{
    ls_program p;

    (void)state;
    for (size_t k = 0; k < COUNT_OF(cost_rows); k++) {
        struct instruction i = read_instruction(&p, &cost_rows[k]);
        struct call c = { .op = (enum op)i.op, .nin = i.nin, .nout = i.nout };
        char why[256] = "";

        if (i.op >= OPS)
            continue;
        for (int n = 0; n < i.nin; n++)
            c.in[n] = view_or_absent(&p, i.in[n]);
        for (int n = 0; n < i.nout; n++)
            c.out[n] = view_or_absent(&p, i.out[n]);
        if (!op_shapes_fit(&c, why, sizeof why))
            fail_msg("%s, %s: %s", program_op_name(i.op), cost_rows[k].operands, why);
    }
}

static void costs_are_those_of_the_definition(void **state)
{
    ls_program p;

    (void)state;
    for (size_t k = 0; k < COUNT_OF(cost_rows); k++) {
        const struct cost_row *r = &cost_rows[k];
        struct instruction i = read_instruction(&p, r);

        if (flops_of_model(&p, &i) != r->flops || flops_of(&p, &i) != r->flops + r->again)
            fail_msg("%s, %s: %g FLOPs, %g in the kernel; expected %g and %g", program_op_name(i.op), r->operands, flops_of_model(&p, &i),
                     flops_of(&p, &i), r->flops, r->flops + r->again);
        if (instruction_bytes(&p, &i) != r->bytes)
            fail_msg("%s, %s: %zu bytes, expected %zu", program_op_name(i.op), r->operands, instruction_bytes(&p, &i), r->bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_row),
        cmocka_unit_test(shapes_are_those_of_the_op),
        cmocka_unit_test(costs_are_those_of_the_definition),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
