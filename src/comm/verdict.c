/* verdict.c - what ends a job, in one line that names the rank.
 *
 * An operation that stands still is looked into: first after LOOK_FIRST, then less and less often, this rank asks what the
 * others do. A rank that is in a call of the same number but another kind is a mismatch, found although no message of it came
 * this way; when the comm's deadline has passed, those who haven't come are named, with what they did last.
 */
#include "comm/engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LOOK_FIRST 2e-3  /* seconds of standstill */

/* What a line is built in; it ends where it is full. */
struct line { char text[LINE_ROOM]; size_t at; };

static void put(struct line *l, const char *fmt, ...) LS_PRINTF(2, 3);
static void put(struct line *l, const char *fmt, ...)
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

    if (other < mine) return comm_mismatch(l, other, b, mine, a);  /* both ranks write the same line */
    signature_call(a, one, sizeof one);
    signature_call(b, two, sizeof two);
    if (a->group != b->group)
        return ls_fail(LS_EPEER, "%s #%llu of %s: rank %d called %s, rank %d called %s of another comm",
                       ls_collective_name((ls_collective)a->op), (unsigned long long)a->sequence, l->name, mine, one, other, two);
    if (a->sequence != b->sequence)
        return ls_fail(LS_EPEER, "%s #%llu of %s: rank %d called %s, rank %d called %s as #%llu",
                       ls_collective_name((ls_collective)a->op), (unsigned long long)a->sequence, l->name, mine, one, other, two,
                       (unsigned long long)b->sequence);
    return ls_fail(LS_EPEER, "%s #%llu of %s: rank %d called %s, rank %d called %s", ls_collective_name((ls_collective)a->op),
                   (unsigned long long)a->sequence, l->name, mine, one, other, two);
}

/* ---- what a peer does ---- */

/* In the same call; past it; not there yet; no answer; in the call, but its process was stopped. */
enum standing { THERE, AHEAD, LATE, SILENT, STOPPED };
struct peer { enum standing standing; struct call_record last; };

static bool is_message(int op) { return op == LS_COLLECTIVE_SEND || op == LS_COLLECTIVE_RECV; }

static bool under_way(const struct call_record *r) { return r->state == CALL_QUEUED || r->state == CALL_RUNNING; }

/* Where `rank` stands as seen from w, which hasn't moved. */
static struct peer look_at(ls_comm *c, const ls_work *w, int rank)
{
    const struct signature *mine = &w->request.signature;
    bool stopped = c->transport->stopped && c->transport->stopped(c->link, rank);
    struct peer p = { .standing = SILENT };

    if (c->transport->peek(c->link, rank, &p.last) != LS_OK) return p;

    const struct signature *its = &p.last.signature;

    p.standing = LATE;
    if (is_message(w->op)) {
        bool turned = is_message(its->op) && its->op != (int32_t)w->op && its->root == c->rank;

        if (turned && its->group == mine->group && its->sequence == mine->sequence && under_way(&p.last)) p.standing = THERE;
    } else if (its->group == mine->group && !is_message(its->op) && p.last.state != CALL_NONE) {
        if (its->sequence > mine->sequence || (its->sequence == mine->sequence && p.last.state == CALL_DONE)) p.standing = AHEAD;
        else if (its->sequence == mine->sequence) p.standing = THERE;
    }
    if (stopped && p.standing == THERE) p.standing = STOPPED;
    return p;
}

static ls_status find_mismatch(ls_comm *c, const ls_work *w)
{
    for (int rank = 0; rank < c->n; rank++) {
        struct call_record r;

        if (rank == c->rank || is_message(w->op) || c->transport->peek(c->link, rank, &r) != LS_OK) continue;
        if (r.state == CALL_NONE || is_message(r.signature.op) || r.signature.group != c->group) continue;
        if (r.signature.sequence != w->request.signature.sequence || signature_agrees(&r.signature, &w->request.signature)) continue;
        return comm_mismatch(link_base(c->link), c->rank, &w->request.signature, rank, &r.signature);
    }
    return LS_OK;
}

/* ---- the line of a deadline ---- */

static void put_last(struct line *l, const ls_comm *c, const struct peer *p, double now)
{
    const struct call_record *r = &p->last;
    bool here = r->signature.group == c->group;
    const char *name = ls_collective_name((ls_collective)r->signature.op);

    if (p->standing == SILENT) {
        put(l, "it does not answer");
    } else if (r->state == CALL_NONE) {
        put(l, "it has called nothing yet");
    } else {
        put(l, "its last call was %s #%llu%s%.31s", name, (unsigned long long)r->signature.sequence, here ? "" : " of ", here ? "" : r->name);
        if (r->state == CALL_DONE) put(l, ", done %.1f s ago", now - r->ended);
        else if (r->started > 0) put(l, ", in it for %.1f s", now - r->started);
    }
}

static void put_ranks(struct line *l, const ls_comm *c, const struct peer *p, enum standing which, const ls_work *w)
{
    int n = 0, last = -1;

    for (int i = 0; i < c->n; i++) n += p[i].standing == which;
    if (!n) return;
    put(l, "; rank%s", n > 1 ? "s" : "");
    for (int i = 0; i < c->n; i++) {
        if (p[i].standing != which) continue;
        put(l, "%s %d", last < 0 ? "" : ",", i);
        last = i;
    }
    put(l, " %s %s #%llu", which == AHEAD ? n > 1 ? "have done" : "has done" : n > 1 ? "wait in" : "waits in",
        ls_collective_name(w->op), (unsigned long long)w->request.signature.sequence);
}

static ls_status collective_line(ls_comm *c, const ls_work *w, struct line *l, double now)
{
    struct peer all[c->n];
    int named = 0;

    for (int i = 0; i < c->n; i++) {
        if (i == c->rank) all[i] = (struct peer){ .standing = THERE };
        else all[i] = look_at(c, w, i);
    }
    for (int i = 0; i < c->n; i++) {
        if (all[i].standing == THERE || all[i].standing == AHEAD) continue;
        if (all[i].standing == STOPPED) {
            put(l, "%s rank %d was stopped in it, and nothing moved for %g s", named++ ? ";" : ":", i, c->timeout);
            continue;
        }
        put(l, "%s rank %d has not come within %g s: ", named++ ? ";" : ":", i, c->timeout);
        put_last(l, c, &all[i], now);
    }
    if (!named) put(l, ": all ranks have come, and nothing moved for %g s", c->timeout);
    put_ranks(l, c, all, THERE, w);
    put_ranks(l, c, all, AHEAD, w);
    return ls_fail(LS_ETIMEOUT, "%s", l->text);
}

static ls_status message_line(ls_comm *c, const ls_work *w, struct line *l, double now)
{
    int other = w->request.root;
    struct peer p = look_at(c, w, other);

    if (p.standing == STOPPED) put(l, ": rank %d was stopped in it, and nothing moved for %g s", other, c->timeout);
    else if (p.standing == THERE) put(l, ": both ranks have come, and nothing moved for %g s", c->timeout);
    else put(l, ": rank %d has not come within %g s: ", other, c->timeout);
    if (p.standing == LATE || p.standing == SILENT) put_last(l, c, &p, now);
    put(l, "; rank %d waits in it", c->rank);
    return ls_fail(LS_ETIMEOUT, "%s", l->text);
}

ls_status verdict_look(ls_comm *c, ls_work *w, double now)
{
    double still = now - w->moved;
    struct line l = { .at = 0 };

    if (!w->begun || still < LOOK_FIRST) return LS_OK;
    if (now - w->looked > MIN(still / 2, 1.0)) {
        w->looked = now;
        LS_TRY(find_mismatch(c, w));
    }
    if (still < c->timeout) return LS_OK;
    LS_TRY(c->transport->failed(c->link));
    signature_text(&w->request.signature, c->name, l.text, sizeof l.text);
    l.at = strlen(l.text);
    return is_message(w->op) ? message_line(c, w, &l, now) : collective_line(c, w, &l, now);
}
