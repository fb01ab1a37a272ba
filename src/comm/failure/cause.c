/* cause.c - builds the graph of waits.h from the boards of all ranks. */
#include "comm/failure/cause.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"

bool is_message(int op) { return op == LS_COLLECTIVE_SEND || op == LS_COLLECTIVE_RECV; }

enum call_position scene_position(const struct scene *s, int rank, const struct signature *call)
{
    int place = board_find(&s->seen[rank], call->group);

    if (place < 0) return POSITION_UNKNOWN;
    if (s->seen[rank].at[place].begun < call->sequence) return POSITION_BEFORE;
    return s->seen[rank].at[place].done < call->sequence ? POSITION_INSIDE : POSITION_AFTER;
}

/* Within the timeout. */
static bool was_blocked(const struct scene *s, int rank)
{
    double at = s->comm->job->sighted[rank].blocked;

    return at > 0 && at > s->now - s->comm->timeout;
}

/* The call is one that the device makes, and rank `to` is in it but shows no sign of life: its host may not have enqueued what the call
 * needs. */
static bool is_dead_inside(const struct scene *s, int from, int to)
{
    const struct waits_node *node = &s->node[to];

    return from == s->n && s->work->native && node->state == NODE_WORKS && (node->quiet >= s->comm->timeout || was_blocked(s, to));
}

static bool is_member(const struct scene *s, int rank)
{
    const struct link_base *l = link_base(s->comm->link);

    for (int i = 0; i < l->n; i++)
        if (l->member[i] == rank) return true;
    return false;
}

/* True if both ends of a message have been posted. */
static bool matches(const struct board_seen *a, int from, const struct board_seen *b)
{
    const struct signature *x = &a->waits.signature, *y = &b->waits.signature;

    return b->waits.state != CALL_NONE && is_message(y->op) && y->op != x->op && y->group == x->group && y->sequence == x->sequence &&
           b->peer == from;
}

bool scene_waits_for(const struct scene *s, int from, int to)
{
    const struct board_seen *a = &s->seen[from];
    const struct signature *call = &a->waits.signature;
    bool stopped = s->node[to].state == NODE_STOPPED;

    if (to == s->n) return false;
    if (a->waits.state == CALL_NONE) return false;
    if (is_message(call->op)) return a->peer == to && (stopped || !matches(a, from == s->n ? s->me : from, &s->seen[to]));
    enum call_position position = scene_position(s, to, call);
    if (position == POSITION_UNKNOWN) /* this rank knows the members of its own groups, even those that have not published the group */
        return from == s->n && scene_position(s, s->me, call) != POSITION_UNKNOWN && is_member(s, to);
    return position == POSITION_BEFORE || (position == POSITION_INSIDE && (stopped || is_dead_inside(s, from, to)));
}

static bool waits_for(void *ctx, int from, int to) { return scene_waits_for(ctx, from, to); }

static void see_work(struct scene *s)
{
    struct board_seen *own = &s->seen[s->n];
    const ls_work *w = s->work;

    own->waits =
        (struct call_record){ .signature = w->request.signature, .queued = w->queued, .started = w->started, .state = CALL_RUNNING };
    memcpy(own->waits.name, s->comm->name, sizeof own->waits.name);
    own->peer = is_message(w->op) ? link_base(s->comm->link)->member[w->request.root] : -1;
    s->node[s->n] = (struct waits_node){ NODE_WAITS, s->now - w->moved };
}

static struct sighting see_process(const struct scene *s, int rank)
{
    const struct transport *t = s->comm->transport;
    enum process_doing doing = rank == s->me || !t->doing ? PROCESS_RUNS : t->doing(s->comm->link, rank);
    struct sighting *seen = &s->comm->job->sighted[rank];

    if (doing == PROCESS_BLOCKED) seen->blocked = s->now;
    if (doing != PROCESS_STOPPED)
        seen->stopped = 0;
    else if (seen->stopped == 0)
        seen->stopped = s->now;
    return *seen;
}

bool scene_stays_blocked(const struct scene *s, int rank)
{
    const struct waits_node *node = &s->node[rank];

    return node->state == NODE_WORKS && node->quiet >= BLOCKED_TIMES * s->comm->timeout && isfinite(node->quiet) && was_blocked(s, rank);
}

/* A rank that has never shown progress counts as quiet for an infinite time. */
static void see_rank(struct scene *s, int rank)
{
    const struct transport *t = s->comm->transport;
    struct board_seen *b = &s->seen[rank];
    struct waits_node *node = &s->node[rank];
    bool own = rank == s->me, answers = own || (t->see && t->see(s->comm->link, rank, b) == LS_OK);
    if (own && s->comm->job->board) board_copy(s->comm->job->board, b);
    bool waits = answers && b->waits.state != CALL_NONE;
    struct sighting process = see_process(s, rank);
    double last = waits ? fmax(b->alive, b->waits.queued) : b->alive, stopped = process.stopped;

    node->state = stopped > 0 ? NODE_STOPPED : !answers ? NODE_SILENT : waits ? NODE_WAITS : NODE_WORKS;
    node->quiet = b->alive > 0 ? s->now - last : INFINITY;
    if (stopped > 0 && (waits || node->quiet == INFINITY))
        node->quiet = s->now - stopped; /* a rank that was working is quiet since its last pulse */
    if (node->state == NODE_WORKS && process.blocked > 0 && node->quiet < BLOCKED_TIMES * s->comm->timeout)
        node->quiet = fmin(node->quiet, s->now - process.blocked);
}

ls_status scene_open(ls_comm *c, const ls_work *w, double now, struct scene *out)
{
    struct scene s = { .comm = c, .work = w, .n = link_base(c->link)->world_n, .me = link_base(c->link)->member[c->rank], .now = now };
    size_t n = (size_t)s.n + 1;

    if (!c->job->sighted && !(c->job->sighted = mem_array(MEM_OTHER, n, sizeof *c->job->sighted))) return LS_ENOMEM;
    s.seen = mem_array(MEM_OTHER, n, sizeof *s.seen);
    s.node = mem_array(MEM_OTHER, n, sizeof *s.node);
    s.path = mem_array(MEM_OTHER, 3 * n, sizeof *s.path);
    if (!s.seen || !s.node || !s.path) {
        scene_close(&s);
        return LS_ENOMEM;
    }
    s.scratch = s.path + n;
    for (int i = 0; i < s.n; i++) see_rank(&s, i);
    see_work(&s);
    struct waits_graph g = { .n = s.n + 1, .node = s.node, .edge = waits_for, .ctx = &s, .timeout = c->timeout };
    s.cause = waits_follow(&g, s.n, s.path, s.scratch);
    *out = s;
    return LS_OK;
}

void scene_close(struct scene *s)
{
    mem_free(s->seen);
    mem_free(s->node);
    mem_free(s->path);
    *s = (struct scene){ 0 };
}
