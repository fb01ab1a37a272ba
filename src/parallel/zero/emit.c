/* emit.c - rewriting a segment: instructions that are kept, views with another placement, collectives as start and wait. */
#include "parallel/zero/zero.h"

struct rewrite rewrite_begin(ls_program *p, enum segment s, ls_phase phase)
{
    return (struct rewrite){ program_take(p, s), program_cursor_segment(p, s, phase) };
}

void rewrite_end(ls_program *p, struct rewrite *w)
{
    list_free(&w->old);
    program_cursor_end(p, w->before);
}

void emit_call(ls_program *p, int op, ls_when when, ls_value in, ls_value out)
{
    struct cursor before = program_cursor_when(p, when);

    program_emit(p, op, NULL, in.id ? 1 : 0, &in, 1, &out);
    program_cursor_end(p, before);
}

ls_placement_kind value_place(const ls_program *p, ls_value x) { return p->values[x.id].place[LS_AXIS_DP].kind; }

void value_set_place_on(ls_program *p, ls_value x, ls_axis axis, ls_placement_kind kind)
{
    if (x.id) p->values[x.id].place[axis] = (ls_placement){ .kind = kind };
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

void emit_start(ls_program *p, struct pending *f, const struct exchange *x, ls_when when, ls_value in, ls_value out)
{
    struct cursor before = program_cursor_when(p, when);

    *f = (struct pending){ *x, when, in, out, true };
    program_exchange_start(p, &f->x, in, out);
    program_cursor_end(p, before);
}

void emit_wait(ls_program *p, struct pending *f)
{
    if (!f->open) return;
    struct cursor before = program_cursor_when(p, p->builder.cursor.segment == SEG_OPTIMIZER ? LS_WHEN_ALWAYS : f->when);
    program_exchange_wait(p, &f->x, f->in, f->out);
    program_cursor_end(p, before);
    f->open = false;
}

ls_value emit_sum(ls_program *p, ls_comm *comm, ls_value x)
{
    struct pending f;
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .axis = LS_AXIS_DP, .comm = comm };

    if (!x.id) return LS_NONE;
    e.total = value_count(program_value(p, x));
    e.redop = program_value(p, x)->place[LS_AXIS_DP].redop;
    ls_value in = emit_flat(p, x, value_place(p, x));
    ls_value out = emit_flat(p, x, LS_REPLICATE);
    emit_start(p, &f, &e, LS_WHEN_ALWAYS, in, out);
    emit_wait(p, &f);
    return out;
}
