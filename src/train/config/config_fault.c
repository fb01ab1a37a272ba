/* config_fault.c - checks that the fault of debug.fault, debug.slow or debug.non_finite applies to this run. */
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

/* ---- debug.slow ---- */

static const char *const slow_names[] = {
    [SLOW_COMPUTE] = "compute", [SLOW_LINK] = "link", [SLOW_DISK] = "disk", [SLOW_LOADER] = "loader"
};

/* The text up to the next ':' or the end, into word; the rest, or NULL at the end. */
static const char *slow_word(const char *at, char word[24])
{
    size_t length = strcspn(at, ":");

    word[0] = '\0';
    if (length < 24) memcpy(word, at, length), word[length] = '\0';
    return at[length] ? at + length + 1 : NULL;
}

struct config_slow config_slow(const struct config *c)
{
    struct config_slow s = { .rank = -1 }, none = { 0 };
    double milliseconds, megabytes = 0;
    const char *at = c->debug.slow;
    char word[24];

    at = slow_word(at, word);
    for (int k = SLOW_COMPUTE; k <= SLOW_LOADER; k++)
        if (strcmp(word, slow_names[k]) == 0) s.part = (enum config_slow_part)k;
    if (!at || s.part == SLOW_NONE) return none;
    at = slow_word(at, word);
    if (!at || (strcmp(word, "all") != 0 && (!text_read_int(word, &s.rank) || s.rank < 0))) return none;
    at = slow_word(at, word);
    if (!text_read_real(word, &milliseconds) || milliseconds < 0) return none;
    if (at && s.part == SLOW_LINK) {
        at = slow_word(at, word);
        if (!text_read_real(word, &megabytes) || megabytes <= 0) return none;
    }
    s.seconds = milliseconds / 1e3;
    s.bandwidth = megabytes * 1e6;
    return at || (s.seconds == 0 && s.bandwidth == 0) ? none : s;
}

bool config_is_slow(const struct config_slow *s, enum config_slow_part part, int rank)
{
    return s->part == part && (s->rank < 0 || s->rank == rank);
}

static ls_status slow_does_nothing(const struct config *c, const char *because)
{
    return ls_fail(LS_EINVAL, "debug.slow=%s does nothing here: %s", c->debug.slow, because);
}

static ls_status check_slow(const struct config *c)
{
    struct config_slow s = config_slow(c);
    bool apart = c->parallel.dp > 1 && s.rank >= 0; /* ranks do different things */
    struct task_model model;

    if (!c->debug.slow[0]) return LS_OK;
    if (s.part == SLOW_NONE || s.rank >= MAX(c->launch.ranks, 1) || s.seconds > 60)
        return ls_fail(
            LS_EINVAL,
            "debug.slow=%s: expected compute:RANK:MS, link:RANK:MS[:MB_PER_SECOND], disk:RANK:MS or loader:RANK:MS with RANK below "
            "launch.ranks=%" PRId64 " or all, and MS above 0, at most 60000",
            c->debug.slow, MAX(c->launch.ranks, 1));
    if (s.part == SLOW_LINK && c->launch.ranks <= 1) return slow_does_nothing(c, "a single rank does not communicate");
    if (s.part == SLOW_LINK && strcmp(config_device(c), "cuda") == 0)
        return slow_does_nothing(c, "it delays calls of the host; use run.device=cpu");
    if (s.part == SLOW_COMPUTE && apart && c->parallel.method == LS_METHOD_ASYNC && s.rank == 0)
        return slow_does_nothing(c, "with parallel.method=async rank 0 computes no gradients");
    if (s.part == SLOW_DISK && s.rank > 0 && c->parallel.dp * c->parallel.cp > 1 && (c->parallel.zero == 0 || c->parallel.replicate > 1))
        return slow_does_nothing(c, "one of the replicas writes checkpoints; use disk:all:MS");
    if (s.part != SLOW_LOADER) return LS_OK;
    if (apart && c->parallel.method == LS_METHOD_ASYNC && s.rank == 0)
        return slow_does_nothing(c, "with parallel.method=async rank 0 reads no samples");
    if (apart && c->parallel.method == LS_METHOD_DATAPARALLEL && s.rank > 0)
        return slow_does_nothing(c, "with parallel.method=dataparallel rank 0 reads all samples");
    LS_TRY(task_model_of(c, 0, &model));
    return model.task->drawn ? slow_does_nothing(c, "drawn pictures need no loader") : LS_OK;
}

/* ---- debug.non_finite ---- */

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
    LS_TRY(check_slow(c));
    if (c->debug.fault == FAULT_NONE) return LS_OK;
    LS_TRY(task_model_of(c, 0, &model));
    return fault_check(c, &model.transformer);
}
