/* activation.c - relu, gelu, silu, swiglu and their gradients.
 *
 * With s = sigmoid: gelu_tanh(x) = x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3), since (1 + tanh u) / 2 = s(2u);
 * gelu_erf(x) = x phi(x), its slope phi(x) + x exp(-x^2/2) / sqrt(2 pi); silu(x) = x s(x).
 */
#include "kernels/cpu/simd/simd_math.h"

#define ROOT_8_OVER_PI 1.59576912f /* 2 sqrt(2/pi) */
#define CUBIC          0.044715f

INLINE vf gelu_gate(vf x) { return vsigmoid(vset(ROOT_8_OVER_PI) * x * (vset(1.0f) + vset(CUBIC) * x * x)); }

/* Past 20 on either side the slope is 0 or 1, and x^2 must not overflow. */
INLINE vf gelu_tanh_slope(vf x)
{
    vf near_x = vmin(vset(20.0f), vmax(vset(-20.0f), x));
    vf s = gelu_gate(near_x);

    return s + near_x * s * (vset(1.0f) - s) * vset(ROOT_8_OVER_PI) * (vset(1.0f) + vset(3 * CUBIC) * near_x * near_x);
}

INLINE vf gelu_erf_slope(vf x)
{
    vf near_x = vmin(vset(20.0f), vmax(vset(-20.0f), x));

    return vphi(x) + near_x * vset(0.398942280f) * vexp(vset(-0.5f) * near_x * near_x);
}

INLINE vf silu_slope(vf x)
{
    vf s = vsigmoid(x);

    return s + x * s * (vset(1.0f) - s);
}

INLINE vf unary_value(enum unary kind, vf x)
{
    switch (kind) {
    case UNARY_RELU: return vmax(vset(0.0f), x);
    case UNARY_GELU_TANH: return x * gelu_gate(x);
    case UNARY_GELU_ERF: return x * vphi(x);
    case UNARY_SILU: return x * vsigmoid(x);
    }
    return x;
}

INLINE vf unary_slope(enum unary kind, vf x)
{
    switch (kind) {
    case UNARY_RELU: return vselect(vless(vset(0.0f), x), vset(1.0f), vset(0.0f));
    case UNARY_GELU_TANH: return gelu_tanh_slope(x);
    case UNARY_GELU_ERF: return gelu_erf_slope(x);
    case UNARY_SILU: return silu_slope(x);
    }
    return x;
}

INLINE void unary_of(ls_dtype T, enum unary kind, const void *x, void *y, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    store(T, y, i, n, unary_value(kind, load(T, x, i, n)));
}

INLINE void unary_grad_of(ls_dtype T, enum unary kind, const void *x, const void *dy, void *dx, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    store(T, dx, i, n, unary_slope(kind, load(T, x, i, n)) * load(T, dy, i, n));
}

/* One loop per kind and type. */
#define BY_KIND(kind, K, body)                \
    switch (kind) {                           \
    case UNARY_RELU: {                        \
        const enum unary K = UNARY_RELU;      \
        body;                                 \
    } break;                                  \
    case UNARY_GELU_TANH: {                   \
        const enum unary K = UNARY_GELU_TANH; \
        body;                                 \
    } break;                                  \
    case UNARY_GELU_ERF: {                    \
        const enum unary K = UNARY_GELU_ERF;  \
        body;                                 \
    } break;                                  \
    case UNARY_SILU: {                        \
        const enum unary K = UNARY_SILU;      \
        body;                                 \
    } break;                                  \
    }

static void unary_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_KIND(c->attr.unary.kind, K, BY_TYPE(c->in[0].dtype, T, unary_of(T, K, c->in[0].data, c->out[0].data, begin, end)))
}

static void unary_grad_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_KIND(c->attr.unary.kind, K,
            BY_TYPE(c->in[0].dtype, T, unary_grad_of(T, K, c->in[0].data, c->in[1].data, c->out[0].data, begin, end)))
}

INLINE void relu_squared_of(ls_dtype T, const struct call *c, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    {
        vf r = unary_value(UNARY_RELU, load(T, c->in[0].data, i, n));

        store(T, c->out[0].data, i, n, r * r);
    }
}

INLINE void relu_squared_grad_of(ls_dtype T, const struct call *c, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    {
        vf r = unary_value(UNARY_RELU, load(T, c->in[0].data, i, n));

        store(T, c->out[0].data, i, n, (r + r) * load(T, c->in[1].data, i, n));
    }
}

static void relu_squared_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, relu_squared_of(T, c, begin, end))
}

static void relu_squared_grad_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, relu_squared_grad_of(T, c, begin, end))
}

INLINE void swiglu_of(ls_dtype T, const struct call *c, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    {
        vf g = load(T, c->in[0].data, i, n), u = load(T, c->in[1].data, i, n);

        store(T, c->out[0].data, i, n, g * vsigmoid(g) * u);
    }
}

INLINE void swiglu_grad_of(ls_dtype T, const struct call *c, size_t begin, size_t end)
{
    EACH(i, n, begin, end)
    {
        vf g = load(T, c->in[0].data, i, n), u = load(T, c->in[1].data, i, n), dy = load(T, c->in[2].data, i, n);
        vf s = vsigmoid(g);

        store(T, c->out[0].data, i, n, dy * u * (s + g * s * (vset(1.0f) - s)));
        store(T, c->out[1].data, i, n, dy * g * s);
    }
}

static void swiglu_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, swiglu_of(T, c, begin, end))
}

static void swiglu_grad_range(void *ctx, size_t begin, size_t end, int thread)
{
    const struct call *c = ctx;

    (void)thread;
    BY_TYPE(c->in[0].dtype, T, swiglu_grad_of(T, c, begin, end))
}

static bool simd_activation_accepts(const struct call *c) /* all operands plain and of one type */
{
    for (int i = 0; i < c->nin; i++)
        if (!is_plain(&c->in[i]) || c->in[i].dtype != c->in[0].dtype) return false;
    for (int i = 0; i < c->nout; i++)
        if (!is_plain(&c->out[i]) || c->out[i].dtype != c->in[0].dtype) return false;
    return true;
}

static void unary(const struct call *c) { threads_for(view_count(&c->in[0]), GRAIN, unary_range, (void *)c); }
static void unary_grad(const struct call *c) { threads_for(view_count(&c->in[0]), GRAIN, unary_grad_range, (void *)c); }

static void relu_squared(const struct call *c) { threads_for(view_count(&c->in[0]), GRAIN, relu_squared_range, (void *)c); }

static void relu_squared_grad(const struct call *c) { threads_for(view_count(&c->in[0]), GRAIN, relu_squared_grad_range, (void *)c); }

static void swiglu(const struct call *c) { threads_for(view_count(&c->in[0]), GRAIN, swiglu_range, (void *)c); }

static void swiglu_grad(const struct call *c) { threads_for(view_count(&c->in[0]), GRAIN, swiglu_grad_range, (void *)c); }

const struct kernel SIMD_TABLE(activation)[] = {
    SIMD_ROW(UNARY, simd_activation_accepts, NULL, unary),
    SIMD_ROW(UNARY_GRAD, simd_activation_accepts, NULL, unary_grad),
    SIMD_ROW(RELU_SQUARED, simd_activation_accepts, NULL, relu_squared),
    SIMD_ROW(RELU_SQUARED_GRAD, simd_activation_accepts, NULL, relu_squared_grad),
    SIMD_ROW(SWIGLU, simd_activation_accepts, NULL, swiglu),
    SIMD_ROW(SWIGLU_GRAD, simd_activation_accepts, NULL, swiglu_grad),
    KERNELS_END,
};
