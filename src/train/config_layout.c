/* config_layout.c - ranks, mesh, pipeline and batch sizes: what the options come to. */
#include "train/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "comm/comm.h"

/* ---- ranks ---- */

static int64_t others(const struct config *c) { return c->parallel.pp * c->parallel.cp * c->parallel.tp; }

ls_status config_ranks(struct config *c, unsigned verb, const struct world *world)
{
    int64_t *ranks = &c->launch.ranks;

    if (world->launcher != LAUNCHER_NONE && *ranks > 0 && *ranks != world->size)
        return ls_fail(LS_EINVAL, "launch.ranks=%" PRId64 " (-n), but %s has started %d", *ranks,
                       launcher_name(world->launcher), world->size);
    if (world->launcher != LAUNCHER_NONE) *ranks = world->size;
    if (*ranks == 0 && (verb & (VERB_PLAN | VERB_PARITY))) *ranks = MAX(c->parallel.dp, 1) * others(c);
    if (*ranks == 0) *ranks = 1;
    return LS_OK;
}

ls_mesh_shape config_mesh(const struct config *c)
{
    return (ls_mesh_shape){ .pp = (int)c->parallel.pp, .dp = (int)c->parallel.dp, .replicate = (int)c->parallel.replicate,
                            .cp = (int)c->parallel.cp, .tp = (int)c->parallel.tp, .ep = (int)c->parallel.ep };
}

/* Where the other axes divide the ranks, dp is what may be wrong: a config file of a run on another number of ranks may have set it. */
static ls_status fail_ranks(const struct config *c)
{
    int64_t ranks = c->launch.ranks, product = c->parallel.dp * others(c);
    char instead[64] = "";

    if (ranks % others(c) == 0) snprintf(instead, sizeof instead, "use --parallel.dp=%" PRId64 ", or ", ranks / others(c));
    return ls_fail(LS_EINVAL, "launch.ranks = parallel.pp * parallel.dp * parallel.cp * parallel.tp does not hold: %" PRId64
                   " = %" PRId64 " * %" PRId64 " * %" PRId64 " * %" PRId64 " (-1: the rest): %sstart that many ranks with -n %" PRId64,
                   ranks, c->parallel.pp, c->parallel.dp, c->parallel.cp, c->parallel.tp, instead, product);
}

ls_status config_check_ranks(struct config *c)
{
    int64_t ranks = c->launch.ranks = MAX(c->launch.ranks, 1);
    ls_mesh_shape shape;

    if (strcmp(c->parallel.schedule, "zb-v") == 0 && c->parallel.pp > 1) c->parallel.vpp = MAX(c->parallel.vpp, 2);
    if (others(c) > 65536 || ranks > 65536)
        return ls_fail(LS_EINVAL, "parallel.pp=%" PRId64 ", parallel.cp=%" PRId64 ", parallel.tp=%" PRId64 " on %" PRId64
                       " ranks; at most 65536 ranks are possible", c->parallel.pp, c->parallel.cp, c->parallel.tp, ranks);
    if (c->parallel.dp < 0) c->parallel.dp = MAX(ranks / others(c), 1);
    if (c->parallel.dp * others(c) != ranks) return fail_ranks(c);
    if (c->parallel.dp % c->parallel.replicate != 0)
        return ls_fail(LS_EINVAL, "parallel.dp=%" PRId64 " is not a multiple of parallel.replicate=%" PRId64, c->parallel.dp,
                       c->parallel.replicate);
    if (c->parallel.dp / c->parallel.replicate * c->parallel.cp % c->parallel.ep != 0)
        return ls_fail(LS_EINVAL,
                       "parallel.ep=%" PRId64 " does not divide parallel.dp / parallel.replicate * parallel.cp = %" PRId64
                       ", the ranks that the experts are spread over",
                       c->parallel.ep, c->parallel.dp / c->parallel.replicate * c->parallel.cp);
    shape = config_mesh(c);
    return ls_mesh_check(&shape, (int)ranks);
}

/* ---- the pipeline ---- */

static bool is_auto(const struct config *c) { return strcmp(c->parallel.schedule, "auto") == 0; }

static const char *schedule_name(const struct config *c)
{
    return !is_auto(c) ? c->parallel.schedule : c->parallel.vpp > 1 ? "interleaved" : "1f1b";
}

/* " x NAME N (ABOUT)" behind what is there. */
static void put_axis(char *out, size_t room, const char *name, int64_t n, const char *about)
{
    size_t at = strlen(out);

    if (n > 1 || strcmp(name, "dp") == 0)
        snprintf(out + at, room - at, "%s%s %" PRId64 "%s%s%s", at ? " x " : "", name, n, about[0] ? " (" : "", about, about[0] ? ")" : "");
}

char *config_layout_text(const struct config *c, char *out, size_t room)
{
    char zero[64], ep[48] = "";

    snprintf(zero, sizeof zero, "zero %" PRId64, c->parallel.zero);
    if (c->parallel.replicate > 1)
        snprintf(zero, sizeof zero, "zero %" PRId64 ", %" PRId64 " replicas", c->parallel.zero, c->parallel.replicate);
    if (c->parallel.ep > 1) snprintf(ep, sizeof ep, ", experts over %" PRId64, c->parallel.ep);
    out[0] = '\0';
    put_axis(out, room, "pp", c->parallel.pp, schedule_name(c));
    put_axis(out, room, "dp", c->parallel.dp, zero);
    put_axis(out, room, "cp", c->parallel.cp, c->parallel.cp_method == LS_CONTEXT_RING ? "ring" : "all-to-all");
    put_axis(out, room, "tp", c->parallel.tp, c->parallel.sp ? "sp" : "");
    snprintf(out + strlen(out), room - strlen(out), "%s", ep);
    return out;
}

ls_status config_pipeline(const struct config *c, ls_pipeline_schedule *out)
{
    const char *name = schedule_name(c);
    int stages = (int)c->parallel.pp, chunks = (int)c->parallel.vpp, micro = (int)c->train.accumulate;

    if (strncmp(name, "file:", 5) != 0) return ls_pipeline_schedule_make(name, stages, chunks, micro, out);
    LS_TRY(ls_pipeline_schedule_read(name + 5, out));
    if (out->stages == stages && out->micro == micro && out->chunks == chunks) return LS_OK;
    ls_status st = ls_fail(LS_EINVAL, "%s is for %d stages of %d chunks and %d micro-batches; got parallel.pp=%d, parallel.vpp=%d, "
                           "train.accumulate=%d", name + 5, out->stages, out->chunks, out->micro, stages, chunks, micro);
    ls_pipeline_schedule_free(out);
    return st;
}

ls_status config_stages(const struct config *c, size_t layers, int *begin, bool *given)
{
    int n = (int)(c->parallel.pp * c->parallel.vpp), at = 0, k = 0;
    const char *rest = c->parallel.stages;

    *given = rest[0] != '\0';
    if (!*given) return LS_OK;
    for (begin[0] = 0; k < n && *rest; ) {
        size_t length = strcspn(rest, ",");
        char word[16] = "";
        int64_t count;

        if (length < sizeof word) memcpy(word, rest, length);
        if (!text_read_int(word, &count) || count < 1 || count > (int64_t)layers)
            return ls_fail(LS_EINVAL, "parallel.stages=%s: '%.*s' is not a number of layers from 1 to %zu", c->parallel.stages, (int)length,
                           rest, layers);
        begin[++k] = at += (int)count;
        rest += length + (rest[length] == ',');
    }
    if (k != n || *rest || (size_t)at != layers)
        return ls_fail(LS_EINVAL, "parallel.stages=%s: expected %d numbers that add up to %zu, the layers of each of the pp * vpp stages",
                       c->parallel.stages, n, layers);
    return LS_OK;
}

/* ---- batch sizes ---- */

static ls_status fail_batch(const struct config *c, const char *why)
{
    return ls_fail(LS_EINVAL,
                   "train.global_batch = train.micro_batch * train.accumulate * parallel.dp does not hold: %" PRId64
                   " = %" PRId64 " * %" PRId64 " * %" PRId64 " (-1: the rest): %s",
                   c->train.global_batch, c->train.micro_batch, c->train.accumulate, c->parallel.dp, why);
}

enum { USUAL_MICRO_BATCH = 8, USUAL_FILL = 2 /* micro-batches a pipeline has for each stage, where it may choose */ };

static int64_t rounded_up(int64_t whole, int64_t part) { return whole / part + (whole % part != 0); }

/* micro-batches that a step should have at least */
static int64_t usual_accumulate(const struct config *c) { return c->parallel.pp > 1 ? USUAL_FILL * c->parallel.pp : 1; }

static void choose_micro(struct config *c)
{
    int64_t *global = &c->train.global_batch, *micro = &c->train.micro_batch, dp = c->parallel.dp,
            least = c->train.accumulate > 0 ? 1 : usual_accumulate(c);

    *micro = *global > 0 ? MIN(USUAL_MICRO_BATCH, rounded_up(rounded_up(*global, dp), least)) : USUAL_MICRO_BATCH;
}

/* A step that does not fill its last micro-batches leaves rows without weight, so any global batch from dp up will do; the
 * equation holds when none fewer would. */
ls_status config_check_batch(struct config *c)
{
    int64_t *global = &c->train.global_batch, *micro = &c->train.micro_batch, *accumulate = &c->train.accumulate,
            dp = c->parallel.dp, per_rank, product;

    if (*global == 0 || *micro == 0 || *accumulate == 0) return fail_batch(c, "each is 1 or more");
    if (*global > 0 && *global < dp) return fail_batch(c, "each rank needs a sample");
    if (*micro < 0 && (*accumulate < 0 || *global < 0)) choose_micro(c);
    if (*accumulate < 0 && *global < 0) *accumulate = usual_accumulate(c);
    if (*accumulate < 0) *accumulate = rounded_up(rounded_up(*global, dp), *micro);
    if (*micro < 0) *micro = rounded_up(rounded_up(*global, dp), *accumulate);
    if (__builtin_mul_overflow(*micro, *accumulate, &per_rank) || __builtin_mul_overflow(per_rank, dp, &product))
        return fail_batch(c, "the product is too large");
    if (*global < 0) *global = product;
    if (rounded_up(rounded_up(*global, dp), *micro) != *accumulate)
        return fail_batch(c, "they must be equal, or the global batch less by at most one micro-batch per rank; use --train.accumulate=-1");
    return LS_OK;
}
