/* exchange.c - appends the instructions of a program on several ranks, and counts their bytes: flat values, collectives as start and wait,
 * offloaded state. runtime/exchange_run.c runs them.
 *
 * A collective is two instructions: COMM_START hands its buffers to the comm, COMM_WAIT takes them back, and the instructions in between
 * overlap with it. Both name the same values, so the memory pass keeps the bytes in between. The pair shares an id. Blocks are those of
 * block_at() in comm/algorithms/steps.h, as for the store's units.
 */
#include "ir/program.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "comm/comm.h"
#include "comm/algorithms/steps.h"
#include "device/device.h"
#include "runtime/store.h"

/* ---- values ---- */

/* "h.0 (12 parameters)": the common prefix of the names up to a dot, or the only name. */
static void unit_name(const ls_store *s, const struct store_unit *g, char *out, size_t room)
{
    const char *first = ls_store_name(s, (size_t)g->params[0]);
    size_t same = strlen(first), dot;

    if (g->n == 1) {
        snprintf(out, room, "%s", first);
        return;
    }
    for (int k = 1; k < g->n; k++) {
        const char *name = ls_store_name(s, (size_t)g->params[k]);
        size_t n = 0;

        while (n < same && name[n] == first[n]) n++;
        same = n;
    }
    for (dot = same; dot > 0 && first[dot] != '.'; dot--) {
    }
    if (dot)
        snprintf(out, room, "%.*s (%d parameters)", (int)MIN(dot, room / 2), first, g->n);
    else
        snprintf(out, room, "%.*s .. (%d parameters)", (int)MIN(strlen(first), room / 2), first, g->n);
}

/* Declares that kind in the store for all parameters of the unit. */
static bool declare_kind(ls_program *p, const struct store_unit *g, int kind, const char *state)
{
    for (int k = 0; k < g->n; k++) {
        size_t i = (size_t)g->params[k];
        ls_status st = LS_OK;

        if (ls_store_is_frozen(p->store, i)) continue;
        if (kind == STORE_GRAD)
            store_request_grad(p->store, i);
        else if (kind == STORE_STATE)
            st = ls_store_add_state(p->store, i, state);
        if (st < 0) {
            program_fail_by(p, st);
            return false;
        }
    }
    return true;
}

static ls_value find_unit_value(const ls_program *p, int unit, ls_role role, const char *state)
{
    for (int v = leaves_last(&p->of_unit, unit); v; v = p->values[v].leaf) {
        const struct value *x = &p->values[v];

        if (x->unit == unit && x->role == role && x->root == v && (!state || strcmp(x->state, state) == 0)) return (ls_value){ v };
    }
    return LS_NONE;
}

static ls_value flat_value(ls_program *p, const char *name, ls_role role, ls_dtype type, size_t count)
{
    struct cursor before = program_cursor_block(p, 0); /* no block prefix */
    ls_value v = program_new_value(p, name, type, 1, &count);

    program_cursor_end(p, before);
    if (v.id) program_value(p, v)->role = role;
    return v;
}

ls_value program_unit_value(ls_program *p, int unit, int kind, const char *state)
{
    static const ls_role role[STORE_KINDS] = { LS_ROLE_PARAMETER, LS_ROLE_GRADIENT, LS_ROLE_OPTIMIZER };
    const struct store_unit *g = store_unit_at(p->store, unit);
    bool part = g->sharded >> kind & 1;
    char name[200], full_name[256];
    ls_value v = find_unit_value(p, unit, role[kind], kind == STORE_STATE ? state : NULL);

    if (v.id) return v;
    if (g->backing[kind] != BACKING_MEMORY)
        return program_fail(p, "%s%s of unit %d: offloaded; load it instead", state ? "state " : "",
                            state                ? state
                            : kind == STORE_GRAD ? "gradients"
                                                 : "values",
                            unit);
    if (!program_ok(p) || !declare_kind(p, g, kind, state)) return LS_NONE;
    unit_name(p->store, g, name, sizeof name);
    snprintf(full_name, sizeof full_name, "%s%s%s", name, kind == STORE_VALUE ? "" : ".",
             kind == STORE_VALUE  ? ""
             : kind == STORE_GRAD ? "grad"
                                  : state);
    v = flat_value(p, full_name, role[kind], store_unit_type(p->store, unit, (enum store_kind)kind), part ? g->end - g->begin : g->total);
    if (!v.id) return LS_NONE;
    program_value(p, v)->unit = unit;
    program_value(p, v)->state = kind == STORE_STATE ? state : NULL;
    leaves_add(p, &p->of_unit, unit, v);
    if (part) program_value(p, v)->place[LS_AXIS_DP] = (ls_placement){ .kind = LS_SHARD };
    return v;
}

ls_value program_comm_value(ls_program *p, const char *what, ls_dtype type, size_t count)
{
    return flat_value(p, what, LS_ROLE_COMMUNICATION, type, count);
}

/* ---- instructions ---- */

static struct instruction *append(ls_program *p, int op, ls_value in, ls_value out)
{
    return program_append(p, op, NULL, in.id ? 1 : 0, &in, out.id ? 1 : 0, &out);
}

static bool has_blocks(ls_collective op) { return op == LS_COLLECTIVE_ALL_GATHER || op == LS_COLLECTIVE_REDUCE_SCATTER; }

static size_t sum(const size_t *counts, int n)
{
    size_t total = 0;

    for (int r = 0; r < n; r++) total += counts[r];
    return total;
}

/* The number of elements of input and output; SIZE_MAX: no such operand. */
static size_t wanted_in(const struct exchange *e)
{
    switch (e->op) {
    case LS_COLLECTIVE_ALL_GATHER: return e->counts[ls_comm_rank(e->comm)];
    case LS_COLLECTIVE_BROADCAST:
    case LS_COLLECTIVE_RECV: return SIZE_MAX;
    default: return e->total;
    }
}

static size_t wanted_out(const struct exchange *e)
{
    switch (e->op) {
    case LS_COLLECTIVE_REDUCE_SCATTER: return e->counts[ls_comm_rank(e->comm)];
    case LS_COLLECTIVE_ALL_TO_ALL: return sum(e->recv_counts, ls_comm_size(e->comm));
    case LS_COLLECTIVE_SEND: return SIZE_MAX;
    default: return e->total;
    }
}

static bool exchange_fits(const ls_program *p, ls_value x, size_t want)
{
    const struct value *v = &p->values[x.id];

    return want == SIZE_MAX ? !x.id : x.id && value_count(v) == want && value_is_contiguous(v);
}

/* Checks the sizes that struct exchange specifies. */
static bool exchange_check_sizes(ls_program *p, const struct exchange *e, ls_value in, ls_value out)
{
    size_t want_in = wanted_in(e), want_out = wanted_out(e);
    bool alike = !in.id || !out.id || p->values[in.id].dtype == p->values[out.id].dtype;

    if (exchange_fits(p, in, want_in) && exchange_fits(p, out, want_out) && alike) return true;
    program_fail(p, "%s of %zu elements over %d ranks: input %zu and output %zu elements; expected %zu and %zu of one type",
                 ls_collective_name(e->op), e->total, ls_comm_size(e->comm), in.id ? value_count(&p->values[in.id]) : 0,
                 out.id ? value_count(&p->values[out.id]) : 0, want_in == SIZE_MAX ? 0 : want_in, want_out == SIZE_MAX ? 0 : want_out);
    return false;
}

/* Fills in the even block sizes if the caller gave none; computes total if it gave counts. */
static bool complete_counts(ls_program *p, struct exchange *e)
{
    int n = ls_comm_size(e->comm);

    ASSERT(e->counts ? has_blocks(e->op) || e->op == LS_COLLECTIVE_ALL_TO_ALL : e->op != LS_COLLECTIVE_ALL_TO_ALL);
    ASSERT(e->op != LS_COLLECTIVE_ALL_TO_ALL || e->recv_counts == e->counts + n);
    if (e->counts) {
        e->total = sum(e->counts, n);
    } else if (has_blocks(e->op)) {
        e->counts = program_even_counts(p, e->total, n);
    }
    return program_ok(p);
}

void program_exchange_start(ls_program *p, struct exchange *e, ls_value in, ls_value out)
{
    struct cursor before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    struct instruction *i = NULL;

    if (program_ok(p) && complete_counts(p, e) && exchange_check_sizes(p, e, in, out)) i = append(p, OP_COMM_START, in, out);
    program_cursor_end(p, before);
    if (!i) return;
    e->id = p->builder.exchanges++;
    instruction_set_exchange(i, e);
}

void program_exchange_wait(ls_program *p, const struct exchange *e, ls_value in, ls_value out)
{
    struct cursor before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    struct instruction *i = append(p, OP_COMM_WAIT, in, out);

    program_cursor_end(p, before);
    if (i) instruction_set_exchange(i, e);
}

/* LOAD and SAVE transfer everything that this rank holds of the kind. */
static void offload_instruction(ls_program *p, int op, const struct unit_state *of, ls_value in, ls_value out)
{
    const struct store_unit *g = store_unit_at(p->store, of->unit);
    size_t held = g->sharded >> of->kind & 1 ? g->end - g->begin : g->total;
    ls_value x = in.id ? in : out;

    if (!program_ok(p) || !x.id || !declare_kind(p, g, of->kind, of->name)) return;
    if (value_count(&p->values[x.id]) != held || !value_is_contiguous(&p->values[x.id]) ||
        p->values[x.id].dtype != store_unit_type(p->store, of->unit, (enum store_kind)of->kind)) {
        program_fail(p, "%s of %s of unit %d: %zu elements of type %s, but this rank holds %zu of type %s", program_op_name(op),
                     of->name                 ? of->name
                     : of->kind == STORE_GRAD ? "gradients"
                                              : "values",
                     of->unit, value_count(&p->values[x.id]), ls_dtype_name(p->values[x.id].dtype), held,
                     ls_dtype_name(store_unit_type(p->store, of->unit, (enum store_kind)of->kind)));
        return;
    }
    struct instruction *i = append(p, op, in, out);
    if (i) instruction_set_state(i, of);
}

void program_load(ls_program *p, int unit, int kind, const char *state, ls_value out)
{
    offload_instruction(p, OP_LOAD, &(struct unit_state){ unit, kind, state }, LS_NONE, out);
}

void program_load_wait(ls_program *p, int unit, int kind, const char *state, ls_value out)
{
    offload_instruction(p, OP_LOAD_WAIT, &(struct unit_state){ unit, kind, state }, LS_NONE, out);
}

void program_save(ls_program *p, int unit, int kind, const char *state, ls_value in)
{
    offload_instruction(p, OP_SAVE, &(struct unit_state){ unit, kind, state }, in, LS_NONE);
}

void program_save_wait(ls_program *p, int unit, int kind, const char *state, ls_value in)
{
    offload_instruction(p, OP_SAVE_WAIT, &(struct unit_state){ unit, kind, state }, in, LS_NONE);
}

/* ---- counting ---- */

bool instruction_runs(const struct instruction *i, int segments)
{
    bool last = segments & LS_LAST;

    return i->when == LS_WHEN_ALWAYS || (i->when == LS_WHEN_LAST) == last;
}

size_t ls_program_comm_bytes(const ls_program *p, int segments, int collective, size_t *calls)
{
    size_t bytes = 0, n = 0;

    for (int s = 0; s < SEGMENTS; s++)
        for (int k = 0; (segments >> s & 1) && k < p->list[s].n; k++) {
            const struct instruction *i = &p->list[s].at[k];

            if (!instruction_is_start(i) || (int)instruction_exchange(i)->op != collective || !instruction_runs(i, segments)) continue;
            const struct exchange *e = instruction_exchange(i);
            bytes += e->rows.comm
                         ? shuffle_bytes(p, i)
                         : ls_comm_bytes_of(e->comm, e->op, e->total, e->counts, p->values[i->nout ? i->out[0].id : i->in[0].id].dtype);
            n++;
        }
    if (calls) *calls = n;
    return bytes;
}

struct program_offload program_offload(const ls_program *p, int segments)
{
    struct program_offload sum = { 0 };

    for (int s = 0; s < SEGMENTS; s++)
        for (int k = 0; (segments >> s & 1) && k < p->list[s].n; k++) {
            const struct instruction *i = &p->list[s].at[k];
            ls_value x = instruction_is_load(i) ? i->out[0] : instruction_is_save(i) ? i->in[0] : LS_NONE;
            size_t bytes = x.id ? value_count(&p->values[x.id]) * ls_dtype_bytes(p->values[x.id].dtype) : 0;

            if (!bytes || !instruction_runs(i, segments)) continue;
            *(instruction_is_load(i) ? &sum.loaded : &sum.saved) += bytes;
            if (instruction_is_load(i) && s < SEG_OPTIMIZER && instruction_state(i)->kind == STORE_GRAD) sum.gradients += bytes;
        }
    return sum;
}
