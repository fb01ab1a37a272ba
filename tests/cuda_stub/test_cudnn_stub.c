/* test_cudnn_stub.c - the stub of cuDNN itself: a correct graph is computed, and each way of breaking the contract ends the process with a
 * line that says what is wrong. The graph is y = (a b) + c, of [1,1,4,8], [1,1,8,2] and one value.
 */
#include "helper_kernels.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/device.h"
#include "helper_child.h"

enum { ROWS = 4, TERMS = 8, COLUMNS = 2, DIMS = 4, BLOCK = 1 << 16, BROKEN_CONTRACT = 97, ENGINES = 8 };
enum { A, B, C, PRODUCT, Y, TENSORS };

/* Violations of the contract, and the stub's messages. */
#define WRONGS(X)                                                                                                 \
    X(NOTHING, "")                                                                                                \
    X(ATTRIBUTE, "cudnnBackendSetAttribute: a descriptor of type 17 has no attribute 1000")                       \
    X(ATTRIBUTE_TYPE, "cudnnBackendSetAttribute: attribute 902: type 1, 4 elements")                              \
    X(ATTRIBUTE_COUNT, "cudnnBackendSetAttribute: attribute 903: type 3, 3 elements")                             \
    X(TWICE, "cudnnBackendSetAttribute: attribute 906 once more")                                                 \
    X(LATE, "cudnnBackendSetAttribute: attribute 907 of a descriptor that is finalized")                          \
    X(MISSING, "cudnnBackendFinalize: a descriptor of type 17 without attribute 900")                             \
    X(NOT_FINALIZED, "cudnnBackendSetAttribute: attribute 1523 is a descriptor that is not finalized")            \
    X(FINALIZED_TWICE, "cudnnBackendFinalize: once more")                                                         \
    X(NO_SIZE, "tensor 1: dim 2 of 0, stride 8")                                                                  \
    X(ORDER, "operation 0 reads tensor 4, which none before it writes")                                           \
    X(UNREAD, "tensor 4: nothing reads it")                                                                       \
    X(WRITTEN_TWICE, "operation 1 writes tensor 4 once more, or a value")                                         \
    X(SIZES, "a product of other sizes")                                                                          \
    X(SECOND_HANDLE, "cudnnCreate: a second handle")                                                              \
    X(NOT_A_HANDLE, "cudnnBackendExecute: ")                                                                      \
    X(NO_STREAM, "cudnnBackendExecute: no stream was set")                                                        \
    X(STREAM, "is not a stream")                                                                                  \
    X(ENGINE_RANDOM, "cudnnBackendExecute: engine 0 is not one that lockstep may take")                           \
    X(WORKSPACE, "cudnnBackendExecute: the workspace is ")                                                        \
    X(NO_POINTER, "cudnnBackendExecute: tensor 2 has no pointer")                                                 \
    X(POINTERS, "cudnnBackendExecute: 4 ids, 3 pointers")                                                         \
    X(MISALIGNED, "cudnnBackendExecute: tensor 1 is not aligned to 16 bytes")                                     \
    X(HOST_MEMORY, "is not, or not all, memory of cudaMalloc")                                                    \
    X(DESTROYED, "cudnnBackendExecute: the descriptor was destroyed")                                             \
    X(NOT_A_PLAN, "cudnnBackendExecute: a descriptor of type 16, not 5")

#include "helper_wrongs.h"

/* ---- the functions of the stub ---- */

static void *(*stub_symbol)(void *library, const char *name);

#define STUB(name) ((__typeof__(name) *)stub_symbol(NULL, #name))

static cudnnBackendDescriptor_t make(cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d;

    STUB(cudnnBackendCreateDescriptor)(type, &d);
    return d;
}

static void set(cudnnBackendDescriptor_t d, int name, int type, int64_t count, const void *value)
{
    STUB(cudnnBackendSetAttribute)(d, (cudnnBackendAttributeName_t)name, (cudnnBackendAttributeType_t)type, count, value);
}

static void set_int(cudnnBackendDescriptor_t d, int name, int type, int value) { set(d, name, type, 1, &value); }

static void set_child(cudnnBackendDescriptor_t d, int name, cudnnBackendDescriptor_t child)
{
    set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &child);
}

static void cudnn_stub_finish(cudnnBackendDescriptor_t d) { STUB(cudnnBackendFinalize)(d); }

/* ---- the graph ---- */

static cudnnBackendDescriptor_t tensor(int64_t id, int64_t rows, int64_t columns, bool between, bool by_value)
{
    cudnnBackendDescriptor_t d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t size[DIMS] = { 1, 1, id == A + 1 ? OR(NO_SIZE, rows, 0) : rows, columns };
    int64_t stride[DIMS] = { rows * columns, rows * columns, columns, 1 }, alignment = by_value ? 4 : 16;

    set(d, OR(ATTRIBUTE, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS), CUDNN_TYPE_INT64, 1, &id);
    if (now == WRONG_TWICE)
        set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set_int(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, OR(ATTRIBUTE_TYPE, CUDNN_TYPE_INT64, CUDNN_TYPE_DATA_TYPE), DIMS, size);
    set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, OR(ATTRIBUTE_COUNT, DIMS, 3), stride);
    if (now != WRONG_MISSING)
        set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (now == WRONG_LATE)
        cudnn_stub_finish(d);
    if (between || now == WRONG_LATE)
        set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &between);
    if (by_value)
        set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    cudnn_stub_finish(d);
    if (now == WRONG_FINALIZED_TWICE)
        cudnn_stub_finish(d);
    return d;
}

static cudnnBackendDescriptor_t cudnn_stub_product_of(cudnnBackendDescriptor_t *x, cudnnBackendDescriptor_t to)
{
    cudnnBackendDescriptor_t part = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR), d = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);

    set_int(part, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    if (now != WRONG_NOT_FINALIZED)
        cudnn_stub_finish(part);
    set_child(d, CUDNN_ATTR_OPERATION_MATMUL_DESC, part);
    set_child(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x[A]);
    set_child(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, x[OR(SIZES, B, A)]);
    set_child(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
    cudnn_stub_finish(d);
    return d;
}

static cudnnBackendDescriptor_t cudnn_stub_sum_of(cudnnBackendDescriptor_t *x)
{
    cudnnBackendDescriptor_t part = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), d = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);

    set_int(part, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
    set_int(part, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    cudnn_stub_finish(part);
    set_child(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, part);
    set_child(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x[PRODUCT]);
    set_child(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, x[C]);
    set_child(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, x[Y]);
    cudnn_stub_finish(d);
    return d;
}

static cudnnBackendDescriptor_t graph_make(cudnnHandle_t handle)
{
    cudnnBackendDescriptor_t d = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), operation[2], x[TENSORS];

    x[A] = tensor(A + 1, ROWS, TERMS, false, false);
    x[B] = tensor(B + 1, TERMS, COLUMNS, false, false);
    x[C] = tensor(C + 1, 1, 1, false, true);
    x[PRODUCT] = tensor(PRODUCT + 1, ROWS, COLUMNS, true, false);
    x[Y] = tensor(Y + 1, ROWS, COLUMNS, false, false);
    operation[now == WRONG_ORDER] = cudnn_stub_product_of(x, x[PRODUCT]);
    operation[now != WRONG_ORDER] = now == WRONG_WRITTEN_TWICE ? cudnn_stub_product_of(x, x[PRODUCT]) : cudnn_stub_sum_of(x);
    set(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, OR(UNREAD, 2, 1), operation);
    set(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    cudnn_stub_finish(d);
    return d;
}

/* Of the engine with that number among those that are proposed. */
static cudnnBackendDescriptor_t plan_make(cudnnHandle_t handle, cudnnBackendDescriptor_t graph, int engine)
{
    cudnnBackendDescriptor_t heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), d = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    cudnnBackendDescriptor_t config[ENGINES];
    int64_t n;

    set_child(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set_int(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A);
    cudnn_stub_finish(heuristics);
    for (int k = 0; k < ENGINES; k++) config[k] = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    STUB(cudnnBackendGetAttribute)(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ENGINES, &n, config);
    set_child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config[engine]);
    set(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    cudnn_stub_finish(d);
    return d;
}

static float *on_device(const struct device *d, const float *from, size_t n)
{
    float *at = d->alloc(MEM_OTHER, BLOCK);

    if (at && from)
        d->copy_in(NULL, at, from, n * sizeof *at);
    return at;
}

static int compute(void)
{
    static const int64_t ids[] = { A + 1, B + 1, C + 1, Y + 1 };
    static float a[ROWS * TERMS], b[TERMS * COLUMNS], c = 0.5f, y[ROWS * COLUMNS];
    const struct device *device = device_find("cuda");
    void *library = dlopen(getenv("LOCKSTEP_CUDA_MODULE"), RTLD_NOW), *pointer[COUNT_OF(ids)];
    cudnnHandle_t handle, other;
    cudaStream_t stream;

    if (!device || !library)
        return 2;
    *(void **)&stub_symbol = dlsym(library, "stub_dlsym");
    for (int i = 0; i < ROWS * TERMS; i++) a[i] = (float)i;
    for (int i = 0; i < TERMS * COLUMNS; i++) b[i] = (float)(i % 5);
    pointer[0] = on_device(device, a, COUNT_OF(a));
    pointer[1] = on_device(device, b, COUNT_OF(b));
    pointer[2] = &c;
    pointer[3] = on_device(device, NULL, 0);
    void *workspace = on_device(device, NULL, 0);
    device->stream_sync(NULL);
    if (now == WRONG_MISALIGNED)
        pointer[0] = (char *)pointer[0] + 4;
    if (now == WRONG_HOST_MEMORY)
        pointer[0] = (void *)(((uintptr_t)a + 15) / 16 * 16);
    STUB(cudnnCreate)(&handle);
    if (now == WRONG_SECOND_HANDLE)
        STUB(cudnnCreate)(&other);
    cudnnBackendDescriptor_t plan = plan_make(handle, graph_make(handle), OR(ENGINE_RANDOM, 4, 0));
    cudnnBackendDescriptor_t pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, OR(NO_POINTER, 4, 1), ids);
    set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, OR(NO_POINTER, OR(POINTERS, 4, 3), 1), pointer);
    if (now == WRONG_WORKSPACE)
        workspace = (char *)workspace + 64;
    set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    cudnn_stub_finish(pack);
    STUB(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking);
    if (now != WRONG_NO_STREAM)
        STUB(cudnnSetStream)(handle, OR(STREAM, stream, NULL));
    if (now == WRONG_DESTROYED)
        STUB(cudnnBackendDestroyDescriptor)(plan);
    STUB(cudnnBackendExecute)(OR(NOT_A_HANDLE, handle, (cudnnHandle_t)a), OR(NOT_A_PLAN, plan, pack), pack);
    while (STUB(cudaStreamQuery)(stream) == cudaErrorNotReady)
        ;
    device->copy_out(NULL, y, pointer[3], sizeof y);
    device->stream_sync(NULL);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            float want = c;

            for (int k = 0; k < TERMS; k++) want += a[i * TERMS + k] * b[k * COLUMNS + j];
            if (y[i * COLUMNS + j] != want)
                return 1;
        }
    return 0;
}

static void cudnn_stub_test_contract(void **state)
{
    (void)state;
    for (int k = 0; k < WRONG_COUNT; k++) {
        now = (enum wrong)k;
        struct child c = child_run("", compute);
        if (c.code != (now == WRONG_NOTHING ? 0 : BROKEN_CONTRACT) || !strstr(c.err, wrongs[k].says))
            fail_msg("%s: exit code %d, '%s', expected '%s'", wrongs[k].name, c.code, c.err, wrongs[k].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(cudnn_stub_test_contract) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
