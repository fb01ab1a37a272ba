/* pointwise.c - reference: element by element. With s(x) = 1 / (1 + exp(-x)):
 *   gelu_tanh(x) = x/2 (1 + tanh u) = x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3); the second form does not cancel
 *   gelu_erf(x)  = x/2 (1 + erf(x / sqrt 2));   silu(x) = x s(x)
 */
#include "kernels/cpu/ref/ref.h"

#include <math.h>
#include "base/rng.h"

static const double root_2_over_pi = 0.79788456080286535588, cubic = 0.044715;

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x * sigmoid(x); }
static double silu_slope(double x) { return sigmoid(x) * (1 + x * sigmoid(-x)); }

static double unary_of(enum unary kind, double x)
{
    switch (kind) {
    case UNARY_RELU: return x > 0 ? x : x != x ? x : 0;
    case UNARY_GELU_TANH: return x * sigmoid(2 * root_2_over_pi * (x + cubic * x * x * x));
    case UNARY_GELU_ERF: return 0.5 * x * erfc(-x * M_SQRT1_2);
    case UNARY_SILU: return silu(x);
    }
    ASSERT(!"a unary kind");
    return 0;
}

static double unary_slope(enum unary kind, double x)
{
    double u;

    switch (kind) {
    case UNARY_RELU: return x > 0;
    case UNARY_GELU_TANH:
        u = root_2_over_pi * (x + cubic * x * x * x);
        return sigmoid(2 * u) + x * 2 * sigmoid(2 * u) * sigmoid(-2 * u) * root_2_over_pi * (1 + 3 * cubic * x * x);
    case UNARY_GELU_ERF: return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * 0.5 * root_2_over_pi;
    case UNARY_SILU: return silu_slope(x);
    }
    ASSERT(!"a unary kind");
    return 0;
}

static void ref_pointwise_add(const struct call *c)
{
    size_t count = view_count(&c->in[0]), repeat = view_count(&c->in[1]);

    for (size_t i = 0; i < count; i++) ref_put(&c->out[0], i, ref_get(&c->in[0], i) + ref_get(&c->in[1], i % repeat));
}

static void mul(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++) ref_put(&c->out[0], i, ref_get(&c->in[0], i) * ref_get(&c->in[1], i));
}

static void scale(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++) ref_put(&c->out[0], i, ref_get(&c->in[0], i) * c->attr.scale.value);
}

static void unary(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++) ref_put(&c->out[0], i, unary_of(c->attr.unary.kind, ref_get(&c->in[0], i)));
}

static void unary_grad(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++)
        ref_put(&c->out[0], i, unary_slope(c->attr.unary.kind, ref_get(&c->in[0], i)) * ref_get(&c->in[1], i));
}

static void relu_squared(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++) ref_put(&c->out[0], i, pow(unary_of(UNARY_RELU, ref_get(&c->in[0], i)), 2));
}

static void relu_squared_grad(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++)
        ref_put(&c->out[0], i, 2 * unary_of(UNARY_RELU, ref_get(&c->in[0], i)) * ref_get(&c->in[1], i));
}

static void swiglu(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++) ref_put(&c->out[0], i, silu(ref_get(&c->in[0], i)) * ref_get(&c->in[1], i));
}

static void swiglu_grad(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++) {
        double g = ref_get(&c->in[0], i), u = ref_get(&c->in[1], i), dy = ref_get(&c->in[2], i);

        ref_put(&c->out[0], i, dy * u * silu_slope(g));
        ref_put(&c->out[1], i, dy * silu(g));
    }
}

static void dropout(const struct call *c)
{
    double p = c->attr.dropout.p;
    uint64_t stream = c->attr.dropout.stream ^ (uint64_t)ref_int(&c->in[1], 0);
    size_t run;

    for (size_t i = 0; i < view_count(&c->in[0]); i++) {
        bool keep = rng_uniform(c->attr.dropout.seed, stream, dropout_index(c, i, &run)) >= p;

        ref_put(&c->out[0], i, keep ? ref_get(&c->in[0], i) / (1 - p) : 0);
    }
}

static void ref_pointwise_fill(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->out[0]); i++) ref_put(&c->out[0], i, c->attr.scale.value);
}

static void accumulate(const struct call *c)
{
    for (size_t i = 0; i < view_count(&c->in[0]); i++) ref_add(&c->out[0], i, ref_get(&c->in[0], i));
}

const struct kernel kernels_ref_pointwise[] = {
    REF_ROW(ADD, ref_pointwise_add, NULL),
    REF_ROW(MUL, mul, NULL),
    REF_ROW(SCALE, scale, NULL),
    REF_ROW(UNARY, unary, NULL),
    REF_ROW(UNARY_GRAD, unary_grad, NULL),
    REF_ROW(RELU_SQUARED, relu_squared, NULL),
    REF_ROW(RELU_SQUARED_GRAD, relu_squared_grad, NULL),
    REF_ROW(SWIGLU, swiglu, NULL),
    REF_ROW(SWIGLU_GRAD, swiglu_grad, NULL),
    REF_ROW(DROPOUT, dropout, NULL),
    REF_ROW(FILL, ref_pointwise_fill, NULL),
    REF_ROW(ACCUMULATE, accumulate, NULL),
    KERNELS_END,
};
