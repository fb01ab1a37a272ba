/* play.c - simulates a schedule without a model: when each action begins, and how much time is idle.
 *
 * Every rank runs its actions in the order of its list. An action begins when the previous one has ended and its dependencies are
 * available: FORWARD needs the stage before, BACKWARD its own forward and the stage after, WEIGHTS its backward. A message between two
 * ranks takes `message` seconds and occupies neither rank; within a rank (V: the two stages at its turn) there is no message. Sends do
 * not block.
 *
 * Closed forms, for equal stages with F = 1, B = 2 (B = W = 1 if split) per virtual stage, idle seconds on every rank:
 *     gpipe, 1f1b     3 (P-1)
 *     interleaved     3 (P-1), and for M < P (P-M) (v-1) more passes of 3
 *     zb-h1           P-1, and P-M more for M < P
 *     zb-v            P-1 from M = (3P-1)/2 on; 4 (P-1) - 2 (M-1) below
 *     forward         P-1, and for M < P (P-M) (v-1) more
 *     forward-v       2 (P-1): the last rank waits for the first micro-batch, the first rank for the last one to come back
 */
#include "parallel/pipeline/schedule.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

static const double NOT_YET = -1;

int schedule_recv_stage(const ls_pipeline_schedule *s, int rank, const ls_action *a)
{
    int stage = ls_pipeline_stage(s, rank, a->chunk), all = s->stages * s->chunks;

    if (a->kind == LS_ACTION_FORWARD) return stage - 1;
    return a->kind == LS_ACTION_BACKWARD && stage + 1 < all ? stage + 1 : -1;
}

int schedule_send_stage(const ls_pipeline_schedule *s, int rank, const ls_action *a)
{
    int stage = ls_pipeline_stage(s, rank, a->chunk), all = s->stages * s->chunks;

    if (a->kind == LS_ACTION_BACKWARD) return stage - 1;
    return a->kind == LS_ACTION_FORWARD && stage + 1 < all ? stage + 1 : -1;
}

double action_seconds(const ls_pipeline_schedule *s, const ls_pipeline_times *t, int rank, const ls_action *a)
{
    int stage = ls_pipeline_stage(s, rank, a->chunk);

    if (t && t->last[0] && a->micro == s->micro - 1) return t->last[a->kind][stage];
    switch (a->kind) {
    case LS_ACTION_FORWARD: return t ? t->forward[stage] : 1;
    case LS_ACTION_BACKWARD: return t ? t->backward[stage] : s->split ? 1 : 2;
    case LS_ACTION_WEIGHTS: return t ? t->weights[stage] : 1;
    }
    return 0;
}

/* ---- the simulation ---- */

/* end[kind][stage][micro], in one array */
static double *end_of(double *end, const ls_pipeline_schedule *s, ls_action_kind kind, int stage, int micro)
{
    return &end[((size_t)kind * (size_t)(s->stages * s->chunks) + (size_t)stage) * (size_t)s->micro + (size_t)micro];
}

/* The time at which a's dependencies are available; NOT_YET. */
static double ready(const ls_pipeline_schedule *s, double message, double *end, int rank, const ls_action *a)
{
    int own = ls_pipeline_stage(s, rank, a->chunk), from = schedule_recv_stage(s, rank, a);
    double before = 0, received = 0;

    if (a->kind != LS_ACTION_FORWARD) before = *end_of(end, s, a->kind - 1, own, a->micro);
    if (from >= 0) received = *end_of(end, s, a->kind, from, a->micro);
    if (before == NOT_YET || received == NOT_YET) return NOT_YET;
    if (from >= 0 && ls_pipeline_rank(s, from, NULL) != rank) received += message;
    return MAX(before, received);
}

struct play_walk {
    const ls_pipeline_schedule *s;
    const ls_pipeline_times *t;
    double *end, *free_at, **begin;
    int *at;
};

/* Advances a rank as far as possible; returns whether it advanced. */
static bool rank_walk(struct play_walk *w, int rank)
{
    const ls_pipeline_schedule *s = w->s;
    bool moved = false;

    for (; w->at[rank] < s->count[rank]; w->at[rank]++) {
        const ls_action *a = &s->list[rank][w->at[rank]];
        double when = ready(s, w->t ? w->t->message : 0, w->end, rank, a);

        if (when == NOT_YET) return moved;
        when = MAX(when, w->free_at[rank]);
        if (w->begin) w->begin[rank][w->at[rank]] = when;
        w->free_at[rank] = when + action_seconds(s, w->t, rank, a);
        *end_of(w->end, s, a->kind, ls_pipeline_stage(s, rank, a->chunk), a->micro) = w->free_at[rank];
        moved = true;
    }
    return moved;
}

ls_status schedule_walk(const ls_pipeline_schedule *s, const ls_pipeline_times *t, double **begin, double *seconds, int *at)
{
    size_t cells = 3 * (size_t)(s->stages * s->chunks) * (size_t)s->micro;
    struct play_walk w = { s,     t, mem_array(MEM_OTHER, cells, sizeof *w.end), mem_array(MEM_OTHER, (size_t)s->stages, sizeof *w.free_at),
                           begin, at };
    ls_status st = w.end && w.free_at ? LS_OK : LS_ENOMEM;
    double last = 0;

    if (st < 0) goto free_walk;
    for (size_t i = 0; i < cells; i++) w.end[i] = NOT_YET;
    memset(at, 0, (size_t)s->stages * sizeof *at);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->stages; r++) moved |= rank_walk(&w, r);
    }
    for (int r = 0; r < s->stages; r++) last = MAX(last, w.free_at[r]);
    if (seconds) *seconds = last;
free_walk:
    mem_free(w.free_at);
    mem_free(w.end);
    return st;
}

/* ---- results ---- */

void ls_pipeline_played_free(const ls_pipeline_schedule *s, ls_pipeline_timeline *p)
{
    for (int r = 0; p->begin && r < s->stages; r++) mem_free(p->begin[r]);
    mem_free(p->begin);
    *p = (ls_pipeline_timeline){ 0 };
}

static ls_status begins_new(const ls_pipeline_schedule *s, ls_pipeline_timeline *p)
{
    if (!(p->begin = mem_array(MEM_OTHER, (size_t)s->stages, sizeof *p->begin))) return LS_ENOMEM;
    for (int r = 0; r < s->stages; r++)
        if (!(p->begin[r] = mem_array(MEM_OTHER, (size_t)s->count[r], sizeof *p->begin[r]))) return LS_ENOMEM;
    return LS_OK;
}

static ls_status times_check(const ls_pipeline_schedule *s, const ls_pipeline_times *t)
{
    const double *of[6] = { t->forward, t->backward, t->weights, t->last[0], t->last[1], t->last[2] };
    int kinds = 1 + s->backward + s->split;

    for (int i = 0; i < (t->last[0] ? 2 : 1) * kinds; i++) {
        const double *seconds = of[i < kinds ? i : i - kinds + 3];

        for (int stage = 0; stage < s->stages * s->chunks; stage++)
            if (!seconds || !(seconds[stage] >= 0) || isinf(seconds[stage]))
                return ls_fail(LS_EINVAL, "schedule %s: the seconds of %c on stage %d must be a finite number >= 0", s->name,
                               schedule_letter((ls_action_kind)(i % kinds)), stage);
    }
    if (!(t->message >= 0) || isinf(t->message))
        return ls_fail(LS_EINVAL, "schedule %s: a message takes %g seconds; it must be a finite number >= 0", s->name, t->message);
    return LS_OK;
}

ls_status ls_pipeline_play(const ls_pipeline_schedule *s, const ls_pipeline_times *t, ls_pipeline_timeline *out)
{
    ls_pipeline_timeline p = { 0 };
    double idle = 0;
    int *at;

    LS_TRY(ls_pipeline_schedule_check(s));
    if (t) LS_TRY(times_check(s, t));
    if (!(at = mem_array(MEM_OTHER, (size_t)s->stages, sizeof *at))) return LS_ENOMEM;
    ls_status st = begins_new(s, &p);
    if (st >= 0) st = schedule_walk(s, t, p.begin, &p.seconds, at);
    mem_free(at);
    if (st < 0) {
        ls_pipeline_played_free(s, &p);
        return st;
    }
    for (int r = 0; r < s->stages; r++) {
        double busy = 0;

        for (int i = 0; i < s->count[r]; i++) busy += action_seconds(s, t, r, &s->list[r][i]);
        idle += p.seconds - busy;
    }
    p.bubble = p.seconds > 0 ? MAX(0, idle / (p.seconds * s->stages)) : 0;
    *out = p;
    return LS_OK;
}

int schedule_messages(const ls_pipeline_schedule *s, int rank)
{
    int messages = 0;

    for (int i = 0; i < s->count[rank]; i++) {
        int to = schedule_send_stage(s, rank, &s->list[rank][i]);

        messages += to >= 0 && ls_pipeline_rank(s, to, NULL) != rank;
    }
    return messages;
}

double ls_pipeline_bubble(const ls_pipeline_schedule *s)
{
    double idle = schedule_idle(s), work = (s->backward ? 3 : 1) * s->chunks * s->micro;

    return idle / (work + idle);
}
