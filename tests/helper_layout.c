/* helper_layout.c - see helper_layout.h. */
#include "helper_layout.h"
#include "base/base.h"
#include "lockstep/optim.h"

struct compiling { const ls_model *model; const ls_layout *layout; ls_comm *world; ls_mesh *mesh; ls_store *store; };

static ls_status append_optimizer(const struct compiling *c, ls_program *p)
{
    ls_optimizer o = LS_OPTIMIZER_DEFAULTS;

    o.kind = c->layout->optimizer;
    o.clip_previous = o.in_backward = c->layout->in_backward;
    return ls_optimizer_append(p, &o);
}

static ls_status layout_test_build_stage(void *ctx, ls_program *p, const ls_stage *stage)
{
    const struct compiling *c = ctx;
    ls_partition_options partition = ls_layout_partition(c->layout);
    ls_data_parallel_options data = ls_layout_data_parallel(c->layout);
    size_t shape[2] = { (size_t)c->layout->micro_batch, (size_t)c->layout->seq_len };
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, shape), targets = ls_input(p, "targets", LS_I32, 2, shape);
    ls_value denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });

    if (c->model->experts) ls_input(p, "samples", LS_F32, 1, (size_t[]){ 2 });
    ls_backward(p, ls_output(p, "loss", ls_model_loss(p, c->model, tokens, targets, denominator, LS_NONE)));
    LS_TRY(ls_program_status(p));
    if (stage) partition.stage = *stage;
    if (!stage) LS_TRY(append_optimizer(c, p));
    LS_TRY(ls_partition(p, c->mesh, c->model, &partition));
    return ls_data_parallel_mesh(p, c->mesh, &data);
}

static ls_status compile_update(const struct compiling *c, ls_program *update)
{
    ls_data_parallel_options data = ls_layout_data_parallel(c->layout);

    LS_TRY(append_optimizer(c, update));
    LS_TRY(ls_data_parallel_mesh(update, c->mesh, &data));
    return ls_program_compile(update, &(ls_compile_options){ .every = 1, .plan_only = 1 });
}

static ls_status compile_pipeline(struct compiling *c, ls_program *update)
{
    ls_pipeline *pipeline = NULL;
    ls_pipeline_schedule schedule;
    int begin[64], given;
    ls_pipeline_options o = { .schedule = &schedule, .build = layout_test_build_stage, .ctx = c, .compile = ls_layout_compile(c->layout) };

    o.compile.plan_only = 1;
    LS_TRY(ls_layout_stages(c->layout, c->model->layers, begin, &given));
    if (given) o.begin = begin;
    LS_TRY(ls_layout_schedule(c->layout, &schedule));
    ls_status st = ls_pipeline_open(c->store, c->mesh, &o, &pipeline);
    if (st == LS_OK) st = compile_update(c, update);
    ls_pipeline_close(&pipeline);
    ls_pipeline_schedule_free(&schedule);
    return st;
}

static ls_status compile_store(struct compiling *c)
{
    ls_compile_options o = ls_layout_compile(c->layout);
    ls_program *p;

    LS_TRY(ls_program_new(c->store, &p));
    o.plan_only = 1;
    ls_status st = c->layout->pp > 1 ? compile_pipeline(c, p) : layout_test_build_stage(c, p, NULL);
    if (st == LS_OK && c->layout->pp <= 1) st = ls_program_compile(p, &o);
    ls_program_release(&p);
    return st;
}

/* The programs of one rank of the layout. */
static ls_status compile_rank(const ls_model *m, const ls_layout *l, int rank)
{
    struct compiling c = { .model = m, .layout = l };
    int64_t ranks = ls_layout_ranks(l);
    ls_mesh_shape shape = ls_layout_mesh(l);
    ls_store_options options = ls_layout_store(l);
    ls_status st = LS_OK;

    if (ranks > 1) LS_TRY(ls_comm_open("plan:", rank, (int)ranks, &c.world));
    st = ls_mesh_open(c.world, &shape, &c.mesh);
    if (st == LS_OK) st = ls_store_new(&options, &c.store);
    if (st == LS_OK) st = compile_store(&c);
    ls_store_release(&c.store);
    ls_mesh_close(&c.mesh);
    ls_comm_close(&c.world);
    return st;
}

/* A step replaces a budget on a mesh by a number of blocks before it is compiled. */
ls_status layout_compile(const ls_model *m, const ls_layout *given)
{
    ls_layout settled = *given, *l = &settled;
    int64_t ranks = ls_layout_ranks(l);

    if (l->recompute == LS_RECOMPUTE_BUDGET && l->budget && (l->tp > 1 || l->cp > 1 || l->ep > 1)) {
        l->recompute = LS_RECOMPUTE_FIRST;
        l->every = 1;
    }

    if (ranks < 1) return ls_fail(LS_EINVAL, "%lld ranks", (long long)ranks);
    for (int r = 0; r < ranks; r++) LS_TRY(compile_rank(m, l, r));
    return LS_OK;
}
