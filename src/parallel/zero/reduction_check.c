/* reduction_check.c - verifies a distributed program: every partial sum is reduced exactly once, before it is used.
 *
 *     a reduction needs a partial sum: anything else has been reduced before, and would count n times
 *     it runs over the ranks that have a partial sum: the data ranks, and for experts those with the same experts
 *     the optimizer reads no partial sums: gradients have been reduced over data, over tp, and between the end stages
 */
#include "parallel/zero/zero.h"

#include <stdio.h>
#include "ir/op_info.h"

static const char *tensor_name(const ls_program *p, ls_value v, char *text)
{
    const struct value *x = &p->values[v.id], *root = &p->values[x->root];
    char shape[96];

    snprintf(text, 200, "'%.90s' %s", root->role == LS_ROLE_ACTIVATION ? x->name : root->name, value_shape(x, shape));
    return text;
}

static bool is_partial(const ls_program *p, ls_value v, ls_axis axis) { return p->values[v.id].place[axis].kind == LS_PARTIAL; }

/* True for a reduction that the pass inserted: any over dp; over other axes, one of a gradient in the store. */
static bool is_sum(const ls_program *p, const struct instruction *i)
{
    const struct exchange *e = instruction_is_start(i) ? instruction_exchange(i) : NULL;

    if (!e || (e->op != LS_COLLECTIVE_ALL_REDUCE && e->op != LS_COLLECTIVE_REDUCE_SCATTER)) return false;
    return e->axis == LS_AXIS_DP || p->values[p->values[i->in[0].id].root].role == LS_ROLE_GRADIENT;
}

static ls_status check_sum(const struct pass *a, const struct instruction *i)
{
    const ls_program *p = a->p;
    const struct value *root = &p->values[p->values[i->in[0].id].root];
    const struct zero_groups *groups = root->unit >= 0 ? a->unit[root->unit].groups : NULL;
    const struct exchange *e = instruction_exchange(i);
    char name[200];

    if (!is_partial(p, i->in[0], e->axis))
        return ls_fail(LS_EINVAL, "%s of %s over %s: it is not a partial sum: it has been reduced already, or needs no reduction",
                       ls_collective_name(e->op), tensor_name(p, i->in[0], name), axis_name(e->axis));
    if (groups && e->axis == LS_AXIS_DP && e->comm != groups->all && e->comm != groups->shard && e->comm != groups->replicas)
        return ls_fail(LS_EINVAL, "%s of %s over dp: its %d ranks are not the ranks that have partial sums", ls_collective_name(e->op),
                       tensor_name(p, i->in[0], name), ls_comm_size(e->comm));
    return LS_OK;
}

/* A linear function of one partial sum (a copy, rounded to be communicated) is a partial sum too; its readers are checked in turn. */
static bool stays_partial(const ls_program *p, const struct instruction *i, ls_axis axis)
{
    return i->nin == 1 && (op_info(i->op)->traits & TRAIT_LINEAR) && is_partial(p, i->out[0], axis);
}

static ls_status check_read(const ls_program *p, const struct instruction *i)
{
    static const ls_axis axes[] = { LS_AXIS_DP, LS_AXIS_TP, LS_AXIS_PP };
    char name[200];

    for (int k = 0; k < i->nin; k++)
        for (size_t x = 0; x < COUNT_OF(axes) && i->in[k].id; x++)
            if (is_partial(p, i->in[k], axes[x]) && !stays_partial(p, i, axes[x]))
                return ls_fail(LS_EINVAL, "%s reads %s, which is still a partial sum over %s; a reduction is missing",
                               program_op_name(i->op), tensor_name(p, i->in[k], name), axis_name(axes[x]));
    return LS_OK;
}

ls_status check_placements(const struct pass *a)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < a->p->list[s].n; n++) {
            const struct instruction *i = &a->p->list[s].at[n];

            if (is_sum(a->p, i)) LS_TRY(check_sum(a, i));
            if (s == SEG_OPTIMIZER && !instruction_is_view(i) && !instruction_is_exchange(i)) LS_TRY(check_read(a->p, i));
        }
    return LS_OK;
}
