/* builder.h - building a program: values, instructions appended at the cursor, sticky failures. Models, rules and passes all use it. */
#ifndef LS_IR_BUILDER_H
#define LS_IR_BUILDER_H

#include "ir/ir.h"

/* Where instructions are appended, and how they are marked. Zeroed: in the forward, in every micro-batch, outside blocks. A pass moves it
 * in nested scopes: the call that begins a scope returns the cursor to restore with program_cursor_end(). */
struct cursor {
    enum segment segment;
    ls_phase phase;
    ls_when when;
    int block;
    int depth; /* nesting depth of scopes */
};

/* What a program's builder keeps. */
struct builder {
    struct cursor cursor;    /* where instructions are appended now */
    int exchanges;           /* ids given to exchanges: their number */
    bool local;              /* values of the store created from now on have this rank's sizes */
    bool backward;           /* ls_backward has been called */
    bool update_in_backward; /* the optimizer that was appended updates parameters in backward */
};

/* Fails unless a dropout of that name can have this probability and this operand of the step's numbers. */
bool program_drops(ls_program *p, const char *name, double probability, ls_value step);
/* The stream of random numbers of a name within the cursor's block. */
uint64_t program_site_stream(const ls_program *p, const char *name);
struct value *program_value(ls_program *p, ls_value v); /* valid until the next value is made */
ls_value program_new_value(ls_program *p, const char *what, ls_dtype type, int ndim, const size_t *size);
/* Each begins a scope: at a given cursor; in a segment, outside blocks and in every micro-batch; in another phase, block or micro-batch;
 * marked like instruction i. Each returns the previous cursor, for program_cursor_end(). */
struct cursor program_cursor_begin(ls_program *p, struct cursor to);
struct cursor program_cursor_segment(ls_program *p, enum segment segment, ls_phase phase);
struct cursor program_cursor_phase(ls_program *p, ls_phase phase);
struct cursor program_cursor_block(ls_program *p, int block);
struct cursor program_cursor_when(ls_program *p, ls_when when);
struct cursor program_cursor_like(ls_program *p, const struct instruction *i);
/* Ends the innermost scope; `before` is what its beginning returned. */
void program_cursor_end(ls_program *p, struct cursor before);
/* Appends an instruction at the cursor. Null inputs are absent operands. Valid until the next one is appended; NULL after the program has
 * failed. */
struct instruction *program_append(ls_program *p, int op, const struct op_attr *attr, int nin, const ls_value *in, int nout,
                                   const ls_value *out);
/* Like program_append(); returns out[0], or LS_NONE. */
ls_value program_emit(ls_program *p, int op, const struct op_attr *attr, int nin, const ls_value *in, int nout, const ls_value *out);
/* Appends *i to the cursor's segment and keeps its marks. */
void program_push(ls_program *p, const struct instruction *i);
/* Gives the outputs of *i, just appended, the time dims that its op propagates. program_append() and program_view() call it. */
void program_carry_time(ls_program *p, const struct instruction *i);
/* Returns zeroed counts[n] for an exchange, valid as long as the program; NULL after it has failed. */
size_t *program_counts(ls_program *p, int n);
/* Counts of `total` elements divided evenly (block_at()); exchanges of one size share them, so they must not be written. */
size_t *program_even_counts(ls_program *p, size_t total, int n);
size_t *program_rooted_counts(ls_program *p, size_t total, int n); /* all of them on rank 0 */
/* Takes the instructions out of a segment and leaves it empty; the caller frees the list. */
struct list program_take(ls_program *p, enum segment segment);
ls_value program_view(ls_program *p, ls_value x, struct view_rule rule, int ndim, const size_t *size, const ptrdiff_t *stride,
                      ptrdiff_t offset);
ls_value program_param_value(ls_program *p, int param);                    /* the value of a declared parameter */
ls_value program_grad_value(ls_program *p, int param);                     /* declares the gradient in the store */
ls_value program_state_value(ls_program *p, int param, const char *state); /* declares the state in the store */
/* The flat buffer of a store unit as a one-dim value: [total], or this rank's elements if it is sharded. kind is one of store.h's; state
 * is for STORE_STATE. Single parameters are views of it (program_view). */
ls_value program_unit_value(ls_program *p, int unit, int kind, const char *state);
/* A one-dim value of role COMMUNICATION. */
ls_value program_comm_value(ls_program *p, const char *what, ls_dtype type, size_t count);
/* exchange.c: appends the executor's own instructions. in and out are as struct exchange says (LS_NONE: absent; all_reduce: the same value
 * or two). Start fills in e->id, and e->counts if the caller gave none; the wait takes the same three arguments. Each start has one wait,
 * either in the same segment with the same `when`, or in the optimizer's segment. Both have phase COMMUNICATE. */
void program_exchange_start(ls_program *p, struct exchange *e, ls_value in, ls_value out);
void program_exchange_wait(ls_program *p, const struct exchange *e, ls_value in, ls_value out);
/* Transfers of what is offloaded, everything that this rank holds of a kind (enum store_kind; state: for STORE_STATE, else NULL). A load or
 * save has one wait, with the same arguments, later in the same segment. */
void program_load(ls_program *p, int unit, int kind, const char *state, ls_value out);
void program_load_wait(ls_program *p, int unit, int kind, const char *state, ls_value out);
void program_save(ls_program *p, int unit, int kind, const char *state, ls_value in);
void program_save_wait(ls_program *p, int unit, int kind, const char *state, ls_value in);
ls_value program_find(const ls_program *p, const char *name); /* input, output or bound; LS_NONE */
/* Fails the program unless it has failed already: the first message is kept. Returns LS_NONE. */
ls_value program_fail(ls_program *p, const char *fmt, ...) LS_PRINTF(2, 3);
ls_value program_fail_by(ls_program *p, ls_status st); /* fails with a status and message set by another function */
bool program_ok(const ls_program *p);
void program_bound(ls_program *p, ls_value x, int64_t least,
                   int64_t most); /* narrows the range of integers that may be written to x's root */
/* Appends redistribution m of x; returns the output, with this rank's size and placement, or fails if x's placement does not match m. */
ls_value program_move(ls_program *p, const struct move *m, ls_value x); /* redistribute.c */

/* ops_shape.c */
ls_value program_copy(ls_program *p, ls_value x, ls_dtype type);                           /* always a new contiguous value */
ls_value program_expand(ls_program *p, ls_value x, int dim, int ndim, const size_t *size); /* repeats x along dim; -1: along all dims */
/* shuffle.c: returns there[n,e], the counts of all ranks; program_shuffle fills out with the exchanged rows. */
ls_value program_shuffle_counts(ls_program *p, ls_comm *comm, ls_value counts);
ls_value program_shuffle(ls_program *p, const struct shuffle *s, ls_value rows, ls_value counts, ls_value there, ls_value out);
void program_shuffle_lower(ls_program *p, const struct instruction *i); /* a SHUFFLE over several ranks, as a start and a wait */
/* ops_experts.c: the largest number of rows that the experts of so many samples can get. */
size_t program_route_rows(size_t samples, size_t tokens, size_t experts, size_t chosen, size_t capacity);
/* shared checks of ops */
bool program_same_shape(const ls_program *p, ls_value a, ls_value b);
/* Fails with "OP: NAME ..." unless x is given, floating, and of type `type` (LS_DTYPES: any). Returns false if it failed, or if the operand
 * is null. */
bool program_operand(ls_program *p, const char *op, const char *name, ls_value x, ls_dtype type);

#endif
