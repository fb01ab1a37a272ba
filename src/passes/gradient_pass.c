/* gradient_pass.c - the gradient pass: walks the forward list backwards and applies one rule per instruction.
 *
 * It starts with 1 at the loss and, in a pipeline stage, with the gradient received from the next stage, "stage.dout"; the gradient for
 * the previous stage is "stage.din". It is an error if an op between a parameter and the loss has no rule; the message names the op.
 */
#include "ir/op_info.h"

#include <string.h>
#include "base/mem.h"

static bool has_rule(const struct instruction *i) { return op_info(i->op)->gradient != NULL; }

/* True if in[k] has a derivative. */
static bool leads_to(const struct instruction *i, int k)
{
    return (op_info(i->op)->to >> k & 1) && !(instruction_is_view(i) && instruction_view(i)->kind == VIEW_STOP);
}

static void mark_needed(struct gradient *g)
{
    const struct list *l = &g->p->list[SEG_FORWARD];

    for (int v = 1; v < g->n; v++) {
        const struct value *x = &g->p->values[v];

        g->needed[v] = v == g->p->results.stage.in.id ||
                       (x->role == LS_ROLE_PARAMETER && x->param >= 0 && !ls_store_is_frozen(g->p->store, (size_t)x->param));
    }
    for (int n = 0; n < l->n; n++) {
        const struct instruction *i = &l->at[n];
        bool need = false;

        for (int k = 0; k < i->nin; k++) need = need || (i->in[k].id && g->needed[i->in[k].id] && leads_to(i, k));
        for (int k = 0; k < i->nout; k++)
            if (need && i->out[k].id && ls_dtype_is_float(g->p->values[i->out[k].id].dtype)) g->needed[i->out[k].id] = true;
    }
}

static void apply_rule(struct gradient *g, const struct instruction *i)
{
    ls_value dy = g->grad[i->out[0].id];

    if ((op_info(i->op)->traits & TRAIT_OWN_LOSS) && g->needed[i->out[0].id]) {
        gradient_give(g, i->out[0], ls_constant(g->p, program_value(g->p, i->out[0])->dtype, 1, (size_t[]){ 1 }, 1.0));
        dy = g->grad[i->out[0].id];
    }
    if (!dy.id || !g->needed[i->out[0].id]) return;
    if (!has_rule(i)) {
        program_fail(g->p, "%s has no gradient rule, but is between a parameter and the loss", program_op_name(i->op));
        return;
    }
    if (!(op_info(i->op)->traits & TRAIT_STRIDED_DY)) dy = ls_contiguous(g->p, dy);
    op_info(i->op)->gradient(g, i, dy);
}

static void gradient_pass_walk(struct gradient *g)
{
    for (int n = g->p->list[SEG_FORWARD].n - 1; n >= 0 && program_ok(g->p); n--) {
        struct instruction i = g->p->list[SEG_FORWARD].at[n];
        struct cursor before = program_cursor_block(g->p, i.block);

        apply_rule(g, &i);
        program_cursor_end(g->p, before);
    }
}

/* With fuse_loss the instruction of the gradient also computes the loss; the forward one is removed. */
static ls_status drop_fused_loss(ls_program *p)
{
    struct list *l = &p->list[SEG_FORWARD];
    int at = -1;

    for (int n = 0; n < l->n; n++) {
        if ((op_info(l->at[n].op)->traits & TRAIT_LOSS_BY_GRADIENT) && l->at[n].out[0].id == p->loss.id) at = n;
        for (int k = 0; k < l->at[n].nin; k++)
            if (l->at[n].in[k].id == p->loss.id)
                return ls_fail(LS_EINVAL, "fuse_loss: %s reads the loss before the backward computes it", program_op_name(l->at[n].op));
    }
    if (at < 0) return ls_fail(LS_EINVAL, "fuse_loss: the loss is not the output of ls_linear_xent");
    memmove(&l->at[at], &l->at[at + 1], (size_t)(l->n - at - 1) * sizeof *l->at);
    l->n--;
    return LS_OK;
}

/* Starts with 1 at the loss, and at a stage's end with the gradient received from the next stage. */
static void seed(struct gradient *g)
{
    ls_program *p = g->p;
    bool learns = (p->loss.id && g->needed[p->loss.id]) || (p->results.stage.out.id && g->needed[p->results.stage.out.id]);
    struct value v;

    if (!learns) program_fail(p, "backward: the %s depends on no trainable parameter", p->loss.id ? "loss" : "stage");
    if (p->loss.id) {
        v = *program_value(p, p->loss);
        gradient_give(g, p->loss, ls_constant(p, v.dtype, v.ndim, v.size, 1.0));
    }
    if (p->results.stage.out.id) {
        v = *program_value(p, p->results.stage.out);
        p->results.stage.dout = ls_input(p, "stage.dout", v.dtype, v.ndim, v.size);
        gradient_give(g, p->results.stage.out, p->results.stage.dout);
    }
}

static void end_stage(struct gradient *g)
{
    ls_value din = g->grad[g->p->results.stage.in.id];

    if (g->p->results.stage.in.id && !din.id)
        program_fail(g->p, "backward: nothing in this stage depends on the output of the previous stage");
    else if (din.id)
        g->p->results.stage.din = ls_output(g->p, "stage.din", ls_contiguous(g->p, din));
}

static ls_status check_loss(const ls_program *p)
{
    const struct value *loss = &p->values[p->loss.id];

    if (p->loss.id && (value_count(loss) != 1 || !ls_dtype_is_float(loss->dtype)))
        return ls_fail(LS_EINVAL, "backward: the loss has %zu elements of type %s; expected one floating-point number", value_count(loss),
                       ls_dtype_name(loss->dtype));
    return LS_OK;
}

ls_status gradient_pass(ls_program *p)
{
    struct gradient g = { .p = p, .n = p->nvalues };

    LS_TRY(check_loss(p));
    g.needed = mem_array(MEM_OTHER, (size_t)g.n, sizeof *g.needed);
    g.grad = mem_array(MEM_OTHER, (size_t)g.n, sizeof *g.grad);
    if (!g.needed || !g.grad) {
        mem_free(g.needed);
        mem_free(g.grad);
        return LS_ENOMEM;
    }
    mark_needed(&g);
    struct cursor before = program_cursor_segment(p, SEG_BACKWARD, LS_PHASE_INPUT_GRADIENT);
    seed(&g);
    gradient_pass_walk(&g);
    end_stage(&g);
    program_cursor_end(p, before);
    mem_free(g.needed);
    mem_free(g.grad);
    LS_TRY(ls_program_status(p));
    return p->arguments.options.fuse_loss && p->loss.id ? drop_fused_loss(p) : LS_OK;
}

void ls_backward(ls_program *p, ls_value loss)
{
    if (!program_ok(p)) return;
    if (p->loss.id)
        program_fail(p,
                     "backward: this program already has a loss; add several losses up, or run LS_BACKWARD again with the compile option "
                     "retain");
    else if (!loss.id)
        program_fail(p, "backward: the loss is missing");
    else
        p->loss = loss;
    p->builder.backward = p->loss.id;
}
