/* helper_pipeline.h - a small language model as a pipeline over the ranks of a comm, on micro-batches that every rank can compute. */
#ifndef HELPER_PIPELINE_H
#define HELPER_PIPELINE_H

#include <stdbool.h>
#include "helper_distributed.h"
#include "lockstep/pipeline.h"

enum { PIPELINE_LAYERS = 9, PIPELINE_BATCH = 2, PIPELINE_TIME = DIST_TIME };

struct trial {
    const char  *schedule;
    int          chunks, micro;
    enum net     net;         /* GPT-2, Llama, Llama tied: of PIPELINE_LAYERS layers */
    ls_recompute recompute;
    int          fuse;
    const int   *begin;
    ls_dtype type;         /* type of parameters; bf16: with f32 masters */
    const ls_model *model; /* instead of net's */
};

/* The open objects of a rank. */
struct setting {
    ls_comm      *world;
    ls_mesh      *mesh;       /* NULL: the whole model on one rank, without a partition */
    ls_store     *store;
    ls_model      model;
    ls_pipeline_schedule schedule;
    ls_pipeline  *pipeline;
    double        loss;       /* sum over micro-batches that were read here */
    int           losses;
};

/* Collective over world. On failure, pipeline_close() closes what was opened. */
ls_status trial_open(ls_comm *world, const struct trial *t, struct setting *s);
/* Another schedule over the same store and mesh. */
ls_status trial_open_beside(const struct setting *s, const struct trial *t, struct setting *other);
void      trial_close(struct setting *s);
void      trial_close_beside(struct setting *other);
const char *trial_name(const struct trial *t, int n);

/* For ls_pipeline_run, with a setting as ctx. */
ls_status trial_before(void *ctx, ls_program *p, int chunk, int micro);
ls_status trial_after(void *ctx, ls_program *p, int chunk, int micro);

/* The same micro-batches on this rank alone: gradients in *store, which is the caller's. */
ls_status trial_alone(const struct trial *t, ls_store **store, double *loss);

#endif
