/* reduce.c - sums over a dim or over all, bias gradients, squares, the mean-square error.
 *
 * Sums over all elements: blocks of BLOCK elements are summed in double lanes into scratch, [blocks] doubles, which are
 * then added in order.
 */
#include "kernels/cpu/simd/columns.h"

enum { BLOCK = 65536 };

/* The summands: x, x^2, (x - b)^2. */
enum term { TERM_PLAIN, TERM_SQUARE, TERM_DIFFERENCE };

INLINE double sum_terms(ls_dtype T, enum term term, const void *a, const void *b, size_t begin, size_t end)
{
    vd low = { 0 }, high = { 0 };

    EACH(i, n, begin, end)
    {
        vf x = load(T, a, i, n);

        if (term == TERM_DIFFERENCE) x -= load(T, b, i, n);
        vd l = vlow(x);
        vd h = vhigh(x);
        if (term == TERM_PLAIN) {
            low += l;
            high += h;
        } else {
            low += l * l;
            high += h * h;
        }
    }
    return vdsum(low + high);
}

struct total {
    const struct call *c;
    enum term term;
    size_t count;
};

static void total_blocks(void *ctx, size_t begin, size_t end, int thread)
{
    const struct total *z = ctx;
    const void *a = z->c->in[0].data, *b = z->c->in[1].data;
    double *sums = z->c->scratch;

    (void)thread;
    for (size_t block = begin; block < end; block++) {
        size_t first = block * BLOCK, last = MIN(first + BLOCK, z->count);

        BY_TYPE(z->c->in[0].dtype, T,
                sums[block] = z->term == TERM_PLAIN    ? sum_terms(T, TERM_PLAIN, a, b, first, last)
                              : z->term == TERM_SQUARE ? sum_terms(T, TERM_SQUARE, a, b, first, last)
                                                       : sum_terms(T, TERM_DIFFERENCE, a, b, first, last))
    }
}

static size_t reduce_blocks_of(size_t count) { return count / BLOCK + (count % BLOCK != 0); }
static size_t total_scratch(const struct call *c) { return reduce_blocks_of(view_count(&c->in[0])) * sizeof(double); }

static double reduce_total(const struct call *c, enum term term)
{
    struct total z = { c, term, view_count(&c->in[0]) };
    const double *sums = c->scratch;
    double sum = 0;

    threads_for(reduce_blocks_of(z.count), 1, total_blocks, &z);
    for (size_t i = 0; i < reduce_blocks_of(z.count); i++) sum += sums[i];
    return sum;
}

static void sum_squares(const struct call *c) { *(double *)c->out[0].data += reduce_total(c, TERM_SQUARE); }

static bool sum_squares_accepts(const struct call *c) { return is_plain(&c->in[0]) && c->out[0].dtype == LS_F64; }

static void mse(const struct call *c)
{
    size_t count = view_count(&c->in[0]);

    *(float *)c->out[0].data = count ? (float)(reduce_total(c, TERM_DIFFERENCE) / (double)count) : 0;
}

static bool mse_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && c->in[0].dtype == c->in[1].dtype && is_f32(&c->out[0]);
}

INLINE void mse_grad_of(ls_dtype T, const struct call *c, size_t begin, size_t end)
{
    vf factor = vset((float)(2.0 * *(const float *)c->in[2].data / (double)view_count(&c->in[0])));

    EACH(i, n, begin, end)
    store(T, c->out[0].data, i, n, factor * (load(T, c->in[0].data, i, n) - load(T, c->in[1].data, i, n)));
}

static void mse_grad_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, mse_grad_of(T, c, begin, end))
}

static bool mse_grad_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->in[1]) && is_f32(&c->in[2]) && is_plain(&c->out[0]) && c->in[0].dtype == c->in[1].dtype &&
           c->in[0].dtype == c->out[0].dtype;
}

static void mse_grad(const struct call *c) { threads_for(view_count(&c->in[0]), GRAIN, mse_grad_range, (void *)c); }

/* x[outer, n, inner] -> y[outer, inner] */
struct reduce {
    const struct view *x, *y;
    size_t outer, n, inner, strips;
};

enum { STRIP = 256 }; /* columns of one task */

static void reduce_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct reduce *z = ctx;

    (void)thread;
    BY_TYPE(z->x->dtype, T,
            for (size_t i = begin; i < end; i++)
                store_one(z->y->dtype, z->y->data, i, (float)sum_terms(T, TERM_PLAIN, z->x->data, NULL, i * z->n, (i + 1) * z->n)))
}

INLINE void reduce_strip(ls_dtype T, const struct reduce *z, size_t o, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    {
        vf sum = vset(0.0f);

        for (size_t j = 0; j < z->n; j++) sum += load(T, z->x->data, (o * z->n + j) * z->inner + i, n);
        store(z->y->dtype, z->y->data, o * z->inner + i, n, sum);
    }
}

static void reduce_strips(void *ctx, size_t begin, size_t end, int thread)
{
    const struct reduce *z = ctx;

    (void)thread;
    for (size_t s = begin; s < end; s++) {
        size_t first = s % z->strips * STRIP;

        BY_TYPE(z->x->dtype, T, reduce_strip(T, z, s / z->strips, first, MIN(first + STRIP, z->inner)))
    }
}

static void reduce_sum(const struct call *c)
{
    const struct view *x = &c->in[0], *y = &c->out[0];
    struct reduce z = { x, y, 1, 1, 1, 0 };
    int dim = c->attr.reduce.dim;

    if (dim < 0) {
        store_one(y->dtype, y->data, 0, (float)reduce_total(c, TERM_PLAIN));
        return;
    }
    for (int d = 0; d < x->ndim; d++) *(d < dim ? &z.outer : d == dim ? &z.n : &z.inner) *= x->size[d];
    z.strips = z.inner / STRIP + (z.inner % STRIP != 0);
    if (z.inner == 1)
        threads_for(z.outer, row_grain(z.n), reduce_rows, &z);
    else
        threads_for(z.outer * z.strips, row_grain(z.n * STRIP), reduce_strips, &z);
}

static size_t reduce_scratch(const struct call *c) { return c->attr.reduce.dim < 0 ? total_scratch(c) : 0; }
static bool reduce_accepts(const struct call *c) { return is_plain(&c->in[0]) && is_plain(&c->out[0]); }

static void bias_part(const struct call *c, size_t begin, size_t end, float *sums)
{
    size_t N = view_last(&c->in[0]);

    BY_TYPE(c->in[0].dtype, T,
            for (size_t r = begin; r < end; r++) EACH(i, n, 0, N)
                store(LS_F32, sums, i, n, load(LS_F32, sums, i, n) + load(T, c->in[0].data, r * N + i, n)))
}

static size_t bias_scratch(const struct call *c) { return columns_scratch(c); }
static void bias_grad(const struct call *c) { columns_run(c, bias_part); }

const struct kernel SIMD_TABLE(reduce)[] = {
    SIMD_ROW(SUM_SQUARES, sum_squares_accepts, total_scratch, sum_squares),
    SIMD_ROW(MSE, mse_accepts, total_scratch, mse),
    SIMD_ROW(MSE_GRAD, mse_grad_accepts, NULL, mse_grad),
    SIMD_ROW(REDUCE_SUM, reduce_accepts, reduce_scratch, reduce_sum),
    SIMD_ROW(BIAS_GRAD, reduce_accepts, bias_scratch, bias_grad),
    KERNELS_END,
};
