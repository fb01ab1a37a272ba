/* plan_layout.c - the public functions of plans: see plan_layout.h and lockstep/plan.h. */
#include "train/plan/plan_layout.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "kernels/kernel.h"
#include "parallel/layout.h"
#include "train/plan/search.h"

_Static_assert((int)LS_PLAN_OFFLOAD == (int)SECONDS_OFFLOAD && (int)LS_PLAN_WAITS == (int)SECONDS_WAITS, "the waits of a public plan");

/* ---- the plan of a layout ---- */

size_t plan_limit_of(const struct cluster *c) { return (size_t)(c->memory - c->reserved); }

static ls_plan_seconds seconds_of(const struct step_seconds *x)
{
    ls_plan_seconds s = { .step = x->step,
                          .matmul = x->kernels[SECONDS_MATMUL],
                          .attention = x->kernels[SECONDS_ATTENTION],
                          .memory_bound = x->kernels[SECONDS_MEMORY],
                          .optimizer = x->optimizer,
                          .bubble = x->bubble,
                          .recomputed = x->recomputed };

    memcpy(s.exposed, x->exposed, sizeof s.exposed);
    for (int a = 0; a < LS_PLAN_WAITS; a++) s.hidden[a] = MAX(x->hidden[a], 0);
    return s;
}

static ls_plan_bytes bytes_of(const struct plan_job *j, const struct plan_parts *x)
{
    const struct plan_bytes *b = x->bytes;
    size_t buffers = j->cluster ? (size_t)group_buffers_of(j->cluster, &x->step->layout) : 0;

    return (ls_plan_bytes){ .rank = b->rank,
                            .parameters = b->cost.parameters,
                            .gradients = b->cost.gradients,
                            .optimizer = b->cost.optimizer,
                            .activations = b->cost.activations,
                            .communication = b->cost.communication,
                            .offload = b->cost.offload,
                            .total = b->total,
                            .other = b->other,
                            .host = b->host,
                            .file = b->cost.offload_file,
                            .group_buffers = buffers,
                            .limit = x->limit,
                            .fits = x->limit == 0 || plan_fits(j, b, (double)x->limit - (double)buffers) };
}

/* What follows from the seconds: speed, and how much of the peak is used. */
static void put_speed(const struct plan_job *j, const struct plan_parts *x, ls_plan *out)
{
    double ranks = x->step->ranks.size, step = out->seconds.step, peak = j->cluster->flops[x->step->layout.compute] * ranks;

    out->tokens_per_second = out->tokens / step;
    if (peak > 0) {
        out->mfu = x->seconds->model_flops / step / peak;
        out->hfu = out->executed_flops / step / peak;
    }
    out->price_of_million = j->cluster->price * ranks * step / 3600 * 1e6 / out->tokens;
}

ls_plan plan_of_parts(const struct plan_job *j, const struct plan_parts *x)
{
    const struct step *s = x->step;
    ls_plan p = { .seconds = seconds_of(x->seconds),
                  .bytes = bytes_of(j, x),
                  .tokens = (double)s->global * (double)(s->model.task->sequences ? s->seq_len : 1),
                  .model_flops = step_model_flops(s),
                  .executed_flops = step_executed_flops(s) };

    for (int op = 0; op < LS_COLLECTIVES; op++) p.sent[op] = step_comm_bytes(s, (ls_collective)op, &p.calls[op]);
    if (j->cluster) put_speed(j, x, &p);
    return p;
}

ls_status plan_layout(const struct plan_job *j, const ls_layout *l, size_t limit, ls_plan *out)
{
    struct plan_bytes bytes;
    struct step_seconds seconds = { 0 };
    struct ranks ranks;
    struct step s;

    LS_TRY(plan_of_largest(j, l, &bytes, NULL));
    if (j->cluster) LS_TRY(step_seconds_of(j, l, j->cluster, &seconds));
    LS_TRY(ranks_plan(l, bytes.rank, &ranks));
    ls_status st = step_open(j->model, l, &j->step, &ranks, true, &s);
    if (st == LS_OK) {
        *out = plan_of_parts(j, &(struct plan_parts){ .bytes = &bytes, .seconds = &seconds, .step = &s, .limit = limit });
        step_close(&s);
    }
    ranks_close(&ranks);
    return st;
}

/* ---- public ---- */

static const ls_plan_options plan_defaults = { 0 };

/* The caller's optimizer, or the defaults of a config, with the layout's kind. */
static ls_optimizer optimizer_of(const ls_layout *l, const ls_plan_options *o)
{
    ls_optimizer x = LS_OPTIMIZER_DEFAULTS;

    if (o->optimizer)
        x = *o->optimizer;
    else if (l->in_backward)
        x.clip = 0;
    x.kind = l->optimizer;
    x.in_backward = l->in_backward;
    return x;
}

/* The job of public arguments. model: receives a checked copy. */
static ls_status job_of(const ls_model *m, const ls_layout *l, const ls_cluster *c, const ls_plan_options *o, struct task_model *model,
                        struct plan_job *out)
{
    if (!m) return ls_fail(LS_EINVAL, "a plan needs a model");
    ls_model checked = *m;
    LS_TRY(ls_model_check(&checked));
    *model = task_model_of_transformer(&checked);
    *out = (struct plan_job){ .model = model,
                              .step = { .optimizer = optimizer_of(l, o), .device = "cpu", .global = o->global_batch },
                              .evaluates = o->evaluates,
                              .cluster = c ? &c->cluster : NULL };
    return LS_OK;
}

/* Programs of a cluster with processors other than cpus consist of reference kernels, so that no number depends on the computer that plans
 * (step_seconds_settle()). */
static struct plan_assumed assumed_of(const ls_cluster *c)
{
    return c ? (struct plan_assumed){ .threads = 1, .isa = c->cluster.serial ? -1 : ISA_ANY } : (struct plan_assumed){ .isa = -1 };
}

/* The samples of a step. As in a config, the last micro-batches may be partly filled. */
static ls_status samples_of(const ls_layout *l, size_t given, size_t *out)
{
    int workers = layout_workers(l);
    size_t most;

    if (!size_mul((size_t)l->micro_batch, (size_t)l->micro_batches, &most) || !size_mul(most, (size_t)workers, &most) || most > INT64_MAX)
        return ls_fail(LS_EINVAL, "micro_batch=%d x micro_batches=%d x %d workers are too many samples", l->micro_batch, l->micro_batches,
                       workers);
    bool fits =
        given >= (size_t)workers && given <= most && layout_micro_batches((int64_t)given, workers, l->micro_batch) == l->micro_batches;
    *out = given ? given : most;
    if (!given || fits) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "global_batch=%zu with micro_batch=%d x micro_batches=%d x %d workers: use %zu, or up to micro_batch * workers - 1 "
                   "samples fewer",
                   given, l->micro_batch, l->micro_batches, workers, most);
}

ls_status ls_plan_layout(const ls_model *m, const ls_layout *l, const ls_cluster *c, const ls_plan_options *o, ls_plan *out)
{
    struct task_model model;
    struct plan_job job;

    if (!l) return ls_fail(LS_EINVAL, "a plan needs a layout");
    if (!o) o = &plan_defaults;
    LS_TRY(job_of(m, l, c, o, &model, &job));
    LS_TRY(ls_layout_check(&model.transformer, l));
    LS_TRY(samples_of(l, o->global_batch, &job.step.global));
    if (c) LS_TRY(plan_check_seconds(l, &c->cluster));
    ls_layout anywhere = *l;
    anywhere.offload_path = "."; /* as plan_of_config() */
    struct plan_assumed before = plan_assume(assumed_of(c));
    ls_status st = plan_layout(&job, &anywhere, o->memory_limit || !c ? o->memory_limit : plan_limit_of(&c->cluster), out);
    plan_assume(before);
    return st;
}

static ls_status check_space(const ls_plan_space *s, const ls_cluster *c, const ls_plan_options *o)
{
    if (!s || !c) return ls_fail(LS_EINVAL, "a search needs a %s", s ? "cluster" : "space");
    if (s->ranks < 1 || s->ranks > LS_MESH_RANKS_MOST)
        return ls_fail(LS_EINVAL, "a search over layouts of %d ranks: use 1 to %d", s->ranks, LS_MESH_RANKS_MOST);
    if (s->fixed & ~(unsigned)LS_PLAN_FIX_ALL) return ls_fail(LS_EINVAL, "a search with fixed=0x%x: use bits of LS_PLAN_FIX_ALL", s->fixed);
    if (o->global_batch < 1)
        return ls_fail(LS_EINVAL, "a search needs the number of samples per step, which is the same for all layouts: set global_batch");
    if (o->global_batch > LS_PLAN_SAMPLES_MOST)
        return ls_fail(LS_EINVAL, "global_batch=%zu: a search takes at most %d", o->global_batch, LS_PLAN_SAMPLES_MOST);
    return LS_OK;
}

static void put_fastest(const struct search_result *r, const ls_layout *base, ls_plan_fastest *out)
{
    *out = (ls_plan_fastest){ .count = r->found, .compiled = r->exact, .checked = r->checked, .priced = r->priced, .fit = r->fit };
    for (int i = 0; i < r->found; i++) {
        const struct search_found *x = &r->best[i];

        out->found[i] = (ls_plan_found){ .layout = x->layout,
                                         .compiled = x->exact,
                                         .seconds = x->exact ? x->seconds.step : x->price,
                                         .bytes = x->exact ? (double)x->plan.total : x->bytes };
        out->found[i].layout.offload_path = base->offload_path;
    }
}

ls_status ls_plan_search(const ls_model *m, const ls_plan_space *s, const ls_cluster *c, const ls_plan_options *o, ls_plan_fastest *out)
{
    struct task_model model;
    struct plan_job job;
    struct search_result *r;

    if (!o) o = &plan_defaults;
    LS_TRY(check_space(s, c, o));
    LS_TRY(job_of(m, &s->base, c, o, &model, &job));
    r = mem_array(MEM_OTHER, 1, sizeof *r);
    if (!r) return LS_ENOMEM;
    struct search_space space = { .ranks = s->ranks,
                                  .global = o->global_batch,
                                  .room = (double)(o->memory_limit ? o->memory_limit : plan_limit_of(&c->cluster)),
                                  .fixed = s->fixed,
                                  .base = s->base };
    space.base.offload_path = ".";
    struct plan_assumed before = plan_assume(assumed_of(c));
    ls_status st = search_layouts(&job, &c->cluster, &space, r);
    plan_assume(before);
    if (st == LS_OK && r->exact == 0) st = search_nothing_fits(&space, r);
    if (st == LS_OK) put_fastest(r, &s->base, out);
    mem_free(r);
    return st;
}
