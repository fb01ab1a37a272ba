/* train_state.c - checks and compares training states. */
#include "checkpoint/train_state.h"

#include <float.h>
#include <string.h>
#include "base/base.h"

ls_status train_state_check(const ls_train_state *s)
{
    const struct {
        const char *name;
        uint64_t value;
    } number[] = {
        { "step", s->step },
        { "samples", s->samples },
        { "tokens", s->tokens },
        { "schedule_steps", s->schedule_steps },
        { "budget_steps", s->budget_steps },
    };
    const struct {
        const char *name, *text;
        size_t room;
    } text[] = {
        { "optimizer", s->optimizer, sizeof s->optimizer },
        { "data", s->data, sizeof s->data },
        { "compute", s->compute, sizeof s->compute },
        { "library", s->library, sizeof s->library },
        { "isa", s->isa, sizeof s->isa },
    };

    for (size_t i = 0; i < COUNT_OF(number); i++)
        if (number[i].value > INT64_MAX)
            return ls_fail(LS_EINVAL, "training state: %s is %llu; at most 2^63 - 1", number[i].name, (unsigned long long)number[i].value);
    for (size_t i = 0; i < COUNT_OF(text); i++)
        if (!memchr(text[i].text, '\0', text[i].room))
            return ls_fail(LS_EINVAL, "training state: %s has no NUL in its %zu bytes", text[i].name, text[i].room);
    if (!(s->budget_seconds >= 0 && s->budget_seconds <= DBL_MAX))
        return ls_fail(LS_EINVAL, "training state: budget_seconds is %g; expected a finite number >= 0", s->budget_seconds);
    if (!(s->grad_norm >= 0 && s->grad_norm <= DBL_MAX))
        return ls_fail(LS_EINVAL, "training state: grad_norm is %g; expected a finite number >= 0", s->grad_norm);
    if (s->threads < 0) return ls_fail(LS_EINVAL, "training state: threads is %d; must be at least 0", s->threads);
    return LS_OK;
}

ls_status ls_train_state_same_bits(const ls_train_state *saved, const ls_train_state *now)
{
    const struct {
        const char *name, *saved, *now;
    } text[] = {
        { "data", saved->data, now->data },
        { "compute", saved->compute, now->compute },
        { "optimizer", saved->optimizer, now->optimizer },
        { "library", saved->library, now->library },
        { "isa", saved->isa, now->isa },
    };

    if (saved->seed != now->seed)
        return ls_fail(LS_EINVAL, "the bits will differ: seed was %llu, is %llu", (unsigned long long)saved->seed,
                       (unsigned long long)now->seed);
    for (size_t i = 0; i < COUNT_OF(text); i++)
        if (strcmp(text[i].saved, text[i].now) != 0)
            return ls_fail(LS_EINVAL, "the bits will differ: %s was '%s', is '%s'", text[i].name, text[i].saved, text[i].now);
    if (saved->schedule_steps != now->schedule_steps)
        return ls_fail(LS_EINVAL, "the bits will differ: schedule_steps was %llu, is %llu", (unsigned long long)saved->schedule_steps,
                       (unsigned long long)now->schedule_steps);
    if (saved->threads != now->threads)
        return ls_fail(LS_EINVAL, "the bits will differ: threads were %d, are %d", saved->threads, now->threads);
    return LS_OK;
}
