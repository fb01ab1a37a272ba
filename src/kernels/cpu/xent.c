/* xent.c - the last linear layer and its cross-entropy in one op, by chunks of rows: the logits are never all in memory.
 *
 * For each chunk: logits = x w^T, the rows' lse and loss, dlogits in the place of the logits (as bf16 if the matmuls run on pairs of bf16),
 * dx = dlogits w, dw += dlogits^T x. x, w, dx and dw are f32, bf16 or f16 in any
 * mixture, all contiguous. Each chunk is added to dw in f32 and rounded to its type.
 *
 * A chunk is a sixteenth of the rows, so that its logits are small beside the activations, which grow with the rows, too. Each chunk reads
 * w twice and dw once, so it has at least FULL_ROWS if that leaves LEAST_CHUNKS, else LEAST_ROWS. Rows alone decide, up to LOGIT_BYTES:
 * the order in which dw is summed depends on shapes only.
 */
#include "kernels/cpu/xent.h"

#include <string.h>
#include "base/base.h"
#include "base/threads.h"
#include "kernels/kernel.h"
#include "kernels/cpu/gemm.h"

enum { LOGIT_BYTES = 208 << 20, CHUNKS = 16, FULL_ROWS = 256, LEAST_CHUNKS = 4, LEAST_ROWS = 128 };

extern const struct xent_rows xent_rows_avx2, xent_rows_avx512;

struct xent {
    const struct xent_rows *rows;
    const struct tiles *tiles;
    struct view x, w, dx, dw; /* dx, dw: may be absent */
    const int32_t *y;
    size_t R, C, V;
    bool bf16;               /* dlogits are bf16 */
    const float *lse_given;  /* NULL: computed */
    float factor, inverse;   /* dloss / denom, 1 / denom */
    size_t chunk, ld;        /* rows of a chunk; floats from one row of logits to the next */
    size_t r0, n;            /* the current chunk: its first row, its rows */
    float *lse, *loss;       /* [R], the caller's or scratch; [R] */
    float *logits, *dx_sums; /* [chunk, ld], [chunk, C] */
    void *gemm_scratch;      /* scratch of the matmuls */
};

static bool xent_is_plain(const struct view *v)
{
    return view_is_contiguous(v) && (v->dtype == LS_F32 || v->dtype == LS_BF16 || v->dtype == LS_F16);
}

static bool is_f32(const struct view *v) { return view_is_contiguous(v) && v->dtype == LS_F32; }

static struct matrix rows_at(const struct view *v, size_t r)
{
    size_t C = view_last(v);

    return (struct matrix){ (char *)v->data + r * C * ls_dtype_bytes(v->dtype), v->dtype, (ptrdiff_t)C, 1 };
}

static struct matrix turned(struct matrix m) { return (struct matrix){ m.data, m.type, m.col, m.row }; }

/* The rows of a chunk of logits, of which each row has ld floats. */
static size_t chunk_rows(size_t R, size_t ld)
{
    size_t chunks = R / MAX(LOGIT_BYTES / (ld * sizeof(float)), (size_t)1) + 1;

    chunks = MAX(chunks, MIN(R / LEAST_ROWS, (size_t)LEAST_CHUNKS));
    chunks = MAX(chunks, MIN(R / FULL_ROWS, (size_t)CHUNKS));
    return (R + chunks - 1) / chunks;
}

/* The operands both ops share, and the sizes of chunks. */
static bool xent_of(const struct call *c, struct xent *z)
{
    *z = (struct xent){ .tiles = tiles_best(), .x = c->in[0], .w = c->in[1], .y = c->in[2].data };
    z->dx.ndim = z->dw.ndim = VIEW_ABSENT;
    z->rows = isa_best() >= ISA_AVX512 ? &xent_rows_avx512 : &xent_rows_avx2;
    if (!z->tiles || !xent_is_plain(&z->x) || !xent_is_plain(&z->w) || c->in[2].dtype != LS_I32 || !view_is_contiguous(&c->in[2]) ||
        (call_has_in(c, 3) && c->in[3].dtype != LS_F32))
        return false;
    z->R = view_rows(&z->x);
    z->C = view_last(&z->x);
    z->V = z->w.size[0];
    z->bf16 = tiles_pairs(z->x.dtype, z->w.dtype);
    z->ld = (z->V + 15) / 16 * 16 + 16;
    z->chunk = chunk_rows(z->R, z->ld);
    return z->V > 0;
}

static bool forward_of(const struct call *c, struct xent *z) { return xent_of(c, z) && is_f32(&c->out[0]) && is_f32(&c->out[1]); }

static bool backward_of(const struct call *c, struct xent *z)
{
    if (!xent_of(c, z) || !is_f32(&c->in[5]) || (call_has_in(c, 4) && !is_f32(&c->in[4])) ||
        (call_has_out(c, 0) && !xent_is_plain(&c->out[0])) || (call_has_out(c, 1) && !xent_is_plain(&c->out[1])) ||
        (call_has_out(c, 2) && !is_f32(&c->out[2])))
        return false;
    if (call_has_out(c, 0)) z->dx = c->out[0];
    if (call_has_out(c, 1)) z->dw = c->out[1];
    if (call_has_in(c, 4)) z->lse_given = c->in[4].data;
    return true;
}

static struct gemm logits_gemm(const struct xent *z)
{
    return (struct gemm){
        .m = z->n,
        .n = z->V,
        .k = z->C,
        .a = rows_at(&z->x, z->r0),
        .b = turned(rows_at(&z->w, 0)),
        .c = { z->logits, LS_F32, (ptrdiff_t)z->ld, 1 },
    };
}

static struct matrix dlogits(const struct xent *z)
{
    return (struct matrix){ z->logits, z->bf16 ? LS_BF16 : LS_F32, (ptrdiff_t)(z->bf16 ? 2 * z->ld : z->ld), 1 };
}

/* Written to dx if it is f32, else to sums that are rounded afterwards. */
static struct gemm dx_gemm(const struct xent *z)
{
    struct gemm p = { .m = z->n, .n = z->C, .k = z->V, .a = dlogits(z), .b = rows_at(&z->w, 0) };

    p.c = (struct matrix){ z->dx_sums, LS_F32, (ptrdiff_t)z->C, 1 };
    if (z->dx.dtype == LS_F32) p.c = rows_at(&z->dx, z->r0);
    return p;
}

static struct gemm dw_gemm(const struct xent *z)
{
    return (struct gemm){
        .m = z->V,
        .n = z->C,
        .k = z->n,
        .add = true,
        .a = turned(dlogits(z)),
        .b = rows_at(&z->x, z->r0),
        .c = rows_at(&z->dw, 0),
    };
}

/* Lays out scratch; returns its total bytes. */
static size_t layout(struct xent *z, void *scratch)
{
    struct parts at = { scratch, 0 };
    size_t bytes;
    struct gemm p;

    z->lse = take(&at, z->R * sizeof(float));
    z->loss = take(&at, z->R * sizeof(float));
    z->logits = take(&at, z->chunk * z->ld * sizeof(float));
    z->dx_sums = take(&at, view_given(&z->dx) && z->dx.dtype != LS_F32 ? z->chunk * z->C * sizeof(float) : 0);
    z->gemm_scratch = take(&at, 0);
    size_t most = 0;
    for (int full = 0; full < 2; full++) { /* the last chunk may be divided differently */
        z->n = full ? z->chunk : z->R % MAX(z->chunk, (size_t)1);
        p = logits_gemm(z);
        bytes = gemm_scratch(&p, gemm_threads(&p));
        most = MAX(most, bytes);
        p = dx_gemm(z);
        bytes = view_given(&z->dx) ? gemm_scratch(&p, gemm_threads(&p)) : 0;
        most = MAX(most, bytes);
        p = dw_gemm(z);
        bytes = view_given(&z->dw) ? gemm_scratch(&p, gemm_threads(&p)) : 0;
        most = MAX(most, bytes);
    }
    return at.used + most;
}

static size_t xent_scratch(const struct call *c)
{
    struct xent z;

    return forward_of(c, &z) ? layout(&z, NULL) : 0;
}

static size_t xent_grad_scratch(const struct call *c)
{
    struct xent z;

    return backward_of(c, &z) ? layout(&z, NULL) : 0;
}

static void xent_multiply(const struct xent *z, struct gemm p) { gemm_run(&p, gemm_threads(&p), z->gemm_scratch); }

/* Computes lse and loss of the chunk's rows. */
static void row_losses(void *ctx, size_t begin, size_t end, int thread)
{
    struct xent *z = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        size_t r = z->r0 + i;
        const float *logits = z->logits + i * z->ld;
        int32_t y = z->y[r];

        ASSERT(y < 0 || (size_t)y < z->V);
        z->lse[r] = z->lse_given ? z->lse_given[r] : z->rows->lse(logits, z->V);
        z->loss[r] = y < 0 ? 0 : z->lse[r] - logits[y];
    }
}

/* Replaces the chunk's logits by dlogits. */
static void row_gradients(void *ctx, size_t begin, size_t end, int thread)
{
    struct xent *z = ctx;

    row_losses(ctx, begin, end, thread);
    for (size_t i = begin; i < end; i++) {
        size_t r = z->r0 + i;
        float *logits = z->logits + i * z->ld;

        if (z->y[r] < 0)
            memset(logits, 0, z->ld * sizeof *logits);
        else
            z->rows->gradient(logits, z->V, z->lse[r], (size_t)z->y[r], z->factor, z->bf16);
    }
}

static void round_dx(void *ctx, size_t begin, size_t end, int thread)
{
    struct xent *z = ctx;
    struct matrix to = rows_at(&z->dx, z->r0 + begin);

    (void)thread;
    ls_convert(to.data, to.type, z->dx_sums + begin * z->C, LS_F32, (end - begin) * z->C);
}

static void set_denom(struct xent *z, const struct call *c)
{
    size_t valid = 0;

    for (size_t r = 0; r < z->R; r++) valid += z->y[r] >= 0;
    z->inverse = valid ? 1 / (float)valid : 0;
    if (call_has_in(c, 3)) z->inverse = 1 / *(const float *)c->in[3].data;
}

static float total_loss(const struct xent *z)
{
    double sum = 0;

    for (size_t r = 0; r < z->R; r++) sum += (double)z->loss[r];
    return (float)(sum * (double)z->inverse);
}

static void linear_xent_run(const struct call *c)
{
    struct xent z;

    if (!forward_of(c, &z)) return;
    layout(&z, c->scratch);
    z.lse = c->out[1].data;
    set_denom(&z, c);
    for (z.r0 = 0; z.r0 < z.R; z.r0 += z.n) {
        z.n = MIN(z.R - z.r0, z.chunk);
        xent_multiply(&z, logits_gemm(&z));
        threads_for(z.n, 1, row_losses, &z);
    }
    *(float *)c->out[0].data = total_loss(&z);
}

static void backward_chunk(struct xent *z)
{
    xent_multiply(z, logits_gemm(z));
    threads_for(z->n, 1, row_gradients, z);
    if (view_given(&z->dx)) {
        xent_multiply(z, dx_gemm(z));
        if (z->dx.dtype != LS_F32) threads_for(z->n, 1, round_dx, z);
    }
    if (view_given(&z->dw)) xent_multiply(z, dw_gemm(z));
}

static void linear_xent_grad_run(const struct call *c)
{
    struct xent z;

    if (!backward_of(c, &z)) return;
    layout(&z, c->scratch);
    set_denom(&z, c);
    z.factor = z.inverse * *(const float *)c->in[5].data;
    for (z.r0 = 0; z.r0 < z.R; z.r0 += z.n) {
        z.n = MIN(z.R - z.r0, z.chunk);
        backward_chunk(&z);
    }
    if (call_has_out(c, 2)) *(float *)c->out[2].data = total_loss(&z);
}

#define XENT_ROW(id, accepting, bytes, function)                                                                               \
    {                                                                                                                          \
        .op = OP_##id, .name = "chunks", .device = "cpu", .priority = PRIORITY_BLOCKED, .isa = ISA_AVX2, .accepts = accepting, \
        .scratch = bytes, .run = function                                                                                      \
    }

static bool linear_xent_accepts(const struct call *c)
{
    struct xent z;

    return forward_of(c, &z);
}

static bool linear_xent_grad_accepts(const struct call *c)
{
    struct xent z;

    return backward_of(c, &z);
}

const struct kernel kernels_xent[] = { XENT_ROW(LINEAR_XENT, linear_xent_accepts, xent_scratch, linear_xent_run),
                                       XENT_ROW(LINEAR_XENT_GRAD, linear_xent_grad_accepts, xent_grad_scratch, linear_xent_grad_run),
                                       KERNELS_END };
