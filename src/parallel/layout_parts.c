/* layout_parts.c - conversions between a layout and the options of other calls, and a layout as text. */
#include "parallel/layout.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"

ls_layout ls_layout_default(void)
{
    static const ls_data_parallel_options data = LS_DATA_PARALLEL_DEFAULTS;

    return (ls_layout){
        .pp = 1,
        .vpp = 1,
        .dp = 1,
        .cp = 1,
        .tp = 1,
        .ep = 1,
        .replicate = 1,
        .tp_chunks = 1,
        .overlap = 1,
        .fsdp_unit = 1,
        .prefetch = 1,
        .reshard_after_forward = 1,
        .sync_batch_norm = 1,
        .bucket_bytes = data.bucket_bytes,
        .first_bucket_bytes = data.first_bucket_bytes,
        .schedule = "auto",
        .stages = "",
        .micro_batch = 1,
        .micro_batches = 1,
        .seq_len = 1,
        .every = 1,
        .compute = LS_F32,
        .master = 1,
        .grads = LS_F32,
        .reduce = LS_F32,
        .optimizer = LS_ADAMW,
    };
}

const char *layout_method_name(ls_method m)
{
    static const char *const names[LS_METHODS] = { "allreduce", "dataparallel", "server", "async" };

    return names[m];
}

int layout_workers(const ls_layout *l) { return l->method == LS_METHOD_ASYNC ? MAX(l->dp - 1, 1) : l->dp; }

int64_t ls_layout_ranks(const ls_layout *l)
{
    int64_t n = (int64_t)l->pp * l->dp;
    bool over = __builtin_mul_overflow(n, (int64_t)l->cp, &n) || __builtin_mul_overflow(n, (int64_t)l->tp, &n);

    return over ? INT64_MAX : n;
}

bool layout_carries_gathers(const ls_layout *l)
{
    bool gathers = l->method == LS_METHOD_SERVER || (l->method == LS_METHOD_ALLREDUCE && (l->zero == 1 || l->zero == 2));

    return gathers && l->overlap && l->pp == 1;
}

/* ---- micro-batches ---- */

static int64_t rounded_up(int64_t whole, int64_t part) { return whole / part + (whole % part != 0); }

int64_t layout_micro_batches(int64_t samples, int64_t dp, int64_t micro_batch) { return rounded_up(rounded_up(samples, dp), micro_batch); }

int64_t layout_usual_micro_batches(int64_t pp)
{
    enum { PER_STAGE = 2 };

    return pp > 1 ? PER_STAGE * pp : 1;
}

/* ---- layout to options ---- */

ls_mesh_shape ls_layout_mesh(const ls_layout *l)
{
    return (ls_mesh_shape){ .pp = l->pp, .dp = l->dp, .replicate = l->replicate, .cp = l->cp, .tp = l->tp, .ep = l->ep };
}

ls_partition_options ls_layout_partition(const ls_layout *l)
{
    return (ls_partition_options){
        .sp = l->sp,
        .cp_method = l->cp_method,
        .overlap = l->overlap,
        .tp_chunks = l->tp_chunks,
        .receive_factor = l->receive_factor,
        .stage = { .stages = 1 },
    };
}

ls_data_parallel_options ls_layout_data_parallel(const ls_layout *l)
{
    return (ls_data_parallel_options){
        .zero = l->zero,
        .method = l->method,
        .replicate = l->replicate,
        .bucket_bytes = l->bucket_bytes,
        .first_bucket_bytes = l->first_bucket_bytes,
        .reduce = l->reduce,
        .overlap = l->overlap,
        .fsdp_unit = l->fsdp_unit,
        .prefetch = l->prefetch,
        .reshard_after_forward = l->reshard_after_forward,
        .unsharded_accumulation = l->unsharded_accumulation,
        .sync_batch_norm = l->sync_batch_norm,
        .offload = l->offload,
        .offload_path = l->offload_path,
        .offload_parameters = l->offload_parameters,
    };
}

ls_compile_options ls_layout_compile(const ls_layout *l)
{
    ls_compile_options o = LS_COMPILE_DEFAULTS;

    o.recompute = l->recompute;
    o.every = l->every;
    o.bytes = l->budget;
    return o;
}

ls_store_options ls_layout_store(const ls_layout *l)
{
    ls_store_options o = LS_STORE_DEFAULTS;

    o.type = l->compute;
    o.master = l->master && l->compute != LS_F32;
    o.half_grads = l->grads != LS_F32;
    return o;
}

/* ---- options to layout ---- */

ls_layout layout_of_mesh(const ls_mesh_shape *shape)
{
    ls_layout l = ls_layout_default();

    l.pp = shape->pp;
    l.dp = shape->dp;
    l.replicate = shape->replicate;
    l.cp = shape->cp;
    l.tp = shape->tp;
    l.ep = shape->ep;
    return l;
}

ls_layout layout_of_partition(const ls_mesh_shape *shape, const ls_partition_options *o)
{
    ls_layout l = layout_of_mesh(shape);

    l.sp = o->sp;
    l.cp_method = o->cp_method;
    l.overlap = o->overlap;
    l.tp_chunks = o->tp_chunks;
    l.receive_factor = o->receive_factor;
    return l;
}

ls_layout layout_of_data(const ls_mesh_shape *shape, const ls_data_parallel_options *o)
{
    ls_layout l = layout_of_mesh(shape);

    l.zero = o->zero;
    l.method = o->method;
    l.bucket_bytes = o->bucket_bytes;
    l.first_bucket_bytes = o->first_bucket_bytes;
    l.reduce = o->reduce;
    l.overlap = o->overlap;
    l.fsdp_unit = o->fsdp_unit;
    l.prefetch = o->prefetch;
    l.reshard_after_forward = o->reshard_after_forward;
    l.unsharded_accumulation = o->unsharded_accumulation;
    l.offload = o->offload;
    l.offload_path = o->offload_path;
    l.offload_parameters = o->offload_parameters;
    return l;
}

/* ---- the pipeline ---- */

const char *layout_schedule_name(const ls_layout *l)
{
    return l->schedule && strcmp(l->schedule, "auto") != 0 ? l->schedule : l->vpp > 1 ? "interleaved" : "1f1b";
}

ls_status ls_layout_schedule(const ls_layout *l, ls_pipeline_schedule *out)
{
    const char *name = layout_schedule_name(l);

    if (strncmp(name, "file:", 5) != 0) return ls_pipeline_schedule_make(name, l->pp, l->vpp, l->micro_batches, out);
    LS_TRY(ls_pipeline_schedule_read(name + 5, out));
    if (out->stages == l->pp && out->micro == l->micro_batches && out->chunks == l->vpp) return LS_OK;
    ls_status st = ls_fail(
        LS_EINVAL, "%s is for %d stages of %d chunks and %d micro-batches; got parallel.pp=%d, parallel.vpp=%d, train.accumulate=%d",
        name + 5, out->stages, out->chunks, out->micro, l->pp, l->vpp, l->micro_batches);
    ls_pipeline_schedule_free(out);
    return st;
}

ls_status layout_read_stages(const ls_layout *l, int least, int most, int *begin, int *count)
{
    int n = l->pp * l->vpp;
    const char *rest = l->stages;

    for (begin[0] = *count = 0; *rest; *count += 1) {
        size_t length = strcspn(rest, ",");
        char word[16] = "";
        int64_t blocks;

        if (*count == n) {
            *count = n + 1;
            return LS_OK;
        }
        if (length < sizeof word) memcpy(word, rest, length);
        if (!text_read_int(word, &blocks) || blocks < least || blocks > most)
            return ls_fail(LS_EINVAL, "parallel.stages=%s: '%.*s' is not a number of layers from %d to %d", l->stages, (int)length, rest,
                           least, most);
        begin[*count + 1] = begin[*count] + (int)blocks;
        rest += length + (rest[length] == ',');
    }
    return LS_OK;
}

ls_status ls_layout_stages(const ls_layout *l, size_t layers, int *begin, int *given)
{
    int n = l->pp * l->vpp, count;

    *given = l->stages && l->stages[0];
    if (!*given) return LS_OK;
    LS_TRY(layout_read_stages(l, 1, (int)layers, begin, &count));
    if (count != n || (size_t)begin[n] != layers)
        return ls_fail(LS_EINVAL, "parallel.stages=%s: expected %d numbers that add up to %zu, the layers of each of the pp * vpp stages",
                       l->stages, n, layers);
    return LS_OK;
}

/* ---- as text ---- */

/* Appends " x NAME N (ABOUT)". */
static void put_axis(char *out, size_t room, const char *name, int n, const char *about)
{
    size_t at = strlen(out);

    if (n > 1 || strcmp(name, "dp") == 0)
        snprintf(out + at, room - at, "%s%s %d%s%s%s", at ? " x " : "", name, n, about[0] ? " (" : "", about, about[0] ? ")" : "");
}

static void put_offload(char *out, size_t room, const ls_layout *l)
{
    static const char *const where[] = { [LS_OFFLOAD_CPU] = "in host memory", [LS_OFFLOAD_FILE] = "in files" };

    if (l->offload && l->offload == l->offload_parameters) {
        snprintf(out, room, ", parameters, gradients and optimizer state %s", where[l->offload]);
        return;
    }
    if (l->offload_parameters) snprintf(out, room, ", parameters and gradients %s", where[l->offload_parameters]);
    if (l->offload) snprintf(out + strlen(out), room - strlen(out), ", optimizer state %s", where[l->offload]);
}

char *ls_layout_text(const ls_layout *l, char *out, size_t room)
{
    int stage = l->dp / l->replicate * l->cp > 1 ? l->zero : 0; /* without ranks to shard over every stage acts as 0 */
    char zero[64], ep[48] = "", offload[96] = "";

    snprintf(zero, sizeof zero, "zero %d", stage);
    if (l->method != LS_METHOD_ALLREDUCE && l->dp > 1)
        snprintf(zero, sizeof zero, "%s%s", layout_method_name(l->method),
                 l->method == LS_METHOD_ASYNC && l->async_turns ? ", in turn" : "");
    if (l->replicate > 1) snprintf(zero, sizeof zero, "zero %d, %d replicas", l->zero, l->replicate);
    if (l->ep > 1) snprintf(ep, sizeof ep, ", experts over %d", l->ep);
    put_offload(offload, sizeof offload, l);
    out[0] = '\0';
    put_axis(out, room, "pp", l->pp, layout_schedule_name(l));
    put_axis(out, room, "dp", l->dp, zero);
    put_axis(out, room, "cp", l->cp, l->cp_method == LS_CP_RING ? "ring" : "all-to-all");
    put_axis(out, room, "tp", l->tp, l->sp ? "sp" : "");
    snprintf(out + strlen(out), room - strlen(out), "%s%s", ep, offload);
    return out;
}
