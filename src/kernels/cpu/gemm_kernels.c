/* gemm_kernels.c - linear layers and batched matmuls, on gemm.h.
 *
 * Operands are f32, bf16 or f16 in any mixture. The leading dims of a linear layer's operands must collapse to rows with a constant stride
 * and contiguous elements; w and dw are 2-d. Scratch is sized for the team's current size (threads_count()); the team must not have grown
 * when the kernel runs. If the processor multiplies tiles of bf16 in hardware (AMX), oneDNN runs linear layers in bf16 and their
 * gradients.
 */
#include "base/base.h"
#include "base/threads.h"
#include "kernels/kernel.h"
#include "kernels/cpu/gemm.h"

static bool is_type(const struct view *v) { return v->dtype == LS_F32 || v->dtype == LS_BF16 || v->dtype == LS_F16; }

/* Collapses all dims but the last to rows. False if they have no constant stride. */
static bool gemm_kernels_rows_of(const struct view *v, struct matrix *out)
{
    ptrdiff_t row = 0, want = 0; /* 0: not known yet */

    if (v->ndim < 1 || !is_type(v) || (view_last(v) > 1 && v->stride[v->ndim - 1] != 1)) return false;
    for (int d = v->ndim - 2; d >= 0; d--) {
        if (v->size[d] == 1) continue;
        if (v->stride[d] <= 0) return false; /* rows that repeat */
        if (want && v->stride[d] != want) return false;
        if (!row) row = v->stride[d];
        want = v->stride[d] * (ptrdiff_t)v->size[d];
    }
    *out = (struct matrix){ v->data, v->dtype, row ? row : (ptrdiff_t)view_last(v), 1 };
    return row >= 0;
}

static struct matrix transposed(struct matrix m) { return (struct matrix){ m.data, m.type, m.col, m.row }; }

static bool linear_gemm(const struct call *c, struct gemm *out)
{
    struct gemm p = { .m = view_rows(&c->in[0]), .n = view_last(&c->out[0]), .k = view_last(&c->in[0]) };
    struct matrix w;

    if (!gemm_kernels_rows_of(&c->in[0], &p.a) || !gemm_kernels_rows_of(&c->in[1], &w) || !gemm_kernels_rows_of(&c->out[0], &p.c))
        return false;
    if (call_has_in(c, 2)) {
        if (!is_type(&c->in[2]) || !view_is_contiguous(&c->in[2])) return false;
        p.bias = c->in[2].data;
        p.bias_type = c->in[2].dtype;
    }
    p.b = transposed(w);
    *out = p;
    return true;
}

static bool linear_dx_gemm(const struct call *c, struct gemm *out)
{
    struct gemm p = { .m = view_rows(&c->in[0]), .n = view_last(&c->out[0]), .k = view_last(&c->in[0]) };

    if (!gemm_kernels_rows_of(&c->in[0], &p.a) || !gemm_kernels_rows_of(&c->in[1], &p.b) || !gemm_kernels_rows_of(&c->out[0], &p.c))
        return false;
    *out = p;
    return true;
}

static bool linear_dw_gemm(const struct call *c, struct gemm *out)
{
    struct gemm p = { .m = view_last(&c->in[0]), .n = view_last(&c->in[1]), .k = view_rows(&c->in[0]), .add = true };
    struct matrix dy;

    if (!gemm_kernels_rows_of(&c->in[0], &dy) || !gemm_kernels_rows_of(&c->in[1], &p.b) || !gemm_kernels_rows_of(&c->out[0], &p.c))
        return false;
    p.a = transposed(dy);
    *out = p;
    return true;
}

bool call_gemm(const struct call *c, struct gemm *out)
{
    switch (c->op) {
    case OP_LINEAR: return linear_gemm(c, out);
    case OP_LINEAR_DX: return linear_dx_gemm(c, out);
    case OP_LINEAR_DW: return linear_dw_gemm(c, out);
    default: return false;
    }
}

static bool linear_accepts(const struct call *c)
{
    struct gemm p;

    return tiles_best() && call_gemm(c, &p);
}

static size_t linear_scratch(const struct call *c)
{
    struct gemm p;

    return call_gemm(c, &p) ? gemm_scratch(&p, gemm_threads(&p)) : 0;
}

static void linear_run(const struct call *c)
{
    struct gemm p;

    if (call_gemm(c, &p)) gemm_run(&p, gemm_threads(&p), c->scratch);
}

/* The last two dims. */
static bool matrix_of(const struct view *v, struct matrix *out)
{
    size_t m;

    if (v->ndim < 2 || !is_type(v)) return false;
    m = v->size[v->ndim - 2];
    size_t n = v->size[v->ndim - 1];
    *out = (struct matrix){ v->data, v->dtype, v->stride[v->ndim - 2], v->stride[v->ndim - 1] };
    if (n == 1 && m != 1) /* an unused stride gets the value that makes the shape regular */
        out->col = 1;
    if (m == 1) out->row = n == 1 ? 1 : out->col == 1 ? (ptrdiff_t)n : 1;
    return out->row > 0 && out->col > 0 && (out->row == 1 || out->col == 1);
}

static size_t matmul_batches(const struct call *c)
{
    size_t count = 1;

    for (int d = 0; d < c->out[0].ndim - 2; d++) count *= c->out[0].size[d];
    return count;
}

static bool matmul_gemm(const struct call *c, struct gemm *out)
{
    const struct view *a = &c->in[0], *y = &c->out[0];
    struct gemm p = { .k = view_last(a), .n = view_last(y) };

    if (!matrix_of(a, &p.a) || !matrix_of(&c->in[1], &p.b) || !matrix_of(y, &p.c) || p.c.col != 1) return false;
    p.m = y->size[y->ndim - 2];
    *out = p;
    return true;
}

static bool matmul_accepts(const struct call *c)
{
    struct gemm p;

    return tiles_best() && matmul_gemm(c, &p);
}

/* Many matmuls: each on one thread. Few: one after the other, on the team. */
static bool distributed_batches(const struct call *c, int threads) { return threads > 1 && matmul_batches(c) >= (size_t)threads; }

static size_t matmul_scratch(const struct call *c)
{
    struct gemm p;
    int threads = threads_count();

    if (!matmul_gemm(c, &p)) return 0;
    if (distributed_batches(c, threads)) return (size_t)threads * gemm_scratch(&p, 1);
    return gemm_scratch(&p, gemm_threads(&p));
}

static void *batch_data(const struct view *v, size_t batch)
{
    ptrdiff_t offset = 0;

    for (int d = v->ndim - 3; d >= 0; d--) {
        offset += (ptrdiff_t)(batch % v->size[d]) * v->stride[d];
        batch /= v->size[d];
    }
    return (char *)v->data + offset * (ptrdiff_t)ls_dtype_bytes(v->dtype);
}

struct batches {
    const struct call *c;
    struct gemm p;
    int threads;
    size_t scratch;
};

static void run_batches(void *ctx, size_t begin, size_t end, int thread)
{
    const struct batches *b = ctx;
    struct gemm p = b->p;

    for (size_t i = begin; i < end; i++) {
        p.a.data = batch_data(&b->c->in[0], i);
        p.b.data = batch_data(&b->c->in[1], i);
        p.c.data = batch_data(&b->c->out[0], i);
        gemm_run(&p, b->threads, (char *)b->c->scratch + (size_t)thread * b->scratch);
    }
}

static void matmul_run(const struct call *c)
{
    struct batches b = { .c = c, .threads = 1 };

    if (!matmul_gemm(c, &b.p) || matmul_batches(c) == 0) return;
    if (distributed_batches(c, threads_count())) {
        b.scratch = gemm_scratch(&b.p, 1);
        threads_each(matmul_batches(c), 1, run_batches, &b);
    } else {
        b.threads = gemm_threads(&b.p);
        run_batches(&b, 0, matmul_batches(c), 0);
    }
}

#define PRODUCT_ROW(id, function)                                                                                                      \
    {                                                                                                                                  \
        .op = OP_##id, .name = "tiles", .device = "cpu", .priority = PRIORITY_BLOCKED, .isa = ISA_AVX2, .accepts = function##_accepts, \
        .scratch = function##_scratch, .run = function##_run                                                                           \
    }

const struct kernel kernels_gemm[] = { PRODUCT_ROW(LINEAR, linear), PRODUCT_ROW(LINEAR_DX, linear), PRODUCT_ROW(LINEAR_DW, linear),
                                       PRODUCT_ROW(MATMUL, matmul), KERNELS_END };
