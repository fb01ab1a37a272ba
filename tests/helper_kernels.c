/* helper_kernels.c - operand buffers with guards, kernel runs, comparisons. */
#include "helper_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/base.h"

enum { GUARD = 64 };

static char *kernels_element(const struct view *v, size_t i)
{
    return (char *)v->data + view_offset(v, i) * (ptrdiff_t)ls_dtype_bytes(v->dtype);
}

double element_get(const struct view *v, size_t i)
{
    double x;

    ls_convert(&x, LS_F64, kernels_element(v, i), v->dtype, 1);
    return x;
}

void element_put(const struct view *v, size_t i, double x)
{
    ls_convert(kernels_element(v, i), v->dtype, &x, LS_F64, 1);
}

void elements_put(const struct view *v, const double *x)
{
    size_t count = view_count(v);

    if (view_is_contiguous(v))
        ls_convert(v->data, v->dtype, x, LS_F64, count);
    else
        for (size_t i = 0; i < count; i++)
            element_put(v, i, x[i]);
}

/* Strides of a layout, in elements, and how many elements it spans. */
static size_t lay_out(struct view *v, int layout)
{
    int order[LS_DIMS];
    size_t span = 1;

    for (int d = 0; d < v->ndim; d++)
        order[d] = d;
    if (layout == 1 && v->ndim > 2) {
        order[1] = 2;
        order[2] = 1;
    }
    if (layout == 3)
        span = 2;
    for (int k = v->ndim - 1; k >= 0; k--) {
        v->stride[order[k]] = (ptrdiff_t)span;
        span *= v->size[order[k]];
        if (layout == 2 && k == v->ndim - 1)
            span += 3;
    }
    return span;
}

static unsigned char *pages(struct block *b, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    b->bytes = (bytes + page - 1) / page * page;
    b->mapped = b->bytes + page;
    b->base = mmap(NULL, b->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(b->base != MAP_FAILED);
    assert_int_equal(mprotect(b->base + b->bytes, page, PROT_NONE), 0);
    return b->base + b->bytes;
}

struct view block_view(struct block *b, ls_dtype type, int ndim, const size_t *size, int layout, enum placement where)
{
    struct view v = view_of(NULL, type, ndim, size);
    size_t esize = ls_dtype_bytes(type), span = lay_out(&v, layout) * esize;

    if (where == PLACED_AT_EDGE) {
        v.data = pages(b, GUARD + span) - span;
    } else {
        size_t start = GUARD + (where == PLACED_MISALIGNED ? esize : 0);

        b->mapped = 0;
        b->bytes = (start + span + GUARD + 63) / 64 * 64;
        b->base = aligned_alloc(64, b->bytes);
        assert_non_null(b->base);
        v.data = b->base + start;
    }
    memset(b->base, 0xff, b->bytes);
    return v;
}

void block_free(struct block *b)
{
    if (b->mapped)
        munmap(b->base, b->mapped);
    else
        free(b->base);
    b->base = NULL;
}

struct kernel_observer kernel_observer;

void kernel_run(const struct kernel *k, struct call *c, unsigned char fill, const char *name)
{
    size_t need = k->scratch ? k->scratch(c) : 0, room = (need + 63) / 64 * 64;
    bool cpu = kernel_is_cpu(k), elsewhere = !cpu && kernel_observer.run;
    unsigned char *block = aligned_alloc(64, room + 2 * GUARD);

    assert_non_null(block);
    memset(block, 0x5a, room + 2 * GUARD);
    memset(block + GUARD, fill, need);
    c->scratch = block + GUARD;
    c->state = NULL;
    if (!elsewhere && k->prepare && k->prepare(c) != LS_OK)
        fail_msg("%s: %s: prepare: %s", name, k->name, ls_errmsg());
    if (!cpu && kernel_observer.before)
        kernel_observer.before(c, need);
    if (elsewhere)
        kernel_observer.run(k, c, need, name);
    else
        k->run(c);
    if (!cpu && kernel_observer.after)
        kernel_observer.after(name);
    if (!elsewhere && k->release)
        k->release(c);
    for (size_t i = 0; i < GUARD; i++)
        if (block[i] != 0x5a)
            fail_msg("%s: %s wrote %zu bytes before its scratch", name, k->name, GUARD - i);
    for (size_t i = GUARD + need; i < room + 2 * GUARD; i++)
        if (block[i] != 0x5a)
            fail_msg("%s: %s wrote %zu bytes past its scratch of %zu", name, k->name, i - GUARD - need, need);
    free(block);
    c->scratch = NULL;
}

/* Relative to the larger of the element and the tensor's largest element: what an f32 computation may lose, one
 * last place of the output's type (a tie that falls the other way), and for matmuls whose inner results pass through a
 * half type, that type's. A probability p of attention that is rounded to bf16 changes o by at most 2^-9 sum p |v| <= 2^-8 for |v| <= 2,
 * which is 2e-2 of a largest element of 0.2; in f16 2^-10, or 3e-3 of 0.33. The outputs of all cases are larger. */
static double tolerance(const struct call *c, int out)
{
    bool through_half = c->op == OP_ATTENTION || c->op == OP_ATTENTION_GRAD || c->op == OP_LINEAR_XENT
                     || c->op == OP_LINEAR_XENT_GRAD || c->op == OP_LINEAR_UNARY;
    ls_dtype in = c->in[0].dtype;

    if (through_half && in == LS_BF16)
        return 2e-2;
    if (through_half && in == LS_F16)
        return 3e-3;
    return c->out[out].dtype == LS_F64 ? 1e-6 : 1e-5;
}

static double rounding(ls_dtype t)
{
    return t == LS_BF16 ? 0x1.02p-7 : t == LS_F16 ? 0x1.02p-10 : 0;
}

/* The elements in row-major order; free() it. */
static double *doubles_of(const struct view *v)
{
    size_t count = view_count(v);
    double *x = malloc((count + 1) * sizeof *x);

    assert_non_null(x);
    if (view_is_contiguous(v))
        ls_convert(x, LS_F64, v->data, v->dtype, count);
    else
        for (size_t i = 0; i < count; i++)
            x[i] = element_get(v, i);
    return x;
}

static bool is_update(const struct call *c) { return c->op == OP_SGD || c->op == OP_ADAM || c->op == OP_LAMB || c->op == OP_LARS; }

/* Stochastic rounding is compared bit by bit: a wrong bit of the generator is not a rounding error. Its cases have no rounding errors. */
static bool is_exact(const struct call *c, int out) { return is_update(c) && out == 0 && c->attr.optim.rounding.run > 0; }

void kernel_compare(const struct call *c, int out, const struct view *got, const struct view *want, const char *name)
{
    bool differences = c->op == OP_ATTENTION_GRAD || c->op == OP_LINEAR_XENT_GRAD;
    double most = differences ? 1e-2 : 0; /* between numbers near 1, the remainder of a 0 is rounding */
    double tol = is_exact(c, out) ? 0 : tolerance(c, out), ulp = is_exact(c, out) ? 0 : rounding(want->dtype);
    double *g = doubles_of(got), *w = doubles_of(want);
    size_t count = view_count(want);

    for (size_t i = 0; i < count; i++)
        if (isfinite(w[i]))
            most = fmax(most, fabs(w[i]));
    for (size_t i = 0; i < count; i++) {
        bool same = isfinite(w[i]) ? fabs(g[i] - w[i]) <= tol * most + ulp * fabs(w[i]) + (ulp > 0 ? 1e-7 : 0)
                                   : isnan(w[i]) ? isnan(g[i]) : g[i] == w[i];

        if (!same)
            fail_msg("%s: output %d, element %zu of %zu: %.9g, the reference has %.9g (largest %.3g)",
                     name, out, i, count, g[i], w[i], most);
    }
    free(g);
    free(w);
}
