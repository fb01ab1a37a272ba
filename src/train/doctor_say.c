/* doctor_say.c - a finding, a rank's progress and a run's end, in one sentence each. */
#include <inttypes.h>
#include <math.h>
#include "base/base.h"
#include "train/doctor.h"

enum { CALL_ROOM = 192 };

/* "rank 2", "ranks 0, 1, 3-5". */
static void put_ranks(struct text *out, const bool *is, int ranks)
{
    int count = 0, put = 0;

    for (int i = 0; i < ranks; i++) count += is[i];
    text_put(out, count == 1 ? "rank " : "ranks ");
    for (int i = 0; i < ranks; i++) {
        if (!is[i]) continue;
        int last = i;
        while (last + 1 < ranks && is[last + 1]) last++;
        bool range = last >= i + 2;
        text_put(out, "%s%d", put++ ? ", " : "", i);
        if (range) text_put(out, "-%d", last);
        if (range) i = last;
    }
}

static int count_of(const bool *is, int ranks)
{
    int count = 0;

    for (int i = 0; i < ranks; i++) count += is[i];
    return count;
}

/* Ranks of the finding that wait and live, or wait and do not. Returns how many. */
static int select_waiting(const struct doctor *d, const struct finding *f, bool alive, bool *out)
{
    for (int i = 0; i < d->ranks; i++) out[i] = f->waits[i] && doctor_lives(d, i) == alive;
    return count_of(out, d->ranks);
}

static void say_waiting(const struct doctor *d, const struct finding *f, bool *some, struct text *out)
{
    int n = select_waiting(d, f, true, some);

    if (n > 0) {
        text_put(out, "; ");
        put_ranks(out, some, d->ranks);
        text_put(out, " wait%s in it since %.1f s", n == 1 ? "s" : "", d->now - f->since);
    }
    n = select_waiting(d, f, false, some);
    if (n > 0) {
        text_put(out, "; ");
        put_ranks(out, some, d->ranks);
        text_put(out, " ended in it");
    }
}

static void say_last(const struct doctor *d, int rank, struct text *out)
{
    const struct patient *p = &d->patient[rank];
    char call[CALL_ROOM];

    text_put(out, "; rank %d ", rank);
    if (!p->calls) {
        text_put(out, "left no calls%s%s", p->why[0] ? ": " : "", p->why);
        return;
    }
    if (p->life == LIFE_UNKNOWN) text_put(out, "may be alive elsewhere");
    else text_put(out, "is %s", doctor_life(p->life));
    if (p->calls->n == 0) {
        text_put(out, " (it made no call)");
        return;
    }
    const struct call_record *r = &p->calls->last[p->calls->n - 1];
    signature_text(&r->signature, r->name, call, sizeof call);
    if (r->state == CALL_DONE) text_put(out, " (its last call, %s, ended %.1f s ago)", call, d->now - doctor_time(d, rank, r->ended));
    else if (!doctor_lives(d, rank)) text_put(out, " (it ended in %s)", call);
    else text_put(out, " (it is in %s since %.1f s)", call, d->now - doctor_time(d, rank, r->queued));
}

static void say_differing(const struct doctor *d, const struct finding *f, struct text *out)
{
    char call[CALL_ROOM];

    for (int i = 0; i < d->ranks; i++) {
        if (!f->differs[i]) continue;
        const struct call_record *its = doctor_record(d, i, f->call.signature.group, f->call.signature.sequence);
        text_put(out, "; rank %d called %s instead", i, signature_text(&its->signature, its->name, call, sizeof call));
    }
}

void doctor_say(const struct doctor *d, const struct finding *f, struct text *out)
{
    bool some[d->ranks];
    char call[CALL_ROOM];
    int missing = count_of(f->missing, d->ranks), alive = 0;

    for (int i = 0; i < d->ranks; i++) alive += f->missing[i] && doctor_lives(d, i);
    signature_text(&f->call.signature, f->call.name, call, sizeof call);
    if (missing > 0) {
        put_ranks(out, f->missing, d->ranks);
        text_put(out, alive == 0 ? " never came to %s" : missing == 1 ? " has not come to %s" : " have not come to %s", call);
    } else {
        text_put(out, "ranks disagree on %s", call);
    }
    say_differing(d, f, out);
    say_waiting(d, f, some, out);
    for (int i = 0; i < d->ranks; i++)
        if (f->missing[i]) say_last(d, i, out);
}

/* ---- progress and end ---- */

static const struct calls_status *status_of(const struct doctor *d, int rank)
{
    const struct calls_read *c = d->patient[rank].calls;

    return c ? &c->status : NULL;
}

static bool has_ended(const struct doctor *d, int rank) { return status_of(d, rank) && status_of(d, rank)->ended > 0; }

const char *doctor_state(const struct doctor *d, int rank)
{
    if (has_ended(d, rank)) return status_of(d, rank)->code == 0 ? "finished" : "failed";
    return doctor_life(d->patient[rank].life);
}

void doctor_progress(const struct doctor *d, int rank, struct text *out)
{
    const struct calls_status *s = status_of(d, rank);
    bool lives = doctor_lives(d, rank) && !has_ended(d, rank);

    if (!s || s->opened == 0) return;
    if (lives && s->doing[0]) text_put(out, "%s for %.1f s, ", s->doing, fmax(0, d->now - doctor_time(d, rank, s->since)));
    text_put(out, "step %" PRIu64 " of %" PRIu64, s->step, s->steps);
    if (lives && s->rate > 0)
        text_put(out, ", %.0f %s/s, last step %.1f s ago", s->rate, s->unit, fmax(0, d->now - doctor_time(d, rank, s->stepped)));
    if (!lives && !has_ended(d, rank) && s->doing[0]) text_put(out, ", last seen %s", s->doing);
}

static uint64_t last_step(const struct doctor *d, uint64_t *steps)
{
    uint64_t step = 0;

    for (int i = 0; i < d->ranks; i++) {
        if (!status_of(d, i)) continue;
        step = MAX(step, status_of(d, i)->step);
        *steps = MAX(*steps, status_of(d, i)->steps);
    }
    return step;
}

/* The rank whose failure counts: one that blames nobody else (exit code 3 does) before one that does; -1: none failed. */
static int failed_rank(const struct doctor *d)
{
    int found = -1;

    for (int i = 0; i < d->ranks; i++) {
        if (!has_ended(d, i) || status_of(d, i)->code == 0) continue;
        if (found < 0 || (status_of(d, found)->code == 3 && status_of(d, i)->code != 3)) found = i;
    }
    return found;
}

/* Ranks that ended without a word of their own. Returns how many. */
static int select_silent(const struct doctor *d, bool *out)
{
    for (int i = 0; i < d->ranks; i++) out[i] = d->patient[i].life == LIFE_DEAD && !has_ended(d, i);
    return count_of(out, d->ranks);
}

bool doctor_outcome(const struct doctor *d, struct text *out)
{
    bool silent[d->ranks];
    int n = select_silent(d, silent), failed = failed_rank(d);
    uint64_t steps = 0, step = last_step(d, &steps);

    for (int i = 0; i < d->ranks && !d->launched; i++)
        if (!has_ended(d, i) && d->patient[i].life != LIFE_DEAD) return false;
    if (d->launched && d->code != 0) {
        text_put(out, "failed at step %" PRIu64 ": %s; exit %d", step, d->line, d->code);
    } else if (n > 0) {
        put_ranks(out, silent, d->ranks);
        text_put(out, " ended without a word at step %" PRIu64 ": killed, or the machine was restarted", step);
    } else if (failed >= 0) {
        text_put(out, "failed at step %" PRIu64 ": ", step);
        if (d->ranks > 1 && status_of(d, failed)->code != 3) text_put(out, "rank %d: ", failed);
        text_put(out, "%s; exit %d", status_of(d, failed)->why, (int)status_of(d, failed)->code);
    } else {
        const struct calls_status *s = status_of(d, 0);

        text_put(out, "%s at step %" PRIu64 " of %" PRIu64 ", exit 0", s && s->why[0] ? s->why : "finished", step, steps);
    }
    return true;
}
