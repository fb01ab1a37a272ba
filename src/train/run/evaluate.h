/* evaluate.h - the validation loss: the mean over all validation tokens, or over those of the first batches. */
#ifndef LS_TRAIN_RUN_EVALUATE_H
#define LS_TRAIN_RUN_EVALUATE_H

#include "lockstep/data.h"
#include "train/run/step.h"

/* Called before each round of an evaluation: `done` of `all` samples have been evaluated. fn may be NULL. */
struct evaluate_watch {
    void (*fn)(void *ctx, size_t done, size_t all);
    void *ctx;
};

struct evaluation {
    ls_program *program; /* only a forward pass, on the training step's store; NULL: a pipeline, or there is no evaluation */
    ls_pipeline *pipeline;
    ls_pipeline_schedule schedule;
    struct ranks ranks; /* borrowed; the dp ranks divide the micro-batches: in round k, rank d runs micro-batch k * dp + d */
    struct feed feed;
    double loss; /* sum of this rank so far */
    struct readback readback;
    const struct task *task;
    struct task_samples from;
    size_t batch, batches;       /* samples of a micro-batch; micro-batches of an evaluation */
    size_t samples;              /* samples of an evaluation */
    void *inputs;                /* [batch,feed.values] */
    int32_t *targets;            /* [batch,T] */
    size_t seq_len;              /* T */
    struct evaluate_watch watch; /* set by the caller after evaluation_open() */
};

/* batches: number of batches, each of the step's global size, so that all layouts evaluate the same samples; 0: all samples. Every
 * evaluation uses the same samples. */
ls_status evaluation_open(const struct step *s, const struct task_samples *from, size_t batches, struct evaluation *out);
/* Bytes that an evaluation will hold in addition to the step (activations, communication), without allocating them. */
ls_status evaluation_plan(const struct step *s, ls_cost *out);
bool evaluation_is_open(const struct evaluation *e);
ls_cost evaluation_cost(const struct evaluation *e);
void evaluation_close(struct evaluation *e); /* does nothing on a zeroed struct */
ls_status evaluation_run(struct evaluation *e, double *loss);
/* Runs some rounds, to be timed; a complete evaluation is *times as long. A pipeline runs a complete evaluation. */
ls_status evaluation_run_part(struct evaluation *e, double *times);

#endif
