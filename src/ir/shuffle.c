/* shuffle.c - appends what sends tokens' rows to the ranks that have their experts, and back: all-to-alls whose counts are known at run
 * time. runtime/shuffle_run.c runs it.
 *
 *   SHUFFLE_COUNTS  counts[1,E] of the own tokens -> there[n,e]: what each rank sends to this rank's e experts
 *   SHUFFLE         rows[M,C] by expert, counts, there -> rows[M',C] by rank, then by expert; back: the other way
 *
 * Rank r of the comm's n has experts [E*r/n, E*(r+1)/n). Sizes are static: M' is as many rows as all ranks can send to one, or `factor`
 * times those of an even load; a run into which more arrive fails before their exchange, because rows are never dropped here. Rows that
 * are not in use are zeros. The gradient of one way is the other. The counts are exchanged at once, because the host needs them to begin
 * the exchange of rows; that is lowered to a start and a wait, which overlap with what does not depend on them (overlap.c): a shared
 * expert, weight gradients.
 */
#include "passes/gradient.h"

int shuffle_ranks(const struct shuffle *s) { return s->comm ? ls_comm_size(s->comm) : 1; }

static size_t experts_of(const struct shuffle *s, size_t experts)
{
    int r = s->comm ? ls_comm_rank(s->comm) : 0, n = shuffle_ranks(s);

    return shard_begin(experts, 1, r + 1, n) - shard_begin(experts, 1, r, n);
}

static ls_value emit(ls_program *p, int op, const struct shuffle *s, int nin, const ls_value *in, ls_value out)
{
    if (!program_ok(p) || !out.id) return LS_NONE;
    struct cursor before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    struct instruction *i = program_append(p, op, NULL, nin, in, 1, &out);
    program_cursor_end(p, before);
    if (!i) return LS_NONE;
    instruction_set_shuffle(i, s);
    return out;
}

ls_value program_shuffle_counts(ls_program *p, ls_comm *comm, ls_value counts)
{
    struct shuffle s = { comm, false, 0, false, 0 };
    size_t size[2];

    if (!program_ok(p) || !counts.id) return LS_NONE;
    size[0] = (size_t)shuffle_ranks(&s);
    size[1] = experts_of(&s, program_value(p, counts)->size[1]);
    return emit(p, OP_SHUFFLE_COUNTS, &s, 1, &counts, program_new_value(p, "shuffle_counts", LS_I32, 2, size));
}

ls_value program_shuffle(ls_program *p, const struct shuffle *s, ls_value rows, ls_value counts, ls_value there, ls_value out)
{
    return emit(p, OP_SHUFFLE, s, 3, (ls_value[]){ rows, counts, there }, out);
}

void program_shuffle_lower(ls_program *p, const struct instruction *i)
{
    const struct shuffle *s = instruction_shuffle(i);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_TO_ALL, .comm = s->comm, .axis = LS_AXIS_EP, .floating = s->floating, .rows = *s };
    struct cursor before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);

    e.total = s->expected * program_value(p, i->in[0])->size[1];
    e.id = p->builder.exchanges++;
    struct instruction *start = program_append(p, OP_COMM_START, NULL, i->nin, i->in, 1, i->out);
    if (start) instruction_set_exchange(start, &e);
    program_cursor_end(p, before);
    program_exchange_wait(p, &e, i->in[0], i->out[0]);
}

void gradient_shuffle(struct gradient *g, const struct instruction *i, ls_value dy)
{
    struct value v = *program_value(g->p, i->in[0]);
    struct shuffle s = *instruction_shuffle(i);

    s.back = !s.back;
    if (gradient_needs(g, i->in[0]))
        gradient_give(g, i->in[0],
                      program_shuffle(g->p, &s, dy, i->in[1], i->in[2], program_new_value(g->p, "shuffle_grad", v.dtype, v.ndim, v.size)));
}

size_t shuffle_bytes(const ls_program *p, const struct instruction *i)
{
    const struct value *v = &p->values[i->out[0].id];
    size_t n = (size_t)shuffle_ranks(instruction_rows(i));

    return instruction_rows(i)->expected * (n - 1) / n * v->size[1] * ls_dtype_bytes(v->dtype);
}
