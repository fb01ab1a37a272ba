/* rules_attention.c - attention: over tp heads are sharded; over cp either keys and values travel around a ring, or an all-to-all
 * exchanges heads for tokens.
 *
 * If the key heads are sharded, q [B,t,H,D] has complete query groups. With fewer key heads than ranks, every rank has all keys and
 * values and slices the heads that its queries need; the gradient of the slice is a partial sum.
 */
#include "parallel/sharding/partition.h"

/* Places k, a slice or concatenation of key heads that only this rank has. */
static void own_heads(struct partitioner *c, ls_value k, ls_axis a)
{
    shardings_grow(c);
    if (!k.id || !program_ok(c->p)) return;
    sharding_of(c, k)->needs_grad = true;
    *place_of(c, k, a) = (ls_placement){ .kind = LS_SHARD, .dim = 2 };
    sharding_of(c, k)->full[a] = program_value(c->p, k)->size[2] * (size_t)c->n[a];
}

static ls_value slice_heads(struct partitioner *c, ls_value k, size_t begin, size_t end, ls_axis a)
{
    ls_value part = ls_slice(c->p, k, 2, begin, end);

    shardings_grow(c);
    if (part.id && program_ok(c->p))
        for (int b = 0; b < LS_AXES; b++) place_as(c, part, k, (ls_axis)b, place_of(c, k, (ls_axis)b)->dim);
    own_heads(c, part, a);
    return part;
}

/* One key head per query head, for heads [h0, h1), concatenated eight at a time. */
static ls_value repeat_heads(struct partitioner *c, ls_value k, size_t h0, size_t h1, size_t group, ls_axis a)
{
    ls_value part[CALL_OPERANDS], joined = LS_NONE;
    int n = 0;

    for (size_t h = h0; h < h1 && program_ok(c->p); h++) {
        part[n++] = slice_heads(c, k, h / group, h / group + 1, a);
        if (n < CALL_OPERANDS && h + 1 < h1) continue;
        joined = n == 1 ? part[0] : ls_concat(c->p, n, part, 2);
        shardings_grow(c);
        if (joined.id && program_ok(c->p))
            for (int b = 0; b < LS_AXES; b++) place_as(c, joined, part[0], (ls_axis)b, place_of(c, part[0], (ls_axis)b)->dim);
        own_heads(c, joined, a);
        part[0] = joined;
        n = 1;
    }
    return joined;
}

/* The heads of k that query heads [h0, h1) need; `group` query heads share one. */
static ls_value needed_heads(struct partitioner *c, ls_value k, size_t h0, size_t h1, size_t group, ls_axis a)
{
    size_t g0 = h0 / group, g1 = (h1 - 1) / group + 1;
    bool even = g1 - g0 == 1 || (h0 % group == 0 && h1 % group == 0);

    return even ? slice_heads(c, k, g0, g1, a) : repeat_heads(c, k, h0, h1, group, a);
}

/* ---- over tp ---- */

static void align_heads(struct partitioner *c, struct instruction *i)
{
    ls_axis a = LS_AXIS_TP;

    if (c->n[a] == 1) return;
    if (!value_is_sharded(c, i->in[0], a)) {
        align_operands(c, i, 3, a);
        return;
    }
    if (!value_is_sharded_along(c, i->in[0], a, 2)) {
        partition_error(c, a, i->in[0], "attention can only be sharded by heads");
        return;
    }
    size_t begin = value_shard_begin(c, i->in[0], a);
    size_t end = begin + program_value(c->p, i->in[0])->size[2];
    i->attr.attention.drop.head = begin;
    size_t group = sharding_of(c, i->in[0])->size[2] / sharding_of(c, i->in[1])->size[2];
    for (int k = 1; k < 3; k++)
        if (!value_is_sharded(c, i->in[k], a))
            i->in[k] = needed_heads(c, require_partial_gradient(c, i->in[k], a), begin, end, group, a);
        else if (!value_is_sharded_along(c, i->in[k], a, 2) || value_shard_begin(c, i->in[k], a) * group != begin)
            partition_error(c, a, i->in[k], "it does not have the heads that the queries need");
}

/* ---- over cp ---- */

static void place_lse(struct partitioner *c, ls_value lse, ls_value o)
{
    static const int dim_of[4] = { 0, 2, 1, 1 }; /* dims of [B,H,T] for those of [B,T,H,D] */
    const size_t size[3] = { program_value(c->p, o)->size[0], program_value(c->p, o)->size[2], program_value(c->p, o)->size[1] };

    if (!lse.id) return;
    for (int a = 0; a < LS_AXES; a++) place_as(c, lse, o, (ls_axis)a, dim_of[place_of(c, o, (ls_axis)a)->dim & 3]);
    for (int d = 0; d < 3; d++) value_resize(c, lse, d, size[d]);
}

static void ring(struct partitioner *c, struct instruction *i)
{
    ls_axis a = LS_AXIS_CP;

    i->op = OP_RING_ATTENTION;
    i->nin = i->nin > 4 ? 5 : 3;
    instruction_set_across(i, &(struct across){ a, c->comm[a], sharding_of(c, i->in[0])->full[a], place_of(c, i->in[0], a)->zigzag });
    place_like(c, i->out[0], i->in[0]);
    place_lse(c, i->out[1], i->out[0]);
    emit_local(c, i);
}

/* All-to-all: every rank gets all tokens of some heads; the output is exchanged back. */
static void exchange_heads(struct partitioner *c, struct instruction *i)
{
    ls_axis a = LS_AXIS_CP;
    size_t heads = program_value(c->p, i->in[0])->size[2], keys = program_value(c->p, i->in[1])->size[2], group = heads / keys;
    bool whole_groups = keys >= (size_t)c->n[a];
    struct dim_split split = { heads, whole_groups ? group : 1, 0 };
    ls_value o = i->out[0];

    i->in[0] = all_to_all_value(c, a, i->in[0], 2, split, LS_NONE);
    if (!program_ok(c->p)) return;
    size_t begin = value_shard_begin(c, i->in[0], a);
    size_t end = begin + program_value(c->p, i->in[0])->size[2];
    i->attr.attention.drop.head += begin;
    for (int k = 1; k < 3 && program_ok(c->p); k++)
        if (whole_groups)
            i->in[k] = all_to_all_value(c, a, i->in[k], 2, (struct dim_split){ keys, 1, 0 }, LS_NONE);
        else
            i->in[k] = needed_heads(c, require_partial_gradient(c, i->in[k], a), begin, end, group, a);
    if (!program_ok(c->p)) return;
    i->out[0] = value_like(c, "attention.heads", i->in[0]);
    if (!program_ok(c->p)) return;
    place_lse(c, i->out[1], i->out[0]);
    emit_local(c, i);
    all_to_all_value(c, a, i->out[0], 1, (struct dim_split){ 0, 1, 0 }, o);
}

void rule_attention(struct partitioner *c, struct instruction *i)
{
    ls_axis a = LS_AXIS_CP;

    align_heads(c, i);
    if (!program_ok(c->p)) return;
    if (c->n[a] > 1 && value_is_sharded(c, i->in[0], a)) {
        for (int k = 0; k < 3; k++)
            if (!value_is_sharded_along(c, i->in[k], a, 1)) {
                partition_error(c, a, i->in[k], "queries, keys and values must all be sharded along the sequence");
                return;
            }
        if (i->in[3].id) {
            partition_error(c, a, i->in[0], "attention to a cache cannot be sharded");
            return;
        }
        if (c->d->o.cp_method == LS_CP_RING)
            ring(c, i);
        else
            exchange_heads(c, i);
        return;
    }
    align_operands(c, i, 3, a);
    place_like(c, i->out[0], i->in[0]);
    place_lse(c, i->out[1], i->out[0]);
    emit_local(c, i);
}
