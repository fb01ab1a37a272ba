/* config_layout.c - the layout from the options: ranks, batch sizes, the library's struct, and that struct as options again. */
#include "train/config/config.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "comm/comm.h"
#include "parallel/layout.h"

/* ---- ranks ---- */

static int64_t others(const struct config *c) { return c->parallel.pp * c->parallel.cp * c->parallel.tp; } /* each fits 17 bits */

ls_status config_ranks(struct config *c, unsigned verb, const struct world *world)
{
    int64_t *ranks = &c->launch.ranks;

    if (world->launcher != LAUNCHER_NONE && *ranks > 0 && *ranks != world->size)
        return ls_fail(LS_EINVAL, "launch.ranks=%" PRId64 " (-n), but %s started %d; leave -n out", *ranks, launcher_name(world->launcher),
                       world->size);
    if (world->launcher != LAUNCHER_NONE) *ranks = world->size;
    if (*ranks == 0 && (verb & (VERB_PLAN | VERB_PARITY)) && __builtin_mul_overflow(MAX(c->parallel.dp, 1), others(c), ranks))
        *ranks = INT64_MAX; /* config_check_ranks() refuses it */
    if (*ranks == 0) *ranks = 1;
    return LS_OK;
}

ls_status config_check_ranks(struct config *c)
{
    ls_layout layout;

    c->launch.ranks = MAX(c->launch.ranks, 1);
    LS_TRY(config_layout(c, &layout));
    ls_mesh_shape shape = ls_layout_mesh(&layout);
    LS_TRY(ls_mesh_check(&shape, (int)MIN(c->launch.ranks, INT32_MAX)));
    c->parallel.dp = shape.dp;
    c->parallel.vpp = MAX(c->parallel.vpp, layout_least_chunks(&layout));
    return LS_OK;
}

/* ---- as the library's struct ---- */

/* A field of the layout, and the option that sets it. */
struct layout_field {
    const char *option;
    enum {
        FIELD_AXIS,
        FIELD_SIZE,
        FIELD_SWITCH,
        FIELD_REAL,
        FIELD_BYTES,
        FIELD_TEXT,
        FIELD_CHOICE,
        FIELD_RECOMPUTE,
        FIELD_UNIT,
        FIELD_FOLDER
    } kind;
    size_t at;         /* offset in ls_layout */
    const int *choice; /* for FIELD_CHOICE: the field's value for each of the option's choices */
};

static const int cp_methods[] = { [CP_METHOD_RING] = LS_CP_RING, [CP_METHOD_ALL_TO_ALL] = LS_CP_ALL_TO_ALL };
static const int methods[] = { LS_METHOD_ALLREDUCE, LS_METHOD_DATAPARALLEL, LS_METHOD_SERVER, LS_METHOD_ASYNC };
static const int compute_types[] = { [COMPUTE_AUTO] = LS_F32, [COMPUTE_FP32] = LS_F32, [COMPUTE_BF16] = LS_BF16 };
static const int reduce_types[] = { [REDUCE_FP32] = LS_F32, [REDUCE_BF16] = LS_BF16 };
#define OPTIMIZER_KIND(upper, ...) LS_##upper,
static const int optimizers[] = { LS_OPTIMIZER_MAP(OPTIMIZER_KIND) };
#undef OPTIMIZER_KIND
static const int offloads[] = { [OFFLOAD_NONE] = LS_OFFLOAD_NONE, [OFFLOAD_CPU] = LS_OFFLOAD_CPU, [OFFLOAD_FILE] = LS_OFFLOAD_FILE };

/* In the order in which options are printed. */
static const struct layout_field fields[] = {
    { "parallel.dp", FIELD_AXIS, offsetof(ls_layout, dp), NULL },
    { "parallel.tp", FIELD_AXIS, offsetof(ls_layout, tp), NULL },
    { "parallel.cp", FIELD_AXIS, offsetof(ls_layout, cp), NULL },
    { "parallel.pp", FIELD_AXIS, offsetof(ls_layout, pp), NULL },
    { "parallel.vpp", FIELD_AXIS, offsetof(ls_layout, vpp), NULL },
    { "parallel.ep", FIELD_AXIS, offsetof(ls_layout, ep), NULL },
    { "parallel.receive_factor", FIELD_REAL, offsetof(ls_layout, receive_factor), NULL },
    { "parallel.zero", FIELD_AXIS, offsetof(ls_layout, zero), NULL },
    { "parallel.replicate", FIELD_AXIS, offsetof(ls_layout, replicate), NULL },
    { "parallel.method", FIELD_CHOICE, offsetof(ls_layout, method), methods },
    { "parallel.async_turns", FIELD_SWITCH, offsetof(ls_layout, async_turns), NULL },
    { "parallel.sp", FIELD_SWITCH, offsetof(ls_layout, sp), NULL },
    { "parallel.cp_method", FIELD_CHOICE, offsetof(ls_layout, cp_method), cp_methods },
    { "parallel.tp_chunks", FIELD_AXIS, offsetof(ls_layout, tp_chunks), NULL },
    { "parallel.overlap", FIELD_SWITCH, offsetof(ls_layout, overlap), NULL },
    { "parallel.fsdp_unit", FIELD_UNIT, offsetof(ls_layout, fsdp_unit), NULL },
    { "parallel.prefetch", FIELD_AXIS, offsetof(ls_layout, prefetch), NULL },
    { "parallel.reshard_after_forward", FIELD_SWITCH, offsetof(ls_layout, reshard_after_forward), NULL },
    { "parallel.unsharded_accumulation", FIELD_SWITCH, offsetof(ls_layout, unsharded_accumulation), NULL },
    { "parallel.offload_parameters", FIELD_CHOICE, offsetof(ls_layout, offload_parameters), offloads },
    { "parallel.sync_batch_norm", FIELD_SWITCH, offsetof(ls_layout, sync_batch_norm), NULL },
    { "parallel.bucket", FIELD_BYTES, offsetof(ls_layout, bucket_bytes), NULL },
    { "parallel.first_bucket", FIELD_BYTES, offsetof(ls_layout, first_bucket_bytes), NULL },
    { "parallel.schedule", FIELD_TEXT, offsetof(ls_layout, schedule), NULL },
    { "parallel.stages", FIELD_TEXT, offsetof(ls_layout, stages), NULL },
    { "recompute.mode", FIELD_RECOMPUTE, 0, NULL }, /* recompute, every, budget */
    { "train.micro_batch", FIELD_SIZE, offsetof(ls_layout, micro_batch), NULL },
    { "train.accumulate", FIELD_SIZE, offsetof(ls_layout, micro_batches), NULL },
    { "data.seq_len", FIELD_SIZE, offsetof(ls_layout, seq_len), NULL },
    { "precision.compute", FIELD_CHOICE, offsetof(ls_layout, compute), compute_types },
    { "precision.master", FIELD_SWITCH, offsetof(ls_layout, master), NULL },
    { "precision.grads", FIELD_CHOICE, offsetof(ls_layout, grads), reduce_types },
    { "precision.reduce", FIELD_CHOICE, offsetof(ls_layout, reduce), reduce_types },
    { "optim.offload", FIELD_CHOICE, offsetof(ls_layout, offload), offloads },
    { "optim.name", FIELD_CHOICE, offsetof(ls_layout, optimizer), optimizers },
    { "optim.in_backward", FIELD_SWITCH, offsetof(ls_layout, in_backward), NULL },
    { "run.dir", FIELD_FOLDER, offsetof(ls_layout, offload_path), NULL },
};

const char *config_layout_option(int i) { return i < (int)COUNT_OF(fields) ? fields[i].option : NULL; }

/* The modes without a number, in the order of ls_recompute. */
static const char *const recompute_names[] = { "none", "selective", "full" };

/* Reads recompute.mode: none | selective | full | every:K | first:K | budget:SIZE. */
static ls_status take_recompute(const char *mode, ls_layout *l)
{
    int64_t every;

    for (size_t i = 0; i < COUNT_OF(recompute_names); i++)
        if (strcmp(mode, recompute_names[i]) == 0) {
            l->recompute = (ls_recompute)i;
            return LS_OK;
        }
    if (strncmp(mode, "every:", 6) == 0 && text_read_int(mode + 6, &every) && every >= 1 && every <= INT32_MAX) {
        l->recompute = LS_RECOMPUTE_EVERY;
        l->every = (int)every;
        return LS_OK;
    }
    if (strncmp(mode, "first:", 6) == 0 && text_read_int(mode + 6, &every) && every >= 0 && every <= INT32_MAX) {
        l->recompute = LS_RECOMPUTE_FIRST;
        l->every = (int)every;
        return LS_OK;
    }
    if (strncmp(mode, "budget:", 7) == 0 && text_read_bytes(mode + 7, &l->budget) && l->budget > 0) {
        l->recompute = LS_RECOMPUTE_BUDGET;
        return LS_OK;
    }
    return ls_fail(
        LS_EINVAL,
        "recompute.mode: '%s' is not a mode; use none, selective, full, every:K (such as every:2), first:K or budget:SIZE (such as "
        "budget:2GiB)",
        mode);
}

/* Reads parallel.fsdp_unit: block | layers:K | model. */
static ls_status take_unit(const char *unit, int *out)
{
    int64_t layers;

    if (strcmp(unit, "block") == 0 || strcmp(unit, "model") == 0) {
        *out = unit[0] == 'b';
        return LS_OK;
    }
    if (strncmp(unit, "layers:", 7) == 0 && text_read_int(unit + 7, &layers) && layers >= 1 && layers <= INT32_MAX) {
        *out = (int)layers;
        return LS_OK;
    }
    return ls_fail(LS_EINVAL, "parallel.fsdp_unit: '%s' is not a unit; use block, layers:K (such as layers:2) or model", unit);
}

static ls_status take_size(const char *name, int64_t n, int *out)
{
    if (n > INT32_MAX) return ls_fail(LS_EINVAL, "%s=%" PRId64 " is out of range: at most %d", name, n, INT32_MAX);
    *out = (int)n;
    return LS_OK;
}

static ls_status take_field(const struct config *c, const struct layout_field *f, ls_layout *l)
{
    const void *from = (const char *)c + config_check_row_of(f->option)->offset;
    void *to = (char *)l + f->at;
    const char *text;

    switch (f->kind) {
    case FIELD_AXIS: *(int *)to = (int)MIN(*(const int64_t *)from, (int64_t)INT32_MAX); break; /* ls_layout_check() has the range */
    case FIELD_SIZE: return take_size(f->option, *(const int64_t *)from, to);
    case FIELD_SWITCH: *(int *)to = *(const bool *)from; break;
    case FIELD_REAL: *(double *)to = *(const double *)from; break;
    case FIELD_BYTES: *(size_t *)to = *(const size_t *)from; break;
    case FIELD_TEXT: *(const char **)to = *(char *const *)from; break;
    case FIELD_CHOICE: memcpy(to, &f->choice[*(const int *)from], sizeof(int)); break;
    case FIELD_RECOMPUTE: return take_recompute(*(char *const *)from, l);
    case FIELD_UNIT: return take_unit(*(char *const *)from, to);
    case FIELD_FOLDER:
        text = *(char *const *)from;
        *(const char **)to = text[0] ? text : ".";
        break;
    }
    return LS_OK;
}

ls_status config_layout(const struct config *c, ls_layout *out)
{
    ls_layout l = ls_layout_default();

    for (size_t i = 0; i < COUNT_OF(fields); i++) LS_TRY(take_field(c, &fields[i], &l));
    *out = l;
    return LS_OK;
}

/* ---- a layout as options ---- */

/* Writes the last choice that has this value: "fp32", not "auto". */
static void layout_put_choice(const struct option *row, const int *values, int value, struct text *out)
{
    const char *found = NULL, *choice = row->choices;

    for (int k = 0; choice; k++) {
        if (values[k] == value) found = choice;
        choice = strchr(choice, '|');
        choice += choice ? 1 : 0;
    }
    ASSERT(found); /* a search varies what options can set */
    text_put(out, "%.*s", (int)strcspn(found, "|"), found);
}

static void put_recompute(const ls_layout *l, struct text *out)
{
    char size[32];

    if (l->recompute == LS_RECOMPUTE_EVERY)
        text_put(out, "every:%d", l->every);
    else if (l->recompute == LS_RECOMPUTE_FIRST)
        text_put(out, "first:%d", l->every);
    else if (l->recompute == LS_RECOMPUTE_BUDGET)
        text_put(out, "budget:%s", text_size(size, l->budget));
    else
        text_put(out, "%s", recompute_names[l->recompute]);
}

/* Writes "--parallel.dp=2". */
static void put_field(const struct layout_field *f, const ls_layout *l, struct text *out)
{
    const struct option *row = config_check_row_of(f->option);
    const void *from = (const char *)l + f->at;
    char size[32];
    int value;

    text_put(out, "--%s=", f->option);
    switch (f->kind) {
    case FIELD_AXIS:
    case FIELD_SIZE: text_put(out, "%d", *(const int *)from); break;
    case FIELD_SWITCH: text_put(out, "%s", *(const int *)from ? "true" : "false"); break;
    case FIELD_REAL: text_put(out, "%.10g", *(const double *)from); break;
    case FIELD_BYTES: text_put(out, "%s", text_size(size, *(const size_t *)from)); break;
    case FIELD_TEXT:
    case FIELD_FOLDER: text_put(out, "%s", *(const char *const *)from ? *(const char *const *)from : row->text); break;
    case FIELD_CHOICE:
        memcpy(&value, from, sizeof value);
        layout_put_choice(row, f->choice, value, out);
        break;
    case FIELD_RECOMPUTE: put_recompute(l, out); break;
    case FIELD_UNIT:
        if (*(const int *)from > 1)
            text_put(out, "layers:%d", *(const int *)from);
        else
            text_put(out, "%s", *(const int *)from ? "block" : "model");
        break;
    }
}

ls_status config_layout_options(const ls_layout *from, const ls_layout *to, struct text *out)
{
    /* Without the option, another number of stages has another number of micro-batches. */
    bool derives = layout_usual_micro_batches(from->pp) != layout_usual_micro_batches(to->pp);

    if (ls_layout_ranks(from) != ls_layout_ranks(to)) text_put(out, "--launch.ranks=%" PRId64, ls_layout_ranks(to));
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        struct text was = { 0 }, is = { 0 };

        put_field(&fields[i], from, &was);
        put_field(&fields[i], to, &is);
        ls_status st = text_status(&was) < 0 ? text_status(&was) : text_status(&is);
        bool differs = st == LS_OK && (strcmp(was.data, is.data) != 0 || (fields[i].at == offsetof(ls_layout, micro_batches) && derives));
        if (differs) text_put(out, "%s%s", out->bytes ? " " : "", is.data);
        text_free(&was);
        text_free(&is);
        if (st < 0) return st;
    }
    return text_status(out);
}

/* ---- batch sizes ---- */

/* The ranks that divide the samples of a step. */
static int64_t workers_of(const struct config *c)
{
    ls_layout l = { .dp = (int)c->parallel.dp, .method = (ls_method)c->parallel.method };

    return layout_workers(&l);
}

static ls_status fail_batch(const struct config *c, const char *why)
{
    bool serves = workers_of(c) < c->parallel.dp;

    return ls_fail(LS_EINVAL,
                   "train.global_batch = train.micro_batch * train.accumulate * %sparallel.dp%s does not hold: %" PRId64 " = %" PRId64
                   " * %" PRId64 " * %" PRId64 " (-1: derived from the others): %s",
                   serves ? "(" : "", serves ? " - 1)" : "", c->train.global_batch, c->train.micro_batch, c->train.accumulate,
                   workers_of(c), why);
}

enum { USUAL_MICRO_BATCH = 8 };

static void choose_micro(struct config *c)
{
    int64_t *global = &c->train.global_batch, *micro = &c->train.micro_batch, dp = workers_of(c),
            least = c->train.accumulate > 0 ? 1 : layout_usual_micro_batches(c->parallel.pp);

    *micro = *global > 0 ? MIN(USUAL_MICRO_BATCH, layout_micro_batches(*global, dp, least)) : USUAL_MICRO_BATCH;
}

/* A global batch that does not fill the last micro-batches leaves rows that do not count, so every global batch of at least a sample per
 * worker is possible. accumulate must be the smallest number of micro-batches that holds it. */
ls_status config_check_batch(struct config *c)
{
    int64_t *global = &c->train.global_batch, *micro = &c->train.micro_batch, *accumulate = &c->train.accumulate, dp = workers_of(c),
            per_rank, product;

    if (*global == 0 || *micro == 0 || *accumulate == 0) return fail_batch(c, "each must be 1 or more");
    if (*global > 0 && *global < dp) return fail_batch(c, "each data-parallel rank needs a sample");
    if (*micro < 0 && (*accumulate < 0 || *global < 0)) choose_micro(c);
    if (*accumulate < 0 && *global < 0) *accumulate = layout_usual_micro_batches(c->parallel.pp);
    if (*accumulate < 0) *accumulate = layout_micro_batches(*global, dp, *micro);
    if (*micro < 0) *micro = layout_micro_batches(*global, dp, *accumulate);
    if (__builtin_mul_overflow(*micro, *accumulate, &per_rank) || __builtin_mul_overflow(per_rank, dp, &product))
        return fail_batch(c, "the product is too large");
    if (*global < 0) *global = product;
    if (layout_micro_batches(*global, dp, *micro) != *accumulate)
        return fail_batch(c, "the sides must be equal, or the global batch smaller by less than a micro-batch per rank; use "
                             "--train.accumulate=-1");
    return LS_OK;
}
