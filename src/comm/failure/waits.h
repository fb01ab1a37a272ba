/* waits.h - the graph of which rank waits for which, followed to the rank that is the root cause.
 *
 * A node is a rank of the world. A rank that waits in a call has an edge to every rank that the call is missing. The cause is where the
 * edges end: a rank that has been stopped for the timeout, that does not answer, or that has shown no progress for the timeout (stuck). A
 * rank that shows progress (busy) or was stopped just now is not a failure: ranks that wait for it keep waiting. Edges without an end are a
 * cycle: the ranks have called in different orders, and none will ever arrive. Pure functions: no comm, no clock.
 */
#ifndef LS_COMM_FAILURE_WAITS_H
#define LS_COMM_FAILURE_WAITS_H

#include <stdbool.h>

enum waits_state { NODE_WORKS, NODE_WAITS, NODE_STOPPED, NODE_SILENT };

struct waits_node {
    enum waits_state state;
    double quiet; /* seconds since its last sign of progress; STOPPED: since it was stopped */
};

typedef bool waits_edge_fn(void *ctx, int from, int to); /* true if the call that `from` waits in is missing `to` */

struct waits_graph {
    int n;
    const struct waits_node *node; /* [n] */
    waits_edge_fn *edge;
    void *ctx;
    double timeout; /* seconds without progress after which a working rank counts as stuck */
};

/* In ascending order of severity: the most severe that can be reached is the cause; of equal ones the nearest. */
enum cause_kind { CAUSE_NONE, CAUSE_BUSY, CAUSE_CYCLE, CAUSE_STUCK, CAUSE_SILENT, CAUSE_STOPPED };

struct cause {
    enum cause_kind kind; /* NONE: `from` is missing no rank */
    int rank;             /* -1: NONE and CYCLE */
    int steps;            /* path[steps]: from `from` to the cause's rank; of a CYCLE its ranks, each waits for the next */
};

/* The caller provides path[n] and work[2 * n]. */
struct cause waits_follow(const struct waits_graph *g, int from, int *path, int *work);

#endif
