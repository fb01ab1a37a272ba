/* stub_cudnn_run.c - computes an operation graph when its stream reaches it: each operation as cuDNN's documentation describes it, in
 * double, every tensor rounded to its type. See stub_cudnn.h. */
#include "stub_cudnn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "lockstep/dtype.h"
#include "stub.h"

enum { GARBAGE = 0x5a };

/* A tensor's elements, in row-major order of its dims. */
struct values {
    const struct stub_tensor *t;
    double *at;
};

static ls_dtype value_type(cudnnDataType_t type)
{
    return type == CUDNN_DATA_BFLOAT16 ? LS_BF16 : type == CUDNN_DATA_HALF ? LS_F16 : type == CUDNN_DATA_INT32 ? LS_I32 : LS_F32;
}

size_t stub_cudnn_bytes(cudnnDataType_t type) { return type == CUDNN_DATA_BOOLEAN ? 1 : ls_dtype_bytes(value_type(type)); }

static double *values_new(int64_t n)
{
    double *at = calloc((size_t)n, sizeof *at);

    if (!at) stub_die("no memory");
    return at;
}

/* Offset of element i from the first. */
static int64_t element_offset(const struct stub_tensor *t, int64_t i)
{
    int64_t offset = 0;

    for (int d = STUB_DIMS - 1; d >= 0; d--) {
        offset += i % t->size[d] * t->stride[d];
        i /= t->size[d];
    }
    return offset;
}

static double cudnn_rounded(double x, cudnnDataType_t type)
{
    float narrow = (float)x;
    uint16_t half;

    if (type == CUDNN_DATA_INT32 || type == CUDNN_DATA_BOOLEAN) return x;
    if (type == CUDNN_DATA_FLOAT) return narrow;
    ls_convert(&half, value_type(type), &narrow, LS_F32, 1);
    ls_convert(&narrow, LS_F32, &half, value_type(type), 1);
    return narrow;
}

/* 10 bits of the mantissa are kept, rounded to the nearest. */
static double rounded_tf32(double x)
{
    float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void values_load(const struct values *v, const void *data)
{
    size_t unit = stub_cudnn_bytes(v->t->type);

    for (int64_t i = 0; i < stub_tensor_elements(v->t); i++) {
        float x;

        ls_convert(&x, LS_F32, (const char *)data + (size_t)element_offset(v->t, i) * unit, value_type(v->t->type), 1);
        v->at[i] = x;
    }
}

static void values_store(const struct values *v, void *data)
{
    size_t unit = stub_cudnn_bytes(v->t->type);

    for (int64_t i = 0; i < stub_tensor_elements(v->t); i++) {
        float x = (float)v->at[i];

        ls_convert((char *)data + (size_t)element_offset(v->t, i) * unit, value_type(v->t->type), &x, LS_F32, 1);
    }
}

/* ---- operations ---- */

/* The index in x of the element that belongs to index[] of a larger tensor: a dim of one element belongs to all, one of a part of the
 * elements each to as many in a row. */
static int64_t element_shared(const struct stub_tensor *x, const int64_t *index, const int64_t *size)
{
    int64_t i = 0;

    for (int d = 0; d < STUB_DIMS; d++) i = i * x->size[d] + index[d] / (size[d] / x->size[d]);
    return i;
}

static void index_of(const struct stub_tensor *t, int64_t i, int64_t index[STUB_DIMS])
{
    for (int d = STUB_DIMS - 1; d >= 0; d--) {
        index[d] = i % t->size[d];
        i /= t->size[d];
    }
}

/* Tensor cores take both operands in the half type of one. */
static void values_narrow(const struct values *v, cudnnDataType_t type)
{
    for (int64_t i = 0; v->t->type == CUDNN_DATA_FLOAT && i < stub_tensor_elements(v->t); i++) v->at[i] = cudnn_rounded(v->at[i], type);
}

static void cudnn_run_matmul(const struct values *a, const struct values *b, const struct values *y)
{
    const int64_t *m = y->t->size, K = a->t->size[3], N = m[3];

    values_narrow(a, b->t->type);
    values_narrow(b, a->t->type);

    if (a->t->size[2] != m[2] || b->t->size[2] != K || b->t->size[3] != N) stub_die("a product of other sizes");
    for (int64_t i = 0; i < m[0] * m[1] * m[2]; i++) {
        int64_t index[STUB_DIMS] = { i / m[2] / m[1], i / m[2] % m[1], i % m[2], 0 };

        index[2] = 0;
        const double *left = a->at + element_shared(a->t, index, (int64_t[]){ m[0], m[1], a->t->size[2], K }) + i % m[2] * K;
        const double *right = b->at + element_shared(b->t, index, (int64_t[]){ m[0], m[1], K, N });
        for (int64_t k = 0; k < K; k++)
            for (int64_t n = 0; n < N; n++) y->at[i * N + n] += left[k] * right[k * N + n];
    }
}

static double pointwise_of(int mode, double x, double b, double t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return exp(x);
    case CUDNN_POINTWISE_LOG: return log(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: stub_die("the stub has no pointwise mode %d", mode);
    }
    return 0;
}

static void run_pointwise(const struct stub_operation *o, const struct values *x, const struct values *b, const struct values *t,
                          const struct values *y)
{
    for (int64_t i = 0; i < stub_tensor_elements(y->t); i++) {
        int64_t index[STUB_DIMS];

        index_of(y->t, i, index);
        if (o->mode == CUDNN_POINTWISE_GEN_INDEX)
            y->at[i] = (double)index[o->dim];
        else
            y->at[i] = pointwise_of(o->mode, x->at[element_shared(x->t, index, y->t->size)],
                                    b ? b->at[element_shared(b->t, index, y->t->size)] : 0,
                                    t ? t->at[element_shared(t->t, index, y->t->size)] : 0);
    }
}

static void run_reduction(int op, const struct values *x, const struct values *y)
{
    if (op == CUDNN_REDUCE_TENSOR_MAX)
        for (int64_t i = 0; i < stub_tensor_elements(y->t); i++) y->at[i] = -INFINITY;
    for (int64_t i = 0; i < stub_tensor_elements(x->t); i++) {
        int64_t index[STUB_DIMS];

        index_of(x->t, i, index);
        double *to = &y->at[element_shared(y->t, index, x->t->size)];
        *to = op == CUDNN_REDUCE_TENSOR_MAX ? fmax(*to, x->at[i]) : *to + x->at[i];
    }
}

/* The same memory by other sizes and strides. */
static void run_reshape(const struct values *x, const struct values *y)
{
    int64_t reach = stub_tensor_reach(x->t);
    double *memory = values_new(reach);

    if (stub_tensor_reach(y->t) != reach || stub_tensor_elements(x->t) != stub_tensor_elements(y->t)) stub_die("a reshape of other bytes");
    for (int64_t i = 0; i < stub_tensor_elements(x->t); i++) memory[element_offset(x->t, i)] = x->at[i];
    for (int64_t i = 0; i < stub_tensor_elements(y->t); i++) y->at[i] = memory[element_offset(y->t, i)];
    free(memory);
}

/* For each output and tap: the pixel and the weight that are multiplied, as indices of x, w and y. Which of the three is written is the
 * kind's. */
static void run_convolution(const struct stub_operation *o, const struct values *x, const struct values *w, const struct values *y)
{
    const int64_t *X = x->t->size, *W = w->t->size, *Y = y->t->size;
    const int written = stub_operation_written(o);

    for (int64_t i = 0; i < stub_tensor_elements(y->t); i++) {
        int64_t at[STUB_DIMS];

        index_of(y->t, i, at);
        for (int64_t tap = 0; tap < W[1] * W[2] * W[3]; tap++) {
            int64_t c = tap / W[3] / W[2], k = tap / W[3] % W[2], l = tap % W[3];
            int64_t row = at[2] * o->stride[0] + k - o->padding[0], column = at[3] * o->stride[1] + l - o->padding[1];
            int64_t pixel = ((at[0] * X[1] + c) * X[2] + row) * X[3] + column, weight = at[1] * W[1] * W[2] * W[3] + tap;

            if (row < 0 || row >= X[2] || column < 0 || column >= X[3]) continue;
            if (written == o->y)
                y->at[i] += x->at[pixel] * w->at[weight];
            else if (written == o->x)
                x->at[pixel] += y->at[i] * w->at[weight];
            else
                w->at[weight] += y->at[i] * x->at[pixel];
        }
    }
    if (X[1] != W[1] || Y[1] != W[0] || X[0] != Y[0]) stub_die("a convolution of other sizes");
}

static void run_operation(const struct stub_operation *o, struct values *all)
{
    const struct values *x = &all[o->x], *y = &all[o->y], *b = o->b < 0 ? NULL : &all[o->b], *t = o->t < 0 ? NULL : &all[o->t];

    switch (o->kind) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: cudnn_run_matmul(x, b, y); break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: run_pointwise(o, x, b, t, y); break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: run_reduction(o->mode, x, y); break;
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: run_reshape(x, y); break;
    default: run_convolution(o, x, b, y);
    }
}

/* ---- graphs ---- */

static bool graph_is_convolution(const struct stub_graph *g)
{
    return g->operations == 1 && g->operation[0].stride[0] > 0;
}

static ls_status run_graph(void *args)
{
    const struct stub_run *r = args;
    const struct stub_graph *g = r->graph;
    struct values all[STUB_TENSORS];
    bool tf32 = r->engine == STUB_TENSOR && graph_is_convolution(g);

    if (r->workspace_bytes) memset(r->workspace, GARBAGE, r->workspace_bytes);
    for (int k = 0; k < g->tensors; k++) {
        const struct stub_tensor *t = &g->tensor[k];

        all[k] = (struct values){ t, values_new(stub_tensor_elements(t)) };
        if (t->by_value) all[k].at[0] = r->value[k];
        if (!t->between && !t->by_value && !t->writers) values_load(&all[k], r->at[k]);
        for (int64_t i = 0; tf32 && i < stub_tensor_elements(t); i++) all[k].at[i] = rounded_tf32(all[k].at[i]);
    }
    for (int k = 0; k < g->operations; k++) {
        struct values *y = &all[stub_operation_written(&g->operation[k])];

        run_operation(&g->operation[k], all);
        for (int64_t i = 0; i < stub_tensor_elements(y->t); i++) y->at[i] = cudnn_rounded(y->at[i], y->t->type);
    }
    for (int k = 0; k < g->tensors; k++) {
        if (g->tensor[k].writers && !g->tensor[k].between) values_store(&all[k], r->at[k]);
        free(all[k].at);
    }
    return LS_OK;
}

void stub_run_enqueue(struct device_stream *s, const struct stub_run *r)
{
    struct device_operation o = { .name = "cudnnBackendExecute", .run = run_graph, .args = r, .bytes = sizeof *r };

    for (int k = 0; k < r->graph->tensors; k++) {
        const struct stub_tensor *t = &r->graph->tensor[k];
        size_t unit = stub_cudnn_bytes(t->type);

        if (!r->at[k]) continue;
        o.pointer[o.pointers++] = offsetof(struct stub_run, at) + (size_t)k * sizeof r->at[k];
        o.access[o.accesses++] = (struct device_access){
            .data = r->at[k], .bytes = (size_t)stub_tensor_reach(t) * unit, .write = t->writers > 0, .element = (uint8_t)unit
        };
    }
    if (r->workspace_bytes) {
        o.pointer[o.pointers++] = offsetof(struct stub_run, workspace);
        o.access[o.accesses++] = (struct device_access){ .data = r->workspace, .bytes = r->workspace_bytes, .write = true, .element = 4 };
    }
    stub_enqueue(s, &o);
}
