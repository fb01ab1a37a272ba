/* cublaslt_tune.c - see cublaslt_tune.h. Operands and workspace are memory of its own, which it gives back: a program's may hold
 * gradients. */
#include "kernels/cuda/cublaslt_tune.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cublaslt_cache.h"

enum { ROUNDS = 3, CALLS = 5, SMALL_NUMBERS = 0x3c, WORKSPACE = CUBLASLT_MATRICES, VECTOR, AUX, BLOCKS };

/* ---- operands ---- */

/* 0: the problem has no such block. */
static size_t tune_bytes(const struct cublaslt_problem *p, int block)
{
    const struct cublaslt_matrix *x = &p->matrix[block < CUBLASLT_MATRICES ? block : CUBLASLT_D];
    int64_t elements = (p->batch - 1) * x->batch_stride + (x->columns - 1) * x->ld + x->rows;

    if (block == WORKSPACE) return cublaslt_problem_workspace(p);
    if (block == VECTOR) return (size_t)MAX(p->m, p->n) * sizeof(float);
    if (block == AUX && !p->aux) return 0;
    return (size_t)elements * ls_dtype_bytes(block == CUBLASLT_A || block == CUBLASLT_B ? p->in : p->out);
}

static void tune_free(char *block[BLOCKS])
{
    for (int b = 0; b < BLOCKS; b++) cuda_row.free(block[b]);
}

/* Bytes that are small positive numbers in all types. */
static ls_status tune_alloc(const struct cublaslt_problem *p, char *block[BLOCKS])
{
    for (int b = 0; b < BLOCKS; b++) block[b] = NULL;
    for (int b = 0; b < BLOCKS; b++) {
        size_t bytes = tune_bytes(p, b);
        ls_status st = LS_ENOMEM;

        if (!bytes) continue;
        block[b] = cuda_row.alloc(MEM_OTHER, bytes);
        if (block[b]) st = cuda_fill(NULL, block[b], SMALL_NUMBERS, bytes);
        if (st < 0) {
            tune_free(block);
            return st;
        }
    }
    return LS_OK;
}

/* ---- time ---- */

struct tune_clock {
    struct device_stream *stream;
    cudaEvent_t begin, end;
};

static ls_status clock_make(struct tune_clock *c)
{
    ls_status st;

    LS_TRY(cuda_stream(NULL, &c->stream));
    LS_TRY(cuda_check(cudaEventCreateWithFlags(&c->begin, cudaEventDefault), "cudaEventCreateWithFlags"));
    st = cuda_check(cudaEventCreateWithFlags(&c->end, cudaEventDefault), "cudaEventCreateWithFlags");
    if (st < 0) cudaEventDestroy(c->begin);
    return st;
}

static void clock_free(struct tune_clock *c)
{
    if (cuda_failed() < 0) return;
    cuda_check(cudaEventDestroy(c->begin), "cudaEventDestroy");
    cuda_check(cudaEventDestroy(c->end), "cudaEventDestroy");
}

/* Of CALLS calls. */
static ls_status tune_round(struct cublaslt_matmul *m, const cublasLtMatmulHeuristicResult_t *a, char *const block[BLOCKS],
                            const struct tune_clock *c, float *milliseconds)
{
    const struct cublaslt_operands at = { { block[CUBLASLT_A], block[CUBLASLT_B], block[CUBLASLT_D] }, block[VECTOR], block[AUX] };

    LS_TRY(flight_room(c->stream));
    LS_TRY(cuda_check(cudaEventRecord(c->begin, c->stream->handle), "cudaEventRecord"));
    for (int k = 0; k < CALLS; k++) {
        LS_TRY(flight_room(c->stream));
        LS_TRY(cublaslt_matmul_try(m, a, &at, block[WORKSPACE], c->stream->handle));
    }
    LS_TRY(flight_room(c->stream));
    LS_TRY(cuda_check(cudaEventRecord(c->end, c->stream->handle), "cudaEventRecord"));
    LS_TRY(flights_wait(c->end));
    return cuda_check(cudaEventElapsedTime(milliseconds, c->begin, c->end), "cudaEventElapsedTime");
}

/* The first round loads code. */
static ls_status tune_time(struct cublaslt_matmul *m, const cublasLtMatmulHeuristicResult_t *a, char *const block[BLOCKS],
                           const struct tune_clock *c, double *seconds)
{
    float milliseconds;

    *seconds = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        LS_TRY(tune_round(m, a, block, c, &milliseconds));
        if (round == 1 || (round && milliseconds / 1e3 / CALLS < *seconds)) *seconds = milliseconds / 1e3 / CALLS;
    }
    return LS_OK;
}

static ls_status tune_measure(struct cublaslt_matmul *m, const cublasLtMatmulHeuristicResult_t *a, int n,
                              const cublasLtMatmulHeuristicResult_t **best, double *seconds)
{
    struct tune_clock clock;
    char *block[BLOCKS];
    double took;
    ls_status st;

    LS_TRY(tune_alloc(cublaslt_matmul_problem(m), block));
    st = clock_make(&clock);
    if (st < 0) {
        tune_free(block);
        return st;
    }
    for (int k = 0; k < n && st == LS_OK; k++) {
        st = tune_time(m, &a[k], block, &clock, &took);
        if (st == LS_OK && (k == 0 || took < *seconds)) {
            *best = &a[k];
            *seconds = took;
        }
    }
    clock_free(&clock);
    tune_free(block);
    return st;
}

/* ---- the cache ---- */

static int tune_key_matrix(char *to, size_t room, const struct cublaslt_matrix *x, uint32_t alignment)
{
    return snprintf(to, room, " | %lld x %lld / %lld + %lld%s @%u", (long long)x->rows, (long long)x->columns, (long long)x->ld,
                    (long long)x->batch_stride, x->transposed ? " T" : "", alignment);
}

/* Everything that the choice depends on. */
static void tune_key(const struct cublaslt_problem *p, const uint32_t alignment[CUBLASLT_MATRICES], char key[CUBLASLT_KEY])
{
    int at =
        snprintf(key, CUBLASLT_KEY, "%.128s | cuBLASLt %zu | %s%s to %s%s%s%s%s%s | batch %lld", cuda.properties.name,
                 cublaslt.GetVersion(), ls_dtype_name(p->in), p->in == LS_F32 && cuda.settings.tf32 ? " as TF32" : "",
                 ls_dtype_name(p->out), p->add ? " added" : "", p->bias ? " with bias" : "", p->bias_gradient ? " with bias gradient" : "",
                 p->gelu ? " with GELU" : "", p->aux ? " and its input" : "", (long long)p->batch);

    for (int x = 0; x < CUBLASLT_MATRICES; x++) at += tune_key_matrix(key + at, CUBLASLT_KEY - (size_t)at, &p->matrix[x], alignment[x]);
    ASSERT(at < CUBLASLT_KEY);
}

/* What the cache has, if it can be used. */
static bool tune_known(const struct cublaslt_matmul *m, const struct cublaslt_cache *cache, struct cublaslt_choice *x,
                       cublasLtMatmulHeuristicResult_t *out)
{
    _Static_assert(sizeof x->algorithm == sizeof out->algo, "an algorithm's words");
    if (!cublaslt_cache_find(cache, x)) return false;
    memset(out, 0, sizeof *out);
    memcpy(&out->algo, x->algorithm, sizeof out->algo);
    return cublaslt_matmul_can_run(m, out) && out->workspaceSize <= cublaslt_problem_workspace(cublaslt_matmul_problem(m));
}

ls_status cublaslt_tune(const char *folder, struct cublaslt_matmul *m, const uint32_t alignment[CUBLASLT_MATRICES],
                        const cublasLtMatmulHeuristicResult_t *algorithm, int n, cublasLtMatmulHeuristicResult_t *best)
{
    const cublasLtMatmulHeuristicResult_t *fastest = algorithm;
    struct cublaslt_choice x = { .seconds = 0 };
    struct cublaslt_cache cache;
    ls_status st = LS_OK;

    tune_key(cublaslt_matmul_problem(m), alignment, x.key);
    LS_TRY(cublaslt_cache_lock(folder, &cache));
    if (!tune_known(m, &cache, &x, best)) {
        st = tune_measure(m, algorithm, n, &fastest, &x.seconds);
        if (st == LS_OK) {
            *best = *fastest;
            memcpy(x.algorithm, &best->algo, sizeof x.algorithm);
            st = cublaslt_cache_put(&cache, &x);
        }
    }
    cublaslt_cache_unlock(&cache);
    return st;
}
