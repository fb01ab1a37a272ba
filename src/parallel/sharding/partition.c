/* partition.c - partitioning a forward: the public calls and the steps of the pass. */
#include "parallel/sharding/partition.h"

#include <limits.h>
#include <string.h>
#include "base/mem.h"
#include "parallel/layout.h"
#include "parallel/pipeline/stage.h"
#include "ir/distributed_ops.h"

/* ---- checks of the layout ---- */

/* Checks the recompute options. A compiler that meets a budget knows its own rank's memory only. */
static ls_status check_layout(const struct partitioner *c)
{
    ls_mesh_shape shape = ls_mesh_get_shape(c->d->mesh);
    ls_layout l = layout_of_partition(&shape, &c->d->o);

    l.recompute = c->p->arguments.options.recompute;
    l.every = c->p->arguments.options.every;
    l.budget = c->p->arguments.options.bytes;
    if (l.recompute == LS_RECOMPUTE_BUDGET && (shape.tp > 1 || shape.cp > 1 || shape.ep > 1))
        return ls_fail(
            LS_EINVAL,
            "recompute: within a budget, ranks of tp=%d, cp=%d, ep=%d could choose different blocks; use LS_RECOMPUTE_FIRST with the "
            "same number on all of them",
            shape.tp, shape.cp, shape.ep);
    return layout_check_recompute(&l);
}

static ls_status check_time(const struct partitioner *c)
{
    ls_mesh_shape shape = ls_mesh_get_shape(c->d->mesh);
    ls_layout l = layout_of_partition(&shape, &c->d->o);

    if (shape.cp > 1 && !c->time)
        return ls_fail(LS_EINVAL, "partition: cp %d, but no input of the program declares which dim counts tokens; call ls_declare_time()",
                       shape.cp);
    l.seq_len = (int)MIN(c->time, (size_t)INT_MAX);
    return c->time ? layout_check_sequence(&l) : LS_OK;
}

/* ---- leaves ---- */

/* True if the builder declared which dim counts tokens. Only inputs and bound values declare it; ops propagate it to other values. */
static bool declares_time(const struct value *v) { return (v->role == LS_ROLE_INPUT || v->role == LS_ROLE_BOUND) && v->time_dim >= 0; }

static ls_status find_time(struct partitioner *c)
{
    const struct value *first = NULL;

    for (int v = 1; v < c->p->nvalues; v++) {
        const struct value *x = &c->p->values[v];

        if (!declares_time(x)) continue;
        if (first && x->size[x->time_dim] != c->time)
            return ls_fail(LS_EINVAL, "partition: all time dims of a program must have the same size: '%s' has %zu tokens, '%s' has %zu",
                           first->name, c->time, x->name, x->size[x->time_dim]);
        first = x;
        c->time = x->size[x->time_dim];
    }
    return LS_OK;
}

static void shard_leaf(struct partitioner *c, ls_value v, ls_axis a, int dim)
{
    struct dim_split split = time_split(c, a);

    if (c->n[a] == 1) return;
    sharding_of(c, v)->full[a] = program_value(c->p, v)->size[dim];
    *place_of(c, v, a) = (ls_placement){ .kind = LS_SHARD, .dim = dim, .grain = split.grain, .zigzag = split.zigzag };
    value_resize(c, v, dim, shard_size(program_value(c->p, v)->size[dim], split.grain, split.zigzag, c->rank[a], c->n[a]));
}

/* Restricts positions 0 .. T-1 to this rank's, and keeps the value's id. */
static void shard_positions(struct partitioner *c, ls_value v)
{
    ls_tensor *t;

    if (c->n[LS_AXIS_CP] == 1) return;
    ls_value own = require_sharded(c, v, LS_AXIS_CP, 0, time_split(c, LS_AXIS_CP));
    if (!own.id || !program_ok(c->p)) return;
    struct value *x = program_value(c->p, v);
    struct value *y = program_value(c->p, own);
    t = x->tensor, x->tensor = y->tensor, y->tensor = t; /* the spare value keeps the full tensor */
    value_resize(c, own, 0, x->size[0]);
    shard_leaf(c, v, LS_AXIS_CP, 0);
    *place_of(c, own, LS_AXIS_CP) = (ls_placement){ 0 };
}

static void shard_leaves(struct partitioner *c)
{
    int n = c->p->nvalues;

    for (int v = 1; v < n && program_ok(c->p); v++) {
        const struct value *x = &c->p->values[v];

        if (!declares_time(x)) continue;
        if (x->role == LS_ROLE_INPUT)
            shard_leaf(c, (ls_value){ v }, LS_AXIS_CP, x->time_dim);
        else if (x->dtype == LS_I32 && x->ndim == 1)
            shard_positions(c, (ls_value){ v });
    }
    if (c->p->results.stage.in.id) {
        if (c->d->o.sp && has_time(c, c->p->results.stage.in))
            shard_leaf(c, c->p->results.stage.in, LS_AXIS_TP, time_dim(c, c->p->results.stage.in));
        sharding_of(c, c->p->results.stage.in)->needs_grad = true;
    }
}

/* ---- the walk ---- */

static void emit_replicated(struct partitioner *c, const struct instruction *i)
{
    for (int a = 0; a < LS_AXES; a++)
        for (int k = 0; k < i->nin; k++) {
            ls_placement_kind kind = place_of(c, i->in[k], (ls_axis)a)->kind;

            if (i->in[k].id &&
                (kind != LS_REPLICATE || (value_needs_grad(c, i->in[k]) && value_has_partial_gradient(c, i->in[k], (ls_axis)a)))) {
                partition_error(c, (ls_axis)a, i->in[k], "there is no rule for it");
                return;
            }
        }
    emit_local(c, i);
}

static void partition_instruction(struct partitioner *c, struct instruction *i)
{
    rule_fn *rule = rule_of(i->op);
    struct cursor before = program_cursor_block(c->p, i->block);
    bool needs_grad = false;

    for (int k = 0; k < i->nin; k++) needs_grad = needs_grad || value_needs_grad(c, i->in[k]);
    for (int k = 0; k < i->nout; k++)
        if (i->out[k].id && ls_dtype_is_float(program_value(c->p, i->out[k])->dtype)) sharding_of(c, i->out[k])->needs_grad = needs_grad;
    c->now = i;
    if (rule)
        rule(c, i);
    else
        emit_replicated(c, i);
    shardings_grow(c);
    c->now = NULL;
    program_cursor_end(c->p, before);
}

static ls_status partition_walk(struct partitioner *c)
{
    struct list old = program_take(c->p, SEG_FORWARD);

    for (int n = 0; n < old.n && program_ok(c->p); n++) {
        struct instruction i = old.at[n];

        partition_instruction(c, &i);
    }
    list_free(&old);
    return ls_program_status(c->p);
}

/* Marks in the store the weights whose gradients are partial sums over tp; the data-parallel pass sums them once per step. */
static void mark_store(const struct partitioner *c)
{
    for (int v = 1; v < c->p->nvalues; v++) {
        const struct value *x = &c->p->values[v];

        if (x->role == LS_ROLE_PARAMETER && x->param >= 0 && x->place[LS_AXIS_TP].partial_gradient)
            store_placement(c->p->store, (size_t)x->param)[LS_AXIS_TP].partial_gradient = 1;
    }
}

static ls_status settle_stage(struct partitioner *c)
{
    ls_value out = c->p->results.stage.out;
    ls_axis a = LS_AXIS_TP;

    if (!out.id || c->n[a] == 1) return LS_OK;
    if (c->d->o.sp ? value_is_sharded_along(c, out, a, time_dim(c, out)) : !value_is_sharded(c, out, a) && !value_is_partial(c, out, a))
        return LS_OK;
    partition_error(c, a, out, "the next stage expects the placement of the residual stream");
    return ls_program_status(c->p);
}

static ls_status partition_program(struct partitioner *c)
{
    LS_TRY(check_layout(c));
    LS_TRY(shard_parameters(c));
    c->p->builder.local = true;
    LS_TRY(find_time(c));
    if (c->p->list[SEG_FORWARD].n == 0) return LS_OK; /* the program has only an optimizer */
    LS_TRY(check_time(c));
    shard_leaves(c);
    LS_TRY(ls_program_status(c->p));
    LS_TRY(partition_walk(c));
    LS_TRY(settle_stage(c));
    mark_store(c);
    LS_TRY(program_edit(c->p, AFTER_PARTITION));
    shardings_grow(c);
    LS_TRY(ls_program_status(c->p));
    return c->p->arguments.edit.unchecked ? LS_OK : partition_check(c);
}

static ls_status run_pass(ls_program *p, void *ctx)
{
    const struct partition_spec *d = ctx;
    struct partitioner c = { .p = p, .d = d };
    static const struct {
        ls_axis axis;
        ls_group group;
    } groups[] = { { LS_AXIS_CP, LS_GROUP_CP }, { LS_AXIS_TP, LS_GROUP_TP }, { LS_AXIS_EP, LS_GROUP_EP } };

    for (int a = 0; a < LS_AXES; a++) c.n[a] = 1;
    for (size_t k = 0; k < COUNT_OF(groups); k++) {
        c.n[groups[k].axis] = ls_mesh_size(d->mesh, groups[k].group);
        c.rank[groups[k].axis] = ls_mesh_index(d->mesh, groups[k].group);
        c.comm[groups[k].axis] = ls_mesh_comm(d->mesh, groups[k].group);
    }
    ls_status st = d->o.stage.stages > 1 && p->list[SEG_FORWARD].n ? stage_extract(p, &d->o.stage) : LS_OK;
    shardings_grow(&c);
    if (st == LS_OK) st = ls_program_status(p);
    if (st == LS_OK) st = partition_program(&c);
    mem_free(c.sharding);
    mem_free(c.version);
    mem_free(c.routing);
    return st;
}

/* ---- the public calls ---- */

static void mark_release(void *ctx) { mem_free(ctx); }

ls_status ls_partition(ls_program *p, const ls_mesh *mesh, const ls_model *m, const ls_partition_options *options)
{
    static const ls_partition_options defaults = LS_PARTITION_DEFAULTS;
    const ls_partition_options *o = options ? options : &defaults;
    ls_mesh_shape shape = ls_mesh_get_shape(mesh);
    ls_layout l = layout_of_partition(&shape, o);
    struct partition_spec *d;
    ls_model checked = *m;

    LS_TRY(ls_program_status(p));
    LS_TRY(ls_model_check(&checked));
    if (p->results.compiled || p->arguments.partition.pass)
        return ls_fail(LS_EINVAL, "partition: the program is %s already", p->results.compiled ? "compiled" : "partitioned");
    LS_TRY(layout_check_model(&checked, &l));
    d = mem_zalloc(MEM_OTHER, sizeof *d);
    if (!d) return LS_ENOMEM;
    *d = (struct partition_spec){ *o, checked, mesh };
    p->arguments.arena_comm = ls_mesh_comm(mesh, LS_GROUP_WORLD);
    if (ls_mesh_comm(mesh, LS_GROUP_WORLD)) store_set_world(p->store, ls_mesh_comm(mesh, LS_GROUP_WORLD));
    p->arguments.partition = (struct partition){ run_pass, mark_release, d };
    return LS_OK;
}

int ls_cp_ranges(const ls_mesh *mesh, ls_cp_method method, size_t t, size_t begin[2], size_t end[2])
{
    int n = ls_mesh_size(mesh, LS_GROUP_CP), r = ls_mesh_index(mesh, LS_GROUP_CP);
    bool zigzag = n > 1 && method == LS_CP_RING;
    int chunks = zigzag ? 2 * n : n;

    begin[0] = shard_begin(t, 1, r, chunks), end[0] = shard_begin(t, 1, r + 1, chunks);
    begin[1] = end[1] = 0;
    if (zigzag) begin[1] = shard_begin(t, 1, chunks - 1 - r, chunks), end[1] = shard_begin(t, 1, chunks - r, chunks);
    return zigzag ? 2 : 1;
}
