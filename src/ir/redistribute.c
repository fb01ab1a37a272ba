/* redistribute.c - MOVE: changes the placement of a value over one axis of the mesh; and its gradient, which is a MOVE too.
 *
 * ir.h has the table of kinds. Partial sums are communicated in their own type: the collective sums half types in f32 and rounds once.
 */
#include "passes/gradient.h"

#include <string.h>

const char *move_name(enum move_kind kind)
{
    static const char *const names[] = {
        "identity", "all_reduce", "all_gather", "reduce_scatter", "shard", "unshard", "shard_partial", "all_to_all",
    };

    return names[kind];
}

const char *axis_name(ls_axis axis)
{
    static const char *const names[LS_AXES] = { "pp", "dp", "cp", "ep", "tp" };

    return names[axis];
}

/* ---- sizes ---- */

struct move_dim {
    int dim;
    size_t full, grain;
};

/* This rank's size of a sharded dim. */
static size_t own(const struct move *m, const struct move_dim *c)
{
    int r = ls_comm_rank(m->comm), n = ls_comm_size(m->comm);

    if (m->zigzag)
        return shard_begin(c->full, c->grain, r + 1, 2 * n) - shard_begin(c->full, c->grain, r, 2 * n) +
               shard_begin(c->full, c->grain, 2 * n - r, 2 * n) - shard_begin(c->full, c->grain, 2 * n - 1 - r, 2 * n);
    return shard_begin(c->full, c->grain, r + 1, n) - shard_begin(c->full, c->grain, r, n);
}

static bool has_size(ls_program *p, const struct move *m, ls_value x, int dim, size_t want)
{
    const struct value *v = program_value(p, x);

    if (dim >= 0 && dim < v->ndim && v->size[dim] == want) return true;
    program_fail(p, "%s of '%s' over %s: dim %d has %zu elements on rank %d of %d; expected %zu", move_name(m->kind), v->name,
                 axis_name(m->axis), dim, dim >= 0 && dim < v->ndim ? v->size[dim] : 0, ls_comm_rank(m->comm), ls_comm_size(m->comm), want);
    return false;
}

static bool resize(ls_program *p, const struct move *m, ls_value x, const struct move_dim *c, bool grows, size_t *size)
{
    size_t part = own(m, c);

    if (!has_size(p, m, x, c->dim, grows ? part : c->full)) return false;
    size[c->dim] = grows ? c->full : part;
    return true;
}

/* Changes x's sizes to those of the output. */
static bool moved_size(ls_program *p, const struct move *m, ls_value x, size_t *size)
{
    struct move_dim first = { m->dim, m->full, m->grain }, second = { m->dim2, m->full2, m->grain2 };

    switch (m->kind) {
    case MOVE_ALL_GATHER:
    case MOVE_UNSHARD: return resize(p, m, x, &first, true, size);
    case MOVE_REDUCE_SCATTER:
    case MOVE_SHARD:
    case MOVE_SHARD_PARTIAL: return resize(p, m, x, &first, false, size);
    case MOVE_ALL_TO_ALL: return resize(p, m, x, &first, true, size) && resize(p, m, x, &second, false, size);
    default: return true;
    }
}

static ls_placement moved_place(const struct move *m)
{
    switch (m->kind) {
    case MOVE_IDENTITY:
    case MOVE_ALL_GATHER: return (ls_placement){ .kind = LS_REPLICATE, .partial_gradient = 1 };
    case MOVE_ALL_REDUCE:
    case MOVE_UNSHARD: return (ls_placement){ .kind = LS_REPLICATE };
    case MOVE_ALL_TO_ALL: return (ls_placement){ .kind = LS_SHARD, .dim = m->dim2, .grain = m->grain2 };
    default: return (ls_placement){ .kind = LS_SHARD, .dim = m->dim, .grain = m->grain, .zigzag = m->zigzag };
    }
}

ls_value program_move(ls_program *p, const struct move *m, ls_value x)
{
    if (!program_ok(p) || !x.id) return LS_NONE;
    struct value v = *program_value(p, x);
    ASSERT(!m->zigzag || m->kind == MOVE_SHARD || m->kind == MOVE_UNSHARD);
    if (!moved_size(p, m, x, v.size)) return LS_NONE;
    ls_value y = program_new_value(p, move_name(m->kind), v.dtype, v.ndim, v.size);
    if (!y.id) return LS_NONE;
    memcpy(program_value(p, y)->place, v.place, sizeof v.place);
    program_value(p, y)->place[m->axis] = moved_place(m);
    struct cursor before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    struct instruction *i = program_append(p, OP_MOVE, NULL, 1, &x, 1, &y);
    program_cursor_end(p, before);
    if (!i) return LS_NONE;
    instruction_set_move(i, m);
    return y;
}

/* ---- gradient ---- */

/* dy is this rank's shard; elsewhere its partial sum is zero. */
static void part_gradient(struct gradient *g, const struct instruction *i, ls_value dy)
{
    const struct move *m = instruction_move(i);
    struct op_attr attr = { .pad = { m->dim, shard_begin(m->full, m->grain, ls_comm_rank(m->comm), ls_comm_size(m->comm)) } };

    gradient_give(g, i->in[0], gradient_emit(g, OP_PAD, &attr, 1, &dy, "pad", i->in[0]));
}

void gradient_move(struct gradient *g, const struct instruction *i, ls_value dy)
{
    static const enum move_kind back[] = {
        [MOVE_IDENTITY] = MOVE_ALL_REDUCE,    [MOVE_ALL_GATHER] = MOVE_REDUCE_SCATTER,
        [MOVE_REDUCE_SCATTER] = MOVE_UNSHARD, [MOVE_SHARD] = MOVE_UNSHARD,
        [MOVE_UNSHARD] = MOVE_SHARD,          [MOVE_ALL_TO_ALL] = MOVE_ALL_TO_ALL,
    };
    const struct move *there = instruction_move(i);
    struct move m = *there;

    ASSERT(m.redop == LS_SUM); /* a maximum passes no derivative */
    if (m.zigzag && m.kind != MOVE_SHARD && m.kind != MOVE_UNSHARD) {
        program_fail(g->p, "%s of '%s' over %s in zigzag chunks has no gradient", move_name(m.kind), program_value(g->p, i->in[0])->name,
                     axis_name(m.axis));
        return;
    }
    if (m.kind == MOVE_ALL_REDUCE || m.kind == MOVE_SHARD_PARTIAL) {
        m.kind == MOVE_ALL_REDUCE ? gradient_give(g, i->in[0], dy) : part_gradient(g, i, dy);
        return;
    }
    if (m.kind == MOVE_ALL_TO_ALL) {
        m.dim = there->dim2, m.full = there->full2, m.grain = there->grain2;
        m.dim2 = there->dim, m.full2 = there->full, m.grain2 = there->grain;
    }
    m.kind = back[m.kind];
    gradient_give(g, i->in[0], program_move(g->p, &m, dy));
}
