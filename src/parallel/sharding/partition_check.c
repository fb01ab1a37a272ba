/* partition_check.c - verifies a partitioned forward: each operand must have, on every axis, a type that its op allows.
 *
 *     most ops           R, R -> R      ~R, ~R -> ~R      S, S or ~R -> S      values without a gradient combine with anything
 *     linear functions   P, P -> P     (partial maxima: copies, views, maxima)
 *     matmuls            ~R, w sharded by rows -> S;   S, w sharded by columns -> P
 *     redistributions    as in the table in ir.h, over the ranks of their axis
 *
 * An R operand combined with S or ~R means that an all-reduce was forgotten: its gradient here is a partial sum, but R says it is not.
 * The check does not use how the rules arrived at their placements.
 */
#include "parallel/sharding/partition.h"

#include "ir/op_info.h"

enum type { FREE, REPLICATED, PARTIAL_GRADIENT, SHARDED, PARTIAL }; /* FREE: no gradient flows through it; then R, ~R, S, P */

static enum type partition_check_type_of(const struct partitioner *c, ls_value v, ls_axis a)
{
    const ls_placement *at = &c->p->values[v.id].place[a];

    if (!v.id) return FREE;
    if (at->kind != LS_REPLICATE) return at->kind == LS_SHARD ? SHARDED : PARTIAL;
    return !c->sharding[v.id].needs_grad ? FREE : at->partial_gradient ? PARTIAL_GRADIENT : REPLICATED;
}

static ls_status wrong(const struct partitioner *c, const struct instruction *i, ls_axis a, ls_value v, const char *why)
{
    static const char *const names[] = { "replicated", "replicated", "replicated with a partial gradient", "sharded", "a partial sum" };
    bool max = v.id && c->p->values[v.id].place[a].kind == LS_PARTIAL && c->p->values[v.id].place[a].redop == LS_MAX;
    const struct value *x = &c->p->values[v.id];
    char shape[96];

    return ls_fail(LS_EINVAL, "placement check: %s%s%s over %s: '%s' %s is %s: %s", c->p->blocks[i->block] ? c->p->blocks[i->block] : "",
                   i->block ? ": " : "", instruction_name(i), axis_name(a), x->name, value_shape(x, shape),
                   max ? "a partial max" : names[partition_check_type_of(c, v, a)], why);
}

static bool is_sharded_along(const struct partitioner *c, ls_value v, ls_axis a, int dim)
{
    return partition_check_type_of(c, v, a) == SHARDED && c->p->values[v.id].place[a].dim == dim;
}

/* ---- one rule per kind of op ---- */

/* FREE matches both R and ~R. */
static bool partition_check_fits(enum type has, enum type expected)
{
    return has == expected || (has == FREE && (expected == REPLICATED || expected == PARTIAL_GRADIENT));
}

static ls_redop redop_of(const struct partitioner *c, ls_value v, ls_axis a) { return c->p->values[v.id].place[a].redop; }

static ls_status check_move(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    static const struct {
        enum type from, to;
        const char *why;
    } kinds[] = {
        [MOVE_IDENTITY] = { REPLICATED, PARTIAL_GRADIENT,
                            "only a replicated value with a replicated gradient can be given a partial gradient" },
        [MOVE_ALL_REDUCE] = { PARTIAL, REPLICATED, "it is not a partial sum: it has been reduced already, or needs no reduction" },
        [MOVE_ALL_GATHER] = { SHARDED, PARTIAL_GRADIENT, "only a sharded value can be gathered" },
        [MOVE_REDUCE_SCATTER] = { PARTIAL, SHARDED, "it is not a partial sum: it has been reduced already, or needs no reduction" },
        [MOVE_SHARD] = { REPLICATED, SHARDED, "only a replicated value with a replicated gradient can be sharded" },
        [MOVE_UNSHARD] = { SHARDED, REPLICATED, "only a sharded value can be gathered" },
        [MOVE_SHARD_PARTIAL] = { PARTIAL_GRADIENT, SHARDED, "its gradient is not a partial sum" },
        [MOVE_ALL_TO_ALL] = { SHARDED, SHARDED, "only a sharded value can be exchanged" },
    };

    const struct move *m = instruction_move(i);

    if (a != m->axis)
        return partition_check_type_of(c, i->in[0], a) == partition_check_type_of(c, i->out[0], a)
                   ? LS_OK
                   : wrong(c, i, a, i->out[0], "a redistribution changes only one axis");
    if (m->comm != c->comm[a]) return wrong(c, i, a, i->in[0], "it is redistributed over the ranks of another axis");
    if (!partition_check_fits(partition_check_type_of(c, i->in[0], a), kinds[m->kind].from))
        return wrong(c, i, a, i->in[0], kinds[m->kind].why);
    if (partition_check_type_of(c, i->in[0], a) == PARTIAL && m->redop != redop_of(c, i->in[0], a))
        return wrong(c, i, a, i->in[0],
                     m->redop == LS_MAX ? "it is a partial sum, but reduced by max" : "it is a partial max, but reduced by sum");
    if (!partition_check_fits(partition_check_type_of(c, i->out[0], a), kinds[m->kind].to))
        return wrong(c, i, a, i->out[0], "this is not the result of the redistribution");
    return LS_OK;
}

/* The type that results from combining operands [0, n). */
static ls_status combine_operands(const struct partitioner *c, const struct instruction *i, ls_axis a, int n, enum type *out)
{
    int same = -1, partial = -1, other = -1;

    *out = FREE;
    for (int k = 0; k < n; k++) {
        enum type t = partition_check_type_of(c, i->in[k], a);

        if (t == REPLICATED)
            same = k;
        else if (t == PARTIAL)
            partial = k;
        else if (t != FREE)
            other = k;
        *out = MAX(*out, t);
    }
    if (partial >= 0 && !op_passes_partial(i->op, redop_of(c, i->in[partial], a)))
        return wrong(c, i, a, i->in[partial], "it must be reduced before this op reads it; a reduction is missing");
    if (partial >= 0 && (same >= 0 || other >= 0))
        return wrong(c, i, a, i->in[partial], "it cannot be combined with an operand that is not partial");
    for (int k = 0; k < n && partial >= 0; k++)
        if (partition_check_type_of(c, i->in[k], a) == PARTIAL && redop_of(c, i->in[k], a) != redop_of(c, i->in[partial], a))
            return wrong(c, i, a, i->in[k], "it cannot be combined with a partial operand of another reduction");
    if (same >= 0 && other >= 0 && c->p->values[i->in[same].id].role == LS_ROLE_PARAMETER)
        return wrong(c, i, a, i->in[same], "its gradient here is a partial sum but is not marked as one, so it would never be reduced");
    if (same >= 0 && other >= 0)
        return wrong(c, i, a, i->in[same], "its gradient here is a partial sum; an identity-forward/all-reduce-backward is missing");
    return LS_OK;
}

static ls_status check_result(const struct partitioner *c, const struct instruction *i, ls_axis a, enum type expected)
{
    if (!i->out[0].id || !c->sharding[i->out[0].id].needs_grad || partition_check_type_of(c, i->out[0], a) == expected) return LS_OK;
    return wrong(c, i, a, i->out[0],
                 expected == PARTIAL            ? "the op computes partial sums"
                 : expected == SHARDED          ? "the op computes a shard"
                 : expected == PARTIAL_GRADIENT ? "the op's result has a partial gradient"
                                                : "the op computes the same on every rank");
}

static ls_status check_first(const struct partitioner *c, const struct instruction *i, ls_axis a, int n)
{
    enum type t;

    LS_TRY(combine_operands(c, i, a, n, &t));
    return t == FREE ? LS_OK : check_result(c, i, a, t);
}

static ls_status check_general(const struct partitioner *c, const struct instruction *i, ls_axis a) { return check_first(c, i, a, i->nin); }

static ls_status check_linear(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    ls_value x = i->in[0], w = i->in[1];
    int last = c->p->values[x.id].ndim - 1;

    if (is_sharded_along(c, w, a, 0)) {
        if (!partition_check_fits(partition_check_type_of(c, x, a), PARTIAL_GRADIENT))
            return wrong(
                c, i, a, x,
                "the weight's rows are sharded, so its gradient here is a partial sum; an identity-forward/all-reduce-backward is missing");
        return check_result(c, i, a, SHARDED);
    }
    if (is_sharded_along(c, w, a, 1)) {
        if (!is_sharded_along(c, x, a, last)) return wrong(c, i, a, x, "the weight's columns are sharded, so it must be sharded like them");
        if (i->in[2].id) return wrong(c, i, a, i->in[2], "a bias added before the reduction would be added once per rank");
        return check_result(c, i, a, PARTIAL);
    }
    if (is_sharded_along(c, x, a, last)) return wrong(c, i, a, x, "its rows are sharded, but the weight's columns are not");
    return check_first(c, i, a, 3);
}

static ls_status check_embedding(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    if (!is_sharded_along(c, i->in[1], a, 0)) return check_first(c, i, a, 2);
    if (partition_check_type_of(c, i->in[0], a) == SHARDED)
        return wrong(c, i, a, i->in[0], "the table's rows are sharded, so every rank needs all ids");
    return check_result(c, i, a, PARTIAL);
}

static ls_status check_loss(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    enum type t;

    LS_TRY(combine_operands(c, i, a, 2, &t));
    return check_result(c, i, a, t == SHARDED ? PARTIAL : t);
}

static ls_status check_vocab_loss(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    if (a != instruction_across(i)->axis) return check_loss(c, i, a);
    if (!partition_check_fits(partition_check_type_of(c, i->in[0], a), PARTIAL_GRADIENT))
        return wrong(c, i, a, i->in[0], "the head's rows are sharded, so its gradient here is a partial sum");
    if (!is_sharded_along(c, i->in[1], a, 0) || instruction_across(i)->comm != c->comm[a])
        return wrong(c, i, a, i->in[1], "its rows are sharded over other ranks");
    return check_result(c, i, a, REPLICATED);
}

static ls_status check_view(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    enum type from = partition_check_type_of(c, i->in[0], a), to = partition_check_type_of(c, i->out[0], a);
    bool part = instruction_view(i)->kind == VIEW_SLICE && to == SHARDED &&
                (from == PARTIAL_GRADIENT || from == FREE); /* each rank views its own part */

    return part || from == to || from == FREE ? LS_OK : wrong(c, i, a, i->out[0], "a view has the placement of the value it views");
}

static ls_status check_reduced(const struct partitioner *c, const struct instruction *i, ls_axis a, ls_redop redop)
{
    bool along = partition_check_type_of(c, i->in[0], a) == SHARDED &&
                 (i->attr.reduce.dim < 0 || is_sharded_along(c, i->in[0], a, i->attr.reduce.dim));

    if (!along) return check_first(c, i, a, 1);
    if (partition_check_type_of(c, i->out[0], a) != PARTIAL || redop_of(c, i->out[0], a) != redop)
        return wrong(c, i, a, i->out[0], redop == LS_MAX ? "the op computes partial maxima" : "the op computes partial sums");
    return LS_OK;
}

static ls_status check_sum(const struct partitioner *c, const struct instruction *i, ls_axis a) { return check_reduced(c, i, a, LS_SUM); }
static ls_status check_max(const struct partitioner *c, const struct instruction *i, ls_axis a) { return check_reduced(c, i, a, LS_MAX); }

static ls_status check_grouped(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    ls_value x = i->in[0], w = i->in[1];

    if (is_sharded_along(c, w, a, 1)) {
        if (!partition_check_fits(partition_check_type_of(c, x, a), PARTIAL_GRADIENT))
            return wrong(
                c, i, a, x,
                "the experts' rows are sharded, so its gradient here is a partial sum; an identity-forward/all-reduce-backward is missing");
        return check_result(c, i, a, SHARDED);
    }
    if (is_sharded_along(c, w, a, 2))
        return is_sharded_along(c, x, a, 1) ? check_result(c, i, a, PARTIAL)
                                            : wrong(c, i, a, x, "the experts' columns are sharded, so it must be sharded like them");
    return check_first(c, i, a, 2);
}

/* Weights multiplied with partial sums get a partial gradient. */
static ls_status check_unpermute(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    if (partition_check_type_of(c, i->in[0], a) != PARTIAL) return check_first(c, i, a, 3);
    if (!partition_check_fits(partition_check_type_of(c, i->in[2], a), PARTIAL_GRADIENT))
        return wrong(c, i, a, i->in[2],
                     "it is multiplied with partial sums, so its gradient here is one; an identity-forward/all-reduce-backward is missing");
    return check_result(c, i, a, PARTIAL);
}

/* No gradient flows to the bias through the choices; its update comes from the counts of this rank's share of the tokens. */
static ls_status check_route(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    bool share = partition_check_type_of(c, i->in[0], a) == SHARDED || (a == LS_AXIS_CP && i->attr.route.shares > 1);

    if (share && i->in[1].id && !partition_check_fits(partition_check_type_of(c, i->in[1], a), PARTIAL_GRADIENT))
        return wrong(c, i, a, i->in[1], "each rank adds the counts of its share of the tokens");
    return check_first(c, i, a, 1);
}

static ls_status check_route_load(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    if (partition_check_type_of(c, i->in[0], a) == SHARDED && partition_check_type_of(c, i->out[0], a) != PARTIAL)
        return wrong(c, i, a, i->out[0], "each rank counts its own tokens, so the load is a partial sum");
    return LS_OK;
}

static ls_status check_router_loss(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    enum type t;

    if (partition_check_type_of(c, i->in[1], a) == PARTIAL && a != LS_AXIS_DP &&
        partition_check_type_of(c, i->in[1], LS_AXIS_DP) != PARTIAL)
        return wrong(c, i, a, i->in[1], "a sample's load must be summed over all ranks that have tokens of the sample");
    LS_TRY(combine_operands(c, i, a, 1, &t));
    return t == FREE ? LS_OK : check_result(c, i, a, t == SHARDED ? PARTIAL : t);
}

static ls_status check_ring(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    for (int k = 0; k < 3 && a == instruction_across(i)->axis; k++)
        if (!is_sharded_along(c, i->in[k], a, 1) || instruction_across(i)->comm != c->comm[a])
            return wrong(c, i, a, i->in[k], "ring attention requires a sequence that is sharded over the ranks of its axis");
    return check_first(c, i, a, 3);
}

static ls_status check_instruction(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    typedef ls_status check_fn(const struct partitioner *c, const struct instruction *i, ls_axis a);
#define CHECK_ROW(id, name, shapes, inplace, gradient, to, flops, bytes, recompute, sharding, check, ...) [OP_##id] = check_##check,
    static check_fn *const checks[PROGRAM_OPS] = { OP_MAP(CHECK_ROW) };
#undef CHECK_ROW

    return checks[i->op](c, i, a);
}

/* ---- parameters and the loss ---- */

static ls_status check_parameters(const struct partitioner *c)
{
    for (int v = 1; v < c->p->nvalues; v++) {
        const struct value *x = &c->p->values[v];

        if (x->role == LS_ROLE_PARAMETER && x->param >= 0 && store_is_here(c->p->store, (size_t)x->param) &&
            !store_placement(c->p->store, (size_t)x->param)[LS_AXIS_TP].partial_gradient != !x->place[LS_AXIS_TP].partial_gradient)
            return ls_fail(LS_EINVAL, "placement check: the gradient of '%s' %s a partial sum over tp, but the store says that it %s",
                           x->name, x->place[LS_AXIS_TP].partial_gradient ? "is" : "is not",
                           x->place[LS_AXIS_TP].partial_gradient ? "is not" : "is");
    }
    return LS_OK;
}

static ls_status check_loss_itself(const struct partitioner *c)
{
    const struct value *loss = &c->p->values[c->p->loss.id];

    if (!c->p->loss.id) return LS_OK;
    if (c->n[LS_AXIS_TP] > 1 && loss->place[LS_AXIS_TP].kind != LS_REPLICATE)
        return ls_fail(LS_EINVAL, "placement check: the loss '%s' is not replicated over tp", loss->name);
    if (c->n[LS_AXIS_CP] > 1 && loss->place[LS_AXIS_CP].kind != LS_PARTIAL)
        return ls_fail(LS_EINVAL, "placement check: the loss '%s' is not a partial sum over cp: gradients would count %d times", loss->name,
                       c->n[LS_AXIS_CP]);
    return LS_OK;
}

ls_status partition_check(const struct partitioner *c)
{
    static const ls_axis axes[] = { LS_AXIS_CP, LS_AXIS_TP };
    const struct list *l = &c->p->list[SEG_FORWARD];

    for (int n = 0; n < l->n; n++)
        for (size_t k = 0; k < COUNT_OF(axes); k++)
            if (c->n[axes[k]] > 1) LS_TRY(check_instruction(c, &l->at[n], axes[k]));
    LS_TRY(check_parameters(c));
    return check_loss_itself(c);
}
