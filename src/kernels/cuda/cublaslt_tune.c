/* cublaslt_tune.c - see cublaslt_tune.h. The GPU's memory may be full, so the matmul runs on its own operands, once nothing else runs; what
 * it writes may be a gradient, so that is saved before, and restored. */
#include "kernels/cuda/cublaslt_tune.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cublaslt_cache.h"

enum { ROUNDS = 3, CALLS = 5, WRITTEN = 3 };

/* ---- saving what a matmul overwrites ---- */

/* A block of bytes that the matmul writes; bytes 0: it writes none. */
struct saved {
    void *device;
    char *host;
    size_t bytes;
};

/* D, the gradient of the bias, and the epilogue's second output, which has D's shape. */
static void tune_written(const struct cublaslt_problem *p, const struct cublaslt_operands *at, struct saved out[WRITTEN])
{
    const struct cublaslt_matrix *d = &p->matrix[CUBLASLT_D];
    size_t elements = (size_t)((p->batch - 1) * d->batch_stride + (d->columns - 1) * d->ld + d->rows);
    size_t bytes = elements * ls_dtype_bytes(p->out);

    out[0] = (struct saved){ at->matrix[CUBLASLT_D], NULL, bytes };
    out[1] = (struct saved){ at->vector, NULL, p->bias_gradient ? (size_t)MAX(p->m, p->n) * sizeof(float) : 0 };
    out[2] = (struct saved){ at->aux, NULL, p->aux ? bytes : 0 };
}

static void saved_free(struct saved s[WRITTEN])
{
    for (int k = 0; k < WRITTEN; k++) mem_free(s[k].host);
}

/* When it returns, even with a failure, no copy is in flight. */
static ls_status tune_save(struct saved s[WRITTEN])
{
    ls_status st = LS_OK;

    for (int k = 0; k < WRITTEN && st == LS_OK; k++)
        if (s[k].bytes && !(s[k].host = mem_alloc(MEM_OTHER, s[k].bytes))) st = LS_ENOMEM;
    for (int k = 0; k < WRITTEN && st == LS_OK; k++)
        if (s[k].bytes) st = cuda_copy_out(NULL, s[k].host, s[k].device, s[k].bytes);
    if (st == LS_OK) st = cuda_row.stream_sync(NULL);
    if (st < 0) saved_free(s);
    return st;
}

/* Streams of programs do not wait for the default one, so the host does. */
static ls_status tune_restore(struct saved s[WRITTEN])
{
    ls_status st = LS_OK;

    for (int k = 0; k < WRITTEN && st == LS_OK; k++)
        if (s[k].bytes) st = cuda_copy_in(NULL, s[k].device, s[k].host, s[k].bytes);
    if (st == LS_OK) st = cuda_row.stream_sync(NULL);
    saved_free(s);
    return st;
}

/* ---- time ---- */

struct tune_clock {
    struct device_stream *stream;
    cudaEvent_t begin, end;
};

static ls_status clock_make(struct tune_clock *c)
{
    LS_TRY(cuda_stream(NULL, &c->stream));
    LS_TRY(cuda_check(cudaEventCreateWithFlags(&c->begin, cudaEventDefault), "cudaEventCreateWithFlags"));
    ls_status st = cuda_check(cudaEventCreateWithFlags(&c->end, cudaEventDefault), "cudaEventCreateWithFlags");
    if (st < 0) cudaEventDestroy(c->begin);
    return st;
}

static void clock_free(struct tune_clock *c)
{
    if (cuda_failed() < 0) return;
    cuda_check(cudaEventDestroy(c->begin), "cudaEventDestroy");
    cuda_check(cudaEventDestroy(c->end), "cudaEventDestroy");
}

/* Seconds of CALLS calls. */
static ls_status tune_round(struct cublaslt_matmul *m, const cublasLtMatmulHeuristicResult_t *a, const struct cublaslt_operands *at,
                            const struct tune_clock *c, float *milliseconds)
{
    LS_TRY(flight_room(c->stream));
    LS_TRY(cuda_check(cudaEventRecord(c->begin, c->stream->handle), "cudaEventRecord"));
    for (int k = 0; k < CALLS; k++) LS_TRY(cublaslt_matmul_try(m, a, at, c->stream));
    LS_TRY(flight_room(c->stream));
    LS_TRY(cuda_check(cudaEventRecord(c->end, c->stream->handle), "cudaEventRecord"));
    LS_TRY(flights_wait(c->end));
    return cuda_check(cudaEventElapsedTime(milliseconds, c->begin, c->end), "cudaEventElapsedTime");
}

/* The first round loads code. */
static ls_status tune_time(struct cublaslt_matmul *m, const cublasLtMatmulHeuristicResult_t *a, const struct cublaslt_operands *at,
                           const struct tune_clock *c, double *seconds)
{
    float milliseconds;

    *seconds = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        LS_TRY(tune_round(m, a, at, c, &milliseconds));
        if (round == 1 || (round && milliseconds / 1e3 / CALLS < *seconds)) *seconds = milliseconds / 1e3 / CALLS;
    }
    return LS_OK;
}

static ls_status tune_fastest(struct cublaslt_matmul *m, const struct cublaslt_operands *at, const cublasLtMatmulHeuristicResult_t *a,
                              int n, const cublasLtMatmulHeuristicResult_t **best, double *seconds)
{
    struct tune_clock clock;
    double took;
    ls_status st = clock_make(&clock);

    if (st < 0) return st;
    for (int k = 0; k < n && st == LS_OK; k++) {
        st = tune_time(m, &a[k], at, &clock, &took);
        if (st == LS_OK && (k == 0 || took < *seconds)) {
            *best = &a[k];
            *seconds = took;
        }
    }
    clock_free(&clock);
    return st;
}

static ls_status tune_measure(struct cublaslt_matmul *m, const struct cublaslt_operands *at, const cublasLtMatmulHeuristicResult_t *a,
                              int n, const cublasLtMatmulHeuristicResult_t **best, double *seconds)
{
    struct saved written[WRITTEN];

    tune_written(cublaslt_matmul_problem(m), at, written);
    LS_TRY(cuda_row.sync());
    LS_TRY(tune_save(written));
    ls_status st = tune_fastest(m, at, a, n, best, seconds);
    ls_status restored = tune_restore(written);
    return st < 0 ? st : restored;
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

/* The cached algorithm, if it can be used. */
static bool tune_known(const struct cublaslt_matmul *m, const struct cublaslt_cache *cache, struct cublaslt_choice *x,
                       cublasLtMatmulHeuristicResult_t *out)
{
    _Static_assert(sizeof x->algorithm == sizeof out->algo, "an algorithm's words");
    if (!cublaslt_cache_find(cache, x)) return false;
    memset(out, 0, sizeof *out);
    memcpy(&out->algo, x->algorithm, sizeof out->algo);
    return cublaslt_matmul_can_run(m, out) && out->workspaceSize <= cublaslt_problem_workspace(cublaslt_matmul_problem(m));
}

ls_status cublaslt_tune(const char *folder, struct cublaslt_matmul *m, const struct cublaslt_operands *at,
                        const uint32_t alignment[CUBLASLT_MATRICES], const cublasLtMatmulHeuristicResult_t *algorithm, int n,
                        cublasLtMatmulHeuristicResult_t *best)
{
    const cublasLtMatmulHeuristicResult_t *fastest = algorithm;
    struct cublaslt_choice x = { .seconds = 0 };
    struct cublaslt_cache cache;
    ls_status st = LS_OK;

    tune_key(cublaslt_matmul_problem(m), alignment, x.key);
    LS_TRY(cublaslt_cache_lock(folder, &cache));
    if (!tune_known(m, &cache, &x, best)) {
        st = tune_measure(m, at, algorithm, n, &fastest, &x.seconds);
        if (st == LS_OK) {
            *best = *fastest;
            memcpy(x.algorithm, &best->algo, sizeof x.algorithm);
            st = cublaslt_cache_put(&cache, &x);
        }
    }
    cublaslt_cache_unlock(&cache);
    return st;
}
