/* config_fit.c - impossible models and layouts are refused before any rank is started, by the names of the options. The compiler checks
 * again what passes here. */
#include "train/config.h"

#include <inttypes.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "lockstep/data.h"
#include "parallel/partition.h"

static ls_status check_tensor(const struct config *c, const ls_model *m)
{
    int64_t tp = c->parallel.tp;
    const struct { const char *name; size_t n; } cut[] = {
        { "heads", m->heads }, { m->experts ? "expert_ffn" : "ffn", m->experts ? m->expert_ffn : m->ffn },
        { "shared_ffn", m->shared_ffn ? m->shared_ffn : SIZE_MAX }, { "vocab", c->model.vocab ? m->vocab : SIZE_MAX },
    };

    for (size_t i = 0; i < COUNT_OF(cut); i++)
        if (cut[i].n < (size_t)tp)
            return ls_fail(LS_EINVAL, "model.%s=%zu cannot be sharded over parallel.tp=%" PRId64 ": every rank needs at least one",
                           cut[i].name, cut[i].n, tp);
    return LS_OK;
}

static ls_status check_experts(const struct config *c, const ls_model *m)
{
    if (c->parallel.ep > 1 && m->experts < (size_t)c->parallel.ep)
        return ls_fail(LS_EINVAL, "model.experts=%zu cannot be spread over parallel.ep=%" PRId64 ": every rank needs at least one",
                       m->experts, c->parallel.ep);
    return LS_OK;
}

static ls_status check_sequence(const struct config *c, const ls_model *m)
{
    int cp = (int)c->parallel.cp, tp = (int)c->parallel.tp;
    bool ring = c->parallel.cp_method == LS_CONTEXT_RING;
    size_t T = (size_t)c->data.seq_len, pieces = cp == 1 ? 1 : ring ? 2 * (size_t)cp : (size_t)cp, least = SIZE_MAX;
    size_t units = m->kv_heads >= (size_t)tp ? m->kv_heads : m->heads, heads = units / (size_t)tp * (m->heads / units);

    if (T < pieces)
        return ls_fail(LS_EINVAL, "data.seq_len=%zu is too short for parallel.cp=%d%s; use at least %zu tokens", T, cp,
                       ring ? " with two slices per rank" : "", pieces);
    for (int r = 0; r < cp; r++) least = MIN(least, part_size(T, 1, cp > 1 && ring, r, cp));
    if (c->parallel.sp && least < (size_t)tp)
        return ls_fail(
            LS_EINVAL,
            "data.seq_len=%zu over parallel.cp=%d gives slices of %zu tokens, too few for parallel.sp over parallel.tp=%d: every rank "
            "needs at least one",
            T, cp, least, tp);
    if (cp > 1 && !ring && heads < (size_t)cp)
        return ls_fail(
            LS_EINVAL,
            "parallel.cp_method=all_to_all with parallel.cp=%d: with model.heads=%zu and parallel.tp=%d a rank has %zu heads, enough for "
            "parallel.cp=%zu; parallel.cp_method=ring has no such limit",
            cp, m->heads, tp, heads, heads);
    return LS_OK;
}

static ls_status check_stages(const struct config *c, const ls_model *m)
{
    int64_t stages = c->parallel.pp * c->parallel.vpp;
    int *begin;
    bool given;

    if (m->layers < (size_t)stages)
        return ls_fail(LS_EINVAL,
                       "model.layers=%zu in parallel.pp=%" PRId64 " * parallel.vpp=%" PRId64
                       " stages: every stage needs at least one layer",
                       m->layers, c->parallel.pp, c->parallel.vpp);
    begin = mem_array(MEM_OTHER, (size_t)stages + 1, sizeof *begin);
    if (!begin) return LS_ENOMEM;
    ls_status st = config_stages(c, m->layers, begin, &given);
    mem_free(begin);
    return st;
}

static ls_status check_pipeline(const struct config *c, const ls_model *m)
{
    ls_pipeline_schedule schedule;

    if (c->parallel.pp <= 1) return LS_OK;
    LS_TRY(check_stages(c, m));
    ls_status st = config_pipeline(c, &schedule);
    if (st != LS_OK) return ls_fail_at(st, "parallel.schedule=%s", c->parallel.schedule);
    bool split = schedule.split;
    ls_pipeline_schedule_free(&schedule);
    if (split && c->parallel.zero >= 2 && !c->parallel.unsharded_accumulation)
        return ls_fail(
            LS_EINVAL,
            "parallel.schedule=%s with parallel.zero=%" PRId64 ": weight gradients are computed later than input gradients and cannot be "
            "sharded in between; use parallel.unsharded_accumulation=true, which keeps them unsharded until the last micro-batch",
            c->parallel.schedule, c->parallel.zero);
    if (!c->parallel.reshard_after_forward && c->parallel.zero == 3)
        return ls_fail(LS_EINVAL,
                       "parallel.reshard_after_forward=false with parallel.pp=%" PRId64
                       ": several micro-batches are in flight between a forward "
                       "pass and its backward pass, and each would keep the parameters; leave it out",
                       c->parallel.pp);
    return LS_OK;
}

/* Each rank would decide by its own bytes how many blocks exchange again. */
static ls_status check_recompute(const struct config *c)
{
    if (strncmp(c->recompute.mode, "budget:", 7) != 0 || (c->parallel.tp <= 1 && c->parallel.cp <= 1 && c->parallel.ep <= 1)) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "recompute.mode=%s with parallel.tp=%" PRId64 ", parallel.cp=%" PRId64 ", parallel.ep=%" PRId64 ": ranks could choose "
                   "different blocks; use selective, full or every:K, which are the same on all ranks",
                   c->recompute.mode, c->parallel.tp, c->parallel.cp, c->parallel.ep);
}

/* Tokens that the model must know, where no file has to be read to count them; 0: not known yet. */
static ls_status known_vocab(const struct config *c, size_t *out)
{
    ls_tokenizer *bytes;

    *out = 0;
    if (c->model.vocab == 0 || !c->data.text[0] || strcmp(c->data.tokenizer, "bytes") != 0) return LS_OK;
    LS_TRY(ls_tokenizer_open("bytes", &bytes));
    *out = (size_t)ls_tokenizer_vocab(bytes);
    ls_tokenizer_close(&bytes);
    return LS_OK;
}

static ls_status check_model(const struct config *c, ls_model *out)
{
    size_t vocab;

    LS_TRY(known_vocab(c, &vocab));
    LS_TRY(config_model(c, vocab, out));
    if ((size_t)c->data.seq_len <= out->max_positions) return LS_OK;
    return ls_fail(LS_EINVAL, "data.seq_len=%" PRId64 ", but the model has %zu positions; use %zu or less, or raise model.max_positions",
                   c->data.seq_len, out->max_positions, out->max_positions);
}

ls_status config_check_fit(const struct config *c)
{
    bool mesh = c->parallel.tp > 1 || c->parallel.cp > 1 || c->parallel.pp > 1 || c->parallel.ep > 1;
    ls_image_model image;
    ls_model m;

    if (config_image(c, &image) && mesh)
        return ls_fail(LS_EINVAL, "model.preset=%s: image models support only parallel.dp", c->model.preset);
    if (config_image(c, &image)) return LS_OK;
    LS_TRY(check_model(c, &m));
    return config_check_layout(c, &m);
}

ls_status config_check_layout(const struct config *c, const ls_model *m)
{
    if (c->parallel.tp <= 1 && c->parallel.cp <= 1 && c->parallel.pp <= 1 && c->parallel.ep <= 1) return LS_OK;
    LS_TRY(check_recompute(c));
    LS_TRY(check_tensor(c, m));
    LS_TRY(check_experts(c, m));
    LS_TRY(check_sequence(c, m));
    return check_pipeline(c, m);
}
