/* step_sim.c - see step_sim.h.
 *
 * A tape is shortened to pieces: kernels that follow each other are one. All classes of a stage take a piece together; a stage goes on
 * until it needs a message, or a collective with other stages, that is not there yet, and then the next stage has its turn.
 */
#include "train/plan/step_sim_parts.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "base/rng.h"

/* ---- actions ---- */

/* Action i of a stage; kind 3 is the optimizer, the last. */
struct acting {
    int kind, chunk, micro;
};

static int actions_of(const struct step_sim *s, int stage) { return (s->stages > 1 ? s->schedule.count[stage] : 2 * s->micros) + 1; }

static struct acting acting_at(const struct step_sim *s, int stage, int i)
{
    if (i == actions_of(s, stage) - 1) return (struct acting){ 3, 0, 0 };
    if (s->stages == 1) return (struct acting){ i % 2 ? LS_ACTION_BACKWARD : LS_ACTION_FORWARD, 0, i / 2 };
    const ls_action *a = &s->schedule.list[stage][i];
    return (struct acting){ (int)a->kind, a->chunk, a->micro };
}

/* The n-th list of pieces of an action; false past the last. */
static bool list_of(const struct step_sim *s, int stage, const struct acting *a, int n, struct pieces **program, enum segment *segment)
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

/* ---- events ---- */

static void watch_all(const struct step_sim *s, int stage, const struct acting *a, const struct sim_event *like, const double *begin,
                      const double *end)
{
    const struct sim_stage *x = &s->ranks.stage[stage];

    for (int c = 0; c < x->classes; c++) {
        struct sim_event e = *like;

        if (end[c] <= begin[c]) continue;
        e.stage = stage, e.rank = x->rank[c];
        e.action = a->kind, e.chunk = a->chunk, e.micro = a->micro;
        e.begin = begin[c], e.end = end[c];
        s->watch(s->ctx, &e);
    }
}

/* ---- pieces ---- */

/* Until when a class's last collective is in flight. */
static double busy_until(const struct player *p, int class)
{
    double busy = 0;

    for (int g = 0; g < LS_GROUPS; g++)
        for (int k = 0; k < 2; k++)
            if (p->idle_from[g][k]) busy = MAX(busy, p->idle_from[g][k][class]);
    return busy;
}

static void kernels_run(struct step_sim *s, int stage, const struct acting *a, const struct piece *x)
{
    const struct sim_stage *ranks = &s->ranks.stage[stage];
    struct player *p = &s->stage[stage];

    if (s->variation.jitter > 0) {
        uint64_t from = ((uint64_t)s->index * (uint64_t)s->stages + (uint64_t)stage) << 36;

        rng_normals(s->variation.seed, rng_stream("jitter"), from + p->drawn, (size_t)ranks->classes, s->normal);
        p->drawn += (uint64_t)ranks->classes;
    }
    for (int c = 0; c < ranks->classes; c++) {
        double seconds = x->seconds * s->ranks.seconds[ranks->rank[c]];

        if (s->variation.jitter > 0) seconds *= MAX(0, 1 + s->variation.jitter * s->normal[c]);
        s->top[c] = p->now[c];
        seconds = tape_beside(s->cluster, seconds, busy_until(p, c) - p->now[c]);
        p->now[c] += seconds;
        p->kernels[c] += seconds;
    }
    if (s->watch) watch_all(s, stage, a, &(struct sim_event){ .kind = SIM_KERNELS }, s->top, p->now);
}

/* The time at which the last of each class's group is ready, into s->top[group]. */
static void groups_meet(struct step_sim *s, const struct sim_group *g, const double *now, const double *idle_from)
{
    for (int i = 0; i < g->count; i++) {
        double last = 0;

        for (int k = g->begin[i]; k < g->begin[i + 1]; k++) {
            last = MAX(last, now[g->member[k]]);
            if (idle_from) last = MAX(last, idle_from[g->member[k]]);
        }
        s->top[i] = last;
    }
}

/* Seconds of a collective in group i; usual: those of a group that is not slowed. */
static double group_seconds(const struct step_sim *s, const struct player *p, const struct piece *x, const struct sim_group *g, int i,
                            double usual)
{
    struct seconds_group at = p->place.group[x->entry.queue];

    if (!g->slowed || g->slowed[i] == 1) return usual;
    at.slowed = g->slowed[i];
    return tape_exchange_seconds(s->cluster, &x->entry, &p->place, &at);
}

static int crosses(const struct step_sim *s, ls_group g)
{
    if (s->stages == 1) return -1;
    return g == LS_GROUP_WORLD ? CROSS_WORLD : g == LS_GROUP_ENDS ? CROSS_ENDS : -1;
}

static ls_status post_put(struct step_sim *s, int stage, enum cross x, int *number)
{
    struct posts *o = &s->stage[stage].posts[x];
    size_t n = (size_t)s->ranks.stage[stage].classes;

    if (o->count == o->room) {
        double **more = mem_array(MEM_OTHER, (size_t)(2 * o->room + 4), sizeof *more);

        if (!more) return LS_ENOMEM;
        if (o->room) memcpy(more, o->at, (size_t)o->room * sizeof *more);
        mem_free(o->at);
        o->at = more;
        o->room = 2 * o->room + 4;
    }
    if (!o->at[o->count] && !(o->at[o->count] = mem_array(MEM_OTHER, n, sizeof(double)))) return LS_ENOMEM;
    memcpy(o->at[o->count], s->stage[stage].now, n * sizeof(double));
    *number = o->count++;
    return LS_OK;
}

static void wait_until(struct player *p, int classes, const double *end)
{
    for (int c = 0; c < classes; c++) {
        if (end[c] <= p->now[c]) continue;
        p->exposed[c] += end[c] - p->now[c];
        p->now[c] = end[c];
    }
}

/* A load or a save: each rank's own. The first micro-batch of a step does not load gradients, and so waits for none. */
static void copy_run(struct step_sim *s, int stage, struct pieces *program, const struct acting *a, const struct piece *x)
{
    int classes = s->ranks.stage[stage].classes;
    struct player *p = &s->stage[stage];
    double *idle_from = p->idle_from[TAPE_COPIES][0], *end = program->end + (size_t)x->entry.slot * (size_t)classes;
    double seconds = tape_exchange_seconds(s->cluster, &x->entry, &p->place, NULL);

    if (x->entry.later && a->micro == 0) {
        memset(end, 0, (size_t)classes * sizeof *end);
        return;
    }
    for (int c = 0; c < classes; c++) {
        s->top[c] = MAX(p->now[c], idle_from[c]);
        end[c] = idle_from[c] = s->top[c] + seconds;
    }
    if (s->watch) watch_all(s, stage, a, &(struct sim_event){ .kind = SIM_COPY, .save = x->entry.copy.save }, s->top, end);
}

static ls_status start_run(struct step_sim *s, int stage, struct pieces *program, const struct acting *a, const struct piece *x)
{
    const struct sim_stage *ranks = &s->ranks.stage[stage];
    const struct sim_group *g = &ranks->group[x->entry.queue];
    struct player *p = &s->stage[stage];
    bool receives = x->entry.op == LS_COLLECTIVE_RECV;
    double *idle_from = p->idle_from[x->entry.queue][receives], *end = program->end + (size_t)x->entry.slot * (size_t)ranks->classes;
    double usual = tape_exchange_seconds(s->cluster, &x->entry, &p->place, &p->place.group[x->entry.queue]);
    int cross = crosses(s, x->entry.queue), number;

    program->posted[x->entry.slot] = 0;
    if (cross >= 0) {
        LS_TRY(post_put(s, stage, (enum cross)cross, &number));
        program->posted[x->entry.slot] = number + 1;
        return LS_OK;
    }
    if (receives || x->entry.op == LS_COLLECTIVE_SEND) {
        for (int c = 0; c < ranks->classes; c++) {
            double from = MAX(p->now[c], idle_from[c]);

            if (receives) from = MAX(from, p->now[g->before[c]]);
            s->top[c] = from;
            end[c] = idle_from[c] = from + group_seconds(s, p, x, g, g->of[c], usual);
        }
    } else {
        groups_meet(s, g, p->now, idle_from);
        for (int i = 0; i < g->count; i++) {
            double over = s->top[i] + group_seconds(s, p, x, g, i, usual);

            for (int k = g->begin[i]; k < g->begin[i + 1]; k++) end[g->member[k]] = idle_from[g->member[k]] = over;
        }
        for (int c = 0; s->watch && c < ranks->classes; c++) s->normal[c] = s->top[g->of[c]];
        if (s->watch) memcpy(s->top, s->normal, (size_t)ranks->classes * sizeof *s->top);
    }
    if (s->watch)
        watch_all(s, stage, a, &(struct sim_event){ .kind = SIM_COLLECTIVE, .op = x->entry.op, .wait = x->entry.wait }, s->top, end);
    if (s->cluster->serial) wait_until(p, ranks->classes, end);
    return LS_OK;
}

static bool posts_there(const struct step_sim *s, int cross, int number)
{
    int last = s->stages - 1;

    if (cross == CROSS_ENDS) return MIN(s->stage[0].posts[cross].count, s->stage[last].posts[cross].count) > number;
    for (int i = 0; i <= last; i++)
        if (s->stage[i].posts[cross].count <= number) return false;
    return true;
}

/* The time at which the last of a class's group posted. */
static double posts_last(const struct step_sim *s, int stage, int class, int cross, int number)
{
    const struct sim_ranks *r = &s->ranks;
    int other = stage == 0 ? r->stages - 1 : 0, place = r->stage[stage].rank[class] % r->per_stage;
    double last = s->stage[stage].posts[cross].at[number][class];

    return MAX(last, s->stage[other].posts[cross].at[number][r->class_of[other * r->per_stage + place]]);
}

static double posts_last_of_all(const struct step_sim *s, int number)
{
    double last = 0;

    for (int i = 0; i < s->stages; i++)
        for (int c = 0; c < s->ranks.stage[i].classes; c++) last = MAX(last, s->stage[i].posts[CROSS_WORLD].at[number][c]);
    return last;
}

static void posts_finish(struct step_sim *s, int stage, const struct piece *start, int cross, int number, double *end)
{
    struct player *p = &s->stage[stage];
    double *idle_from = p->idle_from[start->entry.queue][0], all = cross == CROSS_WORLD ? posts_last_of_all(s, number) : 0;
    double seconds = tape_exchange_seconds(s->cluster, &start->entry, &p->place, &p->place.group[start->entry.queue]);

    for (int c = 0; c < s->ranks.stage[stage].classes; c++) {
        double last = cross == CROSS_WORLD ? all : posts_last(s, stage, c, cross, number);

        end[c] = idle_from[c] = MAX(last, idle_from[c]) + seconds;
    }
}

/* The piece that started what a slot waits for: a slot is one exchange of its program. */
static const struct piece *starter(const struct pieces *program, int slot)
{
    const struct piece *x = program->piece;

    while (x->kind != PIECE_START || x->entry.slot != slot) x++;
    return x;
}

/* False: other stages have not started the collective yet. */
static bool wait_run(struct step_sim *s, int stage, struct pieces *program, const struct acting *a, const struct piece *x)
{
    const struct sim_stage *ranks = &s->ranks.stage[stage];
    struct player *p = &s->stage[stage];
    double *end = program->end + (size_t)x->entry.slot * (size_t)ranks->classes;
    int number = program->posted[x->entry.slot] - 1;

    if (number >= 0) {
        const struct piece *start = starter(program, x->entry.slot);
        int cross = crosses(s, start->entry.queue);

        if (!posts_there(s, cross, number)) return false;
        posts_finish(s, stage, start, cross, number, end);
        program->posted[x->entry.slot] = 0;
    }
    memcpy(s->top, p->now, (size_t)ranks->classes * sizeof *s->top);
    wait_until(p, ranks->classes, end);
    if (s->watch) watch_all(s, stage, a, &(struct sim_event){ .kind = SIM_WAIT, .wait = x->entry.wait }, s->top, p->now);
    return true;
}

static void shuffle_run(struct step_sim *s, int stage, const struct acting *a, const struct piece *x)
{
    const struct sim_stage *ranks = &s->ranks.stage[stage];
    const struct sim_group *g = &ranks->group[x->entry.queue];
    struct player *p = &s->stage[stage];
    double usual = tape_exchange_seconds(s->cluster, &x->entry, &p->place, &p->place.group[x->entry.queue]);

    groups_meet(s, g, p->now, NULL);
    for (int c = 0; c < ranks->classes; c++) {
        double over = s->top[g->of[c]] + group_seconds(s, p, x, g, g->of[c], usual);

        p->exposed[c] += over - p->now[c];
        s->normal[c] = p->now[c];
        p->now[c] = over;
    }
    if (s->watch)
        watch_all(s, stage, a, &(struct sim_event){ .kind = SIM_COLLECTIVE, .op = x->entry.op, .wait = x->entry.wait }, s->normal, p->now);
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
    int own;

    if (s->stages == 1 || a->kind > LS_ACTION_BACKWARD) return -1;
    own = ls_pipeline_stage(&s->schedule, stage, a->chunk);
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
    if (s->watch) watch_all(s, stage, a, &(struct sim_event){ .kind = SIM_MESSAGE }, s->top, p->now);
    mem_free(*sent);
    *sent = NULL;
    return true;
}

static ls_status send(struct step_sim *s, int stage, const struct acting *a)
{
    size_t n = (size_t)s->ranks.stage[stage].classes;
    int own, to;

    if (s->stages == 1 || a->kind > LS_ACTION_BACKWARD) return LS_OK;
    own = ls_pipeline_stage(&s->schedule, stage, a->chunk);
    to = a->kind == LS_ACTION_FORWARD ? own + 1 : own - 1;
    if (to < 0 || to == s->stages * s->chunks || ls_pipeline_rank(&s->schedule, to, NULL) == stage) return LS_OK;
    double **at = message_of(s, a->kind, own, a->micro);
    if (!(*at = mem_array(MEM_OTHER, n, sizeof **at))) return LS_ENOMEM;
    memcpy(*at, s->stage[stage].now, n * sizeof **at);
    return LS_OK;
}

/* ---- a stage's turn ---- */

/* Runs the pieces of an action; *done false: it waits for another stage. */
static ls_status action_run(struct step_sim *s, int stage, const struct acting *a, bool *done)
{
    struct player *p = &s->stage[stage];
    bool last = a->kind == 3 || a->micro == s->micros - 1;
    struct pieces *program;
    enum segment segment;

    for (; list_of(s, stage, a, p->segment, &program, &segment); p->segment++, p->at = 0) {
        int begin = program->begin[last][segment], end = program->begin[last][segment + 1];

        for (; begin + p->at < end; p->at++) {
            const struct piece *x = &program->piece[begin + p->at];

            switch (x->kind) {
            case PIECE_KERNELS: kernels_run(s, stage, a, x); break;
            case PIECE_START: LS_TRY(start_run(s, stage, program, a, x)); break;
            case PIECE_COPY: copy_run(s, stage, program, a, x); break;
            case PIECE_WAIT:
                if ((*done = wait_run(s, stage, program, a, x))) break;
                return LS_OK;
            case PIECE_SHUFFLE: shuffle_run(s, stage, a, x); break;
            }
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
    struct pieces *x = &p->program[0];
    size_t n = (size_t)s->ranks.stage[0].classes;
    bool done;

    before.watch = NULL;
    memset(x->end, 0, (size_t)x->slots * n * sizeof *x->end);
    LS_TRY(action_run(&before, 0, &update, &done));
    ASSERT(done);
    for (size_t k = 0; k < (size_t)x->slots * n; k++) x->end[k] -= p->now[k % n];
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
