/* step_sim_activities.c - plays the activities of a simulated step on the classes of a stage: kernels, collectives within it and with other
 * stages, loads and saves of what is offloaded. */
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/rng.h"
#include "train/plan/step_sim_parts.h"

void sim_watch(const struct step_sim *s, int stage, const struct acting *a, const struct sim_event *like, const double *begin,
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

/* The time until which a class's last collective is in flight. */
static double busy_until(const struct player *p, int class)
{
    double busy = 0;

    for (int g = 0; g < LS_GROUPS; g++)
        for (int k = 0; k < 2; k++)
            if (p->idle_from[g][k]) busy = MAX(busy, p->idle_from[g][k][class]);
    return busy;
}

static void kernels_run(struct step_sim *s, int stage, const struct acting *a, const struct activity *x)
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
        if (s->cluster->channels) seconds = tape_beside(s->cluster, seconds, busy_until(p, c) - p->now[c]);
        p->now[c] += seconds;
        p->kernels[c] += seconds;
    }
    if (s->watch) sim_watch(s, stage, a, &(struct sim_event){ .kind = SIM_KERNELS }, s->top, p->now);
}

/* Sets s->top[group] to the time at which the last class of each group is ready. */
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
static double group_seconds(const struct step_sim *s, const struct player *p, const struct activity *x, const struct sim_group *g, int i,
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

/* A load or a save, which every rank does by itself. The first micro-batch of a step does not load gradients, so it waits for none. */
static void copy_run(struct step_sim *s, int stage, struct sim_program *program, const struct acting *a, const struct activity *x)
{
    int classes = s->ranks.stage[stage].classes;
    struct player *p = &s->stage[stage];
    double *idle_from = p->idle_from[TAPE_COPIES][0], *end = program->end + (size_t)x->entry.transfer * (size_t)classes;
    double seconds = tape_exchange_seconds(s->cluster, &x->entry, &p->place, NULL);

    if (x->entry.later && a->micro == 0) {
        memset(end, 0, (size_t)classes * sizeof *end);
        return;
    }
    for (int c = 0; c < classes; c++) {
        s->top[c] = MAX(p->now[c], idle_from[c]);
        end[c] = idle_from[c] = s->top[c] + seconds;
    }
    if (s->watch) sim_watch(s, stage, a, &(struct sim_event){ .kind = SIM_COPY, .save = x->entry.copy.save }, s->top, end);
}

static ls_status start_run(struct step_sim *s, int stage, struct sim_program *program, const struct acting *a, const struct activity *x)
{
    const struct sim_stage *ranks = &s->ranks.stage[stage];
    const struct sim_group *g = &ranks->group[x->entry.queue];
    struct player *p = &s->stage[stage];
    bool receives = x->entry.op == LS_COLLECTIVE_RECV;
    double *idle_from = p->idle_from[x->entry.queue][receives], *end = program->end + (size_t)x->entry.transfer * (size_t)ranks->classes;
    double usual = tape_exchange_seconds(s->cluster, &x->entry, &p->place, &p->place.group[x->entry.queue]);
    int cross = crosses(s, x->entry.queue), number;

    program->posted[x->entry.transfer] = 0;
    if (cross >= 0) {
        LS_TRY(post_put(s, stage, (enum cross)cross, &number));
        program->posted[x->entry.transfer] = number + 1;
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
        sim_watch(s, stage, a, &(struct sim_event){ .kind = SIM_COLLECTIVE, .op = x->entry.op, .wait = x->entry.wait }, s->top, end);
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

/* The time at which the last class of a group has posted. */
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

static void posts_finish(struct step_sim *s, int stage, const struct activity *start, int cross, int number, double *end)
{
    struct player *p = &s->stage[stage];
    double *idle_from = p->idle_from[start->entry.queue][0], all = cross == CROSS_WORLD ? posts_last_of_all(s, number) : 0;
    double seconds = tape_exchange_seconds(s->cluster, &start->entry, &p->place, &p->place.group[start->entry.queue]);

    for (int c = 0; c < s->ranks.stage[stage].classes; c++) {
        double last = cross == CROSS_WORLD ? all : posts_last(s, stage, c, cross, number);

        end[c] = idle_from[c] = MAX(last, idle_from[c]) + seconds;
    }
}

/* The activity that started a transfer; each transfer of a program has exactly one. */
static const struct activity *starter(const struct sim_program *program, int transfer)
{
    const struct activity *x = program->activity;

    while (x->kind != ACTIVITY_START || x->entry.transfer != transfer) x++;
    return x;
}

/* False: other stages have not started the collective yet. */
static bool wait_run(struct step_sim *s, int stage, struct sim_program *program, const struct acting *a, const struct activity *x)
{
    const struct sim_stage *ranks = &s->ranks.stage[stage];
    struct player *p = &s->stage[stage];
    double *end = program->end + (size_t)x->entry.transfer * (size_t)ranks->classes;
    int number = program->posted[x->entry.transfer] - 1;

    if (number >= 0) {
        const struct activity *start = starter(program, x->entry.transfer);
        int cross = crosses(s, start->entry.queue);

        if (!posts_there(s, cross, number)) return false;
        posts_finish(s, stage, start, cross, number, end);
        program->posted[x->entry.transfer] = 0;
    }
    memcpy(s->top, p->now, (size_t)ranks->classes * sizeof *s->top);
    wait_until(p, ranks->classes, end);
    if (s->watch) sim_watch(s, stage, a, &(struct sim_event){ .kind = SIM_WAIT, .wait = x->entry.wait }, s->top, p->now);
    return true;
}

static void shuffle_run(struct step_sim *s, int stage, const struct acting *a, const struct activity *x)
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
        sim_watch(s, stage, a, &(struct sim_event){ .kind = SIM_COLLECTIVE, .op = x->entry.op, .wait = x->entry.wait }, s->normal, p->now);
}

ls_status activity_run(struct step_sim *s, int stage, struct sim_program *program, const struct acting *a, const struct activity *x,
                       bool *done)
{
    *done = true;
    switch (x->kind) {
    case ACTIVITY_KERNELS: kernels_run(s, stage, a, x); break;
    case ACTIVITY_START: return start_run(s, stage, program, a, x);
    case ACTIVITY_COPY: copy_run(s, stage, program, a, x); break;
    case ACTIVITY_WAIT: *done = wait_run(s, stage, program, a, x); break;
    case ACTIVITY_SHUFFLE: shuffle_run(s, stage, a, x); break;
    }
    return LS_OK;
}
