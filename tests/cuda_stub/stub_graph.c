/* stub_graph.c - capture and graphs of the stub. See stub_graph.h. */
#include "stub_graph.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/check.h"

enum node_kind { NODE_OPERATION, NODE_RECORD, NODE_WAIT };

struct node {
    enum node_kind kind;
    struct stub_frontier after;
    struct device_operation operation;
    struct CUevent_st *event;
    struct device_event *end; /* end of its last run */
    int lane;                 /* lane of its last run */
    bool run;                 /* in this launch */
};

/* A capture, and the graph that it becomes. */
struct CUgraph_st {
    struct CUgraph_st *next;
    struct node *node;
    int n, room;
    struct CUstream_st *origin; /* while it is captured */
    bool alive, chain;          /* chain: each node comes after the one before it */
};
struct CUgraphExec_st {
    struct CUgraphExec_st *next;
    struct CUgraph_st *graph;
    struct device_event *end; /* end of the last launch */
    bool alive;
};

enum { LANES = 3, EXEC_BYTES = 1 << 20 }; /* EXEC_BYTES: of the GPU's memory that an executable graph takes */

static const struct device *const stub_graph_queue = &device_check;
static struct CUgraph_st *graphs;
static struct CUgraphExec_st *execs;
static uint64_t captures, launches;
static struct device_stream *lanes[LANES]; /* [0]: the stream of the launch */
static struct device_event *lane_end[LANES];

uint64_t stub_captures(void) { return captures; }
uint64_t stub_graph_launches(void) { return launches; }

static void must(ls_status st)
{
    if (st < 0) stub_die("%s", ls_errmsg());
}

/* ---- calls that are not allowed ---- */

void stub_capture_call(const char *name)
{
    static const char *const allowed[] = { "cudaMemcpyAsync",  "cudaMemsetAsync",          "a launch",
                                           "cudaEventRecord",  "cudaEventRecordWithFlags", "cudaStreamWaitEvent",
                                           "cudaStreamBeginCapture", "cudaStreamEndCapture",   "cudnnSetStream",
                                           "cudnnBackendExecute" };
    const struct CUstream_st *s = stub_streams();

    while (s && !s->capture) s = s->next;
    if (!s || (strncmp(name, "cublasLt", 8) == 0 && strcmp(name, "cublasLtCreate") != 0)) return;
    for (size_t k = 0; k < COUNT_OF(allowed); k++)
        if (strcmp(name, allowed[k]) == 0) return;
    stub_die("%s: while a stream is captured (cudaErrorStreamCaptureUnsupported)", name);
}

/* ---- capture ---- */

static void frontier_add(struct stub_frontier *f, int node)
{
    for (int k = 0; k < f->n; k++)
        if (f->at[k] == node) return;
    if (f->n == STUB_FRONTIER) stub_die("a node comes after more than %d others", STUB_FRONTIER);
    f->at[f->n++] = node;
}

static struct node *capture_node(struct CUstream_st *s, enum node_kind kind)
{
    struct CUgraph_st *g = s->capture;

    if (g->n == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        if (!(g->node = realloc(g->node, (size_t)g->room * sizeof *g->node))) stub_die("no memory");
    }
    struct node *node = &g->node[g->n];
    *node = (struct node){ .kind = kind, .after = s->last };
    if (g->n) g->chain = g->chain && s->last.n == 1 && s->last.at[0] == g->n - 1;
    s->last = (struct stub_frontier){ { g->n++ }, 1 };
    return node;
}

static struct CUstream_st *captured_stream(const struct device_stream *s)
{
    struct CUstream_st *x = stub_streams();

    while (x && !(x->stream == s && x->alive)) x = x->next;
    return x && x->capture ? x : NULL;
}

bool stub_captures_stream(const struct device_stream *s) { return captured_stream(s) != NULL; }

bool stub_capture_operation(const struct device_stream *s, const struct device_operation *o)
{
    struct CUstream_st *x = captured_stream(s);
    void *args;

    if (!x) return false;
    struct node *node = capture_node(x, NODE_OPERATION);
    node->operation = *o;
    if (!(args = malloc(MAX(o->bytes, (size_t)1)))) stub_die("no memory");
    if (o->bytes) memcpy(args, o->args, o->bytes);
    node->operation.args = args;
    return true;
}

bool stub_capture_record(struct CUstream_st *s, struct CUevent_st *e, bool external)
{
    if (!s->capture && external) stub_die("cudaEventRecordWithFlags: cudaEventRecordExternal is for streams that are captured");
    if (external) {
        capture_node(s, NODE_RECORD)->event = e;
        return true;
    }
    e->capture = s->capture;
    e->after = s->last;
    return s->capture != NULL;
}

bool stub_capture_wait(struct CUstream_st *s, struct CUevent_st *e, bool external)
{
    static const char call[] = "cudaStreamWaitEvent";

    if (external) {
        if (!s->capture) stub_die("%s: cudaEventWaitExternal is for streams that are captured", call);
        capture_node(s, NODE_WAIT)->event = e;
        return true;
    }
    if (e->capture && !e->capture->origin) stub_die("%s: the event was last recorded in a capture (cudaErrorCapturedEvent)", call);
    if (s->capture && !e->capture)
        stub_die("%s: the event was recorded outside of the capture (cudaErrorStreamCaptureIsolation)", call);
    if (s->capture && e->capture != s->capture) stub_die("%s: of two captures (cudaErrorStreamCaptureMerge)", call);
    if (!e->capture) return false;
    if (!s->capture) s->last.n = 0; /* it joins the capture */
    s->capture = e->capture;
    for (int k = 0; k < e->after.n; k++) frontier_add(&s->last, e->after.at[k]);
    return true;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    struct CUstream_st *s = stub_stream_of(stream, "cudaStreamBeginCapture");
    cudaError_t e = stub_call("cudaStreamBeginCapture", false);
    struct CUgraph_st *g;

    if (e != cudaSuccess) return e;
    if (mode != cudaStreamCaptureModeThreadLocal)
        stub_die("cudaStreamBeginCapture: mode %d; calls of other threads would end the capture", (int)mode);
    if (s->capture) stub_die("cudaStreamBeginCapture: the stream is captured already");
    if (!(g = calloc(1, sizeof *g))) stub_die("no memory");
    g->chain = true;
    g->origin = s;
    g->next = graphs;
    s->last.n = 0;
    s->capture = graphs = g;
    return e;
}

/* Every node comes before the end of the stream that was captured first. */
static bool all_joined(const struct CUgraph_st *g)
{
    bool *before = calloc((size_t)g->n + 1, sizeof *before), joined = true;

    if (!before) stub_die("no memory");
    for (int k = 0; k < g->origin->last.n; k++) before[g->origin->last.at[k]] = true;
    for (int k = g->n - 1; k >= 0; k--) {
        joined = joined && before[k];
        for (int i = 0; i < g->node[k].after.n; i++) before[g->node[k].after.at[i]] = true;
    }
    free(before);
    return joined;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    static const char call[] = "cudaStreamEndCapture";
    struct CUstream_st *s = stub_stream_of(stream, call);
    cudaError_t e = stub_call(call, false);
    struct CUgraph_st *g = s->capture;

    *out = NULL;
    if (!g || g->origin != s) stub_die("%s: the stream does not capture (cudaErrorStreamCaptureUnmatched)", call);
    if (!all_joined(g)) stub_die("%s: a stream has not joined (cudaErrorStreamCaptureUnjoined)", call);
    for (struct CUstream_st *x = stub_streams(); x; x = x->next)
        if (x->capture == g) x->capture = NULL;
    g->origin = NULL;
    if (e != cudaSuccess) return e;
    if (++captures == stub_settings()->capture_fail) {
        stub_set_last(cudaErrorStreamCaptureInvalidated);
        return cudaErrorStreamCaptureInvalidated;
    }
    g->alive = true;
    *out = g;
    return e;
}

/* ---- graphs ---- */

static struct CUgraph_st *graph_of(cudaGraph_t graph, const char *call)
{
    struct CUgraph_st *g = graphs;

    while (g && g != graph) g = g->next;
    if (!g || !g->alive) stub_die("%s: %p is not a graph, or was destroyed", call, (void *)graph);
    return g;
}

static struct CUgraphExec_st *exec_of(cudaGraphExec_t exec, const char *call)
{
    struct CUgraphExec_st *x = execs;

    while (x && x != exec) x = x->next;
    if (!x || !x->alive) stub_die("%s: %p is not an executable graph, or was destroyed", call, (void *)exec);
    return x;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    static const char call[] = "cudaGraphInstantiate";
    struct CUgraph_st *g = graph_of(graph, call);
    cudaError_t e = stub_call(call, true);
    struct CUgraphExec_st *x;

    if (e != cudaSuccess) return e;
    if (flags) stub_die("%s: flags %llu", call, flags);
    if (!stub_memory_take(EXEC_BYTES)) return stub_set_last(cudaErrorMemoryAllocation), cudaErrorMemoryAllocation;
    if (!(x = calloc(1, sizeof *x))) stub_die("no memory");
    x->graph = g;
    x->alive = true;
    must(stub_graph_queue->event_new(&x->end));
    for (int k = 0; k < g->n; k++) must(stub_graph_queue->event_new(&g->node[k].end));
    x->next = execs;
    *out = execs = x;
    return e;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    struct CUgraph_st *g = graph_of(graph, "cudaGraphDestroy");
    cudaError_t e = stub_call("cudaGraphDestroy", false);

    if (e == cudaSuccess) g->alive = false;
    return e;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    struct CUgraphExec_st *x = exec_of(exec, "cudaGraphExecDestroy");
    cudaError_t e = stub_call("cudaGraphExecDestroy", false);

    if (e != cudaSuccess) return e;
    x->alive = false;
    stub_memory_give(EXEC_BYTES);
    return e;
}

/* ---- launches ---- */

static uint64_t stub_graph_draw(void) /* splitmix64 */
{
    static uint64_t random;

    if (!random) random = stub_settings()->seed * 2 + 1;
    uint64_t z = random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void run_node(struct CUgraph_st *g, struct node *node)
{
    struct device_stream *s = lanes[node->lane];

    for (int k = 0; k < node->after.n; k++) {
        const struct node *before = &g->node[node->after.at[k]];

        if (before->lane != node->lane) must(stub_graph_queue->event_wait(before->end, s));
    }
    if (node->event && !node->event->alive) stub_die("cudaGraphLaunch: an event of the graph was destroyed");
    if (node->kind == NODE_OPERATION) stub_enqueue(s, &node->operation);
    if (node->kind == NODE_WAIT && node->event->recorded) must(stub_graph_queue->event_wait(node->event->event, s));
    if (node->kind == NODE_RECORD) {
        node->event->recorded = true;
        node->event->capture = NULL;
        node->event->stream = NULL;
        node->event->at = stub_time_passes(0);
        must(stub_graph_queue->event_record(node->event->event, s));
    }
    if (!g->chain) must(stub_graph_queue->event_record(node->end, s));
    node->run = true;
}

static bool node_is_ready(const struct CUgraph_st *g, const struct node *node)
{
    for (int k = 0; k < node->after.n; k++)
        if (!g->node[node->after.at[k]].run) return false;
    return !node->run;
}

static struct node *draw_node(const struct CUgraph_st *g)
{
    struct node *found = NULL;
    uint64_t seen = 0;

    for (int k = 0; k < g->n; k++)
        if (node_is_ready(g, &g->node[k]) && stub_graph_draw() % ++seen == 0) found = &g->node[k];
    return found;
}

static void run_chain(struct CUgraph_st *g)
{
    for (int k = 0; k < g->n; k++) {
        g->node[k].lane = 0;
        run_node(g, &g->node[k]);
    }
}

/* begun: the position of the launch's stream. */
static void run_lanes(struct CUgraph_st *g, struct device_event *begun)
{
    for (int l = 1; l < LANES; l++) {
        if (!lanes[l]) {
            must(stub_graph_queue->stream_new("a graph", &lanes[l]));
            must(stub_graph_queue->event_new(&lane_end[l]));
        }
        must(stub_graph_queue->event_wait(begun, lanes[l]));
    }
    for (int k = 0; k < g->n; k++) g->node[k].run = false;
    for (struct node *node; (node = draw_node(g));) {
        node->lane = (int)(stub_graph_draw() % LANES);
        run_node(g, node);
    }
    for (int l = 1; l < LANES; l++) {
        must(stub_graph_queue->event_record(lane_end[l], lanes[l]));
        must(stub_graph_queue->event_wait(lane_end[l], lanes[0]));
    }
}

static bool graph_runs;

bool stub_graph_runs(void) { return graph_runs; }

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    static const char call[] = "cudaGraphLaunch";
    struct CUgraphExec_st *x = exec_of(exec, call);
    struct CUstream_st *s = stub_stream_of(stream, call);
    cudaError_t e = stub_call(call, false);

    if (e != cudaSuccess) return e;
    launches++;
    lanes[0] = s->stream;
    must(stub_graph_queue->event_wait(x->end, s->stream)); /* waits for the previous launch */
    must(stub_graph_queue->event_record(x->end, s->stream));
    graph_runs = true;
    if (x->graph->chain)
        run_chain(x->graph);
    else
        run_lanes(x->graph, x->end);
    graph_runs = false;
    must(stub_graph_queue->event_record(x->end, s->stream));
    return e;
}
