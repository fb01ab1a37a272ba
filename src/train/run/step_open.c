/* step_open.c - making a training step: the model appended, spread over the ranks, compiled; a pipeline a program a stage. */
#include "train/run/step.h"

#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "runtime/non_finite.h"

/* ---- the model ---- */

static ls_value build_image(struct step *s, ls_program *p, ls_value targets, ls_value denominator)
{
    size_t size[4] = { s->batch, s->picture.channels, s->picture.height, s->picture.width };
    ls_value images = ls_cast(p, ls_input(p, "images", LS_F32, 4, size), ls_store_settings(s->store).type);

    return ls_image_loss(p, &s->picture, images, ls_reshape(p, targets, 1, &s->batch), denominator, 1);
}

static ls_value build_language(struct step *s, ls_program *p, ls_value targets, ls_value denominator)
{
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ s->batch, s->seq_len });
    ls_value index = s->model.dropout > 0 ? ls_input(p, "step", LS_I64, 1, (size_t[]){ 2 }) : LS_NONE;

    if (s->model.experts) ls_input(p, "samples", LS_F32, 1, (size_t[]){ 2 });
    return ls_model_loss(p, &s->model, tokens, targets, denominator, index);
}

/* Appends forward and backward; failures stay in the program until it is compiled. */
static void step_open_build(struct step *s, ls_program *p)
{
    ls_value targets = ls_input(p, "targets", LS_I32, 2, (size_t[]){ s->batch, s->seq_len });
    ls_value denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });
    ls_value loss = s->image ? build_image(s, p, targets, denominator) : build_language(s, p, targets, denominator);

    ls_backward(p, ls_output(p, "loss", loss));
}

ls_status step_distribute(const struct distributing *s, ls_program *p, const ls_stage *stage)
{
    ls_data_options o = ls_layout_data(s->layout);
    ls_partition_options cut = ls_layout_partition(s->layout);

    if (!ranks_cut_model(s->ranks) && s->layout->ep == 1) {
        if (!s->ranks->comm && o.offload == LS_OFFLOAD_NONE) return LS_OK;
        return ls_data_parallel(p, s->ranks->comm, &o);
    }
    if (stage) cut.stage = *stage;
    LS_TRY(ls_partition(p, s->ranks->mesh, s->model, &cut));
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

    if (!begin) return LS_ENOMEM;
    ls_status st = ls_layout_stages(&s->layout, s->model.layers, begin, &given);
    if (st == LS_OK && (given || fault_stages(&s->injection, s->model.layers, begin))) o.begin = begin;
    if (st == LS_OK) st = ls_layout_schedule(&s->layout, &s->schedule);
    if (st == LS_OK) st = ls_pipeline_open(s->store, s->ranks.mesh, &o, &s->pipeline);
    mem_free(begin);
    return st;
}

/* One program with everything, or the stages' and then one with the update. */
static ls_status compile(struct making *m)
{
    struct step *s = m->s;
    struct distributing how = distributing_of(m);
    ls_data_options o = ls_layout_data(&s->layout);
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

/* What the model needs, in rows without weight too, and what all ranks compute again. */
static ls_status count_work(struct step *s, bool plan_only)
{
    double again = 0, rows = (double)(s->accumulate * s->batch) * ls_mesh_size(s->ranks.mesh, LS_GROUP_DP) / (double)s->global;
    ls_program *p;

    for (int i = 0; (p = step_program(s, i)); i++) {
        ls_cost c = ls_program_cost(p);

        again += (c.forward_flops + c.backward_flops + c.recompute_flops - c.model_flops) * (double)s->accumulate;
    }
    if (plan_only)
        again *= s->ranks.size;
    else
        LS_TRY(ranks_sum(&s->ranks, &again, 1));
    s->executed = step_model_flops(s) * rows + again;
    return LS_OK;
}

/* ---- opening ---- */

static ls_status allocate_tokens(struct step *s)
{
    size_t count, pixels = 0;

    if (!size_mul(s->batch, s->seq_len, &count) || !size_mul(count, s->accumulate, &count) ||
        (s->image && !size_mul(count, step_pixels(s), &pixels)))
        return ls_fail(LS_EINVAL, "%zu micro-batches of %zu samples of %zu %s are too many", s->accumulate, s->batch,
                       s->image ? step_pixels(s) : s->seq_len, s->image ? "values" : "tokens");
    s->targets = mem_array(MEM_OTHER, count, sizeof *s->targets);
    if (s->image)
        s->pixels = mem_array(MEM_OTHER, pixels, sizeof *s->pixels);
    else
        s->tokens = mem_array(MEM_OTHER, count, sizeof *s->tokens);
    if (s->model.experts && !(s->load = mem_array(MEM_OTHER, s->model.layers * s->model.experts, sizeof *s->load))) return LS_ENOMEM;
    return (s->tokens || s->pixels) && s->targets ? LS_OK : LS_ENOMEM;
}

size_t step_micro_bytes(const struct step *s)
{
    size_t of_sample = s->image ? step_pixels(s) * sizeof *s->pixels : s->seq_len * sizeof *s->tokens;

    return s->batch * (of_sample + s->seq_len * sizeof *s->targets);
}

enum { NEAREST = 3 };

/* Places of the store's parameters whose names are nearest to `name`, the nearest first; returns how many. A name that holds it is near. */
static size_t find_nearest(const ls_store *store, const char *name, size_t out[NEAREST])
{
    size_t distances[NEAREST], n = 0;

    for (size_t i = 0; i < ls_store_count(store); i++) {
        const char *other = ls_store_name(store, i);
        size_t distance = strstr(other, name) ? 0 : text_distance(name, other), at = n;

        while (at > 0 && distance < distances[at - 1]) at--;
        if (at == NEAREST) continue;
        n = MIN(n + 1, (size_t)NEAREST);
        for (size_t k = n - 1; k > at; k--) {
            distances[k] = distances[k - 1];
            out[k] = out[k - 1];
        }
        distances[at] = distance;
        out[at] = i;
    }
    return n;
}

static ls_status fail_fault(const struct step *s)
{
    size_t length = strlen(s->fault.name), near[NEAREST], n;
    bool grad = length > 5 && strcmp(s->fault.name + length - 5, ".grad") == 0;
    struct text name = { 0 }, names = { 0 };

    text_put(&name, "%.*s", (int)(grad ? length - 5 : length), s->fault.name);
    ls_status st = text_status(&name);
    n = st == LS_OK ? find_nearest(s->store, name.data, near) : 0;
    for (size_t i = 0; i < n; i++) text_put(&names, "%s%s", i ? ", " : "", ls_store_name(s->store, near[i]));
    if (st == LS_OK) st = text_status(&names);
    bool known = st == LS_OK && n && strcmp(ls_store_name(s->store, near[0]), name.data) == 0;
    if (known)
        st = ls_fail(LS_EINVAL, "debug.non_finite: rank %d runs no op that reads or writes '%s'%s", s->ranks.rank, s->fault.name,
                     s->pipeline ? "; another stage of the pipeline does" : "");
    else if (st == LS_OK)
        st = ls_fail(LS_EINVAL, "debug.non_finite: there is no parameter '%s'; the nearest names are %s", name.data, names.data);
    text_free(&name);
    text_free(&names);
    return st;
}

static ls_status check_fault(const struct step *s)
{
    bool possible = !s->fault.name || s->fault.rank != s->ranks.rank;
    ls_program *p;

    for (int i = 0; !possible && (p = step_program(s, i)); i++) possible = program_can_poison(p, s->fault.name);
    return possible ? LS_OK : fail_fault(s);
}

static ls_status open_step(const struct config *c, bool plan_only, struct step *s)
{
    struct making m = { .s = s, .plan_only = plan_only, .compile = ls_layout_compile(&s->layout) };
    ls_store_options options = ls_layout_store(&s->layout);
    struct config_poison poison = config_poison(c);
    s->fault = (struct step_fault){ poison.step, poison.rank, poison.micro, poison.name };
    ranks_share(&s->ranks, s->global, &s->begin, &s->end);
    m.compile.fuse_loss = 1;
    m.compile.plan_only = plan_only;
    m.compile.check_finite = c->debug.check_finite;
    options.seed = fault_seed(&s->injection, s->ranks.rank, s->seed);
    LS_TRY(ls_store_new(&options, &s->store));
    LS_TRY(compile(&m));
    LS_TRY(count_work(s, plan_only));
    LS_TRY(check_fault(s));
    LS_TRY(feed_open(&s->ranks, s->layout.cp_method, s->batch, s->seq_len, s->image ? step_pixels(s) : 0, &s->feed));
    if (plan_only) return LS_OK;
    return allocate_tokens(s);
}

ls_status step_open(const struct config *c, const ls_model *model, const struct ranks *ranks, bool plan_only, struct step *out)
{
    struct step s = {
        .model = model ? *model : (ls_model){ 0 },
        .optimizer = config_optimizer(c),
        .ranks = *ranks,
        .seed = (uint64_t)c->train.seed,
        .global = (size_t)c->train.global_batch,
        .batch = (size_t)c->train.micro_batch,
        .seq_len = (size_t)c->data.seq_len,
        .accumulate = (size_t)c->train.accumulate,
        .injection = { .fault = (enum fault)c->debug.fault, .mesh = ranks->mesh },
    };

    LS_TRY(config_layout(c, &s.layout));
    if (s.layout.pp > 1) s.injection.stages = s.layout.pp * s.layout.vpp;
    s.image = config_image(c, &s.picture);
    if (s.image) {
        s.model = (ls_model){ 0 };
        s.images = config_images(c, &s.picture, false);
        s.seq_len = 1;
    }
    LS_TRY(ls_layout_check(s.image ? NULL : model, &s.layout));
    ls_status st = LS_OK;
    if (s.layout.offload == LS_OFFLOAD_FILE && !plan_only) st = file_make_folders(s.layout.offload_path);
    if (st == LS_OK) st = open_step(c, plan_only, &s);
    if (st == LS_OK)
        *out = s;
    else
        step_close(&s);
    return st;
}

void step_close(struct step *s)
{
    ls_program_release(&s->program);
    ls_pipeline_close(&s->pipeline);
    ls_pipeline_schedule_free(&s->schedule);
    ls_store_release(&s->store);
    feed_close(&s->feed);
    mem_free(s->tokens);
    mem_free(s->targets);
    mem_free(s->pixels);
    mem_free(s->load);
    *s = (struct step){ 0 };
}
