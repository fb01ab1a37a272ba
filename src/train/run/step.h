/* step.h - one training step: a program over a store, run micro-batch by micro-batch.
 *
 *     gradients = 0
 *     for each of `accumulate` micro-batches: forward, backward (adds into the gradients)
 *     norm, clip, update
 *
 * The loss of every micro-batch is divided by the number of valid tokens of the step, so the losses and gradients of the micro-batches, and
 * those of all ranks, add up to those of the step. The dp ranks divide the step's samples; rows of a micro-batch beyond a rank's share have
 * targets -1 and do not count. Ranks with the same dp index have the same samples. Nothing is allocated after step_open().
 *
 * Each stage of a pipeline is a program of its own; they run in the order of the schedule, and `program` then holds only the update.
 */
#ifndef LS_TRAIN_RUN_STEP_H
#define LS_TRAIN_RUN_STEP_H

#include "lockstep/optim.h"
#include "runtime/readback.h"
#include "train/faults/faults.h"
#include "train/run/feed.h"

struct step {
    struct task_model model;
    ls_store *store;
    ls_program *program;           /* forward, backward and update; with a pipeline only the update */
    ls_pipeline *pipeline;         /* NULL: no pipeline */
    ls_pipeline_schedule schedule; /* the pipeline's schedule */
    ls_optimizer optimizer;
    double norm;         /* gradient norm of the previous update; 0: none. With optim.clip_by=previous the next update is clipped by it */
    struct ranks ranks;  /* borrowed */
    struct ranks summed; /* the ranks whose losses and tokens form one step: all ranks, or with method ASYNC this rank alone */
    ls_layout layout;
    struct feed feed;
    double executed;                   /* FLOPs of a step on all ranks; in a plan: this rank's, times the number of ranks */
    uint64_t seed;                     /* seed of the run */
    struct value_fault fault;          /* debug.non_finite */
    struct injection injection;        /* debug.fault */
    size_t global;                     /* samples of a step, over all ranks */
    size_t begin, end;                 /* this rank's share of them */
    size_t batch, seq_len, accumulate; /* B, T, micro-batches of this rank */
    void *inputs;                      /* [accumulate,B,feed.values] for the next step; the caller fills them */
    int32_t *targets;                  /* [accumulate,B,T] */
    struct readback readback;          /* reads losses and router counts of the micro-batches back from the device */
    double *load; /* [layers,experts] tokens of the last step routed to each expert, over all ranks; NULL: no experts */
};

/* What a step consists of in addition to its model and its layout. */
struct step_options {
    ls_optimizer optimizer;
    const char *device; /* name of the device: device.h */
    uint64_t seed;
    size_t global; /* samples of a step, over all ranks */
    bool check_finite;
    enum fault fault;              /* debug.fault */
    struct value_fault non_finite; /* debug.non_finite */
    bool loads;                    /* the parameters' values will be loaded, and are not initialized */
};
struct step_options step_options_of(const struct config *c);

/* Declares the model's parameters in a new store and compiles the step. With plan_only its cost is computed but nothing is allocated. The
 * ranks are those of the layout, whose strings are borrowed. Collective. */
ls_status step_open(const struct task_model *model, const ls_layout *layout, const struct step_options *o, const struct ranks *ranks,
                    bool plan_only, struct step *out);
/* The purpose of the step: to run with initial values, to run with values that will be loaded, or only to be planned (other programs of its
 * store may run after values were loaded). */
enum step_use { STEP_INITIALIZED, STEP_LOADED, STEP_PLANNED };
/* The same, with the layout and the options of the config. */
ls_status step_open_config(const struct config *c, const struct task_model *model, const struct ranks *ranks, enum step_use use,
                           struct step *out);
/* Distributes a program of the step's store (the step itself, an evaluation) over the ranks. stage NULL: the program is not a stage of a
 * pipeline. */
struct distributing {
    const ls_layout *layout;
    const struct ranks *ranks;
    const struct task_model *model;
};
ls_status step_distribute(const struct distributing *s, ls_program *p, const ls_stage *stage);
void step_close(struct step *s); /* does nothing on a zeroed struct */

/* Sets learning rate and number (1, 2, ...) of the update of the step that comes next. */
ls_status step_set(struct step *s, double lr, uint64_t t);
/* Computes the gradients of the step, after step_set(). `index` (0, 1, ...) keys dropout. *loss: the step's loss on all ranks, including
 * the routers' losses; *valid: its tokens that count, on all ranks. If the loss is not finite: LS_EINVAL on all ranks, with *loss and
 * *valid set. */
ls_status step_gradients(struct step *s, uint64_t index, double *loss, size_t *valid);
/* Performs update t (1, 2, ...). *norm: norm of the gradient of all parameters before clipping. If it is not finite: LS_EINVAL on all
 * ranks, with *norm set; parameters and optimizer state are unchanged. With optim.in_backward step_gradients() has performed the update, as
 * far as the first gradient that is not finite. */
ls_status step_update(struct step *s, uint64_t t, double *norm);

/* Call it after one of the two functions above found a value that is not finite: runs the step's micro-batches again and finds the first
 * such value. *rank, the same on all ranks, is the rank that computed it; on that rank, out describes it. Parameters and optimizer state
 * are unchanged. Collective (non_finite.c). */
enum { NON_FINITE_ROOM = 512 };
ls_status step_find_non_finite(struct step *s, uint64_t index, int *rank, char out[NON_FINITE_ROOM]);
/* Copies the text of `rank` to all ranks. */
ls_status step_share_non_finite(struct step *s, int rank, char text[NON_FINITE_ROOM]);
/* Runs forward and backward of the step's micro-batches again, after step_gradients() and with the same results. */
ls_status step_run_again(struct step *s, uint64_t index);

size_t step_parameters(const struct step *s); /* number of trainable elements */
/* Bytes of a micro-batch's inputs and targets. */
size_t step_micro_bytes(const struct step *s);

/* FLOPs of one step on all ranks: those that the model needs (for MFU), and those that are executed, which include recomputation and rows
 * that do not count (for HFU). */
double step_model_flops(const struct step *s);
double step_executed_flops(const struct step *s);
/* Bytes that this rank's programs send in one step with one kind of operation; *calls: the number of calls. The few numbers that the
 * trainer itself exchanges are not included. */
size_t step_comm_bytes(const struct step *s, ls_collective op, size_t *calls);
/* Bytes that this rank loads and saves in one step of what is offloaded. */
void step_offload_bytes(const struct step *s, size_t *loaded, size_t *saved);
/* Program i of the step: a pipeline's chunks, then `program`; NULL after the last one. */
ls_program *step_program(const struct step *s, int i);
/* Bytes of all programs together. */
ls_cost step_cost(const struct step *s);

#endif
