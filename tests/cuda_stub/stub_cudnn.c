/* stub_cudnn.c - the functions of cuDNN's backend API, which check their arguments. See stub_cudnn.h. */
#include "stub_cudnn.h"

#include <stdlib.h>
#include <string.h>
#include "device/check.h"
#include "stub.h"

enum { ALIGNED_TO = 256, STUB_PROPOSALS = 64 };

/* ---- the attributes ---- */

enum { ANY = STUB_TENSORS };
#define D(name)    CUDNN_BACKEND_##name##_DESCRIPTOR
#define A(name)    CUDNN_ATTR_##name
#define T(name)    CUDNN_TYPE_##name
#define CONVOLUTION_ROWS(kind, at, x, w, y)                                                                             \
    { D(OPERATION_CONVOLUTION_##kind), A(OPERATION_CONVOLUTION_##at##_CONV_DESC), T(BACKEND_DESCRIPTOR), 1, 1, true },   \
    { D(OPERATION_CONVOLUTION_##kind), A(OPERATION_CONVOLUTION_##at##_##x), T(BACKEND_DESCRIPTOR), 1, 1, true },         \
    { D(OPERATION_CONVOLUTION_##kind), A(OPERATION_CONVOLUTION_##at##_##w), T(BACKEND_DESCRIPTOR), 1, 1, true },         \
    { D(OPERATION_CONVOLUTION_##kind), A(OPERATION_CONVOLUTION_##at##_##y), T(BACKEND_DESCRIPTOR), 1, 1, true },         \
    { D(OPERATION_CONVOLUTION_##kind), A(OPERATION_CONVOLUTION_##at##_ALPHA), T(FLOAT), 1, 1, true },                    \
    { D(OPERATION_CONVOLUTION_##kind), A(OPERATION_CONVOLUTION_##at##_BETA), T(FLOAT), 1, 1, true }

static const struct stub_attribute_rule rules[] = {
    { D(TENSOR), A(TENSOR_UNIQUE_ID), T(INT64), 1, 1, true },
    { D(TENSOR), A(TENSOR_DATA_TYPE), T(DATA_TYPE), 1, 1, true },
    { D(TENSOR), A(TENSOR_DIMENSIONS), T(INT64), STUB_DIMS, STUB_DIMS, true },
    { D(TENSOR), A(TENSOR_STRIDES), T(INT64), STUB_DIMS, STUB_DIMS, true },
    { D(TENSOR), A(TENSOR_BYTE_ALIGNMENT), T(INT64), 1, 1, true },
    { D(TENSOR), A(TENSOR_IS_VIRTUAL), T(BOOLEAN), 1, 1, false },
    { D(TENSOR), A(TENSOR_IS_BY_VALUE), T(BOOLEAN), 1, 1, false },
    { D(MATMUL), A(MATMUL_COMP_TYPE), T(DATA_TYPE), 1, 1, true },
    { D(OPERATION_MATMUL), A(OPERATION_MATMUL_DESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(OPERATION_MATMUL), A(OPERATION_MATMUL_ADESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(OPERATION_MATMUL), A(OPERATION_MATMUL_BDESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(OPERATION_MATMUL), A(OPERATION_MATMUL_CDESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(POINTWISE), A(POINTWISE_MODE), T(POINTWISE_MODE), 1, 1, true },
    { D(POINTWISE), A(POINTWISE_MATH_PREC), T(DATA_TYPE), 1, 1, true },
    { D(POINTWISE), A(POINTWISE_AXIS), T(INT64), 1, 1, false },
    { D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_PW_DESCRIPTOR), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_XDESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_BDESC), T(BACKEND_DESCRIPTOR), 1, 1, false },
    { D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_TDESC), T(BACKEND_DESCRIPTOR), 1, 1, false },
    { D(OPERATION_POINTWISE), A(OPERATION_POINTWISE_YDESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(REDUCTION), A(REDUCTION_OPERATOR), T(REDUCTION_OPERATOR_TYPE), 1, 1, true },
    { D(REDUCTION), A(REDUCTION_COMP_TYPE), T(DATA_TYPE), 1, 1, true },
    { D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_DESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_XDESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(OPERATION_REDUCTION), A(OPERATION_REDUCTION_YDESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(OPERATION_RESHAPE), A(OPERATION_RESHAPE_XDESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(OPERATION_RESHAPE), A(OPERATION_RESHAPE_YDESC), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(CONVOLUTION), A(CONVOLUTION_SPATIAL_DIMS), T(INT64), 1, 1, true },
    { D(CONVOLUTION), A(CONVOLUTION_COMP_TYPE), T(DATA_TYPE), 1, 1, true },
    { D(CONVOLUTION), A(CONVOLUTION_CONV_MODE), T(CONVOLUTION_MODE), 1, 1, true },
    { D(CONVOLUTION), A(CONVOLUTION_PRE_PADDINGS), T(INT64), 2, 2, true },
    { D(CONVOLUTION), A(CONVOLUTION_POST_PADDINGS), T(INT64), 2, 2, true },
    { D(CONVOLUTION), A(CONVOLUTION_DILATIONS), T(INT64), 2, 2, true },
    { D(CONVOLUTION), A(CONVOLUTION_FILTER_STRIDES), T(INT64), 2, 2, true },
    CONVOLUTION_ROWS(FORWARD, FORWARD, X, W, Y),
    CONVOLUTION_ROWS(BACKWARD_DATA, BWD_DATA, DX, W, DY),
    CONVOLUTION_ROWS(BACKWARD_FILTER, BWD_FILTER, X, DW, DY),
    { D(OPERATIONGRAPH), A(OPERATIONGRAPH_OPS), T(BACKEND_DESCRIPTOR), 1, STUB_OPERATIONS, true },
    { D(OPERATIONGRAPH), A(OPERATIONGRAPH_HANDLE), T(HANDLE), 1, 1, true },
    { D(ENGINEHEUR), A(ENGINEHEUR_OPERATION_GRAPH), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(ENGINEHEUR), A(ENGINEHEUR_MODE), T(HEUR_MODE), 1, 1, true },
    { D(EXECUTION_PLAN), A(EXECUTION_PLAN_ENGINE_CONFIG), T(BACKEND_DESCRIPTOR), 1, 1, true },
    { D(EXECUTION_PLAN), A(EXECUTION_PLAN_HANDLE), T(HANDLE), 1, 1, true },
    { D(VARIANT_PACK), A(VARIANT_PACK_UNIQUE_IDS), T(INT64), 1, ANY, true },
    { D(VARIANT_PACK), A(VARIANT_PACK_DATA_POINTERS), T(VOID_PTR), 1, ANY, true },
    { D(VARIANT_PACK), A(VARIANT_PACK_WORKSPACE), T(VOID_PTR), 1, 1, true },
};

static size_t type_bytes(cudnnBackendAttributeType_t t)
{
    switch (t) {
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return sizeof(void *);
    default: return sizeof(int); /* FLOAT and the enums */
    }
}

/* ---- descriptors: destroyed ones are kept, so that later uses of them are detected ---- */

struct cudnnContext {
    cudaStream_t stream;
    bool set;
};

static struct stub_descriptor *descriptors;
static struct cudnnContext context;
static bool created;

struct stub_descriptor *stub_descriptor_of(const void *p, const char *call)
{
    struct stub_descriptor *d = descriptors;

    while (d && d != p) d = d->next;
    if (!d) stub_die("%s: %p is not a descriptor", call, p);
    if (!d->alive) stub_die("%s: the descriptor was destroyed", call);
    return d;
}

static struct stub_descriptor *descriptor_typed(const void *p, cudnnBackendDescriptorType_t type, const char *call)
{
    struct stub_descriptor *d = stub_descriptor_of(p, call);

    if (d->type != type) stub_die("%s: a descriptor of type %d, not %d", call, (int)d->type, (int)type);
    if (!d->finished) stub_die("%s: the descriptor of type %d is not finalized", call, (int)type);
    return d;
}

const struct stub_attribute *stub_attribute_find(const struct stub_descriptor *d, cudnnBackendAttributeName_t name)
{
    for (int k = 0; k < d->attributes; k++)
        if (d->attribute[k].rule->name == name) return &d->attribute[k];
    return NULL;
}

const void *stub_attribute_value(const struct stub_descriptor *d, cudnnBackendAttributeName_t name)
{
    const struct stub_attribute *a = stub_attribute_find(d, name);

    return a ? a->value : NULL;
}

int64_t stub_attribute_int(const struct stub_descriptor *d, cudnnBackendAttributeName_t name)
{
    const void *v = stub_attribute_value(d, name);
    int64_t wide = 0;
    int narrow = 0;

    if (!v) return 0;
    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++)
        if (rules[k].name == name && rules[k].type == CUDNN_TYPE_INT64) return memcpy(&wide, v, sizeof wide), wide;
    memcpy(&narrow, v, sizeof narrow);
    return narrow;
}

struct stub_descriptor *stub_attribute_descriptor(const struct stub_descriptor *d, cudnnBackendAttributeName_t name)
{
    void *p;

    memcpy(&p, stub_attribute_value(d, name), sizeof p);
    return stub_descriptor_of(p, "cudnnBackendFinalize");
}

/* ---- the library ---- */

size_t cudnnGetVersion(void) { return (size_t)stub_settings()->cudnn_version; }

const char *cudnnGetErrorString(cudnnStatus_t s)
{
    switch (s) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED: return "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED";
    case CUDNN_STATUS_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED: return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_NOT_SUPPORTED";
    }
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    cudaError_t e = stub_call("cudnnCreate", true);

    if (e == cudaErrorMemoryAllocation) return CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    if (e != cudaSuccess) return CUDNN_STATUS_INTERNAL_ERROR;
    if (stub_settings()->cudnn_create) return (cudnnStatus_t)stub_settings()->cudnn_create;
    if (created) stub_die("cudnnCreate: a second handle; it takes memory of the GPU, and one serves all streams");
    created = true;
    *out = &context;
    return CUDNN_STATUS_SUCCESS;
}

static void handle_check(cudnnHandle_t h, const char *call)
{
    if (!created || h != &context) stub_die("%s: %p is not a handle", call, (void *)h);
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s)
{
    handle_check(h, "cudnnSetStream");
    if (stub_call("cudnnSetStream", false) != cudaSuccess) return CUDNN_STATUS_EXECUTION_FAILED;
    stub_stream(s, "cudnnSetStream");
    h->stream = s;
    h->set = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- attributes ---- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    struct stub_descriptor *d = calloc(1, sizeof *d);

    if (!d) stub_die("cudnnBackendCreateDescriptor: no memory");
    *d = (struct stub_descriptor){ .next = descriptors, .type = type, .alive = true };
    descriptors = d;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t p)
{
    stub_descriptor_of(p, "cudnnBackendDestroyDescriptor")->alive = false;
    return CUDNN_STATUS_SUCCESS;
}

static const struct stub_attribute_rule *rule_of(const struct stub_descriptor *d, cudnnBackendAttributeName_t name, const char *call)
{
    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++)
        if (rules[k].of == d->type && rules[k].name == name) return &rules[k];
    stub_die("%s: a descriptor of type %d has no attribute %d", call, (int)d->type, (int)name);
    return NULL;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t p, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t count, const void *value)
{
    static const char call[] = "cudnnBackendSetAttribute";
    struct stub_descriptor *d = stub_descriptor_of(p, call);
    const struct stub_attribute_rule *r = rule_of(d, name, call);
    size_t bytes = (size_t)count * type_bytes(type);
    void *copy = malloc(bytes);

    if (d->finished) stub_die("%s: attribute %d of a descriptor that is finalized", call, (int)name);
    if (type != r->type || count < r->least || count > r->most || !value)
        stub_die("%s: attribute %d: type %d, %lld elements", call, (int)name, (int)type, (long long)count);
    if (stub_attribute_find(d, name) || d->attributes == STUB_ATTRIBUTES || !copy) stub_die("%s: attribute %d once more", call, (int)name);
    memcpy(copy, value, bytes);
    for (int64_t k = 0; k < count && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; k++) {
        const struct stub_descriptor *child = stub_descriptor_of(((void *const *)copy)[k], call);

        if (!child->finished) stub_die("%s: attribute %d is a descriptor that is not finalized", call, (int)name);
    }
    d->attribute[d->attributes++] = (struct stub_attribute){ r, count, copy };
    return CUDNN_STATUS_SUCCESS;
}

/* ---- engines ---- */

/* Half of what the operands take. */
static size_t engine_workspace(const struct stub_graph *g, enum stub_engine e)
{
    size_t bytes = 0;

    for (int k = 0; k < g->tensors; k++)
        if (!g->tensor[k].between) bytes += (size_t)stub_tensor_elements(&g->tensor[k]) * stub_cudnn_bytes(g->tensor[k].type);
    return e == STUB_HUGE ? (size_t)1 << 50 : e == STUB_TENSOR ? bytes / 2 : 0;
}

/* How many are proposed; the first `most` are in out[]. */
static int64_t engines_proposed(const struct stub_descriptor *d, int64_t most, enum stub_engine *out)
{
    bool fallback = stub_attribute_int(d, CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK, some = stub_settings()->cudnn_engines;
    int64_t n = 0;

    for (int k = 0; !fallback && k < stub_settings()->cudnn_proposals; k++, n++)
        if (n < most) out[n] = STUB_WINOGRAD;
    for (int e = fallback ? STUB_DIRECT : STUB_RANDOM; e < (fallback ? STUB_ENGINES : STUB_DIRECT); e++) {
        if (!some && e >= STUB_TENSOR) continue;
        if (n < most) out[n] = (enum stub_engine)e;
        n++;
    }
    return n;
}

static cudnnStatus_t results_get(const struct stub_descriptor *d, int64_t most, int64_t *count, void *value)
{
    enum stub_engine engine[STUB_PROPOSALS];

    if (most > STUB_PROPOSALS) stub_die("cudnnBackendGetAttribute: the stub has no more than %d results", STUB_PROPOSALS);
    *count = engines_proposed(d, most, engine);
    for (int64_t k = 0; k < *count && k < most; k++) {
        struct stub_descriptor *config = stub_descriptor_of(((void **)value)[k], "cudnnBackendGetAttribute");

        if (config->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) stub_die("cudnnBackendGetAttribute: results are engine configurations");
        config->finished = true;
        config->graph = stub_attribute_descriptor(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->graph;
        config->engine = engine[k];
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t notes_get(const struct stub_descriptor *d, int64_t most, int64_t *count, cudnnBackendNumericalNote_t *value)
{
    static const int notes[STUB_ENGINES] = { CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_WINOGRAD,
                                             CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                             CUDNN_NUMERICAL_NOTE_TENSOR_CORE, -1 };

    *count = notes[d->engine] >= 0;
    if (*count && most > 0) *value = (cudnnBackendNumericalNote_t)notes[d->engine];
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const p, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most, int64_t *count, void *value)
{
    static const char call[] = "cudnnBackendGetAttribute";
    struct stub_descriptor *d = stub_descriptor_of(p, call), *engine;

    if (!d->finished) stub_die("%s: the descriptor is not finalized", call);
    if (d->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return results_get(d, most, count, value);
    if (d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE)
        return notes_get(d, most, count, value);
    *count = 1;
    if (d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        engine = stub_descriptor_of(*(void **)value, call);
        engine->finished = true;
        engine->engine = d->engine;
        return CUDNN_STATUS_SUCCESS;
    }
    if (d->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE || type != CUDNN_TYPE_INT64)
        stub_die("%s: attribute %d of a descriptor of type %d", call, (int)name, (int)d->type);
    int64_t bytes = (int64_t)engine_workspace(d->graph, d->engine);
    memcpy(value, &bytes, sizeof bytes);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t p)
{
    struct stub_descriptor *d = stub_descriptor_of(p, "cudnnBackendFinalize");

    if (d->finished) stub_die("cudnnBackendFinalize: once more");
    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++)
        if (rules[k].of == d->type && rules[k].required && !stub_attribute_find(d, rules[k].name))
            stub_die("cudnnBackendFinalize: a descriptor of type %d without attribute %d", (int)d->type, (int)rules[k].name);
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) d->graph = stub_graph_read(d);
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const struct stub_descriptor *config = stub_attribute_descriptor(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);

        if (stub_call("cudnnBackendFinalize", false) != cudaSuccess) return CUDNN_STATUS_EXECUTION_FAILED;
        d->graph = config->graph;
        d->engine = config->engine;
        if (d->engine == STUB_BROKEN) return CUDNN_STATUS_INTERNAL_ERROR;
    }
    d->finished = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- runs ---- */

static void run_bind(struct stub_run *r, const struct stub_descriptor *pack)
{
    const struct stub_attribute *ids = stub_attribute_find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct stub_attribute *pointers = stub_attribute_find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);

    if (ids->count != pointers->count)
        stub_die("cudnnBackendExecute: %lld ids, %lld pointers", (long long)ids->count, (long long)pointers->count);
    for (int k = 0; k < r->graph->tensors; k++) {
        const struct stub_tensor *t = &r->graph->tensor[k];
        void *at = NULL;
        int32_t whole;

        for (int64_t i = 0; i < ids->count; i++)
            if (((const int64_t *)ids->value)[i] == t->id) at = ((void *const *)pointers->value)[i];
        if (!at != t->between)
            stub_die("cudnnBackendExecute: tensor %lld %s", (long long)t->id, at ? "is between operations" : "has no pointer");
        if (!t->between && !t->by_value && (uintptr_t)at % (uintptr_t)t->alignment)
            stub_die("cudnnBackendExecute: tensor %lld is not aligned to %lld bytes", (long long)t->id, (long long)t->alignment);
        if (!t->by_value) {
            size_t bytes = (size_t)stub_tensor_reach(t) * stub_cudnn_bytes(t->type);

            if (at && !check_block_of(at, bytes))
                stub_die("cudnnBackendExecute: tensor %lld, %zu bytes at %p, is not, or not all, memory of cudaMalloc", (long long)t->id,
                         bytes, at);
            r->at[k] = at;
            continue;
        }
        memcpy(&whole, at, sizeof whole);
        memcpy(&r->value[k], at, sizeof r->value[k]);
        if (t->type == CUDNN_DATA_INT32) r->value[k] = (float)whole;
    }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    static const char call[] = "cudnnBackendExecute";
    const struct stub_descriptor *p = descriptor_typed(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, call);
    const struct stub_descriptor *v = descriptor_typed(pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, call);
    struct stub_run r = { .graph = p->graph, .engine = p->engine, .workspace_bytes = engine_workspace(p->graph, p->engine) };

    handle_check(h, call);
    if (!h->set) stub_die("%s: no stream was set", call);
    if (stub_call(call, false) != cudaSuccess) return CUDNN_STATUS_EXECUTION_FAILED;
    if (p->engine < STUB_TENSOR) stub_die("%s: engine %d is not one that lockstep may take", call, (int)p->engine);
    memcpy(&r.workspace, stub_attribute_value(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE), sizeof r.workspace);
    if (r.workspace_bytes && (!r.workspace || (uintptr_t)r.workspace % ALIGNED_TO)) stub_die("%s: the workspace is %p", call, r.workspace);
    run_bind(&r, v);
    stub_run_enqueue(stub_stream(h->stream, call), &r);
    return CUDNN_STATUS_SUCCESS;
}
