/* partition_check.c - the last look at a forward that was cut: every operand over every axis as the op's type wants it.
 *
 *     most ops           R, R -> R      ~R, ~R -> ~R      S, S or ~R -> S      what doesn't learn is beside anything
 *     linear functions   P, P -> P     (partial maxima: copies, views, maxima)
 *     products           ~R, w cut by rows -> S;   S, w cut by columns -> P
 *     moves              as the table in program.h says, over the ranks of their axis
 *
 * An R beside S or ~R is where all-reduces are forgotten: its gradient here is a partial sum, and R promises that it is none. The walk
 * knows nothing of how the rules came to their placements.
 */
#include "parallel/sharding/partition.h"

#include "ir/op_info.h"

enum type { FREE, SAME, ENTERED, CUT, PARTIAL }; /* FREE: no gradient comes through it; R, ~R, S, P */

static enum type partition_check_type_of(const struct partitioner *c, ls_value v, ls_axis a)
{
    const ls_placement *at = &c->p->values[v.id].place[a];

    if (!v.id) return FREE;
    if (at->kind != LS_REPLICATE) return at->kind == LS_SHARD ? CUT : PARTIAL;
    return !c->sharding[v.id].learns ? FREE : at->partial_gradient ? ENTERED : SAME;
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

static bool is_cut_on(const struct partitioner *c, ls_value v, ls_axis a, int dim)
{
    return partition_check_type_of(c, v, a) == CUT && c->p->values[v.id].place[a].dim == dim;
}

/* ---- one rule a kind of op ---- */

/* FREE stands for R and for ~R. */
static bool partition_check_fits(enum type has, enum type want)
{
    return has == want || (has == FREE && (want == SAME || want == ENTERED));
}

static ls_redop redop_of(const struct partitioner *c, ls_value v, ls_axis a) { return c->p->values[v.id].place[a].redop; }

static ls_status check_move(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    static const struct {
        enum type from, to;
        const char *why;
    } kinds[] = {
        [MOVE_IDENTITY] = { SAME, ENTERED, "only what is the same everywhere, gradient too, can be entered" },
        [MOVE_ALL_REDUCE] = { PARTIAL, SAME, "it is no partial sum; it has been added up before, or needs no sum" },
        [MOVE_ALL_GATHER] = { CUT, ENTERED, "only what is cut can be gathered" },
        [MOVE_REDUCE_SCATTER] = { PARTIAL, CUT, "it is no partial sum; it has been added up before, or needs no sum" },
        [MOVE_SHARD] = { SAME, CUT, "only what is the same everywhere, gradient too, can be sliced" },
        [MOVE_UNSHARD] = { CUT, SAME, "only what is cut can be joined" },
        [MOVE_SHARD_PARTIAL] = { ENTERED, CUT, "its gradient is no partial sum" },
        [MOVE_ALL_TO_ALL] = { CUT, CUT, "only what is cut can be exchanged" },
    };

    const struct move *m = instruction_move(i);

    if (a != m->axis)
        return partition_check_type_of(c, i->in[0], a) == partition_check_type_of(c, i->out[0], a)
                   ? LS_OK
                   : wrong(c, i, a, i->out[0], "a move changes one axis alone");
    if (m->comm != c->comm[a]) return wrong(c, i, a, i->in[0], "it is moved over the ranks of another axis");
    if (!partition_check_fits(partition_check_type_of(c, i->in[0], a), kinds[m->kind].from))
        return wrong(c, i, a, i->in[0], kinds[m->kind].why);
    if (partition_check_type_of(c, i->in[0], a) == PARTIAL && m->redop != redop_of(c, i->in[0], a))
        return wrong(c, i, a, i->in[0], m->redop == LS_MAX ? "it is reduced by max" : "it is reduced by a sum");
    if (!partition_check_fits(partition_check_type_of(c, i->out[0], a), kinds[m->kind].to))
        return wrong(c, i, a, i->out[0], "that is not what the move makes");
    return LS_OK;
}

/* The type that operands [0, n) give together. */
static ls_status together(const struct partitioner *c, const struct instruction *i, ls_axis a, int n, enum type *out)
{
    int same = -1, partial = -1, other = -1;

    *out = FREE;
    for (int k = 0; k < n; k++) {
        enum type t = partition_check_type_of(c, i->in[k], a);

        if (t == SAME)
            same = k;
        else if (t == PARTIAL)
            partial = k;
        else if (t != FREE)
            other = k;
        *out = MAX(*out, t);
    }
    if (partial >= 0 && !op_passes_partial(i->op, redop_of(c, i->in[partial], a)))
        return wrong(c, i, a, i->in[partial], "it has to be reduced before this op reads it; a reduction is missing");
    if (partial >= 0 && (same >= 0 || other >= 0))
        return wrong(c, i, a, i->in[partial], "it cannot be combined with an operand that is not partial");
    for (int k = 0; k < n && partial >= 0; k++)
        if (partition_check_type_of(c, i->in[k], a) == PARTIAL && redop_of(c, i->in[k], a) != redop_of(c, i->in[partial], a))
            return wrong(c, i, a, i->in[k], "it cannot be combined with an operand that is reduced in another way");
    if (same >= 0 && other >= 0 && c->p->values[i->in[same].id].role == LS_ROLE_PARAMETER)
        return wrong(c, i, a, i->in[same],
                     "its gradient here is a partial sum of each rank's, and it is not marked so: nobody would add them up");
    if (same >= 0 && other >= 0)
        return wrong(c, i, a, i->in[same],
                     "its gradient here is a partial sum of each rank's; it has to be entered, or the sum is missing");
    return LS_OK;
}

static ls_status makes(const struct partitioner *c, const struct instruction *i, ls_axis a, enum type want)
{
    if (!i->out[0].id || !c->sharding[i->out[0].id].learns || partition_check_type_of(c, i->out[0], a) == want) return LS_OK;
    return wrong(c, i, a, i->out[0],
                 want == PARTIAL   ? "the op makes partial sums"
                 : want == CUT     ? "the op makes a slice"
                 : want == ENTERED ? "the op makes what has a partial gradient"
                                   : "the op makes the same everywhere");
}

static ls_status check_first(const struct partitioner *c, const struct instruction *i, ls_axis a, int n)
{
    enum type t;

    LS_TRY(together(c, i, a, n, &t));
    return t == FREE ? LS_OK : makes(c, i, a, t);
}

static ls_status check_general(const struct partitioner *c, const struct instruction *i, ls_axis a) { return check_first(c, i, a, i->nin); }

static ls_status check_linear(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    ls_value x = i->in[0], w = i->in[1];
    int last = c->p->values[x.id].ndim - 1;

    if (is_cut_on(c, w, a, 0)) {
        if (!partition_check_fits(partition_check_type_of(c, x, a), ENTERED))
            return wrong(c, i, a, x,
                         "the weight's rows are cut, so its gradient here is a partial sum of each rank's; it has to be entered");
        return makes(c, i, a, CUT);
    }
    if (is_cut_on(c, w, a, 1)) {
        if (!is_cut_on(c, x, a, last)) return wrong(c, i, a, x, "the weight's columns are cut, and it is not cut with them");
        if (i->in[2].id) return wrong(c, i, a, i->in[2], "a bias before the sum would be added once a rank");
        return makes(c, i, a, PARTIAL);
    }
    if (is_cut_on(c, x, a, last)) return wrong(c, i, a, x, "its rows are cut, and the weight's columns are not");
    return check_first(c, i, a, 3);
}

static ls_status check_embedding(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    if (!is_cut_on(c, i->in[1], a, 0)) return check_first(c, i, a, 2);
    if (partition_check_type_of(c, i->in[0], a) == CUT) return wrong(c, i, a, i->in[0], "every rank looks up all of it in its rows");
    return makes(c, i, a, PARTIAL);
}

static ls_status check_loss(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    enum type t;

    if (i->op == OP_VOCAB_XENT && a == instruction_across(i)->axis) {
        if (!partition_check_fits(partition_check_type_of(c, i->in[0], a), ENTERED))
            return wrong(c, i, a, i->in[0], "the head's rows are cut, so its gradient here is a partial sum of each rank's");
        if (!is_cut_on(c, i->in[1], a, 0) || instruction_across(i)->comm != c->comm[a])
            return wrong(c, i, a, i->in[1], "its rows are laid out over other ranks");
        return makes(c, i, a, SAME);
    }
    LS_TRY(together(c, i, a, 2, &t));
    return makes(c, i, a, t == CUT ? PARTIAL : t);
}

static ls_status check_view(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    enum type from = partition_check_type_of(c, i->in[0], a), to = partition_check_type_of(c, i->out[0], a);
    bool part = instruction_view(i)->kind == VIEW_SLICE && to == CUT && (from == ENTERED || from == FREE); /* each its own */

    return part || from == to || from == FREE ? LS_OK : wrong(c, i, a, i->out[0], "a view is laid out as what it views");
}

static ls_status check_reduced(const struct partitioner *c, const struct instruction *i, ls_axis a, ls_redop redop)
{
    bool along =
        partition_check_type_of(c, i->in[0], a) == CUT && (i->attr.reduce.dim < 0 || is_cut_on(c, i->in[0], a, i->attr.reduce.dim));

    if (!along) return check_first(c, i, a, 1);
    if (partition_check_type_of(c, i->out[0], a) != PARTIAL || redop_of(c, i->out[0], a) != redop)
        return wrong(c, i, a, i->out[0], redop == LS_MAX ? "the op makes partial maxima" : "the op makes partial sums");
    return LS_OK;
}

static ls_status check_sum(const struct partitioner *c, const struct instruction *i, ls_axis a) { return check_reduced(c, i, a, LS_SUM); }
static ls_status check_max(const struct partitioner *c, const struct instruction *i, ls_axis a) { return check_reduced(c, i, a, LS_MAX); }

static ls_status check_grouped(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    ls_value x = i->in[0], w = i->in[1];

    if (is_cut_on(c, w, a, 1)) {
        if (!partition_check_fits(partition_check_type_of(c, x, a), ENTERED))
            return wrong(c, i, a, x,
                         "the experts' rows are cut, so its gradient here is a partial sum of each rank's; it has to be entered");
        return makes(c, i, a, CUT);
    }
    if (is_cut_on(c, w, a, 2))
        return is_cut_on(c, x, a, 1) ? makes(c, i, a, PARTIAL)
                                     : wrong(c, i, a, x, "the experts' columns are cut, and it is not cut with them");
    return check_first(c, i, a, 2);
}

/* Weights beside partial sums: what they weigh here is a part of their gradient. */
static ls_status check_collect(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    if (partition_check_type_of(c, i->in[0], a) != PARTIAL) return check_first(c, i, a, 3);
    if (!partition_check_fits(partition_check_type_of(c, i->in[2], a), ENTERED))
        return wrong(c, i, a, i->in[2], "it weighs partial sums, so its gradient here is one; it has to be entered");
    return makes(c, i, a, PARTIAL);
}

/* The bias has no gradient through the choices: what it gets is a count of this rank's share of the tokens. */
static ls_status check_route(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    bool share = partition_check_type_of(c, i->in[0], a) == CUT || (a == LS_AXIS_CP && i->attr.route.shares > 1);

    if (share && i->in[1].id && !partition_check_fits(partition_check_type_of(c, i->in[1], a), ENTERED))
        return wrong(c, i, a, i->in[1], "each rank counts a share of the tokens for it");
    return check_first(c, i, a, 1);
}

static ls_status check_route_load(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    if (partition_check_type_of(c, i->in[0], a) == CUT && partition_check_type_of(c, i->out[0], a) != PARTIAL)
        return wrong(c, i, a, i->out[0], "each rank counts its own tokens");
    return LS_OK;
}

static ls_status check_router_loss(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    enum type t;

    if (partition_check_type_of(c, i->in[1], a) == PARTIAL && a != LS_AXIS_DP &&
        partition_check_type_of(c, i->in[1], LS_AXIS_DP) != PARTIAL)
        return wrong(c, i, a, i->in[1], "a sample's load has to be added up over all ranks that have tokens of it");
    LS_TRY(together(c, i, a, 1, &t));
    return t == FREE ? LS_OK : makes(c, i, a, t == CUT ? PARTIAL : t);
}

static ls_status check_ring(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    for (int k = 0; k < 3 && a == instruction_across(i)->axis; k++)
        if (!is_cut_on(c, i->in[k], a, 1) || instruction_across(i)->comm != c->comm[a])
            return wrong(c, i, a, i->in[k], "the ring wants slices of the sequence, over its own ranks");
    return check_first(c, i, a, 3);
}

static ls_status check_instruction(const struct partitioner *c, const struct instruction *i, ls_axis a)
{
    typedef ls_status check_fn(const struct partitioner *c, const struct instruction *i, ls_axis a);
#define CHECK_ROW(id, name, shapes, inplace, gradient, to, flops, bytes, recompute, sharding, check, ...) [OP_##id] = check_##check,
    static check_fn *const checks[PROGRAM_OPS] = { OP_MODEL_MAP(CHECK_ROW) OP_PROGRAM_MODEL_MAP(CHECK_ROW) };
#undef CHECK_ROW

    return checks[i->op] ? checks[i->op](c, i, a) : check_general(c, i, a);
}

/* ---- what is not in a list ---- */

static ls_status check_parameters(const struct partitioner *c)
{
    for (int v = 1; v < c->p->nvalues; v++) {
        const struct value *x = &c->p->values[v];

        if (x->role == LS_ROLE_PARAMETER && x->param >= 0 && store_is_here(c->p->store, (size_t)x->param) &&
            !store_placement(c->p->store, (size_t)x->param)[LS_AXIS_TP].partial_gradient != !x->place[LS_AXIS_TP].partial_gradient)
            return ls_fail(LS_EINVAL, "placement check: the gradient of '%s' is partial over tp%s, but the store is told%s", x->name,
                           x->place[LS_AXIS_TP].partial_gradient ? "" : " nowhere",
                           x->place[LS_AXIS_TP].partial_gradient ? " nothing" : " so");
    }
    return LS_OK;
}

static ls_status check_loss_itself(const struct partitioner *c)
{
    const struct value *loss = &c->p->values[c->p->loss.id];

    if (!c->p->loss.id) return LS_OK;
    if (c->n[LS_AXIS_TP] > 1 && loss->place[LS_AXIS_TP].kind != LS_REPLICATE)
        return ls_fail(LS_EINVAL, "placement check: the loss '%s' is not the same on all ranks of tp", loss->name);
    if (c->n[LS_AXIS_CP] > 1 && loss->place[LS_AXIS_CP].kind != LS_PARTIAL)
        return ls_fail(LS_EINVAL, "placement check: the loss '%s' is no partial sum over cp: gradients would be added up %d times",
                       loss->name, c->n[LS_AXIS_CP]);
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
