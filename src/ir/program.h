/* program.h - the program struct: what the builder made, the arguments of the passes, their results, and the state of runs. */
#ifndef LS_IR_PROGRAM_H
#define LS_IR_PROGRAM_H

#include "ir/builder.h"
#include "ir/names.h"
#include "passes/passes.h"
#include "runtime/runtime.h"

/* A stream on which a program's instructions run; index: in the store's stream set, once bound. */
struct program_stream {
    const ls_comm *comm;
    int lane, index;
};

/* The values of the store that were made, by parameter or by unit. */
struct leaves {
    int *last; /* [room]: the last one, whose `leaf` leads to the others; 0: none */
    int room;
};
int leaves_last(const struct leaves *l, int key); /* program.c */
void leaves_add(ls_program *p, struct leaves *l, int key, ls_value v);

struct ls_program {
    /* built */
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
    struct cursor cursor; /* where ops append now */
    size_t **counts;      /* [ncounts] block sizes of exchanges */
    int ncounts;
    struct even_counts *even; /* [neven]: those that are even, by total and ranks */
    int neven;
    ls_value loss;           /* the argument of ls_backward; LS_NONE on a stage without a term of the loss */
    bool backward;           /* ls_backward has been called */
    bool update_in_backward; /* the optimizer that was appended updates parameters in backward */
    bool local;              /* values of the store created from now on have this rank's sizes */
    /* arguments of the passes */
    ls_compile_options options;
    struct partition partition;
    struct distribution distribution;
    struct edit edit;
    ls_comm *arena_comm; /* allocates ARENA_COMMUNICATION (ls_comm_alloc); NULL: this rank's own memory */
    /* results of the passes */
    bool compiled;
    struct stage_ends stage;
    bool wants_last;                       /* gradients are reduced in the last micro-batch */
    bool carries;                          /* it waits for carried gathers where it first reads their parameters */
    size_t comm_align;                     /* memory pass: alignment of ARENA_COMMUNICATION and the buffers in it */
    size_t arena_bytes[ARENAS], live_peak; /* ARENA_SLOT: bytes of one slot; live_peak: of the activations in all slots */
    int exchanges;                         /* the number of exchanges that can be in flight at once */
    struct program_stream *stream;         /* [nstreams]: compute, copy, and those of comms; set by the streams pass */
    int nstreams, *wait;
    struct run_state run;
};

/* Bytes that one run of these segments (LS_LAST counts) loads and saves of what is offloaded. `gradients`: those of `loaded` that are
 * gradients of forward, backward and weights, which are not moved in the first micro-batch of a step: they are zeros. */
struct program_offload {
    size_t loaded, gradients, saved;
};
struct program_offload program_offload(const ls_program *p, int segments); /* exchange.c */

#endif
