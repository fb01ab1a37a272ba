/* cost.c - what an instruction costs: floating-point operations, and bytes read and written; and the cost of a program.
 *
 * A multiply-add is two operations; elementwise passes over memory count none.
 *
 * Causal attention computes the visible half: query t sees t + 1 + S - T keys. The backward of a matmul is two matmuls. What a kernel
 * recomputes internally (attention's scores, the logits without fuse_loss) is included in flops_of, which HFU uses, and not in
 * flops_of_model, which MFU uses (Korthikanti et al. 2022, section 5).
 */
#include "ir/op_info.h"
#include "runtime/store.h"

static double size(const ls_program *p, ls_value v, int dim) { return (double)p->values[v.id].size[dim]; }

static double cost_rows(const ls_program *p, ls_value v)
{
    const struct value *x = &p->values[v.id];

    return (double)value_count(x) / (double)MAX(x->size[x->ndim - 1], 1);
}

static double last(const ls_program *p, ls_value v) { return size(p, v, p->values[v.id].ndim - 1); }

/* One matmul over all visible (query, key) pairs of all heads: 2 * pairs * D. */
static double attention_gemm(const ls_program *p, const struct instruction *i)
{
    double b = size(p, i->in[0], 0), t = size(p, i->in[0], 1), h = size(p, i->in[0], 2), d = size(p, i->in[0], 3);
    double s = size(p, i->in[1], 1), pairs = i->attr.attention.causal ? t * (s - t) + t * (t + 1) / 2 : t * s;

    return 2.0 * b * h * pairs * d;
}

/* The same if this rank has t of the T queries: their share of all pairs, or the average share if the chunks are balanced. */
static double ring_gemm(const ls_program *p, const struct instruction *i)
{
    double b = size(p, i->in[0], 0), t = size(p, i->in[0], 1), h = size(p, i->in[0], 2), d = size(p, i->in[0], 3);
    double length = (double)instruction_across(i)->full, keys = i->attr.attention.causal ? (length + 1) / 2 : length;

    return 2.0 * b * h * t * keys * d;
}

/* Every output [B,O,OH,OW] takes w's [C,KH,KW] multiply-adds, including those with padding. */
static double convolution(const ls_program *p, ls_value y, ls_value w)
{
    return 2.0 * (double)value_count(&p->values[y.id]) * size(p, w, 1) * size(p, w, 2) * size(p, w, 3);
}

double flops_linear(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return 2.0 * cost_rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 0);
}

double flops_linear_dx(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return 2.0 * cost_rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 1);
}

double flops_linear_dw(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return 2.0 * cost_rows(p, i->in[0]) * last(p, i->in[0]) * last(p, i->in[1]);
}

/* Based on the expected number of rows. */
double flops_grouped_linear(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return 2.0 * i->attr.grouped.filled * cost_rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 1);
}

double flops_grouped_linear_dx(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return 2.0 * i->attr.grouped.filled * cost_rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 2);
}

double flops_grouped_linear_dw(const ls_program *p, const struct instruction *i, bool inside)
{
    return i->attr.grouped.filled * flops_linear_dw(p, i, inside);
}

double flops_matmul(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return 2.0 * (double)value_count(&p->values[i->out[0].id]) * last(p, i->in[0]);
}

double flops_attention(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return 2.0 * attention_gemm(p, i);
}

double flops_attention_grad(const ls_program *p, const struct instruction *i, bool inside)
{
    return (inside ? 5.0 : 4.0) * attention_gemm(p, i);
}

double flops_ring_attention(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return 2.0 * ring_gemm(p, i);
}

double flops_ring_attention_grad(const ls_program *p, const struct instruction *i, bool inside)
{
    return (inside ? 5.0 : 4.0) * ring_gemm(p, i);
}

double flops_linear_xent(const ls_program *p, const struct instruction *i, bool inside) { return flops_linear(p, i, inside); }

/* Matmuls for the logits (including the forward if it also computes the loss), dx, dw. */
double flops_linear_xent_grad(const ls_program *p, const struct instruction *i, bool inside)
{
    int matmuls = (inside || i->out[2].id ? 1 : 0) + (i->out[0].id ? 1 : 0) + (i->out[1].id ? 1 : 0);

    return matmuls * flops_linear(p, i, inside);
}

double flops_conv2d(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return convolution(p, i->out[0], i->in[1]);
}

double flops_conv2d_dx(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return convolution(p, i->in[0], i->in[1]);
}

double flops_conv2d_dw(const ls_program *p, const struct instruction *i, bool inside)
{
    (void)inside;
    return convolution(p, i->in[0], i->out[0]);
}

static double cost_count(const ls_program *p, const struct instruction *i, bool inside)
{
    return op_info(i->op)->flops ? op_info(i->op)->flops(p, i, inside) : 0;
}

double flops_of(const ls_program *p, const struct instruction *i) { return cost_count(p, i, true); }
double flops_of_model(const ls_program *p, const struct instruction *i) { return cost_count(p, i, false); }

/* ---- bytes ---- */

static size_t bytes_of_value(const ls_program *p, ls_value v)
{
    return v.id ? value_count(&p->values[v.id]) * ls_dtype_bytes(p->values[v.id].dtype) : 0;
}

size_t bytes_operands(const ls_program *p, const struct instruction *i)
{
    size_t bytes = 0;

    for (int k = 0; k < i->nin; k++) bytes += bytes_of_value(p, i->in[k]);
    for (int k = 0; k < i->nout; k++) bytes += bytes_of_value(p, i->out[k]);
    return bytes;
}

/* Only the rows of w that are looked up. */
size_t bytes_embedding(const ls_program *p, const struct instruction *i)
{
    return bytes_of_value(p, i->in[0]) + 2 * bytes_of_value(p, i->out[0]);
}

/* The rows of dw that are added to are read and written. */
size_t bytes_embedding_dw(const ls_program *p, const struct instruction *i)
{
    size_t row = ls_dtype_bytes(p->values[i->out[0].id].dtype);

    return bytes_of_value(p, i->in[0]) + bytes_of_value(p, i->in[1]) + 2 * value_count(&p->values[i->in[0].id]) * row;
}

/* The rows of the cache that are replaced. */
size_t bytes_cache_write(const ls_program *p, const struct instruction *i)
{
    return 2 * bytes_of_value(p, i->in[0]) + bytes_of_value(p, i->in[1]);
}

size_t instruction_bytes(const ls_program *p, const struct instruction *i)
{
    return op_info(i->op)->bytes ? op_info(i->op)->bytes(p, i) : 0;
}

/* ---- the cost of a program ---- */

ls_cost ls_program_cost(const ls_program *p)
{
    ls_cost c = { .activations = program_activation_bytes(p),
                  .communication = p->results.arena_bytes[ARENA_COMMUNICATION],
                  .live_peak = p->results.live_peak };

    for (int s = 0; s < SEG_OPTIMIZER; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];
            double model = i->phase == LS_PHASE_RECOMPUTE ? 0.0 : flops_of_model(p, i);

            *(s == SEG_FORWARD ? &c.forward_flops : &c.backward_flops) += model;
            c.recompute_flops += flops_of(p, i) - model;
        }
    c.model_flops = c.forward_flops + c.backward_flops;
    store_bytes(p->store, &c.parameters, &c.gradients, &c.optimizer, &c.offload, &c.offload_file);
    return c;
}
