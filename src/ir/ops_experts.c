/* ops_experts.c - mixtures of experts: routing, dispatch, matmuls of each expert's rows, combine; and their gradients.
 *
 *   routing = ls_route(logits)                which experts, with what weight, and the position of each choice's row
 *   load    = ls_route_load()                 how many tokens chose each expert
 *   rows    = ls_rows_permute(x)              [M,C]: a token's row once for each of its experts
 *   y       = ls_grouped_linear(rows, w)      expert e's rows times w[e]
 *   out     = ls_rows_unpermute(y)            the weighted sum of each token's rows
 *
 * The number of rows of an expert is known only at run time; M is the largest possible number of rows.
 */
#include "passes/gradient.h"

#include <string.h>
#include "runtime/store.h"

static bool is_integers(ls_program *p, const char *op, const char *name, ls_value x)
{
    if (!program_ok(p)) return false;
    if (!x.id || program_value(p, x)->dtype != LS_I32)
        return program_fail(p, "%s: operand %s is %s; i32 is expected", op, name,
                            x.id ? ls_dtype_name(program_value(p, x)->dtype) : "missing")
            .id;
    return true;
}

/* ---- routing ---- */

static bool is_exact(ls_program *p, const char *op, const char *name, ls_value x)
{
    if (!program_operand(p, op, name, x, LS_DTYPES)) return false;
    if (program_value(p, x)->dtype != LS_F32 && program_value(p, x)->dtype != LS_F64)
        return program_fail(p, "%s: %s is %s; routing is computed in f32 (ls_cast converts)", op, name,
                            ls_dtype_name(program_value(p, x)->dtype))
            .id;
    return true;
}

static bool route_operands(ls_program *p, const char *op, ls_value logits, ls_value samples)
{
    char shape[96];

    if (!is_exact(p, op, "logits", logits)) return false;
    if (program_value(p, logits)->ndim != 3)
        return program_fail(p, "%s: logits are %s; [B,T,E] is expected", op, value_shape(program_value(p, logits), shape)).id;
    if (samples.id && (program_value(p, samples)->dtype != LS_F32 || value_count(program_value(p, samples)) != 2))
        return program_fail(p, "%s: samples are %s; f32 [2] is expected", op, value_shape(program_value(p, samples), shape)).id;
    return true;
}

static bool route_options(ls_program *p, const ls_route_options *o, const struct value *logits, ls_value bias)
{
    size_t E = logits->size[2];

    if (o->chosen < 1 || o->chosen > E)
        return program_fail(p, "route: %zu of %zu experts are chosen; 1 to %zu are possible", o->chosen, E, E).id;
    if (bias.id && (program_value(p, bias)->ndim != 1 || program_value(p, bias)->size[0] != E))
        return program_fail(p, "route: the bias has %zu elements, there are %zu experts", value_count(program_value(p, bias)), E).id;
    return true;
}

size_t program_route_rows(size_t samples, size_t tokens, size_t experts, size_t chosen, size_t capacity)
{
    return samples * (capacity ? MIN(tokens * chosen, experts * MIN(capacity, tokens)) : tokens * chosen);
}

ls_routing ls_route(ls_program *p, ls_value logits, ls_value bias, ls_value samples, const ls_route_options *o)
{
    static const ls_routing none;
    struct op_attr attr = {
        .route = { .sigmoid = o->sigmoid, .normalize = o->normalize, .by_probability = o->by_probability, .capacity = o->capacity }
    };
    ls_routing r = { 0 };

    if (!route_operands(p, "route", logits, samples) || (bias.id && !program_operand(p, "route", "bias", bias, LS_DTYPES))) return none;
    logits = ls_contiguous(p, logits);
    if (!program_ok(p)) return none;
    struct value v = *program_value(p, logits);
    if (!route_options(p, o, &v, bias)) return none;
    r.experts = v.size[2];
    r.counts = program_new_value(p, "expert_counts", LS_I32, 2, (size_t[]){ 1, v.size[2] });
    r.size = program_route_rows(v.size[0], v.size[1], v.size[2], o->chosen, o->capacity);
    v.size[2] = o->chosen;
    r.weight = program_new_value(p, "expert_weight", v.dtype, 3, v.size);
    r.index = program_new_value(p, "expert_index", LS_I32, 3, v.size);
    r.rows = program_new_value(p, "expert_rows", LS_I32, 3, v.size);
    program_emit(p, OP_ROUTE, &attr, 3, (ls_value[]){ logits, bias, samples }, 2, (ls_value[]){ r.weight, r.index });
    program_emit(p, OP_ROUTE_ROWS, NULL, 1, &r.index, 2, (ls_value[]){ r.rows, r.counts });
    return program_ok(p) ? r : none;
}

ls_value ls_route_load(ls_program *p, const ls_routing *r, int by_sample)
{
    if (!is_integers(p, "route_load", "index", r->index)) return LS_NONE;
    ls_value load = program_new_value(p, "expert_load", program_value(p, r->weight)->dtype, 2,
                                      (size_t[]){ by_sample ? program_value(p, r->index)->size[0] : 1, r->experts });
    return program_emit(p, OP_ROUTE_LOAD, NULL, 1, &r->index, 1, &load);
}

ls_value ls_router_loss(ls_program *p, ls_value logits, const ls_routing *r, ls_value samples, const ls_router_loss_options *o)
{
    struct op_attr attr = { .router_loss = { .sigmoid = o->sigmoid, .aux = o->aux, .z = o->z } };

    if (!route_operands(p, "router_loss", logits, samples)) return LS_NONE;
    logits = ls_contiguous(p, logits);
    ls_value load = ls_route_load(p, r, !o->over_micro_batch);
    if (!program_ok(p)) return LS_NONE;
    if (o->over_micro_batch) program_value(p, load)->place[LS_AXIS_DP].kind = LS_PARTIAL; /* summed over all ranks' tokens */
    attr.router_loss.chosen = program_value(p, r->weight)->size[2];
    attr.router_loss.tokens = program_value(p, logits)->size[1];
    ls_value loss = program_new_value(p, "router_loss", program_value(p, logits)->dtype, 1, (size_t[]){ 1 });
    return program_emit(p, OP_ROUTER_LOSS, &attr, 3, (ls_value[]){ logits, load, samples }, 1, &loss);
}

ls_value ls_balance_bias(ls_program *p, const char *name, size_t experts, double rate)
{
    if (!(rate > 0)) return program_ok(p) ? program_fail(p, "balance_bias '%s': rate is %g; it must be above 0", name, rate) : LS_NONE;
    ls_value bias = ls_param(p, name, (ls_init){ LS_INIT_ZEROS, 0 }, 1, &experts);
    if (bias.id) store_set_sign_rate(p->store, (size_t)program_value(p, bias)->param, rate);
    return bias;
}

/* The bias's "gradient" is the excess of an expert's load over the mean, times the number of experts: an integer, whose sum over
 * micro-batches and ranks is that of the global batch in any order. The update uses only its sign. */
void gradient_route(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value logits = i->in[0], bias = i->in[1], in[] = { dy, logits, i->out[1] };
    struct op_attr excess = { .route_excess = { i->attr.route.share, i->attr.route.shares } };

    if (gradient_needs(g, logits)) gradient_give(g, logits, gradient_emit(g, OP_ROUTE_GRAD, &i->attr, 3, in, "route_grad", logits));
    if (bias.id) gradient_accumulate(g, OP_ROUTE_EXCESS, &excess, 1, &i->out[1], 1, &bias);
}

void gradient_router_loss(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value in[] = { i->in[0], i->in[1], i->in[2], dy };

    gradient_give(g, i->in[0], gradient_emit(g, OP_ROUTER_LOSS_GRAD, &i->attr, 4, in, "router_loss_grad", i->in[0]));
}

/* ---- rows ---- */

static bool rows_operands(ls_program *p, const char *op, ls_value x, ls_value rows, ls_value weight)
{
    if (!program_operand(p, op, "x", x, LS_DTYPES) || !is_integers(p, op, "rows", rows)) return false;
    if (weight.id && !program_operand(p, op, "weight", weight, LS_DTYPES)) return false;
    if (weight.id && !program_same_shape(p, weight, rows))
        return program_fail(p, "%s: %zu weights for %zu rows", op, value_count(program_value(p, weight)),
                            value_count(program_value(p, rows)))
            .id;
    return true;
}

ls_value ls_rows_permute(ls_program *p, ls_value x, const ls_routing *r)
{
    char xs[96], rs[96];

    if (!rows_operands(p, "rows_permute", x, r->rows, LS_NONE)) return LS_NONE;
    x = ls_contiguous(p, x);
    if (!program_ok(p)) return LS_NONE;
    struct value a = *program_value(p, x);
    struct value b = *program_value(p, r->rows);
    if (a.ndim != 3 || a.size[0] != b.size[0] || a.size[1] != b.size[1])
        return program_fail(p, "rows_permute: x is %s, rows are %s; [B,T,C] and [B,T,K] are expected", value_shape(&a, xs),
                            value_shape(&b, rs));
    ls_value y = program_new_value(p, "rows_permute", a.dtype, 2, (size_t[]){ r->size, a.size[2] });
    return program_emit(p, OP_ROWS_PERMUTE, NULL, 3, (ls_value[]){ x, r->rows, LS_NONE }, 1, &y);
}

ls_value ls_rows_unpermute(ls_program *p, ls_value y, const ls_routing *r)
{
    char shape[96];

    if (!rows_operands(p, "rows_unpermute", y, r->rows, r->weight)) return LS_NONE;
    y = ls_contiguous(p, y);
    if (!program_ok(p)) return LS_NONE;
    struct value a = *program_value(p, y);
    struct value b = *program_value(p, r->rows);
    if (a.ndim != 2 || a.size[0] != r->size)
        return program_fail(p, "rows_unpermute: y is %s; the routing has %zu rows", value_shape(&a, shape), r->size);
    ls_value x = program_new_value(p, "rows_unpermute", a.dtype, 3, (size_t[]){ b.size[0], b.size[1], a.size[1] });
    return program_emit(p, OP_ROWS_UNPERMUTE, NULL, 3, (ls_value[]){ y, r->rows, r->weight }, 1, &x);
}

void gradient_rows_permute(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value in[] = { dy, i->in[1], LS_NONE };

    gradient_give(g, i->in[0], gradient_emit(g, OP_ROWS_UNPERMUTE, NULL, 3, in, "rows_permute_grad", i->in[0]));
}

void gradient_rows_unpermute(struct gradient *g, const struct instruction *i, ls_value dx)
{
    ls_value y = i->in[0], rows = i->in[1], weight = i->in[2];

    if (gradient_needs(g, weight))
        gradient_give(g, weight, gradient_emit(g, OP_ROWS_DOT, NULL, 3, (ls_value[]){ dx, y, rows }, "expert_dweight", weight));
    if (gradient_needs(g, y))
        gradient_give(g, y, gradient_emit(g, OP_ROWS_PERMUTE, NULL, 3, (ls_value[]){ dx, rows, weight }, "rows_unpermute_grad", y));
}

/* ---- matmuls ---- */

ls_value ls_grouped_linear(ls_program *p, ls_value x, ls_value w, ls_value counts)
{
    struct op_attr attr = { .grouped = { 1 } };
    char xs[96], ws[96], cs[96];

    if (!program_operand(p, "grouped_linear", "x", x, LS_DTYPES) ||
        !program_operand(p, "grouped_linear", "w", w, program_value(p, x)->dtype) || !is_integers(p, "grouped_linear", "counts", counts))
        return LS_NONE;
    x = ls_contiguous(p, x);
    w = ls_contiguous(p, w);
    if (!program_ok(p)) return LS_NONE;
    struct value a = *program_value(p, x);
    struct value b = *program_value(p, w);
    struct value c = *program_value(p, counts);
    if (a.ndim != 2 || b.ndim != 3 || c.ndim != 2 || a.size[1] != b.size[2] || b.size[0] != c.size[1])
        return program_fail(p, "grouped_linear: x is %s, w is %s, counts are %s; [M,K], [E,N,K] and [S,E] are expected",
                            value_shape(&a, xs), value_shape(&b, ws), value_shape(&c, cs));
    ls_value y = program_new_value(p, "grouped_linear", a.dtype, 2, (size_t[]){ a.size[0], b.size[1] });
    return program_emit(p, OP_GROUPED_LINEAR, &attr, 3, (ls_value[]){ x, w, counts }, 1, &y);
}

void gradient_grouped_linear(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value x = i->in[0], w = i->in[1], counts = i->in[2];

    if (gradient_needs(g, x))
        gradient_give(g, x, gradient_emit(g, OP_GROUPED_LINEAR_DX, &i->attr, 3, (ls_value[]){ dy, w, counts }, "grouped_linear_dx", x));
    gradient_accumulate(g, OP_GROUPED_LINEAR_DW, &i->attr, 3, (ls_value[]){ dy, x, counts }, 1, &w);
}
