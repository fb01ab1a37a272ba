/* emit.c - writing a segment anew: instructions kept, views with another placement, collectives in two halves. */
#include "parallel/data.h"

#include "base/mem.h"

struct list rewrite_begin(ls_program *p, enum segment s, enum phase phase)
{
    struct list old = p->list[s];

    p->list[s] = (struct list){ 0 };
    p->segment = s;
    p->phase = phase;
    return old;
}

static bool has_counts(const struct list *l, const size_t *counts)
{
    for (int n = 0; n < l->n; n++)
        if (l->at[n].op == OP_COMM_START && l->at[n].exchange.counts == counts)
            return true;
    return false;
}

/* A rewriting that failed half-way: what exchanges own and did not take along is nobody's. */
static void drop_rest(const ls_program *p, const struct list *old)
{
    for (int n = 0; n < old->n; n++)
        if (old->at[n].op == OP_COMM_START && !has_counts(&p->list[p->segment], old->at[n].exchange.counts))
            mem_free(old->at[n].exchange.counts);
}

void rewrite_end(ls_program *p, struct list *old)
{
    if (!program_ok(p))
        drop_rest(p, old);
    list_free(old);
    p->segment = SEG_FORWARD;
    p->phase = PHASE_FORWARD;
    p->block = 0;
}

void emit_same(ls_program *p, const struct instruction *i)
{
    ls_status st = program_ok(p) ? list_push(&p->list[p->segment], i) : LS_OK;

    if (st < 0)
        program_fail_by(p, st);
}

void emit_call(ls_program *p, int op, enum when when, ls_value in, ls_value out)
{
    p->when = when;
    program_emit(p, op, NULL, in.id ? 1 : 0, &in, 1, &out);
    p->when = WHEN_ALWAYS;
}

ls_placement_kind value_place(const ls_program *p, ls_value x) { return p->values[x.id].place[LS_AXIS_DP].kind; }

void value_set_place_on(ls_program *p, ls_value x, ls_axis axis, ls_placement_kind kind)
{
    if (x.id)
        p->values[x.id].place[axis] = (ls_placement){ .kind = kind };
}

void value_set_place(ls_program *p, ls_value x, ls_placement_kind kind) { value_set_place_on(p, x, LS_AXIS_DP, kind); }

ls_value emit_part(ls_program *p, ls_value x, size_t begin, size_t count, ls_placement_kind place)
{
    struct view_rule rule = { VIEW_SLICE, 0, 0, begin };
    ls_value y = x.id ? program_view(p, x, rule, 1, &count, (ptrdiff_t[]){ 1 }, (ptrdiff_t)begin) : LS_NONE;

    value_set_place(p, y, place);
    return y;
}

ls_value emit_flat(ls_program *p, ls_value x, ls_placement_kind place)
{
    return x.id ? emit_part(p, x, 0, value_count(program_value(p, x)), place) : LS_NONE;
}

void emit_start(ls_program *p, struct flight *f, const struct exchange *x, enum when when, ls_value in, ls_value out)
{
    enum phase phase = p->phase;

    *f = (struct flight){ *x, when, in, out, true };
    p->phase = PHASE_COMMUNICATE;
    p->when = when;
    program_exchange_start(p, &f->x, in, out);
    p->when = WHEN_ALWAYS;
    p->phase = phase;
}

void emit_wait(ls_program *p, struct flight *f)
{
    enum phase phase = p->phase;

    if (!f->open)
        return;
    p->phase = PHASE_COMMUNICATE;
    p->when = p->segment == SEG_OPTIMIZER ? WHEN_ALWAYS : f->when;
    program_exchange_wait(p, &f->x, f->in, f->out);
    p->when = WHEN_ALWAYS;
    p->phase = phase;
    f->open = false;
}

ls_value emit_sum(ls_program *p, ls_comm *comm, ls_value x)
{
    struct flight f;
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .axis = LS_AXIS_DP, .comm = comm, .redop = LS_SUM };
    ls_value in, out;

    if (!x.id)
        return LS_NONE;
    e.total = value_count(program_value(p, x));
    in = emit_flat(p, x, value_place(p, x));
    out = emit_flat(p, x, LS_REPLICATE);
    emit_start(p, &f, &e, WHEN_ALWAYS, in, out);
    emit_wait(p, &f);
    return out;
}
