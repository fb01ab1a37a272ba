/* config_plant.c - debug.plant: which faults can be injected in a layout. One that can't is refused: it would seem to go undetected. */
#include "train/config.h"

#include <inttypes.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "train/plan.h"

struct rule { enum config_plant plant; bool idle; const char *because; };

static const char *const unshared = "gradients are summed over parallel.dp and parallel.cp, which are 1";
static const char *const whole = "with parallel.ep=1 the experts are not sharded";
static const char *const alike = "weights that are replicated over parallel.tp do the same work on all ranks; with parallel.sp they do not";

static bool is_made_again(const struct config *c)
{
    return strcmp(c->recompute.mode, "none") != 0 && strcmp(c->recompute.mode, "selective") != 0;
}

static ls_status check(const struct config *c, const ls_model *m)
{
    int64_t dp = c->parallel.dp, cp = c->parallel.cp, tp = c->parallel.tp, pp = c->parallel.pp, ep = c->parallel.ep, stages = pp * c->parallel.vpp;
    bool alone = c->launch.ranks <= 1, shared = dp * cp > 1, v = strcmp(c->parallel.schedule, "zb-v") == 0;
    bool slices = c->parallel.sp || ls_architecture_family(m->architecture)->head_norms;  /* whose weights are those of all ranks' heads */
    const struct rule rules[] = {
        { PLANT_AVERAGE, !shared, unshared },
        { PLANT_SKIP_BUCKET, !shared, unshared },
        { PLANT_TWICE, !shared, unshared },
        { PLANT_LOCAL_NORM, c->parallel.zero == 0, "with parallel.zero=0 gradients are not sharded, and their norm is not summed over ranks" },
        { PLANT_BOUNDARY, alone, "one rank updates everything" },
        { PLANT_MEAN_OF_MEANS, dp <= 1, "parallel.dp=1 has all samples" },
        { PLANT_SEED, alone, "there is one rank" },
        { PLANT_EXPERT_TIMES_EP, ep <= 1, whole },
        { PLANT_NORM_EXPERTS, ep <= 1, whole },
        { PLANT_EXPERT_GROUP, ep <= 1, whole },
        { PLANT_EXPERT_GROUP, dp * cp == ep, "each expert is on one rank, parallel.ep = parallel.dp * parallel.cp" },
        { PLANT_NORM_STAGES, pp <= 1, "parallel.pp=1 has one stage" },
        { PLANT_LOST_LAYERS, pp <= 1, "parallel.pp=1 has one stage" },
        { PLANT_LOST_LAYERS, (int64_t)m->layers % stages == 0, "the stages divide the layers" },
        { PLANT_LOST_LAYERS, c->parallel.stages[0], "parallel.stages says where the layers are" },
        { PLANT_TIED_UNSUMMED, pp <= 1, "parallel.pp=1 has one stage" },
        { PLANT_TIED_UNSUMMED, !m->tied, "the model's embedding is not tied" },
        { PLANT_TIED_UNSUMMED, v, "parallel.schedule=zb-v has the first and the last stage on one rank" },
        { PLANT_TP_UNSUMMED, tp <= 1 || (!slices && (int64_t)m->kv_heads % tp == 0), alike },
        { PLANT_TP_TWICE, tp <= 1 || (!slices && (int64_t)m->kv_heads % tp == 0), alike },
        { PLANT_NO_PARTIAL, tp <= 1 || !slices, alike },
        { PLANT_NO_ENTER, tp <= 1 || c->parallel.sp, "it needs parallel.tp without parallel.sp" },
        { PLANT_NO_REDUCE, tp <= 1 || c->parallel.sp, "it needs parallel.tp without parallel.sp" },
        { PLANT_DOUBLE_REDUCE, tp <= 1, "with parallel.tp=1 nothing is reduced" },
        { PLANT_WRONG_GROUP, tp <= 1 || (dp <= 1 && cp <= 1), "there is no other group; use parallel.tp together with parallel.dp or parallel.cp" },
        { PLANT_MASK, m->dropout == 0, "model.dropout=0 has no masks" },
        { PLANT_MASK, cp <= 1 && !c->parallel.sp, "every rank has whole sequences; parallel.cp and parallel.sp shard them" },
        { PLANT_LOSS_TWICE, cp <= 1, "parallel.cp=1 has the whole loss" },
        { PLANT_LOSS_MEAN, cp <= 1, "parallel.cp=1 has the whole loss" },
        { PLANT_RING_DKV, cp <= 1 || c->parallel.context != LS_CONTEXT_RING, "no keys are passed around; use parallel.cp with parallel.context=ring" },
        { PLANT_AUX_DROPPED, m->aux_coef == 0 && m->z_coef == 0, "the model's routers have no loss" },
        { PLANT_AUX_TIMES_DP, m->aux_coef == 0 && m->z_coef == 0, "the model's routers have no loss" },
        { PLANT_AUX_TIMES_DP, dp <= 1, "parallel.dp=1 is the right factor" },
        { PLANT_MOMENTS, c->optim.name == LS_SGD && c->optim.momentum == 0, "optim.name=sgd with optim.momentum=0 has no moments" },
        { PLANT_REROUTE, m->experts == 0, "the model has no experts" },
        { PLANT_REROUTE, !is_made_again(c), "no router is recomputed; use recompute.mode=full" },
    };

    for (size_t i = 0; i < COUNT_OF(rules); i++)
        if ((int)rules[i].plant == c->debug.plant && rules[i].idle)
            return ls_fail(LS_EINVAL, "debug.plant does nothing here: %s", rules[i].because);
    return LS_OK;
}

struct config_fault config_fault(const struct config *c)
{
    struct config_fault f = { 0 };
    int64_t *number[] = { &f.step, &f.rank, &f.micro };
    const char *at = c->debug.non_finite;

    for (size_t i = 0; i < COUNT_OF(number); i++) {
        size_t length = strcspn(at, ":");
        char word[24] = "";

        if (length < sizeof word) memcpy(word, at, length);
        if (at[length] != ':' || !text_read_int(word, number[i])) return f;
        at += length + 1;
    }
    if (at[0]) f.name = at;
    return f;
}

static ls_status check_fault(const struct config *c)
{
    struct config_fault f = config_fault(c);

    if (!c->debug.non_finite[0]) return LS_OK;
    if (!f.name || f.step < 1 || f.rank < 0 || f.rank >= MAX(c->launch.ranks, 1) || f.micro < 0 || f.micro >= c->train.accumulate)
        return ls_fail(LS_EINVAL, "debug.non_finite=%s: expected STEP:RANK:MICRO:NAME with STEP from 1, RANK below launch.ranks=%" PRId64
                       ", MICRO below train.accumulate=%" PRId64, c->debug.non_finite, c->launch.ranks, c->train.accumulate);
    return LS_OK;
}

ls_status config_check_fault(const struct config *c)
{
    struct config_fault fault = config_fault(c);
    ls_model model = { 0 };
    struct plan_bytes bytes;
    ls_image_model image;

    if (!fault.name) return LS_OK;
    if (!config_image(c, &image)) LS_TRY(config_model(c, 0, &model));
    return plan_of_rank(c, &model, (int)fault.rank, &bytes);
}

ls_status config_check_plant(const struct config *c)
{
    ls_model model = { 0 };
    ls_image_model image;

    LS_TRY(check_fault(c));
    if (c->debug.plant == PLANT_NONE) return LS_OK;
    if (!config_image(c, &image)) LS_TRY(config_model(c, 0, &model));
    return check(c, &model);
}
