/* waits.h - the graph of who waits for whom, followed to the rank that is the cause.
 *
 * A node is a rank of the world. A rank that waits in a call has an edge to every rank that the call lacks. Where the edges end
 * is the cause: a rank that has been stopped for the timeout, that does not answer, or that has shown no progress for the timeout
 * (stuck). A rank that shows progress (busy) or was stopped just now is no failure: whoever waits for it waits on. Edges
 * that end nowhere are a cycle: the ranks have called in different orders, and none of them will ever come. Pure: no comm, no clock.
 */
#ifndef LS_COMM_FAILURE_WAITS_H
#define LS_COMM_FAILURE_WAITS_H

#include <stdbool.h>

enum waits_state { NODE_WORKS, NODE_WAITS, NODE_STOPPED, NODE_SILENT };

struct waits_node {
    enum waits_state state;
    double quiet; /* seconds since its last sign of progress; STOPPED: since it was stopped */
};

typedef bool waits_edge_fn(void *ctx, int from, int to); /* whether the call that `from` waits in lacks `to` */

struct waits_graph {
    int n;
    const struct waits_node *node; /* [n] */
    waits_edge_fn *edge;
    void *ctx;
    double timeout; /* seconds of quiet after which a rank that works is stuck */
};

/* In ascending order of gravity: the gravest that can be reached is the cause; of equal ones the nearest. */
enum cause_kind { CAUSE_NONE, CAUSE_BUSY, CAUSE_CYCLE, CAUSE_STUCK, CAUSE_SILENT, CAUSE_STOPPED };

struct cause {
    enum cause_kind kind; /* NONE: `from` lacks nobody */
    int rank;             /* -1: NONE and CYCLE */
    int steps;            /* path[steps]: from `from` to the cause's rank; of a CYCLE its ranks, each waits for the next */
};

/* path[n] and work[2 * n] are the caller's. */
struct cause waits_follow(const struct waits_graph *g, int from, int *path, int *work);

#endif
