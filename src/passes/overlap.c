/* overlap.c - the overlap pass: floating exchanges start as soon as their input is available, and are waited for when their output is
 * needed.
 *
 * Within a segment, in this order:
 *   1. A floating start moves up to just after the last instruction that it depends on, within its block: further up would be
 *      prefetching, which costs memory.
 *   2. Weight gradients of its block between the previous exchange and the start move after the start if nothing up to it needs them: in
 *      the backward of a column-parallel linear, the weight gradient's matmul overlaps with the reduction of the input gradient
 *      (Narayanan et al. 2021, Megatron-LM's asynchronous all-reduce of a linear's backward).
 *   3. A floating wait moves down to just before the first instruction that depends on it.
 * Starts keep their order, whichever comm they belong to: all ranks make the same calls in the same order. Two instructions depend on each
 * other if they touch the same bytes and one of them writes.
 */
#include "ir/program.h"

#include <string.h>
#include "base/mem.h"

/* ---- dependences ---- */

static bool is_stored(const struct value *v)
{
    return v->role == LS_ROLE_PARAMETER || v->role == LS_ROLE_GRADIENT || v->role == LS_ROLE_OPTIMIZER;
}

/* The elements [begin, end) of the root that v can reach. */
static void overlap_reach(const struct value *v, ptrdiff_t *begin, ptrdiff_t *end)
{
    *begin = v->offset;
    *end = v->offset + 1;
    for (int d = 0; d < v->ndim; d++) *end += v->size[d] ? (ptrdiff_t)(v->size[d] - 1) * v->stride[d] : 0;
}

static bool share_bytes(const ls_program *p, ls_value a, ls_value b)
{
    const struct value *v = &p->values[a.id], *w = &p->values[b.id], *vroot = &p->values[v->root], *wroot = &p->values[w->root];
    ptrdiff_t begin[2], end[2];

    if (!a.id || !b.id) return false;
    if (v->root != w->root) /* a parameter and its unit are different values in the same bytes */
        return is_stored(vroot) && vroot->role == wroot->role && (vroot->param < 0 || wroot->param < 0);
    overlap_reach(v, &begin[0], &end[0]);
    overlap_reach(w, &begin[1], &end[1]);
    return begin[0] < end[1] && begin[1] < end[0];
}

/* True if a writes bytes that b touches. */
static bool writes(const ls_program *p, const struct instruction *a, const struct instruction *b)
{
    for (int k = 0; k < a->nout; k++) {
        for (int j = 0; j < b->nin; j++)
            if (share_bytes(p, a->out[k], b->in[j])) return true;
        for (int j = 0; j < b->nout; j++)
            if (share_bytes(p, a->out[k], b->out[j])) return true;
    }
    return false;
}

static bool depend(const ls_program *p, const struct instruction *a, const struct instruction *b)
{
    if (instruction_is_view(a) || instruction_is_view(b)) return false;
    return writes(p, a, b) || writes(p, b, a);
}

/* ---- moving ---- */

struct order {
    const ls_program *p;
    const struct instruction *i;
    int *at;
    int n;
}; /* at[n]: indices into i */

static const struct instruction *nth(const struct order *o, int k) { return &o->i[o->at[k]]; }

/* Moves the instruction at `from` to `to`. */
static void shift(struct order *o, int from, int to)
{
    int moved = o->at[from];

    if (to < from)
        memmove(&o->at[to + 1], &o->at[to], (size_t)(from - to) * sizeof *o->at);
    else
        memmove(&o->at[from], &o->at[from + 1], (size_t)(to - from) * sizeof *o->at);
    o->at[to] = moved;
}

/* The position to which the start at k moves. */
static int start_early(struct order *o, int k)
{
    int to = k;

    while (to > 0) {
        const struct instruction *before = nth(o, to - 1);

        if (instruction_is_start(before) || before->block != nth(o, k)->block || depend(o->p, before, nth(o, k))) break;
        to--;
    }
    shift(o, k, to);
    return to;
}

/* True if the instruction at k may move after the start at `start`. */
static bool can_follow(const struct order *o, int k, int start)
{
    for (int j = k + 1; j <= start; j++)
        if (depend(o->p, nth(o, k), nth(o, j))) return false;
    return true;
}

static bool floats(const struct instruction *i, enum run_kind kind)
{
    return op_run_kind(i->op) == kind && instruction_exchange(i)->floating;
}

static void put_off_weights(struct order *o, int start)
{
    for (int k = start - 1; k >= 0; k--) {
        const struct instruction *i = nth(o, k);

        if (instruction_is_start(i) || floats(i, RUN_WAIT) || i->block != nth(o, start)->block)
            break; /* instructions between a start and its wait already overlap with it */
        if (!instruction_is_view(i) && i->phase == LS_PHASE_WEIGHT_GRADIENT && can_follow(o, k, start)) {
            shift(o, k, start); /* the start moves up by one */
            start--;
        }
    }
}

static void wait_late(struct order *o, int k)
{
    int first = k, to = k;

    while (to + 1 < o->n && !depend(o->p, nth(o, to + 1), nth(o, k))) to++;
    shift(o, k, to);
    for (int j = to - 1; j >= first; j--) /* views of its output follow it */
        if (instruction_is_view(nth(o, j)) && nth(o, to)->nout && share_bytes(o->p, nth(o, j)->in[0], nth(o, to)->out[0]))
            shift(o, j, to--);
}

static void reorder(struct order *o)
{
    for (int k = 0; k < o->n; k++)
        if (floats(nth(o, k), RUN_START)) put_off_weights(o, start_early(o, k));
    for (int k = o->n - 1; k >= 0; k--)
        if (floats(nth(o, k), RUN_WAIT)) wait_late(o, k);
}

/* ---- the pass ---- */

static ls_status overlap_segment(const ls_program *p, struct list *l)
{
    struct order o = { .p = p, .i = l->at, .n = l->n };
    struct list ordered = { 0 };
    ls_status st = LS_OK;

    o.at = mem_array(MEM_OTHER, (size_t)l->n, sizeof *o.at);
    if (!o.at) return LS_ENOMEM;
    for (int k = 0; k < o.n; k++) o.at[k] = k;
    reorder(&o);
    for (int k = 0; k < o.n && st == LS_OK; k++) st = list_push(&ordered, nth(&o, k));
    mem_free(o.at);
    if (st < 0) {
        list_free(&ordered);
        return st;
    }
    list_free(l);
    *l = ordered;
    return LS_OK;
}

ls_status overlap_pass(ls_program *p)
{
    for (int s = 0; s < SEGMENTS; s++) {
        bool any = false;

        for (int n = 0; n < p->list[s].n && !any; n++) any = floats(&p->list[s].at[n], RUN_START);
        if (any) LS_TRY(overlap_segment(p, &p->list[s]));
    }
    return LS_OK;
}
