/* pipeline.h - the inside of a pipeline on one rank: its chunks, what they exchange, and the plan of a run. */
#ifndef LS_PARALLEL_PIPELINE_PIPELINE_H
#define LS_PARALLEL_PIPELINE_PIPELINE_H

#include "parallel/pipeline/pipeline_plan.h"
#include "ir/program.h"
#include "runtime/stream_set.h"

/* What a stage exchanges with its neighbours, by slot: "stage.in", "stage.out", "stage.din", "stage.dout". */
enum end { END_IN, END_OUT, END_DIN, END_DOUT, ENDS };

struct chunk_end {
    size_t count; /* elements; 0: the stage has no such end */
    ls_dtype type;
    void **data;                   /* [slots] */
    ls_work **work;                /* [slots]: a message under way, whose buffer is the comm's */
    struct device_event **message; /* [slots]: in its place on a device that is not immediate: where the last message ends */
};

struct chunk {
    ls_program *program;
    ls_stage stage;
    struct chunk_end end[ENDS];
};

struct ls_pipeline {
    ls_pipeline_schedule schedule; /* its lists are the caller's */
    struct pipeline_plan plan;
    struct chunk *chunk;        /* [schedule.chunks] */
    int *begin;                 /* [stages*chunks + 1] */
    ls_comm *comm[2];           /* for activations, for gradients; NULL: one rank */
    ls_comm *world;             /* NULL: one rank */
    struct stream_set *streams; /* of the store */
    int rank;
    bool runnable, fused; /* fused: the loss is made by the backward */
    ls_pipeline_spent spent;
};

#endif
