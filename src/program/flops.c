/* flops.c - floating-point operations of an instruction: a multiply-add is two; passes over memory count none.
 *
 * Causal attention computes the visible half: query t sees t + 1 + S - T keys. The backward of a product is two products.
 * What a kernel makes again for itself (attention's scores, the logits without fuse_loss) is in flops_of, which HFU
 * counts, and not in flops_of_model, which MFU counts (Korthikanti et al. 2022, section 5).
 */
#include "program/program.h"
#include "program/store.h"

static double size(const ls_program *p, ls_value v, int dim) { return (double)p->values[v.id].size[dim]; }

static double rows(const ls_program *p, ls_value v)
{
    const struct value *x = &p->values[v.id];

    return (double)value_count(x) / (double)MAX(x->size[x->ndim - 1], 1);
}

static double last(const ls_program *p, ls_value v) { return size(p, v, p->values[v.id].ndim - 1); }

/* One product over all visible (query, key) pairs of all heads: 2 * pairs * D. */
static double attention_product(const ls_program *p, const struct instruction *i)
{
    double b = size(p, i->in[0], 0), t = size(p, i->in[0], 1), h = size(p, i->in[0], 2), d = size(p, i->in[0], 3);
    double s = size(p, i->in[1], 1), pairs = i->attr.attention.causal ? t * (s - t) + t * (t + 1) / 2 : t * s;

    return 2.0 * b * h * pairs * d;
}

/* The same where this rank has t of the T queries: their share of all pairs, or what each rank has where the pieces are balanced. */
static double ring_product(const ls_program *p, const struct instruction *i)
{
    double b = size(p, i->in[0], 0), t = size(p, i->in[0], 1), h = size(p, i->in[0], 2), d = size(p, i->in[0], 3);
    double whole = (double)i->across.whole, keys = i->attr.attention.causal ? (whole + 1) / 2 : whole;

    return 2.0 * b * h * t * keys * d;
}

/* Every output [B,O,OH,OW] takes w's [C,KH,KW] multiply-adds, those with the padding counted. */
static double convolution(const ls_program *p, ls_value y, ls_value w)
{
    return 2.0 * (double)value_count(&p->values[y.id]) * size(p, w, 1) * size(p, w, 2) * size(p, w, 3);
}

static double count(const ls_program *p, const struct instruction *i, bool again)
{
    switch (i->op) {
    case OP_LINEAR:
        return 2.0 * rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 0);
    case OP_LINEAR_DX:
        return 2.0 * rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 1);
    case OP_LINEAR_DW:
        return 2.0 * rows(p, i->in[0]) * last(p, i->in[0]) * last(p, i->in[1]);
    case OP_GROUPED_LINEAR:  /* of the rows that are expected */
        return 2.0 * i->attr.grouped.filled * rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 1);
    case OP_GROUPED_LINEAR_DX:
        return 2.0 * i->attr.grouped.filled * rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 2);
    case OP_GROUPED_LINEAR_DW:
        return 2.0 * i->attr.grouped.filled * rows(p, i->in[0]) * last(p, i->in[0]) * last(p, i->in[1]);
    case OP_MATMUL:
        return 2.0 * (double)value_count(&p->values[i->out[0].id]) * last(p, i->in[0]);
    case OP_ATTENTION:
        return 2.0 * attention_product(p, i);
    case OP_ATTENTION_GRAD:
        return (again ? 5.0 : 4.0) * attention_product(p, i);
    case OP_RING_ATTENTION:
        return 2.0 * ring_product(p, i);
    case OP_RING_ATTENTION_GRAD:
        return (again ? 5.0 : 4.0) * ring_product(p, i);
    case OP_LINEAR_XENT:
    case OP_VOCAB_XENT:
        return 2.0 * rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 0);
    case OP_LINEAR_XENT_GRAD:
    case OP_VOCAB_XENT_GRAD: {  /* logits (the forward itself when it also makes the loss), dx, dw */
        int products = (again || i->out[2].id ? 1 : 0) + (i->out[0].id ? 1 : 0) + (i->out[1].id ? 1 : 0);

        return 2.0 * products * rows(p, i->in[0]) * last(p, i->in[0]) * size(p, i->in[1], 0);
    }
    case OP_CONV2D:
        return convolution(p, i->out[0], i->in[1]);
    case OP_CONV2D_DX:
        return convolution(p, i->in[0], i->in[1]);
    case OP_CONV2D_DW:
        return convolution(p, i->in[0], i->out[0]);
    default:
        return 0.0;
    }
}

double flops_of(const ls_program *p, const struct instruction *i) { return count(p, i, true); }
double flops_of_model(const ls_program *p, const struct instruction *i) { return count(p, i, false); }

ls_cost ls_program_cost(const ls_program *p)
{
    ls_cost c = { .activations = program_activation_bytes(p), .communication = p->arena_bytes[ARENA_COMMUNICATION], .live_peak = p->live_peak };

    for (int s = 0; s < SEG_OPTIMIZER; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];
            double model = i->phase == PHASE_RECOMPUTE ? 0.0 : flops_of_model(p, i);

            *(s == SEG_FORWARD ? &c.forward_flops : &c.backward_flops) += model;
            c.recompute_flops += flops_of(p, i) - model;
        }
    c.model_flops = c.forward_flops + c.backward_flops;
    store_bytes(p->store, &c.parameters, &c.gradients, &c.optimizer, &c.offload);
    return c;
}
