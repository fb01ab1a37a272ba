/* rules.c - the table of partition rules, and the rules for elementwise ops, row ops and shape ops. */
#include "parallel/sharding/partition.h"

#include <string.h>

/* ---- elementwise ops ---- */

static void align_axes(struct partitioner *c, struct instruction *i, int n)
{
    align_operands(c, i, n, LS_AXIS_CP);
    align_operands(c, i, n, LS_AXIS_TP);
}

static void rule_pointwise(struct partitioner *c, struct instruction *i)
{
    align_axes(c, i, i->nin);
    if (!program_ok(c->p)) return;
    place_like(c, i->out[0], i->in[0]);
    emit_local(c, i);
}

/* Nonlinear ops: f(sum of partial results) is not the sum of f(partial result). */
static void rule_nonlinear(struct partitioner *c, struct instruction *i)
{
    for (int a = 0; a < LS_AXES; a++)
        for (int k = 0; k < i->nin; k++)
            if (value_is_partial(c, i->in[k], (ls_axis)a)) {
                partition_error(c, (ls_axis)a, i->in[k], "reduce it first");
                return;
            }
    rule_pointwise(c, i);
}

static bool one_shape(struct partitioner *c, ls_value a, ls_value b)
{
    int n = program_value(c->p, a)->ndim;

    return n == program_value(c->p, b)->ndim && memcmp(sharding_of(c, a)->size, sharding_of(c, b)->size, (size_t)n * sizeof(size_t)) == 0;
}

/* The second operand has a suffix of the first one's dims, or one element; it is repeated over the rest. */
static void align_suffix(struct partitioner *c, struct instruction *i, ls_axis a)
{
    int shift = program_value(c->p, i->in[0])->ndim - program_value(c->p, i->in[1])->ndim;
    bool single = value_count(program_value(c->p, i->in[1])) == 1;

    if (c->n[a] == 1 || !program_ok(c->p)) return;
    if (value_is_sharded(c, i->in[1], a) && !value_is_sharded(c, i->in[0], a))
        i->in[0] = require_sharded(c, i->in[0], a, place_of(c, i->in[1], a)->dim + shift, dim_split_of(c, i->in[1], a));
    if (!program_ok(c->p)) return;
    if (value_is_partial(c, i->in[0], a) || value_is_partial(c, i->in[1], a))
        partition_error(c, a, i->in[value_is_partial(c, i->in[1], a)], "reduce it first");
    else if (!single && value_is_sharded(c, i->in[0], a) && place_of(c, i->in[0], a)->dim >= shift)
        i->in[1] = require_sharded(c, i->in[1], a, place_of(c, i->in[0], a)->dim - shift, dim_split_of(c, i->in[0], a));
    else if (value_has_partial_gradient(c, i->in[1], a) && !value_is_sharded(c, i->in[0], a))
        i->in[0] = require_partial_gradient(c, i->in[0], a);
    else
        align_weight(c, i, 1, i->in[0], a);
}

static void rule_add(struct partitioner *c, struct instruction *i)
{
    if (one_shape(c, i->in[0], i->in[1])) {
        rule_pointwise(c, i);
        return;
    }
    align_suffix(c, i, LS_AXIS_CP);
    align_suffix(c, i, LS_AXIS_TP);
    if (!program_ok(c->p)) return;
    place_like(c, i->out[0], i->in[0]);
    emit_local(c, i);
}

/* The rows of dim 1 that this rank has, as one or two sorted runs: sharded over cp first, then over tp. */
static void rules_rows_of(struct partitioner *c, ls_value x, size_t begin[2], size_t count[2])
{
    size_t at = 0, end = 0;
    int runs = 0, n = c->n[LS_AXIS_CP], r = c->rank[LS_AXIS_CP];
    size_t b[2] = { 0, 0 }, e[2] = { c->time, 0 };

    if (value_is_sharded(c, x, LS_AXIS_CP)) {
        bool zigzag = place_of(c, x, LS_AXIS_CP)->zigzag;
        int chunks = zigzag ? 2 * n : n;

        b[0] = shard_begin(c->time, 1, r, chunks), e[0] = shard_begin(c->time, 1, r + 1, chunks);
        if (zigzag) b[1] = shard_begin(c->time, 1, chunks - 1 - r, chunks), e[1] = shard_begin(c->time, 1, chunks - r, chunks);
    }
    end = e[0] - b[0] + e[1] - b[1];
    if (value_is_sharded(c, x, LS_AXIS_TP)) {
        at = value_shard_begin(c, x, LS_AXIS_TP);
        end = at + program_value(c->p, x)->size[1];
    }
    for (int k = 0; k < 2; k++) {
        size_t before = k ? e[0] - b[0] : 0, lo = MAX(at, before), hi = MIN(end, before + e[k] - b[k]);

        begin[k] = count[k] = 0;
        if (lo < hi) begin[runs] = b[k] + lo - before, count[runs++] = hi - lo;
    }
}

static void rule_dropout(struct partitioner *c, struct instruction *i)
{
    bool sharded = value_is_sharded(c, i->in[0], LS_AXIS_CP) || value_is_sharded(c, i->in[0], LS_AXIS_TP);

    for (int a = 0; a < LS_AXES && sharded; a++)
        if (value_is_sharded(c, i->in[0], (ls_axis)a) &&
            (!value_is_sharded_along(c, i->in[0], (ls_axis)a, 1) || time_dim(c, i->in[0]) != 1)) {
            partition_error(c, (ls_axis)a, i->in[0], "dropout supports sharding only along the sequence of [B,T,..]");
            return;
        }
    if (sharded) {
        i->attr.dropout.full = c->time;
        rules_rows_of(c, i->in[0], i->attr.dropout.begin, i->attr.dropout.count);
    }
    for (int a = 0; a < LS_AXES; a++)
        if (value_is_partial(c, i->in[0], (ls_axis)a)) partition_error(c, (ls_axis)a, i->in[0], "reduce it first");
    if (!program_ok(c->p)) return;
    place_like(c, i->out[0], i->in[0]);
    emit_local(c, i);
}

/* ---- rows ---- */

static bool rows_are_unsharded(struct partitioner *c, ls_value x)
{
    for (int a = 0; a < LS_AXES; a++)
        if (value_is_sharded_along(c, x, (ls_axis)a, program_value(c->p, x)->ndim - 1) || value_is_partial(c, x, (ls_axis)a)) {
            partition_error(c, (ls_axis)a, x, "its rows must not be sharded");
            return false;
        }
    return true;
}

static void rule_rows(struct partitioner *c, struct instruction *i)
{
    size_t rows;

    if (!rows_are_unsharded(c, i->in[0])) return;
    for (int k = 1; k < i->nin; k++) {
        align_weight(c, i, k, i->in[0], LS_AXIS_CP);
        align_weight(c, i, k, i->in[0], LS_AXIS_TP);
    }
    if (!program_ok(c->p)) return;
    place_like(c, i->out[0], i->in[0]);
    rows =
        value_count(program_value(c->p, i->in[0])) / MAX(program_value(c->p, i->in[0])->size[program_value(c->p, i->in[0])->ndim - 1], 1);
    for (int k = 1; k < i->nout; k++)
        if (i->out[k].id) value_resize(c, i->out[k], 0, rows);
    emit_local(c, i);
}

/* ---- positions ---- */

static void rule_rope_table(struct partitioner *c, struct instruction *i)
{
    for (int a = 0; a < LS_AXES; a++) place_as(c, i->out[0], i->in[0], (ls_axis)a, 0);
    value_resize(c, i->out[0], 0, program_value(c->p, i->in[0])->size[0]);
    emit_local(c, i);
}

static void rule_rope(struct partitioner *c, struct instruction *i)
{
    static const ls_axis axes[] = { LS_AXIS_CP, LS_AXIS_TP };

    if (!rows_are_unsharded(c, i->in[0])) return;
    for (size_t k = 0; k < COUNT_OF(axes); k++)
        if (value_is_sharded_along(c, i->in[0], axes[k], 1))
            i->in[1] = require_sharded(c, i->in[1], axes[k], 0, dim_split_of(c, i->in[0], axes[k]));
        else if (value_is_sharded(c, i->in[1], axes[k]))
            i->in[0] = require_sharded(c, i->in[0], axes[k], 1, dim_split_of(c, i->in[1], axes[k]));
    if (!program_ok(c->p)) return;
    place_like(c, i->out[0], i->in[0]);
    emit_local(c, i);
}

/* ---- shapes ---- */

static void rule_concat(struct partitioner *c, struct instruction *i)
{
    int dim = i->attr.concat.dim;
    size_t total = 0;

    align_axes(c, i, i->nin);
    for (int a = 0; a < LS_AXES && program_ok(c->p); a++)
        if (value_is_sharded_along(c, i->in[0], (ls_axis)a, dim))
            partition_error(c, (ls_axis)a, i->in[0], "values cannot be concatenated along a sharded dim");
    if (!program_ok(c->p)) return;
    for (int k = 0; k < i->nin; k++) total += program_value(c->p, i->in[k])->size[dim];
    place_like(c, i->out[0], i->in[0]);
    value_resize(c, i->out[0], dim, total);
    emit_local(c, i);
}

static void rule_matmul(struct partitioner *c, struct instruction *i)
{
    int n = program_value(c->p, i->in[0])->ndim;

    align_axes(c, i, 2);
    for (int a = 0; a < LS_AXES && program_ok(c->p); a++)
        if (value_is_partial(c, i->in[0], (ls_axis)a) ||
            (value_is_sharded(c, i->in[0], (ls_axis)a) && place_of(c, i->in[0], (ls_axis)a)->dim >= n - 2))
            partition_error(c, (ls_axis)a, i->in[0], "only leading dims can be sharded");
    if (!program_ok(c->p)) return;
    for (int a = 0; a < LS_AXES; a++) place_as(c, i->out[0], i->in[0], (ls_axis)a, place_of(c, i->in[0], (ls_axis)a)->dim);
    for (int d = 0; d < n - 2; d++) value_resize(c, i->out[0], d, program_value(c->p, i->in[0])->size[d]);
    emit_local(c, i);
}

/* A reduction along the sharded dim gives each rank a partial result. */
static void reduce_dim(struct partitioner *c, struct instruction *i, ls_redop redop)
{
    ls_value x = i->in[0], y = i->out[0];
    int dim = i->attr.reduce.dim;
    bool partial = value_is_sharded(c, x, LS_AXIS_TP) && (dim < 0 || value_is_sharded_along(c, x, LS_AXIS_TP, dim));

    for (int a = 0; a < LS_AXES; a++)
        if (value_is_partial(c, x, (ls_axis)a) && !value_is_partial_by(c, x, (ls_axis)a, redop))
            partition_error(c, (ls_axis)a, x, "reduce it first");
    if (partial) i->out[0] = value_like(c, redop == LS_MAX ? "max.part" : "sum.part", y);
    if (!program_ok(c->p)) return;
    for (int a = 0; a < LS_AXES; a++) {
        int at = place_of(c, x, (ls_axis)a)->dim;

        if (value_is_sharded(c, x, (ls_axis)a) && (dim < 0 || at == dim))
            *place_of(c, i->out[0], (ls_axis)a) = (ls_placement){ .kind = LS_PARTIAL, .redop = redop };
        else
            place_as(c, i->out[0], x, (ls_axis)a, at > dim ? at - 1 : at);
    }
    for (int d = 0, k = 0; dim >= 0 && d < program_value(c->p, x)->ndim; d++)
        if (d != dim) value_resize(c, i->out[0], k++, program_value(c->p, x)->size[d]);
    emit_local(c, i);
    if (partial) reduce_partial(c, i->out[0], y);
}

static void rule_sum(struct partitioner *c, struct instruction *i) { reduce_dim(c, i, LS_SUM); }

static void rule_max(struct partitioner *c, struct instruction *i)
{
    sharding_of(c, i->out[0])->needs_grad = false;
    reduce_dim(c, i, LS_MAX);
}

/* ---- the table ---- */

rule_fn *rule_of(int op)
{
#define rule_none                                                                                     NULL
#define SHARDING_ROW(id, name, shapes, inplace, gradient, to, flops, bytes, recompute, sharding, ...) [OP_##id] = rule_##sharding,
    static rule_fn *const rules[PROGRAM_OPS] = { OP_MAP(SHARDING_ROW) };
#undef SHARDING_ROW
#undef rule_none

    return rules[op];
}
