/* compile.c - the passes, in their order, and the two that are a page each: split and kernels. */
#include "program/program.h"

#include <string.h>
#include "base/mem.h"

/* Question A moves out of the backward segment into its own, order kept. */
ls_status split_pass(ls_program *p)
{
    struct list *back = &p->list[SEG_BACKWARD];
    int kept = 0;

    for (int n = 0; n < back->n; n++) {
        if (back->at[n].phase == PHASE_BACKWARD_A)
            LS_TRY(list_push(&p->list[SEG_WEIGHTS], &back->at[n]));
        else
            back->at[kept++] = back->at[n];
    }
    back->n = kept;
    return LS_OK;
}

static ls_status choose_kernel(ls_program *p, struct instruction *i)
{
    struct call *c = mem_zalloc(MEM_OTHER, sizeof *c);

    if (!c)
        return LS_ENOMEM;
    c->op = (enum op)i->op;
    c->nin = i->nin;
    c->nout = i->nout;
    c->attr = i->attr;
    for (int k = 0; k < CALL_OPERANDS; k++) {
        c->in[k].ndim = c->out[k].ndim = VIEW_ABSENT;
        if (k < i->nin && i->in[k].id)
            c->in[k] = value_view(&p->values[i->in[k].id], NULL);
        if (k < i->nout && i->out[k].id)
            c->out[k] = value_view(&p->values[i->out[k].id], NULL);
    }
    i->call = c;
    i->kernel = kernel_choose(c);
    i->scratch_bytes = i->kernel->scratch ? i->kernel->scratch(c) : 0;
    i->flops = flops_of(p, i);
    return LS_OK;
}

ls_status kernels_pass(ls_program *p)
{
    unbind(p);
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (p->list[s].at[n].op != OP_VIEW)
                LS_TRY(choose_kernel(p, &p->list[s].at[n]));
    return LS_OK;
}

static ls_status passes(ls_program *p)
{
    if (p->loss.id)
        LS_TRY(gradient_pass(p));
    LS_TRY(recompute_pass(p));
    if (p->options.split_backward && p->options.recompute != LS_RECOMPUTE_BUDGET)  /* a budget is kept with the split inside */
        LS_TRY(split_pass(p));
    LS_TRY(kernels_pass(p));
    LS_TRY(memory_pass(p));
    return p->options.plan_only ? LS_OK : bind_pass(p);
}

ls_status ls_program_compile(ls_program *p, const ls_compile_options *options)
{
    static const ls_compile_options defaults = LS_COMPILE_DEFAULTS;
    ls_status st;

    LS_TRY(ls_program_status(p));
    if (p->compiled)
        return ls_fail(LS_EINVAL, "compile: this program is compiled already");
    p->options = options ? *options : defaults;
    if (p->options.fuse_loss && !p->loss.id)
        return ls_fail(LS_EINVAL, "compile: fuse_loss without ls_backward; there is no gradient to fuse the loss with");
    if (p->options.recompute != LS_RECOMPUTE_NONE && !p->loss.id)
        return ls_fail(LS_EINVAL, "compile: recompute without ls_backward; there is nothing to recompute for");
    st = passes(p);
    if (st < 0 && program_ok(p)) {
        p->status = st;
        strncpy(p->message, ls_errmsg(), sizeof p->message - 1);
    }
    if (st == LS_OK) {
        p->compiled = true;
        p->runnable = !p->options.plan_only;
    }
    return st;
}
