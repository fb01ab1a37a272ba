/* fault_rules.c - refuses a fault in layouts in which it has no effect, so that it is not taken for an undetected fault. */
#include "train/faults/fault_kinds.h"

#include <string.h>
#include "parallel/layout.h"
#include "train/task/task.h"

/* debug.fault */
static ls_status step_check(const struct config *c, const ls_model *m)
{
    int64_t dp = c->parallel.dp, cp = c->parallel.cp, tp = c->parallel.tp, pp = c->parallel.pp, ep = c->parallel.ep;
    int64_t stages = pp * c->parallel.vpp;
    const ls_optimizer_facts *optimizer = ls_optimizer_facts_of((ls_optimizer_kind)c->optim.name);
    bool alone = c->launch.ranks <= 1, shared = dp * cp > 1;
    bool norms_partial =
        c->parallel.sp || ls_architecture_family(m->architecture)->head_norms; /* norm weights are shared by the heads of all ranks */
    bool heads_divide = (int64_t)m->kv_heads % tp == 0, router_loss = m->aux_coef != 0 || m->z_coef != 0;
    bool recomputes = strcmp(c->recompute.mode, "none") != 0 && strcmp(c->recompute.mode, "selective") != 0;

    ls_layout layout;

    LS_TRY(config_layout(c, &layout));
    bool v_stages = layout_is_v(&layout);
    switch ((enum fault)c->debug.fault) {
#define IDLE(condition, because) \
    if (condition) return ls_fail(LS_EINVAL, "debug.fault does nothing here: %s", because);
#define RULES(id, name, what, after, arm, ...) \
    case FAULT_##id: __VA_ARGS__ break;
        FAULT_STEP_MAP(RULES)
#undef RULES
#undef IDLE
    default: break;
    }
    return LS_OK;
}

ls_status faults_check(const struct config *c, unsigned verb)
{
    struct task_model model;

    if (!(verb & (VERB_TRAIN | VERB_PARITY))) return LS_OK;
    LS_TRY(fault_value_check(c));
    LS_TRY(fault_slow_check(c));
    if (c->debug.fault == FAULT_NONE) return LS_OK;
    LS_TRY(task_model_of(c, 0, &model));
    return step_check(c, &model.transformer);
}
