/* rules_matmul.c - linear layers, embeddings and the loss, whose weights are sharded by rows or columns.
 *
 *     linear     ~R x, w sharded by rows      -> S along the last dim      no communication
 *                S x,  w sharded by columns   -> P, reduced; then the bias
 *     embedding  R ids, w sharded by rows     -> P, reduced: a rank has zeros for rows that it does not hold
 *     loss       ~R x, w sharded by rows      -> R: logits are not communicated
 */
#include "parallel/sharding/partition.h"

/* Shards the last dim of y as w's rows are sharded. */
static void shard_last_dim(struct partitioner *c, ls_value y, ls_value w, ls_axis a)
{
    int last = program_value(c->p, y)->ndim - 1;

    *place_of(c, y, a) = *place_of(c, w, a);
    place_of(c, y, a)->dim = last;
    sharding_of(c, y)->full[a] = sharding_of(c, w)->full[a];
    sharding_of(c, y)->outer[a] = 1;
}

static void lead_dims(struct partitioner *c, ls_value y, ls_value x, size_t last)
{
    int n = program_value(c->p, x)->ndim - 1;

    for (int a = 0; a < LS_AXES; a++)
        if (!value_is_sharded_along(c, x, (ls_axis)a, n)) place_as(c, y, x, (ls_axis)a, place_of(c, x, (ls_axis)a)->dim);
    for (int d = 0; d < n; d++) value_resize(c, y, d, program_value(c->p, x)->size[d]);
    value_resize(c, y, n, last);
}

/* A result computed with a ~R weight is ~R, unless it is sharded. */
static void mark_partial_gradient(struct partitioner *c, ls_value y, ls_value w)
{
    for (int a = 0; a < LS_AXES; a++)
        if (value_has_partial_gradient(c, w, (ls_axis)a) && place_of(c, y, (ls_axis)a)->kind == LS_REPLICATE)
            place_of(c, y, (ls_axis)a)->partial_gradient = 1;
}

/* Gives x the placement that its matmul with w needs on axis a; true: the result is a partial sum over a. */
static bool prepare_input(struct partitioner *c, struct instruction *i, ls_axis a)
{
    int last = program_value(c->p, i->in[0])->ndim - 1;
    ls_value w = i->in[1];

    if (c->n[a] == 1 || !program_ok(c->p)) return false;
    if (value_is_partial(c, i->in[0], a) || value_is_partial(c, w, a)) {
        partition_error(c, a, value_is_partial(c, w, a) ? w : i->in[0], "reduce it first");
    } else if (value_is_sharded_along(c, w, a, 0)) {
        i->in[0] = require_partial_gradient(c, i->in[0], a);
        if (i->in[2].id && !value_is_sharded_along(c, i->in[2], a, 0))
            partition_error(c, a, i->in[2], "it must be sharded like the weight's rows");
    } else if (value_is_sharded_along(c, w, a, 1)) {
        i->in[0] = require_sharded(c, i->in[0], a, last, dim_split_of(c, w, a));
        return true;
    } else if (value_is_sharded_along(c, i->in[0], a, last)) {
        partition_error(c, a, i->in[0], "the weight's columns are not sharded like it");
    } else {
        if (value_has_partial_gradient(c, w, a) &&
            (!value_is_sharded(c, i->in[0], a) || (a == LS_AXIS_TP && sharding_of(c, w)->partial_gradient)))
            i->in[0] = require_partial_gradient(c, i->in[0], a); /* done once for queries, keys and values */
        align_weight(c, i, 1, i->in[0], a);
        align_weight(c, i, 2, i->in[0], a);
    }
    return false;
}

/* The bias is added after the reduction, so that it counts once. */
static void add_bias(struct partitioner *c, ls_value sum, ls_value bias, ls_value y)
{
    struct instruction add = { .op = OP_ADD, .nin = 2, .nout = 1, .in = { sum, bias }, .out = { y }, .block = c->p->builder.cursor.block };

    place_like(c, y, sum);
    align_weight(c, &add, 1, sum, LS_AXIS_TP);
    align_weight(c, &add, 1, sum, LS_AXIS_CP);
    emit_local(c, &add);
}

void rule_linear(struct partitioner *c, struct instruction *i)
{
    ls_value y = i->out[0], bias = i->in[2];

    if (prepare_input(c, i, LS_AXIS_CP)) partition_error(c, LS_AXIS_CP, i->in[1], "weights must be replicated over cp");
    bool partial = prepare_input(c, i, LS_AXIS_TP);
    if (!program_ok(c->p)) return;
    if (partial) {
        i->out[0] = value_like(c, "linear.part", y);
        i->in[2] = LS_NONE;
    }
    if (!program_ok(c->p)) return;
    lead_dims(c, i->out[0], i->in[0], program_value(c->p, i->in[1])->size[0]);
    mark_partial_gradient(c, i->out[0], i->in[1]);
    if (value_is_sharded_along(c, i->in[1], LS_AXIS_TP, 0)) shard_last_dim(c, i->out[0], i->in[1], LS_AXIS_TP);
    if (partial) *place_of(c, i->out[0], LS_AXIS_TP) = (ls_placement){ .kind = LS_PARTIAL };
    emit_local(c, i);
    if (!partial) return;
    ls_value sum = reduce_partial(c, i->out[0], bias.id ? LS_NONE : y);
    if (bias.id && program_ok(c->p)) add_bias(c, sum, bias, y);
}

/* ---- tokens ---- */

/* With sp and a replicated table, each rank looks up only the ids of its shard of the sequence. */
static void shard_ids(struct partitioner *c, struct instruction *i)
{
    int last = program_value(c->p, i->in[0])->ndim - 1;

    if (c->d->o.sp && c->n[LS_AXIS_TP] > 1 && last >= 0 && time_dim(c, i->in[0]) == last)
        i->in[0] = require_sharded(c, i->in[0], LS_AXIS_TP, last, time_split(c, LS_AXIS_TP));
}

void rule_embedding(struct partitioner *c, struct instruction *i)
{
    ls_value y = i->out[0], w = i->in[1];
    bool sharded = value_is_sharded_along(c, w, LS_AXIS_TP, 0);
    int ndim = program_value(c->p, i->in[0])->ndim;

    if (sharded)
        i->in[0] = require_replicated(c, i->in[0], LS_AXIS_TP);
    else
        shard_ids(c, i);
    for (int a = LS_AXIS_CP; a <= LS_AXIS_TP; a++)
        if (!(sharded && a == LS_AXIS_TP) && a != LS_AXIS_EP) align_weight(c, i, 1, i->in[0], (ls_axis)a);
    if (!program_ok(c->p)) return;
    if (sharded) i->out[0] = value_like(c, "embedding.part", y);
    if (!program_ok(c->p)) return;
    for (int a = 0; a < LS_AXES; a++) place_as(c, i->out[0], i->in[0], (ls_axis)a, place_of(c, i->in[0], (ls_axis)a)->dim);
    mark_partial_gradient(c, i->out[0], i->in[1]);
    for (int d = 0; d < ndim; d++) value_resize(c, i->out[0], d, program_value(c->p, i->in[0])->size[d]);
    if (sharded) {
        i->attr.embedding.first = value_shard_begin(c, w, LS_AXIS_TP);
        *place_of(c, i->out[0], LS_AXIS_TP) = (ls_placement){ .kind = LS_PARTIAL };
    }
    emit_local(c, i);
    if (sharded) reduce_partial(c, i->out[0], y);
}

/* ---- the loss ---- */

/* Over cp the loss is a partial sum: that of this rank's tokens, divided by the count of all tokens. */
static void settle_loss(struct partitioner *c, struct instruction *i)
{
    ls_axis a = LS_AXIS_CP;

    if (c->n[a] == 1 || !value_is_sharded(c, i->in[0], a)) return;
    if (!i->in[3].id) partition_error(c, a, i->in[0], "the loss needs a denominator: the token count of all ranks");
    if (!value_is_sharded(c, i->in[2], a)) partition_error(c, a, i->in[2], "the targets are not sharded like the rows");
    *place_of(c, i->out[0], a) = (ls_placement){ .kind = LS_PARTIAL };
    value_resize(c, i->out[1], 0, value_count(program_value(c->p, i->in[2])));
}

void rule_linear_xent(struct partitioner *c, struct instruction *i)
{
    ls_axis a = LS_AXIS_TP;
    bool sharded = value_is_sharded_along(c, i->in[1], a, 0);

    if (sharded) {
        i->in[0] = require_partial_gradient(c, i->in[0], a);
        i->in[2] = require_replicated(c, i->in[2], a);
        i->op = OP_VOCAB_XENT;
        instruction_set_across(i, &(struct across){ a, c->comm[a], sharding_of(c, i->in[1])->full[a], 0 });
        i->attr.embedding.first = value_shard_begin(c, i->in[1], a);
    } else if (c->n[a] > 1) {
        i->in[0] = require_replicated(c, i->in[0], a);
        align_weight(c, i, 1, i->in[0], a);
    }
    align_weight(c, i, 1, i->in[0], LS_AXIS_CP);
    if (!program_ok(c->p)) return;
    settle_loss(c, i);
    emit_local(c, i);
}
