/* cudnn_graph.h - a graph of cuDNN's operations, and the plan that runs it (cuDNN's backend API).
 *
 * A graph is built by adding tensors and the operations between them; the first error is kept, and later calls do nothing. Tensors have
 * four dims, in cuDNN's order, with strides in elements. A plan is one of the engines that cuDNN proposes for the graph: the first one that
 * keeps to the limits. It is a function of the GPU, of the library's version and of the graph, so a run repeats bit for bit and all ranks
 * on equal GPUs compute the same. For attention cuDNN compiles kernels, which takes most of a second, so equal graphs share a plan.
 *
 * Reference: cuDNN 9 documentation, "Backend API" and "Graph API".
 */
#ifndef LS_KERNELS_CUDA_CUDNN_GRAPH_H
#define LS_KERNELS_CUDA_CUDNN_GRAPH_H

#include "kernels/cuda/cudnn_library.h"
#include "kernels/kernel.h"

enum { CUDNN_NO_TENSOR = -1, CUDNN_DIMS = 4, CUDNN_OPERANDS = 10, CUDNN_ALIGNMENT = 16 };

struct cudnn_graph;
struct cudnn_plan;

/* A tensor in memory. */
struct cudnn_operand {
    cudnnDataType_t type;
    int64_t size[CUDNN_DIMS], stride[CUDNN_DIMS];
    int64_t alignment; /* bytes; 0: CUDNN_ALIGNMENT */
};

/* Where a plan runs: the handle of this process' GPU; or, to find out what cuDNN would do on another one, that one's properties. */
struct cudnn_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
};

/* Engines whose sums have no fixed order, or lower precision than f32, or transform their operands (Winograd, FFT) are left out. */
struct cudnn_limits {
    size_t workspace;
    bool tensor_cores; /* half types, or f32 whose operands may be rounded to TF32 */
};

/* NULL: no memory. */
struct cudnn_graph *cudnn_graph_new(void);
void cudnn_graph_free(struct cudnn_graph *g);

/* Each returns the tensor's number. */
/* Its pointer is pointer[at] of cudnn_plan_run(). */
int cudnn_graph_operand(struct cudnn_graph *g, const struct cudnn_operand *x, int at);
int cudnn_graph_between(struct cudnn_graph *g, const struct cudnn_operand *x); /* written by one operation, read by others */
int cudnn_graph_float(struct cudnn_graph *g, float value);
int cudnn_graph_int(struct cudnn_graph *g, int32_t value);

/* y = a b, of the last two dims */
void cudnn_graph_matmul(struct cudnn_graph *g, int a, int b, int y);
/* y = mode(x, b), or x where t is true, else b. type: that of the computation. b, t: CUDNN_NO_TENSOR if mode has none */
void cudnn_graph_pointwise(struct cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t type, int x, int b, int t, int y);
/* y = the index along dim; of x's sizes */
void cudnn_graph_index(struct cudnn_graph *g, int dim, int x, int y);
/* over the dims where y has one element */
void cudnn_graph_reduce(struct cudnn_graph *g, cudnnReduceTensorOp_t op, int x, int y);
/* y: x by other strides */
void cudnn_graph_reshape(struct cudnn_graph *g, int x, int y);
/* kind: CUDNN_BACKEND_OPERATION_CONVOLUTION_..; the two that are read and the one that is written: x, w and y or their gradients. */
void cudnn_graph_convolution(struct cudnn_graph *g, cudnnBackendDescriptorType_t kind, int x, int w, int y, int64_t stride,
                             int64_t padding);

/* cudnn_plan.c. g is the plan's from here on, or freed. LS_EUNSUPPORTED, with a message: cuDNN has no engine for it; *out is a plan then
 * too, which keeps others from asking again for as long as it is not freed. */
ls_status cudnn_plan_new(struct cudnn_graph *g, const struct cudnn_target *t, const struct cudnn_limits *l, struct cudnn_plan **out);
size_t cudnn_plan_workspace(const struct cudnn_plan *p);
void cudnn_plan_free(struct cudnn_plan *p); /* p may be NULL */

/* The pointers of a plan's run, kept from one to the next; zeros: none yet. */
struct cudnn_pack {
    cudnnBackendDescriptor_t descriptor;
    void *pointer[CUDNN_OPERANDS], *workspace;
};
ls_status cudnn_plan_run(const struct cudnn_plan *p, struct cudnn_pack *k, void *const *pointer, void *workspace,
                         struct device_stream *stream);
void cudnn_pack_free(struct cudnn_pack *k);

/* ---- of a graph, for cudnn_plan.c ---- */

enum { CUDNN_TENSORS = 40, CUDNN_OPERATIONS = 32, CUDNN_KEY = 16384 };

struct cudnn_bound {
    int64_t id;
    int at; /* CUDNN_NO_TENSOR: by value */
    union {
        float f;
        int32_t i;
    } value;
};

struct cudnn_graph {
    cudnnStatus_t status; /* status of the first call that failed */
    const char *call;
    cudnnBackendDescriptor_t tensor[CUDNN_TENSORS], operation[CUDNN_OPERATIONS], part[CUDNN_OPERATIONS];
    int tensors, operations, parts;
    struct cudnn_bound bound[CUDNN_TENSORS]; /* tensors that are not between operations */
    int bounds;
    /* Everything that describes the graph, so that equal graphs can be recognized. */
    unsigned char key[CUDNN_KEY];
    size_t said;
};

cudnnDataType_t cudnn_type(ls_dtype t);
/* x with memory order, no gaps */
struct cudnn_operand cudnn_contiguous(cudnnDataType_t type, int64_t n, int64_t c, int64_t h, int64_t w);

#endif
