/* param_sharding.c - which dims of a parameter are sharded over tp and ep, given the meaning of each dim in the model's weight table. */
#include "parallel/sharding/partition.h"

#include <string.h>
#include "models/model.h"

/* A dim of a parameter that an axis shards. */
struct sharded_dim {
    ls_axis axis;
    int dim;
    enum model_dim counts;
};

/* The dims that an axis shards, and what messages call their elements. A head is never split; other dims are sharded element by element. */
static const struct {
    enum model_dim counts;
    ls_axis axis;
    const char *name;
} sharded[] = {
    { DIM_VOCAB, LS_AXIS_TP, "vocabulary entries" },
    { DIM_QUERY, LS_AXIS_TP, "query heads" },
    { DIM_KEY, LS_AXIS_TP, "key heads" },
    { DIM_FFN, LS_AXIS_TP, "elements of the ffn" },
    { DIM_EXPERT_FFN, LS_AXIS_TP, "elements of an expert's ffn" },
    { DIM_SHARED_FFN, LS_AXIS_TP, "elements of the shared ffn" },
    { DIM_STACK, LS_AXIS_EP, "experts" },
};

/* Writes the sharded dims of the model's weight `name` to out and returns their number. A parameter that is not the model's has none. */
static int sharded_dims(const struct partitioner *c, const char *name, struct sharded_dim out[MODEL_WEIGHT_DIMS])
{
    enum model_dim dim[MODEL_WEIGHT_DIMS];
    int ndim = model_weight_dims(&c->d->m, name, dim), n = 0;

    for (int d = 0; d < ndim; d++)
        for (size_t k = 0; k < COUNT_OF(sharded); k++)
            if (sharded[k].counts == dim[d]) out[n++] = (struct sharded_dim){ sharded[k].axis, d, dim[d] };
    return n;
}

static const char *count_name(enum model_dim counts)
{
    size_t k = 0;

    while (sharded[k].counts != counts) k++;
    return sharded[k].name;
}

/* With fewer key heads than ranks, every rank holds all of them and uses those it needs. */
static bool is_shared(const struct partitioner *c, enum model_dim counts)
{
    return counts == DIM_KEY && c->d->m.kv_heads < (size_t)c->n[LS_AXIS_TP];
}

static struct dim_split split_of_count(const struct partitioner *c, enum model_dim counts)
{
    const ls_model *m = &c->d->m;
    size_t group = m->kv_heads >= (size_t)c->n[LS_AXIS_TP] ? m->heads / m->kv_heads : 1; /* a query group stays with its key head */
    size_t grain = counts == DIM_QUERY ? group * m->head_size : counts == DIM_KEY ? m->head_size : 1;

    return (struct dim_split){ model_dim_size(m, counts), grain, 0 };
}

static ls_status check_dim(const struct partitioner *c, size_t i, const struct sharded_dim *row, struct dim_split split)
{
    if (row->dim >= ls_store_ndim(c->p->store, i) || ls_store_size(c->p->store, i, row->dim) != split.full)
        return ls_fail(LS_EINVAL, "partition: '%s' has %zu elements in dim %d, but the model has %zu (%s)", ls_store_name(c->p->store, i),
                       row->dim < ls_store_ndim(c->p->store, i) ? ls_store_size(c->p->store, i, row->dim) : 0, row->dim, split.full,
                       count_name(row->counts));
    ASSERT(split.full / MAX(split.grain, 1) >= (size_t)c->n[row->axis]); /* layout_check_model(), which ls_partition() has called */
    return LS_OK;
}

static ls_status shard_dim(struct partitioner *c, size_t i, const struct sharded_dim *row)
{
    struct dim_split split = split_of_count(c, row->counts);
    int n = c->n[row->axis], r = c->rank[row->axis];
    ls_placement *at = &store_placement(c->p->store, i)[row->axis];
    size_t begin = shard_begin(split.full, split.grain, r, n);

    if (n == 1) return LS_OK;
    if (is_shared(c, row->counts)) {
        at->partial_gradient = 1; /* heads that only other ranks use get no gradient here */
        return LS_OK;
    }
    LS_TRY(check_dim(c, i, row, split));
    if (at->kind == LS_SHARD) return LS_OK; /* another program of this store has sharded it */
    *at = (ls_placement){ .kind = LS_SHARD, .dim = row->dim, .grain = split.grain };
    store_set_shard(c->p->store, i, row->dim, begin, shard_begin(split.full, split.grain, r + 1, n) - begin);
    return LS_OK;
}

static ls_status shard_parameter(struct partitioner *c, size_t i)
{
    ls_placement *at = store_placement(c->p->store, i);
    struct sharded_dim dims[MODEL_WEIGHT_DIMS];
    int n = sharded_dims(c, ls_store_name(c->p->store, i), dims);

    for (int k = 0; k < n; k++) LS_TRY(shard_dim(c, i, &dims[k]));
    if (c->n[LS_AXIS_CP] > 1) at[LS_AXIS_CP].partial_gradient = 1;
    if (at[LS_AXIS_TP].kind == LS_REPLICATE && c->rank[LS_AXIS_TP] != 0) store_set_owner(c->p->store, i, false);
    return LS_OK;
}

/* True if a parameter is replicated because it has fewer heads than ranks. */
static bool is_gradient_partial(const struct partitioner *c, const char *name)
{
    struct sharded_dim dims[MODEL_WEIGHT_DIMS];
    int n = sharded_dims(c, name, dims);

    for (int k = 0; k < n; k++)
        if (is_shared(c, dims[k].counts)) return true;
    return false;
}

/* Gives the program's value of a parameter, gradient or state the sizes of this rank's box. */
static void value_take_box(struct partitioner *c, ls_value v)
{
    const struct value *x = program_value(c->p, v);
    size_t i = (size_t)x->param;
    struct sharding *l = sharding_of(c, v);

    for (int d = 0; d < x->ndim; d++) value_resize(c, v, d, store_local_size(c->p->store, i, d));
    l->needs_grad = x->role == LS_ROLE_PARAMETER && !ls_store_is_frozen(c->p->store, i);
    memcpy(program_value(c->p, v)->place, store_placement(c->p->store, i), sizeof x->place);
    for (int a = 0; a < LS_AXES; a++)
        if (x->place[a].kind == LS_SHARD) l->full[a] = l->size[x->place[a].dim];
    l->partial_gradient = l->needs_grad && is_gradient_partial(c, ls_store_name(c->p->store, i));
}

ls_status shard_parameters(struct partitioner *c)
{
    for (size_t i = 0; i < ls_store_count(c->p->store); i++)
        if (store_is_here(c->p->store, i)) LS_TRY(shard_parameter(c, i));
    for (int v = 1; v < c->p->nvalues; v++)
        if (c->p->values[v].param >= 0 && store_is_here(c->p->store, (size_t)c->p->values[v].param)) value_take_box(c, (ls_value){ v });
    return LS_OK;
}
