/* waits.c - breadth-first search for the most severe end; if there is none, depth-first search for a cycle. */
#include "comm/failure/waits.h"

#include "base/base.h"

/* A rank that waits although its call is missing no rank is not a cause here: it reports its stall itself. */
static enum cause_kind waits_kind_of(const struct waits_graph *g, int rank)
{
    const struct waits_node *node = &g->node[rank];

    switch (node->state) {
    case NODE_STOPPED: return node->quiet >= g->timeout ? CAUSE_STOPPED : CAUSE_BUSY;
    case NODE_SILENT: return node->quiet >= g->timeout ? CAUSE_SILENT : CAUSE_BUSY;
    case NODE_WORKS: return node->quiet >= g->timeout ? CAUSE_STUCK : CAUSE_BUSY;
    default: return CAUSE_BUSY;
    }
}

static void take_path(const int *parent, int from, int rank, struct cause *c, int *path)
{
    int steps = 1;

    for (int at = rank; at != from; at = parent[at]) steps++;
    c->rank = rank;
    c->steps = steps;
    for (int at = rank; steps-- > 0; at = parent[at]) path[steps] = at;
}

/* Finds the most severe cause. queue[n] and parent[n] are scratch; parent -1: not visited. */
static struct cause search(const struct waits_graph *g, int from, int *path, int *queue, int *parent)
{
    struct cause c = { .kind = CAUSE_NONE, .rank = -1 };
    int head = 0, tail = 0;

    for (int i = 0; i < g->n; i++) parent[i] = -1;
    parent[from] = from;
    queue[tail++] = from;
    while (head < tail) {
        int at = queue[head++];

        for (int to = 0; to < g->n; to++) {
            if (to == at || !g->edge(g->ctx, at, to)) continue;
            if (c.kind == CAUSE_NONE) c.kind = CAUSE_BUSY; /* some rank is missing; the search finds which */
            if (parent[to] >= 0) continue;
            parent[to] = at;
            if (waits_kind_of(g, to) > c.kind || (waits_kind_of(g, to) == c.kind && c.rank < 0)) {
                c.kind = waits_kind_of(g, to);
                take_path(parent, from, to, &c, path);
            }
            if (g->node[to].state == NODE_WAITS) queue[tail++] = to;
        }
    }
    return c;
}

/* Finds a cycle of ranks that are reachable from `from` and have all been stalled for the timeout. Returns its length; 0: there is none.
 * next[n]: the rank to which the search of a rank continues, n when the search is complete; stack[n] is scratch. */
static int find_cycle(const struct waits_graph *g, int from, int *path, int *stack, int *next)
{
    int depth = 0;

    for (int i = 0; i < g->n; i++) next[i] = -1; /* not visited */
    stack[depth++] = from;
    next[from] = 0;
    while (depth > 0) {
        int at = stack[depth - 1], to = next[at];

        if (to == g->n) {
            depth--;
            continue;
        }
        next[at]++;
        if (to == at || g->node[to].state != NODE_WAITS || g->node[to].quiet < g->timeout || !g->edge(g->ctx, at, to)) continue;
        if (next[to] == -1) {
            next[to] = 0;
            stack[depth++] = to;
            continue;
        }
        int begin = depth - 1;
        while (begin >= 0 && stack[begin] != to) begin--;
        if (begin < 0) continue; /* `to` was searched completely before and is on no cycle */
        for (int i = begin; i < depth; i++) path[i - begin] = stack[i];
        return depth - begin;
    }
    return 0;
}

struct cause waits_follow(const struct waits_graph *g, int from, int *path, int *work)
{
    struct cause c = search(g, from, path, work, work + g->n);

    if (c.kind != CAUSE_BUSY) return c;
    int steps = find_cycle(g, from, path, work, work + g->n);
    if (steps > 0) return (struct cause){ .kind = CAUSE_CYCLE, .rank = -1, .steps = steps };
    return search(g, from, path, work, work + g->n); /* find_cycle() has overwritten the path */
}
