/* kernel.h - the kernel table: for every op one obvious reference, and fast entries per instruction set.
 *
 * A kernel gets a `struct call`: strided views of its operands, attributes, scratch. The table below says what
 * each op computes. Rules that hold for all:
 *   1. R stands for the product of the leading dims. Floating operands may be f32, bf16, f16 or f64; statistics
 *      (mean, rstd, lse, loss, denom, scalars) are f32, or f64 when the operands are f64. Arithmetic is in f32
 *      or better; sums of half types are formed in f32 or better.
 *   2. The reference takes any strides and any mixture of floating types, and computes in double. A fast entry
 *      says in accepts() what it takes; unless it says otherwise it wants contiguous operands.
 *   3. "+=" outputs are added to, never overwritten. Other outputs are written in full.
 *   4. In place: an output may be the very view of an input listed in the op's in-place mask. Nothing else overlaps.
 *   5. An operand written with ? may be absent: ndim == VIEW_ABSENT.
 *   6. The order of every sum is fixed by the shapes and the number of threads: a run repeats bit for bit.
 *   7. run() allocates nothing and does no shape work; prepare() may (primitives, tables), release() undoes it.
 * A kernel's answer does not depend on the value of scratch.
 */
#ifndef LS_TENSOR_KERNEL_H
#define LS_TENSOR_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/dtype.h"
#include "lockstep/status.h"
#include "lockstep/tensor.h"

#define CALL_OPERANDS 8
#define VIEW_ABSENT   (-1)

/* id, name, in-place mask (bit i: out[0] may be in[i]) - operands and meaning */
#define OP_MAP(X)                                                                                               \
    X(LINEAR, "linear", 0)                 /* x[R,K] w[N,K] b[N]? -> y[R,N] = x w^T + b */                      \
    X(LINEAR_DX, "linear_dx", 0)           /* question B: dy[R,N] w[N,K] -> dx[R,K] = dy w */                   \
    X(LINEAR_DW, "linear_dw", 0)           /* question A: dy[R,N] x[R,K] -> dw[N,K] += dy^T x */                \
    X(BIAS_GRAD, "bias_grad", 0)           /* dy[R,N] -> db[N] += sum over R */                                 \
    X(MATMUL, "matmul", 0)                 /* a[..,M,K] b[..,K,N] -> c[..,M,N]; equal leading dims; strided */  \
    X(ADD, "add", 1)                       /* a b -> a + b; b has a's shape, or a suffix of it, or one element */ \
    X(MUL, "mul", 1)                       /* a b -> a * b; the same shapes */                                  \
    X(SCALE, "scale", 1)                   /* x -> x * scale.value */                                           \
    X(UNARY, "unary", 1)                   /* x -> unary.kind(x) */                                             \
    X(UNARY_GRAD, "unary_grad", 3)         /* x dy -> dx */                                                     \
    X(SWIGLU, "swiglu", 3)                 /* g u -> silu(g) * u */                                             \
    X(SWIGLU_GRAD, "swiglu_grad", 5)       /* g u dy -> dg du; dg may be g or dy, du may be u */                \
    X(SOFTMAX, "softmax", 1)               /* x[R,N] -> y, along N */                                           \
    X(SOFTMAX_GRAD, "softmax_grad", 2)     /* y dy -> dx */                                                     \
    X(LAYER_NORM, "layer_norm", 0)         /* x[R,C] w[C] b[C] -> y mean[R] rstd[R]; norm.eps */                \
    X(LAYER_NORM_DX, "layer_norm_dx", 1)   /* dy x w mean rstd -> dx */                                         \
    X(LAYER_NORM_DW, "layer_norm_dw", 0)   /* dy x mean rstd -> dw[C] += db[C] += */                            \
    X(RMS_NORM, "rms_norm", 0)             /* x[R,C] w[C] -> y rstd[R]; y = x * rstd * w; norm.eps */           \
    X(RMS_NORM_DX, "rms_norm_dx", 1)       /* dy x w rstd -> dx */                                              \
    X(RMS_NORM_DW, "rms_norm_dw", 0)       /* dy x rstd -> dw[C] += */                                          \
    X(EMBEDDING, "embedding", 0)           /* ids[R] i32 w[V,C] -> y[R,C] = w[ids - first], zeros where w has no such row; embedding */ \
    X(EMBEDDING_DW, "embedding_dw", 0)     /* dy[R,C] ids[R] -> dw[V,C] += rows scattered, in order of R; embedding */ \
    X(ROPE_TABLE, "rope_table", 0)         /* pos[T] i32 -> table[T,D] f32|f64: cos in [0,D/2), sin in [D/2,D) */ \
    X(ROPE, "rope", 1)                     /* x[B,T,H,D] table[T,D] -> y; halves rotated (HF rotate_half); strided x */ \
    X(ATTENTION, "attention", 0)           /* q[B,T,H,D] k[B,S,G,D] v[B,S,G,D] len[1]? i32 -> o[B,T,H,D] lse[B,H,T]; strided q k v */ \
    X(ATTENTION_GRAD, "attention_grad", 0) /* q k v o lse do -> dq dk dv; strided q k v, contiguous o do dq dk dv */ \
    X(ATTENTION_MERGE, "attention_merge", 0) /* o2[B,T,H,D] lse2[B,H,T] -> o lse (updated): attention over the keys of both; strided */ \
    X(DROPOUT, "dropout", 1)               /* x step[1|2] i64 -> y; kept elements scaled by 1/(1-p) */            \
    X(LINEAR_XENT, "linear_xent", 0)       /* x[R,C] w[V,C] y[R] i32 denom[1]? -> loss[1] lse[R] */             \
    X(LINEAR_XENT_GRAD, "linear_xent_grad", 0) /* x w y denom? lse? dloss[1] -> dx? dw? += loss? */             \
    X(XENT_COUNT, "xent_count", 0)         /* y[R] i32 -> denom[1] = rows with y >= 0, at least 1 */            \
    X(XENT_PART, "xent_part", 0)           /* l[R,v] y[R] i32 -> stats[R,3] of the vocabulary's columns [first, first+v): largest, sum of exp(l - largest), l of y or 0; embedding */ \
    X(XENT_WHOLE, "xent_whole", 0)         /* stats[n,R,3] y[R] denom[1] -> loss[1] +=, lse[R] */               \
    X(XENT_DLOGITS, "xent_dlogits", 1)     /* l[R,v] y[R] lse[R] denom[1] dloss[1] -> dl[R,v]; embedding */     \
    X(CUT, "cut", 0)                       /* x strided -> flat: block 0 of dim cut.dim, then block 1, ..; cut */ \
    X(JOIN, "join", 0)                     /* flat -> y strided, the way back; cut */                           \
    X(COPY, "copy", 0)                     /* x strided -> y, converted to y's type */                          \
    X(CONCAT, "concat", 0)                 /* up to 8 inputs -> joined along concat.dim; strided inputs */      \
    X(PAD, "pad", 0)                       /* dy -> dx: zeros, and dy at [pad.start ..) along pad.dim */        \
    X(REDUCE_SUM, "reduce_sum", 0)         /* x -> sum over reduce.dim (removed); dim -1: over all, out[1] */   \
    X(MSE, "mse", 0)                       /* a b -> loss[1] = mean of (a-b)^2 */                               \
    X(MSE_GRAD, "mse_grad", 0)             /* a b dloss[1] -> da = dloss * 2 (a-b) / count */                   \
    X(CONV2D, "conv2d", 0)                 /* x[B,C,H,W] w[O,C,KH,KW] b[O]? -> y[B,O,OH,OW]; conv */             \
    X(CONV2D_DX, "conv2d_dx", 0)           /* question B: dy w -> dx */                                         \
    X(CONV2D_DW, "conv2d_dw", 0)           /* question A: dy x -> dw += */                                      \
    X(MAX_POOL2D, "max_pool2d", 0)         /* x[B,C,H,W] -> y[B,C,OH,OW]; pool */                               \
    X(MAX_POOL2D_GRAD, "max_pool2d_grad", 0) /* x dy -> dx: to the first largest of each window */              \
    X(AVG_POOL2D, "avg_pool2d", 0)         /* x -> y: sum / (height * width); the padding counts as zeros */    \
    X(AVG_POOL2D_GRAD, "avg_pool2d_grad", 0) /* dy -> dx */                                                     \
    X(BATCH_STATS, "batch_stats", 0)       /* x[B,C,..] y[B]? i32 -> stats[2C+1] f64, see batch.h; samples with y < 0 are left out */ \
    X(BATCH_RECALL, "batch_recall", 0)     /* mean[C] var[C] -> stats[2C+1] f64 that have them */               \
    X(BATCH_TRACK, "batch_track", 0)       /* stats -> mean[C] var[C], both moved towards them; batch.momentum */ \
    X(BATCH_NORM, "batch_norm", 1)         /* x stats w[C] b[C] y[B]? -> y; batch.eps; the labels are the gradient's */ \
    X(BATCH_GRAD_STATS, "batch_grad_stats", 0) /* dy x stats -> sums[2C] f64, own[2C] f64: both sum dy, sum dy n */ \
    X(BATCH_NORM_DX, "batch_norm_dx", 3)   /* dy x w stats sums? y[B]? i32 -> dx; no sums: stats are constant */ \
    X(BATCH_NORM_DW, "batch_norm_dw", 0)   /* own[2C] f64 -> dw[C] += db[C] += */                               \
    X(ROUTE, "route", 0)                   /* logits[B,T,E] bias[E]? samples[2]? -> weight[..,K] index[..,K] i32; route; see kernels_ref_route.c */ \
    X(ROUTE_GRAD, "route_grad", 0)         /* dweight[..,K] logits index -> dlogits; route */                   \
    X(ROUTE_LOAD, "route_load", 0)         /* index[B,T,K] -> load[G,E]: tokens that chose each expert; G is B, or 1: all together */ \
    X(ROUTER_LOSS, "router_loss", 0)       /* logits[B,T,E] load[G,E] samples[2]? -> loss[1]; router_loss */    \
    X(ROUTER_LOSS_GRAD, "router_loss_grad", 0) /* logits load samples? dloss[1] -> dlogits */                   \
    X(ROUTE_EXCESS, "route_excess", 0)     /* index[B,T,K] -> out[E] += E * load - its sum; route_excess */     \
    X(ROUTE_ROWS, "route_rows", 0)         /* index[..,K] -> rows[..,K] i32, counts[1,E] i32; see kernels_ref_experts.c */ \
    X(ROWS_SPREAD, "rows_spread", 0)       /* x[..,C] rows[..,K] weight[..,K]? -> y[M,C]: y[rows[n,k]] = weight[n,k] x[n], else 0 */ \
    X(ROWS_COLLECT, "rows_collect", 0)     /* y[M,C] rows[..,K] weight? -> x[..,C] = sum_k weight[n,k] y[rows[n,k]] */ \
    X(ROWS_DOT, "rows_dot", 0)             /* x[..,C] y[M,C] rows[..,K] -> [..,K] = x[n] . y[rows[n,k]] */      \
    X(GROUPED_LINEAR, "grouped_linear", 0) /* x[M,K] w[E,N,K] counts[S,E] i32 -> y[M,N]: each row by its expert's w */ \
    X(GROUPED_LINEAR_DX, "grouped_linear_dx", 0) /* question B: dy[M,N] w counts -> dx[M,K] */                  \
    X(GROUPED_LINEAR_DW, "grouped_linear_dw", 0) /* question A: dy[M,N] x[M,K] counts -> dw[E,N,K] += */        \
    X(SIGN_STEP, "sign_step", 0)           /* g -> p master? -= scale.value * sign(g) */                        \
    X(FILL, "fill", 0)                     /* -> out = scale.value everywhere */                                \
    X(ACCUMULATE, "accumulate", 0)         /* x -> out += x, converted */                                       \
    X(CACHE_WRITE, "cache_write", 0)       /* x[B,T,G,D] pos[1] i32 -> cache[B,S,G,D]: rows pos .. pos+T replaced */ \
    X(SUM_SQUARES, "sum_squares", 0)       /* g -> acc[1] f64 += sum of squares */                              \
    X(CLIP_FACTOR, "clip_factor", 0)       /* acc[1] f64 -> norm[1] f32, factor[1] f32 = min(1, clip.most / norm); most 0: 1 */ \
    X(SGD, "sgd", 0)                       /* g hyper[4] factor[1] -> p m? master? (all updated) */             \
    X(ADAM, "adam", 0)                     /* g hyper[4] factor[1] -> p m v master? */                          \
    X(LAMB_MOMENTS, "lamb_moments", 0)     /* g hyper[4] factor[1] p -> m v norms[2]? f64 += |p|^2, |u|^2 */    \
    X(LAMB, "lamb", 0)                     /* m v hyper[4] norms[2]? f64 -> p master? (updated) */              \
    X(LARS_NORMS, "lars_norms", 0)         /* g factor[1] p -> norms[2] f64 += |p|^2, |g|^2 */                  \
    X(LARS, "lars", 0)                     /* g hyper[4] factor[1] norms[2]? f64 -> p m? master? */

enum op {
#define OP_ENUM(id, name, inplace) OP_##id,
    OP_MAP(OP_ENUM)
#undef OP_ENUM
    OPS
};

enum unary { UNARY_RELU, UNARY_GELU_TANH, UNARY_GELU_ERF, UNARY_SILU };

/* RoPE with Llama 3's frequency scaling; factor 1 is plain RoPE. original: positions of the first training. */
struct rope { double theta, factor, low_freq_factor, high_freq_factor; int64_t original; };

/* hyper[4] f32, written by the trainer each step: lr, 1/(1-beta1^t), 1/(1-beta2^t), t. The formulas of the four
 * updates stand in kernels_ref_optim.c. g is multiplied by factor first. Weight decay is this parameter's. */
struct optimizer_attr { float beta1, beta2, eps, weight_decay, momentum, trust; int nesterov, decoupled; };

struct op_attr {
    union {
        struct { double value; } scale;
        struct { enum unary kind; } unary;
        struct { double eps; } norm;
        struct rope rope;                                         /* ROPE_TABLE */
        struct { int inverse; } rotate;                           /* ROPE: -1 times the angle */
        struct { int causal; double scale; } attention;           /* causal: query t sees keys <= t + S - T; with len: S is len[0] */
        struct { size_t first; } embedding;                       /* the vocabulary's row or column that this part begins with */
        /* Element i is kept when rng_uniform(seed, stream ^ step[0], dropout_index(i)) >= p. whole: x is [B,t,..], of [B,whole,..] the
         * rows [begin[0], +count[0]) and behind them [begin[1], +count[1]) of dim 1; 0: all of them. */
        struct { double p; uint64_t seed, stream, first; size_t whole, begin[2], count[2]; } dropout;
        struct { int dim, n; size_t grain; } cut;                 /* into n blocks, [cut_at(size, grain, i, n), cut_at(.., i + 1, ..)) */
        struct { int dim; } concat;
        struct { int dim; size_t start; } pad;
        struct { int dim; } reduce;
        struct { double most; } clip;
        struct { size_t stride, padding; } conv;                  /* the same in both directions */
        struct { size_t height, width, stride, padding; } pool;   /* of the window */
        struct { int sigmoid, normalize, by_probability; size_t capacity; int share, shares; } route; /* capacity: tokens of a sample an
                                                                   * expert takes; 0: all. share, shares: of its ROUTE_EXCESS */
        struct { int share, shares; } route_excess;               /* counts tokens [T*share/shares, T*(share+1)/shares) of a sample; shares 0: all */
        struct { int sigmoid; double aux, z; size_t chosen, tokens; } router_loss; /* chosen: K; tokens: of a whole sample, T */
        struct { double filled; } grouped;                        /* share of the M rows that is expected to be in use */
        struct { double eps, momentum; int fixed; } batch;        /* fixed: stats come from BATCH_RECALL */
        struct optimizer_attr optim;
    };
};

/* One operand. ndim == VIEW_ABSENT: not given. Strides are in elements. */
struct view {
    void     *data;
    ls_dtype  dtype;
    int       ndim;
    size_t    size[LS_DIMS];
    ptrdiff_t stride[LS_DIMS];
};

struct call {
    enum op        op;
    int            nin, nout;
    struct view    in[CALL_OPERANDS], out[CALL_OPERANDS];
    struct op_attr attr;
    void          *scratch;  /* kernel->scratch(call) bytes, 64-byte aligned */
    void          *state;    /* what prepare() made */
};

enum isa { ISA_ANY, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16, ISA_AMX, ISAS };

/* Which of the entries that can run a call runs it: the one of highest priority. */
enum kernel_priority {
    PRIORITY_REFERENCE,  /* correct for every call; slow */
    PRIORITY_LIBRARY,    /* another library's kernel where ours is at least as fast */
    PRIORITY_AVX2,       /* memory-bound kernels, one per instruction set */
    PRIORITY_AVX512,
    PRIORITY_BLOCKED,    /* our blocked kernels on the register tile, which picks its instruction set itself */
    PRIORITY_AMX         /* a library's kernel on tile instructions that ours do not use */
};

struct kernel {
    enum op     op;
    const char *name;                                /* "avx512", "onednn", "reference"; one entry per op and name */
    enum kernel_priority priority;
    enum isa    isa;                                 /* what the processor must have */
    bool      (*accepts)(const struct call *c);      /* looks at types, sizes, strides; not at data pointers */
    size_t    (*scratch)(const struct call *c);      /* bytes; NULL: none */
    ls_status (*prepare)(struct call *c);            /* sets c->state; NULL: nothing to do */
    void      (*release)(struct call *c);
    void      (*run)(const struct call *c);
};

#define KERNELS_END { .op = OPS }  /* ends an array of entries: it has no name */

const char *op_name(enum op op);
/* First of part r of a dim that is cut into n parts at multiples of grain (0 is 1); r = n: the end. */
static inline size_t cut_at(size_t whole, size_t grain, int r, int n)
{
    size_t g = grain ? grain : 1;

    return (size_t)((unsigned __int128)(whole / g) * (unsigned)r / (unsigned)n) * g;
}

/* Global index of x's element i: attr.first, plus step[1] (where given) rows of the whole x's first dim that stand before it, plus
 * its place in the whole x. *run: how many elements from i on have indices that follow each other. */
uint64_t    dropout_index(const struct call *c, size_t i, size_t *run);
unsigned    op_inplace_mask(enum op op);

/* Entry i of the table, in no particular order; NULL past the end. */
const struct kernel *kernel_at(int i);
/* The entry of highest priority that this processor can run (up to the ISA cap) and that accepts the call. Never NULL:
 * the reference accepts everything. */
const struct kernel *kernel_choose(const struct call *c);
const struct kernel *kernel_reference(enum op op);
/* The entry of op with that name, whatever the processor; NULL when there is none. */
const struct kernel *kernel_named(enum op op, const char *name);
enum isa    isa_best(void);           /* of this processor, at most the cap */
void        isa_cap(enum isa most);   /* option run.isa: tests and comparisons; default: no cap */
const char *isa_name(enum isa isa);   /* "any", "avx2", "avx512", "avx512_bf16", "amx" */

/* Views */
size_t      view_count(const struct view *v);          /* elements; 0 when absent */
size_t      view_bytes(const struct view *v);          /* count * element size */
bool        view_is_contiguous(const struct view *v);
bool        view_given(const struct view *v);
struct view view_of(void *data, ls_dtype type, int ndim, const size_t *size);  /* contiguous */
size_t      view_rows(const struct view *v);           /* product of all dims but the last */
size_t      view_last(const struct view *v);           /* the last dim; 1 for a scalar */
ptrdiff_t   view_offset(const struct view *v, size_t i);  /* of element i in row-major order, from data, in elements */
struct view view_of_tensor(const ls_tensor *t);        /* valid while t is */
/* v narrowed to [start, start + size) of dim; the same bytes. */
struct view view_narrow(const struct view *v, int dim, size_t start, size_t size);
bool        call_has_in(const struct call *c, int i);  /* operand i was passed and is not absent */
bool        call_has_out(const struct call *c, int i);

#endif
