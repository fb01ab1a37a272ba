/* rules_view.c - views of sharded values: sizes, strides and offset of this rank's shard.
 *
 * A reshape regroups dims. Within a group (the fewest dims with the same number of elements on both sides) the sharded dim W of
 * [a, W, b] is mapped as follows:
 *     split   [.., W, ..] -> [.., W/r, r, ..]     sharded along W/r, the grain divided by r
 *     merge   [.., W, r, ..] -> [.., W*r, ..]     the grain multiplied by r
 *     flatten [a, W, ..] -> [a*W, ..]             a repetitions of W, each sharded alike (outer)
 */
#include "parallel/sharding/partition.h"

#include <string.h>

/* Dims [i0, i1) of x and [o0, o1) of y have the same number of elements. */
struct group {
    int i0, i1, o0, o1;
};

static size_t product(const size_t *size, int from, int to)
{
    size_t n = 1;

    for (int d = from; d < to; d++) n *= size[d];
    return n;
}

/* Advances to the next group, from (i1, o1) on; false: no group is left. */
static bool next_group(const size_t *in, int nin, const size_t *out, int nout, struct group *g)
{
    size_t a = 1, b = 1;

    g->i0 = g->i1;
    g->o0 = g->o1;
    if (g->i0 == nin && g->o0 == nout) return false;
    do {
        if ((a <= b && g->i1 < nin) || g->o1 == nout)
            a *= in[g->i1++];
        else
            b *= out[g->o1++];
    } while (a != b && (g->i1 < nin || g->o1 < nout));
    return true;
}

/* Finds the dim of y that corresponds to x's sharded dim on axis a; false: there is none. */
static bool map_sharded_dim(struct partitioner *c, ls_value x, ls_value y, const struct group *g, ls_axis a)
{
    const size_t *in = sharding_of(c, x)->size, *out = sharding_of(c, y)->size;
    ls_placement at = *place_of(c, x, a);
    size_t outer = MAX(sharding_of(c, x)->outer[a], 1), full = sharding_of(c, x)->full[a], grain = MAX(at.grain, 1);
    size_t coarse = product(in, g->i0, at.dim) * outer, fine = product(in, at.dim + 1, g->i1);
    int e = g->o0;

    while (e + 1 < g->o1 && product(out, g->o0, e + 1) <= coarse) e++;
    size_t before = product(out, g->o0, e);
    size_t after = product(out, e + 1, g->o1);
    if (coarse % before) return false;
    size_t r = after >= fine ? after / fine : fine / after;
    if (after >= fine ? after % fine || grain % r || full % r : fine % after != 0) return false;
    at.dim = e;
    at.grain = after >= fine ? grain / r : grain * r;
    *place_of(c, y, a) = at;
    sharding_of(c, y)->full[a] = after >= fine ? full / r : full * r;
    sharding_of(c, y)->outer[a] = coarse / before;
    return true;
}

/* Sets this rank's sizes of the group's dims in y. */
static void resize_group(struct partitioner *c, ls_value x, ls_value y, const struct group *g)
{
    size_t local = product(program_value(c->p, x)->size, g->i0, g->i1);

    for (int d = g->o0; d < g->o1; d++) {
        bool sharded = false;

        for (int a = 0; a < LS_AXES; a++) sharded = sharded || value_is_sharded_along(c, y, (ls_axis)a, d);
        program_value(c->p, y)->size[d] = sharding_of(c, y)->size[d];
        for (int e = g->o0; sharded && e < g->o1; e++) local = e == d ? local : local / MAX(sharding_of(c, y)->size[e], 1);
        if (sharded) program_value(c->p, y)->size[d] = local;
    }
}

static void reshape(struct partitioner *c, ls_value x, ls_value y)
{
    struct group g = { 0, 0, 0, 0 };

    if (!value_is_contiguous(program_value(c->p, x))) {
        partition_error(c, LS_AXIS_TP, x, "its shard would not be contiguous");
        return;
    }
    while (next_group(sharding_of(c, x)->size, program_value(c->p, x)->ndim, sharding_of(c, y)->size, program_value(c->p, y)->ndim, &g)) {
        for (int a = 0; a < LS_AXES; a++)
            if (value_is_sharded(c, x, (ls_axis)a) && place_of(c, x, (ls_axis)a)->dim >= g.i0 && place_of(c, x, (ls_axis)a)->dim < g.i1 &&
                !map_sharded_dim(c, x, y, &g, (ls_axis)a)) {
                partition_error(c, (ls_axis)a, x, "the new shape has no dim that corresponds to the sharded one");
                return;
            }
        resize_group(c, x, y, &g);
    }
    value_resize(c, y, -1, 0);
}

static void transpose(struct partitioner *c, ls_value x, ls_value y, int d0, int d1)
{
    struct value *v = program_value(c->p, y);
    const struct value *from = program_value(c->p, x);

    for (int a = 0; a < LS_AXES; a++) {
        int dim = place_of(c, x, (ls_axis)a)->dim;

        place_as(c, y, x, (ls_axis)a, dim == d0 ? d1 : dim == d1 ? d0 : dim);
    }
    memcpy(v->size, from->size, sizeof v->size);
    memcpy(v->stride, from->stride, sizeof v->stride);
    v->size[d0] = from->size[d1], v->size[d1] = from->size[d0];
    v->stride[d0] = from->stride[d1], v->stride[d1] = from->stride[d0];
}

static void slice(struct partitioner *c, ls_value x, ls_value y, const struct view_rule *view, ptrdiff_t *offset)
{
    struct value *v = program_value(c->p, y);
    const struct value *from = program_value(c->p, x);
    bool all = view->begin == 0 && sharding_of(c, x)->size[view->dim0] == sharding_of(c, y)->size[view->dim0];

    for (int a = 0; a < LS_AXES; a++) {
        if (value_is_sharded_along(c, x, (ls_axis)a, view->dim0) && !all) {
            partition_error(c, (ls_axis)a, x, "it cannot be sliced along a sharded dim");
            return;
        }
        place_as(c, y, x, (ls_axis)a, place_of(c, x, (ls_axis)a)->dim);
    }
    for (int d = 0; d < from->ndim; d++) {
        v->size[d] = d == view->dim0 && !all ? v->size[d] : from->size[d];
        v->stride[d] = from->stride[d];
    }
    *offset = (ptrdiff_t)view->begin * from->stride[view->dim0];
}

void rule_view(struct partitioner *c, struct instruction *i)
{
    const struct view_rule *view = instruction_view(i);
    ls_value x = i->in[0], y = i->out[0];
    ptrdiff_t offset = 0;

    for (int a = 0; a < LS_AXES; a++) {
        if (value_is_sharded(c, x, (ls_axis)a) && view->kind == VIEW_EXPAND) {
            partition_error(c, (ls_axis)a, x, "a repeated dim cannot be sharded");
            return;
        }
        if (!value_is_sharded(c, x, (ls_axis)a)) *place_of(c, y, (ls_axis)a) = *place_of(c, x, (ls_axis)a);
    }
    switch (view->kind) {
    case VIEW_RESHAPE: reshape(c, x, y); break;
    case VIEW_TRANSPOSE: transpose(c, x, y, view->dim0, view->dim1); break;
    case VIEW_SLICE: slice(c, x, y, view, &offset); break;
    case VIEW_STOP: transpose(c, x, y, 0, 0); break;
    case VIEW_EXPAND: break;
    }
    if (!program_ok(c->p)) return;
    program_value(c->p, y)->root = program_value(c->p, x)->root;
    program_value(c->p, y)->offset = program_value(c->p, x)->offset + offset;
    emit_local(c, i);
}
