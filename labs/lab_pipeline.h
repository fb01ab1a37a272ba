/* lab_pipeline.h - for the labs that run a pipeline: a small GPT-2 over the ranks as stages. */
#ifndef LAB_PIPELINE_H
#define LAB_PIPELINE_H

#include "lab_mesh.h"

struct line_of_stages {
    struct net net; ls_store *store; ls_mesh *mesh; ls_pipeline_schedule schedule; ls_pipeline *pipeline; double loss;
};

static inline ls_status stage_build(void *ctx, ls_program *p, const ls_stage *stage)
{
    struct line_of_stages *l = ctx;
    const struct net *n = &l->net;
    ls_partition_options o = n->options;
    size_t size[2] = { (size_t)(n->samples / l->schedule.micro), n->time };
    ls_value x = ls_input(p, "x", LS_I32, 2, size), y = ls_input(p, "y", LS_I32, 2, size),
             tokens = ls_input(p, "tokens", LS_F32, 1, (size_t[]){ 1 });
    ls_value loss = ls_output(p, "loss", ls_model_loss(p, &n->model, x, y, tokens, LS_NONE));

    if (l->schedule.backward) ls_backward(p, loss);
    o.stage = *stage;
    return ls_partition(p, l->mesh, &n->model, &o);
}

/* n->samples: samples of all micro-batches. */
static inline void pipeline_open(struct line_of_stages *l, const struct net *n, ls_comm *world, const char *schedule, int chunks, int micro)
{
    ls_pipeline_options o = { .schedule = &l->schedule, .build = stage_build, .ctx = l, .compile = LS_COMPILE_DEFAULTS };
    ls_store_options so = { "cpu", n->type, 1, 1, 0 };

    *l = (struct line_of_stages){ .net = *n };
    l->net.shape.pp = ls_comm_size(world);
    TRY(ls_mesh_check(&l->net.shape, ls_comm_size(world)));
    TRY(ls_mesh_open(world, &l->net.shape, &l->mesh));
    TRY(ls_store_new(&so, &l->store));
    TRY(ls_pipeline_schedule_make(schedule, ls_comm_size(world), chunks, micro, &l->schedule));
    TRY(ls_pipeline_open(l->store, l->mesh, &o, &l->pipeline));
}

static inline void pipeline_close(struct line_of_stages *l)
{
    ls_pipeline_close(&l->pipeline);
    ls_pipeline_schedule_free(&l->schedule);
    ls_store_release(&l->store);
    ls_mesh_close(&l->mesh);
}

static inline ls_status stage_before(void *ctx, ls_program *p, int chunk, int micro)
{
    const struct line_of_stages *l = ctx;
    int batch = l->net.samples / l->schedule.micro;
    size_t count = (size_t)batch * l->net.time;
    float tokens = (float)(l->net.samples * (int)l->net.time);
    int32_t *x = malloc(2 * count * sizeof *x), *y = x + count;

    (void)chunk;
    if (!x) exit(1);
    for (size_t i = 0; i < count; i++) {
        x[i] = net_token(0, micro * batch + (int)(i / l->net.time), i % l->net.time);
        y[i] = net_token(0, micro * batch + (int)(i / l->net.time), i % l->net.time + 1);
    }
    if (ls_program_has(p, "x")) TRY(ls_program_write(p, "x", x, LS_I32, count));
    if (ls_program_has(p, "y")) TRY(ls_program_write(p, "y", y, LS_I32, count));
    if (ls_program_has(p, "tokens")) TRY(ls_program_write(p, "tokens", &tokens, LS_F32, 1));
    free(x);
    return LS_OK;
}

static inline ls_status stage_after(void *ctx, ls_program *p, int chunk, int micro)
{
    struct line_of_stages *l = ctx;
    double part = 0;

    (void)chunk;
    (void)micro;
    if (ls_program_has(p, "loss")) TRY(ls_program_read(p, "loss", &part, LS_F64, 1));
    l->loss += part;
    return LS_OK;
}

/* Runs all micro-batches. Returns the loss on the rank of the last stage, 0 elsewhere. */
static inline double pipeline_run(struct line_of_stages *l)
{
    l->loss = 0;
    ls_store_zero_grad(l->store);
    TRY(ls_pipeline_run(l->pipeline, stage_before, stage_after, l));
    return l->loss;
}

#endif
