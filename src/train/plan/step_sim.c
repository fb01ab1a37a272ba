/* step_sim.c - see step_sim.h.
 *
 * A tape is divided into activities: consecutive kernels are one. All classes of a stage play an activity together; a stage is played until
 * it needs a message, or a collective with other stages, that has not started yet, and then the next stage has its turn.
 */
#include "train/plan/step_sim_parts.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "base/rng.h"

/* ---- actions ---- */

/* Actions of a stage; the last is the optimizer. */
static int actions_of(const struct step_sim *s, int stage) { return (s->stages > 1 ? s->schedule.count[stage] : 2 * s->micros) + 1; }

static struct acting acting_at(const struct step_sim *s, int stage, int i)
{
    if (i == actions_of(s, stage) - 1) return (struct acting){ 3, 0, 0 };
    if (s->stages == 1) return (struct acting){ i % 2 ? LS_ACTION_BACKWARD : LS_ACTION_FORWARD, 0, i / 2 };
    const ls_action *a = &s->schedule.list[stage][i];
    return (struct acting){ (int)a->kind, a->chunk, a->micro };
}

/* The n-th list of activities of an action; false past the last. */
static bool list_of(const struct step_sim *s, int stage, const struct acting *a, int n, struct sim_program **program, enum segment *segment)
{
    struct player *p = &s->stage[stage];
    bool split = s->stages > 1 && s->schedule.split;

    *program = &p->program[a->kind == 3 ? MIN(n, p->programs - 1) : a->chunk];
    switch (a->kind) {
    case LS_ACTION_FORWARD: *segment = SEG_FORWARD; return n < 1;
    case LS_ACTION_BACKWARD: *segment = n ? SEG_WEIGHTS : SEG_BACKWARD; return n < (split ? 1 : 2);
    case LS_ACTION_WEIGHTS: *segment = SEG_WEIGHTS; return n < 1;
    default: *segment = SEG_OPTIMIZER; return n < p->programs;
    }
}

/* ---- messages between stages ---- */

static double **message_of(const struct step_sim *s, int kind, int stage, int micro)
{
    size_t all = (size_t)(s->stages * s->chunks);

    return &s->message_at[((size_t)kind * all + (size_t)stage) * (size_t)s->micros + (size_t)micro];
}

/* The rank that the virtual stage before (forward) or after (backward) is on; -1 at the pipeline's ends, and if it is this rank. */
static int sender_of(const struct step_sim *s, int stage, const struct acting *a, int *virtual)
{
    if (s->stages == 1 || a->kind > LS_ACTION_BACKWARD) return -1;
    int own = ls_pipeline_stage(&s->schedule, stage, a->chunk);
    *virtual = a->kind == LS_ACTION_FORWARD ? own - 1 : own + 1;
    if (*virtual < 0 || *virtual == s->stages * s->chunks) return -1;
    int from = ls_pipeline_rank(&s->schedule, *virtual, NULL);
    return from == stage ? -1 : from;
}

/* False: the message has not been sent. */
static bool receive(struct step_sim *s, int stage, const struct acting *a)
{
    const struct sim_ranks *r = &s->ranks;
    const struct sim_stage *ranks = &r->stage[stage];
    struct player *p = &s->stage[stage];
    int virtual, from = sender_of(s, stage, a, &virtual);

    if (from < 0) return true;
    double **sent = message_of(s, a->kind, virtual, a->micro);
    if (!*sent) return false;
    for (int c = 0; c < ranks->classes; c++) {
        double there = (*sent)[r->class_of[from * r->per_stage + ranks->rank[c] % r->per_stage]] + s->message;

        s->top[c] = p->now[c];
        p->now[c] = MAX(p->now[c], there);
    }
    if (s->watch) sim_watch(s, stage, a, &(struct sim_event){ .kind = SIM_MESSAGE }, s->top, p->now);
    mem_free(*sent);
    *sent = NULL;
    return true;
}

static ls_status send(struct step_sim *s, int stage, const struct acting *a)
{
    size_t n = (size_t)s->ranks.stage[stage].classes;

    if (s->stages == 1 || a->kind > LS_ACTION_BACKWARD) return LS_OK;
    int own = ls_pipeline_stage(&s->schedule, stage, a->chunk);
    int to = a->kind == LS_ACTION_FORWARD ? own + 1 : own - 1;
    if (to < 0 || to == s->stages * s->chunks || ls_pipeline_rank(&s->schedule, to, NULL) == stage) return LS_OK;
    double **at = message_of(s, a->kind, own, a->micro);
    if (!(*at = mem_array(MEM_OTHER, n, sizeof **at))) return LS_ENOMEM;
    memcpy(*at, s->stage[stage].now, n * sizeof **at);
    return LS_OK;
}

/* ---- a stage's turn ---- */

/* Runs the activities of an action; *done false: it waits for another stage. */
static ls_status action_run(struct step_sim *s, int stage, const struct acting *a, bool *done)
{
    struct player *p = &s->stage[stage];
    bool last = a->kind == 3 || a->micro == s->micros - 1;
    struct sim_program *program;
    enum segment segment;

    for (; list_of(s, stage, a, p->segment, &program, &segment); p->segment++, p->at = 0) {
        int begin = program->begin[last][segment], end = program->begin[last][segment + 1];

        for (; begin + p->at < end; p->at++) {
            LS_TRY(activity_run(s, stage, program, a, &program->activity[begin + p->at], done));
            if (!*done) return LS_OK;
        }
    }
    p->segment = 0;
    *done = true;
    return LS_OK;
}

static ls_status stage_run(struct step_sim *s, int stage, bool *moved)
{
    struct player *p = &s->stage[stage];

    for (; p->action < actions_of(s, stage); p->action++, p->begun = false) {
        struct acting a = acting_at(s, stage, p->action);
        bool done;

        if (!p->begun && !receive(s, stage, &a)) return LS_OK;
        p->begun = true;
        LS_TRY(action_run(s, stage, &a, &done));
        if (!done) return LS_OK;
        LS_TRY(send(s, stage, &a));
        *moved = true;
    }
    return LS_OK;
}

static void player_begin(struct step_sim *s, int stage)
{
    struct player *p = &s->stage[stage];
    size_t n = (size_t)s->ranks.stage[stage].classes * sizeof(double);

    p->action = p->segment = p->at = 0;
    p->begun = false;
    p->drawn = 0;
    memset(p->now, 0, n);
    memset(p->kernels, 0, n);
    memset(p->exposed, 0, n);
    for (int g = 0; g < TAPE_QUEUES; g++)
        for (int k = 0; k < 2; k++)
            if (p->idle_from[g][k]) memset(p->idle_from[g][k], 0, n);
    for (int k = 0; k < CROSSES; k++) p->posts[k].count = 0;
}

/* Gathers that the update of the step before has started are in flight when a step begins. Only programs of one stage carry gathers. */
static ls_status player_carry(struct step_sim *s)
{
    const struct acting update = { .kind = 3 };
    struct step_sim before = *s;
    struct player *p = &s->stage[0];
    struct sim_program *x = &p->program[0];
    size_t n = (size_t)s->ranks.stage[0].classes;
    bool done;

    before.watch = NULL;
    memset(x->end, 0, (size_t)x->transfers * n * sizeof *x->end);
    LS_TRY(action_run(&before, 0, &update, &done));
    ASSERT(done);
    for (size_t k = 0; k < (size_t)x->transfers * n; k++) x->end[k] -= p->now[k % n];
    for (int g = 0; g < TAPE_QUEUES; g++)
        for (size_t k = 0; p->idle_from[g][0] && k < n; k++) p->idle_from[g][0][k] -= p->now[k];
    memset(p->now, 0, n * sizeof *p->now);
    memset(p->kernels, 0, n * sizeof *p->kernels);
    memset(p->exposed, 0, n * sizeof *p->exposed);
    return LS_OK;
}

static ls_status play_all(struct step_sim *s)
{
    int done = 0;

    for (int i = 0; i < s->stages; i++) player_begin(s, i);
    if (s->stages == 1 && s->stage[0].program[0].carries) LS_TRY(player_carry(s));
    for (bool moved = true; moved && done < s->stages;) {
        moved = false;
        done = 0;
        for (int i = 0; i < s->stages; i++) {
            int before = s->stage[i].action, at = s->stage[i].at;

            pulse();
            LS_TRY(stage_run(s, i, &moved));
            moved |= s->stage[i].action != before || s->stage[i].at != at;
            done += s->stage[i].action == actions_of(s, i);
        }
    }
    ASSERT(done == s->stages); /* ls_layout_schedule() checks that no schedule deadlocks */
    return LS_OK;
}

ls_status step_sim_play(struct step_sim *s, int index, void (*watch)(void *ctx, const struct sim_event *e), void *ctx, struct sim_step *out)
{
    s->index = index;
    s->watch = watch;
    s->ctx = ctx;
    *out = (struct sim_step){ 0 };
    LS_TRY(play_all(s));
    for (int i = 0; i < s->stages; i++)
        for (int c = 0; c < s->ranks.stage[i].classes; c++) {
            double share = (double)s->ranks.stage[i].ranks[c] / s->ranks.ranks;

            out->seconds = MAX(out->seconds, s->stage[i].now[c]);
            out->kernels += share * s->stage[i].kernels[c];
            out->exposed += share * s->stage[i].exposed[c];
        }
    out->bubble = out->seconds - out->kernels - out->exposed;
    if (out->bubble < 1e-12 * out->seconds) out->bubble = 0; /* rounding */
    return LS_OK;
}
