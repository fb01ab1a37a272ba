/* placement.c - the placements of values on each axis, and making the placements of operands compatible. */
#include "parallel/sharding/partition.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "ir/op_info.h"

/* ---- the side table ---- */

void shardings_grow(struct partitioner *c)
{
    if (c->nshardings >= c->p->nvalues || !program_ok(c->p)) return;
    if (c->shardings_room < c->p->nvalues) {
        struct sharding *grown = mem_resize(c->sharding, (size_t)c->p->values_room * sizeof *grown);

        if (!grown) {
            program_fail_by(c->p, LS_ENOMEM);
            return;
        }
        c->sharding = grown;
        c->shardings_room = c->p->values_room;
    }
    for (; c->nshardings < c->p->nvalues; c->nshardings++) {
        const struct value *v = &c->p->values[c->nshardings];

        memset(&c->sharding[c->nshardings], 0, sizeof *c->sharding);
        memcpy(c->sharding[c->nshardings].size, v->size, sizeof v->size);
    }
}

struct sharding *sharding_of(struct partitioner *c, ls_value v)
{
    ASSERT(v.id >= 0 && v.id < c->nshardings);
    return &c->sharding[v.id];
}

ls_placement *place_of(struct partitioner *c, ls_value v, ls_axis a) { return &c->p->values[v.id].place[a]; }

bool value_is_sharded(struct partitioner *c, ls_value v, ls_axis a) { return v.id && place_of(c, v, a)->kind == LS_SHARD; }

bool value_is_sharded_along(struct partitioner *c, ls_value v, ls_axis a, int dim)
{
    return value_is_sharded(c, v, a) && place_of(c, v, a)->dim == dim;
}

bool value_has_partial_gradient(struct partitioner *c, ls_value v, ls_axis a)
{
    return v.id && place_of(c, v, a)->kind == LS_REPLICATE && place_of(c, v, a)->partial_gradient;
}

bool value_is_partial(struct partitioner *c, ls_value v, ls_axis a) { return v.id && place_of(c, v, a)->kind == LS_PARTIAL; }
bool value_is_partial_by(struct partitioner *c, ls_value v, ls_axis a, ls_redop redop)
{
    return value_is_partial(c, v, a) && place_of(c, v, a)->redop == redop;
}

bool value_needs_grad(struct partitioner *c, ls_value v) { return v.id && sharding_of(c, v)->needs_grad; }

int time_dim(struct partitioner *c, ls_value v) { return program_value(c->p, v)->time_dim; }

bool has_time(struct partitioner *c, ls_value v) { return time_dim(c, v) >= 0; }

size_t shard_size(size_t full, size_t grain, int zigzag, int r, int n)
{
    if (!zigzag) return shard_begin(full, grain, r + 1, n) - shard_begin(full, grain, r, n);
    return shard_begin(full, grain, r + 1, 2 * n) - shard_begin(full, grain, r, 2 * n) + shard_begin(full, grain, 2 * n - r, 2 * n) -
           shard_begin(full, grain, 2 * n - 1 - r, 2 * n);
}

size_t value_shard_begin(struct partitioner *c, ls_value x, ls_axis a)
{
    const ls_placement *at = place_of(c, x, a);

    return shard_begin(sharding_of(c, x)->full[a], at->grain, c->rank[a], at->zigzag ? 2 * c->n[a] : c->n[a]);
}

void value_resize(struct partitioner *c, ls_value x, int dim, size_t size)
{
    struct value *v = program_value(c->p, x);

    if (dim >= 0) v->size[dim] = size;
    for (int d = v->ndim - 1; d >= 0; d--) v->stride[d] = d == v->ndim - 1 ? 1 : v->stride[d + 1] * (ptrdiff_t)v->size[d + 1];
    if (v->root == x.id) v->bytes = value_count(v) * ls_dtype_bytes(v->dtype);
}

void place_as(struct partitioner *c, ls_value out, ls_value x, ls_axis a, int dim)
{
    if (!out.id) return;
    *place_of(c, out, a) = *place_of(c, x, a);
    if (value_is_sharded(c, x, a)) {
        place_of(c, out, a)->dim = dim;
        sharding_of(c, out)->full[a] = sharding_of(c, x)->full[a];
        sharding_of(c, out)->outer[a] = sharding_of(c, x)->outer[a];
    }
}

void place_like(struct partitioner *c, ls_value out, ls_value x)
{
    if (!out.id) return;
    for (int a = 0; a < LS_AXES; a++) place_as(c, out, x, (ls_axis)a, place_of(c, x, (ls_axis)a)->dim);
    memcpy(program_value(c->p, out)->size, program_value(c->p, x)->size, sizeof program_value(c->p, x)->size);
    value_resize(c, out, -1, 0);
}

ls_value value_like(struct partitioner *c, const char *what, ls_value v)
{
    struct value x = *program_value(c->p, v);
    ls_value y = program_new_value(c->p, what, x.dtype, x.ndim, x.size);

    shardings_grow(c);
    if (!y.id || !program_ok(c->p)) return LS_NONE;
    *sharding_of(c, y) = *sharding_of(c, v);
    sharding_of(c, y)->used = false;
    memcpy(program_value(c->p, y)->place, x.place, sizeof x.place);
    program_value(c->p, y)->time_dim = x.time_dim;
    return y;
}

/* ---- messages ---- */

static const char *partial_name(ls_redop redop) { return redop == LS_MAX ? "is a partial max" : "is a partial sum"; }

static const char *sharding_text(struct partitioner *c, ls_value v, ls_axis a, char *text, size_t bytes)
{
    if (value_is_sharded(c, v, a))
        snprintf(text, bytes, "is sharded along dim %d", place_of(c, v, a)->dim);
    else
        snprintf(text, bytes, "%s",
                 value_is_partial(c, v, a)             ? partial_name(place_of(c, v, a)->redop)
                 : value_has_partial_gradient(c, v, a) ? "is replicated with a partial gradient"
                                                       : "is replicated");
    return text;
}

void partition_error(struct partitioner *c, ls_axis a, ls_value v, const char *why)
{
    const struct value *x = &c->p->values[v.id];
    char shape[96], how[64];

    program_fail(c->p, "%s over %s: '%s' %s %s: %s", c->now ? program_op_name(c->now->op) : "partition", axis_name(a), x->name,
                 value_shape(x, shape), sharding_text(c, v, a, how, sizeof how), why);
}

/* ---- combining operands ---- */

void align_weight(struct partitioner *c, struct instruction *i, int k, ls_value x, ls_axis a)
{
    ls_value w = i->in[k];
    bool apart = value_is_sharded(c, x, a) || value_has_partial_gradient(c, x, a); /* each rank has a partial sum of w's gradient */

    if (!w.id || c->n[a] == 1 || !program_ok(c->p) || !value_needs_grad(c, w)) return;
    if (value_is_sharded(c, w, a) || value_is_partial(c, w, a)) {
        partition_error(c, a, w, "its partner is not sharded in the same way");
        return;
    }
    if (!apart) {
        if (value_has_partial_gradient(c, w, a)) partition_error(c, a, w, "weight is used with both sharded and replicated activations");
        sharding_of(c, w)->used = true;
    } else if (!value_has_partial_gradient(c, w, a)) {
        if (program_value(c->p, w)->role != LS_ROLE_PARAMETER || sharding_of(c, w)->used)
            i->in[k] = require_partial_gradient(c, w, a);
        else
            place_of(c, w, a)->partial_gradient = 1;
    }
}

bool op_passes_partial(int op, ls_redop redop) { return op_info(op)->traits & (redop == LS_MAX ? TRAIT_MONOTONE : TRAIT_LINEAR); }

/* Partial results pass through an op only if all of its operands are partial with the same reduction. */
static void partial_alike(struct partitioner *c, const struct instruction *i, int n, ls_axis a)
{
    ls_redop redop = LS_SUM;

    for (int k = 0; k < n; k++)
        if (value_is_partial(c, i->in[k], a)) redop = place_of(c, i->in[k], a)->redop;
    for (int k = 0; k < n && program_ok(c->p); k++)
        if (value_is_partial(c, i->in[k], a) && !op_passes_partial(i->op, place_of(c, i->in[k], a)->redop))
            partition_error(c, a, i->in[k], "reduce it first");
        else if (i->in[k].id && !value_is_partial_by(c, i->in[k], a, redop))
            partition_error(c, a, i->in[k],
                            redop == LS_MAX ? "it cannot be combined with a partial max" : "it cannot be combined with a partial sum");
}

void align_operands(struct partitioner *c, struct instruction *i, int n, ls_axis a)
{
    int sharded = -1, with_partial_gradient = -1, partial = 0;

    if (c->n[a] == 1 || !program_ok(c->p)) return;
    for (int k = 0; k < n; k++) {
        if (value_is_sharded(c, i->in[k], a) && sharded < 0) sharded = k;
        if (value_has_partial_gradient(c, i->in[k], a)) with_partial_gradient = k;
        partial += value_is_partial(c, i->in[k], a);
    }
    if (partial) partial_alike(c, i, n, a);
    for (int k = 0; k < n && !partial; k++)
        if (sharded >= 0)
            i->in[k] = require_sharded(c, i->in[k], a, place_of(c, i->in[sharded], a)->dim, dim_split_of(c, i->in[sharded], a));
        else if (with_partial_gradient >= 0)
            i->in[k] = require_partial_gradient(c, i->in[k], a);
}

/* ---- writing ---- */

void emit_local(struct partitioner *c, const struct instruction *i)
{
    struct instruction own = *i;
    ls_value part[CALL_OPERANDS] = { { 0 } };

    for (int k = 0; k < i->nout && program_ok(c->p); k++) {
        ls_value y = i->out[k];

        if (!y.id || y.id == c->p->results.stage.out.id || program_value(c->p, y)->role != LS_ROLE_OUTPUT ||
            !value_is_sharded(c, y, LS_AXIS_TP))
            continue;
        part[k] = own.out[k] = value_like(c, "part", y);
    }
    program_push(c->p, &own);
    for (int k = 0; k < i->nout; k++)
        if (part[k].id) move_value(c, MOVE_UNSHARD, LS_AXIS_TP, part[k], 0, (struct dim_split){ 0 }, i->out[k]);
}
