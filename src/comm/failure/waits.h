/* waits.h - the graph of which rank waits for which, and the search for the rank that is the root cause.
 *
 * A node is a rank of the world. A rank that waits in a call has an edge to every rank that has not made the call. The cause is where the
 * edges end: a rank that has been stopped for the timeout, that does not respond, or that has shown no progress for the timeout (stuck). A
 * rank that shows progress (busy) or was stopped only a moment ago is not a failure: ranks that wait for it keep waiting. A cycle of edges
 * is a deadlock: the ranks have made their calls in different orders. The functions are pure: they use no comm and no clock.
 */
#ifndef LS_COMM_FAILURE_WAITS_H
#define LS_COMM_FAILURE_WAITS_H

#include <stdbool.h>

enum waits_state { NODE_WORKS, NODE_WAITS, NODE_STOPPED, NODE_SILENT };

struct waits_node {
    enum waits_state state;
    double quiet; /* seconds since its last sign of progress; of a STOPPED rank since it was stopped; see BLOCKED_TIMES in cause.h */
};

typedef bool waits_edge_fn(void *ctx, int from, int to); /* true if `from` waits in a call that `to` has not made */

struct waits_graph {
    int n;
    const struct waits_node *node; /* [n] */
    waits_edge_fn *edge;
    void *ctx;
    double timeout; /* seconds without progress after which a working rank counts as stuck */
};

/* In ascending order of severity. The most severe state that can be reached is the cause; of equal ones the nearest. */
enum cause_kind { CAUSE_NONE, CAUSE_BUSY, CAUSE_CYCLE, CAUSE_STUCK, CAUSE_SILENT, CAUSE_STOPPED };

struct cause {
    enum cause_kind kind; /* NONE: the call of `from` is missing no rank */
    int rank;             /* -1 for NONE and CYCLE */
    int steps;            /* length of path: the ranks from `from` to `rank`; for a CYCLE its ranks, each of which waits for the next */
};

/* Finds the cause that rank `from` waits for. The caller provides path[n] and work[2 * n]. */
struct cause waits_follow(const struct waits_graph *g, int from, int *path, int *work);

#endif
