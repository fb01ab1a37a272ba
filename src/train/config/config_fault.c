/* config_fault.c - checks that the fault of debug.fault or debug.non_finite applies to this run. */
#include "train/config/config.h"

#include <inttypes.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "train/faults/faults.h"
#include "train/plan/plan.h"

struct config_poison config_poison(const struct config *c)
{
    struct config_poison f = { 0 };
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

static ls_status check_poison(const struct config *c)
{
    struct config_poison f = config_poison(c);

    if (!c->debug.non_finite[0]) return LS_OK;
    if (!f.name || f.step < 1 || f.rank < 0 || f.rank >= MAX(c->launch.ranks, 1) || f.micro < 0 || f.micro >= c->train.accumulate)
        return ls_fail(LS_EINVAL,
                       "debug.non_finite=%s: expected STEP:RANK:MICRO:NAME with STEP from 1, RANK below launch.ranks=%" PRId64
                       ", MICRO below train.accumulate=%" PRId64,
                       c->debug.non_finite, c->launch.ranks, c->train.accumulate);
    return LS_OK;
}

ls_status config_check_poison(const struct config *c)
{
    struct config_poison fault = config_poison(c);
    struct task_model model;
    struct plan_bytes bytes;
    struct plan_job job;
    ls_layout layout;

    if (!fault.name) return LS_OK;
    LS_TRY(task_model_of(c, 0, &model));
    LS_TRY(plan_of_config(c, &model, &job, &layout));
    return plan_of_rank(&job, &layout, (int)fault.rank, &bytes);
}

ls_status config_check_faults(const struct config *c)
{
    struct task_model model;

    LS_TRY(check_poison(c));
    if (c->debug.fault == FAULT_NONE) return LS_OK;
    LS_TRY(task_model_of(c, 0, &model));
    return fault_check(c, &model.transformer);
}
