/* program.h - a program: what its builder has made of it, what the passes are told and have decided, and the state of its runs. */
#ifndef LS_IR_PROGRAM_H
#define LS_IR_PROGRAM_H

#include "ir/builder.h"
#include "passes/passes.h"
#include "runtime/runtime.h"

/* A stream of a program's instructions; index: in the store's set, once bound. */
struct program_stream {
    const ls_comm *comm;
    int lane, index;
};

struct ls_program {
    /* built */
    ls_store *store;
    ls_status status;
    char message[512];
    struct value *values; /* [0] is the null value */
    int nvalues, values_room;
    struct list list[SEGMENTS];
    char **blocks; /* names; [0] is "" */
    int nblocks;
    struct cursor cursor; /* where ops append now */
    size_t **counts;      /* [ncounts], of exchanges */
    int ncounts;
    ls_value loss; /* of ls_backward; LS_NONE on a stage that has no share of it */
    bool backward; /* ls_backward has been called */
    bool local;    /* values of the store that are made from here on have this rank's sizes */
    /* told to the passes */
    ls_compile_options options;
    struct partition partition;
    struct distribution distribution;
    struct edit edit;
    ls_comm *arena_comm; /* whose memory (ls_comm_alloc) ARENA_COMMUNICATION is; NULL: this rank's own */
    /* decided by the passes */
    bool compiled;
    struct stage_ends stage;
    bool wants_last;                       /* gradients are summed in the last micro-batch */
    size_t arena_bytes[ARENAS], live_peak; /* ARENA_SLOT: of one slot; live_peak: of the activations, all slots */
    int slots;                             /* exchanges: those that can be in flight at once */
    struct program_stream *stream;         /* [nstreams]: compute, copy, those of comms; streams pass */
    int nstreams, *wait;
    struct run_state run;
};

#endif
