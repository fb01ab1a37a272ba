/* program.h - the program struct, in four parts: the IR, what its builder keeps (builder.h), the arguments and the results of the passes
 * (passes.h), and the state of runs (runtime.h). */
#ifndef LS_IR_PROGRAM_H
#define LS_IR_PROGRAM_H

#include "ir/builder.h"
#include "ir/names.h"
#include "passes/passes.h"
#include "runtime/runtime.h"

/* The values of the store that were made, by parameter or by unit. */
struct leaves {
    int *last; /* [room]: the last one, whose `leaf` leads to the others; 0: none */
    int room;
};
int leaves_last(const struct leaves *l, int key); /* program.c */
void leaves_add(ls_program *p, struct leaves *l, int key, ls_value v);

struct ls_program {
    ls_store *store;
    ls_status status;
    char message[512];
    struct value *values; /* [0] is the null value */
    int nvalues, values_room;
    struct names names; /* names of the values */
    struct leaves of_param, of_unit;
    struct list list[SEGMENTS];
    char **blocks; /* names; [0] is "" */
    int nblocks;
    size_t **counts; /* [ncounts] block sizes of exchanges */
    int ncounts;
    struct even_counts *even; /* [neven]: those that are even, by total and ranks */
    int neven;
    ls_value loss; /* the argument of ls_backward; LS_NONE on a stage without a term of the loss */
    struct builder builder;
    struct pass_arguments arguments;
    struct pass_results results;
    struct run_state run;
};

/* Bytes that one run of these segments (LS_LAST counts) loads and saves of what is offloaded. `gradients`: those of `loaded` that are
 * gradients of forward, backward and weights, which are not moved in the first micro-batch of a step: they are zeros. */
struct program_offload {
    size_t loaded, gradients, saved;
};
struct program_offload program_offload(const ls_program *p, int segments); /* exchange.c */

#endif
