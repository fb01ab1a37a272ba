/* gradient_pass.c - the gradient pass: the forward list walked backwards, one rule per instruction.
 *
 * It begins with 1 at the loss, and where the program is a stage of a pipeline with what the stage after it found, "stage.dout"; what
 * it finds for the stage in front is "stage.din". An op without a rule that is between a parameter and the loss is an error
 * that names it.
 */
#include "ir/op_info.h"

#include <string.h>
#include "base/mem.h"

static bool has_rule(const struct instruction *i) { return op_info(i->op)->gradient != NULL; }

/* Does in[k] have a derivative? */
static bool leads_to(const struct instruction *i, int k)
{
    return (op_info(i->op)->to >> k & 1) && !(i->op == OP_VIEW && instruction_view(i)->kind == VIEW_STOP);
}

static void mark_needed(struct gradient *g)
{
    const struct list *l = &g->p->list[SEG_FORWARD];

    for (int v = 1; v < g->n; v++) {
        const struct value *x = &g->p->values[v];

        g->needed[v] =
            v == g->p->stage.in.id || (x->role == LS_ROLE_PARAMETER && x->param >= 0 && !ls_store_is_frozen(g->p->store, (size_t)x->param));
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
        program_fail(g->p, "%s has no gradient rule, and is between a parameter and the loss", program_op_name(i->op));
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

/* With fuse_loss the loss is made by its gradient's instruction; the forward one goes. */
static ls_status drop_fused_loss(ls_program *p)
{
    struct list *l = &p->list[SEG_FORWARD];
    int at = -1;

    for (int n = 0; n < l->n; n++) {
        if ((op_info(l->at[n].op)->traits & TRAIT_LOSS_BY_GRADIENT) && l->at[n].out[0].id == p->loss.id) at = n;
        for (int k = 0; k < l->at[n].nin; k++)
            if (l->at[n].in[k].id == p->loss.id)
                return ls_fail(LS_EINVAL, "fuse_loss: %s reads the loss before its gradient makes it", program_op_name(l->at[n].op));
    }
    if (at < 0) return ls_fail(LS_EINVAL, "fuse_loss: the loss is not made by ls_linear_xent");
    memmove(&l->at[at], &l->at[at + 1], (size_t)(l->n - at - 1) * sizeof *l->at);
    l->n--;
    return LS_OK;
}

/* 1 at the loss; at a stage's end what the stage after it found. */
static void seed(struct gradient *g)
{
    ls_program *p = g->p;
    bool learns = (p->loss.id && g->needed[p->loss.id]) || (p->stage.out.id && g->needed[p->stage.out.id]);
    struct value v;

    if (!learns) program_fail(p, "backward: the %s depends on no parameter that learns", p->loss.id ? "loss" : "stage");
    if (p->loss.id) {
        v = *program_value(p, p->loss);
        gradient_give(g, p->loss, ls_constant(p, v.dtype, v.ndim, v.size, 1.0));
    }
    if (p->stage.out.id) {
        v = *program_value(p, p->stage.out);
        p->stage.dout = ls_input(p, "stage.dout", v.dtype, v.ndim, v.size);
        gradient_give(g, p->stage.out, p->stage.dout);
    }
}

static void end_stage(struct gradient *g)
{
    ls_value din = g->grad[g->p->stage.in.id];

    if (g->p->stage.in.id && !din.id)
        program_fail(g->p, "backward: nothing of this stage depends on what the stage before it sends");
    else if (din.id)
        g->p->stage.din = ls_output(g->p, "stage.din", ls_contiguous(g->p, din));
}

static ls_status check_loss(const ls_program *p)
{
    const struct value *loss = &p->values[p->loss.id];

    if (p->loss.id && (value_count(loss) != 1 || !ls_dtype_is_float(loss->dtype)))
        return ls_fail(LS_EINVAL, "backward: the loss has %zu elements of type %s; one floating number is expected", value_count(loss),
                       ls_dtype_name(loss->dtype));
    return LS_OK;
}

ls_status gradient_pass(ls_program *p)
{
    struct gradient g = { .p = p, .n = p->nvalues };
    struct cursor before;

    LS_TRY(check_loss(p));
    g.needed = mem_array(MEM_OTHER, (size_t)g.n, sizeof *g.needed);
    g.grad = mem_array(MEM_OTHER, (size_t)g.n, sizeof *g.grad);
    if (!g.needed || !g.grad) {
        mem_free(g.needed);
        mem_free(g.grad);
        return LS_ENOMEM;
    }
    mark_needed(&g);
    before = program_cursor_segment(p, SEG_BACKWARD, LS_PHASE_INPUT_GRADIENT);
    seed(&g);
    gradient_pass_walk(&g);
    end_stage(&g);
    program_cursor_end(p, before);
    mem_free(g.needed);
    mem_free(g.grad);
    LS_TRY(ls_program_status(p));
    return p->options.fuse_loss && p->loss.id ? drop_fused_loss(p) : LS_OK;
}

void ls_backward(ls_program *p, ls_value loss)
{
    if (!program_ok(p)) return;
    if (p->loss.id)
        program_fail(p, "backward: this program has a loss already");
    else if (!loss.id)
        program_fail(p, "backward: the loss is missing");
    else
        p->loss = loss;
    p->backward = p->loss.id;
}
