/* kernel.h - the kernel table: for every op one obvious reference, and fast entries per instruction set.
 *
 * A kernel gets a `struct call`: strided views of its operands, attributes, scratch. op_list.h says what each op
 * computes on which shapes. Rules that hold for all:
 *   1. Floating operands may be f32, bf16, f16 or f64; statistics (mean, rstd, lse, loss, denom, scalars) are f32, or f64 if the operands
 *      are f64. Arithmetic is in f32 or better; sums of half types are formed in f32 or better.
 *   2. The reference takes any strides and any mixture of floating types, and computes in double. A fast entry's accepts() says what it
 *      supports; unless noted otherwise, operands must be contiguous.
 *   3. "+=" outputs are added to, never overwritten. Other outputs are written in full.
 *   4. In place: an output may be the same view as an input listed in the op's in-place mask. Nothing else overlaps.
 *   5. An operand whose shapes end in ? may be absent: ndim == VIEW_ABSENT.
 *   6. The order of every sum is fixed by the shapes and the number of threads: a run repeats bit for bit.
 *   7. run() allocates nothing and does no shape work; prepare() may (primitives, tables), release() undoes it.
 * A kernel's result does not depend on the contents of scratch.
 */
#ifndef LS_KERNELS_KERNEL_H
#define LS_KERNELS_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "lockstep/dtype.h"
#include "lockstep/status.h"
#include "lockstep/tensor.h"
#include "kernels/op_list.h"

struct device;
struct device_access;
struct device_stream;

#define CALL_OPERANDS 8
#define CALL_ACCESSES (2 * CALL_OPERANDS + 1) /* operands and scratch */
#define VIEW_ABSENT   (-1)

/* op_list.h describes every op. */
enum op {
#define OP_ENUM(id, ...) OP_##id,
    OP_KERNEL_MAP(OP_ENUM)
#undef OP_ENUM
        OPS
};

enum unary { UNARY_RELU, UNARY_GELU_TANH, UNARY_GELU_ERF, UNARY_SILU };

/* RoPE with Llama 3's frequency scaling; factor 1 is plain RoPE. original: positions of the first training. */
struct rope {
    double theta, factor, low_freq_factor, high_freq_factor;
    int64_t original;
};

/* Stochastic rounding of an updated bf16 parameter: the 16 bits that bf16 lacks are added to rng_u32(seed, stream ^ t, index) >> 16, and
 * what is left of the sum below bf16 is dropped, so the expectation is the exact value. index: the element's in the complete parameter, so
 * it is rounded alike under every layout. Element i of the call is element j = first + i of this rank's part, which is element
 * begin + j / run * stride + j % run of the complete one. run 0: rounded to nearest. */
struct rounding {
    uint64_t seed, stream;
    size_t first, begin, run, stride;
};

/* *count: number of elements from i on that have consecutive indices. */
static inline uint64_t rounding_index(const struct rounding *r, size_t i, size_t *count)
{
    size_t j = r->first + i;

    *count = r->run - j % r->run;
    return r->begin + j / r->run * r->stride + j % r->run;
}

/* hyper[4] f32, written by the trainer each step: lr, 1/(1-beta1^t), 1/(1-beta2^t), t. cpu/ref/optim.c has the formulas of the updates. g
 * is multiplied by factor first. Weight decay and rounding are those of this parameter. */
struct optimizer_attr {
    float beta1, beta2, eps, weight_decay, momentum, trust;
    int nesterov, decoupled;
    double sign_rate; /* SIGN_STEP */
    struct rounding rounding;
};

/* Rows of a shard of a sequence: row r is row begin[0] + r of the complete sequence if r < first, else begin[1] + r - first. Zeros: the
 * complete sequence. */
struct shard_rows {
    size_t begin[2], first;
};

static inline size_t shard_row(const struct shard_rows *s, size_t r) { return r < s->first ? s->begin[0] + r : s->begin[1] + r - s->first; }

/* Dropout of attention's probabilities. With step[0], the number of the step, and step[1] (if given), the samples of the step before this
 * micro-batch, the probability of (sample b, head h, query t, key s) is kept, and divided by 1 - p, if rng_u32(seed, stream ^ step[0],
 * attention_drop_index(..)) >= attention_drop_threshold(p). head: the first head here of all `heads`; full: tokens of the complete
 * sequence; queries, keys: which of them are here. */
struct attention_drop {
    double p;
    uint64_t seed, stream;
    size_t heads, head, full;
    struct shard_rows queries, keys;
};

/* sample = b + step[1] */
static inline uint64_t attention_drop_index(const struct attention_drop *d, uint64_t sample, size_t h, size_t t, size_t s)
{
    return ((sample * d->heads + d->head + h) * d->full + shard_row(&d->queries, t)) * d->full + shard_row(&d->keys, s);
}

static inline uint32_t attention_drop_threshold(double p) { return p * 0x1p32 > UINT32_MAX ? UINT32_MAX : (uint32_t)(p * 0x1p32); }

struct op_attr {
    union {
        struct {
            double value;
        } scale;
        struct {
            enum unary kind;
        } unary;
        struct {
            double eps;
        } norm;
        struct rope rope; /* ROPE_TABLE */
        struct {
            int inverse;
        } rotate; /* ROPE: -1 times the angle */
        struct {
            int causal;
            double scale;
            struct attention_drop drop; /* with step */
        } attention;                    /* causal: query t sees keys <= t + S - T; with len: S is len[0] */
        struct {
            size_t first;
        } embedding; /* the first row or column of the vocabulary in this part */
        /* Element i is kept if rng_uniform(seed, stream ^ step[0], dropout_index(i)) >= p. full: x is [B,t,..], of [B,full,..] the rows
         * [begin[0], +count[0]) and after them [begin[1], +count[1]) of dim 1; 0: all of them. */
        struct {
            double p;
            uint64_t seed, stream, first;
            size_t full, begin[2], count[2];
        } dropout;
        struct {
            int dim, n;
            size_t grain;
        } blocks; /* into n blocks, [shard_begin(size, grain, i, n), shard_begin(.., i + 1, ..)) */
        struct {
            int dim;
        } concat;
        struct {
            int dim;
            size_t start;
        } pad;
        struct {
            int dim;
        } reduce;
        struct {
            double most;
        } clip;
        struct {
            size_t stride, padding;
        } conv; /* the same in both directions */
        struct {
            size_t height, width, stride, padding;
        } pool; /* its window */
        struct {
            int sigmoid, normalize, by_probability;
            size_t capacity;
            int share, shares;
        } route; /* capacity: tokens of a sample that an expert takes; 0: all. share, shares: for ROUTE_EXCESS */
        struct {
            int share, shares;
        } route_excess; /* counts tokens [T*share/shares, T*(share+1)/shares) of a sample; shares 0: all */
        struct {
            int sigmoid;
            double aux, z;
            size_t chosen, tokens;
        } router_loss; /* chosen: K; tokens: of a complete sample, T */
        struct {
            double filled;
        } grouped; /* share of the M rows that is expected to be used */
        struct {
            double eps, momentum;
            int fixed;
        } batch; /* fixed: stats come from BATCH_USE_STATS */
        struct optimizer_attr optim;
    };
};

/* One operand. ndim == VIEW_ABSENT: not given. Strides are in elements. */
struct view {
    void *data;
    ls_dtype dtype;
    int ndim;
    size_t size[LS_DIMS];
    ptrdiff_t stride[LS_DIMS];
};

struct call {
    enum op op;
    int nin, nout;
    struct view in[CALL_OPERANDS], out[CALL_OPERANDS];
    struct op_attr attr;
    void *scratch;                /* kernel->scratch(call) bytes, 64-byte aligned */
    void *state;                  /* what prepare() made */
    struct device_stream *stream; /* the stream it runs on; NULL: the default stream */
};

enum isa { ISA_ANY, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16, ISA_AMX, ISAS };

/* Of the entries that can run a call, the one of highest priority runs it. */
enum kernel_priority {
    PRIORITY_REFERENCE, /* correct for every call; slow */
    PRIORITY_DEVICE,    /* of a device other than the cpu: correct for every call that programs make */
    PRIORITY_LIBRARY,   /* another library's kernel if ours is at least as fast */
    PRIORITY_AVX2,      /* memory-bound kernels, one per instruction set */
    PRIORITY_AVX512,
    PRIORITY_BLOCKED, /* our blocked kernels on the register tile, which chooses its instruction set itself */
    PRIORITY_AMX      /* where it is faster than those: a library's on tile instructions; on a GPU, also ours for few queries */
};

struct kernel {
    enum op op;
    const char *name;   /* "avx512", "onednn", "reference"; one entry per op and name */
    const char *device; /* "cpu", "cuda": devices with these `kernels` run it; in every row */
    enum kernel_priority priority;
    enum isa isa;                            /* instruction set that the processor must have */
    bool (*accepts)(const struct call *c);   /* checks types, sizes, strides; not data pointers */
    size_t (*scratch)(const struct call *c); /* bytes; NULL: none */
    ls_status (*prepare)(struct call *c);    /* sets c->state; NULL: nothing to do */
    void (*release)(struct call *c);
    void (*run)(const struct call *c); /* on the cpu: computes; on another device: enqueues its work on c->stream */
    /* Leaves the bits of run(c[0]), .., run(c[n - 1]), which are of one stream, in fewer launches. No call touches what another one writes,
     * except a "+=" output that neighboring calls share; no two share scratch. NULL: every call is launched by itself. */
    void (*run_many)(const struct call *const *c, int n);
    /* The row whose kernel runs a prepared call instead of this one, whose library does not take it after all; NULL: this one runs. The
     * function is NULL in rows that run whatever they accept. */
    const struct kernel *(*instead)(const struct call *c);
};

/* Rows that come with a device's module: part[] are arrays as in kernel_table.c, ended by NULL. shape: KERNEL_ROWS_SHAPE of the module. */
struct kernel_rows {
    uint64_t shape;
    const struct kernel *const *part;
};
#define KERNEL_ROWS_SHAPE ((uint64_t)OPS << 40 ^ (uint64_t)sizeof(struct call) << 20 ^ sizeof(struct kernel))

#define KERNELS_END \
    {               \
        .op = OPS   \
    } /* ends an array of entries: it has no name */

const char *op_name(enum op op);
const char *op_shapes(enum op op); /* "x[R,K] w[N,K] b[N]? -> y[R,N]": the notation is that of op_list.h */
/* Start of shard r of a dim that is sharded n ways at multiples of grain (0 means 1); r = n: the end. */
static inline size_t shard_begin(size_t full, size_t grain, int r, int n)
{
    size_t g = grain ? grain : 1;

    return (size_t)((unsigned __int128)(full / g) * (unsigned)r / (unsigned)n) * g;
}

/* Global index of x's element i: attr.first, plus step[1] (if given) rows of the unsharded x's first dim that come before it, plus its
 * index in the unsharded x. *run: how many elements from i on have consecutive indices. */
uint64_t dropout_index(const struct call *c, size_t i, size_t *run);
unsigned op_inplace_mask(enum op op);

/* Adds the rows that come with d to the table, once. Fails if its module was built from other headers. */
ls_status kernel_table_add(const struct device *d);
/* Entry i of the table, in no particular order; NULL past the end. */
const struct kernel *kernel_at(int i);
/* The entry of highest priority that this device and processor can run (up to the ISA cap) and that accepts the call. Never NULL for
 * devices that run the cpu's kernels: the reference accepts everything. */
const struct kernel *kernel_choose(const struct call *c, const struct device *d);
bool kernel_is_cpu(const struct kernel *k); /* an entry for the processor */
/* Runs k, an entry for d, on c->stream. */
ls_status kernel_launch(const struct device *d, const struct kernel *k, const struct call *c); /* launch.c */
const char *kernel_that_runs(const struct kernel *k, const struct call *prepared);             /* its name: k's, or that of k->instead() */
/* Runs n calls by k->run_many(). access: room for CALL_ACCESSES of each. */
ls_status kernel_launch_many(const struct device *d, const struct kernel *k, const struct call *const *c, int n,
                             struct device_access *access);
const struct kernel *kernel_reference(enum op op);
/* The entry of op with that name, for any processor; NULL if there is none. */
const struct kernel *kernel_named(enum op op, const char *name);
bool kernels_exist(const char *name); /* an entry with that name, for any op */
enum isa isa_all(void);               /* the largest instruction set of this processor */
enum isa isa_best(void);              /* the largest that kernels may use under the cap */
void isa_cap(enum isa most);          /* option run.isa; ISAS, the default: the largest that this processor gains from */
/* The cap on the calling thread from now on, as in the processes for which it compiles programs; -1: isa_cap()'s. Returns what it was. */
int isa_assume(int most);
const char *isa_name(enum isa isa); /* "any", "avx2", "avx512", "avx512_bf16", "amx" */

/* Views */
size_t view_count(const struct view *v); /* elements; 0 when absent */
size_t view_bytes(const struct view *v); /* count * element size */
bool view_is_contiguous(const struct view *v);
bool view_given(const struct view *v);
/* The elements that v reaches, counted from data: [*low, *high]; false: none. v is given. */
bool view_reach(const struct view *v, ptrdiff_t *low, ptrdiff_t *high);
struct view view_of(void *data, ls_dtype type, int ndim, const size_t *size); /* contiguous */
size_t view_rows(const struct view *v);                                       /* product of all dims but the last */
size_t view_last(const struct view *v);                                       /* the last dim; 1 for a scalar */
struct view view_of_tensor(const ls_tensor *t);                               /* valid while t is */
/* v narrowed to [start, start + size) of dim; the same bytes. */
struct view view_narrow(const struct view *v, int dim, size_t start, size_t size);
/* The offset of element i in row-major order, from data, in elements. The walk from the last dim ends where the rest of i is 0. Divisions
 * of 32 bits are several times as fast as those of 64. */
static inline ptrdiff_t view_offset(const struct view *v, size_t i)
{
    ptrdiff_t offset = 0;
    int d = v->ndim - 1;

    for (; d > 0 && i > UINT32_MAX; d--) {
        offset += (ptrdiff_t)(i % v->size[d]) * v->stride[d];
        i /= v->size[d];
    }
    for (; d > 0 && i >= v->size[d]; d--) {
        uint32_t size = (uint32_t)v->size[d], left = (uint32_t)i / size;

        offset += (ptrdiff_t)((uint32_t)i - left * size) * v->stride[d];
        i = left;
    }
    return d < 0 ? 0 : offset + (ptrdiff_t)i * v->stride[d];
}

bool call_has_in(const struct call *c, int i); /* operand i was passed and is not absent */
bool call_has_out(const struct call *c, int i);

#endif
