/* cudnn_graph.c - see cudnn_graph.h. */
#include "kernels/cuda/cudnn_graph.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"

struct cudnn_graph *cudnn_graph_new(void) { return mem_zalloc(MEM_OTHER, sizeof(struct cudnn_graph)); }

static void descriptors_free(cudnnBackendDescriptor_t *d, int n)
{
    while (n-- > 0)
        if (d[n]) cudnn.BackendDestroyDescriptor(d[n]);
}

void cudnn_graph_free(struct cudnn_graph *g)
{
    if (!g) return;
    descriptors_free(g->operation, g->operations);
    descriptors_free(g->part, g->parts);
    descriptors_free(g->tensor, g->tensors);
    mem_free(g);
}

/* ---- descriptors ---- */

static void graph_note_status(struct cudnn_graph *g, cudnnStatus_t s, const char *call)
{
    if (s == CUDNN_STATUS_SUCCESS || g->status != CUDNN_STATUS_SUCCESS) return;
    g->status = s;
    g->call = call;
}

static void graph_say(struct cudnn_graph *g, const void *what, size_t bytes)
{
    ASSERT(g->said + bytes <= CUDNN_KEY);
    memcpy(g->key + g->said, what, bytes);
    g->said += bytes;
}

/* In list, of *n descriptors. */
static cudnnBackendDescriptor_t descriptor_new(struct cudnn_graph *g, cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *list,
                                               int *n, int most)
{
    ASSERT(*n < most);
    list[*n] = NULL;
    graph_say(g, &type, sizeof type);
    if (g->status == CUDNN_STATUS_SUCCESS) graph_note_status(g, cudnn.BackendCreateDescriptor(type, &list[*n]), "BackendCreateDescriptor");
    return list[(*n)++];
}

static size_t attribute_bytes(cudnnBackendAttributeType_t type)
{
    return type == CUDNN_TYPE_INT64 ? sizeof(int64_t) : type == CUDNN_TYPE_BOOLEAN ? sizeof(bool) : sizeof(int); /* floats, enums */
}

static void descriptor_set(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, int64_t count, const void *value)
{
    graph_say(g, &name, sizeof name);
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) graph_say(g, value, (size_t)count * attribute_bytes(type));
    if (g->status == CUDNN_STATUS_SUCCESS)
        graph_note_status(g, cudnn.BackendSetAttribute(d, name, type, count, value), "BackendSetAttribute");
}

static void descriptor_set_tensor(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, int tensor)
{
    graph_say(g, &tensor, sizeof tensor);
    descriptor_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->tensor[tensor]);
}

static void descriptor_set_type(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnDataType_t type)
{
    descriptor_set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void descriptor_finish(struct cudnn_graph *g, cudnnBackendDescriptor_t d)
{
    if (g->status == CUDNN_STATUS_SUCCESS) graph_note_status(g, cudnn.BackendFinalize(d), "BackendFinalize");
}

/* ---- tensors ---- */

cudnnDataType_t cudnn_type(ls_dtype t) { return t == LS_BF16 ? CUDNN_DATA_BFLOAT16 : t == LS_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT; }

struct cudnn_operand cudnn_contiguous(cudnnDataType_t type, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return (struct cudnn_operand){ .type = type, .size = { n, c, h, w }, .stride = { c * h * w, h * w, w, 1 } };
}

static int tensor_add(struct cudnn_graph *g, const struct cudnn_operand *x, bool between, bool by_value)
{
    int number = g->tensors;
    cudnnBackendDescriptor_t d = descriptor_new(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, g->tensor, &g->tensors, CUDNN_TENSORS);
    int64_t id = number + 1, alignment = x->alignment ? x->alignment : CUDNN_ALIGNMENT;

    descriptor_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    descriptor_set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, x->type);
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, CUDNN_DIMS, x->size);
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, CUDNN_DIMS, x->stride);
    descriptor_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (between) descriptor_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
    if (by_value) descriptor_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    descriptor_finish(g, d);
    if (!between) g->bound[g->bounds++] = (struct cudnn_bound){ .id = id, .at = CUDNN_NO_TENSOR };
    return number;
}

int cudnn_graph_operand(struct cudnn_graph *g, const struct cudnn_operand *x, int at)
{
    int number = tensor_add(g, x, false, false);

    ASSERT(at >= 0 && at < CUDNN_OPERANDS);
    graph_say(g, &at, sizeof at);
    g->bound[g->bounds - 1].at = at;
    return number;
}

int cudnn_graph_between(struct cudnn_graph *g, const struct cudnn_operand *x) { return tensor_add(g, x, true, false); }

static int tensor_of_value(struct cudnn_graph *g, cudnnDataType_t type)
{
    struct cudnn_operand one = cudnn_contiguous(type, 1, 1, 1, 1);

    one.alignment = sizeof(float);
    return tensor_add(g, &one, false, true);
}

int cudnn_graph_float(struct cudnn_graph *g, float value)
{
    int number = tensor_of_value(g, CUDNN_DATA_FLOAT);

    graph_say(g, &value, sizeof value);
    g->bound[g->bounds - 1].value.f = value;
    return number;
}

int cudnn_graph_int(struct cudnn_graph *g, int32_t value)
{
    int number = tensor_of_value(g, CUDNN_DATA_INT32);

    graph_say(g, &value, sizeof value);
    g->bound[g->bounds - 1].value.i = value;
    return number;
}

/* ---- operations ---- */

static cudnnBackendDescriptor_t operation_new(struct cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    return descriptor_new(g, type, g->operation, &g->operations, CUDNN_OPERATIONS);
}

/* What describes the computation of an operation. */
static cudnnBackendDescriptor_t part_new(struct cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    return descriptor_new(g, type, g->part, &g->parts, CUDNN_OPERATIONS);
}

static void descriptor_set_part(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                cudnnBackendDescriptor_t part)
{
    descriptor_finish(g, part);
    descriptor_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

void cudnn_graph_matmul(struct cudnn_graph *g, int a, int b, int y)
{
    cudnnBackendDescriptor_t part = part_new(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnnBackendDescriptor_t d = operation_new(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);

    descriptor_set_type(g, part, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    descriptor_set_part(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, part);
    descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y);
    descriptor_finish(g, d);
}

/* dim: of an index; else -1. */
static void pointwise_add(struct cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t dim, int x, int b, int t, int y)
{
    cudnnBackendDescriptor_t part = part_new(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnnBackendDescriptor_t d = operation_new(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);

    descriptor_set(g, part, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    descriptor_set_type(g, part, CUDNN_ATTR_POINTWISE_MATH_PREC, type);
    if (dim >= 0) descriptor_set(g, part, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &dim);
    descriptor_set_part(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, part);
    descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != CUDNN_NO_TENSOR) descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t != CUDNN_NO_TENSOR) descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    descriptor_finish(g, d);
}

void cudnn_graph_pointwise(struct cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t type, int x, int b, int t, int y)
{
    pointwise_add(g, mode, type, -1, x, b, t, y);
}

void cudnn_graph_index(struct cudnn_graph *g, int dim, int x, int y)
{
    pointwise_add(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, dim, x, CUDNN_NO_TENSOR, CUDNN_NO_TENSOR, y);
}

void cudnn_graph_reduce(struct cudnn_graph *g, cudnnReduceTensorOp_t op, int x, int y)
{
    cudnnBackendDescriptor_t part = part_new(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnnBackendDescriptor_t d = operation_new(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);

    descriptor_set_type(g, part, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    descriptor_set(g, part, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    descriptor_set_part(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, part);
    descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    descriptor_finish(g, d);
}

void cudnn_graph_reshape(struct cudnn_graph *g, int x, int y)
{
    cudnnBackendDescriptor_t d = operation_new(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

    descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    descriptor_set_tensor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    descriptor_finish(g, d);
}

/* The names of the attributes of the three kinds of convolution. */
struct convolution_names {
    cudnnBackendDescriptorType_t kind;
    cudnnBackendAttributeName_t convolution, alpha, beta, x, w, y;
};
#define CONVOLUTION(kind, at, x, w, y)                                                                              \
    {                                                                                                               \
        CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind##_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_CONV_DESC, \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_BETA,            \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##x, CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##w,               \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##at##_##y                                                             \
    }
static const struct convolution_names convolutions[] = { CONVOLUTION(FORWARD, FORWARD, X, W, Y),
                                                         CONVOLUTION(BACKWARD_DATA, BWD_DATA, DX, W, DY),
                                                         CONVOLUTION(BACKWARD_FILTER, BWD_FILTER, X, DW, DY) };

void cudnn_graph_convolution(struct cudnn_graph *g, cudnnBackendDescriptorType_t kind, int x, int w, int y, int64_t stride, int64_t padding)
{
    const struct convolution_names *n = convolutions;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t dims = 2, strides[] = { stride, stride }, paddings[] = { padding, padding }, dilations[] = { 1, 1 };
    float one = 1, zero = 0;
    cudnnBackendDescriptor_t part = part_new(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR), d = operation_new(g, kind);

    while (n->kind != kind) n++;
    descriptor_set(g, part, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    descriptor_set_type(g, part, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    descriptor_set(g, part, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    descriptor_set(g, part, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, dims, paddings);
    descriptor_set(g, part, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, dims, paddings);
    descriptor_set(g, part, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, dims, dilations);
    descriptor_set(g, part, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, dims, strides);
    descriptor_set_part(g, d, n->convolution, part);
    descriptor_set_tensor(g, d, n->x, x);
    descriptor_set_tensor(g, d, n->w, w);
    descriptor_set_tensor(g, d, n->y, y);
    descriptor_set(g, d, n->alpha, CUDNN_TYPE_FLOAT, 1, &one);
    descriptor_set(g, d, n->beta, CUDNN_TYPE_FLOAT, 1, &zero);
    descriptor_finish(g, d);
}
