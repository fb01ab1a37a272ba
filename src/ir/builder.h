/* builder.h - building a program: values, instructions appended at the cursor, sticky failures. Models, rules and passes build alike. */
#ifndef LS_IR_BUILDER_H
#define LS_IR_BUILDER_H

#include "ir/ir.h"

/* Where instructions are appended, and how they are marked. Zeroed: forward, in every micro-batch, outside of blocks. A pass moves it in
 * scopes that nest: what begins one returns the cursor to which program_cursor_end() goes back. */
struct cursor {
    enum segment segment;
    ls_phase phase;
    ls_when when;
    int block;
    int depth; /* of scopes */
};

struct value *program_value(ls_program *p, ls_value v); /* valid until the next value is made */
ls_value program_new_value(ls_program *p, const char *what, ls_dtype type, int ndim, const size_t *size);
/* Each begins a scope of the cursor: as given; in a segment, outside of blocks and in every micro-batch; in another phase, block or
 * micro-batch; as instruction i is marked. Returns the cursor as it was, for the end of the scope. */
struct cursor program_cursor_begin(ls_program *p, struct cursor to);
struct cursor program_cursor_segment(ls_program *p, enum segment segment, ls_phase phase);
struct cursor program_cursor_phase(ls_program *p, ls_phase phase);
struct cursor program_cursor_block(ls_program *p, int block);
struct cursor program_cursor_when(ls_program *p, ls_when when);
struct cursor program_cursor_like(ls_program *p, const struct instruction *i);
/* The innermost scope ends; `before` is what its beginning returned. */
void program_cursor_end(ls_program *p, struct cursor before);
/* Appends an instruction at the cursor. Null inputs are absent operands. Valid until the next one is appended; NULL once the program has
 * failed. */
struct instruction *program_append(ls_program *p, int op, const struct op_attr *attr, int nin, const ls_value *in, int nout,
                                   const ls_value *out);
/* The same; returns out[0], or LS_NONE. */
ls_value program_emit(ls_program *p, int op, const struct op_attr *attr, int nin, const ls_value *in, int nout, const ls_value *out);
/* Appends *i to the cursor's segment, marked as it is. */
void program_push(ls_program *p, const struct instruction *i);
/* Outputs of *i, which has just been appended, get the time dims that its op carries over. program_append() and program_view() do it. */
void program_carry_time(ls_program *p, const struct instruction *i);
/* counts[n] of an exchange, zeroed, which last as long as the program; NULL once it has failed. */
size_t *program_counts(ls_program *p, int n);
/* The instructions of a segment, which is empty now; the caller frees the list. */
struct list program_take(ls_program *p, enum segment segment);
ls_value program_view(ls_program *p, ls_value x, struct view_rule rule, int ndim, const size_t *size, const ptrdiff_t *stride,
                      ptrdiff_t offset);
ls_value program_param_value(ls_program *p, int param);                    /* of a declared parameter */
ls_value program_grad_value(ls_program *p, int param);                     /* declares the gradient in the store */
ls_value program_state_value(ls_program *p, int param, const char *state); /* declares the state in the store */
/* The flat buffer of a store's group, one dim: [total], or the elements that this rank holds where it is sharded. The kinds of
 * store.h; state: of STORE_STATE. Views of it (program_view) are how single parameters are reached. */
ls_value program_group_value(ls_program *p, int group, int kind, const char *state);
/* A value of role COMMUNICATION, one dim. */
ls_value program_comm_value(ls_program *p, const char *what, ls_dtype type, size_t count);
/* exchange.c: the executor's own instructions, appended like those of program_emit. in and out as struct exchange says (LS_NONE:
 * absent; all_reduce: the same value or two). Start fills e->slot, and e->counts where they are not given; the wait is given the
 * same three. Each start has one wait, in the same segment and with the same `when`, or in the optimizer's. Both are of phase
 * COMMUNICATE. */
void program_exchange_start(ls_program *p, struct exchange *e, ls_value in, ls_value out);
void program_exchange_wait(ls_program *p, const struct exchange *e, ls_value in, ls_value out);
void program_load(ls_program *p, int group, const char *state, ls_value out);
void program_save(ls_program *p, int group, const char *state, ls_value in);
ls_value program_find(const ls_program *p, const char *name); /* input, output or bound; LS_NONE */
/* Sticky failure: the first message stays; returns LS_NONE. */
ls_value program_fail(ls_program *p, const char *fmt, ...) LS_PRINTF(2, 3);
ls_value program_fail_by(ls_program *p, ls_status st); /* st and its message, which are somebody else's */
bool program_ok(const ls_program *p);
void program_bound(ls_program *p, ls_value x, int64_t least, int64_t most); /* narrows what may be written to x's root */
/* m applied to x: its output, of this rank's size and placement; LS_NONE and a sticky failure where x is not placed as m says. */
ls_value program_move(ls_program *p, const struct move *m, ls_value x); /* redistribute.c */

/* ops_shape.c */
ls_value program_copy(ls_program *p, ls_value x, ls_dtype type);                           /* always a fresh contiguous value */
ls_value program_expand(ls_program *p, ls_value x, int dim, int ndim, const size_t *size); /* x repeats along dim; -1: everywhere */
/* shuffle.c: there[n,e]; out, which shuffled rows go to. */
ls_value program_shuffle_counts(ls_program *p, ls_comm *comm, ls_value counts);
ls_value program_shuffle(ls_program *p, const struct shuffle *s, ls_value rows, ls_value counts, ls_value there, ls_value out);
/* ops_experts.c: the most rows that the experts of so many samples get. */
size_t program_route_rows(size_t samples, size_t tokens, size_t experts, size_t chosen, size_t capacity);
/* ops.c: what every op needs */
bool program_same_shape(const ls_program *p, ls_value a, ls_value b);
/* Fails with "OP: NAME ..." unless x is given, floating, and of type `type` (LS_DTYPES: any). False: failed, or null in. */
bool program_operand(ls_program *p, const char *op, const char *name, ls_value x, ls_dtype type);

#endif
