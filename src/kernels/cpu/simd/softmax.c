/* softmax.c - softmax along rows, and its gradient dx = y (dy - sum y dy).
 *
 * Three passes over a row: the largest, the exponentials (kept in y if it is f32) and their sum, the division. For half types the
 * exponentials are computed twice, so that they are not rounded in between.
 */
#include "kernels/cpu/simd/simd_math.h"

#include <math.h>

INLINE void softmax_row(ls_dtype T, const void *x, void *y, size_t begin, size_t end)
{
    vf most = vset(-INFINITY), sum = vset(0.0f);

    EACH(i, n, begin, end)
    most = vmax(vkeep(load(T, x, i, n), n, -INFINITY), most);
    most = vset(vlargest(most));
    EACH(i, n, begin, end)
    {
        vf e = vexp(load(T, x, i, n) - most);

        sum += vkeep(e, n, 0.0f);
        if (T == LS_F32) store(T, y, i, n, e);
    }
    vf scale = vset(1.0f / vsum(sum));
    EACH(i, n, begin, end)
    store(T, y, i, n, scale * (T == LS_F32 ? load(T, y, i, n) : vexp(load(T, x, i, n) - most)));
}

INLINE void softmax_grad_row(ls_dtype T, const void *y, const void *dy, void *dx, size_t begin, size_t end)
{
    vf sum = vset(0.0f);

    EACH(i, n, begin, end)
    sum += load(T, y, i, n) * load(T, dy, i, n);
    sum = vset(vsum(sum));
    EACH(i, n, begin, end)
    store(T, dx, i, n, load(T, y, i, n) * (load(T, dy, i, n) - sum));
}

static void softmax_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    size_t N = view_last(&c->in[0]);

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, for (size_t r = begin; r < end; r++) softmax_row(T, c->in[0].data, c->out[0].data, r * N, (r + 1) * N))
}

static void softmax_grad_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;
    size_t N = view_last(&c->in[0]);

    (void)thread;
    BY_TYPE(c->in[0].dtype, T,
            for (size_t r = begin; r < end; r++) softmax_grad_row(T, c->in[0].data, c->in[1].data, c->out[0].data, r * N, (r + 1) * N))
}

static bool softmax_accepts(const struct call *c)
{
    return is_plain(&c->in[0]) && is_plain(&c->out[0]) && c->in[0].dtype == c->out[0].dtype;
}

static bool softmax_grad_accepts(const struct call *c)
{
    return softmax_accepts(c) && is_plain(&c->in[1]) && c->in[1].dtype == c->in[0].dtype;
}

static void softmax(const struct call *c) { threads_for(view_rows(&c->in[0]), row_grain(view_last(&c->in[0])), softmax_rows, (void *)c); }

static void softmax_grad(const struct call *c)
{
    threads_for(view_rows(&c->in[0]), row_grain(view_last(&c->in[0])), softmax_grad_rows, (void *)c);
}

const struct kernel SIMD_TABLE(softmax)[] = {
    SIMD_ROW(SOFTMAX, softmax_accepts, NULL, softmax),
    SIMD_ROW(SOFTMAX_GRAD, softmax_grad_accepts, NULL, softmax_grad),
    KERNELS_END,
};
