/* cublaslt.c - linear layers and batched matmuls by cuBLASLt: rows of the kernel table, above our own plain kernels.
 *
 * prepare() makes the descriptors and takes the first algorithm that the library's heuristics propose: a function of the GPU, of the
 * library's version and of the call's types, shapes and alignments, so a run repeats bit for bit and all ranks on equal GPUs compute the
 * same. With run.tune_matmuls it takes the fastest of CANDIDATES instead. Measured times differ from run to run, so the choice is kept in
 * the cache folder, which all ranks of the machine and later runs read; without the option the cache is not read. Sums over parts of k
 * that are computed beside each other may only be added in a step of their own, from the workspace, in f32 (reduction scheme
 * COMPUTE_TYPE): the schemes that add into the output round to its type between parts, and their order is not documented as fixed. Each
 * call has a workspace of its own, its scratch, so what runs on other streams changes nothing.
 *
 * f32 is multiplied in f32, or in TF32 where precision.tf32 allows it; bf16 and f16 with sums in f32. A bias is added by the epilogue.
 * Weight gradients are added to (beta 1), in f32 also where the operands are bf16.
 *
 * Reference: cuBLAS 13 documentation, "Using the cuBLASLt API".
 */
#include "kernels/cuda/cublaslt.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cublaslt_problem.h"
#include "kernels/cuda/cublaslt_tune.h"
#include "kernels/cuda/parts.h"

enum { CANDIDATES = 8, WORKSPACE_ALIGNMENT = 256, SCRATCH_ALIGNMENT = 64 };

/* One prepared call. */
struct cublaslt_state {
    struct cublaslt_problem problem;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatrixLayout_t layout[CUBLASLT_MATRICES];
    cublasLtMatmulHeuristicResult_t algorithm;
    const void *bias; /* what matmul has */
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

static ls_status matmul_set(cublasLtMatmulDesc_t m, cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    return cublaslt_check(cublaslt.MatmulDescSetAttribute(m, what, value, bytes), "MatmulDescSetAttribute");
}

ls_status cublaslt_set_bias(struct cublaslt_state *s, const void *bias)
{
    s->bias = bias;
    return matmul_set(s->matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

static ls_status matmul_make(struct cublaslt_state *s, const void *bias)
{
    const struct cublaslt_problem *p = &s->problem;
    int32_t a = p->matrix[CUBLASLT_A].transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t b = p->matrix[CUBLASLT_B].transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasComputeType_t compute = p->in == LS_F32 && cuda.settings.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;

    LS_TRY(cublaslt_check(cublaslt.MatmulDescCreate(&s->matmul, compute, CUDA_R_32F), "MatmulDescCreate"));
    LS_TRY(matmul_set(s->matmul, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    LS_TRY(matmul_set(s->matmul, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    if (!p->bias) return LS_OK;
    LS_TRY(matmul_set(s->matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    return cublaslt_set_bias(s, bias);
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

/* Up to `most` algorithms, at least one; the fastest first, as the library estimates. */
static ls_status algorithms_ask(struct cublaslt_state *s, cublasLtMatmulPreference_t preference, int most,
                                cublasLtMatmulHeuristicResult_t *out, int *n)
{
    const struct cublaslt_problem *p = &s->problem;
    cublasLtMatrixLayout_t *l = s->layout, d = l[CUBLASLT_D];
    cublasStatus_t st;
    int found = 0;

    st = cublaslt.MatmulAlgoGetHeuristic(s->handle, s->matmul, l[CUBLASLT_A], l[CUBLASLT_B], d, d, preference, most, out, &found);
    for (int k = found; k-- > 0;)
        if (out[k].state != CUBLAS_STATUS_SUCCESS) memmove(&out[k], &out[k + 1], (size_t)(found-- - k - 1) * sizeof *out);
    *n = found;
    if (st == CUBLAS_STATUS_NOT_SUPPORTED || (st == CUBLAS_STATUS_SUCCESS && !*n))
        return ls_fail(LS_EUNSUPPORTED, "cuda: cuBLASLt %zu has no algorithm for a %s matmul of m=%lld, n=%lld, k=%lld, batch %lld",
                       cublaslt.GetVersion(), ls_dtype_name(p->in), (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->batch);
    return cublaslt_check(st, "MatmulAlgoGetHeuristic");
}

bool cublaslt_can_run(const struct cublaslt_state *s, cublasLtMatmulHeuristicResult_t *algorithm)
{
    const cublasLtMatrixLayout_t *l = s->layout, d = l[CUBLASLT_D];
    cublasLtMatmulHeuristicResult_t more = *algorithm;

    if (cublaslt.MatmulAlgoCheck(s->handle, s->matmul, l[CUBLASLT_A], l[CUBLASLT_B], d, d, &algorithm->algo, &more) !=
        CUBLAS_STATUS_SUCCESS)
        return false;
    algorithm->workspaceSize = more.workspaceSize;
    return true;
}

static ls_status algorithm_choose(struct cublaslt_state *s, const struct call *c)
{
    const struct cublaslt_problem *p = &s->problem;
    const uint32_t alignment[CUBLASLT_MATRICES] = {
        [CUBLASLT_A] = cublaslt_problem_alignment(p, CUBLASLT_A, c->in[1].data),
        [CUBLASLT_B] = cublaslt_problem_alignment(p, CUBLASLT_B, c->in[0].data),
        [CUBLASLT_D] = cublaslt_problem_alignment(p, CUBLASLT_D, c->out[0].data),
    };
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    cublasLtMatmulPreference_t preference;
    const char *folder = cuda.settings.tuned;
    int n = 0;
    ls_status st;

    LS_TRY(cublaslt_check(cublaslt.MatmulPreferenceCreate(&preference), "MatmulPreferenceCreate"));
    st = preference_fill(preference, p, alignment);
    if (st == LS_OK) st = algorithms_ask(s, preference, folder ? CANDIDATES : 1, found, &n);
    cublaslt.MatmulPreferenceDestroy(preference);
    if (st < 0) return st;
    if (folder) return cublaslt_tune(folder, s, p, alignment, found, n, &s->algorithm);
    s->algorithm = found[0];
    return LS_OK;
}

/* ---- kernels ---- */

static bool problem_is_empty(const struct cublaslt_problem *p) { return !p->m || !p->n || !p->batch; }

static bool cublaslt_accepts(const struct call *c)
{
    struct cublaslt_problem p;

    return cublaslt_problem_of(c, &p) && cublaslt_found();
}

static size_t cublaslt_scratch(const struct call *c)
{
    struct cublaslt_problem p;

    if (!cublaslt_problem_of(c, &p) || problem_is_empty(&p)) return 0;
    return cublaslt_problem_workspace(&p) + WORKSPACE_ALIGNMENT - SCRATCH_ALIGNMENT;
}

static void cublaslt_state_free(struct cublaslt_state *s)
{
    for (int x = 0; x < CUBLASLT_MATRICES; x++)
        if (s->layout[x]) cublaslt.MatrixLayoutDestroy(s->layout[x]);
    if (s->matmul) cublaslt.MatmulDescDestroy(s->matmul);
    mem_free(s);
}

static ls_status cublaslt_state_fill(struct cublaslt_state *s, const struct call *c)
{
    LS_TRY(cublaslt_handle(&s->handle));
    LS_TRY(matmul_make(s, c->in[2].data));
    for (int x = 0; x < CUBLASLT_MATRICES; x++) LS_TRY(layout_make(&s->problem, x, &s->layout[x]));
    return algorithm_choose(s, c);
}

static ls_status cublaslt_prepare(struct call *c)
{
    struct cublaslt_state *s;
    struct cublaslt_problem p;
    ls_status st;

    ASSERT(cublaslt_problem_of(c, &p));
    c->state = NULL;
    if (problem_is_empty(&p)) return LS_OK;
    s = mem_zalloc(MEM_OTHER, sizeof *s);
    if (!s) return LS_ENOMEM;
    s->problem = p;
    st = cublaslt_state_fill(s, c);
    if (st < 0)
        cublaslt_state_free(s);
    else
        c->state = s;
    return st;
}

static void cublaslt_release(struct call *c)
{
    if (c->state) cublaslt_state_free(c->state);
    c->state = NULL;
}

static void *workspace_of(const struct call *c)
{
    return (void *)(((uintptr_t)c->scratch + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT);
}

ls_status cublaslt_call(struct cublaslt_state *s, const cublasLtMatmulHeuristicResult_t *algorithm, char *const at[CUBLASLT_MATRICES],
                        void *workspace, cudaStream_t stream)
{
    const cublasLtMatrixLayout_t *l = s->layout;
    const float one = 1, beta = s->problem.add ? 1 : 0;
    size_t bytes = algorithm->workspaceSize;
    char *d = at[CUBLASLT_D];

    return cublaslt_check(cublaslt.Matmul(s->handle, s->matmul, &one, at[CUBLASLT_A], l[CUBLASLT_A], at[CUBLASLT_B], l[CUBLASLT_B], &beta,
                                          d, l[CUBLASLT_D], d, l[CUBLASLT_D], &algorithm->algo, workspace, bytes, stream),
                          "Matmul");
}

/* Call number i of the loops: where A, B and D are. */
static void matmul_at(const struct cublaslt_problem *p, const struct call *c, int64_t i, char *at[CUBLASLT_MATRICES])
{
    const size_t in = ls_dtype_bytes(p->in), unit[CUBLASLT_MATRICES] = { in, in, ls_dtype_bytes(p->out) };

    at[CUBLASLT_A] = c->in[1].data;
    at[CUBLASLT_B] = c->in[0].data;
    at[CUBLASLT_D] = c->out[0].data;
    for (int l = 0; l < p->loops; l++) {
        for (int x = 0; x < CUBLASLT_MATRICES; x++) at[x] += i % p->loop[l].size * p->loop[l].stride[x] * (int64_t)unit[x];
        i /= p->loop[l].size;
    }
}

static void cublaslt_run(const struct call *c)
{
    struct cublaslt_state *s = c->state;
    struct device_stream *stream;
    char *at[CUBLASLT_MATRICES];
    int64_t calls = 1;

    if (!s || cuda_stream(c->stream, &stream) < 0) return;
    if (s->problem.bias && s->bias != c->in[2].data && cublaslt_set_bias(s, c->in[2].data) < 0) return;
    for (int l = 0; l < s->problem.loops; l++) calls *= s->problem.loop[l].size;
    for (int64_t i = 0; i < calls; i++) {
        matmul_at(&s->problem, c, i, at);
        if (cublaslt_call(s, &s->algorithm, at, workspace_of(c), stream->handle) < 0) return;
    }
}

#define CUBLASLT_ROW(id)                                                                                                                \
    {                                                                                                                                   \
        .op = OP_##id, .name = "cublaslt", .device = "cuda", .priority = PRIORITY_LIBRARY, .isa = ISA_ANY, .accepts = cublaslt_accepts, \
        .scratch = cublaslt_scratch, .prepare = cublaslt_prepare, .release = cublaslt_release, .run = cublaslt_run                      \
    }

const struct kernel kernels_cuda_cublaslt[] = { CUBLASLT_ROW(LINEAR), CUBLASLT_ROW(LINEAR_DX), CUBLASLT_ROW(LINEAR_DW),
                                                CUBLASLT_ROW(MATMUL), KERNELS_END };
