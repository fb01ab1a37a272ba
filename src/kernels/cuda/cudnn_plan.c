/* cudnn_plan.c - the engine for a graph, and its runs. See cudnn_graph.h.
 *
 * cuDNN's heuristics (mode A, then the fallback) propose engines with their settings, the fastest first as it estimates. Its notes say
 * before it is built whether an engine is allowed, the plan afterwards how much workspace it takes. Plans are in a list as long as a call
 * uses them; so are graphs without an engine.
 */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cudnn_graph.h"

enum { PROPOSALS = 64, RELEASED = 4 * PROPOSALS, WHY_ROOM = 160 };

struct cudnn_plan {
    struct cudnn_plan *next;
    int uses;
    struct cudnn_graph *graph;
    struct cudnn_target target;
    struct cudnn_limits limits;
    cudnnBackendDescriptor_t graph_descriptor, plan; /* plan NULL: there is no engine */
    size_t workspace;
    char why[WHY_ROOM]; /* there is no engine; "": none keeps to the limits */
    /* Engines and their settings, which a plan may still refer to. */
    cudnnBackendDescriptor_t released[RELEASED];
    int releases;
};

static struct cudnn_plan *plans;

/* ---- descriptors ---- */

/* cuDNN has no engine for the graph or rejects it, or an engine that it proposed cannot be compiled here, which happens. Other failures are
 * a lack of memory, and a GPU that has failed. */
static bool is_unsupported(cudnnStatus_t s) { return s != CUDNN_STATUS_SUCCESS && s / 1000 != 5 && !cudnn_is_allocation(s); }

static ls_status plan_check(cudnnStatus_t s, const char *call)
{
    if (is_unsupported(s)) return ls_fail(LS_EUNSUPPORTED, "cudnn%s: %s", call, cudnn.GetErrorString(s));
    return cudnn_check(s, call);
}

static ls_status plan_create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    return plan_check(cudnn.BackendCreateDescriptor(type, out), "BackendCreateDescriptor");
}

static ls_status plan_create_kept(struct cudnn_plan *p, cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    ASSERT(p->releases < RELEASED);
    LS_TRY(plan_create(type, out));
    p->released[p->releases++] = *out;
    return LS_OK;
}

static ls_status plan_set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                          const void *value)
{
    return plan_check(cudnn.BackendSetAttribute(d, name, type, count, value), "BackendSetAttribute");
}

/* *count: how many there are in value, at most `most`; the library counts those that were not asked for, too. */
static ls_status plan_get(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
                          int64_t *count, void *value)
{
    LS_TRY(plan_check(cudnn.BackendGetAttribute(d, name, type, most, count, value), "BackendGetAttribute"));
    *count = MIN(*count, most);
    return LS_OK;
}

static ls_status plan_finish(cudnnBackendDescriptor_t d) { return plan_check(cudnn.BackendFinalize(d), "BackendFinalize"); }

static ls_status plan_set_descriptor(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value)
{
    return plan_set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* ---- engines ---- */

static ls_status graph_finish(struct cudnn_plan *p)
{
    struct cudnn_graph *g = p->graph;
    cudnnBackendDescriptor_t *d = &p->graph_descriptor;

    LS_TRY(plan_check(g->status, g->call));
    LS_TRY(plan_create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, d));
    LS_TRY(plan_set(*d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operations, g->operation));
    if (p->target.handle) LS_TRY(plan_set(*d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &p->target.handle));
    return plan_finish(*d);
}

static ls_status engines_ask_of(struct cudnn_plan *p, cudnnBackendHeurMode_t mode, cudnnBackendDescriptor_t d,
                                cudnnBackendDescriptor_t *out, int64_t *n)
{
    LS_TRY(plan_set_descriptor(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, p->graph_descriptor));
    LS_TRY(plan_set(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    if (!p->target.handle) LS_TRY(plan_set_descriptor(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, p->target.properties));
    LS_TRY(plan_finish(d));
    for (int k = 0; k < PROPOSALS; k++) LS_TRY(plan_create_kept(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &out[k]));
    return plan_get(d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, PROPOSALS, n, out);
}

/* Up to PROPOSALS engines with their settings. */
static ls_status engines_ask(struct cudnn_plan *p, cudnnBackendHeurMode_t mode, cudnnBackendDescriptor_t *out, int64_t *n)
{
    cudnnBackendDescriptor_t d;

    LS_TRY(plan_create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &d));
    ls_status st = engines_ask_of(p, mode, d, out, n);
    cudnn.BackendDestroyDescriptor(d);
    return st;
}

static bool note_is_allowed(cudnnBackendNumericalNote_t note, const struct cudnn_limits *l)
{
    switch (note) {
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE: return l->tensor_cores;
    case CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP: return true;
    default: return false;
    }
}

static ls_status engine_is_allowed(struct cudnn_plan *p, cudnnBackendDescriptor_t config, bool *allowed)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine;
    int64_t n = 0;

    LS_TRY(plan_create_kept(p, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    LS_TRY(plan_get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine));
    LS_TRY(plan_get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes));
    *allowed = true;
    for (int64_t k = 0; k < n && *allowed; k++) *allowed = note_is_allowed(notes[k], &p->limits);
    return LS_OK;
}

/* Builds the plan of this engine, if it is within the limits. */
static ls_status engine_build(struct cudnn_plan *p, cudnnBackendDescriptor_t config, bool *built)
{
    int64_t bytes = 0, n = 0;
    bool allowed;

    *built = false;
    LS_TRY(engine_is_allowed(p, config, &allowed));
    if (!allowed) return LS_OK;
    LS_TRY(plan_create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->plan));
    LS_TRY(plan_set_descriptor(p->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    if (p->target.handle)
        LS_TRY(plan_set(p->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &p->target.handle));
    else
        LS_TRY(plan_set_descriptor(p->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, p->target.properties));
    LS_TRY(plan_finish(p->plan));
    LS_TRY(plan_get(p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &bytes));
    p->workspace = (size_t)bytes;
    *built = p->workspace <= p->limits.workspace;
    return LS_OK;
}

/* An engine that cannot be built is skipped: the heuristics propose some for which the GPU or the machine lacks something. */
static ls_status engine_choose(struct cudnn_plan *p, cudnnBackendHeurMode_t mode, bool *built)
{
    cudnnBackendDescriptor_t config[PROPOSALS];
    int64_t n = 0;
    ls_status st;

    *built = false;
    LS_TRY(engines_ask(p, mode, config, &n));
    for (int64_t k = 0; k < n && !*built; k++) {
        st = engine_build(p, config[k], built);
        if (st < 0 && st != LS_EUNSUPPORTED) return st;
        if (!*built && p->plan) {
            cudnn.BackendDestroyDescriptor(p->plan);
            p->plan = NULL;
        }
    }
    return LS_OK;
}

static ls_status plan_choose(struct cudnn_plan *p)
{
    static const cudnnBackendHeurMode_t modes[] = { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK };
    bool built = false;
    ls_status st = graph_finish(p);

    if (st == LS_EUNSUPPORTED) snprintf(p->why, sizeof p->why, "%s", ls_errmsg());
    for (size_t k = 0; k < COUNT_OF(modes) && !built && st == LS_OK; k++) {
        st = engine_choose(p, modes[k], &built);
        if (st == LS_EUNSUPPORTED) st = LS_OK;
    }
    return st == LS_EUNSUPPORTED ? LS_OK : st;
}

/* ---- plans ---- */

static struct cudnn_plan *plan_find(const struct cudnn_graph *g, const struct cudnn_target *t, const struct cudnn_limits *l)
{
    struct cudnn_plan *p = plans;

    for (; p; p = p->next)
        if (p->target.handle == t->handle && p->target.properties == t->properties && p->limits.workspace == l->workspace &&
            p->limits.tensor_cores == l->tensor_cores && p->graph->said == g->said && memcmp(p->graph->key, g->key, g->said) == 0)
            break;
    return p;
}

/* Frees g if it is not the plan's. */
static ls_status plan_get_for(struct cudnn_graph *g, const struct cudnn_target *t, const struct cudnn_limits *l, struct cudnn_plan **out)
{
    struct cudnn_plan *p = plan_find(g, t, l);

    if (!p && (p = mem_zalloc(MEM_OTHER, sizeof *p))) {
        *p = (struct cudnn_plan){ .next = plans, .graph = g, .target = *t, .limits = *l };
        *out = plans = p;
        p->uses = 1;
        return plan_choose(p);
    }
    cudnn_graph_free(g);
    if (!p) return LS_ENOMEM;
    p->uses++;
    *out = p;
    return LS_OK;
}

ls_status cudnn_plan_new(struct cudnn_graph *g, const struct cudnn_target *t, const struct cudnn_limits *l, struct cudnn_plan **out)
{
    ls_status st = g ? plan_get_for(g, t, l, out) : LS_ENOMEM;

    if (st < 0 || (*out)->plan) return st;
    if ((*out)->why[0]) return ls_fail(LS_EUNSUPPORTED, "cuDNN %s does not take its graph (%s)", cudnn_version(), (*out)->why);
    return ls_fail(LS_EUNSUPPORTED, "cuDNN %s has no engine for it within the limits", cudnn_version());
}

void cudnn_plan_free(struct cudnn_plan *p)
{
    struct cudnn_plan **at = &plans;

    if (!p || --p->uses > 0) return;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    if (p->plan) cudnn.BackendDestroyDescriptor(p->plan);
    while (p->releases > 0) cudnn.BackendDestroyDescriptor(p->released[--p->releases]);
    if (p->graph_descriptor) cudnn.BackendDestroyDescriptor(p->graph_descriptor);
    cudnn_graph_free(p->graph);
    mem_free(p);
}

size_t cudnn_plan_workspace(const struct cudnn_plan *p) { return p->workspace; }

/* ---- runs ---- */

static ls_status pack_set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                          const void *value)
{
    return cudnn_check(cudnn.BackendSetAttribute(d, name, type, count, value), "BackendSetAttribute");
}

static ls_status pack_fill(const struct cudnn_graph *g, void *const *pointer, void *workspace, cudnnBackendDescriptor_t *d)
{
    int64_t id[CUDNN_TENSORS];
    void *at[CUDNN_TENSORS];

    for (int k = 0; k < g->bounds; k++) {
        id[k] = g->bound[k].id;
        at[k] = g->bound[k].at == CUDNN_NO_TENSOR ? (void *)&g->bound[k].value : pointer[g->bound[k].at];
    }
    LS_TRY(cudnn_check(cudnn.BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, d), "BackendCreateDescriptor"));
    LS_TRY(pack_set(*d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, g->bounds, id));
    LS_TRY(pack_set(*d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, g->bounds, at));
    LS_TRY(pack_set(*d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    return cudnn_check(cudnn.BackendFinalize(*d), "BackendFinalize");
}

static bool pack_is_of(const struct cudnn_pack *k, const struct cudnn_graph *g, void *const *pointer, void *workspace)
{
    bool same = k->descriptor && k->workspace == workspace;

    for (int i = 0; i < g->bounds && same; i++) {
        int at = g->bound[i].at;

        same = at == CUDNN_NO_TENSOR || k->pointer[at] == pointer[at];
    }
    return same;
}

static ls_status pack_make(struct cudnn_pack *k, const struct cudnn_graph *g, void *const *pointer, void *workspace)
{
    cudnn_pack_free(k);
    ls_status st = pack_fill(g, pointer, workspace, &k->descriptor);
    if (st < 0) {
        cudnn_pack_free(k);
        return st;
    }
    for (int i = 0; i < g->bounds; i++)
        if (g->bound[i].at != CUDNN_NO_TENSOR) k->pointer[g->bound[i].at] = pointer[g->bound[i].at];
    k->workspace = workspace;
    return LS_OK;
}

void cudnn_pack_free(struct cudnn_pack *k)
{
    if (k->descriptor) cudnn.BackendDestroyDescriptor(k->descriptor);
    k->descriptor = NULL;
}

ls_status cudnn_plan_run(const struct cudnn_plan *p, struct cudnn_pack *k, void *const *pointer, void *workspace,
                         struct device_stream *stream)
{
    if (!pack_is_of(k, p->graph, pointer, workspace)) LS_TRY(pack_make(k, p->graph, pointer, workspace));
    LS_TRY(flight_room(stream));
    LS_TRY(cudnn_check(cudnn.SetStream(p->target.handle, stream->handle), "SetStream"));
    return cudnn_check(cudnn.BackendExecute(p->target.handle, p->plan, k->descriptor), "BackendExecute");
}
