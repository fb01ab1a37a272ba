/* model_axis_grads.c - sums of gradients over ranks other than data, once per step, before the optimizer.
 *
 *     over tp     for parameters replicated over tp of whose gradient each rank has a partial sum (norms of a sequence that is sharded over
 * tp) over ends   for parameters that the first and the last stage share (tied embedding and head)
 *
 * The sums are in place, over the elements that this rank updates: the ranks of such a sum have the same units with the same layout, and
 * the same shard of them. They run in the store's order, which is the same on all ranks whatever the order of the data reductions.
 */
#include "parallel/zero/zero.h"

static int first_param(const struct pass *a, const struct unit *u) { return unit_stored(a, u)->params[0]; }

/* The unit of the class whose first parameter follows `param` most closely; NULL: none. */
static struct unit *next_unit(const struct pass *a, unsigned class, int param)
{
    struct unit *next = NULL;

    for (int g = 0; g < a->nunits; g++) {
        struct unit *u = &a->unit[g];

        if ((u->class & class) && first_param(a, u) > param && (!next || first_param(a, u) < first_param(a, next))) next = u;
    }
    return next;
}

/* From here on u->reduction is this sum. */
static void model_axis_grads_start(struct pass *a, struct unit *u, ls_axis axis, ls_comm *comm)
{
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .axis = axis, .comm = comm, .redop = LS_SUM };
    ls_value in = unit_reduced(a, u);

    emit_wait(a->p, &u->reduction);
    if (!in.id) return;
    e.total = value_count(program_value(a->p, in));
    ls_value out = emit_part(a->p, in, 0, e.total, value_place(a->p, in));
    value_set_place_on(a->p, out, axis, LS_REPLICATE);
    if (out.id && e.total) emit_start(a->p, &u->reduction, &e, LS_WHEN_ALWAYS, in, out);
    u->reduced = out;
    if (!a->d->o.overlap) emit_wait(a->p, &u->reduction);
}

static void sum_class(struct pass *a, unsigned class, ls_axis axis, ls_group group)
{
    int param = -1;

    for (struct unit *u = next_unit(a, class, param); u && program_ok(a->p); u = next_unit(a, class, param)) {
        param = first_param(a, u);
        model_axis_grads_start(a, u, axis, ls_mesh_comm(a->d->mesh, group));
    }
}

void sum_over_mesh(struct pass *a)
{
    sum_class(a, CLASS_TP, LS_AXIS_TP, LS_GROUP_TP);
    sum_class(a, CLASS_ENDS, LS_AXIS_PP, LS_GROUP_ENDS);
}
