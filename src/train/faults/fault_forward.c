/* fault_forward.c - injected faults of sharded models and pipelines: they edit the forward before the gradient pass, the gradient, the
 * recomputed layers and the attention ring. */
#include "train/faults/fault_edit.h"

#include <string.h>
#include "base/mem.h"
#include "runtime/store.h"

static struct list *forward_list(ls_program *p) { return &p->list[SEG_FORWARD]; }

static bool is_move_on_axis(const struct instruction *i, enum move_kind kind, ls_axis axis)
{
    return instruction_is_move(i, kind) && instruction_move(i)->axis == axis;
}

static void set_kind(struct instruction *i, enum move_kind kind)
{
    struct move m = *instruction_move(i);

    m.kind = kind;
    instruction_set_move(i, &m);
}

/* ---- moves ---- */

/* Makes all readers of y read x, and all views of y views of x. */
static ls_status replace_reads(ls_program *p, ls_value y, ls_value x)
{
    const struct value *to = program_value(p, x);

    for (int n = 0; n < forward_list(p)->n; n++)
        for (int k = 0; k < forward_list(p)->at[n].nin; k++)
            if (forward_list(p)->at[n].in[k].id == y.id) forward_list(p)->at[n].in[k] = x;
    for (int v = 1; v < p->nvalues; v++) {
        if (v == y.id || p->values[v].root != y.id) continue;
        if (!value_is_contiguous(to))
            return ls_fail(LS_EUNSUPPORTED, "injected fault: cannot replace '%s': it has views, and '%s' is not contiguous",
                           p->values[y.id].name, to->name);
        p->values[v].root = to->root;
        p->values[v].offset += to->offset;
    }
    return LS_OK;
}

ls_status edit_no_dgrad_reduce(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int n = forward_list(p)->n - 1; n >= 0; n--) {
        struct instruction identity = forward_list(p)->at[n];

        if (!instruction_is_move(&identity, MOVE_IDENTITY) || program_value(p, identity.out[0])->role != LS_ROLE_ACTIVATION) continue;
        list_remove(forward_list(p), n);
        LS_TRY(replace_reads(p, identity.out[0], identity.in[0]));
    }
    return LS_OK;
}

/* The move that replaces the all-reduce communicates nothing in the forward; its gradient is an all-reduce. */
ls_status edit_no_reduce(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int n = 0; n < forward_list(p)->n; n++)
        if (is_move_on_axis(&forward_list(p)->at[n], MOVE_ALL_REDUCE, LS_AXIS_TP)) set_kind(&forward_list(p)->at[n], MOVE_IDENTITY);
    return LS_OK;
}

ls_status edit_double_reduce(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int n = 0; n < forward_list(p)->n && program_ok(p); n++) {
        struct instruction once = forward_list(p)->at[n];
        int end = forward_list(p)->n;

        if (!is_move_on_axis(&once, MOVE_ALL_REDUCE, LS_AXIS_TP) && !is_move_on_axis(&once, MOVE_REDUCE_SCATTER, LS_AXIS_TP)) continue;
        struct cursor before = cursor_in(p, SEG_FORWARD, &once);
        ls_value sum = value_clone(p, "reduce", once.in[0]);
        if (sum.id) program_value(p, sum)->place[LS_AXIS_TP] = (ls_placement){ .kind = LS_REPLICATE };
        program_emit(p, OP_MOVE, NULL, 1, once.in, 1, &sum);
        program_cursor_end(p, before);
        if (!program_ok(p)) break;
        instruction_set_move(&forward_list(p)->at[end], instruction_move(&once));
        set_kind(&forward_list(p)->at[end], MOVE_ALL_REDUCE);
        forward_list(p)->at[n].in[0] = sum;
        list_move_tail(forward_list(p), end, n);
        n++;
    }
    return ls_program_status(p);
}

ls_status edit_wrong_group(ls_program *p, const struct injection *i)
{
    ls_group beside_tp = ls_mesh_comm(i->mesh, LS_GROUP_CP) ? LS_GROUP_CP : LS_GROUP_DP;

    for (int n = 0; n < forward_list(p)->n; n++) {
        struct instruction *at = &forward_list(p)->at[n];
        struct move m;

        if (at->op != OP_MOVE) continue;
        m = *instruction_move(at);
        ls_comm *other = ls_mesh_comm(i->mesh, m.axis == LS_AXIS_TP ? beside_tp : LS_GROUP_TP);
        if (other) m.comm = other;
        instruction_set_move(at, &m);
    }
    return LS_OK;
}

/* ---- attributes ---- */

ls_status edit_no_partial(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int v = 1; v < p->nvalues; v++) {
        struct value *x = &p->values[v];

        if (x->role != LS_ROLE_PARAMETER || x->param < 0) continue;
        x->place[LS_AXIS_TP].partial_gradient = 0;
        store_placement(p->store, (size_t)x->param)[LS_AXIS_TP].partial_gradient = 0;
    }
    return LS_OK;
}

ls_status edit_mask(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int n = 0; n < forward_list(p)->n; n++) {
        struct op_attr *a = &forward_list(p)->at[n].attr;

        if (forward_list(p)->at[n].op != OP_DROPOUT) continue;
        a->dropout.full = 0;
        memset(a->dropout.begin, 0, sizeof a->dropout.begin);
        memset(a->dropout.count, 0, sizeof a->dropout.count);
    }
    return LS_OK;
}

/* ---- the loss ---- */

/* True for a loss over a shard of the sequence. */
static bool is_loss(const ls_program *p, const struct instruction *i)
{
    return (i->op == OP_LINEAR_XENT || i->op == OP_VOCAB_XENT) && p->values[i->in[0].id].place[LS_AXIS_CP].kind == LS_SHARD;
}

ls_status edit_loss_twice(ls_program *p, const struct injection *i)
{
    struct op_attr attr = { .scale = { ls_mesh_size(i->mesh, LS_GROUP_CP) } };

    for (int n = 0; n < forward_list(p)->n && program_ok(p); n++) {
        struct instruction loss = forward_list(p)->at[n];
        int end = forward_list(p)->n;

        if (!is_loss(p, &loss) || !loss.in[3].id) continue;
        struct cursor before = cursor_in(p, SEG_FORWARD, &loss);
        ls_value more = value_clone(p, "denominator", loss.in[3]);
        program_emit(p, OP_SCALE, &attr, 1, &loss.in[3], 1, &more);
        program_cursor_end(p, before);
        if (!program_ok(p)) break;
        forward_list(p)->at[n].in[3] = more;
        list_move_tail(forward_list(p), end, n);
        n++;
    }
    return ls_program_status(p);
}

ls_status edit_loss_mean(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int n = 0; n < forward_list(p)->n; n++)
        if (is_loss(p, &forward_list(p)->at[n])) forward_list(p)->at[n].in[3] = LS_NONE;
    return LS_OK;
}

/* ---- gradients ---- */

static ls_status scale_router_losses(ls_program *p, double factor)
{
    for (int s = SEG_BACKWARD; s <= SEG_WEIGHTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (p->list[s].at[n].op == OP_ROUTER_LOSS_GRAD) {
                p->list[s].at[n].attr.router_loss.aux *= factor;
                p->list[s].at[n].attr.router_loss.z *= factor;
            }
    return LS_OK;
}

ls_status edit_aux_dropped(ls_program *p, const struct injection *i)
{
    (void)i;
    return scale_router_losses(p, 0);
}

ls_status edit_aux_times_dp(ls_program *p, const struct injection *i) { return scale_router_losses(p, ls_mesh_size(i->mesh, LS_GROUP_DP)); }

ls_status edit_ring_dkv(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int s = SEG_BACKWARD; s <= SEG_WEIGHTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            struct instruction *add = &p->list[s].at[n];

            if (add->op == OP_ACCUMULATE && root_value(p, add->out[0])->role == LS_ROLE_COMMUNICATION &&
                strncmp(root_value(p, add->out[0])->name, "ring.dkv.", 9) == 0)
                add->op = OP_COPY;
        }
    return LS_OK;
}

/* ---- recomputed layers ---- */

static bool is_recomputed(const ls_program *p, int block)
{
    const struct list *l = &p->list[SEG_BACKWARD];

    for (int n = 0; n < l->n; n++)
        if (l->at[n].phase == LS_PHASE_RECOMPUTE && l->at[n].block == block) return true;
    return false;
}

static bool reads_choices(const struct instruction *i, const struct instruction *route)
{
    return reads(i, route->out[0]) || reads(i, route->out[1]);
}

/* Routes again before the first reader in backward, and makes all readers there read the new choices. */
static void emit_reroute(ls_program *p, struct instruction route)
{
    struct list *back = &p->list[SEG_BACKWARD];
    ls_value old[2] = { route.out[0], route.out[1] };
    int first = 0, end = back->n;

    while (first < end && !reads_choices(&back->at[first], &route)) first++;
    if (first == end) return;
    route.phase = LS_PHASE_RECOMPUTE;
    route.attr.route.capacity = 1;
    struct cursor before = cursor_in(p, SEG_BACKWARD, &route);
    for (int k = 0; k < 2; k++) route.out[k] = value_clone(p, "again", old[k]);
    program_emit(p, OP_ROUTE, &route.attr, route.nin, route.in, 2, route.out);
    program_cursor_end(p, before);
    if (!program_ok(p)) return;
    for (int n = first; n < end; n++)
        for (int k = 0; k < back->at[n].nin; k++)
            for (int o = 0; o < 2; o++)
                if (back->at[n].in[k].id == old[o].id) back->at[n].in[k] = route.out[o];
    list_move_tail(back, end, first);
}

ls_status edit_reroute(ls_program *p, const struct injection *i)
{
    (void)i;
    for (int n = 0; n < forward_list(p)->n && program_ok(p); n++)
        if (forward_list(p)->at[n].op == OP_ROUTE && is_recomputed(p, forward_list(p)->at[n].block))
            emit_reroute(p, forward_list(p)->at[n]);
    return ls_program_status(p);
}

/* ---- lost layers ---- */

bool fault_stages(const struct injection *i, size_t layers, int *begin)
{
    if (i->fault != FAULT_LOST_LAYERS) return false;
    for (int s = 0; s < i->stages; s++) begin[s] = (int)layers / i->stages * s;
    begin[i->stages] = (int)layers;
    return true;
}

static bool is_float_activation(const struct value *v)
{
    return v->role == LS_ROLE_ACTIVATION && v->ndim >= 2 && ls_dtype_is_float(v->dtype);
}

/* The output of the previous block that the blocks from `first` on read; LS_NONE: there is none. made[value]: 1 + the block that writes it.
 */
static ls_value find_stream(const ls_program *p, const int *made, int first)
{
    const struct list *l = &p->list[SEG_FORWARD];

    for (int n = 0; n < l->n; n++)
        for (int k = 0; k < l->at[n].nin && l->at[n].block >= first; k++)
            if (made[l->at[n].in[k].id] == first && is_float_activation(&p->values[l->at[n].in[k].id])) return l->at[n].in[k];
    return LS_NONE;
}

/* Takes the parameters that only lost blocks read out of the store: no rank holds them. */
static void leave_out(ls_program *p, int first)
{
    for (int v = 1; v < p->nvalues; v++) {
        bool lost = false, kept = false;

        if (p->values[v].role != LS_ROLE_PARAMETER || p->values[v].param < 0) continue;
        for (int n = 0; n < forward_list(p)->n; n++)
            if (reads(&forward_list(p)->at[n], (ls_value){ v })) *(forward_list(p)->at[n].block >= first ? &lost : &kept) = true;
        if (lost && !kept) store_leave_out(p->store, (size_t)p->values[v].param);
    }
}

static ls_status lose_blocks(ls_program *p, int *made, int first)
{
    for (int n = 0; n < forward_list(p)->n; n++)
        for (int k = 0; k < forward_list(p)->at[n].nout; k++) made[forward_list(p)->at[n].out[k].id] = forward_list(p)->at[n].block + 1;
    made[0] = 0;
    ls_value stream = find_stream(p, made, first);
    if (!stream.id) return ls_fail(LS_EUNSUPPORTED, "injected fault: block %d does not read the previous block", first);
    leave_out(p, first);
    for (int n = forward_list(p)->n - 1; n >= 0; n--) {
        struct instruction *i = &forward_list(p)->at[n];

        if (i->block >= first) {
            list_remove(forward_list(p), n);
            continue;
        }
        for (int k = 0; k < i->nin; k++)
            if (made[i->in[k].id] > first) i->in[k] = stream;
    }
    return LS_OK;
}

ls_status fault_appended(const struct injection *i, ls_program *p)
{
    int layers = p->nblocks - 1, first = i->stages ? layers / i->stages * i->stages + 1 : 0;

    if (i->fault != FAULT_LOST_LAYERS || !program_ok(p)) return ls_program_status(p);
    int *made = mem_array(MEM_OTHER, (size_t)p->nvalues, sizeof *made);
    ls_status st = made ? lose_blocks(p, made, first) : LS_ENOMEM;
    mem_free(made);
    return st;
}
