/* search_space.c - what a search can take as its base, and how it says that nothing fits. */
#include "train/plan/search.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"

ls_layout search_alone(const ls_layout *base)
{
    ls_layout one = *base;

    one.pp = one.vpp = one.dp = one.cp = one.tp = one.ep = one.replicate = one.micro_batch = one.micro_batches = 1;
    one.zero = one.sp = 0;
    one.offload = one.offload_parameters = LS_OFFLOAD_NONE;
    one.schedule = one.stages = NULL;
    return one;
}

ls_status search_check_base(const ls_model *m, const ls_layout *base)
{
    ls_layout one = search_alone(base);

    if (base->fsdp_unit == 0)
        return ls_fail(LS_EINVAL, "parallel.fsdp_unit=model with a search: layers are priced one by one; leave it out");
    if (base->fsdp_unit > 1)
        return ls_fail(LS_EINVAL, "parallel.fsdp_unit=layers:%d with a search: layers are priced one by one; leave it out",
                       base->fsdp_unit);
    if (base->in_backward)
        return ls_fail(LS_EINVAL, "optim.in_backward with a search: updates in backward cannot be priced from patterns; leave it out, and "
                                  "plan the resulting layout with it");
    if (base->prefetch > 1)
        return ls_fail(LS_EINVAL, "parallel.prefetch=%d with a search: at most one unit ahead can be priced; leave it out", base->prefetch);
    if (base->stages && *base->stages)
        return ls_fail(LS_EINVAL, "parallel.stages with a search: the stages of every layout are balanced; leave it out");
    if (base->schedule && strncmp(base->schedule, "file:", 5) == 0)
        return ls_fail(LS_EINVAL, "parallel.schedule=%s with a search: a file is for one layout; leave it out", base->schedule);
    return ls_layout_check(m, &one);
}

static const char *recompute_text(const ls_layout *l, char out[32])
{
    static const char *const names[] = { "none", "selective", "full" };

    if (l->recompute <= LS_RECOMPUTE_FULL) return names[l->recompute];
    snprintf(out, 32, "%s", l->recompute == LS_RECOMPUTE_BUDGET ? "to a budget" : "of some layers");
    return out;
}

const char *search_layout_text(const ls_layout *l, char out[SEARCH_TEXT])
{
    char axes[LS_LAYOUT_TEXT], recompute[32];

    snprintf(out, SEARCH_TEXT, "%s, micro-batch %d x %d, recomputation %s", ls_layout_text(l, axes, sizeof axes), l->micro_batch,
             l->micro_batches, recompute_text(l, recompute));
    return out;
}

ls_status search_nothing_fits(const struct search_space *s, const struct search_result *r)
{
    char least[16], room[16], text[SEARCH_TEXT];

    return ls_fail(LS_ENOMEM,
                   "no layout of %d ranks fits into the %s that a rank has; the least is %s, with %s: use more ranks, or a machine with "
                   "more memory",
                   s->ranks, text_bytes(room, (size_t)s->room), text_bytes(least, (size_t)r->least),
                   search_layout_text(&r->least_layout, text));
}
