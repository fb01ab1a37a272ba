/* doctor_say.c - a finding in one sentence. */
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
