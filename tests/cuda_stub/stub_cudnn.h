/* stub_cudnn.h - cuDNN's backend API for tests, on the stub of the CUDA runtime: each call's arguments are compared with the documented
 * contract, and an operation graph is computed operation by operation, as it was described, when its stream reaches it. A violation of the
 * contract ends the process as stub.h says, and so does a graph for which the real library has an engine with wrong results.
 * test_cudnn_plans finds out for which graphs it has engines.
 *
 * The heuristics propose, in this order:
 *   random      sums in no fixed order (the note says so)
 *   winograd    transformed operands (the note says so)
 *   broken      it cannot be built
 *   huge        a workspace that no limit allows
 *   tensor      tensor cores: f32 is rounded to TF32; a workspace
 *   direct      no conditions; in the fallback mode, alone
 * With cudnn_proposals=N (stub.h) there are N more of the kind winograd before them, but not in the fallback mode. As the library does,
 * cudnnBackendGetAttribute says how many there are, and writes at most as many as it is asked for.
 * lockstep must take none of the first four: a plan of them ends the process when it runs. With cudnn_engines=0 (stub.h) there are only
 * they.
 */
#ifndef LS_TESTS_CUDNN_STUB_H
#define LS_TESTS_CUDNN_STUB_H

#include <cudnn.h>
#include <stdbool.h>
#include "device/device.h"

enum stub_engine { STUB_RANDOM, STUB_WINOGRAD, STUB_BROKEN, STUB_HUGE, STUB_TENSOR, STUB_DIRECT, STUB_ENGINES };
enum { STUB_DIMS = 4, STUB_TENSORS = 48, STUB_OPERATIONS = 32, STUB_ATTRIBUTES = 20 };

struct stub_tensor {
    int64_t id, size[STUB_DIMS], stride[STUB_DIMS], alignment;
    cudnnDataType_t type;
    bool between, by_value;
    int writers, readers;
};

/* x, b, t, y: indices of tensors; -1: none. A convolution has x, w (b) and y, of which one is written. */
struct stub_operation {
    cudnnBackendDescriptorType_t kind;
    int x, b, t, y, mode;
    int64_t dim, stride[2], padding[2];
};

struct stub_graph {
    struct stub_tensor tensor[STUB_TENSORS];
    struct stub_operation operation[STUB_OPERATIONS];
    int tensors, operations;
};

static inline int64_t stub_tensor_elements(const struct stub_tensor *t) { return t->size[0] * t->size[1] * t->size[2] * t->size[3]; }
/* From the first to the last in memory. */
static inline int64_t stub_tensor_reach(const struct stub_tensor *t)
{
    int64_t last = 0;

    for (int d = 0; d < STUB_DIMS; d++) last += (t->size[d] - 1) * t->stride[d];
    return last + 1;
}
size_t stub_cudnn_bytes(cudnnDataType_t type);              /* bytes of an element */
int stub_operation_written(const struct stub_operation *o); /* the tensor that it writes */

/* A run with valid arguments. at[i]: address of tensor i on the device; value[i]: its value, if passed by value. */
struct stub_run {
    const struct stub_graph *graph;
    enum stub_engine engine;
    void *at[STUB_TENSORS], *workspace;
    size_t workspace_bytes;
    float value[STUB_TENSORS];
};
/* stub_cudnn_run.c: enqueues it. */
void stub_run_enqueue(struct device_stream *s, const struct stub_run *r);

/* ---- descriptors (stub_cudnn.c) ---- */

struct stub_attribute_rule {
    cudnnBackendDescriptorType_t of;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int least, most;
    bool required;
};

struct stub_attribute {
    const struct stub_attribute_rule *rule;
    int64_t count;
    void *value;
};

struct stub_descriptor {
    struct stub_descriptor *next;
    cudnnBackendDescriptorType_t type;
    bool alive, finished;
    struct stub_attribute attribute[STUB_ATTRIBUTES];
    int attributes;
    struct stub_graph *graph; /* of a graph; of an engine, its settings, its plan: the graph's */
    enum stub_engine engine;
};

struct stub_descriptor *stub_descriptor_of(const void *p, const char *call); /* ends the process if p is not one */
const struct stub_attribute *stub_attribute_find(const struct stub_descriptor *d, cudnnBackendAttributeName_t name);
const void *stub_attribute_value(const struct stub_descriptor *d, cudnnBackendAttributeName_t name);
int64_t stub_attribute_int(const struct stub_descriptor *d, cudnnBackendAttributeName_t name);
struct stub_descriptor *stub_attribute_descriptor(const struct stub_descriptor *d, cudnnBackendAttributeName_t name);

/* stub_cudnn_graph.c: the graph of a descriptor that has all its attributes; ends the process if it is invalid. */
struct stub_graph *stub_graph_read(const struct stub_descriptor *d);

#endif
