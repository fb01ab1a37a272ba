/* doctor_say.c - describes a finding, the progress of a rank and the end of a run in one sentence each. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "base/base.h"
#include "train/doctor/doctor.h"

enum { CALL_ROOM = 192 };

/* Writes "rank 2" or "ranks 0, 1, 3-5". */
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

static const struct recorder_status *status_of(const struct doctor *d, int rank)
{
    const struct recorder_read *c = d->status[rank].calls;

    return c ? &c->status : NULL;
}

const char *doctor_state(const struct doctor *d, int rank)
{
    static const char *const names[] = { "never started", "running", "stopped", "dead", "unknown" };
    const struct rank_status *p = &d->status[rank];

    if (doctor_ended(d, rank)) return status_of(d, rank)->code == 0 ? "finished" : "failed";
    if (p->life == LIFE_RUNNING && !p->calls) return "starting";
    return p->why[0] ? "unreadable" : names[p->life];
}

/* Selects the ranks that wait in the call and are alive (or not). Returns how many there are. */
static int select_waiting(const struct doctor *d, const struct finding *f, bool alive, bool *out)
{
    for (int i = 0; i < d->ranks; i++) out[i] = f->waits[i] && doctor_lives(d, i) == alive;
    return count_of(out, d->ranks);
}

/* True if our launcher has ended without recording how its ranks ended. */
static bool launcher_gone(const struct doctor *d) { return d->launcher && d->launcher_life == LIFE_DEAD && !d->launched; }

static void say_waiting(const struct doctor *d, const struct finding *f, bool *some, struct text *out)
{
    int n = select_waiting(d, f, true, some);

    if (n > 0) {
        text_put(out, "; ");
        put_ranks(out, some, d->ranks);
        text_put(out, " ha%s waited in it for %.1f s", n == 1 ? "s" : "ve", d->now - f->since);
    }
    n = select_waiting(d, f, false, some);
    if (n > 0) {
        text_put(out, "; ");
        put_ranks(out, some, d->ranks);
        if (f->killed_together)
            text_put(out, " had waited in it for %.1f s", f->until - f->since);
        else
            text_put(out, " ended in it");
    }
}

static void say_last(const struct doctor *d, int rank, struct text *out)
{
    const struct rank_status *p = &d->status[rank];
    char call[CALL_ROOM];

    text_put(out, "; rank %d ", rank);
    if (!p->calls && !doctor_lives(d, rank)) {
        text_put(out, p->end[0] ? "%s" : p->why[0] ? "has no readable flight recorder: %s" : "never started", p->end[0] ? p->end : p->why);
        return;
    }
    if (doctor_ended(d, rank))
        text_put(out, "%s", doctor_state(d, rank));
    else if (p->end[0])
        text_put(out, "%s", p->end);
    else if (p->life == LIFE_UNKNOWN)
        text_put(out, "may be alive on another machine");
    else
        text_put(out, "is %s", doctor_state(d, rank));
    if (!p->calls) return;
    if (p->calls->n == 0) {
        text_put(out, " (it made no call)");
        return;
    }
    const struct call_record *r = &p->calls->last[p->calls->n - 1];
    signature_text(&r->signature, r->name, call, sizeof call);
    if (r->state == CALL_DONE)
        text_put(out, " (its last call, %s, ended %.1f s ago)", call, d->now - doctor_time(d, rank, r->ended));
    else if (!doctor_lives(d, rank))
        text_put(out, " (it ended in %s)", call);
    else
        text_put(out, " (it has been in %s for %.1f s)", call, d->now - doctor_time(d, rank, r->queued));
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

/* Writes "ranks 0, 1 have not called", "rank 2 never called" if none of them is alive, "rank 2 had not called" if all were killed together.
 */
static void say_missing(const struct doctor *d, const struct finding *f, const char *call, struct text *out)
{
    int missing = count_of(f->missing, d->ranks), alive = 0;

    for (int i = 0; i < d->ranks; i++) alive += f->missing[i] && doctor_lives(d, i);
    put_ranks(out, f->missing, d->ranks);
    if (f->killed_together)
        text_put(out, " had not called %s when %s", call, launcher_gone(d) ? "the launcher was killed" : "all ranks were killed");
    else
        text_put(out, alive == 0 ? " never called %s" : missing == 1 ? " has not called %s" : " have not called %s", call);
}

/* Writes "rank 1 is stopped in" or "rank 1 died in". Returns the number of ranks. */
static int say_held(const struct doctor *d, const struct finding *f, bool stopped, const char *call, struct text *out)
{
    bool some[d->ranks];

    for (int i = 0; i < d->ranks; i++) some[i] = f->held[i] && (d->status[i].life == LIFE_STOPPED) == stopped;
    int n = count_of(some, d->ranks);
    if (n == 0) return 0;
    if (out->bytes > 0 && out->data[out->bytes - 1] != '\n') text_put(out, "; ");
    put_ranks(out, some, d->ranks);
    if (stopped)
        text_put(out, n == 1 ? " is stopped in %s" : " are stopped in %s", call);
    else
        text_put(out, " died in %s", call);
    return n;
}

void doctor_say(const struct doctor *d, const struct finding *f, struct text *out)
{
    bool some[d->ranks];
    char call[CALL_ROOM];
    bool missing = count_of(f->missing, d->ranks) > 0;

    signature_text(&f->call.signature, f->call.name, call, sizeof call);
    if (missing) say_missing(d, f, call, out);
    int held = say_held(d, f, true, missing ? "it" : call, out);
    held += say_held(d, f, false, missing || held ? "it" : call, out);
    if (!missing && !held) text_put(out, "ranks disagree on %s", call);
    say_differing(d, f, out);
    say_waiting(d, f, some, out);
    for (int i = 0; i < d->ranks; i++)
        if (f->missing[i]) say_last(d, i, out);
}

bool doctor_stopped(const struct doctor *d, struct text *out)
{
    bool some[d->ranks];

    for (int i = 0; i < d->ranks; i++) some[i] = d->status[i].life == LIFE_STOPPED && !doctor_ended(d, i);
    int n = count_of(some, d->ranks);
    if (n == 0) return false;
    put_ranks(out, some, d->ranks);
    text_put(out, n == 1 ? " is" : " are");
    text_put(out, " stopped by a signal (SIGSTOP, SIGTSTP) or a debugger; to continue: kill -CONT");
    for (int i = 0; i < d->ranks; i++)
        if (some[i]) text_put(out, " %" PRId64, d->status[i].pid);
    return true;
}

/* ---- progress and end ---- */

void doctor_progress(const struct doctor *d, int rank, struct text *out)
{
    const struct recorder_status *s = status_of(d, rank);
    bool lives = doctor_lives(d, rank) && !doctor_ended(d, rank);

    if (!s || s->opened == 0) return;
    if (lives && s->doing[0]) text_put(out, "%s for %.1f s, ", s->doing, fmax(0, d->now - doctor_time(d, rank, s->since)));
    text_put(out, "step %" PRIu64 " of %" PRIu64, s->step, MAX(s->steps, s->step));
    if (s->skipped) text_put(out, ", %" PRIu64 " update%s skipped", s->skipped, s->skipped == 1 ? "" : "s");
    if (lives && s->rate > 0)
        text_put(out, ", %.0f %s/s, last step %.1f s ago", s->rate, s->unit, fmax(0, d->now - doctor_time(d, rank, s->stepped)));
    if (!lives && !doctor_ended(d, rank) && s->doing[0]) text_put(out, ", last seen %s", s->doing);
}

/* Writes "in step 13" if the rank has completed 12 steps and is training, "at step 12" if it is saving or evaluating after that step. */
static void put_step(const struct doctor *d, int rank, struct text *out)
{
    const struct recorder_status *s = status_of(d, rank);
    bool inside = s && strcmp(s->doing, "training") == 0 && s->step < s->steps;

    text_put(out, inside ? "in step %" PRIu64 : "at step %" PRIu64, s ? s->step + inside : 0);
}

/* The rank with the fewest or the most steps among the selected ones (NULL: all). */
static int find_step(const struct doctor *d, const bool *of, bool least)
{
    int found = -1;

    for (int i = 0; i < d->ranks; i++) {
        if ((of && !of[i]) || !status_of(d, i)) continue;
        uint64_t step = status_of(d, i)->step, best = found < 0 ? 0 : status_of(d, found)->step;
        if (found < 0 || (least ? step < best : step > best)) found = i;
    }
    return MAX(found, 0);
}

/* The rank whose failure is reported; -1: none failed. Ranks that exit with code 3 report the failure of another rank: any other comes
 * first. */
static int failed_rank(const struct doctor *d)
{
    int found = -1;

    for (int i = 0; i < d->ranks; i++) {
        if (!doctor_ended(d, i) || status_of(d, i)->code == 0) continue;
        if (found < 0 || (status_of(d, found)->code == 3 && status_of(d, i)->code != 3)) found = i;
    }
    return found;
}

/* Selects the ranks that died without recording how. Returns how many there are. */
static int select_unreported(const struct doctor *d, bool *out)
{
    for (int i = 0; i < d->ranks; i++) out[i] = doctor_unreported(d, i);
    return count_of(out, d->ranks);
}

static void put_failure(const struct doctor *d, int failed, const bool *unreported, int n, struct text *out)
{
    if (d->launched && d->code != 0) {
        text_put(out, "failed ");
        put_step(d, n > 0 ? find_step(d, unreported, true) : failed >= 0 ? failed : find_step(d, NULL, false), out);
        text_put(out, ": %s; exit %d", d->line, d->code);
    } else if (n > 0) {
        bool gone = launcher_gone(d);

        if (gone)
            text_put(out, "the launcher, process %" PRId64 ", was killed ", d->launcher);
        else
            put_ranks(out, unreported, d->ranks);
        text_put(out, gone ? "" : " ended without a report ");
        put_step(d, find_step(d, unreported, false), out);
        text_put(out, gone ? ", and " : ": killed, or the machine was restarted");
        if (gone) put_ranks(out, unreported, d->ranks);
        text_put(out, gone ? " ended with it" : "");
    } else {
        text_put(out, "failed ");
        put_step(d, failed, out);
        text_put(out, ": ");
        if (d->ranks > 1 && status_of(d, failed)->code != 3) text_put(out, "rank %d: ", failed);
        text_put(out, "%s; exit %d", status_of(d, failed)->why, (int)status_of(d, failed)->code);
    }
}

bool doctor_outcome(const struct doctor *d, struct text *out)
{
    bool unreported[d->ranks];
    int n = select_unreported(d, unreported), failed = failed_rank(d);

    for (int i = 0; i < d->ranks && !d->launched; i++)
        if (!doctor_ended(d, i) && !doctor_unreported(d, i) && !(launcher_gone(d) && d->status[i].life == LIFE_NONE)) return false;
    if ((d->launched && d->code != 0) || n > 0 || failed >= 0) {
        put_failure(d, failed, unreported, n, out);
    } else {
        const struct recorder_status *first = status_of(d, 0), *last = status_of(d, find_step(d, NULL, false));

        text_put(out, "%s at step %" PRIu64 " of %" PRIu64 ", exit 0", first && first->why[0] ? first->why : "finished",
                 last ? last->step : 0, last ? MAX(last->steps, last->step) : 0);
    }
    return true;
}
