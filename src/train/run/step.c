/* step.c - one training step. */
#include "train/run/step.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "runtime/non_finite.h"
#include "train/run/async.h"
#include "train/run/samples.h"

size_t step_parameters(const struct step *s) { return s->model.task->parameters(&s->model); }

/* ---- gradients ---- */

/* What a pass over the step's micro-batches reads, and sums. */
struct sums {
    struct step *s;
    uint64_t index;
    float denominator;
    double loss;
    bool again; /* the pass is repeated: the routers' loads are already counted */
};

static struct micro_batch micro_batch(const struct sums *a, size_t k)
{
    const struct step *s = a->s;
    size_t own = s->end - s->begin, first = k * s->batch;

    return (struct micro_batch){
        .input = (const char *)s->inputs + first * s->feed.values * TASK_VALUE_BYTES,
        .targets = s->targets + first * s->seq_len,
        .denominator = a->denominator,
        .site = { (int64_t)a->index, (int64_t)(s->begin + first) },
        .samples = own > first ? MIN(own - first, s->batch) : 0,
        .global = s->global,
    };
}

static ls_status step_before(void *ctx, ls_program *p, int chunk, int micro)
{
    struct sums *a = ctx;
    struct micro_batch m = micro_batch(a, (size_t)micro);

    (void)chunk;
    program_tag(p, micro);
    fault_micro_batch(&a->s->fault, a->s->ranks.rank, p, a->index + 1, micro);
    return feed_write(&a->s->feed, a->s->model.task, p, &m);
}

static ls_status add_output(struct step *s, ls_program *p, const char *name, double *sum, size_t count)
{
    return ls_program_has(p, name) ? readback_add(&s->readback, p, name, sum, count) : LS_OK;
}

/* Adds up, for the layers in this program, the routers' losses and the number of tokens routed to each expert. */
static ls_status add_routers(struct sums *a, ls_program *p)
{
    const ls_model *m = &a->s->model.transformer;
    char layer[64], name[96];

    for (size_t i = 0; i < m->layers; i++) {
        ls_model_layer_name(m, i, layer, sizeof layer);
        snprintf(name, sizeof name, "%s.router_loss", layer);
        LS_TRY(add_output(a->s, p, name, &a->loss, 1));
        snprintf(name, sizeof name, "%s.expert_load", layer);
        LS_TRY(add_output(a->s, p, name, a->s->load + i * m->experts, m->experts));
    }
    return LS_OK;
}

static ls_status step_after(void *ctx, ls_program *p, int chunk, int micro)
{
    struct sums *a = ctx;

    (void)chunk;
    (void)micro;
    LS_TRY(add_output(a->s, p, "loss", &a->loss, 1));
    return a->s->load && !a->again ? add_routers(a, p) : LS_OK;
}

static ls_status run_micro_batches(struct sums *a)
{
    struct step *s = a->s;

    if (s->pipeline) return ls_pipeline_run(s->pipeline, step_before, step_after, a);
    for (size_t k = 0; k < s->accumulate; k++) {
        LS_TRY(step_before(a, s->program, 0, (int)k));
        LS_TRY(ls_program_run(s->program, LS_FORWARD | LS_BACKWARD | (k + 1 == s->accumulate ? LS_LAST : 0)));
        LS_TRY(step_after(a, s->program, 0, (int)k));
    }
    return LS_OK;
}

/* Runs all micro-batches and adds up their losses and router counts. */
static ls_status run_all(struct sums *a)
{
    ls_status st = run_micro_batches(a);

    if (st == LS_OK) return readback_finish(&a->s->readback);
    readback_drop(&a->s->readback);
    return st;
}

/* *all: number of targets of the step that count, over all ranks. *own: what it would be if every rank had as many as this one (a fault
 * divides by it). */
static ls_status count_targets(const struct step *s, int64_t *all, int64_t *own)
{
    size_t count = s->accumulate * s->batch * s->seq_len;
    int64_t counted = 0;

    for (size_t i = 0; i < count; i++) counted += s->targets[i] >= 0;
    *own = counted * ls_mesh_size(s->ranks.mesh, LS_GROUP_DP);
    *all = ranks_counts(&s->ranks) ? counted : 0;
    return ranks_sum_int(&s->summed, all, 1);
}

ls_status step_gradients(struct step *s, uint64_t index, double *loss, size_t *valid)
{
    struct sums a = { .s = s, .index = index };
    size_t loads = s->model.transformer.layers * s->model.transformer.experts;
    int64_t counted, own;

    LS_TRY(count_targets(s, &counted, &own));
    if (counted == 0) return ls_fail(LS_EINVAL, "step %" PRIu64 " has no %s to learn from", index + 1, s->model.task->unit);
    ls_store_zero_grad(s->store);
    a.denominator = (float)fault_count(&s->injection, counted, own);
    if (s->load) memset(s->load, 0, loads * sizeof *s->load);
    fault_gradients();
    LS_TRY(run_all(&a));
    if (ls_mesh_index(s->ranks.mesh, LS_GROUP_TP) > 0) { /* all tp ranks have the same sums; the first one counts them */
        a.loss = 0;
        if (s->load) memset(s->load, 0, loads * sizeof *s->load);
    }
    LS_TRY(ranks_sum(&s->summed, &a.loss, 1));
    if (s->load) LS_TRY(ranks_sum(&s->summed, s->load, loads));
    *loss = a.loss;
    *valid = (size_t)counted;
    return isfinite(a.loss) ? LS_OK : ls_fail(LS_EINVAL, "step %" PRIu64 ": the loss is %s", index + 1, isnan(a.loss) ? "NaN" : "infinite");
}

ls_status step_run_again(struct step *s, uint64_t index)
{
    struct sums a = { .s = s, .index = index, .again = true };
    int64_t counted, own;

    LS_TRY(count_targets(s, &counted, &own));
    a.denominator = (float)fault_count(&s->injection, counted, own);
    ls_store_zero_grad(s->store);
    return run_all(&a);
}

/* ---- the update ---- */

ls_status step_set(struct step *s, double lr, uint64_t t)
{
    LS_TRY(ls_optimizer_set_norm(s->program, &s->optimizer, s->norm));
    return ls_optimizer_set(s->program, &s->optimizer, lr, t);
}

ls_status step_update(struct step *s, uint64_t t, double *norm)
{
    ls_status st = ls_program_run(s->program, LS_OPTIMIZER_STEP);
    if (st == LS_EINVAL) *norm = ls_optimizer_norm(s->program);
    if (st == LS_OK) st = ls_optimizer_read_norm(s->program, norm); /* on a device the failure of the update may show only here */
    if (st == LS_OK) s->norm = *norm;
    return st == LS_EINVAL ? ls_fail_at(st, "step %" PRIu64, t) : st;
}

double step_model_flops(const struct step *s) { return s->model.task->flops(s); }

double step_executed_flops(const struct step *s) { return s->executed; }

ls_program *step_program(const struct step *s, int i)
{
    int chunks = s->pipeline ? ls_pipeline_chunks(s->pipeline) : 0;

    return i < chunks ? ls_pipeline_program(s->pipeline, i) : i == chunks ? s->program : NULL;
}

size_t step_comm_bytes(const struct step *s, ls_collective op, size_t *calls)
{
    size_t bytes = 0, n;
    ls_program *p;

    *calls = 0;
    if (op == LS_COLLECTIVE_SEND) bytes += samples_sent(s, &n), *calls += n;
    if (op == LS_COLLECTIVE_SEND) bytes += async_sent(s, &n), *calls += n;
    if (s->pipeline && op == LS_COLLECTIVE_SEND) bytes += ls_pipeline_bytes(s->pipeline, calls);
    for (int i = 0; (p = step_program(s, i)); i++) {
        int each = LS_FORWARD | LS_BACKWARD | LS_WEIGHTS;

        bytes += ls_program_comm_bytes(p, each, (int)op, &n) * (s->accumulate - 1);
        *calls += n * (s->accumulate - 1);
        bytes += ls_program_comm_bytes(p, each | LS_LAST, (int)op, &n);
        *calls += n;
        bytes += ls_program_comm_bytes(p, LS_OPTIMIZER_STEP, (int)op, &n);
        *calls += n;
    }
    return bytes;
}

void step_offload_bytes(const struct step *s, size_t *loaded, size_t *saved)
{
    int each = LS_FORWARD | LS_BACKWARD | LS_WEIGHTS;
    ls_program *p;

    *loaded = *saved = 0;
    for (int i = 0; (p = step_program(s, i)); i++) {
        struct program_offload micro = program_offload(p, each), last = program_offload(p, each | LS_LAST),
                               update = program_offload(p, LS_OPTIMIZER_STEP);

        *loaded += micro.loaded * (s->accumulate - 1) + last.loaded - last.gradients + update.loaded;
        *saved += micro.saved * (s->accumulate - 1) + last.saved + update.saved;
    }
}

ls_cost step_cost(const struct step *s)
{
    ls_cost cost = ls_program_cost(s->program);

    for (int i = 0; s->pipeline && i < ls_pipeline_chunks(s->pipeline); i++) {
        ls_cost chunk = ls_program_cost(ls_pipeline_program(s->pipeline, i));

        cost.activations += chunk.activations;
        cost.communication += chunk.communication;
    }
    return cost;
}
