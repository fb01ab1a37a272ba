/* cublaslt_problem.c - see cublaslt_problem.h. */
#include "kernels/cuda/cublaslt_problem.h"

#include <string.h>
#include "base/base.h"

enum { LOOP_CALLS = 256, BATCH_MOST = 65535, SPLITS = 32, ALIGNMENT = 64, SCRATCH_ALIGNMENT = 64, WORKSPACE_ALIGNMENT = 256 };
enum { WORKSPACE_LEAST = 64 << 10, WORKSPACE_MOST = 32 << 20 }; /* what NVIDIA recommends for its newest GPUs */

/* A matrix of a call: rows x columns, strides in elements. */
struct problem_matrix {
    size_t rows, columns;
    ptrdiff_t row, column;
};

/* The stride of a dim of one element has no meaning. */
static bool problem_store(const struct problem_matrix *x, struct cublaslt_matrix *out)
{
    int64_t rows = (int64_t)x->rows, columns = (int64_t)x->columns;
    bool by_rows = (x->column == 1 || columns == 1) && (rows == 1 || x->row >= columns);
    bool by_columns = (x->row == 1 || rows == 1) && (columns == 1 || x->column >= rows);

    if (by_rows)
        *out = (struct cublaslt_matrix){ columns, rows, rows == 1 ? columns : (int64_t)x->row, 0, false };
    else if (by_columns)
        *out = (struct cublaslt_matrix){ rows, columns, columns == 1 ? rows : (int64_t)x->column, 0, true };
    return by_rows || by_columns;
}

static bool problem_types(const struct call *c, struct cublaslt_problem *out)
{
    out->in = c->in[0].dtype;
    out->out = c->out[0].dtype;
    out->add = c->op == OP_LINEAR_DW;
    out->bias = c->op == OP_LINEAR && call_has_in(c, 2);
    return (out->in == LS_F32 || out->in == LS_BF16 || out->in == LS_F16) && c->in[1].dtype == out->in &&
           (out->out == LS_F32 || out->out == out->in) && (!out->bias || (c->in[2].dtype == out->out && view_is_contiguous(&c->in[2])));
}

/* a [M,K] times b [K,N] is d [M,N]. A sum of no terms is left to others. */
static bool problem_sizes(const struct problem_matrix *a, const struct problem_matrix *b, const struct problem_matrix *d,
                          struct cublaslt_problem *out)
{
    out->m = (int64_t)d->columns;
    out->n = (int64_t)d->rows;
    out->k = (int64_t)a->columns;
    out->batch = 1;
    if (!out->k || out->m > INT32_MAX || out->n > INT32_MAX || out->k > INT32_MAX) return false;
    if (!out->m || !out->n) return true; /* nothing to compute */
    return problem_store(b, &out->matrix[CUBLASLT_A]) && problem_store(a, &out->matrix[CUBLASLT_B]) &&
           problem_store(d, &out->matrix[CUBLASLT_D]) && !out->matrix[CUBLASLT_D].transposed;
}

static struct problem_matrix problem_rows(const struct view *v)
{
    return (struct problem_matrix){ view_rows(v), view_last(v), (ptrdiff_t)view_last(v), 1 };
}

static struct problem_matrix problem_transposed(struct problem_matrix x)
{
    return (struct problem_matrix){ x.columns, x.rows, x.column, x.row };
}

static bool problem_of_linear(const struct call *c, struct cublaslt_problem *out)
{
    if (!view_is_contiguous(&c->in[0]) || !view_is_contiguous(&c->in[1]) || !view_is_contiguous(&c->out[0])) return false;
    struct problem_matrix a = problem_rows(&c->in[0]);
    struct problem_matrix b = problem_rows(&c->in[1]);
    struct problem_matrix d = problem_rows(&c->out[0]);
    if (c->op == OP_LINEAR) b = problem_transposed(b);
    if (c->op == OP_LINEAR_DW) a = problem_transposed(a);
    return problem_sizes(&a, &b, &d, out);
}

static struct problem_matrix problem_last_dims(const struct view *v)
{
    int n = v->ndim;

    return (struct problem_matrix){ v->size[n - 2], v->size[n - 1], v->stride[n - 2], v->stride[n - 1] };
}

/* The dims before the last two; neighbors that are one dim in all three operands become one. Strides must not be negative. */
static bool problem_loops(const struct view *const v[CUBLASLT_MATRICES], struct cublaslt_problem *out)
{
    for (int dim = v[CUBLASLT_D]->ndim - 3; dim >= 0; dim--) {
        struct cublaslt_loop l = { .size = (int64_t)v[CUBLASLT_D]->size[dim] }, *last = out->loops ? &out->loop[out->loops - 1] : NULL;
        bool merge = last != NULL;

        if (l.size == 1) continue;
        for (int x = 0; x < CUBLASLT_MATRICES; x++) {
            l.stride[x] = (int64_t)v[x]->stride[dim];
            if (l.stride[x] < 0) return false;
            merge = merge && l.stride[x] == last->size * last->stride[x];
        }
        if (merge)
            last->size *= l.size;
        else
            out->loop[out->loops++] = l;
    }
    return true;
}

/* The longest loop becomes the batch. */
static bool problem_batch(struct cublaslt_problem *out)
{
    int longest = 0;
    int64_t calls = 1;

    if (!out->loops) return true;
    for (int l = 1; l < out->loops; l++)
        if (out->loop[l].size > out->loop[longest].size) longest = l;
    out->batch = out->loop[longest].size;
    for (int x = 0; x < CUBLASLT_MATRICES; x++) out->matrix[x].batch_stride = out->loop[longest].stride[x];
    out->loop[longest] = out->loop[--out->loops];
    memset(&out->loop[out->loops], 0, sizeof out->loop[0]);
    for (int l = 0; l < out->loops; l++) calls *= out->loop[l].size;
    return out->batch <= BATCH_MOST && calls <= LOOP_CALLS;
}

static bool problem_of_matmul(const struct call *c, struct cublaslt_problem *out)
{
    const struct view *const v[CUBLASLT_MATRICES] = { &c->in[1], &c->in[0], &c->out[0] };

    if (v[CUBLASLT_D]->ndim < 2 || v[CUBLASLT_A]->ndim != v[CUBLASLT_D]->ndim || v[CUBLASLT_B]->ndim != v[CUBLASLT_D]->ndim) return false;
    struct problem_matrix a = problem_last_dims(&c->in[0]);
    struct problem_matrix b = problem_last_dims(&c->in[1]);
    struct problem_matrix d = problem_last_dims(&c->out[0]);
    return problem_sizes(&a, &b, &d, out) && problem_loops(v, out) && problem_batch(out);
}

bool cublaslt_problem_of(const struct call *c, struct cublaslt_problem *out)
{
    memset(out, 0, sizeof *out); /* problems are compared and hashed as bytes */
    return problem_types(c, out) && (c->op == OP_MATMUL ? problem_of_matmul(c, out) : problem_of_linear(c, out));
}

/* Sums over parts of k that are computed beside each other are put there. */
size_t cublaslt_problem_workspace(const struct cublaslt_problem *p)
{
    double sums = (double)SPLITS * (double)p->m * (double)p->n * (double)p->batch * sizeof(float);

    return sums >= WORKSPACE_MOST - WORKSPACE_LEAST ? WORKSPACE_MOST : WORKSPACE_LEAST + (size_t)sums;
}

size_t cublaslt_problem_scratch(const struct cublaslt_problem *p)
{
    return cublaslt_problem_workspace(p) + WORKSPACE_ALIGNMENT - SCRATCH_ALIGNMENT;
}

void *cublaslt_workspace(void *scratch)
{
    return (void *)(((uintptr_t)scratch + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT);
}

uint32_t cublaslt_problem_alignment(const struct cublaslt_problem *p, int matrix, const void *data)
{
    ls_dtype type = matrix == CUBLASLT_D ? p->out : p->in;
    uintptr_t bits = (uintptr_t)data | ALIGNMENT;

    for (int l = 0; l < p->loops; l++) bits |= (uintptr_t)p->loop[l].stride[matrix] * ls_dtype_bytes(type);
    return (uint32_t)(bits & -bits);
}
