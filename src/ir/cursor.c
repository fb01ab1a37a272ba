/* cursor.c - the cursor, its scopes, and appending instructions. */
#include "ir/program.h"

#include "base/mem.h"
#include "comm/algorithms/steps.h"

struct cursor program_cursor_begin(ls_program *p, struct cursor to)
{
    struct cursor before = p->builder.cursor;

    to.depth = before.depth + 1;
    p->builder.cursor = to;
    return before;
}

struct cursor program_cursor_segment(ls_program *p, enum segment segment, ls_phase phase)
{
    return program_cursor_begin(p, (struct cursor){ .segment = segment, .phase = phase });
}

struct cursor program_cursor_phase(ls_program *p, ls_phase phase)
{
    struct cursor to = p->builder.cursor;

    to.phase = phase;
    return program_cursor_begin(p, to);
}

struct cursor program_cursor_block(ls_program *p, int block)
{
    struct cursor to = p->builder.cursor;

    to.block = block;
    return program_cursor_begin(p, to);
}

struct cursor program_cursor_when(ls_program *p, ls_when when)
{
    struct cursor to = p->builder.cursor;

    to.when = when;
    return program_cursor_begin(p, to);
}

struct cursor program_cursor_like(ls_program *p, const struct instruction *i)
{
    struct cursor to = { p->builder.cursor.segment, i->phase, i->when, i->block, 0 };

    return program_cursor_begin(p, to);
}

void program_cursor_end(ls_program *p, struct cursor before)
{
    ASSERT(p->builder.cursor.depth == before.depth + 1);
    p->builder.cursor = before;
}

/* ---- appending ---- */

static struct instruction *append(ls_program *p, const struct instruction *i)
{
    struct list *l = &p->list[p->builder.cursor.segment];
    ls_status st = list_push(l, i);

    if (st == LS_OK) return &l->at[l->n - 1];
    program_fail_by(p, st);
    return NULL;
}

struct instruction *program_append(ls_program *p, int op, const struct op_attr *attr, int nin, const ls_value *in, int nout,
                                   const ls_value *out)
{
    struct instruction i = { .op = op,
                             .nin = nin,
                             .nout = nout,
                             .block = p->builder.cursor.block,
                             .phase = p->builder.cursor.phase,
                             .when = p->builder.cursor.when };

    if (!program_ok(p)) return NULL;
    if (p->results.compiled) {
        program_fail(p, "%s: the program is already compiled; append before compiling", program_op_name(op));
        return NULL;
    }
    ASSERT(nin <= CALL_OPERANDS && nout <= CALL_OPERANDS);
    if (attr) i.attr = *attr;
    for (int k = 0; k < nin; k++) i.in[k] = in[k];
    for (int k = 0; k < nout; k++) i.out[k] = out[k];
    if (!instruction_is_view(&i)) /* the time rule of a view reads what the caller sets afterwards */
        program_carry_time(p, &i);
    return append(p, &i);
}

ls_value program_emit(ls_program *p, int op, const struct op_attr *attr, int nin, const ls_value *in, int nout, const ls_value *out)
{
    return program_append(p, op, attr, nin, in, nout, out) ? out[0] : LS_NONE;
}

void program_push(ls_program *p, const struct instruction *i)
{
    if (program_ok(p)) append(p, i);
}

struct list program_take(ls_program *p, enum segment segment)
{
    struct list taken = p->list[segment];

    p->list[segment] = (struct list){ 0 };
    return taken;
}

size_t *program_counts(ls_program *p, int n)
{
    size_t *counts, **grown;

    if (!program_ok(p)) return NULL;
    grown = mem_resize(p->counts, ((size_t)p->ncounts + 1) * sizeof *grown);
    if (grown) p->counts = grown;
    counts = grown ? mem_array(MEM_OTHER, (size_t)n, sizeof *counts) : NULL;
    if (!counts) {
        program_fail_by(p, LS_ENOMEM);
        return NULL;
    }
    return p->counts[p->ncounts++] = counts;
}

struct even_counts {
    size_t total, *counts;
    int n;
    bool rooted;
};

/* Finds them among those of the same kind, or makes them. */
static size_t *program_shared_counts(ls_program *p, size_t total, int n, bool rooted)
{
    struct even_counts *grown;
    size_t *counts;

    for (int k = 0; k < p->neven; k++)
        if (p->even[k].total == total && p->even[k].n == n && p->even[k].rooted == rooted) return p->even[k].counts;
    if (!(counts = program_counts(p, n))) return NULL;
    for (int r = 0; r < n; r++) counts[r] = rooted ? (r == 0) * total : block_at(total, r + 1, n) - block_at(total, r, n);
    grown = mem_resize(p->even, ((size_t)p->neven + 1) * sizeof *grown);
    if (!grown) {
        program_fail_by(p, LS_ENOMEM);
        return NULL;
    }
    p->even = grown;
    p->even[p->neven++] = (struct even_counts){ total, counts, n, rooted };
    return counts;
}

size_t *program_even_counts(ls_program *p, size_t total, int n) { return program_shared_counts(p, total, n, false); }

size_t *program_rooted_counts(ls_program *p, size_t total, int n) { return program_shared_counts(p, total, n, true); }
