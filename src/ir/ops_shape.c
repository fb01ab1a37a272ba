/* ops_shape.c - views, copies, concatenation and sums. */
#include "ir/program.h"

#include <string.h>

static void shape_of(const ls_program *p, ls_value x, size_t *size, ptrdiff_t *stride)
{
    memcpy(size, p->values[x.id].size, sizeof p->values[x.id].size);
    memcpy(stride, p->values[x.id].stride, sizeof p->values[x.id].stride);
}

ls_value program_copy(ls_program *p, ls_value x, ls_dtype type)
{
    const struct value *v = program_value(p, x);
    size_t size[LS_DIMS];

    memcpy(size, v->size, sizeof size);
    ls_value y = program_new_value(p, "copy", type, v->ndim, size);
    return program_emit(p, OP_COPY, NULL, 1, &x, 1, &y);
}

ls_value ls_contiguous(ls_program *p, ls_value x)
{
    if (!program_ok(p) || !x.id) return LS_NONE;
    return value_is_contiguous(program_value(p, x)) ? x : program_copy(p, x, program_value(p, x)->dtype);
}

ls_value ls_cast(ls_program *p, ls_value x, ls_dtype type)
{
    if (!program_operand(p, "cast", "x", x, LS_DTYPES)) return LS_NONE;
    if (!ls_dtype_is_float(type)) return program_fail(p, "cast: %s is not a floating-point type", ls_dtype_name(type));
    return program_value(p, x)->dtype == type ? x : program_copy(p, x, type);
}

ls_value ls_constant(ls_program *p, ls_dtype type, int ndim, const size_t *size, double value)
{
    struct op_attr attr = { .scale = { value } };
    ls_value y = program_new_value(p, "constant", type, ndim, size);

    return y.id ? program_emit(p, OP_FILL, &attr, 0, NULL, 1, &y) : LS_NONE;
}

ls_value ls_stop_gradient(ls_program *p, ls_value x)
{
    size_t size[LS_DIMS];
    ptrdiff_t stride[LS_DIMS];

    if (!program_operand(p, "stop_gradient", "x", x, LS_DTYPES)) return LS_NONE;
    shape_of(p, x, size, stride);
    return program_view(p, x, (struct view_rule){ VIEW_STOP, 0, 0, 0 }, program_value(p, x)->ndim, size, stride, 0);
}

ls_value ls_reshape(ls_program *p, ls_value x, int ndim, const size_t *size)
{
    ptrdiff_t stride[LS_DIMS] = { 0 };
    size_t count = 1;
    char xs[96];

    x = ls_contiguous(p, x);
    if (!x.id) return LS_NONE;
    if (ndim < 0 || ndim > LS_DIMS) return program_fail(p, "reshape: %d dims; 0 to %d are possible", ndim, LS_DIMS);
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = (ptrdiff_t)count;
        count *= size[d];
    }
    if (count != value_count(program_value(p, x)))
        return program_fail(p, "reshape: x is %s with %zu elements, but the new shape has %zu", value_shape(program_value(p, x), xs),
                            value_count(program_value(p, x)), count);
    return program_view(p, x, (struct view_rule){ VIEW_RESHAPE, 0, 0, 0 }, ndim, size, stride, 0);
}

static bool dim_ok(ls_program *p, const char *op, ls_value x, int dim)
{
    if (!program_ok(p) || !x.id) return false;
    if (dim < 0 || dim >= program_value(p, x)->ndim) {
        program_fail(p, "%s: dim %d is out of range: the value has %d dims", op, dim, program_value(p, x)->ndim);
        return false;
    }
    return true;
}

ls_value ls_transpose(ls_program *p, ls_value x, int dim0, int dim1)
{
    size_t size[LS_DIMS], n;
    ptrdiff_t stride[LS_DIMS], s;

    if (!dim_ok(p, "transpose", x, dim0) || !dim_ok(p, "transpose", x, dim1)) return LS_NONE;
    shape_of(p, x, size, stride);
    n = size[dim0], size[dim0] = size[dim1], size[dim1] = n;
    s = stride[dim0], stride[dim0] = stride[dim1], stride[dim1] = s;
    return program_view(p, x, (struct view_rule){ VIEW_TRANSPOSE, dim0, dim1, 0 }, program_value(p, x)->ndim, size, stride, 0);
}

ls_value ls_slice(ls_program *p, ls_value x, int dim, size_t begin, size_t end)
{
    size_t size[LS_DIMS];
    ptrdiff_t stride[LS_DIMS];

    if (!dim_ok(p, "slice", x, dim)) return LS_NONE;
    shape_of(p, x, size, stride);
    if (begin > end || end > size[dim])
        return program_fail(p, "slice: [%zu, %zu) is out of range: dim %d has %zu elements", begin, end, dim, size[dim]);
    size[dim] = end - begin;
    return program_view(p, x, (struct view_rule){ VIEW_SLICE, dim, 0, begin }, program_value(p, x)->ndim, size, stride,
                        (ptrdiff_t)begin * stride[dim]);
}

void ls_split(ls_program *p, ls_value x, int dim, int parts, ls_value *out)
{
    size_t n = x.id && dim >= 0 && dim < ls_value_ndim(p, x) ? ls_value_size(p, x, dim) : 0;

    for (int i = 0; i < parts; i++) out[i] = LS_NONE;
    if (!dim_ok(p, "split", x, dim)) return;
    if (parts < 1 || n % (size_t)parts) {
        program_fail(p, "split: dim %d has %zu elements, which are not divisible into %d equal parts", dim, n, parts);
        return;
    }
    for (int i = 0; i < parts; i++) out[i] = ls_slice(p, x, dim, n / (size_t)parts * (size_t)i, n / (size_t)parts * (size_t)(i + 1));
}

ls_value program_expand(ls_program *p, ls_value x, int dim, int ndim, const size_t *size)
{
    const struct value *v = program_value(p, x);
    ptrdiff_t stride[LS_DIMS] = { 0 };

    for (int d = 0, k = 0; dim >= 0 && d < ndim; d++) stride[d] = d == dim ? 0 : v->stride[k++];
    return program_view(p, x, (struct view_rule){ VIEW_EXPAND, dim, 0, 0 }, ndim, size, stride, 0);
}

ls_value ls_concat(ls_program *p, int n, const ls_value *x, int dim)
{
    struct op_attr attr = { .concat = { dim } };
    size_t size[LS_DIMS], total = 0;

    if (n < 1 || n > CALL_OPERANDS) return program_fail(p, "concat: %d operands; 1 to %d are possible", n, CALL_OPERANDS);
    for (int i = 0; i < n; i++) {
        if (!program_operand(p, "concat", "x", x[i], i ? program_value(p, x[0])->dtype : LS_DTYPES) || !dim_ok(p, "concat", x[i], dim))
            return LS_NONE;
        const struct value *v = program_value(p, x[i]);
        const struct value *first = program_value(p, x[0]);
        for (int d = 0; d < MAX(v->ndim, first->ndim); d++)
            if (v->ndim != first->ndim || (d != dim && v->size[d] != first->size[d]))
                return program_fail(p, "concat: operand %d differs from the first in a dim other than %d", i, dim);
        total += v->size[dim];
    }
    memcpy(size, program_value(p, x[0])->size, sizeof size);
    size[dim] = total;
    ls_value y = program_new_value(p, "concat", program_value(p, x[0])->dtype, program_value(p, x[0])->ndim, size);
    return program_emit(p, OP_CONCAT, &attr, n, x, 1, &y);
}

static ls_value reduced(ls_program *p, int op, const char *name, ls_value x, int dim)
{
    struct op_attr attr = { .reduce = { dim } };
    size_t size[LS_DIMS] = { 1 };
    int ndim = 1;

    if (!program_operand(p, name, "x", x, LS_DTYPES) || (dim != -1 && !dim_ok(p, name, x, dim))) return LS_NONE;
    x = ls_contiguous(p, x);
    if (!x.id) return LS_NONE;
    if (dim >= 0) {
        const struct value *v = program_value(p, x);

        ndim = 0;
        for (int d = 0; d < v->ndim; d++)
            if (d != dim) size[ndim++] = v->size[d];
    }
    ls_value y = program_new_value(p, name, program_value(p, x)->dtype, ndim, size);
    return program_emit(p, op, &attr, 1, &x, 1, &y);
}

ls_value ls_sum(ls_program *p, ls_value x, int dim) { return reduced(p, OP_REDUCE_SUM, "sum", x, dim); }
ls_value ls_max(ls_program *p, ls_value x, int dim) { return reduced(p, OP_REDUCE_MAX, "max", x, dim); }

ls_value ls_mean(ls_program *p, ls_value x, int dim)
{
    if (!program_operand(p, "mean", "x", x, LS_DTYPES) || (dim != -1 && !dim_ok(p, "mean", x, dim))) return LS_NONE;
    size_t n = dim < 0 ? value_count(program_value(p, x)) : program_value(p, x)->size[dim];
    return ls_scale(p, ls_sum(p, x, dim), n ? 1.0 / (double)n : 0.0);
}
