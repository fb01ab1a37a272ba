/* helper_pipeline.c */
#include "helper_pipeline.h"

#include <stdio.h>

enum { VOCAB = 37, COUNT = PIPELINE_BATCH * PIPELINE_TIME };

static ls_model model_of(const struct trial *t)
{
    ls_model m = t->model ? *t->model : *distributed_model(t->net);

    m.layers = PIPELINE_LAYERS;
    return m;
}

static ls_status trial_build(void *ctx, ls_program *p, const ls_stage *stage)
{
    struct setting *s = ctx;
    ls_partition_options o = LS_PARTITION_DEFAULTS;
    size_t size[2] = { PIPELINE_BATCH, PIPELINE_TIME }, one = 1;
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, size), targets = ls_input(p, "targets", LS_I32, 2, size);
    ls_value denominator = ls_input(p, "denominator", LS_F32, 1, &one);
    ls_value step = s->model.dropout > 0 ? ls_input(p, "step", LS_I64, 1, (size_t[]){ 2 }) : LS_NONE;
    ls_value loss = ls_output(p, "loss", ls_model_loss(p, &s->model, tokens, targets, denominator, step));

    if (!s->mesh || s->schedule.backward)
        ls_backward(p, loss);
    if (!s->mesh)
        return LS_OK;
    o.stage = *stage;
    return ls_partition(p, s->mesh, &s->model, &o);
}

static ls_status write_inputs(ls_program *p, int micro)
{
    int32_t tokens[COUNT], targets[COUNT];
    float denominator = 5 * COUNT;
    int64_t step[2] = { 3, micro * PIPELINE_BATCH };

    for (int i = 0; i < COUNT; i++) {
        tokens[i] = (i * 7 + micro * 11 + i * i % 5) % VOCAB;
        targets[i] = (i + micro) % 5 == 0 ? -1 : (i * 3 + micro * 13) % VOCAB;
    }
    if (ls_program_has(p, "tokens"))
        LS_TRY(ls_program_write(p, "tokens", tokens, LS_I32, COUNT));
    if (ls_program_has(p, "targets"))
        LS_TRY(ls_program_write(p, "targets", targets, LS_I32, COUNT));
    if (ls_program_has(p, "step"))
        LS_TRY(ls_program_write(p, "step", step, LS_I64, 2));
    return ls_program_has(p, "denominator") ? ls_program_write(p, "denominator", &denominator, LS_F32, 1) : LS_OK;
}

ls_status trial_before(void *ctx, ls_program *p, int chunk, int micro)
{
    (void)ctx;
    (void)chunk;
    return write_inputs(p, micro);
}

ls_status trial_after(void *ctx, ls_program *p, int chunk, int micro)
{
    struct setting *s = ctx;
    double part;

    (void)chunk;
    (void)micro;
    if (!ls_program_has(p, "loss"))
        return LS_OK;
    LS_TRY(ls_program_read(p, "loss", &part, LS_F64, 1));
    s->loss += part;
    s->losses++;
    return LS_OK;
}

static ls_status store_new(const struct trial *t, ls_store **out)
{
    return ls_store_new(&(ls_store_options){ "cpu", t->type, t->type != LS_F32, 7, 0 }, out);
}

ls_status trial_alone(const struct trial *t, ls_store **store, double *loss)
{
    struct setting s = { .model = model_of(t) };
    ls_program *p;

    LS_TRY(store_new(t, &s.store));
    LS_TRY(ls_program_new(s.store, &p));
    LS_TRY(trial_build(&s, p, NULL));
    LS_TRY(ls_program_compile(p, NULL));
    ls_store_zero_grad(s.store);
    for (int k = 0; k < t->micro; k++) {
        LS_TRY(write_inputs(p, k));
        LS_TRY(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
        LS_TRY(trial_after(&s, p, 0, k));
    }
    ls_program_release(&p);
    *store = s.store;
    *loss = s.loss;
    return LS_OK;
}

static ls_status open_pipeline(struct setting *s, const struct trial *t)
{
    ls_pipeline_options o = { .schedule = &s->schedule, .begin = t->begin, .build = trial_build, .ctx = s, .compile = LS_COMPILE_DEFAULTS };

    o.compile.recompute = t->recompute;
    o.compile.fuse_loss = t->fuse;
    LS_TRY(ls_pipeline_schedule_make(t->schedule, ls_comm_size(s->world), t->chunks, t->micro, &s->schedule));
    return ls_pipeline_open(s->store, s->mesh, &o, &s->pipeline);
}

ls_status trial_open(ls_comm *world, const struct trial *t, struct setting *s)
{
    ls_mesh_shape shape = LS_MESH_DEFAULTS;

    *s = (struct setting){ .world = world, .model = model_of(t) };
    shape.pp = ls_comm_size(world);
    LS_TRY(ls_mesh_open(world, &shape, &s->mesh));
    LS_TRY(store_new(t, &s->store));
    return open_pipeline(s, t);
}

ls_status trial_open_beside(const struct setting *s, const struct trial *t, struct setting *other)
{
    *other = (struct setting){ .world = s->world, .mesh = s->mesh, .store = s->store, .model = s->model };
    return open_pipeline(other, t);
}

void trial_close_beside(struct setting *other)
{
    ls_pipeline_close(&other->pipeline);
    ls_pipeline_schedule_free(&other->schedule);
}

void trial_close(struct setting *s)
{
    trial_close_beside(s);
    ls_store_release(&s->store);
    ls_mesh_close(&s->mesh);
}

const char *trial_name(const struct trial *t, int n)
{
    static char text[200];

    snprintf(text, sizeof text, "%s, %d stages, %d chunks, %d micro-batches, net %d, recompute %d, fuse %d, %s", t->schedule, n, t->chunks,
             t->micro, (int)t->net, (int)t->recompute, t->fuse, ls_dtype_name(t->type));
    return text;
}
