/* hooks.c - a program's hooks: which instruction each belongs to, found when it is set, and the calls.
 *
 * A gradient is final before the first instruction of a stage of the optimizer that reads its bytes: the sums over ranks, whose
 * instructions have no stage, come before that. The parts of parameters are those that the instructions on single parameters read.
 */
#include "runtime/hooks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "ir/op_info.h"
#include "lockstep/hook.h"
#include "passes/streams.h"
#include "runtime/store.h"

enum { HOOK_STOPS = 400 }; /* characters of a hook's message that are kept */

/* A gradient hook if `gradient`, called before instruction n of the optimizer's segment; else a value hook, called after instruction n of
 * segment s. */
struct hook {
    enum segment s;
    int n, set; /* set: in which order they were set */
    ls_gradient_hook *gradient;
    ls_value_hook *value;
    void *ctx;
    int operand; /* for a value hook: index of the instruction's output */
    ls_value at; /* for a gradient hook: the gradient's elements */
    int param;
    size_t offset; /* offset of the first of them in the rank's part of the parameter */
};

struct hooks {
    struct hook *at; /* sorted by segment, instruction and order */
    int n, room, set;
};

static ls_status hooks_add(ls_program *p, const struct hook *h)
{
    struct hooks *all = p->run.hooks;

    if (!all) all = p->run.hooks = mem_zalloc(MEM_OTHER, sizeof *all);
    if (!all) return LS_ENOMEM;
    if (all->n == all->room) {
        int room = MAX(8, 2 * all->room);
        struct hook *grown = mem_array(MEM_OTHER, (size_t)room, sizeof *grown);

        if (!grown) return LS_ENOMEM;
        if (all->n) memcpy(grown, all->at, (size_t)all->n * sizeof *grown);
        mem_free(all->at);
        all->at = grown;
        all->room = room;
    }
    all->at[all->n] = *h;
    all->at[all->n++].set = all->set++;
    return LS_OK;
}

static int by_instruction(const void *a, const void *b)
{
    const struct hook *x = a, *y = b;

    if (x->s != y->s) return x->s < y->s ? -1 : 1;
    return x->n != y->n ? (x->n < y->n ? -1 : 1) : (x->set > y->set) - (x->set < y->set);
}

static void hooks_sort(ls_program *p)
{
    if (p->run.hooks) qsort(p->run.hooks->at, (size_t)p->run.hooks->n, sizeof *p->run.hooks->at, by_instruction);
}

void ls_program_unhook(ls_program *p)
{
    if (p->run.hooks) mem_free(p->run.hooks->at);
    mem_free(p->run.hooks);
    p->run.hooks = NULL;
}

static ls_status check_runnable(const ls_program *p, const char *name)
{
    LS_TRY(ls_program_status(p));
    return p->run.runnable ? LS_OK : ls_fail(LS_EINVAL, "hook on '%s': the program is not compiled to run", name ? name : "all gradients");
}

/* ---- gradients ---- */

static const struct value *hook_root(const ls_program *p, ls_value v) { return &p->values[p->values[v.id].root]; }

/* The parameter of a gradient's elements, and in *offset where they begin in the rank's part of it. */
static int gradient_param(const ls_program *p, ls_value g, size_t *offset)
{
    const struct value *root = hook_root(p, g);
    const struct store_unit *unit = root->unit >= 0 ? store_unit_at(p->store, root->unit) : NULL;
    size_t first = (size_t)p->values[g.id].offset;
    int k = 0;

    *offset = first;
    if (!unit) return root->param;
    if (unit->sharded >> STORE_GRAD & 1) first += unit->begin;
    while (k + 1 < unit->n && unit->at[k + 1] <= first) k++;
    *offset = first - unit->at[k];
    return unit->params[k];
}

/* The first instruction of a stage that reads bytes of g. */
static int first_reader(const ls_program *p, ls_value g)
{
    const struct list *l = &p->list[SEG_OPTIMIZER];
    const struct value *x = &p->values[g.id];

    for (int n = 0; n < l->n; n++)
        for (int k = 0; k < l->at[n].nin && op_info(l->at[n].op)->stage != OPTIMIZER_NONE; k++) {
            const struct value *y = &p->values[l->at[n].in[k].id];

            if (l->at[n].in[k].id && y->root == x->root && y->offset < x->offset + (ptrdiff_t)value_count(x) &&
                x->offset < y->offset + (ptrdiff_t)value_count(y))
                return n;
        }
    ASSERT(!"a gradient that nothing reads");
    return -1;
}

/* The gradient that an instruction on one parameter reads; LS_NONE: it is another instruction. */
static ls_value gradient_of(const ls_program *p, const struct instruction *i)
{
    enum optimizer_stage stage = op_info(i->op)->stage;

    if (stage != OPTIMIZER_NORMS && stage != OPTIMIZER_UPDATE) return LS_NONE;
    for (int k = 0; k < i->nin; k++)
        if (i->in[k].id && hook_root(p, i->in[k])->role == LS_ROLE_GRADIENT) return i->in[k];
    return LS_NONE;
}

/* Adds a hook for each part of the parameter (-1: of all), once though norms and update both read it. */
static ls_status hook_parts(ls_program *p, int param, ls_gradient_hook *fn, void *ctx)
{
    const struct list *l = &p->list[SEG_OPTIMIZER];
    bool *seen = mem_array(MEM_OTHER, ls_store_count(p->store) + 1, sizeof *seen);
    ls_status st = seen ? LS_OK : LS_ENOMEM;

    for (int n = 0; n < l->n && st == LS_OK; n++) {
        struct hook h = { .s = SEG_OPTIMIZER, .gradient = fn, .ctx = ctx, .at = gradient_of(p, &l->at[n]) };

        if (!h.at.id) continue;
        h.param = gradient_param(p, h.at, &h.offset);
        if ((param >= 0 && h.param != param) || seen[h.param]) continue;
        seen[h.param] = true;
        h.n = first_reader(p, h.at);
        st = hooks_add(p, &h);
    }
    mem_free(seen);
    hooks_sort(p);
    return st;
}

ls_status ls_program_hook_gradient(ls_program *p, const char *name, ls_gradient_hook *fn, void *ctx)
{
    size_t i = 0, n = ls_store_count(p->store);

    LS_TRY(check_runnable(p, name));
    if (p->builder.update_in_backward)
        return ls_fail(LS_EINVAL, "hook on the gradient of '%s': the optimizer has in_backward, which frees gradients during backward",
                       name ? name : "every parameter");
    if (!p->list[SEG_OPTIMIZER].n)
        return ls_fail(LS_EINVAL, "hook on the gradient of '%s': the program has no optimizer; append one with ls_optimizer_append()",
                       name ? name : "all");
    for (int g = 0; g < store_units(p->store); g++)
        if (store_unit_at(p->store, g)->backing[STORE_GRAD] != BACKING_MEMORY)
            return ls_fail(LS_EINVAL,
                           "hook on the gradient of '%s': gradients are offloaded, and read from there once for the norm and once for the "
                           "update; use parallel.offload_parameters=none",
                           name ? name : "every parameter");
    while (name && i < n && strcmp(ls_store_name(p->store, i), name) != 0) i++;
    if (name && i == n) return ls_fail(LS_EINVAL, "hook on the gradient of '%s': the store has no such parameter", name);
    return hook_parts(p, name ? (int)i : -1, fn, ctx);
}

/* ---- values ---- */

static bool hook_names(const ls_program *p, const char *name, ls_value v)
{
    return name[0] == '%' ? strtol(name + 1, NULL, 10) == v.id : strcmp(p->values[v.id].name, name) == 0;
}

ls_status ls_program_hook_value(ls_program *p, const char *name, ls_value_hook *fn, void *ctx)
{
    struct hook h = { .value = fn, .ctx = ctx };
    int found = 0;

    LS_TRY(check_runnable(p, name));
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            if (instruction_is_view(i) || instruction_is_begun(i) || i->phase == LS_PHASE_RECOMPUTE) continue;
            for (int k = 0; k < i->nout; k++) {
                if (!i->out[k].id || !hook_names(p, name, i->out[k])) continue;
                h.s = (enum segment)s;
                h.n = n;
                h.operand = k;
                LS_TRY(hooks_add(p, &h));
                found++;
            }
        }
    hooks_sort(p);
    return found ? LS_OK : ls_fail(LS_EINVAL, "hook on '%s': the program computes no value of that name", name);
}

/* ---- calls ---- */

static ls_status hook_stopped(ls_status st, const char *what, const char *name)
{
    char why[HOOK_STOPS];

    if (st == LS_OK) return LS_OK;
    snprintf(why, sizeof why, "%s", ls_errmsg());
    return ls_fail(st < 0 ? st : LS_EINVAL, "the hook on %s '%s' stopped the run with status %d%s%s", what, name, (int)st, *why ? ": " : "",
                   why);
}

/* Calls the hook with data, host memory that has the gradient's elements. */
static ls_status call_gradient(const ls_program *p, const struct hook *h, void *data)
{
    const struct value *v = &p->values[h->at.id];
    size_t param = (size_t)h->param;
    ls_hook_gradient g = {
        .name = ls_store_name(p->store, param), .dtype = v->dtype, .offset = h->offset, .count = value_count(v), .data = data
    };

    g.ndim = ls_store_ndim(p->store, param);
    for (int d = 0; d < g.ndim; d++) {
        g.size[d] = store_local_size(p->store, param, d);
        g.begin[d] = store_local_begin(p->store, param, d);
    }
    ls_fail(LS_OK, "%s", "");
    return hook_stopped(h->gradient(h->ctx, &g), "the gradient of", g.name);
}

static ls_status run_gradient(ls_program *p, const struct hook *h)
{
    const struct device *d = store_device(p->store);
    const struct instruction *i = &p->list[SEG_OPTIMIZER].at[h->n];
    const struct call *c = instruction_bound(p, i);
    const struct value *v = &p->values[h->at.id];
    size_t bytes = value_count(v) * ls_dtype_bytes(v->dtype);
    void *data = program_data(p, h->at);

    if (d->host_visible) return call_gradient(p, h, data);
    void *stage = mem_alloc(MEM_OTHER, bytes);
    if (!stage) return LS_ENOMEM;
    ls_status st = streams_before(p, i);
    if (st == LS_OK) st = d->copy_out(c->stream, stage, data, bytes);
    if (st == LS_OK) st = d->stream_sync(c->stream);
    if (st == LS_OK) st = call_gradient(p, h, stage);
    if (st == LS_OK) st = d->copy_in(c->stream, data, stage, bytes);
    if (st == LS_OK) st = d->stream_sync(c->stream);
    mem_free(stage);
    return st;
}

struct value_call {
    const ls_program *p;
    const struct hook *h;
};

static ls_status call_value(void *ctx, const struct call *c)
{
    static const int segments[SEGMENTS] = { LS_FORWARD, LS_BACKWARD, LS_WEIGHTS, LS_OPTIMIZER_STEP };
    const struct value_call *x = ctx;
    const struct hook *h = x->h;
    const struct view *v = &c->out[h->operand];
    ls_value id = x->p->list[h->s].at[h->n].out[h->operand];
    ls_hook_value out = {
        .name = x->p->values[id.id].name, .value = id, .segment = segments[h->s], .dtype = v->dtype, .ndim = v->ndim, .data = v->data
    };

    memcpy(out.size, v->size, sizeof out.size);
    memcpy(out.stride, v->stride, sizeof out.stride);
    ls_fail(LS_OK, "%s", "");
    return hook_stopped(h->value(h->ctx, &out), "value", out.name);
}

/* The first hook of an instruction; all->n: none. */
static int hooks_find(const struct hooks *all, enum segment s, int n)
{
    struct hook key = { .s = s, .n = n, .set = -1 };
    int low = 0, high = all->n;

    while (low < high) {
        int middle = (low + high) / 2;

        if (by_instruction(&all->at[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool hook_is_at(const struct hooks *all, int k, enum segment s, int n)
{
    return k < all->n && all->at[k].s == s && all->at[k].n == n;
}

ls_status hooks_before(ls_program *p, enum segment s, int n)
{
    const struct hooks *all = p->run.hooks;

    if (!all || s != SEG_OPTIMIZER) return LS_OK;
    for (int k = hooks_find(all, s, n); hook_is_at(all, k, s, n); k++)
        if (all->at[k].gradient) LS_TRY(run_gradient(p, &all->at[k]));
    return LS_OK;
}

ls_status hooks_after(ls_program *p, enum segment s, int n)
{
    const struct hooks *all = p->run.hooks;

    for (int k = all ? hooks_find(all, s, n) : 0; all && hook_is_at(all, k, s, n); k++) {
        struct value_call x = { p, &all->at[k] };

        if (x.h->value) LS_TRY(program_operands(p, &p->list[s].at[n], call_value, &x));
    }
    return LS_OK;
}
