/* zero.c - data parallelism: the public calls and the steps of the pass. */
#include "parallel/zero/zero.h"

#include <string.h>
#include "base/mem.h"
#include "comm/comm.h"
#include "ir/op_info.h"

/* ---- the layout ---- */

static int ranks_of(const ls_comm *comm) { return comm ? ls_comm_size(comm) : 1; }

/* mesh NULL: each rank of comm has different samples. */
static ls_layout layout_of_ranks(const ls_comm *comm, const ls_mesh *mesh, const ls_data_parallel_options *o)
{
    ls_mesh_shape shape = ls_mesh_get_shape(mesh);

    if (!mesh) {
        shape.dp = ranks_of(comm);
        shape.replicate = o->replicate;
    }
    return layout_of_data(&shape, o);
}

ls_layout data_layout(const struct data_parallel *d) { return layout_of_ranks(d->world, d->mesh, &d->o); }

/* ---- the pass ---- */

/* Compares the program with the rules of its layout. */
static ls_status check_program(const struct pass *a)
{
    const struct list *forward = &a->p->list[SEG_FORWARD];
    ls_layout l = data_layout(a->d);

    l.in_backward = a->p->builder.update_in_backward;
    LS_TRY(layout_check_in_backward(&l));
    if (a->p->arguments.options.slots > 0) LS_TRY(layout_check_in_flight(&l));
    for (int n = 0; n < forward->n; n++) {
        unsigned traits = op_info(forward->at[n].op)->traits;

        LS_TRY(layout_check_async(&l, traits & TRAIT_CHOICES ? "experts" : traits & TRAIT_SAMPLE_STATS ? "batch norms" : NULL));
    }
    return LS_OK;
}

static ls_status distribution(struct pass *a)
{
    LS_TRY(check_program(a));
    LS_TRY(units_form(a));
    if ((data_is_distributed(a) && !a->d->method->apart) || a->d->o.offload_parameters) {
        LS_TRY(gather_parameters(a));
        LS_TRY(reduce_gradients(a));
    }
    LS_TRY(update_shards(a));
    reduce_wait(a);
    if (!data_is_distributed(a)) return LS_OK;
    LS_TRY(join_batch_norms(a));
    LS_TRY(wait_at_first_use(a));
    LS_TRY(program_edit(a->p, AFTER_DATA_PARALLEL));
    return a->p->arguments.edit.unchecked ? LS_OK : check_placements(a);
}

static ls_status run_pass(ls_program *p, void *ctx)
{
    struct pass a = { .p = p, .d = ctx };
    ls_status st = distribution(&a);

    mem_free(a.unit);
    mem_free(a.order);
    mem_free(a.view);
    mem_free(a.early);
    return st;
}

/* ---- state shared by a store's programs ---- */

static void data_parallel_close(void *ctx)
{
    struct data_parallel *d = ctx;

    if (d->owns) {
        ls_comm_close(&d->groups[GROUPS_DENSE].shard);
        ls_comm_close(&d->groups[GROUPS_DENSE].replicas);
    }
    mem_free(d->path);
    mem_free(d);
}

/* How ranks are split: consecutive ranks hold one copy; `across` selects the ranks that hold the same shard of each copy. */
struct rank_split {
    int each;
    bool across;
};

static int color_of(void *ctx, int rank)
{
    const struct rank_split *c = ctx;

    return c->across ? rank % c->each : rank / c->each;
}

static ls_status split(struct data_parallel *d)
{
    struct zero_groups *o = &d->groups[GROUPS_DENSE];
    struct rank_split by = { ranks_of(d->world) / d->o.replicate, false };

    d->owns = true;
    o->shard = NULL;
    LS_TRY(comm_split_by(d->world, color_of, &by, &o->shard));
    comm_name(o->shard, "shard");
    by.across = true;
    LS_TRY(comm_split_by(d->world, color_of, &by, &o->replicas));
    comm_name(o->replicas, "replicas");
    return LS_OK;
}

static ls_status find_ranks(struct data_parallel *d, ls_comm *comm, const ls_mesh *mesh)
{
    struct zero_groups *dense = &d->groups[GROUPS_DENSE], *experts = &d->groups[GROUPS_EXPERTS];

    d->mesh = mesh;
    d->world = comm;
    if (!mesh) {
        *dense = ranks_of(comm) > 1 ? (struct zero_groups){ .all = comm, .shard = comm } : (struct zero_groups){ NULL, NULL, NULL };
        return d->o.replicate > 1 ? split(d) : LS_OK;
    }
    *dense = (struct zero_groups){ ls_mesh_comm(mesh, LS_GROUP_DATA), ls_mesh_comm(mesh, LS_GROUP_SHARD),
                                   ls_mesh_comm(mesh, LS_GROUP_REPLICAS) };
    *experts = (struct zero_groups){ ls_mesh_comm(mesh, LS_GROUP_EXPERT_DATA), ls_mesh_comm(mesh, LS_GROUP_EXPERT_SHARD), dense->replicas };
    d->mixed = ls_mesh_size(mesh, LS_GROUP_WORLD) > ls_mesh_size(mesh, LS_GROUP_DATA) || ls_mesh_size(mesh, LS_GROUP_EP) > 1;
    return LS_OK;
}

/* With one rank, all methods do the same. */
static void data_use_method(struct data_parallel *d)
{
    const struct method *m = method_of(d->o.method);

    d->method = d->groups[GROUPS_DENSE].shard ? m : method_of(LS_METHOD_ALLREDUCE);
    if (!d->method->rooted) return;
    d->o.zero = m->zero;
    if (!m->keeps) return;
    d->o.reshard_after_forward = 0;
    d->o.overlap = 0;
}

static ls_status data_parallel_open(ls_comm *comm, const ls_mesh *mesh, const ls_data_parallel_options *o, struct data_parallel **out)
{
    struct data_parallel *d = mem_zalloc(MEM_OTHER, sizeof *d);
    ls_status st = LS_OK;

    if (!d) return LS_ENOMEM;
    d->o = d->requested = *o;
    if (o->offload == LS_OFFLOAD_FILE || o->offload_parameters == LS_OFFLOAD_FILE) {
        d->o.offload_path = d->path = mem_strdup(o->offload_path);
        st = d->path ? LS_OK : LS_ENOMEM;
    }
    if (st == LS_OK) st = find_ranks(d, comm, mesh);
    if (!d->groups[GROUPS_DENSE].shard) d->o.zero = 0;
    data_use_method(d);
    if (st < 0) {
        data_parallel_close(d);
        return st;
    }
    *out = d;
    return LS_OK;
}

static ls_status check_alike(const struct data_parallel *d, const ls_comm *comm, const ls_mesh *mesh, const ls_data_parallel_options *o)
{
    const ls_data_parallel_options *m = &d->requested;

    if (d->world != comm || d->mesh != mesh)
        return ls_fail(LS_EINVAL, "data parallelism: another program of this store is distributed over other ranks");
    if (m->method != o->method)
        return ls_fail(LS_EINVAL, "data parallelism: another program of this store has method %s; this one %s",
                       layout_method_name(m->method), layout_method_name(o->method));
    if (m->zero != o->zero || m->replicate != o->replicate || m->reduce != o->reduce || m->offload != o->offload ||
        m->unsharded_accumulation != o->unsharded_accumulation || m->fsdp_unit != o->fsdp_unit ||
        m->offload_parameters != o->offload_parameters)
        return ls_fail(LS_EINVAL,
                       "data parallelism: another program of this store has zero %d, replicate %d, reduce %s, offload %d, "
                       "unsharded_accumulation %d, fsdp_unit %d, offload_parameters %d; this one %d, %d, %s, %d, %d, %d, %d",
                       m->zero, m->replicate, ls_dtype_name(m->reduce), (int)m->offload, m->unsharded_accumulation, m->fsdp_unit,
                       (int)m->offload_parameters, o->zero, o->replicate, ls_dtype_name(o->reduce), (int)o->offload,
                       o->unsharded_accumulation, o->fsdp_unit, (int)o->offload_parameters);
    return LS_OK;
}

static ls_status set_options(ls_program *p, ls_comm *comm, const ls_mesh *mesh, const ls_data_parallel_options *o)
{
    struct data_parallel *d = store_attached(p->store);
    ls_layout l = layout_of_ranks(comm, mesh, o);

    LS_TRY(ls_program_status(p));
    LS_TRY(layout_check_axes(&l));
    LS_TRY(layout_check_groups(&l));
    LS_TRY(layout_check_data_parallel(&l));
    if (p->results.compiled || p->arguments.distribution.pass)
        return ls_fail(LS_EINVAL, "data parallelism: the program is %s already", p->results.compiled ? "compiled" : "distributed");
    if (d) {
        LS_TRY(check_alike(d, comm, mesh, o));
    } else {
        LS_TRY(data_parallel_open(comm, mesh, o, &d));
        store_attach(p->store, d, data_parallel_close);
    }
    if (ranks_of(comm) > 1 || d->o.offload || d->o.offload_parameters)
        p->arguments.distribution = (struct distribution){ .pass = run_pass, .ctx = d };
    p->arguments.arena_comm = mesh ? comm : d->groups[GROUPS_DENSE].shard;
    return LS_OK;
}

static const ls_data_parallel_options defaults = LS_DATA_PARALLEL_DEFAULTS;

ls_status ls_data_parallel(ls_program *p, ls_comm *comm, const ls_data_parallel_options *options)
{
    return set_options(p, comm, NULL, options ? options : &defaults);
}

ls_status ls_data_parallel_mesh(ls_program *p, const ls_mesh *mesh, const ls_data_parallel_options *options)
{
    ls_data_parallel_options o = options ? *options : defaults;

    o.replicate = ls_mesh_get_shape(mesh).replicate;
    return set_options(p, ls_mesh_comm(mesh, LS_GROUP_WORLD), mesh, &o);
}
