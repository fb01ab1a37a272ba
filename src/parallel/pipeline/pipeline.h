/* pipeline.h - internals of a pipeline on one rank: its chunks, their messages, and the plan of a run. */
#ifndef LS_PARALLEL_PIPELINE_PIPELINE_H
#define LS_PARALLEL_PIPELINE_PIPELINE_H

#include "parallel/pipeline/pipeline_plan.h"
#include "ir/program.h"
#include "runtime/stream_set.h"

/* The values a stage exchanges with its neighbors, per slot: "stage.in", "stage.out", "stage.din", "stage.dout". */
enum end { END_IN, END_OUT, END_DIN, END_DOUT, ENDS };

struct chunk_end {
    size_t count; /* 0 if the stage has no such end */
    ls_dtype type;
    void **data;    /* [slots] */
    ls_work **work; /* [slots]: the message in flight; until its end the comm owns the buffer */
    struct device_event *
        *message; /* [slots], used instead on a device with asynchronous streams: recorded at the end of the last message */
};

struct chunk {
    ls_program *program;
    ls_stage stage;
    struct chunk_end end[ENDS];
};

struct ls_pipeline {
    ls_pipeline_schedule schedule; /* the caller owns its lists */
    struct pipeline_plan plan;
    struct chunk *chunk;        /* [schedule.chunks] */
    int *begin;                 /* [stages*chunks + 1] */
    ls_comm *comm[2];           /* activations, gradients; NULL: one rank */
    ls_comm *world;             /* NULL: one rank */
    struct stream_set *streams; /* the store's streams */
    int rank;
    bool runnable, fused; /* fused: the backward computes the loss */
    ls_pipeline_spent spent;
};

#endif
