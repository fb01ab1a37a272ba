/* seconds.c - see seconds.h. */
#include "plan/seconds.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "ir/op_info.h"

const char *seconds_kind_name(enum seconds_kind kind)
{
    static const char *const names[SECONDS_KINDS] = { "matmuls", "attention", "memory-bound kernels" };

    return names[kind];
}

const char *seconds_wait_name(int wait) { return wait == SECONDS_OFFLOAD ? "offload" : axis_name((ls_axis)wait); }

static enum seconds_kind seconds_kind_of(const struct op_info *op)
{
    if (op->flops == flops_attention || op->flops == flops_attention_grad) return SECONDS_ATTENTION;
    if (op->flops == flops_ring_attention || op->flops == flops_ring_attention_grad) return SECONDS_ATTENTION;
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

enum { TENSOR_CORE_BYTES = 16 };

/* Attention by matmuls over the whole square of scores, which are written and read by every kernel on the way: in the forward 4 times
 * (written by the first matmul, read and written by softmax, read by the second matmul), in the backward 7 times. The gradient's matmuls
 * are twice the forward's. Heads whose size is not a multiple of 16 bytes, which NVIDIA's guide to matmuls requires, are assumed to miss
 * the tensor cores and to run at fp32's rate (BLOOM's runs with heads of 108 and of 150 elements take that long). */
static double scores_seconds(const struct cluster *c, const ls_program *p, const struct instruction *i, double peak)
{
    const struct value *q = &p->values[i->in[0].id];
    bool grad = op_info(i->op)->flops == flops_attention_grad;
    double head = (double)q->size[q->ndim - 1], gemm = i->flops / (grad ? 5 : 2); /* FLOPs of one matmul over the causal half */
    double scores = gemm / head * (double)ls_dtype_bytes(q->dtype), matmuls = (grad ? 8 : 4) * gemm;

    if ((int64_t)head * (int64_t)ls_dtype_bytes(q->dtype) % TENSOR_CORE_BYTES && c->flops[LS_F32] > 0) peak = MIN(peak, c->flops[LS_F32]);
    return matmuls / (peak * c->matmul) + (grad ? 7 : 4) * scores / (c->bandwidth * c->memory_bound);
}

/* A number of Philox 4x32-10 for a mask, and its comparison. Measured on an AMD EPYC (Zen 4) by what dropout adds to the attention of GPT-2
 * 124M with 1,024 tokens: 60 to 71 FLOPs a number at the rate of f32 matmuls, in f32 and in bf16, forward and backward. */
static const double DRAW_FLOPS = 65;

/* Attention with dropout draws a number for each score of the causal half, once forward and again backward, on the units for f32. */
static double draws_seconds(const struct cluster *c, const ls_program *p, const struct instruction *i, double peak)
{
    bool grad = op_info(i->op)->flops == flops_attention_grad;
    const struct value *q = &p->values[i->in[0].id];
    int step = grad ? 6 : 4; /* the operand that keys the masks */

    if (i->nin <= step || !i->in[step].id) return 0;
    double scores = i->flops / (grad ? 10 : 4) / (double)q->size[q->ndim - 1];
    return scores * DRAW_FLOPS / (c->flops[LS_F32] > 0 ? c->flops[LS_F32] : peak);
}

bool seconds_curve_of(const ls_program *p, const struct instruction *i, char name[CURVE_NAME], double *size)
{
    const struct op_info *op = op_info(i->op);
    ls_value first = i->nin && i->in[0].id ? i->in[0] : i->out[0];

    if (!op->bytes && !op->flops) return false;
    snprintf(name, CURVE_NAME, "kernels.%s-%s", program_op_name(i->op), ls_dtype_name(p->values[first.id].dtype));
    *size = op->flops ? i->flops : (double)op->bytes(p, i);
    return *size > 0;
}

/* FLOPs of every key that the queries attend to: two matmuls in the forward, five in the backward. */
static double key_flops(const ls_program *p, const struct instruction *i)
{
    op_flops_fn *flops = op_info(i->op)->flops;
    bool grad = flops == flops_attention_grad || flops == flops_ring_attention_grad;

    return (grad ? 10 : 4) * (double)value_count(&p->values[i->in[0].id]);
}

/* How many times its FLOPs a matmul's units are busy for: they compute a tile of the output each, as many at once as there are units, so
 * the last tiles of a row, of a column and of all leave some idle. Of the usual tiles the one that is done first; a smaller one reads its
 * operands more often, which takes so much longer (the last column, assumed). */
static double tile_waste(const struct cluster *c, double rows, double columns)
{
    static const double ROUNDING = 1e-6; /* rounding of sizes that a search computes */
    static const double tiles[][3] = { { 128, 256, 1 },  { 256, 128, 1 },  { 128, 128, 1.05 }, { 64, 256, 1.1 },
                                       { 256, 64, 1.1 }, { 64, 128, 1.2 }, { 128, 64, 1.2 } };
    double best = INFINITY;

    for (size_t k = 0; k < COUNT_OF(tiles); k++) {
        double count = ceil(rows / tiles[k][0] - ROUNDING) * ceil(columns / tiles[k][1] - ROUNDING);

        best = MIN(best, ceil(count / c->units - ROUNDING) * c->units * tiles[k][0] * tiles[k][1] * tiles[k][2]);
    }
    return best / (rows * columns);
}

/* Seconds of the kernels of a loss that is not fused with the head. The gradient's instruction may compute the loss, too. */
static double logits_seconds(const struct cluster *c, const ls_program *p, const struct instruction *i)
{
    bool grad = op_info(i->op)->flops == flops_linear_xent_grad, loss = op_info(i->op)->flops == flops_linear_xent;

    if (!c->logit_bytes[0] || (!grad && !loss)) return 0;
    const struct value *x = &p->values[i->in[0].id];
    double logits = flops_linear(p, i, false) / 2 / (double)x->size[x->ndim - 1];
    double bytes = (grad ? c->logit_bytes[1] : 0) + (loss || i->out[2].id ? c->logit_bytes[0] : 0);
    return logits * bytes / (c->bandwidth * c->memory_bound);
}

/* The matmuls of the blocks: runs in low precision keep the head in half precision. */
static bool is_low_precision(const struct cluster *c, const struct instruction *i) { return c->low_precision > 0 && i->block > 0; }

/* The weight gradient casts nothing: it uses the operands that the other two matmuls have cast. */
double seconds_of_cast(const struct cluster *c, const ls_program *p, const struct instruction *i)
{
    op_flops_fn *flops = op_info(i->op)->flops;
    bool grouped = flops == flops_grouped_linear || flops == flops_grouped_linear_dx;

    if (!is_low_precision(c, i) || (!grouped && flops != flops_linear && flops != flops_linear_dx)) return 0;
    double elements = (grouped ? i->attr.grouped.filled : 1) * (double)value_count(&p->values[i->in[0].id]);
    return elements * c->cast_bytes / (c->bandwidth * c->memory_bound);
}

/* The output of a plain matmul; grouped ones and the loss have further matmuls inside. */
static void take_tiles(const ls_program *p, const struct instruction *i, struct seconds_work *out)
{
    op_flops_fn *flops = op_info(i->op)->flops;
    const struct value *x = &p->values[i->out[0].id];

    if (flops != flops_linear && flops != flops_linear_dx && flops != flops_linear_dw && flops != flops_matmul) return;
    if (!x->ndim || !value_count(x)) return;
    out->columns = (double)x->size[x->ndim - 1];
    out->rows = (double)value_count(x) / out->columns;
}

bool seconds_work_of(const struct cluster *c, const ls_program *p, const struct instruction *i, struct seconds_work *out)
{
    const struct op_info *op = op_info(i->op);

    *out = (struct seconds_work){ .kind = seconds_kind_of(op) };
    if (c->curves) {
        const struct cluster_curve *curve;
        char name[CURVE_NAME];
        double size;

        if (!seconds_curve_of(p, i, name, &size)) return false;
        if ((curve = cluster_find_curve(c, name))) {
            out->computed = cluster_curve_at(curve, size);
            if (out->kind == SECONDS_ATTENTION) out->computed += draws_seconds(c, p, i, peak_of(c, p, i));
            return true;
        }
    }
    double peak = peak_of(c, p, i), low = is_low_precision(c, i) ? c->low_precision : 1;

    if (op->bytes) out->moved = (double)op->bytes(p, i) / (c->bandwidth * c->memory_bound);
    if (out->kind == SECONDS_MATMUL) out->computed = i->flops / (peak * c->matmul * low);
    if (out->kind == SECONDS_MATMUL) out->computed += logits_seconds(c, p, i);
    if (out->kind == SECONDS_MATMUL && c->units) take_tiles(p, i, out);
    if (out->kind == SECONDS_ATTENTION)
        out->computed = c->scores_written ? scores_seconds(c, p, i, peak) : (i->flops + c->query * key_flops(p, i)) / (peak * c->attention);
    if (out->kind == SECONDS_ATTENTION) out->computed += draws_seconds(c, p, i, peak);
    return op->bytes || op->flops;
}

double seconds_of_work(const struct cluster *c, const struct seconds_work *w, double launches)
{
    double waste = c->units && w->rows > 0 ? tile_waste(c, w->rows, w->columns) : 1;

    return MAX(w->moved, waste * w->computed) + c->launch * launches;
}

/* How many blocks of `of` neighboring ranks contain ranks of the group. */
static int seconds_blocks_of(const struct mesh_position *at, int of)
{
    int last = at->first + (at->size - 1) * at->stride;

    return at->stride >= of ? at->size : last / of - at->first / of + 1;
}

struct seconds_group seconds_group_of(const struct cluster *c, const struct mesh_position *at)
{
    return (struct seconds_group){ at->size, seconds_blocks_of(at, c->processors),
                                   c->pod ? seconds_blocks_of(at, c->pod * c->processors) : 1, 1 };
}

static const struct cluster_curve *collective_curve(const struct cluster *c, const struct seconds_group *g, ls_collective op)
{
    char name[CURVE_NAME];

    if (!c->curves || g->nodes > 1) return NULL;
    snprintf(name, sizeof name, "collectives.%s-%d", ls_collective_name(op == LS_COLLECTIVE_RECV ? LS_COLLECTIVE_SEND : op), g->ranks);
    return cluster_find_curve(c, name);
}

/* Bytes/s of a ring over several nodes, from what one over all of their processors reaches; 0: not measured. Where only all-reduce was, its
 * bus bandwidth is that of gathers, too; what gathers reach says less of an all-reduce, which has other algorithms. */
static double measured_ring(const struct cluster *c, const struct seconds_group *g, ls_collective op)
{
    bool reduces = op == LS_COLLECTIVE_ALL_REDUCE, gathers = op == LS_COLLECTIVE_ALL_GATHER || op == LS_COLLECTIVE_REDUCE_SCATTER;

    if (!c->curves || g->nodes <= 1 || (!reduces && !gathers)) return 0;
    const struct cluster_curve *x = reduces ? NULL : cluster_find_curve(c, "network.all_gather");
    if (!x) x = cluster_find_curve(c, "network.all_reduce");
    if (!x) return 0;
    double nodes = MIN(MAX(g->nodes, x->size[0]), x->size[x->points - 1]), k = (double)g->ranks / g->nodes;
    return cluster_curve_at(x, nodes) * k / c->processors / g->slowed;
}

double seconds_of_collective(const struct cluster *c, const struct seconds_group *g, ls_collective op, double bytes)
{
    const struct cluster_curve *curve = collective_curve(c, g, op);
    double n = g->ranks, nodes = g->nodes, pods = g->pods, k = n / nodes; /* k ranks of the group in a node */
    double node = c->node.bandwidth * c->link_share, network = c->network.bandwidth * c->link_share / g->slowed;
    double spine = pods > 1 ? c->spine.bandwidth * c->link_share / g->slowed : network;
    double out = pods > 1 ? MIN(k * network, n / pods * spine) : k * network; /* what leaves a node on its way around */
    double measured = measured_ring(c, g, op), shared = k > 1 ? MIN(node, out) : out;
    double ring = measured > 0 ? measured : nodes > 1 ? shared : node, own = nodes > 1 ? MIN(network, spine) : node;
    double between = (nodes - pods) * c->network.latency + (pods - 1) * c->spine.latency;
    double steps = between + (n - nodes) * c->node.latency;
    double step = pods > 1 ? c->spine.latency : nodes > 1 ? c->network.latency : c->node.latency, part = (n - 1) / n * bytes / ring;

    if (g->ranks <= 1) return 0;
    if (curve) return cluster_curve_at(curve, bytes);
    if (c->nccl && nccl_knows(op)) {
        struct nccl_group of = { .generation = c->nccl,
                                 .ranks = g->ranks,
                                 .nodes = g->nodes,
                                 .ring = ring,
                                 .between = measured > 0 ? measured : out,
                                 .further = between - (nodes - 1) * NCCL_NETWORK,
                                 .nvls = c->nvls };

        return nccl_seconds(&of, op, bytes);
    }
    switch (op) {
    case LS_COLLECTIVE_ALL_REDUCE: return 2 * (steps + part);
    case LS_COLLECTIVE_ALL_GATHER:
    case LS_COLLECTIVE_REDUCE_SCATTER: return steps + part;
    case LS_COLLECTIVE_BROADCAST: return steps + bytes / ring;
    case LS_COLLECTIVE_ALL_TO_ALL: return step + MAX((k - 1) / n * bytes / node, (n - k) / n * bytes / own);
    default: return step + bytes / own;
    }
}

double seconds_of_copy(const struct cluster *c, struct seconds_copy copy, double bytes)
{
    double rate = c->offload.bandwidth;

    if (copy.file) rate = MIN(rate, copy.save ? c->offload.write : c->offload.read);
    return bytes / rate;
}
