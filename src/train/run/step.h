/* step.h - one training step: a program over a store, run micro-batch by micro-batch.
 *
 *     gradients = 0
 *     for each of `accumulate` micro-batches: forward, backward (adds into the gradients)
 *     norm, clip, update
 *
 * The loss of every micro-batch is divided by the valid tokens of the whole step, so the losses and gradients of the
 * micro-batches, and those of all ranks, add up to those of the step. Ranks that differ in dp have their shares of the step's
 * samples; what their micro-batches hold beyond the share has targets -1 and weight zero. All others have the same samples. Nothing is
 * allocated after step_open().
 *
 * A pipeline's stages are programs of their own, played in the order of its schedule; `program` then holds the update alone.
 */
#ifndef LS_TRAIN_RUN_STEP_H
#define LS_TRAIN_RUN_STEP_H

#include "lockstep/optim.h"
#include "runtime/readback.h"
#include "train/faults/faults.h"
#include "train/run/feed.h"

/* debug.non_finite: a value of update `step` (1, 2, ...), micro-batch `micro`, made NaN on one rank. name NULL: none. */
struct step_fault {
    int64_t step, rank, micro;
    const char *name;
};

struct step {
    struct task_model model;
    ls_store *store;
    ls_program *program;           /* forward, backward and update; of a pipeline the update */
    ls_pipeline *pipeline;         /* NULL: there is none */
    ls_pipeline_schedule schedule; /* its */
    ls_optimizer optimizer;
    struct ranks ranks; /* borrowed */
    ls_layout layout;
    struct feed feed;
    double executed; /* FLOPs of a step, all ranks; of a plan: this rank's, times the ranks */
    uint64_t seed;   /* of the run */
    struct step_fault fault;
    struct injection injection;        /* of debug.fault */
    size_t global;                     /* samples of a step, over all ranks */
    size_t begin, end;                 /* of them, this rank's share */
    size_t batch, seq_len, accumulate; /* B, T, micro-batches of this rank */
    void *inputs;                      /* [accumulate,B,feed.values] of the step that runs next; the caller fills them */
    int32_t *targets;                  /* [accumulate,B,T] */
    struct readback readback;          /* losses and routers' counts of the micro-batches */
    double *load;                      /* [layers,experts] tokens of the last step that chose each expert, of all ranks; NULL: no experts */
};

/* What a step is made of beside its model and its layout. */
struct step_options {
    ls_optimizer optimizer;
    const char *device; /* its name: device.h */
    uint64_t seed;
    size_t global; /* samples of a step, over all ranks */
    bool check_finite;
    enum fault fault;             /* debug.fault */
    struct step_fault non_finite; /* debug.non_finite */
};
struct step_options step_options_of(const struct config *c);

/* Declares the model's parameters in a new store and compiles the step. plan_only: priced, not allocated. From here on
 * all ranks do the same calls. The ranks are those of the layout, whose texts are borrowed. */
ls_status step_open(const struct task_model *model, const ls_layout *layout, const struct step_options *o, const struct ranks *ranks,
                    bool plan_only, struct step *out);
/* The same with layout and options from the config. */
ls_status step_open_config(const struct config *c, const struct task_model *model, const struct ranks *ranks, bool plan_only,
                           struct step *out);
/* What marks a program of the step's store (the step's own, evaluation) as distributed over the ranks. stage NULL: the whole model. */
struct distributing {
    const ls_layout *layout;
    const struct ranks *ranks;
    const struct task_model *model;
};
ls_status step_distribute(const struct distributing *s, ls_program *p, const ls_stage *stage);
void step_close(struct step *s); /* of a zeroed struct a no-op */

/* The loss, with that of the experts' routers, and gradients of the step; `index` (0, 1, ...) keys dropout. *valid: tokens that
 * count, of all ranks, as is the loss. A loss that is not finite is LS_EINVAL on all ranks, with *loss and *valid set. */
ls_status step_gradients(struct step *s, uint64_t index, double *loss, size_t *valid);
/* Update number t (1, 2, ...). *norm: of the whole gradient before clipping. Where that is not finite: LS_EINVAL on all ranks with *norm
 * set, and parameters and optimizer state are as they were. */
ls_status step_update(struct step *s, double lr, uint64_t t, double *norm);

/* After one of the two found a value that is not finite: out names the first one that is met when the step's micro-batches run again, and
 * *rank the rank that computed it, the same on all ranks (non_finite.c). Parameters and optimizer state are as they were. Collective. */
enum { NON_FINITE_ROOM = 512 };
ls_status step_find_non_finite(struct step *s, uint64_t index, int *rank, char out[NON_FINITE_ROOM]);
/* The text of `rank` on all ranks. */
ls_status step_share_non_finite(struct step *s, int rank, char text[NON_FINITE_ROOM]);
/* Forward and backward of the step's micro-batches, after step_gradients() and with the same numbers. */
ls_status step_run_again(struct step *s, uint64_t index);

size_t step_parameters(const struct step *s); /* elements that learn */
/* Bytes of one micro-batch as the step and the evaluation hold it: inputs and targets. */
size_t step_micro_bytes(const struct step *s);

/* FLOPs of one step on all ranks: what the model needs (MFU counts it), and what is executed, recomputation and rows without
 * weight included (HFU). */
double step_model_flops(const struct step *s);
double step_executed_flops(const struct step *s);
/* Bytes that this rank puts on the wire in one step for one kind of operation, and its calls: the program's, without the few
 * numbers that the trainer itself exchanges. */
size_t step_comm_bytes(const struct step *s, ls_collective op, size_t *calls);
/* The step's programs: a pipeline's chunks, then `program`; NULL past the last. */
ls_program *step_program(const struct step *s, int i);
/* Bytes of all of them together. */
ls_cost step_cost(const struct step *s);

#endif
