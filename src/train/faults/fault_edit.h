/* fault_edit.h - functions that edit the instruction lists of a program, for injected faults. */
#ifndef LS_TRAIN_FAULTS_FAULT_EDIT_H
#define LS_TRAIN_FAULTS_FAULT_EDIT_H

#include "train/faults/faults.h"

typedef ls_status fault_edit_fn(ls_program *p, const struct injection *i);
/* Declares the edit of each row; of a hook, checks that faults.h declares it. */
#define FAULT_EDIT(id, name, what, after, arm, ...) FAULT_EDIT_##after(arm)
#define FAULT_EDIT_HOOK(hook)                       _Static_assert(sizeof &hook > 0, "a hook is a function of faults.h");
#define FAULT_EDIT_PARTITION(edit)                  fault_edit_fn edit_##edit;
#define FAULT_EDIT_GRADIENT(edit)                   fault_edit_fn edit_##edit;
#define FAULT_EDIT_RECOMPUTE(edit)                  fault_edit_fn edit_##edit;
#define FAULT_EDIT_LOWER(edit)                      fault_edit_fn edit_##edit;
#define FAULT_EDIT_DATA_PARALLEL(edit)              fault_edit_fn edit_##edit;
FAULT_STEP_MAP(FAULT_EDIT)

/* The edit of a row; NULL of a hook. */
#define FAULT_EDIT_OF_HOOK(hook)          NULL
#define FAULT_EDIT_OF_PARTITION(edit)     edit_##edit
#define FAULT_EDIT_OF_GRADIENT(edit)      edit_##edit
#define FAULT_EDIT_OF_RECOMPUTE(edit)     edit_##edit
#define FAULT_EDIT_OF_LOWER(edit)         edit_##edit
#define FAULT_EDIT_OF_DATA_PARALLEL(edit) edit_##edit

/* fault_edit.c */
const struct value *root_value(const ls_program *p, ls_value v); /* the value that owns the bytes of v */
bool reads(const struct instruction *i, ls_value v);
void list_remove(struct list *l, int at);
/* Moves the instructions [from, n), which have just been appended, to position `at`. */
void list_move_tail(struct list *l, int from, int at);
/* Returns a new value with v's type, local size and placement. */
ls_value value_clone(ls_program *p, const char *what, ls_value v);
/* Begins a cursor scope in segment s with the phase, block and `when` of instruction i. */
struct cursor cursor_in(ls_program *p, enum segment s, const struct instruction *i);
/* Removes the collective that starts at list[s].at[at], with its wait in whatever segment that is. */
void exchange_remove(ls_program *p, enum segment s, int at);
/* Inserts a copy of the collective that starts at list[s].at[at] before it. */
void exchange_repeat(ls_program *p, enum segment s, int at);

#endif
