/* grouped.c - grouped matmuls over each expert's rows, on gemm.h.
 *
 * The number of an expert's rows is known when the kernel runs; scratch is sized for the maximum. Few experts: one after the other, each on
 * the team. Many: each on one thread, whatever their sizes. In a weight gradient one task has the rows of all sources, so no two threads
 * add to the same element.
 */
#include <string.h>
#include "base/base.h"
#include "base/threads.h"
#include "kernels/kernel.h"
#include "kernels/cpu/gemm.h"

enum { MANY = 4 }; /* experts per thread */

struct grouped {
    const struct call *c;
    int threads; /* threads of one matmul */
    size_t experts, sources, scratch;
};

static bool grouped_is_plain(const struct view *v)
{
    return (v->dtype == LS_F32 || v->dtype == LS_BF16 || v->dtype == LS_F16) && view_is_contiguous(v);
}

static struct matrix matrix(const struct view *v, size_t row, size_t expert, size_t columns)
{
    size_t at = v->ndim == 3 ? expert * v->size[1] * v->size[2] : row * columns;

    return (struct matrix){ (char *)v->data + at * ls_dtype_bytes(v->dtype), v->dtype, (ptrdiff_t)columns, 1 };
}

static struct matrix transposed(struct matrix m) { return (struct matrix){ m.data, m.type, m.col, m.row }; }

/* The matmul of rows [begin, begin + count) with the expert's weight. */
static struct gemm gemm_of(const struct call *c, size_t expert, size_t begin, size_t count)
{
    size_t in = view_last(&c->in[0]), w = view_last(&c->in[1]), out = view_last(&c->out[0]);
    struct matrix a = matrix(&c->in[0], begin, expert, in), b = matrix(&c->in[1], begin, expert, w),
                  y = matrix(&c->out[0], begin, expert, out);

    switch (c->op) {
    case OP_GROUPED_LINEAR: return (struct gemm){ .m = count, .n = out, .k = in, .a = a, .b = transposed(b), .c = y };
    case OP_GROUPED_LINEAR_DX: return (struct gemm){ .m = count, .n = out, .k = in, .a = a, .b = b, .c = y };
    default: return (struct gemm){ .m = in, .n = w, .k = count, .a = transposed(a), .b = b, .c = y, .add = true };
    }
}

static bool grouped_accepts(const struct call *c)
{
    return tiles_best() && grouped_is_plain(&c->in[0]) && grouped_is_plain(&c->in[1]) && grouped_is_plain(&c->out[0]) &&
           c->in[2].dtype == LS_I32 && view_is_contiguous(&c->in[2]);
}

static struct grouped grouped_of(const struct call *c)
{
    struct grouped g = { .c = c, .threads = threads_count(), .experts = c->in[2].size[1], .sources = c->in[2].size[0] };
    struct gemm most = gemm_of(c, 0, 0, c->in[0].size[0]);

    if (g.threads > 1 && g.experts >= (size_t)(MANY * g.threads)) g.threads = 1;
    g.scratch = gemm_scratch_most(&most, g.threads);
    return g;
}

static size_t scratch(const struct call *c)
{
    struct grouped g = grouped_of(c);

    return g.scratch * (g.threads == 1 ? (size_t)threads_count() : 1);
}

static size_t count_at(const struct grouped *g, size_t source, size_t expert)
{
    return (size_t)((const int32_t *)g->c->in[2].data)[source * g->experts + expert];
}

/* The expert's first row from a source. */
static size_t first_row(const struct grouped *g, size_t source, size_t expert)
{
    size_t at = 0;

    for (size_t i = 0; i < source * g->experts + expert; i++) at += (size_t)((const int32_t *)g->c->in[2].data)[i];
    return at;
}

static void run_experts(void *ctx, size_t begin, size_t end, int thread)
{
    const struct grouped *g = ctx;

    for (size_t e = begin; e < end; e++)
        for (size_t s = 0; s < g->sources; s++) {
            size_t rows = count_at(g, s, e);
            struct gemm p = gemm_of(g->c, e, first_row(g, s, e), rows);
            int threads = g->threads == 1 ? 1 : gemm_threads(&p);

            if (rows == 0) continue;
            ASSERT(gemm_scratch(&p, threads) <= g->scratch);
            gemm_run(&p, threads, (char *)g->c->scratch + (size_t)thread * g->scratch);
        }
}

static void zero_rest(const struct grouped *g)
{
    const struct view *y = &g->c->out[0];
    size_t used = first_row(g, g->sources, 0), row = view_last(y) * ls_dtype_bytes(y->dtype);

    memset((char *)y->data + used * row, 0, (y->size[0] - used) * row);
}

static void grouped_run(const struct call *c)
{
    struct grouped g = grouped_of(c);

    if (g.threads == 1 && threads_count() > 1)
        threads_each(g.experts, 1, run_experts, &g);
    else
        run_experts(&g, 0, g.experts, 0);
    if (c->op != OP_GROUPED_LINEAR_DW) zero_rest(&g);
}

#define GROUPED_ROW(id)                                                                                                             \
    {                                                                                                                               \
        .op = OP_##id, .name = "tiles", .device = "cpu", .priority = PRIORITY_BLOCKED, .isa = ISA_AVX2, .accepts = grouped_accepts, \
        .scratch = scratch, .run = grouped_run                                                                                      \
    }

const struct kernel kernels_grouped[] = { GROUPED_ROW(GROUPED_LINEAR), GROUPED_ROW(GROUPED_LINEAR_DX), GROUPED_ROW(GROUPED_LINEAR_DW),
                                          KERNELS_END };
