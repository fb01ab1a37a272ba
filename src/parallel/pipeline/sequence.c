/* sequence.c - see sequence.h. */
#include "parallel/pipeline/sequence.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "parallel/pipeline/schedule.h"

/* A sequence while it is made. */
struct sequencer {
    const ls_pipeline_schedule *s;
    struct sequence *out;
    int32_t *place; /* [kind][stage][micro] index in the sequence; -1: not in it yet */
    int *at;        /* [ranks] how many of a rank's actions are in the sequence */
};

static int32_t *place_of_action(const struct sequencer *q, int kind, int stage, int micro)
{
    const ls_pipeline_schedule *s = q->s;

    return &q->place[((size_t)kind * (size_t)(s->stages * s->chunks) + (size_t)stage) * (size_t)s->micro + (size_t)micro];
}

/* Appends a rank's next action. False if what it needs is not there yet. */
static bool sequence_append(struct sequencer *q, int rank)
{
    const ls_pipeline_schedule *s = q->s;
    const ls_action *a = &s->list[rank][q->at[rank]];
    int stage = ls_pipeline_stage(s, rank, a->chunk), from = schedule_recv_stage(s, rank, a);
    struct sequence_action x = {
        .rank = rank, .own = -1, .sent = -1, .cost = a->kind * s->stages * s->chunks + stage, .last = a->micro == s->micro - 1
    };

    if (a->kind != LS_ACTION_FORWARD && (x.own = *place_of_action(q, a->kind - 1, stage, a->micro)) < 0) return false;
    if (from >= 0 && (x.sent = *place_of_action(q, a->kind, from, a->micro)) < 0) return false;
    x.crosses = from >= 0 && ls_pipeline_rank(s, from, NULL) != rank;
    *place_of_action(q, a->kind, stage, a->micro) = q->out->n;
    q->out->action[q->out->n++] = x;
    q->at[rank]++;
    return true;
}

static void sequence_fill(struct sequencer *q)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < q->s->stages; r++)
            while (q->at[r] < q->s->count[r] && sequence_append(q, r)) moved = true;
    }
}

ls_status sequence_make(const ls_pipeline_schedule *s, struct sequence *out)
{
    size_t cells = 3 * (size_t)(s->stages * s->chunks) * (size_t)s->micro, all = 0;
    struct sequencer q = { s, out, mem_array(MEM_OTHER, cells, sizeof *q.place), mem_array(MEM_OTHER, (size_t)s->stages, sizeof *q.at) };

    for (int r = 0; r < s->stages; r++) all += (size_t)s->count[r];
    *out = (struct sequence){ .ranks = s->stages };
    out->action = mem_array(MEM_OTHER, all, sizeof *out->action);
    out->end = mem_array(MEM_OTHER, all + (size_t)s->stages, sizeof *out->end);
    ls_status st = q.place && q.at && out->action && out->end ? LS_OK : LS_ENOMEM;
    if (st == LS_OK) {
        memset(q.place, 0xff, cells * sizeof *q.place);
        sequence_fill(&q);
        ASSERT((size_t)out->n == all); /* no schedule that was made deadlocks */
    } else {
        sequence_free(out);
    }
    mem_free(q.place);
    mem_free(q.at);
    return st;
}

void sequence_free(struct sequence *s)
{
    mem_free(s->action);
    mem_free(s->end);
    *s = (struct sequence){ 0 };
}

double sequence_play(struct sequence *s, const double *const times[2], double message)
{
    double *idle_from = s->end + s->n, last = 0;

    for (int r = 0; r < s->ranks; r++) idle_from[r] = 0;
    for (int i = 0; i < s->n; i++) {
        const struct sequence_action *a = &s->action[i];
        double when = idle_from[a->rank];

        if (a->own >= 0) when = MAX(when, s->end[a->own]);
        if (a->sent >= 0) when = MAX(when, s->end[a->sent] + (a->crosses ? message : 0));
        s->end[i] = idle_from[a->rank] = when + times[a->last][a->cost];
    }
    for (int r = 0; r < s->ranks; r++) last = MAX(last, idle_from[r]);
    return last;
}
