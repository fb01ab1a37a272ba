/* cublaslt_matmul.c - see cublaslt_matmul.h.
 *
 * The algorithm is the first that the library's heuristics propose: a function of the GPU, of the library's version and of the matmul's
 * types, shapes and alignments, so a run repeats bit for bit and all ranks on equal GPUs compute the same. With run.tune_matmuls it is the
 * fastest of CANDIDATES instead. Measured times differ from run to run, so the choice is kept in the cache folder, which all ranks of the
 * machine and later runs read; without the option the cache is not read. Sums over parts of k that are computed beside each other may only
 * be added in a step of their own, from the workspace, in f32 (reduction scheme COMPUTE_TYPE): the schemes that add into the output round
 * to its type between parts, and their order is not documented as fixed.
 *
 * f32 is multiplied in f32, or in TF32 where precision.tf32 allows it; bf16 and f16 with sums in f32. The epilogue adds a bias, applies
 * GELU and writes its input to the auxiliary output, or sums op(B) over k, which is a bias gradient (BGRADB): that has the type of D and is
 * overwritten, whatever beta is. NVIDIA does not document which form GELU has; XLA, too, takes it for the tanh form, and test_gpu_kernels
 * compares it with the reference on a GPU.
 *
 * Reference: cuBLAS 13 documentation, "Using the cuBLASLt API".
 */
#include "kernels/cuda/cublaslt_matmul.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cublaslt_tune.h"

enum { CANDIDATES = 8 };

struct cublaslt_matmul {
    struct cublaslt_problem problem;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t layout[CUBLASLT_MATRICES];
    cublasLtMatmulHeuristicResult_t algorithm;
    const void *vector, *aux; /* those that matmul has */
};

/* ---- descriptors ---- */

static cudaDataType_t cublaslt_type(ls_dtype t) { return t == LS_BF16 ? CUDA_R_16BF : t == LS_F16 ? CUDA_R_16F : CUDA_R_32F; }

static ls_status layout_set(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t what, const void *value, size_t bytes)
{
    return cublaslt_check(cublaslt.MatrixLayoutSetAttribute(l, what, value, bytes), "MatrixLayoutSetAttribute");
}

static ls_status layout_make(const struct cublaslt_problem *p, int which, cublasLtMatrixLayout_t *out)
{
    const struct cublaslt_matrix *x = &p->matrix[which];
    cudaDataType_t type = cublaslt_type(which == CUBLASLT_D ? p->out : p->in);
    int32_t batch = (int32_t)p->batch;

    LS_TRY(cublaslt_check(cublaslt.MatrixLayoutCreate(out, type, (uint64_t)x->rows, (uint64_t)x->columns, x->ld), "MatrixLayoutCreate"));
    if (batch == 1) return LS_OK;
    LS_TRY(layout_set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    return layout_set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x->batch_stride, sizeof x->batch_stride);
}

static ls_status matmul_set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    return cublaslt_check(cublaslt.MatmulDescSetAttribute(d, what, value, bytes), "MatmulDescSetAttribute");
}

static ls_status matmul_set_vector(struct cublaslt_matmul *m, const void *vector)
{
    m->vector = vector;
    return matmul_set(m->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
}

static ls_status matmul_set_aux(struct cublaslt_matmul *m, const void *aux)
{
    m->aux = aux;
    return matmul_set(m->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof aux);
}

static uint32_t epilogue_of(const struct cublaslt_problem *p)
{
    if (p->bias_gradient) return CUBLASLT_EPILOGUE_BGRADB;
    if (p->gelu && p->aux) return p->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (p->gelu) return p->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static ls_status matmul_make(struct cublaslt_matmul *m, const struct cublaslt_operands *at)
{
    const struct cublaslt_problem *p = &m->problem;
    int32_t a = p->matrix[CUBLASLT_A].transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t b = p->matrix[CUBLASLT_B].transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = epilogue_of(p);
    cublasComputeType_t compute = p->in == LS_F32 && cuda.settings.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;

    LS_TRY(cublaslt_check(cublaslt.MatmulDescCreate(&m->matmul, compute, CUDA_R_32F), "MatmulDescCreate"));
    LS_TRY(matmul_set(m->matmul, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    LS_TRY(matmul_set(m->matmul, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    LS_TRY(matmul_set(m->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (p->bias || p->bias_gradient) LS_TRY(matmul_set_vector(m, at->vector));
    if (!p->aux) return LS_OK;
    LS_TRY(matmul_set(m->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->m, sizeof p->m));
    return matmul_set_aux(m, at->aux);
}

/* ---- the algorithm ---- */

static ls_status preference_set(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what, const void *value, size_t bytes)
{
    return cublaslt_check(cublaslt.MatmulPreferenceSetAttribute(p, what, value, bytes), "MatmulPreferenceSetAttribute");
}

static ls_status preference_fill(cublasLtMatmulPreference_t preference, const struct cublaslt_problem *p,
                                 const uint32_t alignment[CUBLASLT_MATRICES])
{
    uint64_t workspace = cublaslt_problem_workspace(p);
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t *a = &alignment[CUBLASLT_A], *b = &alignment[CUBLASLT_B], *d = &alignment[CUBLASLT_D];

    LS_TRY(preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    LS_TRY(preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
    LS_TRY(preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a, sizeof *a));
    LS_TRY(preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b, sizeof *b));
    LS_TRY(preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d, sizeof *d));
    return preference_set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d, sizeof *d);
}

/* Up to `most` algorithms, at least one; the fastest first, as the library estimates. INVALID_VALUE with an epilogue that the matmul can do
 * without: the library has none with it; otherwise the arguments are wrong. */
static ls_status algorithms_ask(struct cublaslt_matmul *m, cublasLtMatmulPreference_t preference, int most,
                                cublasLtMatmulHeuristicResult_t *out, int *n)
{
    const struct cublaslt_problem *p = &m->problem;
    cublasLtMatrixLayout_t *l = m->layout, d = l[CUBLASLT_D];
    int found = 0;
    cublasStatus_t st =
        cublaslt.MatmulAlgoGetHeuristic(m->handle, m->matmul, l[CUBLASLT_A], l[CUBLASLT_B], d, d, preference, most, out, &found);

    for (int k = found; k-- > 0;)
        if (out[k].state != CUBLAS_STATUS_SUCCESS) memmove(&out[k], &out[k + 1], (size_t)(found-- - k - 1) * sizeof *out);
    *n = found;
    if (st == CUBLAS_STATUS_NOT_SUPPORTED || (st == CUBLAS_STATUS_INVALID_VALUE && (p->gelu || p->bias_gradient)) ||
        (st == CUBLAS_STATUS_SUCCESS && !*n))
        return ls_fail(LS_EUNSUPPORTED, "cuda: cuBLASLt %zu has no algorithm for a %s matmul of m=%lld, n=%lld, k=%lld, batch %lld",
                       cublaslt.GetVersion(), ls_dtype_name(p->in), (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->batch);
    return cublaslt_check(st, "MatmulAlgoGetHeuristic");
}

bool cublaslt_matmul_can_run(const struct cublaslt_matmul *m, cublasLtMatmulHeuristicResult_t *algorithm)
{
    const cublasLtMatrixLayout_t *l = m->layout, d = l[CUBLASLT_D];
    cublasLtMatmulHeuristicResult_t more = *algorithm;

    if (cublaslt.MatmulAlgoCheck(m->handle, m->matmul, l[CUBLASLT_A], l[CUBLASLT_B], d, d, &algorithm->algo, &more) !=
        CUBLAS_STATUS_SUCCESS)
        return false;
    algorithm->workspaceSize = more.workspaceSize;
    return true;
}

/* The alignment of data, at most `most`, a power of 2. */
static uint32_t alignment_within(uint32_t most, const void *data)
{
    uintptr_t bits = (uintptr_t)data | most;

    return (uint32_t)(bits & -bits);
}

static ls_status algorithm_choose(struct cublaslt_matmul *m, const struct cublaslt_operands *at)
{
    const struct cublaslt_problem *p = &m->problem;
    uint32_t alignment[CUBLASLT_MATRICES];
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    cublasLtMatmulPreference_t preference;
    const char *folder = cuda.settings.tuned;
    int n = 0;

    for (int x = 0; x < CUBLASLT_MATRICES; x++) alignment[x] = cublaslt_problem_alignment(p, x, at->matrix[x]);
    /* There is no preference for the epilogue's pointers: algorithms take them to be aligned as D is. So D's is the least of all, as
     * PyTorch has it for the bias. */
    if (p->bias || p->bias_gradient) alignment[CUBLASLT_D] = alignment_within(alignment[CUBLASLT_D], at->vector);
    if (p->aux) alignment[CUBLASLT_D] = alignment_within(alignment[CUBLASLT_D], at->aux);
    LS_TRY(cublaslt_check(cublaslt.MatmulPreferenceCreate(&preference), "MatmulPreferenceCreate"));
    ls_status st = preference_fill(preference, p, alignment);
    if (st == LS_OK) st = algorithms_ask(m, preference, folder ? CANDIDATES : 1, found, &n);
    cublaslt.MatmulPreferenceDestroy(preference);
    if (st < 0) return st;
    if (folder) return cublaslt_tune(folder, m, at, alignment, found, n, &m->algorithm);
    m->algorithm = found[0];
    return LS_OK;
}

/* ---- matmuls ---- */

static ls_status cublaslt_matmul_fill(struct cublaslt_matmul *m, const struct cublaslt_operands *at)
{
    LS_TRY(cublaslt_handle(&m->handle));
    LS_TRY(matmul_make(m, at));
    for (int x = 0; x < CUBLASLT_MATRICES; x++) LS_TRY(layout_make(&m->problem, x, &m->layout[x]));
    return algorithm_choose(m, at);
}

ls_status cublaslt_matmul_new(const struct cublaslt_problem *p, const struct cublaslt_operands *at, struct cublaslt_matmul **out)
{
    struct cublaslt_matmul *m = mem_zalloc(MEM_OTHER, sizeof *m);

    if (!m) return LS_ENOMEM;
    m->problem = *p;
    ls_status st = cublaslt_matmul_fill(m, at);
    if (st < 0)
        cublaslt_matmul_free(m);
    else
        *out = m;
    return st;
}

void cublaslt_matmul_free(struct cublaslt_matmul *m)
{
    if (!m) return;
    for (int x = 0; x < CUBLASLT_MATRICES; x++)
        if (m->layout[x]) cublaslt.MatrixLayoutDestroy(m->layout[x]);
    if (m->matmul) cublaslt.MatmulDescDestroy(m->matmul);
    mem_free(m);
}

const struct cublaslt_problem *cublaslt_matmul_problem(const struct cublaslt_matmul *m) { return &m->problem; }

ls_status cublaslt_matmul_try(struct cublaslt_matmul *m, const cublasLtMatmulHeuristicResult_t *algorithm,
                              const struct cublaslt_operands *at, struct device_stream *stream)
{
    const struct cublaslt_problem *p = &m->problem;
    const cublasLtMatrixLayout_t *l = m->layout;
    const char *a = at->matrix[CUBLASLT_A], *b = at->matrix[CUBLASLT_B];
    const float one = 1, beta = p->add ? 1 : 0;
    size_t bytes = algorithm->workspaceSize;
    char *d = at->matrix[CUBLASLT_D];

    if ((p->bias || p->bias_gradient) && m->vector != at->vector) LS_TRY(matmul_set_vector(m, at->vector));
    if (p->aux && m->aux != at->aux) LS_TRY(matmul_set_aux(m, at->aux));
    LS_TRY(flight_room(stream));
    return cublaslt_check(cublaslt.Matmul(m->handle, m->matmul, &one, a, l[CUBLASLT_A], b, l[CUBLASLT_B], &beta, d, l[CUBLASLT_D], d,
                                          l[CUBLASLT_D], &algorithm->algo, at->workspace, bytes, stream->handle),
                          "Matmul");
}

ls_status cublaslt_matmul_run(struct cublaslt_matmul *m, const struct cublaslt_operands *at, struct device_stream *stream)
{
    return cublaslt_matmul_try(m, &m->algorithm, at, stream);
}
