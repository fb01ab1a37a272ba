/* evaluate.h - the validation loss: the mean over all tokens of the validation part, or of its first batches. */
#ifndef LS_TRAIN_RUN_EVALUATE_H
#define LS_TRAIN_RUN_EVALUATE_H

#include "lockstep/data.h"
#include "train/run/step.h"

/* Called before each turn of an evaluation: `done` of `all` samples have been evaluated. fn NULL: nobody. */
struct evaluate_watch {
    void (*fn)(void *ctx, size_t done, size_t all);
    void *ctx;
};

struct evaluation {
    ls_program *program; /* forward alone, on the training step's store; NULL: a pipeline, or there is no evaluation */
    ls_pipeline *pipeline;
    ls_pipeline_schedule schedule;
    struct ranks ranks; /* borrowed; over dp they take turns at the micro-batches, as many turns each */
    struct feed feed;
    double loss; /* of this rank, while it runs */
    struct readback readback;
    const struct task *task;
    struct task_samples from;
    size_t batch, batches;       /* samples of a micro-batch; micro-batches of an evaluation */
    size_t samples;              /* in all of them */
    void *inputs;                /* [batch,feed.values] */
    int32_t *targets;            /* [batch,T] */
    size_t seq_len;              /* T */
    struct evaluate_watch watch; /* set by the caller after evaluation_open() */
};

/* batches: of the step's global size, so that layouts evaluate the same; 0: all samples. The same ones each time. */
ls_status evaluation_open(const struct step *s, const struct task_samples *from, size_t batches, struct evaluation *out);
/* What an evaluation beside the step will hold, without making it: activations, communication. */
ls_status evaluation_plan(const struct step *s, ls_cost *out);
bool evaluation_is_open(const struct evaluation *e);
ls_cost evaluation_cost(const struct evaluation *e);
void evaluation_close(struct evaluation *e); /* of a zeroed struct a no-op */
ls_status evaluation_run(struct evaluation *e, double *loss);
/* Runs a part of it, to be timed: an evaluation is *times that part. A pipeline runs the whole. */
ls_status evaluation_run_part(struct evaluation *e, double *times);

#endif
