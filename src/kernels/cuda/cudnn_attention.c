/* cudnn_attention.c - see cudnn_attention.h; cpu/ref/attention.c has the formulas.
 *
 * Forward: s = scale q k^T, of query t only for the keys that it sees (else -inf), m = max(s), e = exp(s - m), lse = m + log(sum(e)),
 * o = (e / sum(e)) v. Gradient: p = exp(s - lse), dv = p^T do, ds = scale p (do v^T - sum(do o)), dk = ds^T q, dq = ds k. With fewer heads
 * of keys than of queries the gradients of keys and values are those of each query's head, summed.
 *
 * cuDNN recognizes its attention engines by the order and the shape of these operations, which is that of cudnn-frontend's nodes for cuDNN
 * 9.15 and later; nothing between them is in memory. The gradient has a form in which dq is added up by atomics, and one in which ds goes
 * through memory and sums have a fixed order (cudnn-frontend's "deterministic algorithm"); this is the second. It takes two bytes per pair
 * of query and key, so a call is made in parts of whole samples or groups of heads, whose pairs take at most cudnn_pairs_most bytes.
 */
#include "kernels/cuda/cudnn_attention.h"

#include <math.h>
#include "base/base.h"

enum { ELEMENTS_ALIGNED = 8, HEAD_MOST = 128, LENGTH_MOST = 1 << 20, TILE = 128, HALF_TILE = 64, ROOM = 1 << 20 };

size_t cudnn_pairs_most = 256 << 20; /* what cudnn-frontend allowed by default for such a workspace */

/* ---- operands ---- */

struct attention_sizes {
    int64_t B, T, S, H, G, D;
    cudnnDataType_t type;
};

static struct attention_sizes sizes_of(const struct call *c)
{
    const struct view *q = &c->in[0], *k = &c->in[1];

    return (struct attention_sizes){ .B = (int64_t)q->size[0],
                                     .T = (int64_t)q->size[1],
                                     .S = (int64_t)k->size[1],
                                     .H = (int64_t)q->size[2],
                                     .G = (int64_t)k->size[2],
                                     .D = (int64_t)q->size[3],
                                     .type = cudnn_type(q->dtype) };
}

/* [B,T,H,D] as B, H, T, D. The stride of a dim of one element has no meaning; it is made one that a tensor without gaps could have. */
static struct cudnn_operand cudnn_heads_of(const struct view *v, const struct attention_sizes *z)
{
    struct cudnn_operand x = { .type = z->type,
                               .size = { (int64_t)v->size[0], (int64_t)v->size[2], (int64_t)v->size[1], (int64_t)v->size[3] },
                               .stride = { v->stride[0], v->stride[2], v->stride[1], v->stride[3] } };

    if (v->size[2] == 1) x.stride[1] = x.size[3];
    if (v->size[1] == 1) x.stride[2] = x.stride[1] * x.size[1];
    if (v->size[0] == 1)
        x.stride[0] = x.stride[2] * x.size[2] > x.stride[1] * x.size[1] ? x.stride[2] * x.size[2] : x.stride[1] * x.size[1];
    return x;
}

static struct cudnn_operand transposed(struct cudnn_operand x)
{
    struct cudnn_operand y = x;

    y.size[2] = x.size[3];
    y.size[3] = x.size[2];
    y.stride[2] = x.stride[3];
    y.stride[3] = x.stride[2];
    return y;
}

static bool operand_is_accepted(const struct view *v, ls_dtype type)
{
    bool aligned = v->dtype == type && v->stride[3] == 1;

    for (int i = 0; i < 3; i++) aligned = aligned && (v->size[i] == 1 || (v->stride[i] > 0 && v->stride[i] % ELEMENTS_ALIGNED == 0));
    return aligned;
}

static size_t attention_round(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* Bytes of the pairs of so many samples and heads. */
static size_t pairs_bytes(const struct attention_sizes *z, int64_t samples, int64_t heads)
{
    return (size_t)(samples * heads) * attention_round((size_t)z->T, TILE) * attention_round((size_t)z->S, TILE) * 2;
}

/* Hopper's kernel of the gradient reads zeros in the rest of the last tile of queries, of HALF_TILE, and of keys, of TILE, and where S is a
 * multiple of HALF_TILE, it does not mask the scores there: exp(0 - lse) is infinite if lse is below -88.7, and dq (for keys,
 * cudnn-frontend #628) or dk and dv (for queries, #1072, where it was seen with one query) are NaN. A causal mask covers the keys. */
static bool gradient_is_masked(const struct attention_sizes *z, bool causal)
{
    return z->S % HALF_TILE != 0 || (z->T % HALF_TILE == 0 && (causal || z->S % TILE == 0));
}

bool cudnn_attention_accepts(const struct call *c)
{
    bool gradient = c->op == OP_ATTENTION_GRAD;
    struct attention_sizes z = sizes_of(c);
    ls_dtype type = c->in[0].dtype;
    int lse = gradient ? 4 : 1;

    if ((type != LS_BF16 && type != LS_F16) || call_has_in(c, gradient ? 6 : 3) || call_has_in(c, 4 + 3 * gradient)) return false;
    if (z.D % ELEMENTS_ALIGNED || z.D > HEAD_MOST || z.T < 2 || z.S < 2 || z.T > LENGTH_MOST || z.S > LENGTH_MOST || !z.B) return false;
    if ((c->attr.attention.causal && z.T > z.S) || c->attr.attention.scale <= 0) return false; /* a query that sees no key */
    for (int i = 0; i < (gradient ? 6 : 3); i++)
        if (i != lse && !operand_is_accepted(&c->in[i], type)) return false;
    for (int i = 0; i < (gradient ? 3 : 1); i++)
        if (!operand_is_accepted(&c->out[i], type)) return false;
    if (!view_is_contiguous(gradient ? &c->in[4] : &c->out[1]) || (gradient ? &c->in[4] : &c->out[1])->dtype != LS_F32) return false;
    return !gradient || (gradient_is_masked(&z, c->attr.attention.causal) && pairs_bytes(&z, 1, z.H / z.G) <= cudnn_pairs_most);
}

/* ---- parts ---- */

/* The largest divisor of n, so that as many units are at most `most`; at least 1. */
static int64_t divisor_within(int64_t n, size_t unit, size_t most)
{
    for (int64_t d = n; d > 1; d--)
        if (n % d == 0 && (size_t)d * unit <= most) return d;
    return 1;
}

/* Samples and groups of each part: all groups, or one sample. */
static void part_sizes(const struct attention_sizes *z, int64_t *samples, int64_t *groups)
{
    *groups = divisor_within(z->G, pairs_bytes(z, 1, z->H / z->G), cudnn_pairs_most);
    *samples = *groups == z->G ? divisor_within(z->B, pairs_bytes(z, 1, z->H), cudnn_pairs_most) : 1;
}

int cudnn_attention_parts(const struct call *c)
{
    struct attention_sizes z = sizes_of(c);
    int64_t samples, groups;

    if (c->op == OP_ATTENTION) return 1;
    part_sizes(&z, &samples, &groups);
    return (int)(z.B / samples * (z.G / groups));
}

struct call cudnn_attention_part(const struct call *c, int i)
{
    struct attention_sizes z = sizes_of(c);
    struct call part = *c;
    int64_t samples, groups;

    if (c->op == OP_ATTENTION) return part;
    part_sizes(&z, &samples, &groups);
    size_t sample = (size_t)(i / (z.G / groups) * samples);
    size_t group = (size_t)(i % (z.G / groups) * groups);
    for (int k = 0; k < c->nin + c->nout; k++) {
        struct view *v = k < c->nin ? &part.in[k] : &part.out[k - c->nin];
        int dim = v->ndim == 3 ? 1 : 2; /* lse: [B,H,T] */

        if (!view_given(v)) continue;
        size_t each = v->size[dim] / (size_t)z.G; /* heads of a group */
        *v = view_narrow(v, 0, sample, (size_t)samples);
        *v = view_narrow(v, dim, group * each, (size_t)groups * each);
    }
    return part;
}

/* On Blackwell the form of the graph does not decide: cudnn-frontend asks for one engine with settings of its own there. */
bool cudnn_attention_repeats(const struct call *c, int major) { return c->op == OP_ATTENTION || major < 10; }

size_t cudnn_attention_sums(const struct call *part) { return part->op == OP_ATTENTION ? 0 : view_rows(&part->in[0]) * sizeof(float); }

/* What cuDNN 9.19 takes for the graphs here, with ROOM for small things: the pairs and, of heads that share keys, the gradients of each. */
size_t cudnn_attention_workspace(const struct call *part)
{
    struct attention_sizes z = sizes_of(part);
    size_t heads = (size_t)(z.B * z.H);

    if (part->op == OP_ATTENTION) return ROOM;
    return pairs_bytes(&z, z.B, z.H) + (z.G < z.H ? 2 * sizeof(float) * heads * (size_t)z.D * attention_round((size_t)z.S, TILE) : 0) +
           ROOM;
}

/* ---- operations that both share ---- */

/* What is computed between two operations. */
struct attention_graph {
    struct cudnn_graph *g;
    struct attention_sizes z;
    const struct call *c;
};

static int between_of(const struct attention_graph *a, cudnnDataType_t type, int64_t rows, int64_t columns)
{
    struct cudnn_operand x = cudnn_contiguous(type, a->z.B, a->z.H, rows, columns);

    return cudnn_graph_between(a->g, &x);
}

static int pairs_between(const struct attention_graph *a, cudnnDataType_t type) { return between_of(a, type, a->z.T, a->z.S); }

static int rows_between(const struct attention_graph *a) { return between_of(a, CUDNN_DATA_FLOAT, a->z.T, 1); }

/* mode(x, b) for all pairs. */
static int pairs_of(const struct attention_graph *a, cudnnPointwiseMode_t mode, int x, int b)
{
    int y = pairs_between(a, CUDNN_DATA_FLOAT);

    cudnn_graph_pointwise(a->g, mode, CUDNN_DATA_FLOAT, x, b, CUDNN_NO_TENSOR, y);
    return y;
}

static int rows_reduced(const struct attention_graph *a, cudnnReduceTensorOp_t op, int x)
{
    int y = rows_between(a);

    cudnn_graph_reduce(a->g, op, x, y);
    return y;
}

/* The row of each pair, plus S - T: the last query sees all keys. */
static int row_index(const struct attention_graph *a, int x)
{
    static const cudnnPointwiseMode_t modes[] = { CUDNN_POINTWISE_ADD, CUDNN_POINTWISE_SUB };
    int y = pairs_between(a, CUDNN_DATA_INT32);

    cudnn_graph_index(a->g, 2, x, y);
    for (int k = 0; k < 2 && a->z.T != a->z.S; k++) {
        int moved = pairs_between(a, CUDNN_DATA_INT32), by = cudnn_graph_int(a->g, (int32_t)(k ? a->z.T : a->z.S));

        cudnn_graph_pointwise(a->g, modes[k], CUDNN_DATA_INT32, y, by, CUDNN_NO_TENSOR, moved);
        y = moved;
    }
    return y;
}

/* x, and -inf for keys that the query does not see. */
static int masked(const struct attention_graph *a, int x)
{
    if (!a->c->attr.attention.causal) return x;
    int row = row_index(a, x);
    int column = pairs_between(a, CUDNN_DATA_INT32);
    cudnn_graph_index(a->g, 3, x, column);
    int seen = pairs_between(a, CUDNN_DATA_BOOLEAN);
    cudnn_graph_pointwise(a->g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, column, CUDNN_NO_TENSOR, seen);
    int none = cudnn_graph_float(a->g, -INFINITY);
    int y = pairs_between(a, CUDNN_DATA_FLOAT);
    cudnn_graph_pointwise(a->g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, none, seen, y);
    return y;
}

/* scale q k^T; k: [B,G,D,S] */
static int scores(const struct attention_graph *a, int q, int k)
{
    int s = pairs_between(a, CUDNN_DATA_FLOAT);

    cudnn_graph_matmul(a->g, q, k, s);
    return pairs_of(a, CUDNN_POINTWISE_MUL, s, cudnn_graph_float(a->g, (float)a->c->attr.attention.scale));
}

static int operand_add(const struct attention_graph *a, const struct view *v, int at)
{
    struct cudnn_operand x = cudnn_heads_of(v, &a->z);

    return cudnn_graph_operand(a->g, &x, at);
}

static int operand_add_transposed(const struct attention_graph *a, const struct view *v, int at)
{
    struct cudnn_operand x = transposed(cudnn_heads_of(v, &a->z));

    return cudnn_graph_operand(a->g, &x, at);
}

/* [B,H,T] f32, whose samples are so far apart */
static int row_operand(const struct attention_graph *a, int64_t sample, int at)
{
    struct cudnn_operand x = cudnn_contiguous(CUDNN_DATA_FLOAT, a->z.B, a->z.H, a->z.T, 1);

    x.stride[0] = sample;
    x.alignment = sizeof(float); /* of a part that does not begin with the first head */

    return cudnn_graph_operand(a->g, &x, at);
}

/* ---- forward ---- */

static void forward_add(const struct attention_graph *a)
{
    const struct call *c = a->c;
    struct cudnn_graph *g = a->g;
    int q = operand_add(a, &c->in[0], ATTENTION_Q), k = operand_add_transposed(a, &c->in[1], ATTENTION_K);
    int v = operand_add(a, &c->in[2], ATTENTION_V), o = operand_add(a, &c->out[0], ATTENTION_O),
        lse = row_operand(a, c->out[1].stride[0], ATTENTION_LSE);
    int s = masked(a, scores(a, q, k)), most = rows_reduced(a, CUDNN_REDUCE_TENSOR_MAX, s);
    int e = pairs_of(a, CUDNN_POINTWISE_EXP, pairs_of(a, CUDNN_POINTWISE_SUB, s, most), CUDNN_NO_TENSOR);
    int sum = rows_reduced(a, CUDNN_REDUCE_TENSOR_ADD, e), log_sum = rows_between(a), p = pairs_between(a, a->z.type);

    cudnn_graph_pointwise(g, CUDNN_POINTWISE_LOG, CUDNN_DATA_FLOAT, sum, CUDNN_NO_TENSOR, CUDNN_NO_TENSOR, log_sum);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, most, log_sum, CUDNN_NO_TENSOR, lse);
    cudnn_graph_pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, e, sum, CUDNN_NO_TENSOR, p);
    cudnn_graph_matmul(g, p, v, o);
}

/* ---- gradient ---- */

/* x of pairs, transposed and rounded. */
static int pairs_transposed(const struct attention_graph *a, int x)
{
    struct cudnn_operand y = transposed(cudnn_contiguous(a->z.type, a->z.B, a->z.H, a->z.T, a->z.S));
    int to = cudnn_graph_between(a->g, &y);

    cudnn_graph_reshape(a->g, x, to);
    return to;
}

/* y = x^T b, of keys; heads that share keys are summed. */
static void keys_gradient(const struct attention_graph *a, int x, int b, const struct view *v, int at)
{
    int y = operand_add(a, v, at), pairs = pairs_transposed(a, x);

    if (a->z.G == a->z.H) {
        cudnn_graph_matmul(a->g, pairs, b, y);
        return;
    }
    int each = between_of(a, CUDNN_DATA_FLOAT, a->z.S, a->z.D);
    cudnn_graph_matmul(a->g, pairs, b, each);
    cudnn_graph_reduce(a->g, CUDNN_REDUCE_TENSOR_ADD, each, y);
}

/* sum(do o) of each query, which goes through memory */
static int row_sums(const struct attention_graph *a, int dout, int o)
{
    struct cudnn_operand like = cudnn_heads_of(&a->c->in[5], &a->z);
    int y = row_operand(a, a->z.H * a->z.T, ATTENTION_SUMS);

    like.type = CUDNN_DATA_FLOAT;
    int product = cudnn_graph_between(a->g, &like);
    cudnn_graph_pointwise(a->g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, dout, o, CUDNN_NO_TENSOR, product);
    int sum = rows_reduced(a, CUDNN_REDUCE_TENSOR_ADD, product);
    cudnn_graph_pointwise(a->g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, sum, cudnn_graph_float(a->g, 1), CUDNN_NO_TENSOR, y);
    return y;
}

static void gradient_add(const struct attention_graph *a)
{
    const struct call *c = a->c;
    struct cudnn_graph *g = a->g;
    struct cudnn_operand keys = cudnn_heads_of(&c->in[1], &a->z);
    int q = operand_add(a, &c->in[0], ATTENTION_Q), k = operand_add_transposed(a, &c->in[1], ATTENTION_K);
    int v = operand_add_transposed(a, &c->in[2], ATTENTION_V), o = operand_add(a, &c->in[3], ATTENTION_O);
    int lse = row_operand(a, c->in[4].stride[0], ATTENTION_LSE), dout = operand_add(a, &c->in[5], ATTENTION_DO),
        dq = operand_add(a, &c->out[0], ATTENTION_DQ);
    int sums = row_sums(a, dout, o), s = masked(a, pairs_of(a, CUDNN_POINTWISE_SUB, scores(a, q, k), lse));
    int p = pairs_of(a, CUDNN_POINTWISE_EXP, s, CUDNN_NO_TENSOR);

    keys_gradient(a, p, dout, &c->out[2], ATTENTION_DV);
    int dp = pairs_between(a, CUDNN_DATA_FLOAT);
    cudnn_graph_matmul(g, dout, v, dp);
    int ds = pairs_of(a, CUDNN_POINTWISE_MUL, pairs_of(a, CUDNN_POINTWISE_SUB, dp, sums), p);
    ds = pairs_of(a, CUDNN_POINTWISE_MUL, ds, cudnn_graph_float(g, (float)c->attr.attention.scale));
    keys_gradient(a, ds, q, &c->out[1], ATTENTION_DK);
    int rows = cudnn_graph_between(g, &keys);
    cudnn_graph_reshape(g, k, rows);
    cudnn_graph_matmul(g, ds, rows, dq);
}

struct cudnn_graph *cudnn_attention_graph(const struct call *c)
{
    struct attention_graph a = { cudnn_graph_new(), sizes_of(c), c };

    if (a.g && c->op == OP_ATTENTION) forward_add(&a);
    if (a.g && c->op == OP_ATTENTION_GRAD) gradient_add(&a);
    return a.g;
}
