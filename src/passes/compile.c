/* compile.c - runs the passes in order; contains the two smallest: split and kernels. */
#include "ir/program.h"

#include <string.h>
#include "base/mem.h"
#include "base/text.h"
#include "device/device.h"
#include "runtime/store.h"
#include "passes/streams.h"
#include "kernels/op_shapes.h"

/* Moves weight gradients, in order, from the backward segment to their own, together with the exchanges of their results. */
static bool belongs_to_weights(const ls_program *p, const struct instruction *i, const bool *made)
{
    if (i->phase != LS_PHASE_COMMUNICATE) return i->phase == LS_PHASE_WEIGHT_GRADIENT;
    for (int k = 0; k < i->nin; k++)
        if (made[p->values[i->in[k].id].root]) return true;
    for (int k = 0; k < i->nout; k++)
        if (made[p->values[i->out[k].id].root]) return true;
    return false;
}

ls_status split_pass(ls_program *p)
{
    struct list *back = &p->list[SEG_BACKWARD];
    bool *made = mem_array(MEM_OTHER, (size_t)p->nvalues, sizeof *made); /* by root: written by an instruction that moved */
    ls_status st = made ? LS_OK : LS_ENOMEM;
    int kept = 0;

    for (int n = 0; n < back->n && st == LS_OK; n++) {
        const struct instruction *i = &back->at[n];

        if (!belongs_to_weights(p, i, made)) {
            back->at[kept++] = *i;
            continue;
        }
        for (int k = 0; k < i->nout; k++) made[p->values[i->out[k].id].root] = i->out[k].id != 0;
        st = list_push(&p->list[SEG_WEIGHTS], i);
    }
    if (st == LS_OK) back->n = kept;
    mem_free(made);
    return st;
}

void instruction_call(const ls_program *p, const struct instruction *i, struct call *c)
{
    memset(c, 0, sizeof *c);
    c->nin = i->nin;
    c->nout = i->nout;
    c->attr = i->attr;
    for (int k = 0; k < CALL_OPERANDS; k++) {
        c->in[k].ndim = c->out[k].ndim = VIEW_ABSENT;
        if (k < i->nin && i->in[k].id) c->in[k] = value_view(&p->values[i->in[k].id], NULL);
        if (k < i->nout && i->out[k].id) c->out[k] = value_view(&p->values[i->out[k].id], NULL);
    }
    if (op_run_kind(i->op) == RUN_KERNEL) c->op = (enum op)i->op;
}

static ls_status choose_kernel(const ls_program *p, struct instruction *i)
{
    struct call c;
    char why[256];

    instruction_call(p, i, &c);
    if (!op_shapes_fit(&c, why, sizeof why)) return ls_fail(LS_EINVAL, "%s: %s", op_name(c.op), why);
    i->kernel = kernel_choose(&c, store_device(p->store));
    if (!i->kernel)
        return ls_fail(LS_EUNSUPPORTED, "%s: device '%s' has no kernel for these types and shapes; use run.device=cpu", op_name(c.op),
                       store_device(p->store)->name);
    i->scratch_bytes = i->kernel->scratch ? i->kernel->scratch(&c) : 0;
    i->flops = flops_of(p, i);
    return LS_OK;
}

ls_status kernels_pass(ls_program *p)
{
    LS_TRY(kernel_table_add(store_device(p->store)));
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (op_run_kind(p->list[s].at[n].op) == RUN_KERNEL) LS_TRY(choose_kernel(p, &p->list[s].at[n]));
    return LS_OK;
}

/* The budget was met before the program was distributed; distribution adds to the arena. */
static ls_status check_budget(const ls_program *p)
{
    char needed[16];

    if (p->arguments.options.recompute != LS_RECOMPUTE_BUDGET || program_activation_bytes(p) <= p->arguments.options.bytes) return LS_OK;
    return ls_fail(
        LS_EINVAL,
        "recompute: the budget of %zu bytes cannot be met: distributed over ranks the program needs %zu bytes (%s); use a larger "
        "budget",
        p->arguments.options.bytes, program_activation_bytes(p), text_bytes(needed, program_activation_bytes(p)));
}

ls_status program_bind(ls_program *p)
{
    ASSERT(p->results.compiled && !p->run.runnable);
    p->arguments.options.plan_only = 0;
    LS_TRY(bind_pass(p));
    p->run.runnable = true;
    return LS_OK;
}

ls_status program_edit(ls_program *p, enum edit_after after)
{
    return p->arguments.edit.edit ? p->arguments.edit.edit(p, after, p->arguments.edit.ctx) : LS_OK;
}

/* Every pass restores the cursor to the beginning of the only scope that compile began. */
static ls_status pass_end(const ls_program *p, ls_status st)
{
    ASSERT(p->builder.cursor.depth == 1 && p->builder.cursor.segment == SEG_FORWARD && p->builder.cursor.phase == LS_PHASE_FORWARD &&
           p->builder.cursor.when == LS_WHEN_ALWAYS && !p->builder.cursor.block);
    return st < 0 ? st : ls_program_status(p);
}

static ls_status edit_after(ls_program *p, enum edit_after after) { return pass_end(p, program_edit(p, after)); }

static ls_status passes(ls_program *p)
{
    if (p->arguments.partition.pass) LS_TRY(pass_end(p, p->arguments.partition.pass(p, p->arguments.partition.ctx)));
    if (p->builder.backward) LS_TRY(pass_end(p, gradient_pass(p)));
    LS_TRY(edit_after(p, AFTER_GRADIENT));
    LS_TRY(pass_end(p, recompute_pass(p)));
    LS_TRY(edit_after(p, AFTER_RECOMPUTE));
    if (p->arguments.options.split_backward) /* before lowering, which depends on the segment in which a value is used */
        LS_TRY(pass_end(p, split_pass(p)));
    LS_TRY(pass_end(p, lower_pass(p)));
    LS_TRY(edit_after(p, AFTER_LOWER));
    if (p->arguments.distribution.pass) LS_TRY(pass_end(p, p->arguments.distribution.pass(p, p->arguments.distribution.ctx)));
    if (p->builder.update_in_backward) LS_TRY(pass_end(p, update_in_backward_pass(p)));
    LS_TRY(pass_end(p, fuse_pass(p)));
    LS_TRY(pass_end(p, kernels_pass(p)));
    LS_TRY(pass_end(p, overlap_pass(p)));
    LS_TRY(pass_end(p, memory_pass(p)));
    LS_TRY(check_budget(p));
    LS_TRY(streams_pass(p));
    return p->arguments.options.plan_only ? runs_reserve(p) : bind_pass(p);
}

ls_status ls_program_compile(ls_program *p, const ls_compile_options *options)
{
    static const ls_compile_options defaults = LS_COMPILE_DEFAULTS;

    LS_TRY(ls_program_status(p));
    if (p->results.compiled) return ls_fail(LS_EINVAL, "compile: this program is already compiled");
    p->arguments.options = options ? *options : defaults;
    if (p->arguments.options.slots < 0) return ls_fail(LS_EINVAL, "compile: slots is %d; it must be 0 or more", p->arguments.options.slots);
    if (p->arguments.options.fuse_loss && !p->loss.id)
        return ls_fail(LS_EINVAL, "compile: fuse_loss without ls_backward; there is no gradient to fuse the loss with");
    if (p->arguments.options.recompute != LS_RECOMPUTE_NONE && !p->loss.id)
        return ls_fail(LS_EINVAL, "compile: recompute without ls_backward; there is nothing to recompute for");
    struct cursor before = program_cursor_segment(p, SEG_FORWARD, LS_PHASE_FORWARD);
    ls_status st = passes(p);
    program_cursor_end(p, before);
    p->arguments.edit = (struct edit){ 0 };
    if (st < 0 && program_ok(p)) {
        p->status = st;
        strncpy(p->message, ls_errmsg(), sizeof p->message - 1);
    }
    if (st == LS_OK) {
        p->results.compiled = true;
        p->run.runnable = !p->arguments.options.plan_only;
    }
    return st;
}
