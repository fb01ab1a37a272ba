/* verdict.c - finds the failure that ends a job, and describes it in one line that names the rank.
 *
 * If an operation stalls, this rank reads what the others are doing: first after LOOK_FIRST seconds, then less and less often. A rank that
 * made a call with the same number but another signature is a mismatch, even if it sent no message to this rank. When the comm's timeout
 * has passed, this rank follows the wait graph (cause.h, waits.h) over all groups to the rank that waits for no other: it is stopped, does
 * not respond, or has shown no progress for the timeout (for BLOCKED_TIMES of it, if it is blocked in the kernel). The line names the call
 * and that rank first, then the ranks that wait for it, up to this rank. While that rank shows progress, nothing is reported: the timeout
 * does not have to cover what a rank is busy with. Lines name world ranks.
 */
#include "comm/failure/cause.h"
#include "comm/engine/engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LOOK_FIRST 2e-3 /* seconds from the stall to the first look at other ranks */
#define LOOK_SHARE 0.1  /* the wait graph is built first after this fraction of the timeout, then once per fraction */

/* A line of text, which is truncated if it does not fit. */
struct line {
    char text[LINE_ROOM];
    size_t at;
};

static void verdict_put(struct line *l, const char *fmt, ...) LS_PRINTF(2, 3);
static void verdict_put(struct line *l, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(l->text + l->at, sizeof l->text - l->at, fmt, args);
    va_end(args);
    l->at = MIN(l->at + (size_t)MAX(n, 0), sizeof l->text - 1);
}

ls_status comm_mismatch(const struct link_base *l, int mine, const struct signature *a, int other, const struct signature *b)
{
    char one[128], two[128];

    if (other < mine) return comm_mismatch(l, other, b, mine, a); /* so that both ranks write the same line */
    mine = l->member[mine];
    other = l->member[other];
    signature_call(a, one, sizeof one);
    signature_call(b, two, sizeof two);
    if (a->group != b->group)
        return ls_fail(LS_EPEER, "%s #%llu of %s: rank %d called %s, rank %d called %s of another comm",
                       ls_collective_name((ls_collective)a->op), (unsigned long long)a->sequence, l->name, mine, one, other, two);
    if (a->sequence != b->sequence)
        return ls_fail(LS_EPEER, "%s #%llu of %s: rank %d called %s, rank %d called %s as #%llu", ls_collective_name((ls_collective)a->op),
                       (unsigned long long)a->sequence, l->name, mine, one, other, two, (unsigned long long)b->sequence);
    return ls_fail(LS_EPEER, "%s #%llu of %s: rank %d called %s, rank %d called %s", ls_collective_name((ls_collective)a->op),
                   (unsigned long long)a->sequence, l->name, mine, one, other, two);
}

/* ---- mismatches ---- */

static ls_status find_mismatch(ls_comm *c, const ls_work *w)
{
    const struct link_base *l = link_base(c->link);

    for (int rank = 0; rank < c->n; rank++) {
        struct call_record r;

        if (rank == c->rank || is_message(w->op) || c->transport->peek(c->link, l->member[rank], &r) != LS_OK) continue;
        if (r.state == CALL_NONE || is_message(r.signature.op) || r.signature.group != c->group) continue;
        if (r.signature.sequence != w->request.signature.sequence || signature_agrees(&r.signature, &w->request.signature)) continue;
        return comm_mismatch(l, c->rank, &w->request.signature, rank, &r.signature);
    }
    return LS_OK;
}

/* ---- the line of a timeout ---- */

static int rank_of(const struct scene *s, int node) { return node == s->n ? s->me : node; }

/* Describes the last call of a rank; the name of its group is left out if it is `group`. */
static void put_last(struct line *l, const struct scene *s, int rank, uint64_t group)
{
    struct call_record r;

    if (s->comm->transport->peek(s->comm->link, rank, &r) != LS_OK) {
        verdict_put(l, "it does not respond");
    } else if (r.state == CALL_NONE) {
        verdict_put(l, "it has made no call yet");
    } else {
        bool here = r.signature.group == group;

        verdict_put(l, "its last call was %s #%llu%s%.31s", ls_collective_name((ls_collective)r.signature.op),
                    (unsigned long long)r.signature.sequence, here ? "" : " of ", here ? "" : r.name);
        if (r.state == CALL_DONE)
            verdict_put(l, ", which ended %.1f s ago", s->now - r.ended);
        else if (r.started > 0)
            verdict_put(l, ", which it has been in for %.1f s", s->now - r.started);
    }
}

/* "rank 2 did not call it within 5 s: its last call was ..." */
static void verdict_put_rank(struct line *l, const struct scene *s, int rank, const struct signature *call)
{
    double timeout = s->comm->timeout;

    bool stopped = s->node[rank].state == NODE_STOPPED;

    if ((stopped || !is_message(call->op)) && scene_position(s, rank, call) == POSITION_INSIDE) {
        verdict_put(l, "rank %d %s made no progress for %g s", rank, stopped ? "was stopped in it and" : "called it, but", timeout);
        return;
    }
    if (stopped)
        verdict_put(l, "rank %d was stopped and made no progress for %g s: ", rank, timeout);
    else if (scene_stays_blocked(s, rank))
        verdict_put(l, "rank %d is blocked in the kernel, as on a disk, and made no progress for %.1f s: ", rank, s->node[rank].quiet);
    else if (is_message(call->op))
        verdict_put(l, "rank %d did not call the matching %s within %g s: ", rank, call->op == LS_COLLECTIVE_SEND ? "recv" : "send",
                    timeout);
    else
        verdict_put(l, "rank %d did not call it within %g s: ", rank, timeout);
    put_last(l, s, rank, call->group);
}

/* Adds the other ranks that the call is missing and that have exceeded the timeout, too. */
static void put_others(struct line *l, const struct scene *s, int waiting, int named, const struct signature *call)
{
    for (int i = 0; i < s->n; i++) {
        bool blamed = s->node[i].state != NODE_WAITS && s->node[i].quiet >= s->comm->timeout;

        if (i == named || !blamed || !scene_waits_for(s, waiting, i)) continue;
        verdict_put(l, "; ");
        verdict_put_rank(l, s, i, call);
    }
}

/* Stopped, or the cause itself. */
static bool verdict_is_named(const struct scene *s, int rank) { return s->node[rank].state == NODE_STOPPED || rank == s->cause.rank; }

/* Names the other ranks at that position: "; ranks 0, 3 wait in all_reduce #12", "; rank 1 has completed all_reduce #12". */
static void put_position(struct line *l, const struct scene *s, const struct signature *call, enum call_position position)
{
    int n = 0, last = -1;

    for (int i = 0; i < s->n; i++) n += !verdict_is_named(s, i) && scene_position(s, i, call) == position;
    if (!n) return;
    verdict_put(l, "; rank%s", n > 1 ? "s" : "");
    for (int i = 0; i < s->n; i++) {
        if (verdict_is_named(s, i) || scene_position(s, i, call) != position) continue;
        verdict_put(l, "%s %d", last < 0 ? "" : ",", i);
        last = i;
    }
    verdict_put(l, " %s %s #%llu",
                position == POSITION_AFTER ? n > 1 ? "have completed" : "has completed"
                : n > 1                    ? "wait in"
                                           : "waits in",
                ls_collective_name((ls_collective)call->op), (unsigned long long)call->sequence);
}

static void put_waiting(struct line *l, const struct scene *s, int waiting, const struct signature *call)
{
    if (is_message(call->op)) {
        verdict_put(l, "; rank %d waits in it", rank_of(s, waiting));
        return;
    }
    put_position(l, s, call, POSITION_INSIDE);
    put_position(l, s, call, POSITION_AFTER);
}

static void put_call(struct line *l, const struct call_record *r)
{
    char call[256];

    verdict_put(l, "%s", signature_text(&r->signature, r->name, call, sizeof call));
}

/* Names the call and the rank that did not make it, then the chain of waits from there to this rank. */
static void put_cause(struct line *l, const struct scene *s)
{
    int steps = s->cause.steps, waiting = s->path[steps - 2];
    const struct call_record *r = &s->seen[waiting].waits;

    put_call(l, r);
    verdict_put(l, ": ");
    verdict_put_rank(l, s, s->cause.rank, &r->signature);
    put_others(l, s, waiting, s->cause.rank, &r->signature);
    put_waiting(l, s, waiting, &r->signature);
    for (int i = steps - 3; i >= 0; i--) {
        verdict_put(l, "; rank %d waits for rank %d in ", rank_of(s, s->path[i]), s->path[i + 1]);
        put_call(l, &s->seen[s->path[i]].waits);
    }
}

static void put_cycle(struct line *l, const struct scene *s)
{
    int n = s->cause.steps;

    verdict_put(l, "deadlock: the ranks made their calls in different orders: ");
    for (int i = 0; i < n; i++) {
        verdict_put(l, "%srank %d waits for rank %d in ", i ? "; " : "", s->path[i], s->path[(i + 1) % n]);
        put_call(l, &s->seen[s->path[i]].waits);
    }
}

static ls_status judge(const struct scene *s)
{
    const struct call_record *own = &s->seen[s->n].waits;
    bool message = is_message(own->signature.op);
    struct line l = { .at = 0 };

    switch (s->cause.kind) {
    case CAUSE_BUSY: return LS_OK;
    case CAUSE_CYCLE: put_cycle(&l, s); break;
    case CAUSE_NONE:
        put_call(&l, own);
        verdict_put(&l, ": %s ranks called it, but it made no progress for %g s", message ? "both" : "all", s->comm->timeout);
        put_waiting(&l, s, s->n, &own->signature);
        break;
    default: put_cause(&l, s);
    }
    return ls_fail(LS_ETIMEOUT, "%s", l.text);
}

/* Begins after a fraction of the timeout, so that stopped ranks are noticed early and ranks whose boards must be requested (MPI) have
 * replied before the timeout is over. */
static ls_status find_cause(ls_comm *c, ls_work *w, double now)
{
    double still = now - w->moved;
    struct scene s;

    if (now - w->judged < MIN(c->timeout * LOOK_SHARE, 0.5)) return LS_OK;
    w->judged = now;
    LS_TRY(c->transport->failed(c->link));
    LS_TRY(scene_open(c, w, now, &s));
    ls_status st = still < c->timeout ? LS_OK : judge(&s);
    scene_close(&s);
    return st;
}

ls_status verdict_look(ls_comm *c, ls_work *w, double now)
{
    double still = now - w->moved;

    if (!w->begun || still < LOOK_FIRST) return LS_OK;
    if (w->native && now - atomic_load(&w->asked) > c->timeout * LOOK_SHARE) {
        w->moved = now; /* its caller is busy elsewhere: whether the call is over is not known */
        return LS_OK;
    }
    if (now - w->looked > MIN(still / 2, 1.0)) {
        w->looked = now;
        recorder_seen(w->call);
        LS_TRY(find_mismatch(c, w));
    }
    return still < c->timeout * LOOK_SHARE ? LS_OK : find_cause(c, w, now);
}
