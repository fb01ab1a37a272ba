/* graphs.h - instructions of a segment that a device records once as a graph (CUDA graphs) and then launches as one.
 *
 * A graph takes instructions of the compute stream that are static: the device runs them with the same addresses and values each time, and
 * the host neither gives nor reads anything between them. What changes from step to step is in device memory: the learning rate, the
 * number of the step, the offsets of dropout. Kernels of the cpu, collectives, messages, routed rows, offloaded state and
 * the check of the gradient norm are launched as usual.
 *
 * A graph is instructions [begin, end) of the list. Those of other streams between them are launched after the graph, so it ends before the
 * first instruction that waits for one of them. They wait for points within the graph (records of events), and it waits at points
 * within itself for what was launched before, so the order is the same as without graphs.
 *
 * There is one recording for each slot, whose addresses differ. The first run of a graph launches its instructions one by one, so that
 * libraries have loaded what they need; the second records and launches it; later ones launch it. Runs that look at single instructions
 * (watchers, check_finite, injected faults) have no graphs.
 */
#ifndef LS_RUNTIME_GRAPHS_H
#define LS_RUNTIME_GRAPHS_H

#include "ir/program.h"

enum { GRAPH_LEAST = 2 }; /* instructions: launching one by itself costs no more */

/* One slot's recording. */
struct graph_recording {
    struct device_graph *graph; /* NULL: there is none yet */
    bool warm;                  /* its instructions have run */
};

struct graph {
    int begin, end, instructions;
    struct graph_recording *recording; /* [slots] */
};

/* A graph may take i in runs of these segments. */
bool graph_takes(const struct instruction *i, int segments);
/* The graphs of a segment in their order, in runs of these segments; out has room for one per instruction. Returns how many. */
int graphs_find(const ls_program *p, enum segment s, int segments, struct graph *out);

ls_status graphs_bind(ls_program *p); /* after streams_bind(); nothing for a device without graphs */
void graphs_unbind(ls_program *p);    /* nothing runs */
/* The graph that begins at instruction n of segment s and is to be used in this run; NULL: none. */
struct graph *graph_at(const ls_program *p, enum segment s, int segments, int n);

#endif
