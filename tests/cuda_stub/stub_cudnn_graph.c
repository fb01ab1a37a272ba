/* stub_cudnn_graph.c - operation graphs as descriptors describe them: read, and checked. See stub_cudnn.h. */
#include "stub_cudnn.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "stub.h"

static int graph_tensor(struct stub_graph *g, const struct stub_descriptor *d, cudnnBackendAttributeName_t name)
{
    struct stub_tensor t = { 0 };
    const bool *flag;

    if (!stub_attribute_find(d, name)) return -1;
    const struct stub_descriptor *x = stub_attribute_descriptor(d, name);
    if (x->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) stub_die("attribute %d is no tensor", (int)name);
    t.id = stub_attribute_int(x, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    for (int k = 0; k < g->tensors; k++)
        if (g->tensor[k].id == t.id) return k;
    if (g->tensors == STUB_TENSORS) stub_die("a graph of more than %d tensors", STUB_TENSORS);
    t.type = (cudnnDataType_t)stub_attribute_int(x, CUDNN_ATTR_TENSOR_DATA_TYPE);
    t.alignment = stub_attribute_int(x, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    memcpy(t.size, stub_attribute_value(x, CUDNN_ATTR_TENSOR_DIMENSIONS), sizeof t.size);
    memcpy(t.stride, stub_attribute_value(x, CUDNN_ATTR_TENSOR_STRIDES), sizeof t.stride);
    if ((flag = stub_attribute_value(x, CUDNN_ATTR_TENSOR_IS_VIRTUAL))) t.between = *flag;
    if ((flag = stub_attribute_value(x, CUDNN_ATTR_TENSOR_IS_BY_VALUE))) t.by_value = *flag;
    for (int k = 0; k < STUB_DIMS; k++)
        if (t.size[k] < 1 || t.stride[k] < 1) stub_die("tensor %lld: dim %d of %lld, stride %lld", (long long)t.id, k, (long long)t.size[k],
                                                       (long long)t.stride[k]);
    g->tensor[g->tensors] = t;
    return g->tensors++;
}

/* The attributes of the kinds of convolution. */
#define CONVOLUTION(kind, at, x, w, y)                                                                                                     \
    { CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_CONV_DESC,                          \
      CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_BETA,                                         \
      { CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##x, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##w,                                          \
        CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##y } }
static const struct convolution {
    cudnnBackendDescriptorType_t kind;
    cudnnBackendAttributeName_t part, alpha, beta, tensor[3];
} convolutions[] = { CONVOLUTION(FORWARD, FORWARD, X, W, Y), CONVOLUTION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
                     CONVOLUTION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY) };

static void convolution_read(struct stub_graph *g, const struct stub_descriptor *d, const struct convolution *n, struct stub_operation *o)
{
    const struct stub_descriptor *c = stub_attribute_descriptor(d, n->part);
    const int64_t *dilations = stub_attribute_value(c, CUDNN_ATTR_CONVOLUTION_DILATIONS);
    const float *a = stub_attribute_value(d, n->alpha), *b = stub_attribute_value(d, n->beta);

    memcpy(o->stride, stub_attribute_value(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), sizeof o->stride);
    memcpy(o->padding, stub_attribute_value(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), sizeof o->padding);
    if (stub_attribute_int(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2 || dilations[0] != 1 || dilations[1] != 1 || *a != 1 || *b != 0 ||
        stub_attribute_int(c, CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION ||
        memcmp(o->padding, stub_attribute_value(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS), sizeof o->padding) != 0)
        stub_die("the stub has no such convolution");
    o->x = graph_tensor(g, d, n->tensor[0]);
    o->b = graph_tensor(g, d, n->tensor[1]);
    o->y = graph_tensor(g, d, n->tensor[2]);
}

static struct stub_operation operation_read(struct stub_graph *g, const struct stub_descriptor *d)
{
    struct stub_operation o = { .kind = d->type, .x = -1, .b = -1, .t = -1, .y = -1 };

    switch (d->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        o.x = graph_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        o.b = graph_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
        o.y = graph_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
        break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
        const struct stub_descriptor *p = stub_attribute_descriptor(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);

        o.mode = (int)stub_attribute_int(p, CUDNN_ATTR_POINTWISE_MODE);
        o.dim = stub_attribute_int(p, CUDNN_ATTR_POINTWISE_AXIS);
        o.x = graph_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
        o.b = graph_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        o.t = graph_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        o.y = graph_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
        break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        o.mode = (int)stub_attribute_int(stub_attribute_descriptor(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR);
        o.x = graph_tensor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
        o.y = graph_tensor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
        break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        o.x = graph_tensor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
        o.y = graph_tensor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        break;
    default: {
        size_t k = 0;

        while (k < COUNT_OF(convolutions) && convolutions[k].kind != d->type) k++;
        if (k == COUNT_OF(convolutions)) stub_die("a graph has a descriptor of type %d", (int)d->type);
        convolution_read(g, d, &convolutions[k], &o);
    }
    }
    return o;
}

int stub_operation_written(const struct stub_operation *o)
{
    return o->kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR     ? o->x
           : o->kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR ? o->b
                                                                                       : o->y;
}

/* Each tensor is written by at most one operation, before others read it; between operations there is both. */
static void graph_check(struct stub_graph *g)
{
    for (int k = 0; k < g->operations; k++) {
        const struct stub_operation *o = &g->operation[k];
        int tensors[] = { o->x, o->b, o->t, o->y }, written = stub_operation_written(o);

        for (int i = 0; i < 4; i++) {
            if (tensors[i] < 0 || tensors[i] == written) continue;
            g->tensor[tensors[i]].readers++;
            if (g->tensor[tensors[i]].between && !g->tensor[tensors[i]].writers)
                stub_die("operation %d reads tensor %lld, which none before it writes", k, (long long)g->tensor[tensors[i]].id);
        }
        if (g->tensor[written].by_value || g->tensor[written].writers++)
            stub_die("operation %d writes tensor %lld once more, or a value", k, (long long)g->tensor[written].id);
    }
    for (int k = 0; k < g->tensors; k++)
        if (g->tensor[k].between && !g->tensor[k].readers) stub_die("tensor %lld: nothing reads it", (long long)g->tensor[k].id);
}

/* The gradient of attention: it subtracts lse, which is in memory, from the scores. On Hopper cuDNN reads zeros in the rest of the last
 * tiles, of 64 queries and of 128 keys, and leaves the scores there at 0 if the keys are a multiple of 64: exp(0 - lse) overflows if lse is
 * below -88.7, and inf * 0 is NaN. A causal mask covers the keys, not the queries. */
static void graph_check_tiles(const struct stub_graph *g)
{
    const struct stub_operation *scores = NULL;
    bool causal = false;

    for (int k = 0; k < g->operations; k++) {
        const struct stub_operation *o = &g->operation[k];

        if (o->kind != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) continue;
        causal = causal || o->mode == CUDNN_POINTWISE_BINARY_SELECT;
        if (o->mode == CUDNN_POINTWISE_SUB && g->tensor[o->y].type == CUDNN_DATA_FLOAT && !g->tensor[o->b].between &&
            !g->tensor[o->b].by_value && !g->tensor[o->b].writers)
            scores = o;
    }
    if (!scores || stub_settings()->capability != 9) return;
    int64_t queries = g->tensor[scores->y].size[2], keys = g->tensor[scores->y].size[3];
    if (keys % 64 == 0 && (queries % 64 || (keys % 128 && !causal)))
        stub_die("the gradient of attention of %lld queries and %lld keys%s has NaN where lse is below -88.7", (long long)queries,
                 (long long)keys, causal ? ", causal," : "");
}

struct stub_graph *stub_graph_read(const struct stub_descriptor *d)
{
    const struct stub_attribute *a = stub_attribute_find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct stub_graph *g = calloc(1, sizeof *g);

    if (!g) stub_die("no memory");
    for (int64_t k = 0; k < a->count; k++) {
        struct stub_operation o = operation_read(g, stub_descriptor_of(((void *const *)a->value)[k], "cudnnBackendFinalize"));

        g->operation[g->operations++] = o;
    }
    graph_check(g);
    graph_check_tiles(g);
    return g;
}
