/* stub_cublaslt.c - the functions of cuBLASLt, which check their arguments. See stub_cublaslt.h. */
#include "stub_cublaslt.h"

#include <stdlib.h>
#include <string.h>
#include "device/check.h"
#include "stub.h"

enum { WORKSPACE_ALIGNMENT = 256, PREFERENCES = 16 };

static const struct stub_epilogue epilogues[] = {
    { .id = CUBLASLT_EPILOGUE_DEFAULT },
    { .id = CUBLASLT_EPILOGUE_BIAS, .bias = true },
    { .id = CUBLASLT_EPILOGUE_GELU, .gelu = true },
    { .id = CUBLASLT_EPILOGUE_GELU_BIAS, .bias = true, .gelu = true },
    { .id = CUBLASLT_EPILOGUE_GELU_AUX, .gelu = true, .aux = true },
    { .id = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, .bias = true, .gelu = true, .aux = true },
    { .id = CUBLASLT_EPILOGUE_BGRADB, .gradient = true },
};

/* Destroyed objects are kept, so that later uses of them are detected. */
enum object_kind { LAYOUT, MATMUL, PREFERENCE };
static const char *const stub_cublaslt_kinds[] = { "matrix layout", "matmul descriptor", "preference" };

struct object {
    struct object *next;
    enum object_kind kind;
    bool alive;
    struct stub_matrix matrix; /* for a layout */
    int compute;               /* for a matmul: compute type, and the following fields */
    int32_t transposed[2];
    struct stub_epilogue epilogue;
    void *vector, *aux;
    int64_t aux_ld;
    uint64_t preference[PREFERENCES]; /* by attribute */
};

struct cublasLtContext {
    int unused;
};

static struct object *objects;
static struct cublasLtContext context;
static bool created;

static struct object *object_new(enum object_kind kind, const char *call)
{
    struct object *o = calloc(1, sizeof *o);

    if (!o) stub_die("%s: no memory", call);
    o->kind = kind;
    o->alive = true;
    o->next = objects;
    return objects = o;
}

static struct object *object_of(const void *p, enum object_kind kind, const char *call)
{
    struct object *o = objects;

    while (o && o != p) o = o->next;
    if (!o || o->kind != kind) stub_die("%s: %p is not a %s", call, p, stub_cublaslt_kinds[kind]);
    if (!o->alive) stub_die("%s: the %s was destroyed", call, stub_cublaslt_kinds[kind]);
    return o;
}

static cublasStatus_t status_of(cudaError_t e, cublasStatus_t failed) { return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : failed; }

static cublasStatus_t object_destroy(const void *p, enum object_kind kind, const char *call)
{
    object_of(p, kind, call)->alive = false;
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute's value of its documented size. */
static void take_value(const char *call, int attribute, void *to, size_t size, const void *value, size_t bytes)
{
    if (!value || bytes != size) stub_die("%s: attribute %d has %zu bytes, %zu were given", call, attribute, size, bytes);
    memcpy(to, value, bytes);
}

/* ---- the library ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    cudaError_t e = stub_call("cublasLtCreate", true);
    int n = 0;

    if (e != cudaSuccess) return CUBLAS_STATUS_ALLOC_FAILED;
    if (cudaGetDeviceCount(&n) != cudaSuccess || !n) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (created) stub_die("cublasLtCreate: a second handle; it takes memory of the GPU, and one serves all streams");
    created = true;
    *out = &context;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) { return 130000; }

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    switch (s) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    default: return "the functionality is not supported";
    }
}

/* ---- layouts, descriptors, preferences ---- */

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld)
{
    static const char call[] = "cublasLtMatrixLayoutCreate";

    if (type != CUDA_R_32F && type != CUDA_R_16F && type != CUDA_R_16BF) stub_die("%s: type %d", call, (int)type);
    if (!rows || !columns || rows > INT32_MAX || columns > INT32_MAX)
        stub_die("%s: %llu rows, %llu columns", call, (unsigned long long)rows, (unsigned long long)columns);
    if (ld < (int64_t)rows) stub_die("%s: columns of %llu rows overlap with a leading dimension of %lld", call, (unsigned long long)rows,
                                     (long long)ld);
    if (stub_call(call, true) != cudaSuccess) return CUBLAS_STATUS_ALLOC_FAILED;
    struct object *o = object_new(LAYOUT, call);
    o->matrix = (struct stub_matrix){ .type = (int)type, .rows = rows, .columns = columns, .ld = ld, .batch = 1 };
    *out = (cublasLtMatrixLayout_t)o;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return object_destroy(l, LAYOUT, "cublasLtMatrixLayoutDestroy"); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t what, const void *value,
                                                size_t bytes)
{
    static const char call[] = "cublasLtMatrixLayoutSetAttribute";
    struct stub_matrix *x = &object_of(l, LAYOUT, call)->matrix;

    if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        take_value(call, (int)what, &x->batch, sizeof x->batch, value, bytes);
    else if (what == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
        take_value(call, (int)what, &x->stride, sizeof x->stride, value, bytes);
    else
        stub_die("%s: the stub has no attribute %d", call, (int)what);
    if (x->batch < 1 || x->stride < 0) stub_die("%s: %d matrices, %lld elements apart", call, x->batch, (long long)x->stride);
    return status_of(stub_call(call, false), CUBLAS_STATUS_EXECUTION_FAILED);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    static const char call[] = "cublasLtMatmulDescCreate";

    if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) || scale != CUDA_R_32F)
        stub_die("%s: compute type %d with scale type %d", call, (int)compute, (int)scale);
    if (stub_call(call, true) != cudaSuccess) return CUBLAS_STATUS_ALLOC_FAILED;
    struct object *o = object_new(MATMUL, call);
    o->compute = (int)compute;
    o->epilogue = epilogues[0];
    *out = (cublasLtMatmulDesc_t)o;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t m) { return object_destroy(m, MATMUL, "cublasLtMatmulDescDestroy"); }

static struct stub_epilogue epilogue_of(const char *call, uint32_t id)
{
    size_t k = 0, n = sizeof epilogues / sizeof epilogues[0];

    while (k < n && epilogues[k].id != id) k++;
    if (k == n) stub_die("%s: the stub has no epilogue %u", call, id);
    return epilogues[k];
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t m, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    static const char call[] = "cublasLtMatmulDescSetAttribute";
    struct object *o = object_of(m, MATMUL, call);
    uint32_t id;

    if (what == CUBLASLT_MATMUL_DESC_TRANSA || what == CUBLASLT_MATMUL_DESC_TRANSB) {
        int32_t *to = &o->transposed[what == CUBLASLT_MATMUL_DESC_TRANSB];

        take_value(call, (int)what, to, sizeof *to, value, bytes);
        if (*to != CUBLAS_OP_N && *to != CUBLAS_OP_T) stub_die("%s: operation %d", call, *to);
    } else if (what == CUBLASLT_MATMUL_DESC_EPILOGUE) {
        take_value(call, (int)what, &id, sizeof id, value, bytes);
        o->epilogue = epilogue_of(call, id);
    } else if (what == CUBLASLT_MATMUL_DESC_BIAS_POINTER) {
        take_value(call, (int)what, &o->vector, sizeof o->vector, value, bytes);
    } else if (what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER) {
        take_value(call, (int)what, &o->aux, sizeof o->aux, value, bytes);
    } else if (what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) {
        take_value(call, (int)what, &o->aux_ld, sizeof o->aux_ld, value, bytes);
        if (o->aux_ld < 1 || o->aux_ld % 8)
            stub_die("%s: a leading dimension of %lld for GELU's input is not divisible by 8", call, (long long)o->aux_ld);
    } else {
        stub_die("%s: the stub has no attribute %d", call, (int)what);
    }
    return status_of(stub_call(call, false), CUBLAS_STATUS_EXECUTION_FAILED);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    static const char call[] = "cublasLtMatmulPreferenceCreate";

    if (stub_call(call, true) != cudaSuccess) return CUBLAS_STATUS_ALLOC_FAILED;
    struct object *o = object_new(PREFERENCE, call);
    o->preference[CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK] = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (int k = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; k <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; k++) o->preference[k] = 256;
    *out = (cublasLtMatmulPreference_t)o;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    return object_destroy(p, PREFERENCE, "cublasLtMatmulPreferenceDestroy");
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t bytes)
{
    static const char call[] = "cublasLtMatmulPreferenceSetAttribute";
    struct object *o = object_of(p, PREFERENCE, call);
    uint32_t small = 0;

    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        take_value(call, (int)what, &o->preference[what], sizeof(uint64_t), value, bytes);
    } else if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ||
               (what >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES && what <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)) {
        take_value(call, (int)what, &small, sizeof small, value, bytes);
        if (what != CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && (!small || small & (small - 1)))
            stub_die("%s: an alignment of %u bytes is not a power of 2", call, small);
        o->preference[what] = small;
    } else {
        stub_die("%s: the stub has no attribute %d", call, (int)what);
    }
    return status_of(stub_call(call, false), CUBLAS_STATUS_EXECUTION_FAILED);
}

/* ---- matmuls ---- */

/* Descriptor and layouts, after the check that they match. */
struct problem {
    const struct object *matmul;
    struct stub_matrix matrix[STUB_MATRICES];
};

static uint64_t effective_rows(const struct stub_matrix *x) { return x->transposed ? x->columns : x->rows; }
static uint64_t effective_columns(const struct stub_matrix *x) { return x->transposed ? x->rows : x->columns; }

static void check_types(const char *call, const struct problem *p)
{
    int a = p->matrix[STUB_A].type, b = p->matrix[STUB_B].type, c = p->matrix[STUB_C].type, d = p->matrix[STUB_D].type;

    if (a != b || c != d || (d != CUDA_R_32F && d != a)) stub_die("%s: types %d, %d, %d, %d of A, B, C, D", call, a, b, c, d);
    if (p->matmul->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a != CUDA_R_32F) stub_die("%s: TF32 with type %d", call, a);
}

static void stub_cublaslt_check_sizes(const char *call, const struct problem *p)
{
    const struct stub_matrix *a = &p->matrix[STUB_A], *b = &p->matrix[STUB_B], *c = &p->matrix[STUB_C], *d = &p->matrix[STUB_D];

    if (effective_rows(a) != d->rows || effective_columns(b) != d->columns || effective_columns(a) != effective_rows(b))
        stub_die("%s: [%d,%d] times [%d,%d] is not [%d,%d]", call, (int)effective_rows(a), (int)effective_columns(a),
                 (int)effective_rows(b), (int)effective_columns(b), (int)d->rows, (int)d->columns);
    if (c->rows != d->rows || c->columns != d->columns) stub_die("%s: C and D have different sizes", call);
    if (a->batch != d->batch || b->batch != d->batch || c->batch != d->batch)
        stub_die("%s: batches of %d, %d, %d, %d matrices", call, a->batch, b->batch, c->batch, d->batch);
    if (d->batch > 1 && !d->stride) stub_die("%s: all matrices of D's batch are in the same place", call);
}

/* What the epilogue needs besides the matrices: its pointers are known when an algorithm is chosen, which may depend on them. */
static void check_epilogue(const char *call, const struct problem *p)
{
    const struct stub_epilogue *e = &p->matmul->epilogue;
    const struct stub_matrix *d = &p->matrix[STUB_D];

    if (stub_vector_elements(e, d) && !p->matmul->vector)
        stub_die("%s: without the %s its alignment is not known", call, e->bias ? "bias" : "bias gradient");
    if (e->aux && !p->matmul->aux) stub_die("%s: without the matrix for GELU's input its alignment is not known", call);
    if (e->aux && p->matmul->aux_ld < (int64_t)d->rows)
        stub_die("%s: GELU's input has columns of %llu rows, its leading dimension is %lld", call, (unsigned long long)d->rows,
                 (long long)p->matmul->aux_ld);
    if (d->batch > 1 && (e->aux || e->gradient)) stub_die("%s: the stub has no batches with epilogue %u", call, e->id);
}

/* Up to STUB_ALIGNED_TO. */
static uint64_t alignment_of(const void *p)
{
    uint64_t bits = (uint64_t)(uintptr_t)p | STUB_ALIGNED_TO;

    return bits & -bits;
}

/* The least of the epilogue's pointers. */
static uint64_t epilogue_alignment(const struct problem *p)
{
    const struct object *m = p->matmul;
    uint64_t vector = stub_vector_elements(&m->epilogue, &p->matrix[STUB_D]) ? alignment_of(m->vector) : STUB_ALIGNED_TO;

    return m->epilogue.aux && alignment_of(m->aux) < vector ? alignment_of(m->aux) : vector;
}

/* What an algorithm takes for granted of the epilogue's pointers: what D has at least. */
static uint64_t alignment_expected(const struct object *preference)
{
    uint64_t d = preference->preference[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES];

    return d < STUB_ALIGNED_TO ? d : STUB_ALIGNED_TO;
}

static struct problem problem_of(const char *call, cublasLtHandle_t handle, const void *matmul, const void *const layout[STUB_MATRICES])
{
    struct problem p;

    memset(&p, 0, sizeof p);
    if (!created || handle != &context) stub_die("%s: %p is not a handle", call, (void *)handle);
    p.matmul = object_of(matmul, MATMUL, call);
    for (int x = 0; x < STUB_MATRICES; x++) p.matrix[x] = object_of(layout[x], LAYOUT, call)->matrix;
    for (int x = STUB_A; x <= STUB_B; x++) p.matrix[x].transposed = p.matmul->transposed[x] == CUBLAS_OP_T;
    check_types(call, &p);
    stub_cublaslt_check_sizes(call, &p);
    check_epilogue(call, &p);
    return p;
}

static bool is_aligned(const struct stub_matrix *x, uint64_t data)
{
    uint64_t unit = ls_dtype_bytes(stub_type(x->type));

    return data % STUB_ALIGNED_TO == 0 && (x->columns == 1 || (uint64_t)x->ld * unit % STUB_ALIGNED_TO == 0) &&
           (x->batch == 1 || (uint64_t)x->stride * unit % STUB_ALIGNED_TO == 0);
}

static size_t split_bytes(const struct problem *p)
{
    const struct stub_matrix *d = &p->matrix[STUB_D];

    return STUB_SPLIT_PARTS * d->rows * d->columns * (size_t)d->batch * sizeof(float);
}

static uint64_t hash_of_problem(const struct problem *p)
{
    uint64_t h = 0xcbf29ce484222325u ^ (uint64_t)p->matmul->compute << 8 ^ p->matmul->epilogue.id ^ (uint64_t)p->matmul->aux_ld << 16;

    for (int x = 0; x < STUB_MATRICES; x++) {
        const struct stub_matrix *m = &p->matrix[x];
        const uint64_t all[] = { (uint64_t)m->type, m->rows, m->columns, (uint64_t)m->ld, (uint64_t)m->stride, (uint64_t)m->batch,
                                 m->transposed };

        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) h = (h ^ all[i]) * 0x100000001b3u;
    }
    return h;
}

static bool algorithm_fits(const struct problem *p, const struct object *preference, enum stub_algorithm a)
{
    const uint64_t *want = preference->preference;
    uint64_t schemes = want[CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK];
    bool aligned = true;

    for (int x = 0; x < STUB_MATRICES; x++)
        aligned = aligned && is_aligned(&p->matrix[x], want[CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + x]);
    if (a == STUB_IN_PLACE) return schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE;
    if (a == STUB_ALIGNED) return aligned;
    if (a == STUB_SPLIT)
        return schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE && split_bytes(p) <= want[CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES];
    return true;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most, cublasLtMatmulHeuristicResult_t out[],
                                              int *count)
{
    static const char call[] = "cublasLtMatmulAlgoGetHeuristic";
    struct problem p = problem_of(call, handle, matmul, (const void *const[]){ a, b, c, d });
    const struct object *want = object_of(preference, PREFERENCE, call);

    if (most < 1) stub_die("%s: %d algorithms", call, most);
    if (stub_call(call, false) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    *count = 0;
    if (!stub_settings()->algorithms) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (stub_settings()->epilogues != 1 && (p.matmul->epilogue.gelu || p.matmul->epilogue.gradient))
        return stub_settings()->epilogues ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_SUPPORTED;
    for (int k = STUB_IN_PLACE; k < STUB_ALGORITHMS && *count < most; k++)
        if (algorithm_fits(&p, want, (enum stub_algorithm)k))
            out[(*count)++] = (cublasLtMatmulHeuristicResult_t){
                .algo.data = { (uint64_t)k, hash_of_problem(&p), alignment_expected(want) },
                .workspaceSize = k == STUB_SPLIT ? split_bytes(&p) : 0,
                .state = CUBLAS_STATUS_SUCCESS,
            };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm, cublasLtMatmulHeuristicResult_t *result)
{
    static const char call[] = "cublasLtMatmulAlgoCheck";
    struct problem p = problem_of(call, handle, matmul, (const void *const[]){ a, b, c, d });

    if (!algorithm || !result) stub_die("%s: algorithm or result is NULL", call);
    if (stub_call(call, false) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (algorithm->data[0] < STUB_IN_PLACE || algorithm->data[0] >= STUB_ALGORITHMS || algorithm->data[1] != hash_of_problem(&p) ||
        algorithm->data[2] > epilogue_alignment(&p))
        return CUBLAS_STATUS_INVALID_VALUE;
    result->workspaceSize = algorithm->data[0] == STUB_SPLIT ? split_bytes(&p) : 0;
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

static void need_memory(const char *call, const char *name, const void *p, size_t bytes, size_t alignment)
{
    if ((uintptr_t)p % alignment) stub_die("%s: %s at %p is not aligned to %zu bytes", call, name, p, alignment);
    if (bytes && (!p || !check_block_of(p, bytes)))
        stub_die("%s: %s, %zu bytes at %p, is not, or not all, memory of cudaMalloc", call, name, bytes, p);
}

static void check_memory(const char *call, const struct problem *p, const struct stub_matmul *m)
{
    static const char *const names[] = { "A", "B", "C", "D" };
    const void *at[STUB_MATRICES] = { m->a, m->b, m->d, m->d };
    size_t unit = ls_dtype_bytes(stub_type(p->matrix[STUB_D].type));

    for (int x = 0; x < STUB_MATRICES; x++) {
        const struct stub_matrix *l = &p->matrix[x];
        size_t element = ls_dtype_bytes(stub_type(l->type));

        need_memory(call, names[x], at[x], stub_matrix_elements(l) * element, m->algorithm == STUB_ALIGNED ? STUB_ALIGNED_TO : element);
    }
    need_memory(call, m->epilogue.bias ? "the bias" : "the bias gradient", m->vector,
                stub_vector_elements(&m->epilogue, &p->matrix[STUB_D]) * unit, unit);
    if (m->epilogue.aux) need_memory(call, "GELU's input", m->aux, stub_aux_elements(m) * unit, unit);
    need_memory(call, "the workspace", m->workspace, m->workspace_bytes, WORKSPACE_ALIGNMENT);
    if (m->algorithm == STUB_SPLIT && m->workspace_bytes < split_bytes(p))
        stub_die("%s: the algorithm needs a workspace of %zu bytes, %zu were given", call, split_bytes(p), m->workspace_bytes);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    static const char call[] = "cublasLtMatmul";
    static unsigned calls;
    struct device_stream *s = stub_stream(stream, call);
    struct problem p = problem_of(call, handle, matmul, (const void *const[]){ a_layout, b_layout, c_layout, d_layout });
    struct stub_matmul m = { .a = a, .b = b, .d = d, .workspace = workspace, .workspace_bytes = workspace_bytes, .seed = ++calls };

    if (!algorithm || algorithm->data[0] < STUB_IN_PLACE || algorithm->data[0] >= STUB_ALGORITHMS)
        stub_die("%s: no algorithm was given, so that which one runs may change from call to call", call);
    if (algorithm->data[1] != hash_of_problem(&p)) stub_die("%s: the algorithm was chosen for another matmul", call);
    if (algorithm->data[2] > epilogue_alignment(&p))
        stub_die("%s: the algorithm was chosen for a bias and GELU's input aligned to %llu bytes", call,
                 (unsigned long long)algorithm->data[2]);
    if (!alpha || !beta) stub_die("%s: alpha or beta is NULL", call);
    if (c != d || c_layout != d_layout) stub_die("%s: C is not D; lockstep adds in place", call);
    memcpy(m.matrix, p.matrix, sizeof m.matrix);
    memcpy(&m.alpha, alpha, sizeof m.alpha);
    memcpy(&m.beta, beta, sizeof m.beta);
    m.algorithm = (enum stub_algorithm)algorithm->data[0];
    m.epilogue = p.matmul->epilogue;
    m.vector = stub_vector_elements(&m.epilogue, &p.matrix[STUB_D]) ? p.matmul->vector : NULL;
    m.aux = m.epilogue.aux ? p.matmul->aux : NULL;
    m.aux_ld = p.matmul->aux_ld;
    m.tf32 = p.matmul->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    check_memory(call, &p, &m);
    if (stub_call(call, false) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!workspace_bytes) m.workspace = NULL;
    stub_matmul_enqueue(s, &m);
    return CUBLAS_STATUS_SUCCESS;
}
