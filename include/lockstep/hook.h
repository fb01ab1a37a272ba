/* hook.h - callbacks of a compiled program: on gradients that are final, and on values after they are computed.
 *
 * Hooks are set between compile and the runs that call them; they last until ls_program_unhook() or the program's end. Rules:
 *   1. The runs' thread calls them, in the order of the program's instructions, which is the same in every step; at one instruction in the
 *      order in which they were set. They must not call the program's functions.
 *   2. A hook that returns anything but LS_OK stops the run, which returns that status (LS_EINVAL for a positive one) and names the hook.
 *      As after any failed run, the other ranks learn of it when this one closes its comms.
 *   3. A gradient hook may change the elements that it is given: norm, clip factor and update are computed from what it leaves. Where
 *      several ranks hold the same elements (zero 0; the model's axes, for parameters that they don't shard) it must leave the same bits on
 *      all of them.
 *   4. A value hook only reads: the bytes may be in flight to another rank or a part of another value, and a recomputed value would lack
 *      the change. On a device with memory of its own it reads a copy.
 *
 * With hooks, instructions are launched one by one: a device's graphs and launches of several instructions are not used.
 *
 *   static ls_status halve(void *ctx, const ls_hook_gradient *g)
 *   {
 *       for (size_t i = 0; i < g->count; i++) ((float *)g->data)[i] *= 0.5f;
 *       return LS_OK;
 *   }
 *   LS_TRY(ls_program_hook_gradient(p, "wte.weight", halve, NULL));
 *   LS_TRY(ls_program_run(p, LS_OPTIMIZER_STEP));   // calls it
 */
#ifndef LS_HOOK_H
#define LS_HOOK_H

#include "lockstep/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements of a parameter's gradient after accumulation over micro-batches and reduction over ranks, before norm, clipping and weight
 * decay. A rank is given the elements that it updates: of its part of the parameter (sharded by the model's axes; zero 0: all of it) those
 * in its data-parallel shard (zero 1 to 3), which may be none, and then it is not called. All pointers are valid during the call. */
typedef struct ls_hook_gradient {
    const char *name; /* the parameter's name */
    ls_dtype dtype;
    int ndim;
    size_t size[LS_DIMS], begin[LS_DIMS]; /* the rank's part: its sizes, and where it begins in the complete parameter */
    size_t offset, count;                 /* elements [offset, offset + count) of that part, row-major */
    void *data;                           /* [count], in host memory */
} ls_hook_gradient;
typedef ls_status ls_gradient_hook(void *ctx, const ls_hook_gradient *g);

/* A value as this rank holds it: a shard, or a partial sum, where the program says so. */
typedef struct ls_hook_value {
    const char *name; /* ls_operand.name */
    ls_value value;
    int segment; /* LS_FORWARD, LS_BACKWARD, LS_WEIGHTS or LS_OPTIMIZER_STEP */
    ls_dtype dtype;
    int ndim;
    size_t size[LS_DIMS];
    ptrdiff_t stride[LS_DIMS]; /* in elements */
    const void *data;          /* element [0, 0, ..], in host memory */
} ls_hook_value;
typedef ls_status ls_value_hook(void *ctx, const ls_hook_value *v);

/* Calls fn for the parameter (NULL: every parameter that p updates), in each run of LS_OPTIMIZER_STEP, before the first instruction that
 * reads the gradient. For a pipeline p is the program with the optimizer. A parameter that this rank does not update has no calls.
 * LS_EINVAL: p has no optimizer, or the store has no such parameter. */
ls_status ls_program_hook_gradient(ls_program *p, const char *name, ls_gradient_hook *fn, void *ctx);
/* Calls fn after each instruction that computes or adds to a value of that name: an output ("loss"), an operand of
 * ls_program_instruction() ("h.3/attention"; several values may have the name), or "%12" as `plan --print-program` shows it. The result of
 * a collective is available after its wait. With several micro-batches, fn is called in each of them; it is not called for recomputed
 * values. LS_EINVAL: p computes no such value. */
ls_status ls_program_hook_value(ls_program *p, const char *name, ls_value_hook *fn, void *ctx);
void ls_program_unhook(ls_program *p); /* removes all of p's hooks */

#ifdef __cplusplus
}
#endif
#endif
