/* passes.h - the passes of ls_program_compile(), in order: (partition), gradient, recompute, (split), lower, (distribution), (update in
 * backward), fuse, kernels, overlap, streams, memory, bind. Each is in one file and works on the lists of ir.h; partition and distribution
 * are in src/parallel.
 */
#ifndef LS_PASSES_PASSES_H
#define LS_PASSES_PASSES_H

#include "ir/ir.h"

/* The pass of src/parallel that adds data parallelism to a program; runs after lowering. Zeroed: one rank. */
struct distribution {
    ls_status (*pass)(ls_program *p, void *ctx);
    void (*release)(void *ctx);
    void *ctx;
};

/* The pass of src/parallel that partitions the forward: sizes become this rank's. Runs first. */
struct partition {
    ls_status (*pass)(ls_program *p, void *ctx);
    void (*release)(void *ctx);
    void *ctx;
};

/* A callback that edits the program after each of these passes, before the pass's result is verified. Tests use it to inject faults
 * (train/faults/faults.h). unchecked: placements are not verified, so that the faulty program runs. Zeroed: no callback. */
enum edit_after { AFTER_PARTITION, AFTER_GRADIENT, AFTER_RECOMPUTE, AFTER_LOWER, AFTER_DATA_PARALLEL };
struct edit {
    ls_status (*edit)(ls_program *p, enum edit_after after, const void *ctx);
    const void *ctx;
    bool unchecked;
};

/* The ends of a pipeline stage. in, dout: the inputs "stage.in" and "stage.dout"; out, din: the outputs "stage.out" and "stage.din". The
 * gradient pass starts with dout at out (and with 1 at the loss, if there is one) and writes in's gradient to din. LS_NONE where the first
 * or the last stage has no neighbor. The partition pass sets in and out, the gradient pass dout and din. */
struct stage_ends {
    ls_value in, out, din, dout;
};

struct pass_arguments {
    ls_compile_options options;
    struct partition partition;
    struct distribution distribution;
    struct edit edit;
    ls_comm *arena_comm; /* allocates ARENA_COMMUNICATION (ls_comm_alloc); NULL: this rank's own memory */
};

/* A stream on which a program's instructions run; index: in the store's stream set, once bound. */
struct program_stream {
    const ls_comm *comm;
    int lane, index;
};

struct pass_results {
    bool compiled;
    struct stage_ends stage;
    bool wants_last;                       /* gradients are reduced in the last micro-batch */
    bool carries;                          /* it waits for carried gathers where it first reads their parameters */
    size_t comm_align;                     /* memory: alignment of ARENA_COMMUNICATION and the buffers in it */
    size_t arena_bytes[ARENAS], live_peak; /* ARENA_SLOT: bytes of one slot; live_peak: of the activations in all slots */
    struct program_stream *stream;         /* streams: [nstreams]: compute, copy, and those of comms */
    int nstreams;
    int *wait; /* streams: numbers of instructions that are waited for; each instruction has a range of them (first_wait) */
};

/* One pass per file. */
ls_status gradient_pass(ls_program *p);           /* gradient_pass.c: loss -> SEG_BACKWARD */
ls_status recompute_pass(ls_program *p);          /* recompute.c */
ls_status lower_pass(ls_program *p);              /* lower.c: expands composite instructions */
ls_status overlap_pass(ls_program *p);            /* overlap.c: starts floating exchanges early, waits for them late */
ls_status split_pass(ls_program *p);              /* compile.c: moves weight gradients into SEG_WEIGHTS */
ls_status update_in_backward_pass(ls_program *p); /* update_in_backward.c: updates where gradients are final; frees gradients */
ls_status fuse_pass(ls_program *p);               /* fuse.c: pairs of instructions that one kernel of the device computes */
ls_status kernels_pass(ls_program *p);            /* compile.c: selects kernels, determines scratch */
ls_status memory_pass(ls_program *p);             /* memory.c: lifetimes, offsets, peak */

/* compile.c: i's operands and attributes, without data, for the kernel table. */
void instruction_call(const ls_program *p, const struct instruction *i, struct call *out);

/* compile.c: runs the program's edit, if it has one. Called by the passes of src/parallel, and by compile after the other passes. */
ls_status program_edit(ls_program *p, enum edit_after after);

/* memory.c */
int program_slots(const ls_program *p);               /* options.slots, or 1 */
size_t program_activation_bytes(const ls_program *p); /* all slots and the arena that they share */

/* cost.c */
double flops_of(const ls_program *p, const struct instruction *i);          /* what the kernel computes */
double flops_of_model(const ls_program *p, const struct instruction *i);    /* without recomputation inside the kernel */
size_t instruction_bytes(const ls_program *p, const struct instruction *i); /* bytes that it reads and writes */
size_t shuffle_bytes(const ls_program *p,
                     const struct instruction *i); /* bytes that this rank sends if experts are loaded evenly and nothing is dropped */

#endif
