/* schedule_check.c - checks that lists of actions form a schedule, in this order:
 *   1. sizes, kinds and numbers are in range; a V has two chunks
 *   2. on every rank each micro-batch of each chunk runs once forward, then (if the schedule has them) backward, then weights
 *   3. messages of one kind (activations, gradients) between two ranks are received in the order in which they are sent
 *   4. simulated with sends that do not block, every rank completes its list
 */
#include "parallel/pipeline/schedule.h"

#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"

static ls_status bad(const ls_pipeline_schedule *s, int rank, int i, const char *what)
{
    const ls_action *a = &s->list[rank][i];

    return ls_fail(LS_EINVAL, "schedule %s: rank %d, action %d (%c%d.%d): %s", s->name, rank, i, schedule_letter(a->kind), a->chunk,
                   a->micro, what);
}

/* ---- 1 and 2: every rank by itself ---- */

static ls_status sizes(const ls_pipeline_schedule *s)
{
    if (s->stages < 1 || s->chunks < 1 || s->micro < 1 || !s->count || !s->list)
        return ls_fail(LS_EINVAL, "schedule %s: %d stages, %d chunks, %d micro-batches; use at least 1 of each", s->name, s->stages,
                       s->chunks, s->micro);
    if ((int64_t)s->stages * s->chunks > SCHEDULE_MOST || (int64_t)s->stages * s->chunks * s->micro > SCHEDULE_MOST / 3)
        return ls_fail(LS_EINVAL, "schedule %s: %d stages x %d chunks x %d micro-batches are too many: at most %d in all", s->name,
                       s->stages, s->chunks, s->micro, SCHEDULE_MOST / 3);
    if (s->order == LS_STAGES_V && s->chunks != 2)
        return ls_fail(LS_EINVAL, "schedule %s: a V needs 2 chunks per rank, not %d", s->name, s->chunks);
    if (s->split && !s->backward) return ls_fail(LS_EINVAL, "schedule %s: it has weight actions but no backward actions", s->name);
    return LS_OK;
}

static ls_status in_range(const ls_pipeline_schedule *s, int rank, int i)
{
    const ls_action *a = &s->list[rank][i];

    if ((unsigned)a->kind > LS_ACTION_WEIGHTS)
        return ls_fail(LS_EINVAL, "schedule %s: rank %d, action %d: %d is not a kind of action", s->name, rank, i, (int)a->kind);
    if (a->chunk < 0 || a->chunk >= s->chunks)
        return ls_fail(LS_EINVAL, "schedule %s: rank %d, action %d (%c%d.%d): chunk %d of %d", s->name, rank, i, schedule_letter(a->kind),
                       a->chunk, a->micro, a->chunk, s->chunks);
    if (a->micro < 0 || a->micro >= s->micro)
        return ls_fail(LS_EINVAL, "schedule %s: rank %d, action %d (%c%d.%d): micro-batch %d of %d", s->name, rank, i,
                       schedule_letter(a->kind), a->chunk, a->micro, a->micro, s->micro);
    if (a->kind == LS_ACTION_BACKWARD && !s->backward) return bad(s, rank, i, "a forward-only schedule has no backward");
    if (a->kind == LS_ACTION_WEIGHTS && !s->split) return bad(s, rank, i, "this schedule does not split the backward");
    return LS_OK;
}

/* taken[chunk][micro]: how many of F, B, W are done. */
static ls_status rank_check(const ls_pipeline_schedule *s, int rank, unsigned char *taken)
{
    int kinds = 1 + s->backward + s->split, cells = s->chunks * s->micro;

    for (int i = 0; i < cells; i++) taken[i] = 0;
    for (int i = 0; i < s->count[rank]; i++) {
        const ls_action *a = &s->list[rank][i];

        LS_TRY(in_range(s, rank, i));
        unsigned char *have = &taken[a->chunk * s->micro + a->micro];
        if (*have > a->kind) return bad(s, rank, i, "it has run before");
        if (*have < a->kind) return bad(s, rank, i, *have ? "its backward has not run yet" : "its forward has not run yet");
        ++*have;
    }
    for (int i = 0; i < cells; i++)
        if (taken[i] < kinds)
            return ls_fail(LS_EINVAL, "schedule %s: rank %d never runs %c%d.%d", s->name, rank, schedule_letter((ls_action_kind)taken[i]),
                           i / s->micro, i % s->micro);
    return LS_OK;
}

/* ---- 3: pairs of ranks ---- */

/* The next action of `rank` from *i on that sends to (or receives from) `other` messages of a kind; NULL: none. */
static const ls_action *next_of(const ls_pipeline_schedule *s, int rank, bool sends, int other, ls_action_kind kind, int *i)
{
    for (; *i < s->count[rank]; ++*i) {
        const ls_action *a = &s->list[rank][*i];
        int stage = sends ? schedule_send_stage(s, rank, a) : schedule_recv_stage(s, rank, a);

        if (a->kind == kind && stage >= 0 && ls_pipeline_rank(s, stage, NULL) == other) {
            ++*i;
            return a;
        }
    }
    return NULL;
}

/* Each rank runs each action once, so there are as many sends as receives. */
static ls_status pair_check(const ls_pipeline_schedule *s, int from, int to, ls_action_kind kind)
{
    const ls_action *x, *y;
    int i = 0, k = 0;

    while ((x = next_of(s, from, true, to, kind, &i)) && (y = next_of(s, to, false, from, kind, &k))) {
        int chunk, stage = schedule_send_stage(s, from, x);

        ls_pipeline_rank(s, stage, &chunk);
        if (y->chunk == chunk && y->micro == x->micro) continue;
        return ls_fail(
            LS_EINVAL,
            "schedule %s: rank %d, action %d (%c%d.%d) receives out of order: rank %d sends the message for %c%d.%d first (its action %d)",
            s->name, to, k - 1, schedule_letter(kind), y->chunk, y->micro, from, schedule_letter(kind), chunk, x->micro, i - 1);
    }
    return LS_OK;
}

/* Adjacent stages are on adjacent ranks, or on the last and the first. */
static ls_status pairs_check(const ls_pipeline_schedule *s)
{
    for (int stage = 0; stage + 1 < s->stages * s->chunks; stage++) {
        int a = ls_pipeline_rank(s, stage, NULL), b = ls_pipeline_rank(s, stage + 1, NULL);

        if (a == b || stage >= 2 * s->stages) continue; /* the pairs repeat */
        LS_TRY(pair_check(s, a, b, LS_ACTION_FORWARD));
        LS_TRY(pair_check(s, b, a, LS_ACTION_BACKWARD));
    }
    return LS_OK;
}

/* ---- 4: all together ---- */

static void put_waiting(struct text *t, const ls_pipeline_schedule *s, int rank, int i)
{
    const ls_action *a = &s->list[rank][i];
    int from = schedule_recv_stage(s, rank, a);

    text_put(t, "%srank %d at its action %d (%c%d.%d)", t->bytes ? ", " : "", rank, i, schedule_letter(a->kind), a->chunk, a->micro);
    if (from >= 0) text_put(t, " for rank %d", ls_pipeline_rank(s, from, NULL));
}

static ls_status ends_check(const ls_pipeline_schedule *s)
{
    struct text t = { 0 };
    int *at = mem_array(MEM_OTHER, (size_t)s->stages, sizeof *at), listed = 0;
    ls_status st = at ? schedule_walk(s, NULL, NULL, NULL, at) : LS_ENOMEM;

    if (st < 0) goto free_at;
    for (int r = 0; r < s->stages; r++)
        if (at[r] < s->count[r] && listed++ < 4) put_waiting(&t, s, r, at[r]);
    if (listed)
        st = ls_fail(LS_EINVAL, "schedule %s: deadlock: %d of %d ranks wait forever: %s%s", s->name, listed, s->stages,
                     t.data ? t.data : "", listed > 4 ? ", .." : "");
free_at:
    text_free(&t);
    mem_free(at);
    return st;
}

ls_status ls_pipeline_schedule_check(const ls_pipeline_schedule *s)
{
    ls_status st = LS_OK;

    LS_TRY(sizes(s));
    unsigned char *taken = mem_array(MEM_OTHER, (size_t)s->chunks * (size_t)s->micro, 1);
    if (!taken) return LS_ENOMEM;
    for (int r = 0; r < s->stages && st >= 0; r++) st = rank_check(s, r, taken);
    mem_free(taken);
    LS_TRY(st);
    LS_TRY(pairs_check(s));
    return ends_check(s);
}
