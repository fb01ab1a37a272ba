/* test_cublaslt_stub.c - the stub of cuBLASLt itself: a correct matmul is computed, and each way of breaking the contract ends the process
 * with a line that says what is wrong.
 */
#include "helper_kernels.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/device.h"
#include "helper_child.h"

enum { M = 16, N = 8, K = 32, BATCH = 2, BLOCK = 1 << 20, BROKEN_CONTRACT = 97 };

/* Violations of the contract, and the stub's messages. */
#define WRONGS(X)                                                                                     \
    X(NOTHING, "")                                                                                    \
    X(LEADING_DIMENSION, "cublasLtMatrixLayoutCreate: columns of 32 rows overlap with a leading dimension of 31") \
    X(NO_ROWS, "cublasLtMatrixLayoutCreate: 0 rows")                                                  \
    X(LAYOUT_TYPE, "cublasLtMatrixLayoutCreate: type 1")                                              \
    X(SIZES, "cublasLtMatmulAlgoGetHeuristic: [16,32] times [32,9] is not [16,8]")                    \
    X(TYPES, "types 0, 14, 0, 0 of A, B, C, D")                                                       \
    X(OUTPUT_TYPE, "types 0, 0, 14, 14 of A, B, C, D")                                                \
    X(COMPUTE_TYPE, "cublasLtMatmulDescCreate: compute type 68 with scale type 14")                   \
    X(TF32, "TF32 with type 14")                                                                      \
    X(BATCHES, "batches of 2, 3, 2, 2 matrices")                                                      \
    X(BATCH_STRIDE, "all matrices of D's batch are in the same place")                                \
    X(NEGATIVE_STRIDE, "cublasLtMatrixLayoutSetAttribute: 1 matrices, -1 elements apart")             \
    X(ATTRIBUTE_SIZE, "cublasLtMatrixLayoutSetAttribute: attribute 5 has 4 bytes, 8 were given")      \
    X(ATTRIBUTE, "cublasLtMatrixLayoutSetAttribute: the stub has no attribute 7")                     \
    X(OPERATION, "cublasLtMatmulDescSetAttribute: operation 2")                                       \
    X(EPILOGUE, "cublasLtMatmulDescSetAttribute: the stub has no epilogue 2")                         \
    X(NO_GRADIENT, "cublasLtMatmulAlgoGetHeuristic: without the bias gradient its alignment is not known") \
    X(NO_AUX, "cublasLtMatmulAlgoGetHeuristic: without the matrix for GELU's input its alignment is not known") \
    X(AUX_LD, "a leading dimension of 20 for GELU's input is not divisible by 8")                     \
    X(SHORT_AUX_LD, "GELU's input has columns of 16 rows, its leading dimension is 8")                \
    X(BATCHED_EPILOGUE, "the stub has no batches with epilogue 512")                                  \
    X(LESS_ALIGNED_BIAS, "the algorithm was chosen for a bias and GELU's input aligned to 16 bytes")  \
    X(NO_BIAS, "cublasLtMatmulAlgoGetHeuristic: without the bias its alignment is not known")         \
    X(HOST_BIAS, "cublasLtMatmul: the bias, 64 bytes at")                                             \
    X(ALIGNMENT, "cublasLtMatmulPreferenceSetAttribute: an alignment of 48 bytes is not a power of 2") \
    X(NO_ALGORITHMS, "cublasLtMatmulAlgoGetHeuristic: 0 algorithms")                                  \
    X(NOT_A_LAYOUT, "is not a matrix layout")                                                         \
    X(DESTROYED, "cublasLtMatmul: the matrix layout was destroyed")                                   \
    X(SECOND_HANDLE, "cublasLtCreate: a second handle")                                               \
    X(NOT_A_HANDLE, "is not a handle")                                                                \
    X(HOST_MEMORY, "cublasLtMatmul: A, 4096 bytes at")                                                \
    X(PAST_THE_END, "cublasLtMatmul: C, 1024 bytes at")                                               \
    X(MISALIGNED, "is not aligned to 16 bytes")                                                       \
    X(WORKSPACE_ALIGNMENT, "cublasLtMatmul: the workspace at")                                        \
    X(SMALL_WORKSPACE, "cublasLtMatmul: the algorithm needs a workspace of 2048 bytes, 2047 were given") \
    X(LARGE_WORKSPACE, "cublasLtMatmul: the workspace, 1048577 bytes at")                             \
    X(ALGORITHM, "cublasLtMatmul: no algorithm was given")                                            \
    X(OTHER_ALGORITHM, "cublasLtMatmul: the algorithm was chosen for another matmul")                 \
    X(NO_ALPHA, "cublasLtMatmul: alpha or beta is NULL")                                              \
    X(C_IS_NOT_D, "cublasLtMatmul: C is not D")                                                       \
    X(STREAM, "is not a stream")

#include "helper_wrongs.h"

/* ---- the functions of the stub ---- */

static void *(*stub_symbol)(void *library, const char *name);

#define STUB(name) ((__typeof__(name) *)stub_symbol(NULL, #name))

static cublasLtMatrixLayout_t layout_make(cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld, int32_t batch, int64_t stride)
{
    cublasLtMatrixLayout_t l;

    STUB(cublasLtMatrixLayoutCreate)(&l, type, rows, columns, ld);
    STUB(cublasLtMatrixLayoutSetAttribute)(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    STUB(cublasLtMatrixLayoutSetAttribute)
    (l, OR(ATTRIBUTE, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (cublasLtMatrixLayoutAttribute_t)7), &batch,
     OR(ATTRIBUTE_SIZE, sizeof batch, sizeof stride));
    return l;
}

static cublasLtMatmulDesc_t matmul_make(const void *bias)
{
    int32_t operation = OR(OPERATION, CUBLAS_OP_T, 2);
    bool gradient = now == WRONG_NO_GRADIENT || now == WRONG_BATCHED_EPILOGUE, aux = now == WRONG_NO_AUX || now == WRONG_SHORT_AUX_LD;
    uint32_t plain = OR(EPILOGUE, CUBLASLT_EPILOGUE_BIAS, 2);
    uint32_t epilogue = gradient ? CUBLASLT_EPILOGUE_BGRADB : aux ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : plain;
    int64_t ld = OR(AUX_LD, OR(SHORT_AUX_LD, M, 8), 20);
    cublasLtMatmulDesc_t m;

    STUB(cublasLtMatmulDescCreate)
    (&m, OR(TF32, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32), OR(COMPUTE_TYPE, CUDA_R_32F, CUDA_R_16BF));
    STUB(cublasLtMatmulDescSetAttribute)(m, CUBLASLT_MATMUL_DESC_TRANSA, &operation, sizeof operation);
    STUB(cublasLtMatmulDescSetAttribute)(m, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    STUB(cublasLtMatmulDescSetAttribute)(m, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    if (now == WRONG_SHORT_AUX_LD)
        STUB(cublasLtMatmulDescSetAttribute)(m, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &bias, sizeof bias);
    if (now != WRONG_NO_BIAS && now != WRONG_NO_GRADIENT)
        STUB(cublasLtMatmulDescSetAttribute)(m, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    return m;
}

static cublasLtMatmulPreference_t preference_make(void)
{
    uint64_t workspace = 4096;
    uint32_t alignment = OR(ALIGNMENT, (uint32_t)64, (uint32_t)48), schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t p;

    STUB(cublasLtMatmulPreferenceCreate)(&p);
    STUB(cublasLtMatmulPreferenceSetAttribute)(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    STUB(cublasLtMatmulPreferenceSetAttribute)(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
    for (int x = 0; x < 4; x++)
        STUB(cublasLtMatmulPreferenceSetAttribute)
        (p, (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + x), &alignment, sizeof alignment);
    return p;
}

static cublasLtHandle_t handle_make(void)
{
    cublasLtHandle_t handle;

    STUB(cublasLtCreate)(&handle);
    if (now == WRONG_SECOND_HANDLE)
        STUB(cublasLtCreate)(&handle);
    return handle;
}

/* ---- a matmul: D [M,N] += A^T [M,K] B [K,N] + bias, twice ---- */

struct setup {
    const struct device *device;
    char *a, *b, *d, *workspace;
    float *bias;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatmulAlgo_t algorithm;
    size_t bytes; /* bytes of workspace */
};

static void setup_layouts(struct setup *x)
{
    cudaDataType in = OR(TF32, CUDA_R_32F, CUDA_R_16BF), out = OR(OUTPUT_TYPE, CUDA_R_32F, CUDA_R_16BF);
    int64_t d_stride = OR(NEGATIVE_STRIDE, M * N, -1);

    x->la = layout_make(OR(LAYOUT_TYPE, in, (cudaDataType)1), OR(NO_ROWS, K, 0), M, OR(LEADING_DIMENSION, K, K - 1), BATCH, K * M);
    x->lb = layout_make(OR(TYPES, in, CUDA_R_16BF), K, OR(SIZES, N, N + 1), K, OR(BATCHES, BATCH, 3), K * N);
    x->ld = layout_make(out, M, N, M, BATCH, OR(BATCH_STRIDE, d_stride, 0));
}

static void setup_memory(struct setup *x)
{
    float data[BATCH * K * M];

    for (int i = 0; i < BATCH * K * M; i++)
        data[i] = (float)(i % 5);
    for (int i = 0; i < 4; i++)
        *(char **[]){ &x->a, &x->b, &x->d, &x->workspace }[i] = x->device->alloc(MEM_OTHER, BLOCK);
    x->bias = x->device->alloc(MEM_OTHER, BLOCK);
    device_write(x->device, x->a, data, sizeof data);
    device_write(x->device, x->b, data, BATCH * K * N * sizeof data[0]);
    device_write(x->device, x->d, data, BATCH * M * N * sizeof data[0]);
    device_write(x->device, x->bias, data, M * sizeof data[0]);
}

static void setup_algorithm(struct setup *x, cublasLtHandle_t handle)
{
    cublasLtMatmulHeuristicResult_t found[4];
    void *la = OR(NOT_A_LAYOUT, (void *)x->la, (void *)x->matmul);
    int n = 0;

    STUB(cublasLtMatmulAlgoGetHeuristic)
    (handle, x->matmul, la, x->lb, x->ld, x->ld, preference_make(), OR(NO_ALGORITHMS, 4, 0), found, &n);
    int at = now == WRONG_SMALL_WORKSPACE ? 1 : 0; /* the one that splits k */
    if (n < 3)
        exit(2);
    x->algorithm = found[at].algo;
    x->bytes = OR(SMALL_WORKSPACE, found[at].workspaceSize, found[at].workspaceSize - 1);
}

static void setup_spoil(struct setup *x)
{
    if (now == WRONG_DESTROYED)
        STUB(cublasLtMatrixLayoutDestroy)(x->la);
    if (now == WRONG_ALGORITHM)
        memset(&x->algorithm, 0, sizeof x->algorithm);
    if (now == WRONG_OTHER_ALGORITHM)
        x->lb = layout_make(CUDA_R_32F, K, N, K + 4, BATCH, (K + 4) * N);
    if (now == WRONG_LESS_ALIGNED_BIAS) {
        x->bias++;
        STUB(cublasLtMatmulDescSetAttribute)(x->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &x->bias, sizeof x->bias);
    }
    x->a += OR(MISALIGNED, 0, 4);
    x->d += OR(PAST_THE_END, 0, BLOCK - 1008);
    x->workspace += OR(WORKSPACE_ALIGNMENT, 0, 128);
    x->bytes = OR(LARGE_WORKSPACE, x->bytes, BLOCK + 1);
}

static bool result_is_right(const struct setup *x)
{
    float d[BATCH * M * N];

    if (device_read(x->device, d, x->d, sizeof d) < 0)
        return false;
    for (int e = 0; e < BATCH * M * N; e++) {
        int batch = e / (M * N), j = e / M % N, i = e % M;
        float sum = (float)(i % 5) + (float)(e % 5);

        for (int k = 0; k < K; k++)
            sum += (float)(((batch * M + i) * K + k) % 5 * (((batch * N + j) * K + k) % 5));
        if (d[e] != sum)
            return false;
    }
    return true;
}

static int multiply(void)
{
    static float host[1 << 16];
    const float one = 1;
    struct setup x = { .device = device_find("cuda") };
    cudaStream_t stream;
    void *library = dlopen(getenv("LOCKSTEP_CUDA_MODULE"), RTLD_NOW);

    if (!x.device || !library)
        return 2;
    *(void **)&stub_symbol = dlsym(library, "stub_dlsym");
    setup_memory(&x);
    cublasLtHandle_t handle = handle_make();
    x.matmul = matmul_make(OR(HOST_BIAS, x.bias, host));
    setup_layouts(&x);
    setup_algorithm(&x, OR(NOT_A_HANDLE, handle, (cublasLtHandle_t)host));
    setup_spoil(&x);
    STUB(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking);
    STUB(cublasLtMatmul)
    (handle, x.matmul, OR(NO_ALPHA, &one, NULL), OR(HOST_MEMORY, (void *)x.a, (void *)host), x.la, x.b, x.lb, &one,
     OR(C_IS_NOT_D, x.d, x.b), x.ld, x.d, x.ld, &x.algorithm, x.workspace, x.bytes, OR(STREAM, stream, NULL));
    while (STUB(cudaStreamQuery)(stream) == cudaErrorNotReady)
        ;
    return result_is_right(&x) ? 0 : 1;
}

static void cublaslt_breaches_are_reported(void **state)
{
    (void)state;
    for (int k = 0; k < WRONG_COUNT; k++) {
        now = (enum wrong)k;
        struct child c = child_run("", multiply);
        if (c.code != (now == WRONG_NOTHING ? 0 : BROKEN_CONTRACT) || !strstr(c.err, wrongs[k].says))
            fail_msg("%s: exit code %d, '%s', expected '%s'", wrongs[k].name, c.code, c.err, wrongs[k].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(cublaslt_breaches_are_reported) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
