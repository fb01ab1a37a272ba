/* goodput.c - see goodput.h. */
#include "plan/goodput.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/rng.h"

const char *goodput_event_name(enum goodput_event e)
{
    static const char *const names[] = { "stop", "node", "start", "checkpoint" };

    return names[e];
}

struct playing {
    const struct goodput_job *j;
    goodput_watch *watch;
    void *ctx;
    struct goodput *out;
    double now;
    int64_t done;              /* steps */
    int64_t complete, writing; /* steps in the newest complete checkpoint, and in the one being written */
    double written;            /* when the one being written is complete */
    uint64_t failures;         /* drawn so far */
    double failure;            /* when the next one comes */
    enum failure_kind kind;    /* of the failure */
    double *back;              /* when the nodes in repair are back */
    int nback, room;
};

/* ---- failures ---- */

static double all_rates(const struct goodput_job *j)
{
    double sum = 0;

    for (int k = 0; k < FAILURES; k++) sum += j->rate[k];
    return sum;
}

static void draw_failure(struct playing *p)
{
    static const char *const streams[] = { "failure.time", "failure.kind" };
    double all = all_rates(p->j), at = rng_uniform(p->j->seed, rng_stream(streams[1]), p->failures) * all;
    int kind = 0;

    if (all == 0) {
        p->failure = INFINITY;
        return;
    }
    p->failure -= log1p(-rng_uniform(p->j->seed, rng_stream(streams[0]), p->failures)) / all;
    while (kind < FAILURES - 1 && (at -= p->j->rate[kind]) >= 0) kind++;
    p->kind = (enum failure_kind)kind;
    p->failures++;
}

static void report(const struct playing *p, enum goodput_event e, enum failure_kind kind)
{
    if (p->watch) p->watch(p->ctx, e, kind, p->now, p->done);
}

/* ---- nodes ---- */

static ls_status node_out(struct playing *p)
{
    if (p->nback == p->room) {
        double *more = mem_array(MEM_OTHER, (size_t)(2 * p->room + 16), sizeof *more);

        if (!more) return LS_ENOMEM;
        if (p->nback) memcpy(more, p->back, (size_t)p->nback * sizeof *more);
        mem_free(p->back);
        p->back = more;
        p->room = 2 * p->room + 16;
    }
    p->back[p->nback++] = p->now + p->j->repair;
    return LS_OK;
}

static void nodes_back(struct playing *p)
{
    int kept = 0;

    for (int i = 0; i < p->nback; i++)
        if (p->back[i] > p->now) p->back[kept++] = p->back[i];
    p->nback = kept;
}

/* The time at which every missing node has been replaced. */
static double nodes_enough(const struct playing *p)
{
    double when = p->now;
    int missing = p->j->spares < 0 ? 0 : p->nback - p->j->spares;

    /* Nodes return in the order in which they failed. */
    for (int i = 0; i < missing; i++) when = p->back[i];
    return when;
}

/* ---- what takes time ---- */

/* Time passes until `until`, or the end of the job. */
static void pass(struct playing *p, double until, double *account)
{
    until = fmax(p->now, fmin(until, p->j->seconds));
    *account += until - p->now;
    p->now = until;
}

static bool goodput_ended(const struct playing *p) { return p->now >= p->j->seconds; }

static bool takes_node(enum failure_kind k) { return k == FAILURE_PROCESSOR || k == FAILURE_NETWORK || k == FAILURE_HOST; }

static void settle_checkpoint(struct playing *p)
{
    if (p->writing > p->complete && p->written <= p->now) p->complete = p->writing;
}

/* Waits for so many seconds; false if a failure comes first. */
static bool pass_or_fail(struct playing *p, double until, double *account)
{
    bool fails = p->failure < until;

    pass(p, fails ? p->failure : until, account);
    return !fails || goodput_ended(p);
}

/* Steps that are not in a complete checkpoint are lost. */
static void lose_steps(struct playing *p)
{
    settle_checkpoint(p);
    double lost = (double)(p->done - p->complete) * p->j->step;
    p->out->trained -= lost;
    p->out->again += lost;
    p->done = p->writing = p->complete;
}

/* From a failure, which happens now, to the first step. */
static ls_status recover(struct playing *p)
{
    bool started = false;

    while (!started && !goodput_ended(p)) {
        enum failure_kind kind = p->kind;
        double detect = kind == FAILURE_PLANNED ? 0 : p->j->detect;

        p->out->stops[kind]++;
        if (takes_node(kind)) LS_TRY(node_out(p));
        report(p, EVENT_STOP, kind);
        draw_failure(p);
        if (!pass_or_fail(p, p->now + detect, &p->out->down) || goodput_ended(p)) continue;
        nodes_back(p);
        p->out->out = MAX(p->out->out, p->nback);
        double there = nodes_enough(p);
        if (there > p->now) {
            if (!pass_or_fail(p, there, &p->out->waited) || goodput_ended(p)) continue;
            report(p, EVENT_NODE, kind);
        }
        started = pass_or_fail(p, p->now + p->j->restart + (p->complete > 0 ? p->j->read : 0), &p->out->down);
    }
    if (!goodput_ended(p)) report(p, EVENT_START, FAILURE_PLANNED);
    return LS_OK;
}

/* Takes a checkpoint; false if a failure came before training continues. */
static bool take_checkpoint(struct playing *p)
{
    if (p->writing > p->complete && p->written > p->now && !pass_or_fail(p, p->written, &p->out->saved)) return false;
    settle_checkpoint(p);
    if (!pass_or_fail(p, p->now + p->j->stall, &p->out->saved)) return false;
    p->writing = p->done;
    p->written = p->now + p->j->write;
    p->out->checkpoints++;
    settle_checkpoint(p);
    report(p, EVENT_CHECKPOINT, FAILURE_PLANNED);
    return true;
}

/* ---- steps ---- */

/* Trains up to the step at which the next checkpoint is taken; false if a failure came first. */
static bool train(struct playing *p)
{
    int64_t to = p->done - p->done % p->j->every + p->j->every, fit = to - p->done;
    double end = fmin(p->failure, p->j->seconds), left = (end - p->now) / p->j->step;

    if (left >= (double)fit) {
        p->done = to;
        pass(p, p->now + (double)fit * p->j->step, &p->out->trained);
        return true;
    }
    fit = (int64_t)left;
    p->done += fit;
    pass(p, p->now + (double)fit * p->j->step, &p->out->trained);
    if (p->failure >= p->j->seconds) { /* the job ends within a step */
        pass(p, end, &p->out->trained);
        return true;
    }
    if (p->kind != FAILURE_PLANNED) {
        pass(p, end, &p->out->again);
        return false;
    }
    p->done++;
    pass(p, p->now + p->j->step, &p->out->trained);
    return false;
}

static ls_status play_job(struct playing *p)
{
    draw_failure(p);
    while (!goodput_ended(p)) {
        bool goes_on = train(p);

        if (goodput_ended(p)) break;
        if (goes_on) goes_on = take_checkpoint(p);
        if (goes_on || goodput_ended(p)) continue;
        if (p->kind == FAILURE_PLANNED && p->now >= p->failure) { /* on purpose: with a checkpoint, which is complete before the stop */
            pass(p, fmax(p->now, p->writing > p->complete ? p->written : 0) + p->j->stall + p->j->write, &p->out->saved);
            p->complete = p->writing = p->done;
            p->out->checkpoints++;
        }
        lose_steps(p);
        LS_TRY(recover(p));
    }
    p->out->steps = p->done;
    return LS_OK;
}

static ls_status goodput_check(const struct goodput_job *j)
{
    const struct {
        const char *name;
        double value;
    } at_least_0[] = { { "stall", j->stall },   { "write", j->write },     { "read", j->read },
                       { "detect", j->detect }, { "restart", j->restart }, { "repair", j->repair } };

    if (!(j->seconds > 0) || !isfinite(j->seconds)) return ls_fail(LS_EINVAL, "the job's time is %g s; use more than 0", j->seconds);
    if (!(j->step > 0) || !isfinite(j->step)) return ls_fail(LS_EINVAL, "a step's time is %g s; use more than 0", j->step);
    if (j->every < 1) return ls_fail(LS_EINVAL, "a checkpoint every %lld steps; use 1 or more", (long long)j->every);
    for (size_t i = 0; i < COUNT_OF(at_least_0); i++)
        if (!(at_least_0[i].value >= 0) || !isfinite(at_least_0[i].value))
            return ls_fail(LS_EINVAL, "%s is %g s; use 0 or more", at_least_0[i].name, at_least_0[i].value);
    for (int k = 0; k < FAILURES; k++)
        if (!(j->rate[k] >= 0) || !(j->rate[k] < 1))
            return ls_fail(LS_EINVAL, "%g failures of kind %s a second; use 0 to less than 1", j->rate[k],
                           failure_name((enum failure_kind)k));
    return LS_OK;
}

ls_status goodput_play(const struct goodput_job *j, goodput_watch *watch, void *ctx, struct goodput *out)
{
    struct playing p = { .j = j, .watch = watch, .ctx = ctx, .out = out };

    *out = (struct goodput){ 0 };
    LS_TRY(goodput_check(j));
    ls_status st = play_job(&p);
    mem_free(p.back);
    return st;
}

/* ---- how often to save ---- */

double goodput_daly(double stall, double between)
{
    double x = sqrt(stall / (2 * between));

    if (!isfinite(between)) return INFINITY;
    if (stall >= 2 * between) return between;
    return sqrt(2 * stall * between) * (1 + x / 3 + x * x / 9) - stall;
}

/* Mean seconds of a job that are spent on training. */
static ls_status mean_trained(const struct goodput_job *job, int64_t every, int runs, double *mean)
{
    struct goodput_job j = *job;

    j.every = every;
    *mean = 0;
    for (int r = 0; r < runs; r++) {
        struct goodput g;

        j.seed = job->seed + (uint64_t)r;
        LS_TRY(goodput_play(&j, NULL, NULL, &g));
        *mean += g.trained / runs;
    }
    return LS_OK;
}

/* Over intervals each a tenth longer than the one before, around Daly's. A checkpoint that costs nothing is taken as soon as the one before
 * is complete. */
ls_status goodput_best_every(const struct goodput_job *j, int runs, int64_t *every)
{
    struct goodput_job whole = *j;
    double best = -1, steps = fmax(1, floor(j->seconds / j->step)), all = all_rates(j);

    whole.every = 1;
    LS_TRY(goodput_check(&whole));
    *every = (int64_t)steps;
    if (all == 0) return LS_OK;
    double daly = goodput_daly(j->stall, 1 / all) / j->step, from = fmax(fmax(1, daly / 4), j->write / j->step);
    for (double x = from; x <= fmin(steps, fmax(4 * daly, 2 * from)); x = fmax(x + 1, x * 1.1)) {
        double mean;

        LS_TRY(mean_trained(j, (int64_t)x, runs, &mean));
        if (mean > best) best = mean, *every = (int64_t)x;
    }
    return LS_OK;
}
