/* typed.c - the last look at a spread program: what is a partial sum is added up once before it is used, and only then.
 *
 *     a reduction wants a partial sum: anything else has been added up before, and would count n times
 *     the optimizer wants none: what it reads has been added up
 */
#include "parallel/data.h"

#include <stdio.h>

static const char *tensor_name(const ls_program *p, ls_value v, char *text)
{
    const struct value *x = &p->values[v.id], *root = &p->values[x->root];
    char shape[96];

    snprintf(text, 200, "'%.90s' %s", root->role == LS_ROLE_ACTIVATION ? x->name : root->name, value_shape(x, shape));
    return text;
}

static bool is_sum(ls_collective op) { return op == LS_COLLECTIVE_ALL_REDUCE || op == LS_COLLECTIVE_REDUCE_SCATTER; }

static ls_status check_instruction(const ls_program *p, enum segment s, const struct instruction *i)
{
    char name[200];

    if (i->op == OP_COMM_START && is_sum(i->exchange.op) && value_place(p, i->in[0]) != LS_PARTIAL)
        return ls_fail(LS_EINVAL, "%s of %s over dp: it is no partial sum; it has been reduced before, or needs no reduction",
                       ls_collective_name(i->exchange.op), tensor_name(p, i->in[0], name));
    if (s != SEG_OPTIMIZER || i->op == OP_VIEW || i->op == OP_COMM_START || i->op == OP_COMM_WAIT)
        return LS_OK;
    for (int k = 0; k < i->nin; k++)
        if (i->in[k].id && value_place(p, i->in[k]) == LS_PARTIAL)
            return ls_fail(LS_EINVAL, "%s reads %s, which is still a partial sum over dp; a reduction is missing",
                           program_op_name(i->op), tensor_name(p, i->in[k], name));
    return LS_OK;
}

ls_status check_placements(const ls_program *p)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            LS_TRY(check_instruction(p, (enum segment)s, &p->list[s].at[n]));
    return LS_OK;
}
