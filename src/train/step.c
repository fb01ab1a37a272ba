/* step.c - one training step. */
#include "train/step.h"

#include <inttypes.h>
#include <math.h>
#include "base/base.h"
#include "base/mem.h"
#include "parallel/data.h"

size_t step_pixels(const struct step *s) { return s->picture.channels * s->picture.height * s->picture.width; }

const char *step_unit(const struct step *s) { return s->image ? "pictures" : "tokens"; }

size_t step_parameters(const struct step *s)
{
    return s->image ? ls_image_parameters(&s->picture) : ls_model_parameters(&s->model);
}

static ls_value build_image(struct step *s, ls_value targets, ls_value denominator)
{
    size_t size[4] = { s->batch, s->picture.channels, s->picture.height, s->picture.width };
    ls_value images = ls_cast(s->program, ls_input(s->program, "images", LS_F32, 4, size), ls_store_settings(s->store).type);

    return ls_image_loss(s->program, &s->picture, images, ls_reshape(s->program, targets, 1, &s->batch), denominator, 1);
}

static ls_value build_language(struct step *s, ls_value targets, ls_value denominator)
{
    ls_program *p = s->program;
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ s->batch, s->seq_len });
    ls_value index = s->model.dropout > 0 ? ls_input(p, "step", LS_I64, 1, (size_t[]){ 2 }) : LS_NONE;

    return ls_model_loss(p, &s->model, tokens, targets, denominator, index);
}

/* Appends forward, backward and update; failures stay in the program until it is compiled. */
static void build(struct step *s)
{
    ls_program *p = s->program;
    ls_value targets = ls_input(p, "targets", LS_I32, 2, (size_t[]){ s->batch, s->seq_len });
    ls_value denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });
    ls_value loss = s->image ? build_image(s, targets, denominator) : build_language(s, targets, denominator);

    ls_backward(p, ls_output(p, "loss", loss));
}

static ls_status compile(const struct config *c, bool plan_only, struct step *s)
{
    ls_compile_options o;

    LS_TRY(config_recompute(c->recompute.mode, &o));
    o.fuse_loss = 1;
    o.plan_only = plan_only;
    o.check_finite = c->debug.check_finite;
    build(s);
    LS_TRY(ls_program_status(s->program));
    LS_TRY(ls_optimizer_append(s->program, &s->optimizer));
    LS_TRY(step_spread(c, &s->ranks, s->program));
    return ls_program_compile(s->program, &o);
}

ls_status step_spread(const struct config *c, const struct ranks *ranks, ls_program *p)
{
    ls_data_options o = config_data_options(c);

    if (!ranks->comm && o.offload == LS_OFFLOAD_NONE) return LS_OK;
    return ls_data_parallel(p, ranks->comm, &o);
}

static ls_status allocate_tokens(struct step *s)
{
    size_t count, pixels = 0;

    if (!size_mul(s->batch, s->seq_len, &count) || !size_mul(count, s->accumulate, &count) ||
        (s->image && !size_mul(count, step_pixels(s), &pixels)))
        return ls_fail(LS_EINVAL, "%zu micro-batches of %zu samples of %zu %s are too many", s->accumulate, s->batch,
                       s->image ? step_pixels(s) : s->seq_len, s->image ? "values" : "tokens");
    s->targets = mem_array(MEM_OTHER, count, sizeof *s->targets);
    if (s->image) s->pixels = mem_array(MEM_OTHER, pixels, sizeof *s->pixels);
    else s->tokens = mem_array(MEM_OTHER, count, sizeof *s->tokens);
    return (s->tokens || s->pixels) && s->targets ? LS_OK : LS_ENOMEM;
}

/* debug.plant: bugs of the step's own; the others are the pass's. "seed": every rank but 0 starts elsewhere. */
static ls_status plant(const struct config *c, struct step *s, ls_store_options *o)
{
    static const char *const passes[] = { NULL, "average", "skip_bucket", "twice", "local_norm", "boundary", NULL, NULL };
    const char *bug = passes[c->debug.plant];

    s->mean_of_means = c->debug.plant == PLANT_MEAN_OF_MEANS;
    if (c->debug.plant == PLANT_SEED) o->seed += (uint64_t)s->ranks.rank;
    return data_plant(bug, bug != NULL);
}

ls_status step_open(const struct config *c, const ls_model *model, const struct ranks *ranks, bool plan_only,
                    struct step *out)
{
    struct step s = {
        .model = model ? *model : (ls_model){ 0 }, .optimizer = config_optimizer(c), .ranks = *ranks,
        .seed = (uint64_t)c->train.seed,
        .global = (size_t)c->train.global_batch, .batch = (size_t)c->train.micro_batch,
        .seq_len = (size_t)c->data.seq_len, .accumulate = (size_t)c->train.accumulate,
    };
    ls_store_options options = LS_STORE_DEFAULTS;
    ls_status st;

    s.image = config_image(c, &s.picture);
    if (s.image) {
        s.model = (ls_model){ 0 };
        s.images = config_images(c, &s.picture, false);
        s.seq_len = 1;
    }
    if (!s.image && s.seq_len > model->max_positions)
        return ls_fail(LS_EINVAL, "data.seq_len=%zu, but the model has %zu positions; raise model.max_positions",
                       s.seq_len, model->max_positions);
    options.type = config_type(c);
    options.master = c->precision.master && options.type != LS_F32;
    options.seed = s.seed;
    ranks_share(ranks, s.global, &s.begin, &s.end);
    st = plant(c, &s, &options);
    if (st == LS_OK) st = ls_store_new(&options, &s.store);
    if (st == LS_OK) st = ls_program_new(s.store, &s.program);
    if (st == LS_OK) st = compile(c, plan_only, &s);
    if (st == LS_OK && !plan_only) st = allocate_tokens(&s);
    if (st == LS_OK) *out = s;
    else step_close(&s);
    return st;
}

void step_close(struct step *s)
{
    ls_program_release(&s->program);
    ls_store_release(&s->store);
    mem_free(s->tokens);
    mem_free(s->targets);
    mem_free(s->pixels);
    *s = (struct step){ 0 };
}

static ls_status run_micro_batch(struct step *s, uint64_t index, size_t k, float denominator, double *loss)
{
    size_t count = s->batch * s->seq_len;
    int64_t site[2] = { (int64_t)index, (int64_t)(s->begin + k * s->batch) }; /* the update, and samples before this micro-batch */
    int last = k + 1 == s->accumulate ? LS_LAST : 0;
    float part;

    if (s->image)
        LS_TRY(ls_program_write(s->program, "images", s->pixels + k * count * step_pixels(s), LS_F32, count * step_pixels(s)));
    else LS_TRY(ls_program_write(s->program, "tokens", s->tokens + k * count, LS_I32, count));
    LS_TRY(ls_program_write(s->program, "targets", s->targets + k * count, LS_I32, count));
    LS_TRY(ls_program_write(s->program, "denominator", &denominator, LS_F32, 1));
    if (s->model.dropout > 0) LS_TRY(ls_program_write(s->program, "step", site, LS_I64, 2));
    LS_TRY(ls_program_run(s->program, LS_FORWARD | LS_BACKWARD | last));
    LS_TRY(ls_program_read(s->program, "loss", &part, LS_F32, 1));
    *loss += part;
    return LS_OK;
}

ls_status step_gradients(struct step *s, uint64_t index, double *loss, size_t *valid)
{
    size_t count = s->accumulate * s->batch * s->seq_len;
    int64_t counted = 0, own;
    double sum = 0;

    for (size_t i = 0; i < count; i++) counted += s->targets[i] >= 0;
    own = counted * s->ranks.size;
    LS_TRY(ranks_sum_int(&s->ranks, &counted, 1));
    if (counted == 0) return ls_fail(LS_EINVAL, "step %" PRIu64 " has no token to learn from", index);
    ls_store_zero_grad(s->store);
    for (size_t k = 0; k < s->accumulate; k++) LS_TRY(run_micro_batch(s, index, k, (float)(s->mean_of_means ? own : counted), &sum));
    LS_TRY(ranks_sum(&s->ranks, &sum, 1));
    if (!isfinite(sum))
        return ls_fail(LS_EINVAL,
                       "step %" PRIu64 ": the loss is %s; a lower optim.lr or a longer optim.warmup helps most often, "
                       "and --debug.check_finite=true names the operation",
                       index, isnan(sum) ? "not a number" : "infinite");
    *loss = sum;
    *valid = (size_t)counted;
    return LS_OK;
}

ls_status step_update(struct step *s, double lr, uint64_t t, double *norm)
{
    LS_TRY(ls_optimizer_set(s->program, &s->optimizer, lr, t));
    LS_TRY(ls_program_run(s->program, LS_OPTIMIZER_STEP));
    double found = ls_optimizer_norm(s->program);
    if (!isfinite(found))
        return ls_fail(LS_EINVAL,
                       "step %" PRIu64 ": the gradient's norm is %s; a lower optim.lr or a longer optim.warmup helps "
                       "most often, and --debug.check_finite=true names the operation",
                       t - 1, isnan(found) ? "not a number" : "infinite");
    *norm = found;
    return LS_OK;
}

void step_fill_pictures(struct step *s, uint64_t first)
{
    for (size_t row = 0; row < s->accumulate * s->batch; row++) {
        ls_images_get(&s->images, first + s->begin + row, s->pixels + row * step_pixels(s), &s->targets[row]);
        if (row >= s->end - s->begin) s->targets[row] = -1;
    }
}

double step_model_flops(const struct step *s)
{
    if (s->image) return ls_program_cost(s->program).model_flops / (double)s->batch * (double)s->global;
    return ls_model_flops_per_token(&s->model, s->seq_len) * (double)(s->global * s->seq_len);
}

double step_executed_flops(const struct step *s)
{
    ls_cost cost = ls_program_cost(s->program);
    double executed = cost.forward_flops + cost.backward_flops + cost.recompute_flops,
           rows = (double)(s->accumulate * s->batch) * s->ranks.size / (double)s->global;

    return step_model_flops(s) * rows + (executed - cost.model_flops) * (double)s->accumulate * s->ranks.size;
}

size_t step_comm_bytes(const struct step *s, ls_collective op, size_t *calls)
{
    size_t n[3], part = ls_program_comm_bytes(s->program, LS_FORWARD | LS_BACKWARD, op, &n[0]),
           last = ls_program_comm_bytes(s->program, LS_FORWARD | LS_BACKWARD | LS_LAST, op, &n[1]),
           update = ls_program_comm_bytes(s->program, LS_OPTIMIZER_STEP, op, &n[2]);

    *calls = n[0] * (s->accumulate - 1) + n[1] + n[2];
    return part * (s->accumulate - 1) + last + update;
}
