/* plan.c - computes the memory of ranks, which do not need to exist. */
#include "train/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/cores.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "base/text.h"
#include "base/threads.h"
#include "device/device.h"
#include "parallel/layout.h"
#include "parallel/mesh/mesh.h"
#include "data/loader.h"
#include "kernels/kernel.h"
#include "runtime/store.h"
#include "train/run/samples.h"
#include "train/run/trace.h"

ls_status plan_of_config(const struct config *c, const struct task_model *model, struct plan_job *job, ls_layout *layout)
{
    LS_TRY(config_layout(c, layout));
    layout->offload_path = "."; /* the plan of a run is the same in any folder */
    *job = (struct plan_job){ .model = model, .step = step_options_of(c), .evaluates = c->data.val_fraction > 0, .traces = c->log.trace };
    return LS_OK;
}

void plan_set_threads(const struct config *c, int local, bool elsewhere)
{
    if (c->launch.threads) return;
    if (elsewhere)
        threads_set(1);
    else if (c->launch.ranks > 1)
        threads_set(cores_per_rank(local));
}

static ls_status check_offload(const char *option, ls_offload where, const struct cluster *c)
{
    bool file = where == LS_OFFLOAD_FILE;

    if (where == LS_OFFLOAD_NONE || (file ? c->offload.read > 0 : c->offload.bandwidth > 0)) return LS_OK;
    return ls_fail(LS_EINVAL, "%s=%s: the machine file of '%s' does not say how fast that is: it needs %s", option, file ? "file" : "cpu",
                   c->name, file ? "offload.read and offload.write" : "offload.bandwidth and offload.memory");
}

ls_status plan_check_seconds(const ls_layout *l, const struct cluster *c)
{
    LS_TRY(check_offload("optim.offload", l->offload, c));
    LS_TRY(check_offload("parallel.offload_parameters", l->offload_parameters, c));
    if (l->method == LS_METHOD_ALLREDUCE) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "parallel.method=%s: seconds on a machine are planned only for parallel.method=allreduce; plan without one, or train, "
                   "which measures both",
                   layout_method_name(l->method));
}

static size_t total_of(const ls_cost *c)
{
    return c->parameters + c->gradients + c->optimizer + c->activations + c->communication + c->offload;
}

static bool host_is_apart(const struct plan_job *j) { return j->cluster ? !j->cluster->serial : j->host > 0; }

double plan_host_room(const struct plan_job *j)
{
    if (!host_is_apart(j)) return 0;
    return j->cluster ? j->cluster->offload.memory / j->cluster->processors : (double)j->host;
}

size_t plan_step_room(const struct plan_job *j, size_t limit, const struct dataset *data)
{
    return !j->cluster && j->host ? limit : plan_room(limit, data);
}

bool plan_fits(const struct plan_job *j, const struct plan_bytes *b, double room)
{
    if (!j->cluster && j->host) return b->host + b->other <= j->host && (double)b->total <= room;
    return (double)b->host <= plan_host_room(j) && (double)(b->total + b->other) <= room;
}

/* A run holds the evaluation's activations in addition to the step's. */
static ls_status price_step(const struct plan_job *j, const struct step *s, struct plan_bytes *out)
{
    ls_cost evaluation = { 0 };

    if (j->evaluates) LS_TRY(evaluation_plan(s, &evaluation));
    out->cost = step_cost(s);
    out->cost.activations += evaluation.activations;
    out->cost.communication += evaluation.communication;
    if (host_is_apart(j)) {
        out->host = out->cost.offload;
        out->cost.offload = 0;
    }
    out->total = total_of(&out->cost);
    return LS_OK;
}

/* Sharded buffers of the step: `times` buffers of `total` elements each, over the ranks of a group. */
struct share {
    size_t total, times;
    ls_group over;
    bool rooted; /* the first rank of the group holds all elements */
};
struct shares {
    struct share x[256];
    int n;
};

/* Counts buffers of equal size together, because their sum is computed for thousands of ranks. */
static struct shares shares_of(const struct step *s)
{
    const ls_comm *experts = ls_mesh_comm(s->ranks.mesh, LS_GROUP_EXPERT_SHARD);
    struct shares out = { .n = 0 };

    for (int g = 0; g < store_units(s->store); g++) {
        const struct store_unit *unit = store_unit_at(s->store, g);
        ls_group over = unit->comm == experts ? LS_GROUP_EXPERT_SHARD : LS_GROUP_SHARD;
        int k = 0;

        if (!unit->sharded) continue;
        while (k < out.n && (out.x[k].total != unit->total || out.x[k].over != over || out.x[k].rooted != unit->rooted)) k++;
        if (k == COUNT_OF(out.x)) k--; /* no model has so many sizes; if one did, the rest would count as the last */
        if (k == out.n) out.x[out.n++] = (struct share){ unit->total, 0, over, unit->rooted };
        out.x[k].times++;
    }
    return out;
}

/* Elements of these buffers that `rank` would hold, which has the same parameters as the step's rank. */
static size_t share_of(const struct shares *shares, const ls_mesh_shape *shape, int rank)
{
    struct mesh_position dense = mesh_position_of(shape, LS_GROUP_SHARD, rank),
                         experts = mesh_position_of(shape, LS_GROUP_EXPERT_SHARD, rank);
    size_t sum = 0;

    for (int k = 0; k < shares->n; k++) {
        const struct share *x = &shares->x[k];
        const struct mesh_position *seat = x->over == LS_GROUP_SHARD ? &dense : &experts;

        size_t begin, end;

        store_unit_block(x->rooted, x->total, seat->index, seat->size, &begin, &end);
        sum += x->times * (end - begin);
    }
    return sum;
}

/* Finds, among the ranks that differ from `rank` only in their samples, the one that holds the most elements of sharded buffers. */
static int largest_share(const struct step *s, int rank)
{
    ls_mesh_shape m = ls_layout_mesh(&s->layout);
    struct mesh_position dp = mesh_position_of(&m, LS_GROUP_DP, rank);
    int expert = mesh_position_of(&m, LS_GROUP_EP, rank).index, best = rank;
    struct shares shares = shares_of(s);
    size_t most = share_of(&shares, &m, rank);

    for (int d = 0; d < dp.size; d++) {
        int other = dp.first + d * dp.stride;
        size_t share = mesh_position_of(&m, LS_GROUP_EP, other).index == expert ? share_of(&shares, &m, other) : 0;

        if (share <= most) continue;
        most = share;
        best = other;
    }
    return best;
}

/* Bytes that saving or loading a checkpoint needs temporarily: a part of a parameter (two if its state is in a file), and the file's
 * buffer. */
static size_t checkpoint_scratch(const struct step *s)
{
    enum { SAVED = 4 << 20, LOADED = 2 << 20, BUFFER = 256 << 10 };
    size_t most = 0;

    for (size_t i = 0; i < ls_store_count(s->store); i++) most = MAX(most, store_local_count(s->store, i));
    size_t saved = MIN((size_t)SAVED, most * sizeof(float)), loaded = MIN((size_t)LOADED, most * sizeof(double));
    bool file = s->layout.offload == LS_OFFLOAD_FILE || s->layout.offload_parameters == LS_OFFLOAD_FILE;

    return (file ? saved : 0) + MAX(BUFFER + saved, loaded);
}

/* Bytes of samples: those of the step, of the evaluation, and those that the loader has prepared. */
static size_t sample_bytes(const struct plan_job *j, const struct step *s)
{
    size_t micro = step_micro_bytes(s), evaluation = j->evaluates ? micro + feed_bytes(&s->feed) : 0;

    size_t loaders = s->model.task->drawn ? 0 : (size_t)samples_loaders(&s->layout, s->ranks.rank);

    return s->accumulate * micro + evaluation + loaders * loader_bytes(s->batch * s->seq_len);
}

/* Bytes of the run's list of parameters and of a checkpoint's lists. To save a checkpoint, each rank learns what every other holds of each
 * parameter (CLAIM) and lists what is saved: a PARAMETER each, and a SHARD for each rank of another stage, tensor shard or expert shard. */
static size_t list_bytes_of(const struct step *s)
{
    enum { PARAMETER = 3 << 10, CLAIM = 768, SHARD = 1536 };
    size_t shards = (size_t)s->layout.pp * (size_t)s->layout.tp * (size_t)s->layout.ep;

    return ls_store_count(s->store) * (PARAMETER + (size_t)s->ranks.size * CLAIM + (shards - 1) * SHARD);
}

/* Bytes that a run holds in addition to the programs: PLAN_START, lists, samples, a trace. */
static size_t run_bytes(const struct plan_job *j, const struct step *s)
{
    return PLAN_START + list_bytes_of(s) + checkpoint_scratch(s) + sample_bytes(j, s) + (j->traces ? trace_bytes() : 0);
}

ls_status plan_rank(const struct plan_job *j, const ls_layout *layout, int rank, struct plan_bytes *out, int *better, int *begin)
{
    size_t more = 0;
    struct plan_bytes found = { .rank = rank };
    struct ranks ranks;
    struct step s;

    pulse();
    mem_thread_begin();
    LS_TRY(ranks_plan(layout, rank, &ranks));
    ls_status st = step_open(j->model, layout, &j->step, &ranks, true, &s);
    if (st == LS_OK) {
        st = price_step(j, &s, &found);
        if (better) *better = largest_share(&s, rank);
        if (begin && s.pipeline) memcpy(begin, ls_pipeline_begin(s.pipeline), ((size_t)(layout->pp * layout->vpp) + 1) * sizeof *begin);
        more = run_bytes(j, &s);
        step_close(&s);
    }
    ranks_close(&ranks);
    found.other = more + mem_thread_peak(MEM_OTHER);
    if (st == LS_OK) *out = found;
    return st;
}

ls_status plan_of_rank(const struct plan_job *j, const ls_layout *layout, int rank, struct plan_bytes *out)
{
    return plan_rank(j, layout, rank, out, NULL, NULL);
}

struct plan_assumed plan_assume(struct plan_assumed x)
{
    return (struct plan_assumed){ .threads = threads_assume(x.threads), .isa = isa_assume(x.isa) };
}

struct assuming {
    tasks_fn *fn;
    void *ctx;
    struct plan_assumed assumed; /* on the thread that shares out the tasks */
};

static ls_status assuming_task(void *ctx, int i)
{
    const struct assuming *a = ctx;
    struct plan_assumed before = plan_assume(a->assumed);
    ls_status st = a->fn(a->ctx, i);

    plan_assume(before);
    return st;
}

ls_status plan_tasks(const struct plan_job *j, int n, tasks_fn *fn, void *ctx)
{
    const struct device *d = device_find(j->step.device);
    struct assuming a = { .fn = fn, .ctx = ctx };

    if (!d) return LS_EUNSUPPORTED;
    a.assumed = plan_assume((struct plan_assumed){ 0, -1 });
    plan_assume(a.assumed);
    if (d->immediate) return tasks_run(n, assuming_task, &a);
    for (int i = 0; i < n; i++) LS_TRY(fn(ctx, i));
    return LS_OK;
}

/* ---- before a run ---- */

size_t plan_room(size_t limit, const struct dataset *data)
{
    return limit > data->peak + PLAN_START && limit > data->held ? limit - data->held : 0;
}

const char *plan_nothing_fits(const struct plan_job *j, size_t limit, const struct dataset *data)
{
    if (!j->cluster && j->host) limit = j->host + data->held; /* limit of the memory that holds the data */
    return data->held > 0 && (data->held > limit / 2 || plan_room(limit, data) == 0)
               ? PLAN_SMALLER_DATA
               : "none of the changes that were tried is enough: use more machines or a smaller model";
}

static const char *largest_part(const ls_cost *c, size_t *bytes)
{
    const struct {
        const char *name;
        size_t bytes;
    } part[] = {
        { "parameters", c->parameters },   { "gradients", c->gradients },         { "optimizer", c->optimizer },
        { "activations", c->activations }, { "communication", c->communication }, { "offload", c->offload },
    };
    size_t most = 0;

    for (size_t i = 1; i < COUNT_OF(part); i++)
        if (part[i].bytes > part[most].bytes) most = i;
    *bytes = part[most].bytes;
    return part[most].name;
}

/* What a rank needs and what it may hold. held: bytes of the data and of everything outside the step (plan_bytes.other). On a GPU, held and
 * offloaded bytes are in the host's memory, of which job.host is left for the step. */
struct need {
    struct plan_job job;
    ls_layout layout;
    const char *limited_by;
    struct plan_bytes own;
    const struct dataset *data;
    size_t held, limit;
};

static void put_remedies(const struct need *n, struct text *out)
{
    struct remedy remedy[REMEDIES];
    char size[16];
    int count = 0;

    if (plan_remedies(&n->job, &n->layout, plan_step_room(&n->job, n->limit, n->data), remedy, &count) < 0 || count == 0) {
        text_put(out, "; %s", plan_nothing_fits(&n->job, n->limit, n->data));
        return;
    }
    text_put(out, "; what fits: ");
    for (int i = 0; i < count; i++) text_put(out, "%s%s (%s)", i ? ", or " : "", remedy[i].options, text_bytes(size, remedy[i].total));
}

static ls_status fail_memory(const struct need *n)
{
    char need[16], have[16], room[16], part[16], beside[40] = "";
    struct text remedies = { 0 };
    size_t most;
    const char *name = largest_part(&n->own.cost, &most);

    put_remedies(n, &remedies);
    if (!n->job.host && n->held > most) name = "other", most = n->held;
    if (!n->job.host) snprintf(beside, sizeof beside, " in addition to %s", text_bytes(have, n->held));
    if (n->job.host && n->own.host + n->own.other > n->job.host)
        ls_fail(LS_ENOMEM, "out of memory: the step needs %s of the host's memory, of which %s offloaded; a rank's share is %s%s",
                text_bytes(need, n->own.host + n->own.other), text_bytes(part, n->own.host), text_bytes(room, n->job.host),
                remedies.data ? remedies.data : "");
    else
        ls_fail(LS_ENOMEM, "out of memory: the step needs %s%s, the limit is %s (%s); most is in %s: %s%s", text_bytes(need, n->own.total),
                beside, text_bytes(room, n->limit), n->limited_by, name, text_bytes(part, most), remedies.data ? remedies.data : "");
    text_free(&remedies);
    return LS_ENOMEM;
}

/* Bytes by which the rank exceeds its limit; 0 or less: it fits. */
static double excess_of(const struct need *n)
{
    double total = (double)n->own.total, host = (double)n->own.host + (double)n->own.other;

    if (n->job.host) return fmax(n->limit ? total - (double)n->limit : 0, host - (double)n->job.host);
    return n->limit ? total + (double)n->held - (double)n->limit : 0;
}

static ls_status check_memory(const struct ranks *ranks, struct need *n)
{
    LS_TRY(ranks_settle(ranks, plan_of_rank(&n->job, &n->layout, ranks->rank, &n->own)));
    n->held = n->data->held + n->own.other;
    double excess = excess_of(n), most = excess;
    LS_TRY(ranks_most(ranks, &most, 1));
    if (most <= 0) return LS_OK;
    double first = excess == most ? ranks->size - ranks->rank : 0;
    LS_TRY(ranks_most(ranks, &first, 1));
    return ranks_settle(ranks, ranks->size - (int)first == ranks->rank ? fail_memory(n) : LS_OK);
}

/* The rank with the largest excess, the lowest of several, reports it; the others wait for it. The limit is lifted meanwhile, because what
 * planning holds temporarily is not part of the run: the suggestions are those of `lockstep plan`. */
ls_status plan_check_memory(const struct config *c, const struct task_model *model, const struct dataset *data, const struct ranks *ranks)
{
    struct need n = { .limited_by = c->run.memory_limit          ? "run.memory_limit"
                                    : c->launch.share_gpus       ? "a rank's part of the GPU's memory"
                                    : c->run.device_facts.memory ? "the GPU's memory"
                                                                 : "a rank's share of what is free",
                      .data = data,
                      .limit = mem_device_limit() ? mem_device_limit() : mem_limit() };
    size_t limit = mem_limit();

    LS_TRY(plan_of_config(c, model, &n.job, &n.layout));
    n.job.host = mem_device_limit() ? MAX(plan_room(limit, data), (size_t)1) : 0;
    mem_set_limit(0);
    ls_status st = check_memory(ranks, &n);
    mem_set_limit(limit);
    return st;
}
