/* shuffle.c - tokens' rows to the ranks that have their experts, and back: all-to-alls whose counts are known at run time.
 *
 *   SHUFFLE_COUNTS  counts[1,E] of the own tokens -> there[n,e]: what each rank sends to this rank's e experts
 *   SHUFFLE         rows[M,C] by expert, counts, there -> rows[M',C] by rank, then by expert; back: the other way
 *
 * Rank r of the comm's n has experts [E*r/n, E*(r+1)/n). Sizes are static: M' is as many rows as all ranks can send to one. Rows that
 * are not in use are zeros. The gradient of one way is the other. Both run at once, without a start and a wait.
 */
#include "program/gradient.h"

#include <string.h>

static int ranks_of(const struct shuffle *s) { return s->comm ? ls_comm_size(s->comm) : 1; }

static size_t experts_of(const struct shuffle *s, size_t experts)
{
    int r = s->comm ? ls_comm_rank(s->comm) : 0, n = ranks_of(s);

    return cut_at(experts, 1, r + 1, n) - cut_at(experts, 1, r, n);
}

/* ---- building ---- */

static ls_value emit(ls_program *p, int op, const struct shuffle *s, int nin, const ls_value *in, ls_value out)
{
    struct instruction *i;
    struct cursor before;

    if (!program_ok(p) || !out.id)
        return LS_NONE;
    before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    i = program_append(p, op, NULL, nin, in, 1, &out);
    program_cursor_end(p, before);
    if (!i)
        return LS_NONE;
    i->shuffle = *s;
    i->scratch_bytes = 2 * (size_t)ranks_of(s) * sizeof(size_t);
    return out;
}

ls_value program_shuffle_counts(ls_program *p, ls_comm *comm, ls_value counts)
{
    struct shuffle s = { comm, false, 0 };
    size_t size[2];

    if (!program_ok(p) || !counts.id)
        return LS_NONE;
    size[0] = (size_t)ranks_of(&s);
    size[1] = experts_of(&s, program_value(p, counts)->size[1]);
    return emit(p, OP_SHUFFLE_COUNTS, &s, 1, &counts, program_new_value(p, "shuffle_counts", LS_I32, 2, size));
}

ls_value program_shuffle(ls_program *p, const struct shuffle *s, ls_value rows, ls_value counts, ls_value there, ls_value out)
{
    return emit(p, OP_SHUFFLE, s, 3, (ls_value[]){ rows, counts, there }, out);
}

void gradient_shuffle(struct gradient *g, const struct instruction *i, ls_value dy)
{
    struct value v = *program_value(g->p, i->in[0]);
    struct shuffle s = { i->shuffle.comm, !i->shuffle.back, i->shuffle.expected };

    if (gradient_needs(g, i->in[0]))
        gradient_give(g, i->in[0], program_shuffle(g->p, &s, dy, i->in[1], i->in[2],
                                                   program_new_value(g->p, "shuffle_grad", v.dtype, v.ndim, v.size)));
}

size_t shuffle_bytes(const ls_program *p, const struct instruction *i)
{
    const struct value *v = &p->values[i->out[0].id];
    size_t n = (size_t)ranks_of(&i->shuffle);

    return i->shuffle.expected * (n - 1) / n * v->size[1] * ls_dtype_bytes(v->dtype);
}

/* ---- running ---- */

static size_t sum(const int32_t *x, size_t begin, size_t end)
{
    size_t n = 0;

    for (size_t i = begin; i < end; i++)
        n += (size_t)x[i];
    return n;
}

static ls_status exchange(const struct shuffle *s, const struct view *in, const size_t *send, const struct view *out, const size_t *recv)
{
    if (s->comm)
        return ls_all_to_all_v(s->comm, in->data, send, out->data, recv, in->dtype, NULL);
    memcpy(out->data, in->data, send[0] * ls_dtype_bytes(in->dtype));
    return LS_OK;
}

static ls_status run_counts(const struct shuffle *s, const struct call *c)
{
    size_t E = c->in[0].size[1], own = c->out[0].size[1], *send = c->scratch;
    int n = ranks_of(s);

    for (int r = 0; r < n; r++) {
        send[r] = cut_at(E, 1, r + 1, n) - cut_at(E, 1, r, n);
        send[n + r] = own;
    }
    return exchange(s, &c->in[0], send, &c->out[0], send + n);
}

static ls_status run_rows(const struct shuffle *s, const struct call *c)
{
    const struct view *out = &c->out[0];
    const int32_t *counts = c->in[1].data, *there = c->in[2].data;
    size_t E = c->in[1].size[1], own = c->in[2].size[1], C = view_last(out), used = 0, *here = c->scratch,
           bytes = ls_dtype_bytes(out->dtype);
    size_t *arrives = here + ranks_of(s);
    int n = ranks_of(s);

    for (int r = 0; r < n; r++) {
        here[r] = sum(counts, cut_at(E, 1, r, n), cut_at(E, 1, r + 1, n)) * C;
        arrives[r] = sum(there, (size_t)r * own, (size_t)(r + 1) * own) * C;
        used += s->back ? here[r] : arrives[r];
    }
    ASSERT(used <= view_count(out));
    LS_TRY(exchange(s, &c->in[0], s->back ? arrives : here, out, s->back ? here : arrives));
    memset((char *)out->data + used * bytes, 0, (view_count(out) - used) * bytes);
    return LS_OK;
}

ls_status shuffle_run(const struct instruction *i)
{
    return (i->op == OP_SHUFFLE_COUNTS ? run_counts : run_rows)(&i->shuffle, i->call);
}
