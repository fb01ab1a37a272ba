/* op_list.h - every op that has kernels: one row per op, with everything that the code knows about it.
 *
 * Each floor reads the columns that it needs: the kernel table takes name, shapes and in-place mask; the program (op_info.h) derives
 * gradients, costs and recomputation; src/parallel shards the op and checks its reductions. The reader of a column completes its words:
 * gradient `linear` is gradient_linear(), FLOPs `linear` are flops_linear(), and so on. The enum of ops is made of the same rows, so an op
 * cannot be missing from a table. `none` means that there is none on purpose.
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
 * recompute   CHEAP  a pass over memory: recomputed by the selective mode too      COSTLY  recomputed by the others
 *             SAME   makes nothing: the bytes of its input, or a part of them      ONCE    never: it counts, or could come out another way
 *             MOVE   a redistribution, cheap where it only gathers over tp again
 * sharding    the partition rule: what the op makes of sharded operands; none: replicated operands only
 * check       the reduction check's rule, independent of the sharding rule
 * traits      LINEAR: f(a) + f(b) = f(a + b), partial sums pass through      STRIDED_DY: the gradient rule takes a strided dy
 *             OWN_LOSS: adds to the loss by itself, its gradient is 1        LOSS_BY_GRADIENT: with fuse_loss its gradient makes the loss
 *             MONOTONE: max(f(a), f(b)) = f(max(a, b)), partial maxima pass through
 * time        which dim of the outputs counts the tokens of a sequence, given that of the inputs: a rule of time.c
 */
#ifndef LS_KERNELS_OP_LIST_H
#define LS_KERNELS_OP_LIST_H

enum { TRAIT_LINEAR = 1, TRAIT_STRIDED_DY = 2, TRAIT_OWN_LOSS = 4, TRAIT_LOSS_BY_GRADIENT = 8, TRAIT_MONOTONE = 16 };

/* Ops that models append. Types: floating operands of one op have one type; statistics (mean, rstd, lse, loss) are f32, or f64.
 *   id, name, shapes, in place, gradient, to, FLOPs, bytes, recompute, sharding, check, traits, time */
#define OP_MODEL_MAP(X)                                                                                                                  \
    X(LINEAR, "linear", "x[R,K] w[N,K] b[N]? -> y[R,N]", /* x w^T + b */                                                                 \
      0, linear, 0xff, linear, operands, COSTLY, linear, linear, 0, first)                                                               \
    X(MATMUL, "matmul", "a[..,M,K] b[..,K,N] -> c[..,M,N]", /* strided */                                                                \
      0, matmul, 0xff, matmul, operands, COSTLY, matmul, general, TRAIT_STRIDED_DY, matmul)                                              \
    X(ADD, "add", "a[*] b[~] -> y[*]", 1, add, 0xff, none, operands, COSTLY, add, general, TRAIT_LINEAR, suffix)                         \
    X(MUL, "mul", "a[*] b[*] -> y[*]", 1, mul, 0xff, none, operands, COSTLY, nonlinear, general, 0, suffix)                              \
    X(SCALE, "scale", "x[*] -> y[*]", /* x * scale.value */                                                                              \
      1, scale, 0xff, none, operands, COSTLY, pointwise, general, TRAIT_LINEAR, first)                                                   \
    X(UNARY, "unary", "x[*] -> y[*]", /* unary.kind(x) */                                                                                \
      1, unary, 0xff, none, operands, CHEAP, nonlinear, general, 0, first)                                                               \
    X(RELU_SQUARED, "relu_squared", "x[*] -> y[*]", /* max(x, 0)^2 */                                                                    \
      1, relu_squared, 0xff, none, operands, CHEAP, nonlinear, general, 0, first)                                                        \
    X(SWIGLU, "swiglu", "g[*] u[*] -> y[*]", /* silu(g) * u */                                                                           \
      3, swiglu, 0xff, none, operands, CHEAP, nonlinear, general, 0, suffix)                                                             \
    X(SOFTMAX, "softmax", "x[*] -> y[*]", /* along the last dim */                                                                       \
      1, softmax, 0xff, none, operands, CHEAP, rows, general, 0, first)                                                                  \
    X(LAYER_NORM, "layer_norm", "x[R,C] w[C] b[C] -> y[R,C] mean[R] rstd[R]", /* norm.eps */                                             \
      0, layer_norm, 0xff, none, operands, CHEAP, rows, general, 0, first)                                                               \
    X(RMS_NORM, "rms_norm", "x[R,C] w[C] -> y[R,C] rstd[R]", /* x * rstd * w; norm.eps */                                                \
      0, rms_norm, 0xff, none, operands, CHEAP, rows, general, 0, first)                                                                 \
    X(EMBEDDING, "embedding", "ids[R]i32 w[V,C] -> y[R,C]", /* w[ids - first]; zeros: w has no such row; embedding */                    \
      0, embedding, 0x02, none, embedding, COSTLY, embedding, embedding, 0, first)                                                       \
    X(ROPE_TABLE, "rope_table", "pos[T]i32 -> table[T,D]", /* cos in [0,D/2), sin in [D/2,D); f32 or f64; rope */                        \
      0, none, 0xff, none, operands, COSTLY, rope_table, general, 0, first)                                                              \
    X(ROPE, "rope", "x[B,T,H,D] table[T,D] -> y[B,T,H,D]", /* halves rotated (HF rotate_half); strided x; rotate */                      \
      1, rope, 0x01, none, operands, COSTLY, rope, general, TRAIT_STRIDED_DY, first)                                                     \
    X(ATTENTION, "attention", "q[B,T,H,D] k[B,S,G,D] v[B,S,G,D] len[1]i32? -> o[B,T,H,D] lse[B,H,T]", /* strided q k v; attention */     \
      0, attention, 0x07, attention, operands, COSTLY, attention, general, 0, attention)                                                 \
    X(DROPOUT, "dropout", "x[*] step[1|2]i64 -> y[*]", /* kept elements scaled by 1/(1-p); dropout */                                    \
      1, dropout, 0x01, none, operands, CHEAP, dropout, general, 0, first)                                                               \
    X(LINEAR_XENT, "linear_xent", "x[R,C] w[V,C] y[R]i32 denom[1]? -> loss[1] lse[R]", /* cross-entropy of softmax(x w^T) */             \
      0, linear_xent, 0x03, linear_xent, operands, COSTLY, linear_xent, loss, TRAIT_LOSS_BY_GRADIENT, none)                              \
    X(COPY, "copy", "x[*] -> y[*]", /* strided x; converted to y's type */                                                               \
      0, copy, 0xff, none, operands, COSTLY, pointwise, general, TRAIT_LINEAR | TRAIT_MONOTONE, first)                                   \
    X(CONCAT, "concat", "x... -> y", /* strided, joined along concat.dim */                                                              \
      0, concat, 0xff, none, operands, COSTLY, concat, general, TRAIT_STRIDED_DY | TRAIT_MONOTONE, concat)                               \
    X(REDUCE_SUM, "reduce_sum", "x -> y", /* sum over reduce.dim, which goes; -1: over all, y[1] */                                      \
      0, reduce_sum, 0xff, none, operands, COSTLY, sum, sum, TRAIT_LINEAR, sum)                                                          \
    X(REDUCE_MAX, "reduce_max", "x -> y", /* the largest, likewise */                                                                    \
      0, none, 0x00, none, operands, COSTLY, max, max, TRAIT_MONOTONE, sum)                                                              \
    X(MSE, "mse", "a[*] b[*] -> loss[1]", /* mean of (a-b)^2 */                                                                          \
      0, mse, 0xff, none, operands, COSTLY, none, general, 0, none)                                                                      \
    X(CONV2D, "conv2d", "x[B,C,H,W] w[O,C,KH,KW] b[O]? -> y[B,O,OH,OW]", /* conv */                                                      \
      0, conv2d, 0xff, conv2d, operands, COSTLY, none, general, 0, none)                                                                 \
    X(MAX_POOL2D, "max_pool2d", "x[B,C,H,W] -> y[B,C,OH,OW]", /* pool */                                                                 \
      0, max_pool2d, 0xff, none, operands, COSTLY, none, general, 0, none)                                                               \
    X(AVG_POOL2D, "avg_pool2d", "x[B,C,H,W] -> y[B,C,OH,OW]", /* sum / (height * width); the padding counts as zeros */                  \
      0, avg_pool2d, 0xff, none, operands, COSTLY, none, general, 0, none)                                                               \
    X(BATCH_STATS, "batch_stats", "x y[B]i32? -> stats[2C+1]f64",             /* x[B,C,..]; see batch.h; y < 0: sample left out */       \
      0, none, 0x00, none, operands, ONCE, none, general, 0, none)            /* x's share is in batch norm's own gradient */            \
    X(BATCH_USE_STATS, "batch_use_stats", "mean[C] var[C] -> stats[2C+1]f64", /* the statistics that have them */                        \
      0, none, 0x00, none, operands, COSTLY, none, general, 0, none)                                                                     \
    X(BATCH_UPDATE_STATS, "batch_update_stats", "stats[2C+1]f64 -> mean[C]+= var[C]+=", /* moves both towards them; batch.momentum */    \
      0, none, 0xff, none, operands, ONCE, none, general, 0, none)                                                                       \
    X(BATCH_NORM, "batch_norm", "x[*] stats[2C+1]f64 w[C] b[C] y[B]i32? -> y[*]", /* batch.eps; the labels are the gradient's */         \
      1, batch_norm, 0xfd, none, operands, COSTLY, none, general, 0, first)                                                              \
    X(ROUTE, "route", "logits[B,T,E] bias[E]? samples[2]? -> weight[B,T,K] index[B,T,K]i32", /* see route.c; route */                    \
      0, route, 0x01, none, operands, ONCE, route, route, 0, all) /* with recomputation, equal scores might lead to other choices */     \
    X(ROUTE_LOAD, "route_load", "index[B,T,K]i32 -> load[B|1,E]", /* tokens that chose each expert: by sample, or of all together */     \
      0, none, 0xff, none, operands, ONCE, route_load, route_load, 0, none)                                                              \
    X(ROUTER_LOSS, "router_loss", "logits[B,T,E] load[B|1,E] samples[2]? -> loss[1]", /* router_loss */                                  \
      0, router_loss, 0x01, none, operands, COSTLY, router_loss, router_loss, TRAIT_OWN_LOSS, none)                                      \
    X(ROUTE_ROWS, "route_rows", "index[..,K]i32 -> rows[..,K]i32 counts[1,E]i32", /* see experts.c */                                    \
      0, none, 0xff, none, operands, ONCE, route_rows, general, 0, first)                                                                \
    X(ROWS_PERMUTE, "rows_permute", "x[..,C] rows[..,K]i32 weight[..,K]? -> y[M,C]", /* y[rows[n,k]] = weight[n,k] x[n], else 0 */       \
      0, rows_permute, 0x01, none, operands, COSTLY, rows_permute, general, 0, none)                                                     \
    X(ROWS_UNPERMUTE, "rows_unpermute", "y[M,C] rows[..,K]i32 weight[..,K]? -> x[..,C]", /* x[n] = sum_k weight[n,k] y[rows[n,k]] */     \
      0, rows_unpermute, 0xfd, none, operands, COSTLY, rows_unpermute, collect, 0, rows)                                                 \
    X(GROUPED_LINEAR, "grouped_linear", "x[M,K] w[E,N,K] counts[S,E]i32 -> y[M,N]", /* multiplies each row by its expert's w; grouped */ \
      0, grouped_linear, 0x03, grouped_linear, operands, COSTLY, grouped_linear, grouped, 0, none)                                       \
    X(FILL, "fill", "-> y", /* scale.value everywhere */                                                                                 \
      0, none, 0xff, none, operands, COSTLY, none, general, 0, none)                                                                     \
    X(CACHE_WRITE, "cache_write", "x[B,T,G,D] pos[1]i32 -> cache[B,S,G,D]+=", /* rows pos .. pos+T replaced */                           \
      0, none, 0xff, none, cache_write, COSTLY, none, general, 0, none)

/* Ops that only passes append: gradients, and the ops that other instructions are lowered to. They come after partition and gradient, so
 * they have no rules there, and a recomputed segment never holds one.
 *   id, name, shapes, in place, FLOPs, bytes */
#define OP_PASS_MAP(X)                                                                                                                    \
    X(LINEAR_DX, "linear_dx", "dy[R,N] w[N,K] -> dx[R,K]", 0, linear_dx, operands)   /* input gradient: dy w */                           \
    X(LINEAR_DW, "linear_dw", "dy[R,N] x[R,K] -> dw[N,K]+=", 0, linear_dw, operands) /* weight gradient: dy^T x */                        \
    X(BIAS_GRAD, "bias_grad", "dy -> db+=", 0, none, operands)                       /* dy[R,N], db[N]: sum over R */                     \
    X(UNARY_GRAD, "unary_grad", "x[*] dy[*] -> dx[*]", 3, none, operands)                                                                 \
    X(RELU_SQUARED_GRAD, "relu_squared_grad", "x[*] dy[*] -> dx[*]", 3, none, operands)                                                   \
    X(SWIGLU_GRAD, "swiglu_grad", "g[*] u[*] dy[*] -> dg[*] du[*]", 5, none, operands) /* dg may be g or dy, du may be u */               \
    X(SOFTMAX_GRAD, "softmax_grad", "y[*] dy[*] -> dx[*]", 2, none, operands)                                                             \
    X(LAYER_NORM_DX, "layer_norm_dx", "dy[R,C] x[R,C] w[C] mean[R] rstd[R] -> dx[R,C]", 1, none, operands)                                \
    X(LAYER_NORM_DW, "layer_norm_dw", "dy[R,C] x[R,C] mean[R] rstd[R] -> dw[C]+= db[C]+=", 0, none, operands)                             \
    X(RMS_NORM_DX, "rms_norm_dx", "dy[R,C] x[R,C] w[C] rstd[R] -> dx[R,C]", 1, none, operands)                                            \
    X(RMS_NORM_DW, "rms_norm_dw", "dy[R,C] x[R,C] rstd[R] -> dw[C]+=", 0, none, operands)                                                 \
    X(EMBEDDING_DW, "embedding_dw", "dy[R,C] ids[R]i32 -> dw[V,C]+=", 0, none, embedding_dw) /* rows added in order of R; embedding */    \
    X(ATTENTION_GRAD, "attention_grad",                                                                                                   \
      "q[B,T,H,D] k[B,S,G,D] v[B,S,G,D] o[B,T,H,D] lse[B,H,T] do[B,T,H,D] -> "                                                            \
      "dq[B,T,H,D] dk[B,S,G,D] dv[B,S,G,D]",                                                                                              \
      0, attention_grad, operands)                                                                                   /* strided q k v */  \
    X(ATTENTION_MERGE, "attention_merge", "o2[B,T,H,D] lse2[B,H,T] -> o[B,T,H,D]+= lse[B,H,T]+=", 0, none, operands) /* over both keys */ \
    X(LINEAR_XENT_GRAD, "linear_xent_grad", "x[R,C] w[V,C] y[R]i32 denom[1]? lse[R]? dloss[1] -> dx[R,C]? dw[V,C]?+= loss[1]?", 0,        \
      linear_xent_grad, operands)                                                                                                         \
    X(XENT_COUNT, "xent_count", "y[R]i32 -> denom[1]", 0, none, operands)        /* rows with y >= 0, at least 1 */                       \
    X(XENT_PART, "xent_part", "l[R,v] y[R]i32 -> stats[R,3]", 0, none, operands) /* loss.c; embedding */                                  \
    X(XENT_COMBINE, "xent_combine", "stats[n,R,3] y[R]i32 denom[1] -> loss[1]+= lse[R]", 0, none, operands)                               \
    X(XENT_DLOGITS, "xent_dlogits", "l[R,v] y[R]i32 lse[R] denom[1] dloss[1] -> dl[R,v]", 1, none, operands) /* embedding */              \
    X(PACK_BLOCKS, "pack_blocks", "x -> flat", 0, none, operands)             /* strided; block 0 of blocks.dim, then 1, ..; blocks */    \
    X(UNPACK_BLOCKS, "unpack_blocks", "flat -> y", 0, none, operands)         /* the way back; blocks */                                  \
    X(PAD, "pad", "dy -> dx", 0, none, operands)                              /* zeros, and dy at [pad.start ..) along pad.dim */         \
    X(MSE_GRAD, "mse_grad", "a[*] b[*] dloss[1] -> da[*]", 0, none, operands) /* dloss * 2 (a-b) / count */                               \
    X(CONV2D_DX, "conv2d_dx", "dy[B,O,OH,OW] w[O,C,KH,KW] -> dx[B,C,H,W]", 0, conv2d_dx, operands)                                        \
    X(CONV2D_DW, "conv2d_dw", "dy[B,O,OH,OW] x[B,C,H,W] -> dw[O,C,KH,KW]+=", 0, conv2d_dw, operands)                                      \
    X(MAX_POOL2D_GRAD, "max_pool2d_grad", "x[B,C,H,W] dy[B,C,OH,OW] -> dx[B,C,H,W]", 0, none, operands) /* to the first largest */        \
    X(AVG_POOL2D_GRAD, "avg_pool2d_grad", "dy[B,C,OH,OW] -> dx[B,C,H,W]", 0, none, operands)                                              \
    X(BATCH_GRAD_STATS, "batch_grad_stats", "dy[*] x[*] stats[2C+1]f64 -> sums[2C]f64 own[2C]f64", 0, none, operands)                     \
    X(BATCH_NORM_DX, "batch_norm_dx", "dy[*] x[*] w[C] stats[2C+1]f64 sums[2C]f64? y[B]i32? -> dx[*]", 3, none, operands)                 \
    X(BATCH_NORM_DW, "batch_norm_dw", "own[2C]f64 -> dw[C]+= db[C]+=", 0, none, operands)                                                 \
    X(ROUTE_GRAD, "route_grad", "dweight[..,K] logits[..,E] index[..,K]i32 -> dlogits[..,E]", 0, none, operands) /* route */              \
    X(ROUTER_LOSS_GRAD, "router_loss_grad", "logits[B,T,E] load[B|1,E] samples[2]? dloss[1] -> dlogits[B,T,E]", 0, none, operands)        \
    X(ROUTE_EXCESS, "route_excess", "index[B,T,K]i32 -> excess[E]+=", 0, none, operands)        /* E * load - its sum; route_excess */    \
    X(ROWS_DOT, "rows_dot", "x[..,C] y[M,C] rows[..,K]i32 -> dweight[..,K]", 0, none, operands) /* x[n] . y[rows[n,k]] */                 \
    X(GROUPED_LINEAR_DX, "grouped_linear_dx", "dy[M,N] w[E,N,K] counts[S,E]i32 -> dx[M,K]", 0, grouped_linear_dx, operands)               \
    X(GROUPED_LINEAR_DW, "grouped_linear_dw", "dy[M,N] x[M,K] counts[S,E]i32 -> dw[E,N,K]+=", 0, grouped_linear_dw, operands)             \
    X(ACCUMULATE, "accumulate", "x[*] -> y[*]+=", 0, none, operands) /* converted */

/* Ops of the optimizer. stage: when a step runs them: SQUARES of all gradients, then NORM and clip factor; NORMS of one parameter, then
 * its UPDATE. p, m, v, master are updated.
 *   id, name, shapes, in place, stage */
#define OP_OPTIMIZER_MAP(X)                                                                                                     \
    X(SUM_SQUARES, "sum_squares", "g -> acc[1]f64+=", 0, SQUARES)                                                               \
    X(CLIP_FACTOR, "clip_factor", "acc[1]f64 -> norm[1] factor[1]", 0, NONE) /* factor = min(1, clip.most / norm); most 0: 1 */ \
    X(SGD, "sgd", "g[*] hyper[4] factor[1] -> p[*] m[*]? master[*]?", 0, UPDATE)                                                \
    X(ADAM, "adam", "g[*] hyper[4] factor[1] -> p[*] m[*] v[*] master[*]?", 0, UPDATE)                                          \
    X(LAMB_MOMENTS, "lamb_moments", "g[*] hyper[4] factor[1] p[*] -> m[*] v[*] norms[..,2]f64?+=", 0, NORMS) /* |p|^2, |u|^2 */ \
    X(LAMB, "lamb", "m[*] v[*] hyper[4] norms[..,2]f64? -> p[*] master[*]?", 0, UPDATE)                                         \
    X(LARS_NORMS, "lars_norms", "g[*] factor[1] p[*] -> norms[..,2]f64+=", 0, NORMS) /* |p|^2, |g|^2 */                         \
    X(LARS, "lars", "g[*] hyper[4] factor[1] norms[..,2]f64? -> p[*] m[*]? master[*]?", 0, UPDATE)                              \
    X(SIGN_STEP, "sign_step", "g[*] -> p[*] master[*]?", 0, UPDATE) /* p -= scale.value * sign(g) */

#endif
