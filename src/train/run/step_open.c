/* step_open.c - builds a training step: appends the model, distributes it over the ranks and compiles it; a pipeline has a program per
 * stage. */
#include "train/run/step.h"

#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "parallel/layout.h"
#include "train/run/step_budget.h"

/* ---- the model ---- */

/* Appends forward and backward. The program keeps a failure until it is compiled. */
static void step_open_build(struct step *s, ls_program *p)
{
    ls_backward(p, ls_output(p, "loss", task_loss(p, &s->model, s->batch, s->seq_len, true)));
}

ls_status step_distribute(const struct distributing *s, ls_program *p, const ls_stage *stage)
{
    ls_data_parallel_options o = ls_layout_data_parallel(s->layout);
    ls_partition_options partition = ls_layout_partition(s->layout);

    if (!s->ranks->comm && o.offload == LS_OFFLOAD_NONE && o.offload_parameters == LS_OFFLOAD_NONE) return LS_OK;
    if (stage) partition.stage = *stage;
    if (ranks_shard_model(s->ranks) || s->layout->ep > 1) LS_TRY(ls_partition(p, s->ranks->mesh, &s->model->transformer, &partition));
    return ls_data_parallel_mesh(p, s->ranks->mesh, &o);
}

/* ---- compiling ---- */

struct making {
    struct step *s;
    bool plan_only;
    ls_compile_options compile;
};

static struct distributing distributing_of(const struct making *m)
{
    return (struct distributing){ &m->s->layout, &m->s->ranks, &m->s->model };
}

static ls_status build_stage(void *ctx, ls_program *p, const ls_stage *stage)
{
    const struct making *m = ctx;
    struct distributing how = distributing_of(m);

    step_open_build(m->s, p);
    LS_TRY(fault_appended(&m->s->injection, p));
    fault_inject(p, &m->s->injection);
    return step_distribute(&how, p, stage);
}

static ls_status open_pipeline(struct making *m)
{
    struct step *s = m->s;
    ls_pipeline_options o = { .schedule = &s->schedule, .build = build_stage, .ctx = m, .compile = m->compile };
    int *begin = mem_array(MEM_OTHER, (size_t)(s->layout.pp * s->layout.vpp) + 1, sizeof *begin), given;
    size_t layers = s->model.transformer.layers;

    if (!begin) return LS_ENOMEM;
    ls_status st = ls_layout_stages(&s->layout, layers, begin, &given);
    if (st == LS_OK && (given || fault_stages(&s->injection, layers, begin))) o.begin = begin;
    if (st == LS_OK) st = ls_layout_schedule(&s->layout, &s->schedule);
    if (st == LS_OK) st = ls_pipeline_open(s->store, s->ranks.mesh, &o, &s->pipeline);
    mem_free(begin);
    return st;
}

/* Compiles one program with everything, or a program per stage and one with the update. */
static ls_status step_compile(struct making *m)
{
    struct step *s = m->s;
    struct distributing how = distributing_of(m);
    ls_data_parallel_options o = ls_layout_data_parallel(&s->layout);
    ls_compile_options plain = LS_COMPILE_DEFAULTS;

    if (s->layout.pp > 1) {
        LS_TRY(open_pipeline(m));
        LS_TRY(ls_program_new(s->store, &s->program));
        fault_inject(s->program, &s->injection);
        LS_TRY(ls_optimizer_append(s->program, &s->optimizer));
        LS_TRY(ls_data_parallel_mesh(s->program, s->ranks.mesh, &o));
        plain.plan_only = m->plan_only;
        return ls_program_compile(s->program, &plain);
    }
    LS_TRY(ls_program_new(s->store, &s->program));
    fault_inject(s->program, &s->injection);
    step_open_build(s, s->program);
    LS_TRY(ls_program_status(s->program));
    LS_TRY(ls_optimizer_append(s->program, &s->optimizer));
    LS_TRY(step_distribute(&how, s->program, NULL));
    return ls_program_compile(s->program, &m->compile);
}

/* Counts the executed FLOPs: what the model needs, also for rows that do not count, and what all ranks compute in addition. */
static ls_status count_work(struct step *s, bool plan_only)
{
    double again = 0, rows = (double)(s->accumulate * s->batch) * layout_workers(&s->layout) / (double)s->global;
    ls_program *p;

    for (int i = 0; (p = step_program(s, i)); i++) {
        ls_cost c = ls_program_cost(p);

        again += (c.forward_flops + c.backward_flops + c.recompute_flops - c.model_flops) * (double)s->accumulate;
    }
    if (s->begin == s->end) again = 0; /* it only serves */
    if (plan_only)
        again *= (double)s->ranks.size / s->layout.dp * layout_workers(&s->layout);
    else
        LS_TRY(ranks_sum(&s->ranks, &again, 1));
    s->executed = step_model_flops(s) * rows + again;
    return LS_OK;
}

/* ---- opening ---- */

static ls_status allocate_samples(struct step *s)
{
    const ls_model *m = &s->model.transformer;
    size_t rows, targets, values;

    if (!size_mul(s->batch, s->accumulate, &rows) || !size_mul(rows, s->seq_len, &targets) || !size_mul(rows, s->feed.values, &values))
        return ls_fail(LS_EINVAL, "%zu micro-batches of %zu samples of %zu %s are too many", s->accumulate, s->batch, s->feed.values,
                       s->model.task->values);
    s->targets = mem_array(MEM_OTHER, targets, sizeof *s->targets);
    s->inputs = mem_array(MEM_OTHER, values, TASK_VALUE_BYTES);
    if (m->experts && !(s->load = mem_array(MEM_OTHER, m->layers * m->experts, sizeof *s->load))) return LS_ENOMEM;
    return s->inputs && s->targets ? LS_OK : LS_ENOMEM;
}

size_t step_micro_bytes(const struct step *s) { return s->batch * (s->feed.values * TASK_VALUE_BYTES + s->seq_len * sizeof *s->targets); }

/* This rank's samples. With method ASYNC rank 0 has none, because it serves the others, and each rank's loss and tokens are its own. */
static void step_share(struct step *s)
{
    bool serves = s->layout.method == LS_METHOD_ASYNC && s->ranks.size > 1;

    s->summed = s->ranks;
    ranks_share(&s->ranks, s->global, &s->begin, &s->end);
    if (!serves) return;
    s->summed = (struct ranks)RANKS_ALONE;
    s->begin = s->end = 0;
    if (s->ranks.rank > 0) ranks_block(s->global, s->ranks.rank - 1, s->ranks.size - 1, &s->begin, &s->end);
}

static ls_status open_step(const struct step_options *o, bool plan_only, struct step *s)
{
    struct making m = { .s = s, .plan_only = plan_only, .compile = ls_layout_compile(&s->layout) };
    ls_store_options options = ls_layout_store(&s->layout);
    size_t values = s->model.task->sample_values(&s->model, s->seq_len);

    step_share(s);
    m.compile.fuse_loss = 1;
    m.compile.plan_only = plan_only;
    m.compile.check_finite = o->check_finite;
    options.device = o->device;
    options.seed = fault_seed(&s->injection, s->ranks.rank, s->seed);
    LS_TRY(ls_store_new(&options, &s->store));
    if (o->loads) ls_store_await_load(s->store);
    LS_TRY(step_compile(&m));
    LS_TRY(count_work(s, plan_only));
    LS_TRY(fault_step_opened(s));
    LS_TRY(feed_open(&s->ranks, s->layout.cp_method, s->batch, s->seq_len, values, &s->feed));
    if (plan_only) return LS_OK;
    return allocate_samples(s);
}

ls_status step_open(const struct task_model *model, const ls_layout *layout, const struct step_options *o, const struct ranks *ranks,
                    bool plan_only, struct step *out)
{
    struct step s = {
        .model = *model,
        .optimizer = o->optimizer,
        .ranks = *ranks,
        .layout = *layout,
        .seed = o->seed,
        .fault = o->non_finite,
        .global = o->global,
        .batch = (size_t)layout->micro_batch,
        .seq_len = model->task->sequences ? (size_t)layout->seq_len : 1,
        .accumulate = (size_t)layout->micro_batches,
        .injection = { .fault = o->fault, .mesh = ranks->mesh, .stages = layout->pp > 1 ? layout->pp * layout->vpp : 0 },
    };

    LS_TRY(task_check_layout(model, layout));
    LS_TRY(step_budget_choose(model, o, ranks->rank, &s.layout));
    ls_status st = LS_OK;
    if ((layout->offload == LS_OFFLOAD_FILE || layout->offload_parameters == LS_OFFLOAD_FILE) && !plan_only)
        st = file_make_folders(layout->offload_path);
    if (st == LS_OK) st = open_step(o, plan_only, &s);
    if (st == LS_OK && layout->recompute == LS_RECOMPUTE_BUDGET) st = step_budget_check(&s, layout->budget);
    if (st == LS_OK)
        *out = s;
    else
        step_close(&s);
    return st;
}

struct step_options step_options_of(const struct config *c)
{
    return (struct step_options){
        .optimizer = config_optimizer(c),
        .device = config_device(c),
        .seed = (uint64_t)c->train.seed,
        .global = (size_t)c->train.global_batch,
        .check_finite = c->debug.check_finite,
        .fault = (enum fault)c->debug.fault,
        .non_finite = fault_value(c),
    };
}

ls_status step_open_config(const struct config *c, const struct task_model *model, const struct ranks *ranks, enum step_use use,
                           struct step *out)
{
    struct step_options o = step_options_of(c);
    ls_layout layout;

    o.loads = use != STEP_INITIALIZED;
    LS_TRY(config_layout(c, &layout));
    return step_open(model, &layout, &o, ranks, use == STEP_PLANNED, out);
}

void step_close(struct step *s)
{
    readback_close(&s->readback);
    ls_program_release(&s->program);
    ls_pipeline_close(&s->pipeline);
    ls_pipeline_schedule_free(&s->schedule);
    ls_store_release(&s->store);
    feed_close(&s->feed);
    mem_free(s->inputs);
    mem_free(s->targets);
    mem_free(s->load);
    *s = (struct step){ 0 };
}
