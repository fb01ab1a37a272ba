/* helper_distributed.h - the same small training under any layout: a few steps, and their results.
 *
 * Every layout sees the same global batches of DIST_SAMPLES samples, divided over ranks and micro-batches, with an uneven number
 * of missing targets. Batch norm covers a micro-batch, so the image net gives the same result only with one micro-batch.
 */
#ifndef HELPER_DIST_H
#define HELPER_DIST_H

#include <stdbool.h>
#include "lockstep/nn.h"
#include "lockstep/optim.h"
#include "lockstep/parallel.h"
#include "runtime/readback.h"

enum { DIST_STEPS = 3, DIST_SAMPLES = 24, DIST_TIME = 8, DIST_ELEMENTS = 12000, DIST_NAME = 400 };
/* NET_EVEN: experts evened by a loss, which looks at a whole micro-batch; NET_BIAS: by a bias, which looks at the step. */
enum net { NET_GPT2, NET_LLAMA, NET_LLAMA_TIED, NET_MLP, NET_IMAGE, NET_EVEN, NET_BIAS, NETS };

struct layout {
    enum net          net;
    size_t            layers;     /* 0: the net's */
    ls_optimizer_kind optimizer;
    ls_dtype type;  /* type of the parameters; bf16: with master copies */
    int accumulate; /* micro-batches of a rank; 0 counts as 1 */
    ls_recompute      recompute;
    bool              split;      /* weight gradients in a segment of their own */
    ls_data_parallel_options   data;
    /* on a mesh */
    bool              meshed;
    ls_mesh_shape     mesh;
    ls_partition_options partition;
    const char *schedule; /* a name, or a file /..; NULL: no pipeline */
    int chunks;           /* chunks of the pipeline on each rank; 0 counts as 1 */
    const char *device;   /* NULL: cpu */
};

/* The results of a training on one rank; parameters one after another in the store's order. */
struct outcome {
    double  loss[DIST_STEPS], norm[DIST_STEPS];
    size_t  count;                /* elements of all parameters */
    float   first[DIST_ELEMENTS], last[DIST_ELEMENTS];  /* gradients of the first and last step */
    float   weight[DIST_ELEMENTS];                        /* parameters at the end */
};

/* A store and the program of a step over comm (NULL: one rank that knows of none), compiled. */
struct training {
    ls_store *store;
    ls_program *program;
    ls_optimizer optimizer;
    size_t batch;
    int rank, n, accumulate; /* rank and n: among the ranks with other samples */
    ls_comm *comm;           /* all of whose losses add up */
    ls_mesh *mesh;
    ls_pipeline_schedule schedule;
    ls_pipeline *pipeline;       /* program is then the optimizer's */
    struct readback readback;
};
const ls_model *distributed_model(enum net net);
ls_status distributed_open(const struct layout *l, ls_comm *comm, bool plan_only, struct training *out);
void      distributed_close(struct training *s);
/* Step number `step` (0, 1, ...); loss: over all ranks. */
ls_status distributed_step(struct training *s, const struct layout *l, int step, double *loss);
ls_status distributed_train(const struct layout *l, ls_comm *comm, struct outcome *out);
const char *distributed_name(const struct layout *l, int n, char text[DIST_NAME]);
/* NULL if b equals a within `rounding` (of a tensor's largest element), else a text with the first difference. */
const char *distributed_differs(const struct layout *l, const struct outcome *a, const struct outcome *b, double rounding);

#endif
