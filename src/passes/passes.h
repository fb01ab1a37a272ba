/* passes.h - the passes of ls_program_compile(), in its order: (partition), gradient, recompute, (split), lower, (distribution), kernels,
 * overlap, streams, memory, bind. Each is one file and works on the lists of ir.h; partition and distribution are those of floor 5.
 */
#ifndef LS_PASSES_PASSES_H
#define LS_PASSES_PASSES_H

#include "ir/ir.h"

/* The pass of floor 5 that distributes a program over ranks; runs after lowering. Zeroed: one rank. */
struct distribution {
    ls_status (*pass)(ls_program *p, void *ctx);
    void (*release)(void *ctx);
    void *ctx;
};

/* The pass of floor 5 that cuts the forward: sizes become this rank's. Runs first. */
struct partition {
    ls_status (*pass)(ls_program *p, void *ctx);
    void (*release)(void *ctx);
    void *ctx;
};

/* Called by compile after each of these passes, and before the check of what the pass made: an edit of the program from outside, by which
 * tests inject faults (train/faults.h). unchecked: the checks of placements are skipped, so that the wrong program runs. Zeroed: none. */
enum edit_after { AFTER_PARTITION, AFTER_GRADIENT, AFTER_RECOMPUTE, AFTER_LOWER, AFTER_DATA_PARALLEL };
struct edit {
    ls_status (*edit)(ls_program *p, enum edit_after after, const void *ctx);
    const void *ctx;
    bool unchecked;
};

/* A pipeline stage that is not the whole model. in, dout: inputs, "stage.in" and "stage.dout"; out, din: outputs, "stage.out" and
 * "stage.din". The gradient pass begins with dout at out (and with 1 at the loss, where there is one) and leaves in's gradient in
 * din. LS_NONE where the stage is the first or the last. Set by the partition pass (in and out), the gradient pass (dout and din). */
struct stage_ends {
    ls_value in, out, din, dout;
};

/* One pass a file. */
ls_status gradient_pass(ls_program *p);  /* gradient_pass.c: loss -> SEG_BACKWARD */
ls_status recompute_pass(ls_program *p); /* recompute.c */
ls_status lower_pass(ls_program *p);     /* lower.c: instructions that stand for several */
ls_status overlap_pass(ls_program *p);   /* overlap.c: floating exchanges start early, are waited for late */
ls_status split_pass(ls_program *p);     /* compile.c: weight gradients into SEG_WEIGHTS */
ls_status kernels_pass(ls_program *p);   /* compile.c: chooses entries, asks for scratch */
ls_status memory_pass(ls_program *p);    /* memory.c: lifetimes, offsets, peak */

/* compile.c: the program's edit, if it has one. Called by the passes of floor 5, and by compile after the others. */
ls_status program_edit(ls_program *p, enum edit_after after);

/* memory.c */
int program_slots(const ls_program *p);               /* options.slots, or 1 */
size_t program_activation_bytes(const ls_program *p); /* all slots and the arena that they share */

/* cost.c */
double flops_of(const ls_program *p, const struct instruction *i);          /* what the kernel does */
double flops_of_model(const ls_program *p, const struct instruction *i);    /* without recomputation inside it */
size_t instruction_bytes(const ls_program *p, const struct instruction *i); /* that it reads and writes */
size_t shuffle_bytes(const ls_program *p,
                     const struct instruction *i); /* that this rank sends, if experts are loaded evenly and nothing is dropped */

#endif
