/* onednn_recipe.c - calls as recipes of oneDNN's matmul.
 *
 * Packing the weights costs a pass over them and saves a little in every row. Measured with AVX-512, K and N from 768
 * to 3072: for w^T it pays off from about 4096 rows, for w from about 2048.
 */
#include "kernels/cpu/onednn_recipe.h"

#include "base/base.h"
#include "base/threads.h"
#include "kernels/cpu/gemm.h"

enum { PACK_ROWS_LINEAR = 4096, PACK_ROWS_DX = 2048 };

static bool types_fit(const struct call *c)
{
    ls_dtype t = c->in[0].dtype, out = c->out[0].dtype;

    return (t == LS_F32 || t == LS_BF16) && c->in[1].dtype == t && (out == LS_F32 || (out == t && c->op != OP_LINEAR_DW)) &&
           (c->op != OP_LINEAR || !call_has_in(c, 2) || c->in[2].dtype == LS_F32 || c->in[2].dtype == t);
}

static bool size_fits(size_t n) { return n >= 1 && n <= INT32_MAX; }

static struct side side_of(const struct matrix *m, size_t rows, size_t columns)
{
    return (struct side){ m->type, { (int64_t)rows, (int64_t)columns }, { m->row, m->col } };
}

static bool recipe_of_gemm(const struct gemm *p, bool pack, struct recipe *out)
{
    if (!size_fits(p->m) || !size_fits(p->n) || !size_fits(p->k)) return false;
    *out = (struct recipe){
        .ndim = 2,
        .threads = threads_count(),
        .add = p->add,
        .pack = pack,
        .src = side_of(&p->a, p->m, p->k),
        .weights = side_of(&p->b, p->k, p->n),
        .dst = side_of(&p->c, p->m, p->n),
    };
    return true;
}

static bool linear_recipe(const struct call *c, struct recipe *out)
{
    size_t many = c->op == OP_LINEAR ? PACK_ROWS_LINEAR : c->op == OP_LINEAR_DX ? PACK_ROWS_DX : SIZE_MAX;
    struct gemm p;

    if (!call_gemm(c, &p) || !recipe_of_gemm(&p, p.m >= many, out)) return false;
    if (c->op == OP_LINEAR && call_has_in(c, 2)) {
        out->bias = true;
        out->bias_type = p.bias_type;
    }
    return true;
}

/* An unused stride gets the value that makes the shape regular. */
static bool strided(const struct view *v, struct side *out)
{
    int64_t extent = 1;
    int last = v->ndim - 1;

    *out = (struct side){ .type = v->dtype };
    for (int d = last; d >= 0; d--) {
        out->size[d] = (int64_t)v->size[d];
        out->stride[d] = v->size[d] == 1 ? extent : v->stride[d];
        if (!size_fits(v->size[d]) || out->stride[d] < 1) return false;
        extent = MAX(extent, out->size[d] * out->stride[d]);
    }
    return out->stride[last] == 1 || out->stride[last - 1] == 1;
}

static bool matmul_recipe(const struct call *c, struct recipe *out)
{
    struct recipe r = { .ndim = c->out[0].ndim, .threads = threads_count() };

    if (r.ndim < 2 || c->in[0].ndim != r.ndim || c->in[1].ndim != r.ndim || !view_is_contiguous(&c->out[0])) return false;
    if (!strided(&c->in[0], &r.src) || !strided(&c->in[1], &r.weights) || !strided(&c->out[0], &r.dst)) return false;
    *out = r;
    return true;
}

bool recipe_of(const struct call *c, struct recipe *out)
{
    return types_fit(c) && (c->op == OP_MATMUL ? matmul_recipe(c, out) : linear_recipe(c, out));
}
