/* layout.c - which layouts are possible: each rule once, with messages in terms of the options. ls_layout_check() applies all of them;
 * passes apply theirs again (layout.h), because a program can be built without a layout.
 */
#include "parallel/layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"
#include "parallel/sharding/partition.h"
#include "parallel/pipeline/schedule.h"

/* The number of ranks over which one copy of the parameters is sharded. */
static int copy_ranks(const ls_layout *l) { return l->dp / l->replicate * l->cp; }

/* True if ZeRO has ranks to shard over; otherwise every stage acts as 0. */
static bool zero_shards(const ls_layout *l) { return l->zero > 0 && copy_ranks(l) > 1; }

/* ---- ranges ---- */

enum { CHUNKS_MOST = 16, RECEIVE_FACTOR_MOST = 1000000 };

static ls_status layout_check_range(const char *name, int n, int least, int most)
{
    return n >= least && n <= most ? LS_OK : ls_fail(LS_EINVAL, "%s=%d is out of range: %d to %d", name, n, least, most);
}

static const char *layout_type_name(ls_dtype type) { return (unsigned)type < LS_DTYPES ? ls_dtype_name(type) : "?"; }

static ls_status layout_check_sizes(const ls_layout *l)
{
    LS_TRY(layout_check_range("train.micro_batch", l->micro_batch, 1, INT32_MAX));
    LS_TRY(layout_check_range("train.accumulate", l->micro_batches, 1, INT32_MAX));
    if ((unsigned)l->compute >= LS_DTYPES || !ls_dtype_is_float(l->compute))
        return ls_fail(LS_EINVAL, "precision.compute=%s is not possible; use a floating-point type", layout_type_name(l->compute));
    if (l->grads != LS_F32 && l->grads != LS_BF16)
        return ls_fail(LS_EINVAL, "precision.grads=%s is not possible; use fp32 or bf16", layout_type_name(l->grads));
    if (l->grads == LS_BF16 && l->compute != LS_BF16)
        return ls_fail(LS_EINVAL,
                       "precision.grads=bf16 with precision.compute=%s: gradients have the type of the parameters or fp32; use "
                       "precision.compute=bf16 or precision.grads=fp32",
                       l->compute == LS_F32 ? "fp32" : layout_type_name(l->compute));
    return LS_OK;
}

/* ---- ranks ---- */

ls_status layout_check_axes(const ls_layout *l)
{
    LS_TRY(layout_check_range("parallel.dp", l->dp, 1, LS_MESH_RANKS_MOST));
    LS_TRY(layout_check_range("parallel.pp", l->pp, 1, LS_MESH_RANKS_MOST));
    LS_TRY(layout_check_range("parallel.cp", l->cp, 1, LS_MESH_RANKS_MOST));
    LS_TRY(layout_check_range("parallel.tp", l->tp, 1, LS_MESH_RANKS_MOST));
    LS_TRY(layout_check_range("parallel.ep", l->ep, 1, LS_MESH_RANKS_MOST));
    LS_TRY(layout_check_range("parallel.replicate", l->replicate, 1, LS_MESH_RANKS_MOST));
    if (ls_layout_ranks(l) <= LS_MESH_RANKS_MOST) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "parallel.pp=%d * parallel.dp=%d * parallel.cp=%d * parallel.tp=%d are too many ranks; at most %d are possible", l->pp,
                   l->dp, l->cp, l->tp, LS_MESH_RANKS_MOST);
}

/* If the product of the other axes divides the number of ranks, dp is probably wrong: the config file of a run on another number of ranks
 * may have set it. Otherwise the other axes are too large. */
ls_status layout_check_ranks(const ls_layout *l, int64_t ranks)
{
    int64_t product = ls_layout_ranks(l), others = product / l->dp;
    char instead[64] = "change parallel.pp, parallel.cp or parallel.tp";

    if (product == ranks) return LS_OK;
    if (ranks % others == 0) snprintf(instead, sizeof instead, "use --parallel.dp=%" PRId64, ranks / others);
    return ls_fail(LS_EINVAL,
                   "launch.ranks = parallel.pp * parallel.dp * parallel.cp * parallel.tp does not hold: %" PRId64 " = %d * %d * %d * %d; "
                   "%s, or match the product with -n %" PRId64,
                   ranks, l->pp, l->dp, l->cp, l->tp, instead, product);
}

ls_status layout_check_groups(const ls_layout *l)
{
    if (l->dp % l->replicate) {
        int fits = l->replicate;

        while (l->dp % fits) fits--;
        return ls_fail(LS_EINVAL, "parallel.dp=%d is not a multiple of parallel.replicate=%d; use parallel.replicate=%d", l->dp,
                       l->replicate, MIN(fits, l->dp));
    }
    if (copy_ranks(l) % l->ep)
        return ls_fail(LS_EINVAL,
                       "parallel.ep=%d does not divide parallel.dp=%d / parallel.replicate=%d * parallel.cp=%d = %d, the ranks that the "
                       "experts are sharded over",
                       l->ep, l->dp, l->replicate, l->cp, copy_ranks(l));
    return LS_OK;
}

/* A model that is not a transformer has no heads, sequence or blocks that the passes could shard. */
static ls_status check_dp_alone(const ls_layout *l)
{
    const struct {
        const char *name;
        int n;
    } axes[] = { { "tp", l->tp }, { "cp", l->cp }, { "pp", l->pp }, { "ep", l->ep } };

    for (size_t i = 0; i < COUNT_OF(axes); i++)
        if (axes[i].n > 1)
            return ls_fail(LS_EINVAL, "parallel.%s=%d: a model that is not a transformer supports only parallel.dp; use parallel.%s=1",
                           axes[i].name, axes[i].n, axes[i].name);
    return LS_OK;
}

/* Methods other than allreduce have one copy of the model, on rank 0, and shard nothing. */
static ls_status check_method(const ls_layout *l)
{
    const struct {
        const char *name;
        int n, only;
    } fixed[] = { { "zero", l->zero, 0 }, { "replicate", l->replicate, 1 }, { "tp", l->tp, 1 }, { "cp", l->cp, 1 }, { "pp", l->pp, 1 },
                  { "ep", l->ep, 1 } };

    if ((unsigned)l->method >= LS_METHODS)
        return ls_fail(LS_EINVAL, "parallel.method: %d does not exist; use allreduce, dataparallel, server or async", (int)l->method);
    for (size_t i = 0; i < COUNT_OF(fixed) && l->method != LS_METHOD_ALLREDUCE; i++)
        if (fixed[i].n != fixed[i].only)
            return ls_fail(LS_EINVAL,
                           "parallel.%s=%d with parallel.method=%s, which has one copy of the model, on rank 0, and shards nothing; use "
                           "parallel.%s=%d or parallel.method=allreduce",
                           fixed[i].name, fixed[i].n, layout_method_name(l->method), fixed[i].name, fixed[i].only);
    if (l->method == LS_METHOD_ASYNC && l->reduce != LS_F32)
        return ls_fail(LS_EINVAL, "precision.reduce=%s with parallel.method=async, which sends gradients as they are; use fp32",
                       layout_type_name(l->reduce));
    return LS_OK;
}

/* A worker's step is its own: it has no statistics of all ranks at the same time, which routers and batch norms are trained with. */
ls_status layout_check_async(const ls_layout *l, const char *with)
{
    if (l->method != LS_METHOD_ASYNC || l->dp == 1 || !with) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "parallel.method=async with %s, whose statistics are those of all ranks at the same time; use another model, or "
                   "parallel.method=server",
                   with);
}

/* Replicated parameters would be loaded by every rank, and each micro-batch's gradients be summed from files. */
static ls_status check_offload_parameters(const ls_layout *l)
{
    static const char *const names[] = { "none", "cpu", "file" };

    if ((unsigned)l->offload_parameters > LS_OFFLOAD_FILE)
        return ls_fail(LS_EINVAL, "parallel.offload_parameters: %d does not exist; use none, cpu or file", (int)l->offload_parameters);
    if (!l->offload_parameters) return LS_OK;
    if (l->dp * l->cp > 1 && l->zero != 3)
        return ls_fail(LS_EINVAL,
                       "parallel.offload_parameters=%s with parallel.zero=%d over %d data-parallel ranks: every rank would keep all "
                       "parameters; use parallel.zero=3, with which each offloads its shard",
                       names[l->offload_parameters], l->zero, l->dp * l->cp);
    if (l->offload_parameters == LS_OFFLOAD_FILE && !l->offload_path)
        return ls_fail(LS_EINVAL, "parallel.offload_parameters=file needs a folder; set run.dir");
    return LS_OK;
}

ls_status layout_check_data_parallel(const ls_layout *l)
{
    int ranks = l->dp * l->cp;

    LS_TRY(layout_check_range("parallel.zero", l->zero, 0, 3));
    LS_TRY(check_method(l));
    if (l->replicate > 1 && l->zero == 0)
        return ls_fail(LS_EINVAL,
                       "parallel.replicate=%d does nothing here: parallel.zero=0 replicates everything; use parallel.zero=1 to 3, or leave "
                       "parallel.replicate out",
                       l->replicate);
    if (l->replicate > 1 && l->replicate == ranks)
        return ls_fail(LS_EINVAL,
                       "parallel.replicate=%d over parallel.dp=%d * parallel.cp=%d ranks makes every rank a replica and shards nothing; "
                       "use parallel.zero=0 and leave parallel.replicate out",
                       l->replicate, l->dp, l->cp);
    LS_TRY(layout_check_range("parallel.prefetch", l->prefetch, 0, LS_PREFETCH_MOST));
    if (l->fsdp_unit < 0) return ls_fail(LS_EINVAL, "parallel.fsdp_unit: %d layers; use 1 or more, or 0 for the model", l->fsdp_unit);
    if (l->reduce != LS_F32 && l->reduce != LS_BF16)
        return ls_fail(LS_EINVAL, "precision.reduce=%s is not possible; use fp32 or bf16", layout_type_name(l->reduce));
    if (l->bucket_bytes == 0) return ls_fail(LS_EINVAL, "parallel.bucket=0 holds no gradient; use 1 byte or more");
    if (l->first_bucket_bytes == 0) return ls_fail(LS_EINVAL, "parallel.first_bucket=0 holds no gradient; use 1 byte or more");
    if ((unsigned)l->offload > LS_OFFLOAD_FILE)
        return ls_fail(LS_EINVAL, "optim.offload: %d does not exist; use none, cpu or file", (int)l->offload);
    if (l->offload == LS_OFFLOAD_FILE && !l->offload_path) return ls_fail(LS_EINVAL, "optim.offload=file needs a folder; set run.dir");
    return check_offload_parameters(l);
}

/* ---- the model ---- */

static ls_status check_tensor(const ls_model *m, const ls_layout *l)
{
    const struct {
        const char *name;
        size_t n;
    } sharded[] = {
        { "heads", m->heads },
        { m->experts ? "expert_ffn" : "ffn", m->experts ? m->expert_ffn : m->ffn },
        { "shared_ffn", m->shared_ffn ? m->shared_ffn : SIZE_MAX },
        { "vocab", m->vocab },
    };

    for (size_t i = 0; i < COUNT_OF(sharded); i++)
        if (sharded[i].n < (size_t)l->tp)
            return ls_fail(LS_EINVAL, "model.%s=%zu cannot be sharded over parallel.tp=%d: every rank needs at least one", sharded[i].name,
                           sharded[i].n, l->tp);
    return LS_OK;
}

static ls_status check_experts(const ls_model *m, const ls_layout *l)
{
    if (l->ep == 1 || m->experts >= (size_t)l->ep) return LS_OK;
    if (m->experts == 0) return ls_fail(LS_EINVAL, "parallel.ep=%d does nothing here: the model has no experts", l->ep);
    return ls_fail(LS_EINVAL, "model.experts=%zu cannot be sharded over parallel.ep=%d: every rank needs at least one", m->experts, l->ep);
}

/* The number of heads on the tp rank that has the fewest. */
static size_t least_heads(const ls_model *m, int tp)
{
    size_t units = m->kv_heads >= (size_t)tp ? m->kv_heads : m->heads;

    return units / (size_t)tp * (m->heads / units);
}

ls_status layout_check_model(const ls_model *m, const ls_layout *l)
{
    if ((unsigned)l->cp_method > LS_CP_ALL_TO_ALL)
        return ls_fail(LS_EINVAL, "parallel.cp_method: %d does not exist; use ring or all_to_all", (int)l->cp_method);
    if (l->overlap) LS_TRY(layout_check_range("parallel.tp_chunks", l->tp_chunks, 1, CHUNKS_MOST));
    LS_TRY(check_tensor(m, l));
    LS_TRY(check_experts(m, l));
    if (l->receive_factor != 0 && !(l->receive_factor >= 1 && l->receive_factor <= RECEIVE_FACTOR_MOST))
        return ls_fail(LS_EINVAL,
                       "parallel.receive_factor=%g is out of range: 1, which has room for an even load, to %d, or 0 for all rows that can "
                       "arrive",
                       l->receive_factor, RECEIVE_FACTOR_MOST);
    size_t heads = least_heads(m, l->tp);
    if (l->cp > 1 && l->cp_method == LS_CP_ALL_TO_ALL && heads < (size_t)l->cp)
        return ls_fail(LS_EINVAL,
                       "parallel.cp_method=all_to_all with parallel.cp=%d: with model.heads=%zu and parallel.tp=%d a rank has %zu heads, "
                       "enough for parallel.cp=%zu; parallel.cp_method=ring has no such limit",
                       l->cp, m->heads, l->tp, heads, heads);
    return LS_OK;
}

ls_status layout_check_sequence(const ls_layout *l)
{
    bool ring = l->cp > 1 && l->cp_method == LS_CP_RING;
    size_t T = (size_t)l->seq_len, chunks = (size_t)l->cp * (ring ? 2 : 1), least = SIZE_MAX;

    if (T < chunks)
        return ls_fail(LS_EINVAL, "data.seq_len=%zu is too short for parallel.cp=%d%s; use at least %zu tokens", T, l->cp,
                       ring ? " with two chunks per rank" : "", chunks);
    for (int r = 0; r < l->cp; r++) least = MIN(least, shard_size(T, 1, ring, r, l->cp));
    if (l->sp && least < (size_t)l->tp)
        return ls_fail(LS_EINVAL,
                       "data.seq_len=%zu over parallel.cp=%d gives shards of %zu tokens, too few for parallel.sp over parallel.tp=%d: "
                       "every rank needs at least one",
                       T, l->cp, least, l->tp);
    return LS_OK;
}

ls_status layout_check_recompute(const ls_layout *l)
{
    if ((unsigned)l->recompute > LS_RECOMPUTE_FIRST)
        return ls_fail(LS_EINVAL, "recompute.mode: %d does not exist; use none, selective, full, every:K, first:K or budget:SIZE",
                       (int)l->recompute);
    if (l->recompute == LS_RECOMPUTE_FIRST && l->every < 0)
        return ls_fail(LS_EINVAL, "recompute.mode=first:%d: the number of blocks must be 0 or more", l->every);
    if (l->recompute == LS_RECOMPUTE_EVERY && l->every < 1)
        return ls_fail(LS_EINVAL, "recompute.mode=every:%d: the number of blocks must be 1 or more", l->every);
    if (l->recompute == LS_RECOMPUTE_BUDGET && l->budget == 0)
        return ls_fail(LS_EINVAL, "recompute.mode=budget:0 has no room for any activation; use 1 byte or more");
    return LS_OK;
}

/* ---- updates in backward ---- */

/* Rejects them where something needs a gradient later than its update. */
ls_status layout_check_in_backward(const ls_layout *l)
{
    const ls_optimizer_facts *optimizer = ls_optimizer_facts_of(l->optimizer);

    if (!l->in_backward) return LS_OK;
    if (!optimizer) return ls_fail(LS_EINVAL, "optim.name: %d does not exist", (int)l->optimizer);
    if (l->pp > 1)
        return ls_fail(LS_EINVAL,
                       "optim.in_backward=true with parallel.pp=%d: a stage has several micro-batches in flight, whose gradients are "
                       "summed; use parallel.pp=1",
                       l->pp);
    if (l->method != LS_METHOD_ALLREDUCE && l->dp > 1)
        return ls_fail(LS_EINVAL,
                       "optim.in_backward=true with parallel.method=%s, which updates after backward; use parallel.method=allreduce",
                       layout_method_name(l->method));
    if (optimizer->layer_wise && (zero_shards(l) || l->tp > 1 || l->ep > 1))
        return ls_fail(LS_EINVAL,
                       "optim.in_backward=true with optim.name=%s: the norms of its layers are summed over the ranks that have shards of "
                       "them, after backward; use parallel.zero=0 without parallel.tp and parallel.ep, or optim.name=adamw",
                       optimizer->name);
    if (l->micro_batches > 1)
        return ls_fail(LS_EINVAL,
                       "optim.in_backward=true with train.accumulate=%d: gradients are summed over micro-batches, so they are not freed; "
                       "use train.accumulate=1",
                       l->micro_batches);
    if (l->offload_parameters)
        return ls_fail(LS_EINVAL,
                       "optim.in_backward=true with parallel.offload_parameters: updated parameters are saved after backward; use "
                       "parallel.offload_parameters=none");
    if (l->offload)
        return ls_fail(LS_EINVAL, "optim.in_backward=true with optim.offload: state is loaded after backward; use optim.offload=none");
    return LS_OK;
}

/* ---- the pipeline ---- */

ls_status layout_check_stages(size_t layers, const ls_layout *l)
{
    if (layers >= (size_t)l->pp * (size_t)l->vpp) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "model.layers=%zu in parallel.pp=%d * parallel.vpp=%d stages: every stage needs at least one layer; use at "
                   "most %zu stages",
                   layers, l->pp, l->vpp, layers);
}

ls_status layout_check_stage(const ls_stage *s, int layers)
{
    bool first = s->index == 0, last = s->index == s->stages - 1;

    if (s->index < 0 || s->index >= s->stages)
        return ls_fail(LS_EINVAL, "stage %d of %d does not exist; use 0 to %d", s->index, s->stages, s->stages - 1);
    if (s->begin >= 0 && s->begin < s->end && s->end <= layers && (!first || s->begin == 0) && (!last || s->end == layers)) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "stage %d of %d has blocks %d to %d of the model's %d; every stage needs at least one, the first from block 0, the last "
                   "to block %d",
                   s->index, s->stages, s->begin, s->end, layers, layers);
}

ls_status layout_check_in_flight(const ls_layout *l)
{
    if (l->reshard_after_forward || (!l->offload_parameters && (l->zero < 3 || !zero_shards(l)))) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "parallel.reshard_after_forward=false with parallel.pp=%d: several micro-batches are in flight between a forward pass "
                   "and its backward pass, and each would keep the parameters; leave it out",
                   l->pp);
}

int layout_least_chunks(const ls_layout *l) { return l->pp > 1 ? schedule_least_chunks(layout_schedule_name(l)) : 1; }
bool layout_splits(const ls_layout *l) { return l->pp > 1 && schedule_splits(layout_schedule_name(l)); }
bool layout_is_v(const ls_layout *l) { return l->pp > 1 && schedule_is_v(layout_schedule_name(l)); }

/* Looks the schedule up by name only, because a search checks many layouts. */
static ls_status find_schedule(const ls_layout *l, bool *backward)
{
    const char *name = layout_schedule_name(l);
    ls_pipeline_schedule s;

    if (strncmp(name, "file:", 5) != 0) return schedule_find(name, l->pp, l->vpp, l->micro_batches, backward);
    ls_status st = ls_layout_schedule(l, &s);
    if (st < 0) return ls_fail_at(st, "parallel.schedule=%s", name);
    *backward = s.backward;
    ls_pipeline_schedule_free(&s);
    return LS_OK;
}

static ls_status check_begin(const ls_model *m, const ls_layout *l)
{
    int *begin = mem_array(MEM_OTHER, (size_t)l->pp * (size_t)l->vpp + 1, sizeof *begin), given;

    if (!begin) return LS_ENOMEM;
    ls_status st = ls_layout_stages(l, m->layers, begin, &given);
    mem_free(begin);
    return st;
}

static ls_status check_pipeline(const ls_model *m, const ls_layout *l)
{
    const char *name = layout_schedule_name(l);
    bool backward;

    if (l->pp == 1) return LS_OK;
    LS_TRY(layout_check_range("parallel.vpp", l->vpp, 1, LS_MESH_RANKS_MOST)); /* pp * vpp fits an int64_t */
    LS_TRY(layout_check_stages(m->layers, l));
    LS_TRY(check_begin(m, l));
    ls_status st = find_schedule(l, &backward);
    if (st != LS_OK) return st;
    if (!backward) return ls_fail(LS_EINVAL, "parallel.schedule=%s is for evaluation: it has no backward passes; use 1f1b to train", name);
    return layout_check_in_flight(l);
}

/* ---- the complete layout ---- */

ls_status ls_layout_check(const ls_model *m, const ls_layout *l)
{
    LS_TRY(layout_check_axes(l));
    LS_TRY(layout_check_groups(l));
    LS_TRY(layout_check_sizes(l));
    LS_TRY(layout_check_data_parallel(l));
    LS_TRY(layout_check_recompute(l));
    LS_TRY(layout_check_in_backward(l));
    if (!m) return check_dp_alone(l);
    ls_model checked = *m;
    LS_TRY(ls_model_check(&checked));
    LS_TRY(layout_check_async(l, checked.experts ? "experts" : NULL));
    LS_TRY(layout_check_range("data.seq_len", l->seq_len, 1, INT32_MAX));
    if ((size_t)l->seq_len > checked.max_positions)
        return ls_fail(LS_EINVAL, "data.seq_len=%d, but the model has %zu positions; use %zu or less, or raise model.max_positions",
                       l->seq_len, checked.max_positions, checked.max_positions);
    LS_TRY(layout_check_model(&checked, l));
    LS_TRY(layout_check_sequence(l));
    return check_pipeline(&checked, l);
}
