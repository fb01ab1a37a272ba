/* redistribute.c - changing placements: a redistributed value is made once per block and shared by all its readers there. */
#include "parallel/sharding/partition.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"

static ls_value version_find(const struct partitioner *c, ls_value x, enum move_kind kind, ls_axis a, int dim)
{
    for (int k = c->nversions - 1; k >= 0; k--) {
        const struct version *v = &c->version[k];

        if (v->from == x.id && v->kind == kind && v->axis == a && v->dim == dim && v->block == c->p->builder.cursor.block)
            return (ls_value){ v->to };
    }
    return LS_NONE;
}

static void version_keep(struct partitioner *c, ls_value x, enum move_kind kind, ls_axis a, int dim, ls_value y)
{
    if (c->nversions == c->versions_room) {
        int room = c->versions_room ? 2 * c->versions_room : 32;
        struct version *grown = mem_resize(c->version, (size_t)room * sizeof *grown);

        if (!grown) {
            program_fail_by(c->p, LS_ENOMEM);
            return;
        }
        c->version = grown;
        c->versions_room = room;
    }
    c->version[c->nversions++] = (struct version){ x.id, y.id, a, kind, dim, c->p->builder.cursor.block };
}

static void emit_move(struct partitioner *c, enum move_kind kind, ls_axis a, ls_value x, ls_value y, struct move m)
{
    struct instruction *i = program_append(c->p, OP_MOVE, NULL, 1, &x, 1, &y);

    m.kind = kind;
    m.axis = a;
    m.comm = c->comm[a];
    m.floating = c->d->o.overlap;
    m.chunks = c->d->o.tp_chunks;
    if (i) instruction_set_move(i, &m);
}

/* Sets the local sizes and placement of y, which is x redistributed. */
static void move_sharding(struct partitioner *c, enum move_kind kind, ls_axis a, ls_value x, ls_value y, int dim, struct dim_split split)
{
    bool shards = kind == MOVE_REDUCE_SCATTER || kind == MOVE_SHARD || kind == MOVE_SHARD_PARTIAL;

    if (x.id != y.id) place_like(c, y, x);
    ls_placement *at = place_of(c, y, a);
    *at = (ls_placement){ .kind = LS_REPLICATE, .partial_gradient = kind == MOVE_IDENTITY || kind == MOVE_ALL_GATHER };
    if (shards) {
        *at = (ls_placement){ .kind = LS_SHARD, .dim = dim, .grain = split.grain, .zigzag = split.zigzag };
        sharding_of(c, y)->full[a] = split.full;
        sharding_of(c, y)->outer[a] = 1;
        value_resize(c, y, dim, shard_size(split.full, split.grain, split.zigzag, c->rank[a], c->n[a]));
    } else if (kind == MOVE_ALL_GATHER || kind == MOVE_UNSHARD) {
        value_resize(c, y, dim, split.full);
    }
}

ls_value move_value(struct partitioner *c, enum move_kind kind, ls_axis a, ls_value x, int dim, struct dim_split split, ls_value y)
{
    if (!program_ok(c->p)) return LS_NONE;
    if (value_is_sharded(c, x, a)) {
        dim = place_of(c, x, a)->dim;
        split = dim_split_of(c, x, a);
        if (sharding_of(c, x)->outer[a] > 1) {
            partition_error(c, a, x, "flattened samples cannot be redistributed; reshape them to [B,T,..] first");
            return LS_NONE;
        }
    }
    if (!split.full) split.full = program_value(c->p, x)->size[dim];
    if (!y.id) y = value_like(c, move_name(kind), x);
    if (!y.id) return LS_NONE;
    emit_move(
        c, kind, a, x, y,
        (struct move){ .dim = dim, .full = split.full, .grain = split.grain, .zigzag = split.zigzag, .redop = place_of(c, x, a)->redop });
    move_sharding(c, kind, a, x, y, dim, split);
    return y;
}

ls_value all_to_all_value(struct partitioner *c, ls_axis a, ls_value x, int dim, struct dim_split split, ls_value y)
{
    if (!program_ok(c->p)) return LS_NONE;
    struct dim_split from = dim_split_of(c, x, a);
    int dim1 = place_of(c, x, a)->dim;
    if (!y.id) y = value_like(c, "all_to_all", x);
    if (!y.id) return LS_NONE;
    if (!split.full) split.full = program_value(c->p, x)->size[dim];
    emit_move(
        c, MOVE_ALL_TO_ALL, a, x, y,
        (struct move){ .dim = dim1, .full = from.full, .grain = from.grain, .dim2 = dim, .full2 = split.full, .grain2 = split.grain });
    place_like(c, y, x);
    *place_of(c, y, a) = (ls_placement){ .kind = LS_SHARD, .dim = dim, .grain = split.grain };
    sharding_of(c, y)->full[a] = split.full;
    sharding_of(c, y)->outer[a] = 1;
    value_resize(c, y, dim1, from.full);
    value_resize(c, y, dim, shard_size(split.full, split.grain, 0, c->rank[a], c->n[a]));
    return y;
}

struct dim_split dim_split_of(struct partitioner *c, ls_value x, ls_axis a)
{
    const ls_placement *at = place_of(c, x, a);

    return (struct dim_split){ sharding_of(c, x)->full[a], at->grain, at->zigzag };
}

struct dim_split time_split(struct partitioner *c, ls_axis a)
{
    return (struct dim_split){ 0, 1, a == LS_AXIS_CP && c->d->o.cp_method == LS_CP_RING };
}

static ls_value moved(struct partitioner *c, enum move_kind kind, ls_axis a, ls_value x, int dim, struct dim_split split)
{
    ls_value y = version_find(c, x, kind, a, dim);

    if (y.id) return y;
    y = move_value(c, kind, a, x, dim, split, LS_NONE);
    if (y.id) version_keep(c, x, kind, a, dim, y);
    return y;
}

ls_value require_partial_gradient(struct partitioner *c, ls_value x, ls_axis a)
{
    if (!x.id || c->n[a] == 1 || !program_ok(c->p) || value_has_partial_gradient(c, x, a)) return x;
    if (value_is_partial(c, x, a)) {
        partition_error(c, a, x, "reduce it first");
        return LS_NONE;
    }
    if (value_is_sharded(c, x, a)) return moved(c, MOVE_ALL_GATHER, a, x, 0, (struct dim_split){ 0 });
    if (!value_needs_grad(c, x)) return x;
    return moved(c, MOVE_IDENTITY, a, x, 0, (struct dim_split){ 0 });
}

ls_value require_replicated(struct partitioner *c, ls_value x, ls_axis a)
{
    if (!x.id || c->n[a] == 1 || !program_ok(c->p)) return x;
    if (value_is_sharded(c, x, a)) return moved(c, MOVE_UNSHARD, a, x, 0, (struct dim_split){ 0 });
    if (value_is_partial(c, x, a)) return moved(c, MOVE_ALL_REDUCE, a, x, 0, (struct dim_split){ 0 });
    if (value_has_partial_gradient(c, x, a) && value_needs_grad(c, x)) {
        partition_error(c, a, x, "its readers need a replicated gradient");
        return LS_NONE;
    }
    return x;
}

/* Returns this rank's shard of a tensor that the model bound ([T] positions), computed now. */
static ls_value bound_part(struct partitioner *c, ls_value x, ls_axis a, int dim, struct dim_split split);

ls_value require_sharded(struct partitioner *c, ls_value x, ls_axis a, int dim, struct dim_split split)
{
    struct dim_split has;

    if (!x.id || c->n[a] == 1 || !program_ok(c->p)) return x;
    if (!split.full) split.full = program_value(c->p, x)->size[dim];
    if (value_is_sharded(c, x, a)) {
        has = dim_split_of(c, x, a);
        if (value_is_sharded_along(c, x, a, dim) && has.full == split.full && MAX(has.grain, 1) == MAX(split.grain, 1) &&
            has.zigzag == split.zigzag)
            return x;
        partition_error(c, a, x, "expected a different sharding (dim, grain or order)");
        return LS_NONE;
    }
    if (split.full != program_value(c->p, x)->size[dim]) {
        partition_error(c, a, x, "it has another size than its sharded partner");
        return LS_NONE;
    }
    if (program_value(c->p, x)->role == LS_ROLE_BOUND && program_value(c->p, x)->ndim == 1) return bound_part(c, x, a, dim, split);
    if (value_is_partial(c, x, a)) return moved(c, MOVE_REDUCE_SCATTER, a, x, dim, split);
    return moved(c, value_has_partial_gradient(c, x, a) ? MOVE_SHARD_PARTIAL : MOVE_SHARD, a, x, dim, split);
}

static ls_status bound_copy(const struct partitioner *c, const struct value *v, size_t begin[2], const size_t size[2], ls_tensor **out)
{
    size_t bytes = ls_dtype_bytes(v->dtype), n = size[0] + size[1];
    char *all = mem_array(MEM_OTHER, v->size[0], bytes);
    ls_status st = all ? LS_OK : LS_ENOMEM;

    if (st == LS_OK) st = ls_tensor_read(v->tensor, all, v->dtype, v->size[0]);
    if (st == LS_OK) st = ls_tensor_new(ls_store_settings(c->p->store).device, v->dtype, 1, &n, LS_OTHER, out);
    if (st == LS_OK) {
        memmove(all, all + begin[0] * bytes, size[0] * bytes);
        memmove(all + size[0] * bytes, all + begin[1] * bytes, size[1] * bytes);
        st = ls_tensor_write(*out, all, v->dtype, n);
    }
    mem_free(all);
    return st;
}

static ls_value bound_part(struct partitioner *c, ls_value x, ls_axis a, int dim, struct dim_split split)
{
    const struct value *v = program_value(c->p, x);
    int n = split.zigzag ? 2 * c->n[a] : c->n[a], r = c->rank[a];
    size_t begin[2] = { shard_begin(split.full, split.grain, r, n), shard_begin(split.full, split.grain, n - 1 - r, n) }, size[2] = { 0 };
    ls_tensor *t = NULL;
    char name[96];

    ASSERT(dim == 0);
    snprintf(name, sizeof name, "%.80s.%s", v->name, axis_name(a));
    ls_value y = program_find(c->p, name);
    if (y.id) return y;
    size[0] = shard_begin(split.full, split.grain, r + 1, n) - begin[0];
    size[1] = split.zigzag ? shard_begin(split.full, split.grain, n - r, n) - begin[1] : 0;
    ls_status st = bound_copy(c, v, begin, size, &t);
    y = st < 0 ? program_fail_by(c->p, st) : ls_bind(c->p, name, t);
    ls_tensor_release(&t);
    shardings_grow(c);
    if (!y.id || !program_ok(c->p)) return LS_NONE;
    *sharding_of(c, y) = *sharding_of(c, x);
    memcpy(program_value(c->p, y)->place, program_value(c->p, x)->place, sizeof program_value(c->p, x)->place);
    *place_of(c, y, a) = (ls_placement){ .kind = LS_SHARD, .dim = 0, .grain = split.grain, .zigzag = split.zigzag };
    sharding_of(c, y)->full[a] = split.full;
    program_value(c->p, y)->least = program_value(c->p, x)->least;
    program_value(c->p, y)->most = program_value(c->p, x)->most;
    return y;
}

ls_value reduce_partial(struct partitioner *c, ls_value x, ls_value y)
{
    ls_axis a = LS_AXIS_TP;
    bool output = y.id && y.id != c->p->results.stage.out.id && program_value(c->p, y)->role == LS_ROLE_OUTPUT; /* replicated over tp */
    bool scatters = c->d->o.sp && has_time(c, x) && !output;

    if (!y.id && program_ok(c->p)) y = value_like(c, "sum", x);
    if (scatters) return move_value(c, MOVE_REDUCE_SCATTER, a, x, time_dim(c, x), time_split(c, a), y);
    return move_value(c, MOVE_ALL_REDUCE, a, x, 0, (struct dim_split){ 0 }, y);
}
