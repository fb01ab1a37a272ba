/* ops_pointwise.c - elementwise ops (add, mul, activations, dropout) and row ops (softmax, norms). */
#include "ir/program.h"

#include <stdio.h>
#include <string.h>
#include "base/rng.h"

static ls_value like(ls_program *p, const char *what, ls_value x)
{
    const struct value *v = program_value(p, x);
    size_t size[LS_DIMS];

    memcpy(size, v->size, sizeof size);
    return program_new_value(p, what, v->dtype, v->ndim, size);
}

/* y[like x] = op(x, rest...); makes x and every given operand contiguous. */
static ls_value pointwise(ls_program *p, enum op op, const struct op_attr *attr, int nin, ls_value *in)
{
    for (int k = 0; k < nin; k++)
        if (in[k].id) in[k] = ls_contiguous(p, in[k]);
    if (!program_ok(p)) return LS_NONE;
    ls_value y = like(p, op_name(op), in[0]);
    return program_emit(p, op, attr, nin, in, 1, &y);
}

/* True when b's shape is a's, a suffix of it, or one element. */
static bool is_suffix(const struct value *a, const struct value *b)
{
    if (value_count(b) == 1) return true;
    for (int d = 1; d <= b->ndim; d++)
        if (d > a->ndim || a->size[a->ndim - d] != b->size[b->ndim - d]) return false;
    return true;
}

ls_value ls_add(ls_program *p, ls_value a, ls_value b)
{
    char as[96], bs[96];

    if (!program_operand(p, "add", "a", a, LS_DTYPES) || !program_operand(p, "add", "b", b, program_value(p, a)->dtype)) return LS_NONE;
    if (!is_suffix(program_value(p, a), program_value(p, b)))
        return program_fail(p, "add: a is %s, b is %s; b must have a's shape, a suffix of it, or one element",
                            value_shape(program_value(p, a), as), value_shape(program_value(p, b), bs));
    return pointwise(p, OP_ADD, NULL, 2, (ls_value[]){ a, b });
}

static bool two_alike(ls_program *p, const char *op, ls_value a, ls_value b)
{
    char as[96], bs[96];

    if (!program_operand(p, op, "a", a, LS_DTYPES) || !program_operand(p, op, "b", b, program_value(p, a)->dtype)) return false;
    if (!program_same_shape(p, a, b)) {
        program_fail(p, "%s: operands are %s and %s; shapes must be equal", op, value_shape(program_value(p, a), as),
                     value_shape(program_value(p, b), bs));
        return false;
    }
    return true;
}

ls_value ls_mul(ls_program *p, ls_value a, ls_value b)
{
    return two_alike(p, "mul", a, b) ? pointwise(p, OP_MUL, NULL, 2, (ls_value[]){ a, b }) : LS_NONE;
}

ls_value ls_swiglu(ls_program *p, ls_value gate, ls_value up)
{
    return two_alike(p, "swiglu", gate, up) ? pointwise(p, OP_SWIGLU, NULL, 2, (ls_value[]){ gate, up }) : LS_NONE;
}

ls_value ls_scale(ls_program *p, ls_value x, double factor)
{
    struct op_attr attr = { .scale = { factor } };

    return program_operand(p, "scale", "x", x, LS_DTYPES) ? pointwise(p, OP_SCALE, &attr, 1, &x) : LS_NONE;
}

static ls_value unary(ls_program *p, const char *name, enum unary kind, ls_value x)
{
    struct op_attr attr = { .unary = { kind } };

    return program_operand(p, name, "x", x, LS_DTYPES) ? pointwise(p, OP_UNARY, &attr, 1, &x) : LS_NONE;
}

ls_value ls_relu(ls_program *p, ls_value x) { return unary(p, "relu", UNARY_RELU, x); }
ls_value ls_gelu_tanh(ls_program *p, ls_value x) { return unary(p, "gelu_tanh", UNARY_GELU_TANH, x); }
ls_value ls_gelu_erf(ls_program *p, ls_value x) { return unary(p, "gelu_erf", UNARY_GELU_ERF, x); }
ls_value ls_silu(ls_program *p, ls_value x) { return unary(p, "silu", UNARY_SILU, x); }

ls_value ls_relu_squared(ls_program *p, ls_value x)
{
    return program_operand(p, "relu_squared", "x", x, LS_DTYPES) ? pointwise(p, OP_RELU_SQUARED, NULL, 1, &x) : LS_NONE;
}

bool program_drops(ls_program *p, const char *name, double probability, ls_value step)
{
    const struct value *s = step.id ? program_value(p, step) : NULL;

    if (!(probability >= 0.0 && probability < 1.0))
        program_fail(p, "dropout '%s': probability is %g; it must be 0 <= p < 1", name, probability);
    else if (probability > 0 && (!s || s->dtype != LS_I64 || s->ndim != 1 || value_count(s) < 1 || value_count(s) > 2))
        program_fail(p, "dropout '%s': step must be i64 [1] or [2]", name);
    return program_ok(p);
}

uint64_t program_site_stream(const ls_program *p, const char *name)
{
    char full[256];

    snprintf(full, sizeof full, "%s/%s", p->builder.cursor.block ? p->blocks[p->builder.cursor.block] : "", name);
    return rng_stream(full);
}

ls_value ls_dropout(ls_program *p, const char *name, ls_value x, double probability, uint64_t seed, ls_value step)
{
    struct op_attr attr = { .dropout = { .p = probability, .seed = seed } };

    if (!program_operand(p, "dropout", "x", x, LS_DTYPES) || !program_drops(p, name, probability, step)) return LS_NONE;
    if (probability == 0.0) return x;
    attr.dropout.stream = program_site_stream(p, name);
    return pointwise(p, OP_DROPOUT, &attr, 2, (ls_value[]){ x, step });
}

/* ---- rows ---- */

ls_value ls_softmax(ls_program *p, ls_value x)
{
    if (!program_operand(p, "softmax", "x", x, LS_DTYPES)) return LS_NONE;
    if (program_value(p, x)->ndim < 1) return program_fail(p, "softmax: x is a scalar; expected at least one dim");
    return pointwise(p, OP_SOFTMAX, NULL, 1, &x);
}

static bool norm_weight(ls_program *p, const char *op, const char *name, ls_value x, ls_value w)
{
    if (!program_operand(p, op, name, w, program_value(p, x)->dtype)) return false;
    const struct value *a = program_value(p, x);
    const struct value *b = program_value(p, w);
    if (a->ndim < 1 || b->ndim != 1 || b->size[0] != a->size[a->ndim - 1]) {
        program_fail(p, "%s: %s has %zu elements, but rows of x have %zu", op, name, value_count(b), a->ndim ? a->size[a->ndim - 1] : 1);
        return false;
    }
    return true;
}

/* One statistic per row, f32 (f64 for f64). */
static ls_value statistic(ls_program *p, const char *what, ls_value x)
{
    const struct value *v = program_value(p, x);
    size_t rows = value_count(v) / MAX(v->size[v->ndim - 1], 1);

    return program_new_value(p, what, v->dtype == LS_F64 ? LS_F64 : LS_F32, 1, &rows);
}

ls_value ls_layer_norm(ls_program *p, ls_value x, ls_value w, ls_value b, double eps)
{
    struct op_attr attr = { .norm = { eps } };

    if (!program_operand(p, "layer_norm", "x", x, LS_DTYPES) || !norm_weight(p, "layer_norm", "w", x, w) ||
        !norm_weight(p, "layer_norm", "b", x, b))
        return LS_NONE;
    x = ls_contiguous(p, x);
    ls_value y = like(p, "layer_norm", x);
    ls_value mean = statistic(p, "mean", x);
    ls_value rstd = statistic(p, "rstd", x);
    return program_emit(p, OP_LAYER_NORM, &attr, 3, (ls_value[]){ x, w, b }, 3, (ls_value[]){ y, mean, rstd });
}

ls_value ls_rms_norm(ls_program *p, ls_value x, ls_value w, double eps)
{
    struct op_attr attr = { .norm = { eps } };

    if (!program_operand(p, "rms_norm", "x", x, LS_DTYPES) || !norm_weight(p, "rms_norm", "w", x, w)) return LS_NONE;
    x = ls_contiguous(p, x);
    ls_value y = like(p, "rms_norm", x);
    ls_value rstd = statistic(p, "rstd", x);
    return program_emit(p, OP_RMS_NORM, &attr, 2, (ls_value[]){ x, w }, 2, (ls_value[]){ y, rstd });
}
