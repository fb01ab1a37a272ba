/* fsdp_units.c - properties of units: parameters that are stored and communicated together. bucketing.c creates them. */
#include "parallel/zero/zero.h"

#include <stdio.h>
#include <string.h>

const struct store_unit *unit_stored(const struct pass *a, const struct unit *u) { return store_unit_at(a->p->store, u->index); }

struct unit *unit_of(const struct pass *a, const struct value *root)
{
    int g = root->param < 0 ? -1 : store_unit_of(a->p->store, (size_t)root->param);

    return g < 0 || g >= a->nunits ? NULL : &a->unit[g];
}

bool data_is_distributed(const struct pass *a) { return a->d->world && ls_comm_size(a->d->world) > 1; }

bool data_has_units(const struct pass *a) { return a->d->o.zero == 3 || a->d->o.offload_parameters; }

int unit_zero(const struct pass *a, const struct unit *u) { return u->groups->shard ? a->d->o.zero : 0; }

bool data_parallel_shards(const struct pass *a, const struct zero_groups *groups, enum store_kind kind)
{
    const ls_data_parallel_options *o = &a->d->o;

    if (!groups->shard) return false;
    return kind == STORE_STATE ? o->zero >= 1 : kind == STORE_GRAD ? o->zero >= 2 && !o->unsharded_accumulation : o->zero == 3;
}

size_t unit_begin(const struct pass *a, const struct unit *u) { return unit_zero(a, u) ? unit_stored(a, u)->begin : 0; }

size_t unit_end(const struct pass *a, const struct unit *u) { return unit_zero(a, u) ? unit_stored(a, u)->end : unit_stored(a, u)->total; }

static int rank_in(const ls_comm *comm) { return comm ? ls_comm_rank(comm) : 0; }

bool unit_counts(const struct pass *a, const struct unit *u)
{
    if (u->class & CLASS_SIGN) return false;
    if (!a->d->mixed) return true;
    if (u->class & CLASS_NOT_OWNER) return false;
    return rank_in(unit_zero(a, u) ? u->groups->replicas : u->groups->all) == 0;
}

unsigned unit_class(const struct pass *a, size_t i)
{
    const ls_placement *place = store_placement(a->p->store, i);
    const ls_mesh *mesh = a->d->mesh;
    unsigned type = (unsigned)store_value_type(a->p->store, i) << CLASS_TYPE;
    unsigned sign = type | (store_sign_rate(a->p->store, i) != 0 ? CLASS_SIGN : 0u);

    if (!a->d->mixed) return sign;
    return sign | (store_is_joint(a->p->store, i) ? CLASS_JOINT : 0u) | (place[LS_AXIS_EP].kind == LS_SHARD ? CLASS_EXPERT : 0u) |
           (place[LS_AXIS_PP].partial_gradient && ls_mesh_comm(mesh, LS_GROUP_ENDS) ? CLASS_ENDS : 0u) |
           (place[LS_AXIS_TP].partial_gradient && ls_mesh_comm(mesh, LS_GROUP_TP) ? CLASS_TP : 0u) |
           (store_is_owner(a->p->store, i) ? 0u : CLASS_NOT_OWNER);
}

const struct zero_groups *unit_groups(const struct pass *a, unsigned class)
{
    return &a->d->groups[class & CLASS_EXPERT ? GROUPS_EXPERTS : GROUPS_DENSE];
}

void unit_mark_sums(ls_program *p, const struct unit *u, ls_value x)
{
    if (u->class & CLASS_TP) value_set_place_on(p, x, LS_AXIS_TP, LS_PARTIAL);
    if (u->class & CLASS_ENDS) value_set_place_on(p, x, LS_AXIS_PP, LS_PARTIAL);
}

ls_value unit_gradient(struct pass *a, const struct unit *u)
{
    ls_value x = program_unit_value(a->p, u->index, STORE_GRAD, NULL);

    unit_mark_sums(a->p, u, x);
    return x;
}

ls_value unit_value(struct pass *a, const struct unit *u, const char *what, ls_dtype type, size_t count)
{
    char name[300];

    if (!data_has_units(a))
        snprintf(name, sizeof name, "bucket.%d/%s", u->index, what);
    else if (a->d->o.fsdp_unit == 0)
        snprintf(name, sizeof name, "model/%s", what);
    else if (u->block && u->last_block > u->block && a->d->o.fsdp_unit > 1)
        snprintf(name, sizeof name, "%.100s..%.100s/%s", a->p->blocks[u->block], a->p->blocks[u->last_block], what);
    else if (u->block)
        snprintf(name, sizeof name, "%.100s/%s", a->p->blocks[u->block], what);
    else
        snprintf(name, sizeof name, "%.100s/%s", ls_store_name(a->p->store, (size_t)unit_stored(a, u)->params[0]), what);
    ls_value v = program_comm_value(a->p, name, type, count);

    bool gradient = strncmp(what, "gradient", 8) == 0;

    if (v.id && (gradient || strcmp(what, "parameters") == 0)) {
        program_value(a->p, v)->flat = u->index + 1;
        program_value(a->p, v)->flat_gradient = gradient;
    }
    return v;
}
