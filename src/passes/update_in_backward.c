/* update_in_backward.c - moves each parameter's update into the backward segment, where its gradient is final.
 *
 * A gradient then lives from its first writer to its update, in the arena of activations, and its bytes are used again: no gradients are
 * kept in the store. An update comes after the last instruction that touches the gradient or reads the parameter. The sums of squares move
 * with the updates, so the norm is still known at the end of the step; the clip factor that it determines is 1, or is not read because the
 * norm of the step before determines another one (clip_previous). The instructions of one parameter stay in their order, and so do the bits
 * of its update.
 *
 * The updates run in the last micro-batch; the only one, since a gradient that is summed over several cannot be freed. Everything else of
 * the optimizer's segment (zeros for sums, views) moves to the start of backward, except the norm.
 */
#include "ir/op_info.h"

#include "base/mem.h"
#include "device/device.h"
#include "runtime/store.h"

/* A parameter whose update moves. Positions count the instructions of forward and backward. */
struct moved {
    ls_value grad;   /* LS_NONE: it has no update */
    int first, last; /* where its gradient is written first, and where its update comes after; first -1: nothing writes it */
};

struct moving {
    ls_program *p;
    struct moved *param; /* [n] */
    size_t n;
    struct list optimizer; /* the optimizer's segment as it was */
    ls_value factor, one;  /* the clip factor there, and the value 1 that replaces it; NONE: updates read another factor */
};

static const struct value *moving_root(const ls_program *p, ls_value v) { return &p->values[p->values[v.id].root]; }

static enum optimizer_stage moving_stage(const struct instruction *i) { return op_info(i->op)->stage; }

/* True for the instructions that are done parameter by parameter. */
static bool is_of_parameter(const struct instruction *i)
{
    enum optimizer_stage stage = moving_stage(i);

    return stage == OPTIMIZER_SQUARES || stage == OPTIMIZER_NORMS || stage == OPTIMIZER_UPDATE;
}

/* The parameter of which instruction i of the optimizer has the gradient or the value. */
static int moving_param(const ls_program *p, const struct instruction *i)
{
    for (int k = 0; k < i->nin + i->nout; k++) {
        const struct value *root = moving_root(p, k < i->nin ? i->in[k] : i->out[k - i->nin]);

        if (root->param >= 0) return root->param;
    }
    return -1;
}

static void find_gradients(struct moving *m)
{
    const ls_program *p = m->p;

    for (int n = 0; n < m->optimizer.n; n++) {
        const struct instruction *i = &m->optimizer.at[n];

        if (moving_stage(i) == OPTIMIZER_CLIP) m->factor = i->out[1];
        if (!is_of_parameter(i)) continue;
        for (int k = 0; k < i->nin; k++) {
            const struct value *root = moving_root(p, i->in[k]);

            if (root->role == LS_ROLE_GRADIENT) m->param[root->param].grad.id = p->values[i->in[k].id].root;
        }
    }
}

static void note_use(struct moving *m, ls_value v, int at)
{
    const struct value *root = moving_root(m->p, v);
    struct moved *x = v.id && root->param >= 0 ? &m->param[root->param] : NULL;

    if (!x) return;
    if (root->role == LS_ROLE_GRADIENT && x->first < 0) x->first = at;
    x->last = at;
}

/* An update whose gradient is final before backward begins, or that nothing writes, comes at the end. */
static void find_positions(struct moving *m)
{
    const ls_program *p = m->p;
    int at = 0, backward = p->list[SEG_FORWARD].n;

    for (size_t i = 0; i < m->n; i++) m->param[i].first = m->param[i].last = -1;
    for (int s = SEG_FORWARD; s <= SEG_BACKWARD; s++)
        for (int n = 0; n < p->list[s].n; n++, at++) {
            const struct instruction *i = &p->list[s].at[n];

            for (int k = 0; k < i->nin && !instruction_is_view(i); k++) note_use(m, i->in[k], at);
            for (int k = 0; k < i->nout && !instruction_is_view(i); k++) note_use(m, i->out[k], at);
        }
    for (size_t i = 0; i < m->n; i++)
        if (m->param[i].last < backward) m->param[i].last = at - 1;
}

/* ---- the new segments ---- */

/* Zeros before the first instruction that adds to the gradient. */
static void emit_zeros(struct moving *m, const struct moved *x)
{
    struct cursor before = program_cursor_phase(m->p, LS_PHASE_WEIGHT_GRADIENT);

    program_emit(m->p, OP_FILL, NULL, 0, NULL, 1, &x->grad);
    program_cursor_end(m->p, before);
}

static void emit_updates(struct moving *m, int param, int block)
{
    if (m->param[param].first < 0) emit_zeros(m, &m->param[param]);
    for (int n = 0; n < m->optimizer.n; n++) {
        struct instruction i = m->optimizer.at[n];

        if (!is_of_parameter(&i) || moving_param(m->p, &i) != param) continue;
        for (int k = 0; k < i.nin; k++)
            if (i.in[k].id == m->factor.id) i.in[k] = m->one;
        i.when = LS_WHEN_LAST;
        i.block = block;
        program_push(m->p, &i);
    }
}

/* What the updates need before the first of them. */
static void emit_start_of_updates(struct moving *m)
{
    ls_dtype type = program_value(m->p, m->factor)->dtype;
    bool reads = false;

    for (int n = 0; n < m->optimizer.n; n++) {
        const struct instruction *i = &m->optimizer.at[n];

        if (moving_stage(i) == OPTIMIZER_NONE) program_push(m->p, i);
        for (int k = 0; k < i->nin; k++) reads = reads || i->in[k].id == m->factor.id;
    }
    if (reads) m->one = ls_constant(m->p, type, 1, (size_t[]){ 1 }, 1.0);
}

/* Writes a segment again whose instructions are numbered from `at`. */
static void emit_segment(struct moving *m, enum segment s, int at)
{
    struct list old = program_take(m->p, s);
    struct cursor before = program_cursor_segment(m->p, s, LS_PHASE_OPTIMIZER);

    if (s == SEG_BACKWARD) emit_start_of_updates(m);
    for (int n = 0; n < old.n && program_ok(m->p); n++, at++) {
        struct cursor outer = program_cursor_block(m->p, old.at[n].block);

        for (size_t i = 0; i < m->n; i++)
            if (m->param[i].grad.id && m->param[i].first == at) emit_zeros(m, &m->param[i]);
        program_push(m->p, &old.at[n]);
        for (size_t i = 0; i < m->n && s == SEG_BACKWARD; i++)
            if (m->param[i].grad.id && m->param[i].last == at) emit_updates(m, (int)i, old.at[n].block);
        program_cursor_end(m->p, outer);
    }
    program_cursor_end(m->p, before);
    list_free(&old);
}

static void emit_norm(struct moving *m)
{
    struct cursor before = program_cursor_segment(m->p, SEG_OPTIMIZER, LS_PHASE_OPTIMIZER);

    for (int n = 0; n < m->optimizer.n; n++)
        if (moving_stage(&m->optimizer.at[n]) == OPTIMIZER_CLIP) program_push(m->p, &m->optimizer.at[n]);
    program_cursor_end(m->p, before);
}

/* From now on the gradients are activations, which keep their parameter for messages. */
static void release_gradients(struct moving *m)
{
    for (size_t i = 0; i < m->n; i++) {
        struct value *grad = program_value(m->p, m->param[i].grad);

        if (!m->param[i].grad.id) continue;
        store_forget_grad(m->p->store, i);
        grad->role = LS_ROLE_ACTIVATION;
        grad->flat_gradient = true;
    }
}

/* ---- the pass ---- */

static ls_status check_update_in_backward(const ls_program *p)
{
    const char *why = p->distribution.pass || p->partition.pass  ? "the program is distributed over ranks, or its state is offloaded"
                      : p->options.slots > 0                     ? "it has several micro-batches in flight"
                      : p->options.retain                        ? "backward may run several times after one forward (retain)"
                      : p->options.split_backward                ? "weight gradients have a segment of their own"
                      : !p->backward || !p->list[SEG_BACKWARD].n ? "the program has no backward"
                      : !store_device(p->store)->immediate       ? "the device is not the cpu"
                                                                 : NULL;

    return why ? ls_fail(LS_EINVAL, "optimizer: in_backward is not possible: %s", why) : LS_OK;
}

ls_status update_in_backward_pass(ls_program *p)
{
    struct moving m = { .p = p, .n = ls_store_count(p->store) };
    int backward = p->list[SEG_FORWARD].n;

    LS_TRY(check_update_in_backward(p));
    m.param = mem_array(MEM_OTHER, m.n, sizeof *m.param);
    if (!m.param) return LS_ENOMEM;
    m.optimizer = program_take(p, SEG_OPTIMIZER);
    find_gradients(&m);
    find_positions(&m);
    emit_segment(&m, SEG_FORWARD, 0);
    emit_segment(&m, SEG_BACKWARD, backward);
    emit_norm(&m);
    if (program_ok(p)) release_gradients(&m);
    list_free(&m.optimizer);
    mem_free(m.param);
    return ls_program_status(p);
}
