/* graph.c - graphs, recorded by capturing a stream. See cuda.h. */
#include "device/cuda/cuda.h"

#include <stdio.h>
#include "base/mem.h"

struct device_graph {
    cudaGraphExec_t exec;
    unsigned operations;
    size_t taken; /* bytes of the GPU's memory */
};

bool cuda_graphs(void) { return !cuda.settings.no_graphs; }

/* The message of a failed capture names the option that turns graphs off. */
static ls_status graph_check(cudaError_t e, const char *call)
{
    char why[400];

    if (e < cudaErrorStreamCaptureUnsupported || e > cudaErrorGraphExecUpdateFailure) return cuda_check(e, call);
    snprintf(why, sizeof why, "cuda: GPU %d (%s): %s: %s (%s)", cuda.gpu, cuda.properties.name, call, cudaGetErrorString(e),
             cudaGetErrorName(e));
    return cuda_fail(ls_fail(LS_EPEER, "%s; run.cuda_graphs=off launches each kernel by itself", why));
}

ls_status cuda_graph_begin(struct device_stream *stream)
{
    struct device_stream *s;

    LS_TRY(cuda_stream(stream, &s));
    ASSERT(!cuda.capturing);
    LS_TRY(graph_check(cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    cuda.capturing = s;
    cuda.captured = 0;
    return LS_OK;
}

ls_status graph_note(const struct device_stream *s)
{
    ASSERT(s == cuda.capturing);
    cuda.captured++;
    return LS_OK;
}

/* What it takes is the free memory that the GPU has lost meanwhile. */
static ls_status graph_instantiate(struct device_graph *g, cudaGraph_t captured)
{
    size_t before, after;

    LS_TRY(cuda_memory_left(&before));
    LS_TRY(graph_check(cudaGraphInstantiate(&g->exec, captured, 0), "cudaGraphInstantiate"));
    LS_TRY(cuda_memory_left(&after));
    g->taken = before > after ? before - after : 0;
    cuda.taken_graphs += g->taken;
    return LS_OK;
}

static ls_status graph_make(cudaGraph_t captured, struct device_graph **out)
{
    struct device_graph *g = mem_zalloc(MEM_OTHER, sizeof *g);
    ls_status st = g ? graph_instantiate(g, captured) : LS_ENOMEM;

    if (st < 0) {
        mem_free(g); /* the device has failed: what it has ends with the process */
        return st;
    }
    g->operations = cuda.captured;
    *out = g;
    return LS_OK;
}

ls_status cuda_graph_end(struct device_stream *stream, struct device_graph **out)
{
    struct device_stream *s;
    cudaGraph_t captured = NULL;

    *out = NULL;
    cuda.capturing = NULL;
    LS_TRY(cuda_stream(stream, &s));
    LS_TRY(graph_check(cudaStreamEndCapture(s->handle, &captured), "cudaStreamEndCapture"));
    ls_status st = graph_make(captured, out);
    ls_status destroyed = cuda.failed == LS_OK ? cuda_check(cudaGraphDestroy(captured), "cudaGraphDestroy") : LS_OK;
    return st < 0 ? st : destroyed;
}

ls_status cuda_graph_launch(struct device_graph *g, struct device_stream *stream)
{
    struct device_stream *s;

    LS_TRY(cuda_stream(stream, &s));
    ASSERT(!cuda.capturing);
    LS_TRY(flight_room_for(s, g->operations));
    return cuda_check(cudaGraphLaunch(g->exec, s->handle), "cudaGraphLaunch");
}

void cuda_graph_free(struct device_graph *g)
{
    if (!g) return;
    if (cuda.failed == LS_OK) cuda_check(cudaGraphExecDestroy(g->exec), "cudaGraphExecDestroy");
    cuda.taken_graphs -= g->taken;
    mem_free(g);
}

size_t cuda_graphs_taken(void) { return cuda.taken_graphs; }
