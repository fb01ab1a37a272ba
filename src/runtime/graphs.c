/* graphs.c - which instructions are launched as graphs: see graphs.h. */
#include "runtime/graphs.h"

#include <string.h>
#include "base/mem.h"
#include "ir/op_info.h"
#include "passes/streams.h"
#include "runtime/store.h"

enum { VARIANTS = 2 }; /* a micro-batch, and the last one of a step, where their instructions differ */

struct segment_graphs {
    struct graph *graph;
    int n;
    struct graph **begins; /* [instructions of the segment] the graph that begins there, or NULL */
};

struct graphs {
    struct segment_graphs of[SEGMENTS][VARIANTS];
};

/* ---- finding them ---- */

bool graph_takes(const struct instruction *i, int segments)
{
    if (op_run_kind(i->op) != RUN_KERNEL || op_info(i->op)->stage == OPTIMIZER_CLIP) return false;
    return !kernel_is_cpu(i->kernel) && i->stream == STREAM_COMPUTE && instruction_runs(i, segments);
}

static int segment_first(const ls_program *p, enum segment s)
{
    int first = 0;

    for (int k = 0; k < (int)s; k++) first += p->list[k].n;
    return first;
}

/* i waits for an instruction of the same segment from `begin` on. Those are of other streams, so they are launched after the graph. */
static bool waits_since(const ls_program *p, enum segment s, const struct instruction *i, int begin, int segments)
{
    int first = segment_first(p, s);

    for (int k = 0; k < i->waits; k++) {
        int number = p->results.wait[i->first_wait + k] - first;

        if (number >= begin && number < p->list[s].n && instruction_runs(&p->list[s].at[number], segments)) return true;
    }
    return false;
}

/* Keeps the graph if it is worth one. */
static int graph_close(struct graph *out, int n, struct graph *g)
{
    if (g->instructions >= GRAPH_LEAST) out[n++] = *g;
    *g = (struct graph){ .begin = -1 };
    return n;
}

int graphs_find(const ls_program *p, enum segment s, int segments, struct graph *out)
{
    struct graph g = { .begin = -1 };
    int n = 0;

    for (int k = 0; k < p->list[s].n; k++) {
        const struct instruction *i = &p->list[s].at[k];
        bool takes = graph_takes(i, segments), runs = !instruction_is_view(i) && instruction_runs(i, segments);

        if (!takes && !(runs && i->stream == STREAM_COMPUTE)) continue;
        if (!takes || (g.begin >= 0 && waits_since(p, s, i, g.begin, segments))) n = graph_close(out, n, &g);
        if (!takes) continue;
        if (g.begin < 0) g.begin = k;
        g.end = k + 1;
        g.instructions++;
    }
    return graph_close(out, n, &g);
}

/* ---- binding ---- */

static int variant_segments(int variant) { return variant ? LS_LAST : 0; }

static bool segment_varies(const ls_program *p, enum segment s)
{
    for (int k = 0; k < p->list[s].n; k++)
        if (!instruction_is_view(&p->list[s].at[k]) && p->list[s].at[k].when != LS_WHEN_ALWAYS) return true;
    return false;
}

static ls_status bind_segment(ls_program *p, enum segment s, int variant)
{
    struct segment_graphs *of = &p->run.graphs->of[s][variant];
    struct graph *found = mem_array(MEM_OTHER, (size_t)p->list[s].n + 1, sizeof *found);

    of->graph = found;
    of->begins = mem_array(MEM_OTHER, (size_t)p->list[s].n + 1, sizeof *of->begins);
    if (!found || !of->begins) return LS_ENOMEM;
    of->n = graphs_find(p, s, variant_segments(variant), found);
    for (int k = 0; k < of->n; k++) {
        found[k].recording = mem_array(MEM_OTHER, (size_t)program_slots(p), sizeof *found[k].recording);
        if (!found[k].recording) return LS_ENOMEM;
        of->begins[found[k].begin] = &found[k];
    }
    return LS_OK;
}

ls_status graphs_bind(ls_program *p)
{
    const struct device *d = store_device(p->store);

    if (!d->graphs || !d->graphs()) return LS_OK;
    p->run.graphs = mem_zalloc(MEM_OTHER, sizeof *p->run.graphs);
    if (!p->run.graphs) return LS_ENOMEM;
    for (int s = 0; s < SEGMENTS; s++)
        for (int v = 0; v < (segment_varies(p, (enum segment)s) ? VARIANTS : 1); v++) LS_TRY(bind_segment(p, (enum segment)s, v));
    return LS_OK;
}

static void segment_release(const ls_program *p, struct segment_graphs *of)
{
    for (int k = 0; k < of->n; k++) {
        for (int slot = 0; of->graph[k].recording && slot < program_slots(p); slot++)
            store_device(p->store)->graph_free(of->graph[k].recording[slot].graph);
        mem_free(of->graph[k].recording);
    }
    mem_free(of->graph);
    mem_free(of->begins);
}

void graphs_unbind(ls_program *p)
{
    for (int s = 0; p->run.graphs && s < SEGMENTS; s++)
        for (int v = 0; v < VARIANTS; v++) segment_release(p, &p->run.graphs->of[s][v]);
    mem_free(p->run.graphs);
    p->run.graphs = NULL;
}

/* ---- running ---- */

static const struct segment_graphs *graphs_of(const ls_program *p, enum segment s, int segments)
{
    const struct segment_graphs *of = p->run.graphs->of[s];

    return &of[(segments & LS_LAST) && of[1].graph ? 1 : 0];
}

bool program_launches_singly(const ls_program *p)
{
    return p->run.singly || p->run.finding || p->run.watch || p->run.hooks || p->run.fault.fn || p->arguments.options.check_finite;
}

static bool graphs_apply(const ls_program *p) { return p->run.graphs && !program_launches_singly(p); }

struct graph *graph_at(const ls_program *p, enum segment s, int segments, int n)
{
    return graphs_apply(p) ? graphs_of(p, s, segments)->begins[n] : NULL;
}

void program_launch_singly(ls_program *p)
{
    store_device(p->store)->sync(); /* they may be running; a failure is that of the next run */
    graphs_unbind(p);
    p->run.singly = true;
}

struct graph_counts program_graphs(const ls_program *p)
{
    struct graph_counts sum = { 0 };

    for (int s = 0; s < SEGMENTS; s++) {
        for (int n = 0; n < p->list[s].n; n++) sum.all += !instruction_is_view(&p->list[s].at[n]);
        for (int k = 0; graphs_apply(p) && k < graphs_of(p, (enum segment)s, LS_LAST)->n; k++) {
            sum.graphs++;
            sum.instructions += graphs_of(p, (enum segment)s, LS_LAST)->graph[k].instructions;
        }
    }
    return sum;
}
