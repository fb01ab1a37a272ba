/* fault_sums.c - injected faults of gradient reductions, the gradient norm and the optimizer: they edit the program after the data parallel
 * pass. */
#include "train/faults/fault_edit.h"

#include <string.h>
#include "base/mem.h"
#include "ir/op_info.h"
#include "runtime/store.h"

/* ---- properties of values ---- */

/* The store's unit whose gradients v holds: the store's own, those of a micro-batch, or their rounded copy for a reduction; -1: none. */
static int gradient_unit(const ls_program *p, ls_value v)
{
    const struct value *root = root_value(p, v);

    if (root->role == LS_ROLE_GRADIENT) return root->unit;
    return root->flat_gradient ? root->flat - 1 : -1;
}

static bool is_sum(const struct instruction *i)
{
    return instruction_exchange(i)->op == LS_COLLECTIVE_ALL_REDUCE || instruction_exchange(i)->op == LS_COLLECTIVE_REDUCE_SCATTER;
}

static bool is_gradient_sum(const ls_program *p, const struct instruction *i, ls_axis axis)
{
    return instruction_is_start(i) && is_sum(i) && instruction_exchange(i)->axis == axis && gradient_unit(p, i->in[0]) >= 0;
}

static bool has_experts(const ls_program *p, int unit)
{
    return unit >= 0 && store_placement(p->store, (size_t)store_unit_at(p->store, unit)->params[0])[LS_AXIS_EP].kind == LS_SHARD;
}

enum { COPIES = 3 }; /* copies in a row that a gradient goes through: rounded for the reduction, and back */

/* After a sum over `axis` was removed: makes everything that shares x's bytes a partial sum, and what is copied or accumulated from it. */
static void set_partial(ls_program *p, ls_value x, ls_axis axis, int copies)
{
    int root = p->values[x.id].root;

    for (int v = 1; v < p->nvalues; v++)
        if (p->values[v].root == root) p->values[v].place[axis] = (ls_placement){ .kind = LS_PARTIAL };
    for (int s = SEG_BACKWARD; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            if ((i->op == OP_COPY || i->op == OP_ACCUMULATE) && p->values[i->in[0].id].root == root &&
                p->values[i->out[0].id].root != root && copies)
                set_partial(p, i->out[0], axis, copies - 1);
        }
}

static void remove_sum(ls_program *p, enum segment s, int at)
{
    struct instruction i = p->list[s].at[at];

    exchange_remove(p, s, at);
    set_partial(p, i.out[0], instruction_exchange(&i)->axis, COPIES);
}

/* Repeats the sum at list[s].at[at]; an all-reduce is repeated on its own result. Returns the number of new instructions. */
static int repeat_sum(ls_program *p, enum segment s, int at)
{
    struct instruction first = p->list[s].at[at];
    int before = p->list[s].n;

    exchange_repeat(p, s, at);
    for (int k = 0; k < SEGMENTS && program_ok(p) && instruction_exchange(&first)->op == LS_COLLECTIVE_ALL_REDUCE; k++)
        for (int n = 0; n < p->list[k].n; n++) {
            struct instruction *i = &p->list[k].at[n];

            if (instruction_is_exchange(i) && instruction_exchange(i)->id == instruction_exchange(&first)->id) i->in[0] = first.out[0];
        }
    return p->list[s].n - before;
}

/* ---- data-parallel reductions ---- */

static void set_average(struct instruction *sum)
{
    struct exchange e = *instruction_exchange(sum);

    e.redop = LS_AVG;
    instruction_set_exchange(sum, &e);
}

ls_status edit_average(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int s = SEG_BACKWARD; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (is_gradient_sum(p, &p->list[s].at[n], LS_AXIS_DP)) set_average(&p->list[s].at[n]);
    return LS_OK;
}

ls_status edit_expert_group(ls_program *p, const struct injection *i)
{
    for (int s = SEG_BACKWARD; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            struct instruction *sum = &p->list[s].at[n];

            if (!is_gradient_sum(p, sum, LS_AXIS_DP) || !has_experts(p, gradient_unit(p, sum->in[0]))) continue;
            struct exchange e = *instruction_exchange(sum);
            if (!i->checked && e.op == LS_COLLECTIVE_REDUCE_SCATTER)
                return ls_fail(LS_EUNSUPPORTED, "injected fault expert_group: gradients of experts are sharded over their own ranks");
            e.comm = ls_mesh_comm(i->mesh, LS_GROUP_DATA);
            instruction_set_exchange(sum, &e);
        }
    return LS_OK;
}

ls_status edit_skip_bucket(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int s = SEG_WEIGHTS; s >= SEG_BACKWARD; s--)
        for (int n = p->list[s].n - 1; n >= 0; n--)
            if (is_gradient_sum(p, &p->list[s].at[n], LS_AXIS_DP)) {
                remove_sum(p, (enum segment)s, n);
                return LS_OK;
            }
    return LS_OK;
}

/* Returns the index in list[s] of the instruction that adds sum x to a shard; -1: there is none. */
static int find_addition(const ls_program *p, enum segment s, ls_value x)
{
    for (int n = 0; n < p->list[s].n; n++)
        if (p->list[s].at[n].op == OP_ACCUMULATE && reads(&p->list[s].at[n], x)) return n;
    return -1;
}

static ls_status repeat_reduction(ls_program *p, enum segment s, int at)
{
    int add = find_addition(p, s, p->list[s].at[at].out[0]);
    int end = p->list[s].n;

    if (add < 0) {
        repeat_sum(p, s, at);
        return ls_program_status(p);
    }
    struct instruction again = p->list[s].at[add];
    LS_TRY(list_push(&p->list[s], &again));
    list_move_tail(&p->list[s], end, add);
    return LS_OK;
}

ls_status edit_twice(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int s = SEG_BACKWARD; s <= SEG_WEIGHTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (is_gradient_sum(p, &p->list[s].at[n], LS_AXIS_DP)) return repeat_reduction(p, (enum segment)s, n);
    return LS_OK;
}

/* ---- sums over other axes, in the optimizer segment ---- */

static ls_status remove_sums(ls_program *p, ls_axis axis)
{
    for (int n = p->list[SEG_OPTIMIZER].n - 1; n >= 0; n--)
        if (is_gradient_sum(p, &p->list[SEG_OPTIMIZER].at[n], axis)) {
            remove_sum(p, SEG_OPTIMIZER, n);
            n = MIN(n, p->list[SEG_OPTIMIZER].n);
        }
    return LS_OK;
}

ls_status edit_tied_unsummed(ls_program *p, const struct injection *i)
{
    (void)i;
    return remove_sums(p, LS_AXIS_PP);
}

ls_status edit_tp_unsummed(ls_program *p, const struct injection *i)
{
    (void)i;
    return remove_sums(p, LS_AXIS_TP);
}

ls_status edit_tp_twice(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int n = 0; n < p->list[SEG_OPTIMIZER].n && program_ok(p); n++)
        if (is_gradient_sum(p, &p->list[SEG_OPTIMIZER].at[n], LS_AXIS_TP)) n += repeat_sum(p, SEG_OPTIMIZER, n);
    return ls_program_status(p);
}

/* ---- the norm ---- */

ls_status edit_local_norm(ls_program *p, const struct injection *i)
{
    struct list *l = &p->list[SEG_OPTIMIZER];

    (void)i;
    for (int clip = 0; clip < l->n; clip++)
        for (int n = clip; n >= 0 && l->at[clip].op == OP_CLIP_FACTOR; n--)
            if (instruction_is_start(&l->at[n]) && is_sum(&l->at[n]) && reads(&l->at[clip], l->at[n].out[0])) {
                remove_sum(p, SEG_OPTIMIZER, n);
                return LS_OK;
            }
    return LS_OK;
}

static int unit_of(const ls_program *p, const struct instruction *i)
{
    for (int k = 0; k < i->nin + i->nout; k++) {
        const struct value *root = root_value(p, k < i->nin ? i->in[k] : i->out[k - i->nin]);

        if (root->unit >= 0) return root->unit;
    }
    return -1;
}

/* Removes the squares and norms of all units, or of those with experts, from the gradient norm. */
static void leave_out_of_norm(ls_program *p, bool experts_alone)
{
    struct list *l = &p->list[SEG_OPTIMIZER];

    for (int n = l->n - 1; n >= 0; n--) {
        struct instruction *i = &l->at[n];
        enum optimizer_stage stage = op_info(i->op)->stage;

        if ((stage != OPTIMIZER_SQUARES && stage != OPTIMIZER_NORMS) || (experts_alone && !has_experts(p, unit_of(p, i)))) continue;
        if (i->op == OP_SUM_SQUARES || i->op == OP_LARS_NORMS)
            list_remove(l, n);
        else
            i->out[i->nout - 1] = LS_NONE; /* LAMB's moments are still updated */
    }
}

ls_status edit_norm_stages(ls_program *p, const struct injection *i)
{
    if (ls_mesh_index(i->mesh, LS_GROUP_PP) > 0) leave_out_of_norm(p, false);
    return LS_OK;
}

ls_status edit_norm_experts(ls_program *p, const struct injection *i)
{
    if (ls_mesh_index(i->mesh, LS_GROUP_EP) > 0) leave_out_of_norm(p, true);
    return LS_OK;
}

/* ---- gradients and updates ---- */

/* Inserts at position `at` an instruction that multiplies this rank's shard of a unit's gradients in place. */
static void fault_sums_multiply(ls_program *p, int at, int unit, double factor)
{
    struct op_attr attr = { .scale = { factor } };
    struct list *l = &p->list[SEG_OPTIMIZER];
    int end = l->n;

    struct cursor before = cursor_in(p, SEG_OPTIMIZER, &l->at[at]);
    ls_value all = program_unit_value(p, unit, STORE_GRAD, NULL);
    size_t count = all.id ? value_count(program_value(p, all)) : 0;
    ls_value x = all.id ? program_view(p, all, (struct view_rule){ VIEW_SLICE, 0, 0, 0 }, 1, &count, (ptrdiff_t[]){ 1 }, 0) : LS_NONE;
    for (int a = 0; x.id && a < LS_AXES; a++) program_value(p, x)->place[a] = (ls_placement){ .kind = LS_REPLICATE };
    if (x.id && count) program_emit(p, OP_SCALE, &attr, 1, &x, 1, &x);
    program_cursor_end(p, before);
    if (program_ok(p)) list_move_tail(l, end, at);
}

static bool reads_gradient(const ls_program *p, const struct instruction *i, int unit)
{
    for (int k = 0; k < i->nin; k++)
        if (root_value(p, i->in[k])->role == LS_ROLE_GRADIENT && root_value(p, i->in[k])->unit == unit) return true;
    return false;
}

static bool fault_sums_is_exchange(int op) { return op == OP_COMM_START || op == OP_COMM_WAIT || op == OP_VIEW; }

ls_status edit_expert_times_ep(ls_program *p, const struct injection *i)
{
    for (int g = 0; g < store_units(p->store) && program_ok(p); g++)
        for (int n = 0; has_experts(p, g) && n < p->list[SEG_OPTIMIZER].n; n++) {
            const struct instruction *first = &p->list[SEG_OPTIMIZER].at[n];

            if (fault_sums_is_exchange(first->op) || !reads_gradient(p, first, g)) continue;
            fault_sums_multiply(p, n, g, ls_mesh_size(i->mesh, LS_GROUP_EP));
            break;
        }
    return ls_program_status(p);
}

/* The parameters that instruction i updates; LS_NONE: it is not an update. */
static ls_value updated(const ls_program *p, const struct instruction *i)
{
    for (int k = 0; k < i->nout && op_info(i->op)->stage == OPTIMIZER_UPDATE; k++)
        if (i->out[k].id && root_value(p, i->out[k])->role == LS_ROLE_PARAMETER) return i->out[k];
    return LS_NONE;
}

static ptrdiff_t end_of(const ls_program *p, ls_value v) { return p->values[v.id].offset + (ptrdiff_t)value_count(&p->values[v.id]); }

/* True if no other update writes elements of the unit after these. */
static bool is_last(const ls_program *p, ls_value own)
{
    const struct list *l = &p->list[SEG_OPTIMIZER];

    for (int n = 0; n < l->n; n++) {
        ls_value other = updated(p, &l->at[n]);

        if (other.id && p->values[other.id].root == p->values[own.id].root && end_of(p, other) > end_of(p, own)) return false;
    }
    return true;
}

static void shorten(ls_program *p, int at, size_t count)
{
    struct list *l = &p->list[SEG_OPTIMIZER];
    struct instruction i = l->at[at];
    int end = l->n;
    size_t fewer = count - 1;

    struct cursor before = cursor_in(p, SEG_OPTIMIZER, &i);
    for (int k = 0; k < i.nin + i.nout && program_ok(p); k++) {
        ls_value *v = k < i.nin ? &i.in[k] : &i.out[k - i.nin];
        const struct value *x = &p->values[v->id];

        if (v->id && x->ndim == 1 && x->size[0] == count)
            *v = program_view(p, *v, (struct view_rule){ VIEW_SLICE, 0, 0, 0 }, 1, &fewer, (ptrdiff_t[]){ 1 }, 0);
    }
    program_cursor_end(p, before);
    if (!program_ok(p)) return;
    l->at[at] = i;
    list_move_tail(l, end, at);
}

static void leave_out_last(ls_program *p, const bool *last, int n)
{
    while (n-- > 0 && program_ok(p)) {
        size_t count = last[n] ? value_count(program_value(p, updated(p, &p->list[SEG_OPTIMIZER].at[n]))) : 0;

        if (count > 1)
            shorten(p, n, count);
        else if (count == 1)
            list_remove(&p->list[SEG_OPTIMIZER], n);
    }
}

ls_status edit_boundary(ls_program *p, const struct injection *i)
{
    const struct list *l = &p->list[SEG_OPTIMIZER];
    bool *last = mem_array(MEM_OTHER, (size_t)l->n + 1, sizeof *last);

    (void)i;
    if (!last) return LS_ENOMEM;
    for (int n = 0; n < l->n; n++) {
        ls_value own = updated(p, &l->at[n]);

        last[n] = own.id && is_last(p, own);
    }
    leave_out_last(p, last, l->n);
    mem_free(last);
    return ls_program_status(p);
}
