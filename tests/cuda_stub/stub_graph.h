/* stub_graph.h - streams, events and graphs of the stub, as its files share them: operations given to a captured stream become nodes.
 *
 * A node comes after the last ones of its stream and, where the stream has waited for an event that was recorded in the same capture, after
 * the last ones of the stream where that was. A launch runs the nodes in a random order among those allowed, on several streams of the
 * checking device, after all earlier operations of its stream and before all later ones. Records and waits that are external are nodes
 * too. What the documentation forbids while a stream is captured ends the process, as do dependencies that cross the bounds of a capture.
 */
#ifndef LS_TESTS_CUDA_STUB_GRAPH_H
#define LS_TESTS_CUDA_STUB_GRAPH_H

#include "stub.h"

enum { STUB_FRONTIER = 16 };

/* Nodes that come before the next captured one. */
struct stub_frontier {
    int at[STUB_FRONTIER], n;
};

/* Destroyed handles are kept, so that later uses of them are detected. */
struct CUstream_st {
    struct CUstream_st *next;
    struct device_stream *stream;
    bool alive;
    uint64_t given, ended;      /* operations, except those of graphs; how many of them have ended, as far as the caller has asked */
    struct CUgraph_st *capture; /* NULL: its operations run */
    struct stub_frontier last;
};
struct CUevent_st {
    struct CUevent_st *next;
    struct device_event *event;
    bool alive, recorded, timed;
    struct CUstream_st *stream; /* where it was last recorded, after so many operations; NULL: in a graph, or nowhere */
    uint64_t given;
    uint64_t at;                /* stub_time_passes(), when it was recorded */
    struct CUgraph_st *capture; /* it was last recorded in a capture, after these */
    struct stub_frontier after;
};

struct CUstream_st *stub_streams(void); /* the first */
struct CUstream_st *stub_stream_of(cudaStream_t s, const char *call);

void stub_capture_call(const char *name); /* dies if it must not be called while a stream is captured */
bool stub_captures_stream(const struct device_stream *s);
/* True: it was captured, so it does not run now. */
bool stub_capture_operation(const struct device_stream *s, const struct device_operation *o);
bool stub_capture_record(struct CUstream_st *s, struct CUevent_st *e, bool external);
bool stub_capture_wait(struct CUstream_st *s, struct CUevent_st *e, bool external);
bool stub_graph_runs(void); /* its operations are being given to streams */
uint64_t stub_captures(void), stub_graph_launches(void); /* so many */

#endif
