/* config_layout.c - the layout from the options: ranks, batch sizes, and the library's struct. */
#include "train/config/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
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

/* If the product of the other axes divides the number of ranks, dp is probably wrong: the config file of a run on another number of ranks
 * may have set it. Otherwise the other axes are too large. */
static ls_status fail_ranks(const struct config *c)
{
    int64_t ranks = c->launch.ranks, product = c->parallel.dp * others(c);
    char instead[64] = "change parallel.pp, parallel.cp or parallel.tp";

    if (ranks % others(c) == 0) snprintf(instead, sizeof instead, "use --parallel.dp=%" PRId64, ranks / others(c));
    return ls_fail(LS_EINVAL,
                   "launch.ranks = parallel.pp * parallel.dp * parallel.cp * parallel.tp does not hold: %" PRId64 " = %" PRId64
                   " * %" PRId64 " * %" PRId64 " * %" PRId64 "; %s, or match the product with -n %" PRId64,
                   ranks, c->parallel.pp, c->parallel.dp, c->parallel.cp, c->parallel.tp, instead, product);
}

ls_status config_check_ranks(struct config *c)
{
    int64_t ranks = c->launch.ranks = MAX(c->launch.ranks, 1);
    ls_mesh_shape shape;
    ls_layout layout;

    if (c->parallel.dp < 0) c->parallel.dp = MAX(ranks / others(c), 1);
    LS_TRY(config_layout(c, &layout));
    LS_TRY(layout_check_axes(&layout));
    c->parallel.vpp = MAX(c->parallel.vpp, layout_least_chunks(&layout));
    if (c->parallel.dp * others(c) != ranks) return fail_ranks(c);
    shape = ls_layout_mesh(&layout);
    return ls_mesh_check(&shape, (int)ranks);
}

/* ---- as the library's struct ---- */

/* The modes without a number, in the order of ls_recompute. */
static const char *const recompute_names[] = { "none", "selective", "full" };

const char *config_recompute_name(ls_recompute mode) { return mode <= LS_RECOMPUTE_FULL ? recompute_names[mode] : NULL; }

/* Reads recompute.mode: none | selective | full | every:K | budget:SIZE. */
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
    if (strncmp(mode, "budget:", 7) == 0 && text_read_bytes(mode + 7, &l->budget) && l->budget > 0) {
        l->recompute = LS_RECOMPUTE_BUDGET;
        return LS_OK;
    }
    return ls_fail(
        LS_EINVAL,
        "recompute.mode: '%s' is not a mode; use none, selective, full, every:K (such as every:2) or budget:SIZE (such as budget:2GiB)",
        mode);
}

static int as_int(int64_t n) { return (int)MIN(n, (int64_t)INT32_MAX); }

static ls_status take_size(const char *name, int64_t n, int *out)
{
    if (n > INT32_MAX) return ls_fail(LS_EINVAL, "%s=%" PRId64 " is out of range: at most %d", name, n, INT32_MAX);
    *out = (int)n;
    return LS_OK;
}

static void take_parallel(const struct config *c, ls_layout *l)
{
    static const ls_cp_method methods[] = { [CP_METHOD_RING] = LS_CP_RING, [CP_METHOD_ALL_TO_ALL] = LS_CP_ALL_TO_ALL };

    l->pp = as_int(c->parallel.pp);
    l->vpp = as_int(c->parallel.vpp);
    l->dp = as_int(c->parallel.dp);
    l->cp = as_int(c->parallel.cp);
    l->tp = as_int(c->parallel.tp);
    l->ep = as_int(c->parallel.ep);
    l->zero = as_int(c->parallel.zero);
    l->replicate = as_int(c->parallel.replicate);
    l->sp = c->parallel.sp;
    l->cp_method = methods[c->parallel.cp_method];
    l->tp_chunks = as_int(c->parallel.tp_chunks);
    l->overlap = c->parallel.overlap;
    l->reshard_after_forward = c->parallel.reshard_after_forward;
    l->unsharded_accumulation = c->parallel.unsharded_accumulation;
    l->sync_batch_norm = c->parallel.sync_batch_norm;
    l->bucket_bytes = c->parallel.bucket;
    l->first_bucket_bytes = c->parallel.first_bucket;
    l->schedule = c->parallel.schedule;
    l->stages = c->parallel.stages;
}

ls_status config_layout(const struct config *c, ls_layout *out)
{
    static const ls_dtype reduced[] = { [REDUCE_FP32] = LS_F32, [REDUCE_BF16] = LS_BF16 };
    static const ls_offload places[] = {
        [OFFLOAD_NONE] = LS_OFFLOAD_NONE, [OFFLOAD_CPU] = LS_OFFLOAD_CPU, [OFFLOAD_FILE] = LS_OFFLOAD_FILE
    };
    ls_layout l = ls_layout_default();

    take_parallel(c, &l);
    LS_TRY(take_size("train.micro_batch", c->train.micro_batch, &l.micro_batch));
    LS_TRY(take_size("train.accumulate", c->train.accumulate, &l.micro_batches));
    LS_TRY(take_size("data.seq_len", c->data.seq_len, &l.seq_len));
    l.compute = config_type(c);
    l.master = c->precision.master;
    l.reduce = reduced[c->precision.reduce];
    l.offload = places[c->optim.offload];
    l.offload_path = c->run.dir[0] ? c->run.dir : ".";
    LS_TRY(take_recompute(c->recompute.mode, &l));
    *out = l;
    return LS_OK;
}

/* ---- batch sizes ---- */

static ls_status fail_batch(const struct config *c, const char *why)
{
    return ls_fail(LS_EINVAL,
                   "train.global_batch = train.micro_batch * train.accumulate * parallel.dp does not hold: %" PRId64 " = %" PRId64
                   " * %" PRId64 " * %" PRId64 " (-1: derived from the others): %s",
                   c->train.global_batch, c->train.micro_batch, c->train.accumulate, c->parallel.dp, why);
}

enum { USUAL_MICRO_BATCH = 8 };

static void choose_micro(struct config *c)
{
    int64_t *global = &c->train.global_batch, *micro = &c->train.micro_batch, dp = c->parallel.dp,
            least = c->train.accumulate > 0 ? 1 : layout_usual_micro_batches(c->parallel.pp);

    *micro = *global > 0 ? MIN(USUAL_MICRO_BATCH, layout_micro_batches(*global, dp, least)) : USUAL_MICRO_BATCH;
}

/* A global batch that does not fill the last micro-batches leaves rows that do not count, so every global batch of at least dp samples is
 * possible. accumulate must be the smallest number of micro-batches that holds it. */
ls_status config_check_batch(struct config *c)
{
    int64_t *global = &c->train.global_batch, *micro = &c->train.micro_batch, *accumulate = &c->train.accumulate, dp = c->parallel.dp,
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
