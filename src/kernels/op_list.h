/* op_list.h - every op that has kernels: one row per op, with everything that the code knows about it.
 *
 * Each floor reads the columns that it needs: the kernel table takes name, shapes and in-place mask; the program (op_info.h) derives
 * gradients, costs and recomputation; src/parallel shards the op and checks its reductions. The reader of a column completes its words:
 * gradient `linear` is gradient_linear(), FLOPs `linear` are flops_linear(), and so on. The enum of ops is made of the same rows, so an op
 * cannot be missing from a table. `none` is an entry that is left out on purpose. Apart from kernels and injected faults, no code compares
 * an op with a name: it reads a column.
 *
 * A row names its kind, and writes the columns in which ops of this kind differ; the others are the same for all ops of a kind:
 *   MODEL_OP      models append it: no stage of an optimizer
 *   PASS_OP       passes append it after partition and gradient, so it has no sharding or gradient rule. Where a program has one in its
 *                 forward, its operands are replicated, a gradient through it is refused, and it is COSTLY to recompute
 *   OPTIMIZER_OP  only in the optimizer's segment: like PASS_OP, without derivatives and counted FLOPs
 * They have kernels, so the executor launches them, on the stream for computation, and they have no payload and no lowering. The kinds of
 * the ops without kernels are in ir/ir.h.
 *
 * shapes      what the operands are, "x[R,K] w[N,K] b[N]? -> y[R,N]", checked in every compiled program (op_shapes.h):
 *             [A,B]   sizes; the same letter is the same size everywhere in the row; [2C+1] is computed from one, [1|2] is either
 *             R       the product of all dims to the left of those that follow it
 *             ..      any leading dims, the same ones everywhere in the row
 *             [*]     any shape, the same one everywhere; [~]: that shape, a suffix of it, or one element; no brackets: anything
 *             i32 ..  the type, where it is fixed     ?  may be absent     +=  is added to, never overwritten     ...  up to 8 of them
 * in place    bit i: out[0] may have the bytes of in[i]; where an op has two such outputs, out[1] those of in[1]
 * gradient    the rule that gives each input its gradient
 * to          bit i: in[i] has a derivative; the others are integers, statistics, tables
 * FLOPs       of the arithmetic that counts (matmuls, convolutions); a pass over memory has none
 * bytes       read and written: all operands once, or a rule of its own
 * recompute   CHEAP  a pass over memory: recomputed by the selective mode too      COSTLY  recomputed by the other modes
 *             SAME   makes nothing: the bytes of its input, or a part of them      ONCE    never: it counts, or could come out another way
 *             MOVE   a redistribution, cheap where it only gathers over tp again
 * sharding    the partition rule: what the op makes of sharded operands; none: replicated operands only
 * check       the reduction check's rule, independent of the sharding rule
 * traits      LINEAR: f(a) + f(b) = f(a + b), partial sums pass through      STRIDED_DY: the gradient rule takes a strided dy
 *             OWN_LOSS: adds to the loss by itself, its gradient is 1        LOSS_BY_GRADIENT: with fuse_loss its gradient makes the loss
 *             MONOTONE: max(f(a), f(b)) = f(max(a, b)), partial maxima pass through
 *             SUM: the sum of its operands; a term that another pipeline stage has is left out
 *             ROW_CHUNKS: in[0] x in[1], row by row of in[0], so it may be computed in chunks of rows while those before are reduced
 *             SAMPLE_STATS: statistics of the samples, which ranks sum only with sync_batch_norm
 *             SAMPLE_COUNT: a mean over the samples of a step, whose number is in[2]: needed if other ranks have samples, too
 *             CHOICES: makes discrete choices, which rounding may change; parity compares them first
 *             GATES: with unary.kind relu it multiplies by 0 or 1, which rounding may change where in[0] is about 0
 * time        which dim of the outputs counts the tokens of a sequence, given that of the inputs: a rule of time.c
 * stage       when the optimizer's segment runs it: SQUARES of all gradients; CLIP: their norm, out[0], and the clip factor; NORMS of one
 *             parameter, to its last output; UPDATE. A run reads the norm and stops before the first update if it is not finite
 * payload     what its instructions have besides operands and attributes: a member of their union (ir.h)
 * run         how the executor runs it (ir.h); LOWERED: not at all, it is replaced before
 * lowering    what replaces it: a function of lower.c
 */
#ifndef LS_KERNELS_OP_LIST_H
#define LS_KERNELS_OP_LIST_H

enum {
    TRAIT_LINEAR = 1,
    TRAIT_STRIDED_DY = 2,
    TRAIT_OWN_LOSS = 4,
    TRAIT_LOSS_BY_GRADIENT = 8,
    TRAIT_MONOTONE = 16,
    TRAIT_SUM = 32,
    TRAIT_ROW_CHUNKS = 64,
    TRAIT_SAMPLE_STATS = 128,
    TRAIT_SAMPLE_COUNT = 256,
    TRAIT_CHOICES = 512,
    TRAIT_GATES = 1024
};

/* The kinds of rows, as complete rows:
 *   id, name, shapes, in place, gradient, to, FLOPs, bytes, recompute, sharding, check, traits, time, stage, payload, run, lowering */
#define MODEL_OP(X, id, name, shapes, inplace, gradient, to, flops, bytes, recompute, sharding, check, traits, time) \
    X(id, name, shapes, inplace, gradient, to, flops, bytes, recompute, sharding, check, traits, time, NONE, none, KERNEL, none)
#define PASS_OP(X, id, name, shapes, inplace, flops, bytes, traits) \
    X(id, name, shapes, inplace, none, 0xff, flops, bytes, COSTLY, none, general, traits, none, NONE, none, KERNEL, none)
#define OPTIMIZER_OP(X, id, name, shapes, inplace, stage) \
    X(id, name, shapes, inplace, none, 0, none, operands, COSTLY, none, general, 0, none, stage, none, KERNEL, none)

/* Ops that models append. Types: floating operands of one op have one type; statistics (mean, rstd, lse, loss) are f32, or f64.
 *   id, name, shapes, in place, gradient, to, FLOPs, bytes, recompute, sharding, check, traits, time */
#define OP_MODEL_MAP(X)                                                                                                                    \
    MODEL_OP(X, LINEAR, "linear", "x[R,K] w[N,K] b[N]? -> y[R,N]", /* x w^T + b */                                                         \
             0, linear, 0xff, linear, operands, COSTLY, linear, linear, TRAIT_ROW_CHUNKS, first)                                           \
    MODEL_OP(X, MATMUL, "matmul", "a[..,M,K] b[..,K,N] -> c[..,M,N]", /* strided */                                                        \
             0, matmul, 0xff, matmul, operands, COSTLY, matmul, general, TRAIT_STRIDED_DY, matmul)                                         \
    MODEL_OP(X, ADD, "add", "a[*] b[~] -> y[*]", 1, add, 0xff, none, operands, COSTLY, add, general, TRAIT_LINEAR | TRAIT_SUM, suffix)     \
    MODEL_OP(X, MUL, "mul", "a[*] b[*] -> y[*]", 1, mul, 0xff, none, operands, COSTLY, nonlinear, general, 0, suffix)                      \
    MODEL_OP(X, SCALE, "scale", "x[*] -> y[*]", /* x * scale.value */                                                                      \
             1, scale, 0xff, none, operands, COSTLY, pointwise, general, TRAIT_LINEAR, first)                                              \
    MODEL_OP(X, UNARY, "unary", "x[*] -> y[*]", /* unary.kind(x) */                                                                        \
             1, unary, 0xff, none, operands, CHEAP, nonlinear, general, 0, first)                                                          \
    MODEL_OP(X, RELU_SQUARED, "relu_squared", "x[*] -> y[*]", /* max(x, 0)^2 */                                                            \
             1, relu_squared, 0xff, none, operands, CHEAP, nonlinear, general, 0, first)                                                   \
    MODEL_OP(X, SWIGLU, "swiglu", "g[*] u[*] -> y[*]", /* silu(g) * u */                                                                   \
             3, swiglu, 0xff, none, operands, CHEAP, nonlinear, general, 0, suffix)                                                        \
    MODEL_OP(X, SOFTMAX, "softmax", "x[*] -> y[*]", /* along the last dim */                                                               \
             1, softmax, 0xff, none, operands, CHEAP, rows, general, 0, first)                                                             \
    MODEL_OP(X, LAYER_NORM, "layer_norm", "x[R,C] w[C] b[C] -> y[R,C] mean[R] rstd[R]", /* norm.eps */                                     \
             0, layer_norm, 0xff, none, operands, CHEAP, rows, general, 0, first)                                                          \
    MODEL_OP(X, RMS_NORM, "rms_norm", "x[R,C] w[C] -> y[R,C] rstd[R]", /* x * rstd * w; norm.eps */                                        \
             0, rms_norm, 0xff, none, operands, CHEAP, rows, general, 0, first)                                                            \
    MODEL_OP(X, EMBEDDING, "embedding", "ids[R]i32 w[V,C] -> y[R,C]", /* w[ids - first]; zeros: w has no such row; embedding */            \
             0, embedding, 0x02, none, embedding, COSTLY, embedding, embedding, 0, first)                                                  \
    MODEL_OP(X, ROPE_TABLE, "rope_table", "pos[T]i32 -> table[T,D]", /* cos in [0,D/2), sin in [D/2,D); f32 or f64; rope */                \
             0, none, 0xff, none, operands, COSTLY, rope_table, general, 0, first)                                                         \
    MODEL_OP(X, ROPE, "rope", "x[B,T,H,D] table[T,D] -> y[B,T,H,D]", /* halves rotated (HF rotate_half); strided x; rotate */              \
             1, rope, 0x01, none, operands, COSTLY, rope, general, TRAIT_STRIDED_DY, first)                                                \
    MODEL_OP(X, ATTENTION, "attention",                                                                                                    \
             "q[B,T,H,D] k[B,S,G,D] v[B,S,G,D] len[1]i32? step[1|2]i64? -> o[B,T,H,D] lse[B,H,T]", /* strided q k v; attention */          \
             0, attention, 0x07, attention, operands, COSTLY, attention, general, 0, attention)                                            \
    MODEL_OP(X, DROPOUT, "dropout", "x[*] step[1|2]i64 -> y[*]", /* kept elements scaled by 1/(1-p); dropout */                            \
             1, dropout, 0x01, none, operands, CHEAP, dropout, general, 0, first)                                                          \
    MODEL_OP(X, LINEAR_XENT, "linear_xent", "x[R,C] w[V,C] y[R]i32 denom[1]? -> loss[1] lse[R]", /* cross-entropy of softmax(x w^T) */     \
             0, linear_xent, 0x03, linear_xent, operands, COSTLY, linear_xent, loss, TRAIT_LOSS_BY_GRADIENT, none)                         \
    MODEL_OP(X, COPY, "copy", "x[*] -> y[*]", /* strided x; converted to y's type */                                                       \
             0, copy, 0xff, none, operands, COSTLY, pointwise, general, TRAIT_LINEAR | TRAIT_MONOTONE, first)                              \
    MODEL_OP(X, CONCAT, "concat", "x... -> y", /* strided, joined along concat.dim */                                                      \
             0, concat, 0xff, none, operands, COSTLY, concat, general, TRAIT_STRIDED_DY | TRAIT_MONOTONE, concat)                          \
    MODEL_OP(X, REDUCE_SUM, "reduce_sum", "x -> y", /* sum over reduce.dim, which goes; -1: over all, y[1] */                              \
             0, reduce_sum, 0xff, none, operands, COSTLY, sum, sum, TRAIT_LINEAR, sum)                                                     \
    MODEL_OP(X, REDUCE_MAX, "reduce_max", "x -> y", /* the largest, likewise */                                                            \
             0, none, 0x00, none, operands, COSTLY, max, max, TRAIT_MONOTONE, sum)                                                         \
    MODEL_OP(X, MSE, "mse", "a[*] b[*] -> loss[1]", /* mean of (a-b)^2 */                                                                  \
             0, mse, 0xff, none, operands, COSTLY, none, general, 0, none)                                                                 \
    MODEL_OP(X, CONV2D, "conv2d", "x[B,C,H,W] w[O,C,KH,KW] b[O]? -> y[B,O,OH,OW]", /* conv */                                              \
             0, conv2d, 0xff, conv2d, operands, COSTLY, none, general, 0, none)                                                            \
    MODEL_OP(X, MAX_POOL2D, "max_pool2d", "x[B,C,H,W] -> y[B,C,OH,OW]", /* pool */                                                         \
             0, max_pool2d, 0xff, none, operands, COSTLY, none, general, 0, none)                                                          \
    MODEL_OP(X, AVG_POOL2D, "avg_pool2d", "x[B,C,H,W] -> y[B,C,OH,OW]", /* sum / (height * width); the padding counts as zeros */          \
             0, avg_pool2d, 0xff, none, operands, COSTLY, none, general, 0, none)                                                          \
    MODEL_OP(X, BATCH_STATS, "batch_stats", "x y[B]i32? -> stats[2C+1]f64", /* x[B,C,..]; see batch.h; y < 0: sample left out */           \
             0, none, 0x00, none, operands, ONCE, none, general, TRAIT_SAMPLE_STATS, none) /* x's share is in batch norm's own gradient */ \
    MODEL_OP(X, BATCH_USE_STATS, "batch_use_stats", "mean[C] var[C] -> stats[2C+1]f64",    /* the statistics that have them */             \
             0, none, 0x00, none, operands, COSTLY, none, general, 0, none)                                                                \
    MODEL_OP(X, BATCH_UPDATE_STATS, "batch_update_stats",                                                                                  \
             "stats[2C+1]f64 -> mean[C]+= var[C]+=", /* moves both towards them; batch.momentum */                                         \
             0, none, 0xff, none, operands, ONCE, none, general, 0, none)                                                                  \
    MODEL_OP(X, BATCH_NORM, "batch_norm", "x[*] stats[2C+1]f64 w[C] b[C] y[B]i32? -> y[*]", /* batch.eps; the labels are the gradient's */ \
             1, batch_norm, 0xfd, none, operands, COSTLY, none, general, 0, first)                                                         \
    MODEL_OP(X, ROUTE, "route", "logits[B,T,E] bias[E]? samples[2]? -> weight[B,T,K] index[B,T,K]i32", /* see route.c; route */            \
             0, route, 0x01, none, operands, ONCE, route, route, TRAIT_CHOICES,                                                            \
             all) /* with recomputation, equal scores might lead to other choices */                                                       \
    MODEL_OP(X, ROUTE_LOAD, "route_load",                                                                                                  \
             "index[B,T,K]i32 -> load[B|1,E]", /* tokens that chose each expert: by sample, or of all together */                          \
             0, none, 0xff, none, operands, ONCE, route_load, route_load, 0, none)                                                         \
    MODEL_OP(X, ROUTER_LOSS, "router_loss", "logits[B,T,E] load[B|1,E] samples[2]? -> loss[1]", /* router_loss */                          \
             0, router_loss, 0x01, none, operands, COSTLY, router_loss, router_loss, TRAIT_OWN_LOSS, none)                                 \
    MODEL_OP(X, ROUTE_ROWS, "route_rows", "index[..,K]i32 -> rows[..,K]i32 counts[1,E]i32", /* see experts.c */                            \
             0, none, 0xff, none, operands, ONCE, route_rows, general, 0, first)                                                           \
    MODEL_OP(X, ROWS_PERMUTE, "rows_permute",                                                                                              \
             "x[..,C] rows[..,K]i32 weight[..,K]? -> y[M,C]", /* y[rows[n,k]] = weight[n,k] x[n], else 0 */                                \
             0, rows_permute, 0x01, none, operands, COSTLY, rows_permute, general, 0, none)                                                \
    MODEL_OP(X, ROWS_UNPERMUTE, "rows_unpermute",                                                                                          \
             "y[M,C] rows[..,K]i32 weight[..,K]? -> x[..,C]", /* x[n] = sum_k weight[n,k] y[rows[n,k]] */                                  \
             0, rows_unpermute, 0xfd, none, operands, COSTLY, rows_unpermute, unpermute, 0, rows)                                          \
    MODEL_OP(X, GROUPED_LINEAR, "grouped_linear",                                                                                          \
             "x[M,K] w[E,N,K] counts[S,E]i32 -> y[M,N]", /* multiplies each row by its expert's w; grouped */                              \
             0, grouped_linear, 0x03, grouped_linear, operands, COSTLY, grouped_linear, grouped, 0, none)                                  \
    MODEL_OP(X, FILL, "fill", "-> y", /* scale.value everywhere */                                                                         \
             0, none, 0xff, none, operands, COSTLY, none, general, 0, none)                                                                \
    MODEL_OP(X, CACHE_WRITE, "cache_write", "x[B,T,G,D] pos[1]i32 -> cache[B,S,G,D]+=", /* rows pos .. pos+T replaced */                   \
             0, none, 0xff, none, cache_write, COSTLY, none, general, 0, none)

/* Ops that passes append: gradients, and the ops that other instructions are lowered to.
 *   id, name, shapes, in place, FLOPs, bytes, traits */
#define OP_PASS_MAP(X)                                                                                                                     \
    PASS_OP(X, LINEAR_DX, "linear_dx", "dy[R,N] w[N,K] -> dx[R,K]", 0, linear_dx, operands, 0)   /* input gradient: dy w */                \
    PASS_OP(X, LINEAR_DW, "linear_dw", "dy[R,N] x[R,K] -> dw[N,K]+=", 0, linear_dw, operands, 0) /* weight gradient: dy^T x */             \
    PASS_OP(X, BIAS_GRAD, "bias_grad", "dy -> db+=", 0, none, operands, 0)                       /* dy[R,N], db[N]: sum over R */          \
    PASS_OP(X, LINEAR_DW_BIAS, "linear_dw_bias", "dy[R,N] x[R,K] -> dw[N,K]+= db[N]+=", 0, linear_dw, operands, 0)                         \
    PASS_OP(X, LINEAR_UNARY, "linear_unary", "x[R,K] w[N,K] b[N]? -> y[R,N]? a[R,N]", 0, linear, operands,                                 \
            0) /* y = x w^T + b, a = unary.kind(y) */                                                                                      \
    PASS_OP(X, UNARY_GRAD, "unary_grad", "x[*] dy[*] -> dx[*]", 3, none, operands, TRAIT_GATES)                                            \
    PASS_OP(X, RELU_SQUARED_GRAD, "relu_squared_grad", "x[*] dy[*] -> dx[*]", 3, none, operands, 0)                                        \
    PASS_OP(X, SWIGLU_GRAD, "swiglu_grad", "g[*] u[*] dy[*] -> dg[*] du[*]", 5, none, operands, 0) /* dg may be g or dy, du may be u */    \
    PASS_OP(X, SOFTMAX_GRAD, "softmax_grad", "y[*] dy[*] -> dx[*]", 2, none, operands, 0)                                                  \
    PASS_OP(X, LAYER_NORM_DX, "layer_norm_dx", "dy[R,C] x[R,C] w[C] mean[R] rstd[R] -> dx[R,C]", 1, none, operands, 0)                     \
    PASS_OP(X, LAYER_NORM_DW, "layer_norm_dw", "dy[R,C] x[R,C] mean[R] rstd[R] -> dw[C]+= db[C]+=", 0, none, operands, 0)                  \
    PASS_OP(X, RMS_NORM_DX, "rms_norm_dx", "dy[R,C] x[R,C] w[C] rstd[R] -> dx[R,C]", 1, none, operands, 0)                                 \
    PASS_OP(X, RMS_NORM_DW, "rms_norm_dw", "dy[R,C] x[R,C] rstd[R] -> dw[C]+=", 0, none, operands, 0)                                      \
    PASS_OP(X, EMBEDDING_DW, "embedding_dw", "dy[R,C] ids[R]i32 -> dw[V,C]+=", 0, none, embedding_dw,                                      \
            0) /* ids alone fix the order in which rows are added; embedding */                                                            \
    PASS_OP(X, ATTENTION_GRAD, "attention_grad",                                                                                           \
            "q[B,T,H,D] k[B,S,G,D] v[B,S,G,D] o[B,T,H,D] lse[B,H,T] do[B,T,H,D] step[1|2]i64? -> "                                         \
            "dq[B,T,H,D] dk[B,S,G,D] dv[B,S,G,D]",                                                                                         \
            0, attention_grad, operands, 0) /* strided q k v */                                                                            \
    PASS_OP(X, ATTENTION_MERGE, "attention_merge", "o2[B,T,H,D] lse2[B,H,T] -> o[B,T,H,D]+= lse[B,H,T]+=", 0, none, operands,              \
            0) /* over both keys */                                                                                                        \
    PASS_OP(X, LINEAR_XENT_GRAD, "linear_xent_grad", "x[R,C] w[V,C] y[R]i32 denom[1]? lse[R]? dloss[1] -> dx[R,C]? dw[V,C]?+= loss[1]?",   \
            0, linear_xent_grad, operands, 0)                                                                                              \
    PASS_OP(X, XENT_COUNT, "xent_count", "y[R]i32 -> denom[1]", 0, none, operands, 0)        /* rows with y >= 0, at least 1 */            \
    PASS_OP(X, XENT_PART, "xent_part", "l[R,v] y[R]i32 -> stats[R,3]", 0, none, operands, 0) /* loss.c; embedding */                       \
    PASS_OP(X, XENT_COMBINE, "xent_combine", "stats[n,R,3] y[R]i32 denom[1] -> loss[1]+= lse[R]", 0, none, operands, 0)                    \
    PASS_OP(X, XENT_DLOGITS, "xent_dlogits", "l[R,v] y[R]i32 lse[R] denom[1] dloss[1] -> dl[R,v]", 1, none, operands, 0) /* embedding */   \
    PASS_OP(X, PACK_BLOCKS, "pack_blocks", "x -> flat", 0, none, operands, 0)     /* strided; block 0 of blocks.dim, then 1, ..; blocks */ \
    PASS_OP(X, UNPACK_BLOCKS, "unpack_blocks", "flat -> y", 0, none, operands, 0) /* the way back; blocks */                               \
    PASS_OP(X, PAD, "pad", "dy -> dx", 0, none, operands, 0)                      /* zeros, and dy at [pad.start ..) along pad.dim */      \
    PASS_OP(X, MSE_GRAD, "mse_grad", "a[*] b[*] dloss[1] -> da[*]", 0, none, operands, 0) /* dloss * 2 (a-b) / count */                    \
    PASS_OP(X, CONV2D_DX, "conv2d_dx", "dy[B,O,OH,OW] w[O,C,KH,KW] -> dx[B,C,H,W]", 0, conv2d_dx, operands, 0)                             \
    PASS_OP(X, CONV2D_DW, "conv2d_dw", "dy[B,O,OH,OW] x[B,C,H,W] -> dw[O,C,KH,KW]+=", 0, conv2d_dw, operands, 0)                           \
    PASS_OP(X, MAX_POOL2D_GRAD, "max_pool2d_grad", "x[B,C,H,W] dy[B,C,OH,OW] -> dx[B,C,H,W]", 0, none, operands,                           \
            0) /* to the first largest */                                                                                                  \
    PASS_OP(X, AVG_POOL2D_GRAD, "avg_pool2d_grad", "dy[B,C,OH,OW] -> dx[B,C,H,W]", 0, none, operands, 0)                                   \
    PASS_OP(X, BATCH_GRAD_STATS, "batch_grad_stats", "dy[*] x[*] stats[2C+1]f64 -> sums[2C]f64 own[2C]f64", 0, none, operands,             \
            TRAIT_SAMPLE_STATS)                                                                                                            \
    PASS_OP(X, BATCH_NORM_DX, "batch_norm_dx", "dy[*] x[*] w[C] stats[2C+1]f64 sums[2C]f64? y[B]i32? -> dx[*]", 3, none, operands, 0)      \
    PASS_OP(X, BATCH_NORM_DW, "batch_norm_dw", "own[2C]f64 -> dw[C]+= db[C]+=", 0, none, operands, 0)                                      \
    PASS_OP(X, ROUTE_GRAD, "route_grad", "dweight[..,K] logits[..,E] index[..,K]i32 -> dlogits[..,E]", 0, none, operands, 0) /* route */   \
    PASS_OP(X, ROUTER_LOSS_GRAD, "router_loss_grad", "logits[B,T,E] load[B|1,E] samples[2]? dloss[1] -> dlogits[B,T,E]", 0, none,          \
            operands, TRAIT_SAMPLE_COUNT)                                                                                                  \
    PASS_OP(X, ROUTE_EXCESS, "route_excess", "index[B,T,K]i32 -> excess[E]+=", 0, none, operands,                                          \
            0) /* E * load - its sum; route_excess */                                                                                      \
    PASS_OP(X, ROWS_DOT, "rows_dot", "x[..,C] y[M,C] rows[..,K]i32 -> dweight[..,K]", 0, none, operands, 0) /* x[n] . y[rows[n,k]] */      \
    PASS_OP(X, GROUPED_LINEAR_DX, "grouped_linear_dx", "dy[M,N] w[E,N,K] counts[S,E]i32 -> dx[M,K]", 0, grouped_linear_dx, operands, 0)    \
    PASS_OP(X, GROUPED_LINEAR_DW, "grouped_linear_dw", "dy[M,N] x[M,K] counts[S,E]i32 -> dw[E,N,K]+=", 0, grouped_linear_dw, operands, 0)  \
    PASS_OP(X, ACCUMULATE, "accumulate", "x[*] -> y[*]+=", 0, none, operands, 0) /* converted */

/* Ops of the optimizer. p, m, v, master are updated.
 *   id, name, shapes, in place, stage */
#define OP_OPTIMIZER_MAP(X)                                                                                           \
    OPTIMIZER_OP(X, SUM_SQUARES, "sum_squares", "g -> acc[1]f64+=", 0, SQUARES)                                       \
    OPTIMIZER_OP(X, CLIP_FACTOR, "clip_factor", "acc[1]f64 -> norm[1] factor[1]", 0,                                  \
                 CLIP) /* factor = min(1, clip.most / norm); most 0: 1 */                                             \
    OPTIMIZER_OP(X, SGD, "sgd", "g[*] hyper[4] factor[1] -> p[*] m[*]? master[*]?", 0, UPDATE)                        \
    OPTIMIZER_OP(X, ADAM, "adam", "g[*] hyper[4] factor[1] -> p[*] m[*] v[*] master[*]?", 0, UPDATE)                  \
    OPTIMIZER_OP(X, LAMB_MOMENTS, "lamb_moments", "g[*] hyper[4] factor[1] p[*] -> m[*] v[*] norms[..,2]f64?+=", 0,   \
                 NORMS) /* |p|^2, |u|^2 */                                                                            \
    OPTIMIZER_OP(X, LAMB, "lamb", "m[*] v[*] hyper[4] norms[..,2]f64? -> p[*] master[*]?", 0, UPDATE)                 \
    OPTIMIZER_OP(X, LARS_NORMS, "lars_norms", "g[*] factor[1] p[*] -> norms[..,2]f64+=", 0, NORMS) /* |p|^2, |g|^2 */ \
    OPTIMIZER_OP(X, LARS, "lars", "g[*] hyper[4] factor[1] norms[..,2]f64? -> p[*] m[*]? master[*]?", 0, UPDATE)      \
    OPTIMIZER_OP(X, SIGN_STEP, "sign_step", "g[*] -> p[*] master[*]?", 0, UPDATE) /* p -= optim.sign_rate * sign(g) */

/* Two instructions that one may replace, if the device has a kernel for it: X(that op, the first, the second, what the second reads). The
 * second's only input is operand [0] of the first: `in` or `out`. The op has the inputs of the first, the outputs of both, in this order,
 * and the attributes of the second. */
#define OP_FUSION_MAP(X)                        \
    X(LINEAR_DW_BIAS, LINEAR_DW, BIAS_GRAD, in) \
    X(LINEAR_UNARY, LINEAR, UNARY, out)

/* All ops that have kernels: X(a complete row). */
#define OP_KERNEL_MAP(X) OP_MODEL_MAP(X) OP_PASS_MAP(X) OP_OPTIMIZER_MAP(X)

#endif
