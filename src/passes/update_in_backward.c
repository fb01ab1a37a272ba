/* update_in_backward.c - moves each update into the backward segment, where its gradient is final.
 *
 * A gradient then lives from its first writer to its update, in an arena, and its bytes are used again: no gradients are kept in the store.
 * What moves together is a parameter, or a unit of the store, whose gradients are one buffer that is reduced over ranks: its reduction's
 * wait, its sum of squares, its updates, and the gather of its updated parameters. It comes after the last instruction that touches the
 * gradient or a parameter of it. If that one starts a reduction, it comes just before the next reduction's start, so that one is in flight
 * while the gradients of the next unit are computed.
 *
 * The sums of squares move with the updates, so the norm is still known at the end of the step; the clip factor that it determines is 1, or
 * is not read because the norm of the step before determines another one (clip_previous). The instructions of one unit stay in their
 * order, and so do the bits of its updates.
 *
 * The updates run in the last micro-batch; the only one, since a gradient that is summed over several cannot be freed. Of the rest of the
 * optimizer's segment, what reads nothing (zeros for sums) and views move to the start of backward; the norm stays.
 *
 * As PyTorch's _apply_optimizer_in_backward(), which FSDP supports too; without ranks, LOMO (Lv et al. 2023).
 */
#include "ir/op_info.h"

#include "base/mem.h"
#include "device/device.h"
#include "runtime/store.h"

/* A parameter or unit whose updates move. Positions count the instructions of forward and backward. */
struct moved {
    ls_value grad;   /* LS_NONE: it has no update */
    int first, last; /* where its gradient is written first, and where its updates come after; first -1: nothing writes it */
    int reduced;     /* `last`, if that instruction starts a reduction of the gradient; else -1 */
};

struct moving {
    ls_program *p;
    struct moved *unit; /* [n]: the store's parameters, then its units */
    size_t n;
    struct list optimizer; /* the optimizer's segment as it was */
    ls_value factor, one;  /* the clip factor there, and the value 1 that replaces it; NONE: updates read another factor */
};

static const struct value *moving_root(const ls_program *p, ls_value v) { return &p->values[p->values[v.id].root]; }

static enum optimizer_stage moving_stage(const struct instruction *i) { return op_info(i->op)->stage; }

/* The unit of a value of the store; -1: it belongs to none. */
static int unit_of_root(const ls_program *p, const struct value *root)
{
    bool stored = root->role == LS_ROLE_PARAMETER || root->role == LS_ROLE_GRADIENT || root->role == LS_ROLE_OPTIMIZER;
    int unit = root->unit >= 0 ? root->unit : root->param >= 0 ? store_unit_of(p->store, (size_t)root->param) : -1;

    if (!stored || (root->param < 0 && root->unit < 0)) return -1;
    return unit >= 0 ? (int)ls_store_count(p->store) + unit : root->param;
}

/* The unit that an instruction of the optimizer works on; -1: it works on the sums of all. */
static int unit_of_instruction(const ls_program *p, const struct instruction *i)
{
    for (int k = 0; k < i->nin + i->nout; k++) {
        ls_value v = k < i->nin ? i->in[k] : i->out[k - i->nin];
        int unit = v.id ? unit_of_root(p, moving_root(p, v)) : -1;

        if (unit >= 0) return unit;
    }
    return -1;
}

static void find_gradients(struct moving *m)
{
    const ls_program *p = m->p;

    for (int n = 0; n < m->optimizer.n; n++) {
        const struct instruction *i = &m->optimizer.at[n];

        if (moving_stage(i) == OPTIMIZER_CLIP) m->factor = i->out[1];
        for (int k = 0; k < i->nin; k++) {
            const struct value *root = moving_root(p, i->in[k]);

            if (i->in[k].id && root->role == LS_ROLE_GRADIENT) m->unit[unit_of_root(p, root)].grad.id = p->values[i->in[k].id].root;
        }
    }
}

static void note_use(struct moving *m, const struct instruction *i, ls_value v, int at)
{
    const struct value *root = moving_root(m->p, v);
    int unit = v.id ? unit_of_root(m->p, root) : -1;
    struct moved *x = unit >= 0 ? &m->unit[unit] : NULL;

    if (!x) return;
    if (root->role == LS_ROLE_GRADIENT && x->first < 0) x->first = at;
    x->reduced = root->role == LS_ROLE_GRADIENT && instruction_is_start(i) ? at : -1;
    x->last = at;
}

/* Updates after the start of a reduction move to before the next one's start, or to the end. */
static void pass_reductions(struct moving *m, int end)
{
    for (size_t i = 0; i < m->n; i++) {
        struct moved *x = &m->unit[i];
        int next = end;

        if (x->reduced < 0) continue;
        for (size_t k = 0; k < m->n; k++)
            if (m->unit[k].reduced > x->reduced) next = MIN(next, m->unit[k].reduced);
        x->last = next - 1;
    }
}

/* Updates whose gradient is final before backward begins, or that nothing writes, come at the end. */
static void find_positions(struct moving *m)
{
    const ls_program *p = m->p;
    int at = 0, backward = p->list[SEG_FORWARD].n;

    for (size_t i = 0; i < m->n; i++) m->unit[i].first = m->unit[i].last = m->unit[i].reduced = -1;
    for (int s = SEG_FORWARD; s <= SEG_BACKWARD; s++)
        for (int n = 0; n < p->list[s].n; n++, at++) {
            const struct instruction *i = &p->list[s].at[n];

            for (int k = 0; k < i->nin && !instruction_is_view(i); k++) note_use(m, i, i->in[k], at);
            for (int k = 0; k < i->nout && !instruction_is_view(i); k++) note_use(m, i, i->out[k], at);
        }
    for (size_t i = 0; i < m->n; i++)
        if (m->unit[i].last < backward) m->unit[i].last = at - 1;
    pass_reductions(m, at);
}

/* ---- the new segments ---- */

/* Zeros before the first instruction that adds to the gradient. */
static void emit_zeros(struct moving *m, const struct moved *x)
{
    struct cursor before = program_cursor_phase(m->p, LS_PHASE_WEIGHT_GRADIENT);

    program_emit(m->p, OP_FILL, NULL, 0, NULL, 1, &x->grad);
    program_cursor_end(m->p, before);
}

static void emit_updates(struct moving *m, size_t unit, int block)
{
    if (m->unit[unit].first < 0) emit_zeros(m, &m->unit[unit]);
    for (int n = 0; n < m->optimizer.n; n++) {
        struct instruction i = m->optimizer.at[n];

        if (instruction_is_view(&i) || unit_of_instruction(m->p, &i) != (int)unit) continue;
        for (int k = 0; k < i.nin; k++)
            if (i.in[k].id == m->factor.id) i.in[k] = m->one;
        i.when = LS_WHEN_LAST;
        i.block = block;
        program_push(m->p, &i);
    }
}

/* What the updates need before the first of them. */
static bool is_of_start(const struct moving *m, const struct instruction *i)
{
    return instruction_is_view(i) || (i->nin == 0 && unit_of_instruction(m->p, i) < 0);
}

static void emit_start_of_updates(struct moving *m)
{
    ls_dtype type = program_value(m->p, m->factor)->dtype;
    bool reads = false;

    for (int n = 0; n < m->optimizer.n; n++) {
        const struct instruction *i = &m->optimizer.at[n];

        if (is_of_start(m, i)) program_push(m->p, i);
        for (int k = 0; k < i->nin; k++) reads = reads || i->in[k].id == m->factor.id;
    }
    if (reads) m->one = ls_constant(m->p, type, 1, (size_t[]){ 1 }, 1.0);
}

/* True for the gradient of a parameter of a unit, which is a part of the unit's. */
static bool is_of_unit(const struct moving *m, ls_value v)
{
    const struct value *root = moving_root(m->p, v);

    return v.id && root->role == LS_ROLE_GRADIENT && root->unit < 0 && store_unit_of(m->p->store, (size_t)root->param) >= 0;
}

/* That part of the unit's gradient; any other value is returned as it is. */
static ls_value part_of_unit(struct moving *m, ls_value v)
{
    int param = moving_root(m->p, v)->param, k = 0;

    if (!is_of_unit(m, v)) return v;
    const struct store_unit *g = store_unit_at(m->p->store, store_unit_of(m->p->store, (size_t)param));
    while (g->params[k] != param) k++;
    struct value x = *program_value(m->p, v);
    return program_view(m->p, m->unit[unit_of_root(m->p, moving_root(m->p, v))].grad, (struct view_rule){ VIEW_SLICE, 0, 0, g->at[k] },
                        x.ndim, x.size, x.stride, (ptrdiff_t)g->at[k] + x.offset);
}

/* An instruction of forward or backward. A view of a unit's gradient is left out: its readers get views of the unit's. */
static void emit_of_unit(struct moving *m, struct instruction i)
{
    if (instruction_is_view(&i) && is_of_unit(m, i.out[0])) return;
    for (int k = 0; k < i.nin; k++) i.in[k] = part_of_unit(m, i.in[k]);
    for (int k = 0; k < i.nout; k++) i.out[k] = part_of_unit(m, i.out[k]);
    program_push(m->p, &i);
}

/* Writes a segment again whose instructions are numbered from `at`. */
static void emit_segment(struct moving *m, enum segment s, int at)
{
    struct list old = program_take(m->p, s);
    struct cursor before = program_cursor_segment(m->p, s, LS_PHASE_OPTIMIZER);

    if (s == SEG_BACKWARD) emit_start_of_updates(m);
    for (int n = 0; n < old.n && program_ok(m->p); n++, at++) {
        struct cursor outer = program_cursor_block(m->p, old.at[n].block);

        for (size_t k = 0; k < m->n; k++)
            if (m->unit[k].grad.id && m->unit[k].first == at) emit_zeros(m, &m->unit[k]);
        emit_of_unit(m, old.at[n]);
        for (size_t k = 0; k < m->n && s == SEG_BACKWARD; k++)
            if (m->unit[k].grad.id && m->unit[k].last == at) emit_updates(m, k, old.at[n].block);
        program_cursor_end(m->p, outer);
    }
    program_cursor_end(m->p, before);
    list_free(&old);
}

/* What remains: the norm, and its sum over ranks. */
static void emit_norm(struct moving *m)
{
    struct cursor before = program_cursor_segment(m->p, SEG_OPTIMIZER, LS_PHASE_OPTIMIZER);

    for (int n = 0; n < m->optimizer.n; n++)
        if (!is_of_start(m, &m->optimizer.at[n]) && unit_of_instruction(m->p, &m->optimizer.at[n]) < 0)
            program_push(m->p, &m->optimizer.at[n]);
    program_cursor_end(m->p, before);
}

/* From now on a parameter's gradient is an activation, which keeps its parameter for messages; a unit's is a buffer for communication. */
static void release_gradients(struct moving *m)
{
    ls_store *s = m->p->store;

    for (size_t i = 0; i < m->n; i++) {
        if (!m->unit[i].grad.id) continue;
        struct value *grad = program_value(m->p, m->unit[i].grad);
        grad->role = grad->unit >= 0 ? LS_ROLE_COMMUNICATION : LS_ROLE_ACTIVATION;
        grad->flat_gradient = true;
        if (grad->unit < 0) {
            store_forget_grad(s, i);
            continue;
        }
        const struct store_unit *g = store_unit_at(s, grad->unit);
        for (int k = 0; k < g->n; k++) store_forget_grad(s, (size_t)g->params[k]);
        grad->flat = grad->unit + 1;
        grad->unit = -1;
    }
}

/* ---- the pass ---- */

/* True if an instruction that moves reads what one that stays communicates: the sums of LAMB and LARS over shards. */
static bool needs_sums(const struct moving *m, const struct instruction *moves)
{
    for (int n = 0; n < m->optimizer.n; n++) {
        const struct instruction *i = &m->optimizer.at[n];

        if (!instruction_is_start(i) || unit_of_instruction(m->p, i) >= 0) continue;
        for (int k = 0; k < moves->nin; k++)
            if (moves->in[k].id && moving_root(m->p, moves->in[k]) == moving_root(m->p, i->out[0])) return true;
    }
    return false;
}

static ls_status check_optimizer(const struct moving *m)
{
    const char *why = NULL;

    for (int n = 0; n < m->optimizer.n; n++) {
        const struct instruction *i = &m->optimizer.at[n];
        enum run_kind run = op_run_kind(i->op);

        if (run == RUN_LOAD || run == RUN_SAVE) why = "state or parameters are offloaded";
        if (unit_of_instruction(m->p, i) >= 0 && needs_sums(m, i)) why = "it sums the norms of layers over ranks before the updates";
    }
    return why ? ls_fail(LS_EINVAL, "optimizer: in_backward is not possible: %s", why) : LS_OK;
}

static ls_status check_update_in_backward(const ls_program *p)
{
    const char *why = p->arguments.options.slots > 0                     ? "it has several micro-batches in flight"
                      : p->arguments.options.retain                      ? "backward may run several times after one forward (retain)"
                      : p->arguments.options.split_backward              ? "weight gradients have a segment of their own"
                      : !p->builder.backward || !p->list[SEG_BACKWARD].n ? "the program has no backward"
                      : !store_device(p->store)->immediate               ? "the device is not the cpu"
                                                                         : NULL;

    return why ? ls_fail(LS_EINVAL, "optimizer: in_backward is not possible: %s", why) : LS_OK;
}

static void move_updates(struct moving *m)
{
    int backward = m->p->list[SEG_FORWARD].n;

    find_positions(m);
    emit_segment(m, SEG_FORWARD, 0);
    emit_segment(m, SEG_BACKWARD, backward);
    emit_norm(m);
    if (program_ok(m->p)) release_gradients(m);
}

ls_status update_in_backward_pass(ls_program *p)
{
    struct moving m = { .p = p, .n = ls_store_count(p->store) + (size_t)store_units(p->store) };

    LS_TRY(check_update_in_backward(p));
    m.unit = mem_array(MEM_OTHER, m.n, sizeof *m.unit);
    if (!m.unit) return LS_ENOMEM;
    m.optimizer = program_take(p, SEG_OPTIMIZER);
    find_gradients(&m);
    ls_status st = check_optimizer(&m);
    if (st == LS_OK) move_updates(&m);
    list_free(&m.optimizer);
    mem_free(m.unit);
    return st < 0 ? st : ls_program_status(p);
}
