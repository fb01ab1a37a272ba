/* reference.c - see reference.h. */
#include "train/run/reference.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/collective_status.h"
#include "parallel/layout.h"

/* The ordinary layout of the same ranks and samples. */
static ls_status reference_layout(const struct config *c, ls_layout *out)
{
    LS_TRY(config_layout(c, out));
    out->method = LS_METHOD_ALLREDUCE;
    out->micro_batches = (int)layout_micro_batches(c->train.global_batch, out->dp, out->micro_batch);
    return LS_OK;
}

/* The weights that the run will begin with. */
static ls_status reference_load(struct trainer *r)
{
    ls_train_state saved = { 0 };

    if (!r->resumed)
        return config_has_weights(r->config) ? ls_hf_import(r->config->model.hf, &r->step.model.transformer, r->step.store) : LS_OK;
    LS_TRY(agree(r->ranks.comm, ls_checkpoint_load(r->resumed, r->step.store, LS_LOAD_OPTIMIZER, &saved)));
    r->state.step = saved.step;
    r->state.samples = saved.samples;
    r->state.tokens = saved.tokens;
    r->state.grad_norm = saved.grad_norm;
    return LS_OK;
}

static ls_status reference_steps(struct trainer *r)
{
    const struct config *c = r->config;
    uint64_t last = MIN(r->state.step + (uint64_t)c->parallel.reference_steps, (uint64_t)c->train.steps);
    struct metrics m;

    LS_TRY(cost_open(&r->ranks, last, &r->cost));
    while (r->state.step < last && !r->stop) LS_TRY(trainer_step(r, &m));
    LS_TRY(cost_settle(&r->cost, r->step.store));
    return cost_share(&r->cost, &r->reference);
}

static ls_status reference_open(struct trainer *r, const struct task_model *model)
{
    struct step_options o = step_options_of(r->config);
    ls_layout layout;

    o.fault = FAULT_NONE;
    o.loads = r->resumed || config_has_weights(r->config);
    o.non_finite.name = NULL;
    LS_TRY(reference_layout(r->config, &layout));
    LS_TRY(step_open(model, &layout, &o, &r->ranks, false, &r->step));
    LS_TRY(reference_load(r));
    LS_TRY(trainer_open_samples(r)); /* an evaluation takes memory in the run as well */
    return reference_steps(r);
}

ls_status reference_run(struct trainer *t, const struct task_model *model)
{
    const struct config *c = t->config;
    struct trainer r = { .config = t->config,
                         .options = t->options,
                         .opened = t->opened,
                         .ranks = t->ranks,
                         .data = t->data,
                         .peak_flops = NAN,
                         .resumed = t->resumed,
                         .trial = true };

    t->reference.after = UINT64_MAX;
    if (c->parallel.method == LS_METHOD_ALLREDUCE || c->parallel.reference_steps == 0 || t->ranks.size == 1) return LS_OK;
    r.schedule = config_schedule(c);
    ls_status st = reference_open(&r, model);
    t->reference = r.reference;
    samples_close(&r.samples);
    evaluation_close(&r.evaluation);
    cost_close(&r.cost);
    step_close(&r.step);
    return st == LS_OK ? st : ls_fail_at(st, "the reference steps of parallel.method=allreduce");
}

/* ---- the comparison ---- */

static ls_status reference_write(const struct trainer *t)
{
    struct json_out out = { 0 };
    char *path = file_path("%s/method.json", t->folder.path);

    json_begin_object(&out, NULL);
    json_put_string(&out, "method", layout_method_name(t->step.layout.method));
    json_put_int(&out, "ranks", t->ranks.size);
    cost_put_json(&t->method, "cost", &out);
    if (t->reference.steps) cost_put_json(&t->reference, "allreduce", &out);
    json_end_object(&out);
    ls_status st = path ? json_out_status(&out) : LS_ENOMEM;
    if (st == LS_OK) st = file_write(path, out.text, out.bytes);
    mem_free(path);
    json_out_free(&out);
    return st;
}

ls_status reference_compare(struct trainer *t)
{
    if (t->step.layout.method == LS_METHOD_ALLREDUCE || t->ranks.size == 1) return LS_OK;
    LS_TRY(cost_share(&t->cost, &t->method));
    return ranks_agree(&t->ranks, t->ranks.rank == 0 ? reference_write(t) : LS_OK);
}
