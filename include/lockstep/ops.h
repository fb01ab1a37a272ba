/* ops.h - the operations of a program: each appends instructions and returns their result.
 *
 * Shapes use one alphabet: B batch, T time, C channels, H heads, G key/value heads, D head size, V vocabulary, R any
 * leading dims. Values are contiguous unless they come from ls_transpose, ls_slice or ls_split, which are views and copy nothing; an op
 * that needs contiguous operands copies first. Every op has a gradient unless noted otherwise.
 */
#ifndef LS_OPS_H
#define LS_OPS_H

#include "lockstep/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Leaves */
ls_value ls_input(ls_program *p, const char *name, ls_dtype type, int ndim, const size_t *size);
/* Dim `dim` of x counts the tokens of a sequence: context and sequence parallelism shard it, in x and in what is computed from x.
 * The models of nn.h declare it of their tokens and targets; all such dims of a program have one size. */
void ls_declare_time(ls_program *p, ls_value x, int dim);
/* The store's parameter of that name, declared if it is new; a shape or type that differs from the declared one is an error.
 * ls_param uses the store's type. */
ls_value ls_param(ls_program *p, const char *name, ls_init init, int ndim, const size_t *size);
ls_value ls_param_as(ls_program *p, const char *name, ls_init init, ls_dtype type, int ndim, const size_t *size);
/* A parameter that is not trained: frozen, saved with the others, written by the program itself (running statistics);
 * f32 (f64) whatever the store's type. */
ls_value ls_buffer(ls_program *p, const char *name, ls_init init, int ndim, const size_t *size);
/* A tensor of the caller, retained by the program (a key/value cache). No gradient. */
ls_value ls_bind(ls_program *p, const char *name, ls_tensor *t);
/* Names x as a program output: ls_program_read finds it by this name, and its bytes live as long as the program. */
ls_value ls_output(ls_program *p, const char *name, ls_value x);
ls_value ls_constant(ls_program *p, ls_dtype type, int ndim, const size_t *size, double value);
ls_value ls_stop_gradient(ls_program *p, ls_value x);
/* Block names prefix the names of values inside; blocks are the units of recomputation and of sharding. No nesting. */
void ls_block_begin(ls_program *p, const char *name);
void ls_block_end(ls_program *p);

/* Matmuls */
ls_value ls_linear(ls_program *p, ls_value x, ls_value w, ls_value b); /* x[R,K] w[N,K] b[N] or LS_NONE -> [R,N] */
ls_value ls_matmul(ls_program *p, ls_value a, ls_value b);             /* [..,M,K] [..,K,N] -> [..,M,N] */
/* A linear layer's backward: input gradient (dgrad) and weight gradient (wgrad), as separate ops. No gradient. */
ls_value ls_linear_backward_input(ls_program *p, ls_value dy, ls_value w);  /* dy[R,N] w[N,K] -> dx[R,K] */
ls_value ls_linear_backward_weight(ls_program *p, ls_value dy, ls_value x); /* dy[R,N] x[R,K] -> dw[N,K] */

/* Pointwise. b of add: a's shape, a suffix of it (a bias), or one element. */
ls_value ls_add(ls_program *p, ls_value a, ls_value b);
ls_value ls_mul(ls_program *p, ls_value a, ls_value b); /* the same shapes */
ls_value ls_scale(ls_program *p, ls_value x, double factor);
ls_value ls_relu(ls_program *p, ls_value x);
ls_value ls_gelu_tanh(ls_program *p, ls_value x);              /* x/2 (1 + tanh(sqrt(2/pi)(x + 0.044715 x^3))) */
ls_value ls_gelu_erf(ls_program *p, ls_value x);               /* x/2 (1 + erf(x / sqrt 2)) */
ls_value ls_silu(ls_program *p, ls_value x);                   /* x / (1 + exp(-x)) */
ls_value ls_relu_squared(ls_program *p, ls_value x);           /* max(x, 0)^2 (So et al. 2021) */
ls_value ls_swiglu(ls_program *p, ls_value gate, ls_value up); /* silu(gate) * up */
/* Elements are kept with probability 1-p and scaled by 1/(1-p); the mask is a function of (seed, name, step, global
 * index), never stored. step: input i64 [1], or [2] with the number of samples (rows of x's first dim) of this step that come before x,
 * which makes the mask independent of how a batch is divided. p == 0 returns x. */
ls_value ls_dropout(ls_program *p, const char *name, ls_value x, double probability, uint64_t seed, ls_value step);

/* Rows */
ls_value ls_softmax(ls_program *p, ls_value x);                                        /* along the last dim */
ls_value ls_layer_norm(ls_program *p, ls_value x, ls_value w, ls_value b, double eps); /* x[R,C] w[C] b[C] */
ls_value ls_rms_norm(ls_program *p, ls_value x, ls_value w, double eps);               /* x[R,C] w[C] */

/* Tokens and attention */
ls_value ls_embedding(ls_program *p, ls_value ids, ls_value w); /* ids[R] i32 w[V,C] -> [R,C] */
typedef struct ls_rope {
    double theta;                             /* 10000 */
    double factor;                            /* Llama 3 scaling; 1: none */
    double low_freq_factor, high_freq_factor; /* 1, 4 */
    int64_t original_positions;               /* 8192 */
} ls_rope;
#define LS_ROPE_DEFAULTS             \
    {                                \
        10000.0, 1.0, 1.0, 4.0, 8192 \
    }
ls_value ls_rope_table(ls_program *p, ls_value positions, size_t head_size, const ls_rope *rope); /* [T] i32 -> [T,D] */
ls_value ls_rope_apply(ls_program *p, ls_value x, ls_value table);                                /* x[B,T,H,D] -> the same shape */
/* q[B,T,H,D] k,v[B,S,G,D], H a multiple of G -> [B,T,H,D]; scores scaled by 1/sqrt(D). causal: query t sees keys up to
 * t + S - T. length: LS_NONE, or an i32 input [1]: only that many keys count (a cache that is partly filled). */
ls_value ls_attention(ls_program *p, ls_value q, ls_value k, ls_value v, int causal, ls_value length);
/* The same with dropout of the probabilities, the softmax of the scores: those kept are divided by 1 - probability. Masks are drawn as
 * ls_dropout's, by (seed, block, name, step, and the sample, head, query and key in the complete attention), and never stored. T = S. */
ls_value ls_attention_dropout(ls_program *p, const char *name, ls_value q, ls_value k, ls_value v, int causal, double probability,
                              uint64_t seed, ls_value step);
/* cache[B,S,G,D] (bound) gets x[B,T,G,D] at rows position[0] ..; returns the cache. No gradient. */
ls_value ls_cache_write(ls_program *p, ls_value cache, ls_value x, ls_value position);

/* Mixture of experts. A routing sends each token of x[B,T,C] to K of E experts; sizes are static; the number of rows of each expert is
 * known at run time. */
typedef struct ls_route_options {
    size_t chosen;      /* K */
    int sigmoid;        /* scores: the sigmoid of each logit; 0: softmax over all of them */
    int normalize;      /* divide the chosen scores by their sum */
    size_t capacity;    /* tokens of one sample that an expert takes; further ones are dropped; 0: all (dropless) */
    int by_probability; /* drop the tokens with the smallest scores; 0: the last ones */
} ls_route_options;
typedef struct ls_routing {
    ls_value weight, index; /* [B,T,K]; index i32: negative: not sent, see route.h */
    ls_value rows;          /* [B,T,K] i32: index of the choice's row in 0 .. size-1, or -1 */
    ls_value counts;        /* [1,E] i32: rows of each expert */
    size_t size;            /* M: the most rows there can be */
    size_t experts;         /* E */
} ls_routing;
/* logits[B,T,E] f32 (f64). bias: LS_NONE, or [E], added to the scores for the choice alone. samples: LS_NONE, or an input f32 [2]:
 * the number of real samples among the B (the last ones are padding and are not routed), and the number of samples in the step on all
 * ranks. The gradient flows through weight. */
ls_routing ls_route(ls_program *p, ls_value logits, ls_value bias, ls_value samples, const ls_route_options *options);
/* How many of this rank's tokens chose each expert, including dropped ones: [B,E] by sample, else [1,E]. */
ls_value ls_route_load(ls_program *p, const ls_routing *r, int by_sample);
/* The losses of a router, [1], this rank's share of the step's:
 *
 *   aux * E * sum over experts e of f[e] P[e]  +  z * mean over tokens of (log sum exp logits)^2
 *
 * with f[e] the share of a sequence's tokens that chose e (all K choices count: sum f = K), P[e] the mean of their scores, which are
 * divided by their sum over the experts; the mean over the step's sequences. A function of each sequence: independent of how samples
 * are divided into micro-batches and over ranks. For K = 1 this is Switch's loss (Fedus et al. 2021, eq. 4) with a sequence as the batch;
 * divided by K it is DeepSeek-V3's sequence-wise loss (2024, eq. 17 to 20) and Megatron-LM's seq_aux_loss. over_micro_batch: f and P over
 * all tokens of a micro-batch on all data-parallel ranks, and the mean over micro-batches, so it depends on both. Hugging Face's Mixtral
 * takes f and P over a batch and over all layers together.
 * It is a separate loss: backward starts from it too. Without samples the step is this micro-batch on one data-parallel rank. */
typedef struct ls_router_loss_options {
    int sigmoid;
    double aux, z;
    int over_micro_batch;
} ls_router_loss_options;
ls_value ls_router_loss(ls_program *p, ls_value logits, const ls_routing *r, ls_value samples, const ls_router_loss_options *options);
/* A parameter for ls_route's bias. The optimizer step changes it by +-rate: up if an expert had less than the mean load of the step, down
 * if it had more (DeepSeek-V3, 2.1.2). It is excluded from the gradient norm. */
ls_value ls_balance_bias(ls_program *p, const char *name, size_t experts, double rate);
ls_value ls_rows_permute(ls_program *p, ls_value x, const ls_routing *r);   /* [B,T,C] -> [M,C], by expert */
ls_value ls_rows_unpermute(ls_program *p, ls_value y, const ls_routing *r); /* [M,C] -> [B,T,C] = sum weight * row */
/* x[M,K] w[E,N,K] counts[S,E] -> [M,N]: rows are ordered by source, then by expert. */
ls_value ls_grouped_linear(ls_program *p, ls_value x, ls_value w, ls_value counts);

/* Images: x[B,C,H,W] */
/* w[O,C,KH,KW] b[O] or LS_NONE -> [B,O,OH,OW] with OH = (H + 2 padding - KH) / stride + 1, rounded down; zeros outside. */
ls_value ls_conv2d(ls_program *p, ls_value x, ls_value w, ls_value b, size_t stride, size_t padding);
/* Windows of size x size -> [B,C,OH,OW]. padding: at most half of size; a maximum ignores it, a mean counts it as zeros. */
ls_value ls_max_pool2d(ls_program *p, ls_value x, size_t size, size_t stride, size_t padding);
ls_value ls_avg_pool2d(ls_program *p, ls_value x, size_t size, size_t stride, size_t padding);
ls_value ls_global_avg_pool(ls_program *p, ls_value x); /* mean over H and W -> [B,C] */
typedef struct ls_batch_norm_options {
    double eps;
    double momentum; /* share of this batch's statistics in the running ones */
    int training;    /* 1: normalize by the batch and update the running statistics; 0: normalize by the running ones */
} ls_batch_norm_options;
#define LS_BATCH_NORM_DEFAULTS \
    {                          \
        1e-5, 0.1, 1           \
    }
/* x[B,C] or [B,C,..] w[C] b[C] -> (x - mean) / sqrt(var + eps) * w + b, channel by channel. mean[C], var[C]: the running
 * statistics, from ls_buffer (zeros, ones); both LS_NONE in training: no running statistics. Normalization uses the biased variance, the
 * running one is unbiased, as in PyTorch. labels: LS_NONE, or i32 [B]: samples with a negative label are padding and are excluded from the
 * statistics. With sync_batch_norm (parallel.h) the statistics are those of the samples of all data-parallel ranks. */
ls_value ls_batch_norm(ls_program *p, ls_value x, ls_value w, ls_value b, ls_value mean, ls_value var, ls_value labels,
                       const ls_batch_norm_options *options);

/* Losses, [1] */
/* Cross-entropy of softmax(x w^T) against targets: x[R,C] w[V,C] targets[R] i32, negative: ignored. The sum over valid
 * tokens divided by denominator[0] (input [1] f32), or by their own count if LS_NONE. The [R,V] logits are never materialized. */
ls_value ls_linear_xent(ls_program *p, ls_value x, ls_value w, ls_value targets, ls_value denominator);
ls_value ls_mse(ls_program *p, ls_value a, ls_value b); /* mean of (a - b)^2 */

/* Shapes */
ls_value ls_reshape(ls_program *p, ls_value x, int ndim, const size_t *size);
ls_value ls_transpose(ls_program *p, ls_value x, int dim0, int dim1);            /* a view */
ls_value ls_slice(ls_program *p, ls_value x, int dim, size_t begin, size_t end); /* a view */
void ls_split(ls_program *p, ls_value x, int dim, int parts, ls_value *out);     /* equal parts, views */
ls_value ls_concat(ls_program *p, int n, const ls_value *x, int dim);            /* n <= 8 */
ls_value ls_contiguous(ls_program *p, ls_value x);
ls_value ls_cast(ls_program *p, ls_value x, ls_dtype type);
ls_value ls_sum(ls_program *p, ls_value x, int dim); /* dim removed; -1: over all, [1] */
ls_value ls_max(ls_program *p, ls_value x, int dim); /* likewise, the maximum; no gradient */
ls_value ls_mean(ls_program *p, ls_value x, int dim);

/* Properties of a value */
int ls_value_ndim(const ls_program *p, ls_value x);
size_t ls_value_size(const ls_program *p, ls_value x, int dim);
ls_dtype ls_value_dtype(const ls_program *p, ls_value x);

#ifdef __cplusplus
}
#endif
#endif
