/* seconds.c - see seconds.h. */
#include "plan/seconds.h"

#include "base/base.h"
#include "ir/op_info.h"

const char *seconds_kind_name(enum seconds_kind kind)
{
    static const char *const names[SECONDS_KINDS] = { "matmuls", "attention", "memory-bound kernels" };

    return names[kind];
}

static enum seconds_kind kind_of(const struct op_info *op)
{
    if (op->flops == flops_attention || op->flops == flops_attention_grad) return SECONDS_ATTENTION;
    return op->flops ? SECONDS_MATMUL : SECONDS_MEMORY;
}

/* The peak for the type of the first operand. A type without a peak is computed in f32. */
static double peak_of(const struct cluster *c, const ls_program *p, const struct instruction *i)
{
    ls_dtype type = i->nin && i->in[0].id ? p->values[i->in[0].id].dtype : LS_F32;
    double half = MAX(c->flops[LS_BF16], c->flops[LS_F16]);

    if (c->flops[type] > 0) return c->flops[type];
    if ((type == LS_BF16 || type == LS_F16) && half > 0) return half;
    return c->flops[LS_F32] > 0 ? c->flops[LS_F32] : half;
}

/* Attention by matmuls over the whole square of scores, which are written and read by every kernel on the way: in the forward 4 times (the
 * product, softmax in and out, the product with the values), in the backward 7 times. The gradient's matmuls are twice the forward's. */
static double scores_seconds(const struct cluster *c, const ls_program *p, const struct instruction *i, double peak)
{
    const struct value *q = &p->values[i->in[0].id];
    bool grad = op_info(i->op)->flops == flops_attention_grad;
    double head = (double)q->size[q->ndim - 1], gemm = i->flops / (grad ? 5 : 2); /* of the causal half */
    double scores = gemm / head * (double)ls_dtype_bytes(q->dtype), matmuls = (grad ? 8 : 4) * gemm;

    return matmuls / (peak * c->matmul) + (grad ? 7 : 4) * scores / (c->bandwidth * c->memory_bound);
}

bool seconds_work_of(const struct cluster *c, const ls_program *p, const struct instruction *i, struct seconds_work *out)
{
    const struct op_info *op = op_info(i->op);

    *out = (struct seconds_work){ .kind = kind_of(op) };
    double peak = peak_of(c, p, i);

    if (op->bytes) out->moved = (double)op->bytes(p, i) / (c->bandwidth * c->memory_bound);
    if (out->kind == SECONDS_MATMUL) out->computed = i->flops / (peak * c->matmul * (c->fp8 ? 2 : 1));
    if (out->kind == SECONDS_ATTENTION)
        out->computed = c->scores_written ? scores_seconds(c, p, i, peak) : i->flops / (peak * c->attention);
    return op->bytes || op->flops;
}

double seconds_of_work(const struct cluster *c, const struct seconds_work *w, double launches)
{
    return MAX(w->moved, w->computed) + c->launch * launches;
}

struct seconds_group seconds_group_of(const struct cluster *c, const struct mesh_position *at)
{
    int last = at->first + (at->size - 1) * at->stride, between = last / c->processors - at->first / c->processors + 1;

    return (struct seconds_group){ at->size, at->stride >= c->processors ? at->size : between };
}

double seconds_of_collective(const struct cluster *c, const struct seconds_group *g, ls_collective op, double bytes)
{
    double n = g->ranks, nodes = g->nodes, k = n / nodes; /* ranks of the group in a node */
    double node = c->node.bandwidth * c->link_share, network = c->network.bandwidth * c->link_share;
    double ring = nodes > 1 ? k > 1 ? MIN(node, k * network) : network : node, own = nodes > 1 ? network : node;
    double steps = (nodes - 1) * c->network.latency + (n - nodes) * c->node.latency;
    double step = nodes > 1 ? c->network.latency : c->node.latency, part = (n - 1) / n * bytes / ring;

    if (g->ranks <= 1) return 0;
    switch (op) {
    case LS_COLLECTIVE_ALL_REDUCE: return 2 * (steps + part);
    case LS_COLLECTIVE_ALL_GATHER:
    case LS_COLLECTIVE_REDUCE_SCATTER: return steps + part;
    case LS_COLLECTIVE_BROADCAST: return steps + bytes / ring;
    case LS_COLLECTIVE_ALL_TO_ALL: return step + MAX((k - 1) / n * bytes / node, (n - k) / n * bytes / network);
    default: return step + bytes / own;
    }
}
