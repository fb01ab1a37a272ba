/* ops_matmul.c - linear layers, batched matmuls, the fused loss: each checks shapes and appends one instruction. */
#include "ir/program.h"

#include <string.h>

bool program_operand(ls_program *p, const char *op, const char *name, ls_value x, ls_dtype type)
{
    if (!program_ok(p)) return false;
    if (!x.id) {
        program_fail(p, "%s: operand %s is missing", op, name);
        return false;
    }
    const struct value *v = program_value(p, x);
    if (!ls_dtype_is_float(v->dtype) || (type != LS_DTYPES && v->dtype != type)) {
        program_fail(p, "%s: %s is %s; %s is expected (ls_cast converts)", op, name, ls_dtype_name(v->dtype),
                     type == LS_DTYPES ? "a floating type" : ls_dtype_name(type));
        return false;
    }
    return true;
}

bool program_same_shape(const ls_program *p, ls_value a, ls_value b)
{
    const struct value *x = &p->values[a.id], *y = &p->values[b.id];
    bool same = x->ndim == y->ndim;

    for (int d = 0; same && d < x->ndim; d++) same = x->size[d] == y->size[d];
    return same;
}

/* The leading dims of x, followed by `last`. */
static ls_value rows_by(ls_program *p, const char *op, ls_value x, size_t last)
{
    const struct value *v = program_value(p, x);
    size_t size[LS_DIMS];

    memcpy(size, v->size, sizeof size);
    size[v->ndim - 1] = last;
    return program_new_value(p, op, v->dtype, v->ndim, size);
}

/* Checks x[R,cols] against w[.,.], whose dim `k` must equal x's last dim; makes both contiguous. */
static bool gemm_operands(ls_program *p, const char *op, const char *xname, ls_value *x, ls_value *w, int k)
{
    char xs[96], ws[96];

    if (!program_operand(p, op, xname, *x, LS_DTYPES) || !program_operand(p, op, "w", *w, program_value(p, *x)->dtype)) return false;
    *x = ls_contiguous(p, *x);
    *w = ls_contiguous(p, *w);
    if (!program_ok(p)) return false;
    const struct value *a = program_value(p, *x);
    const struct value *b = program_value(p, *w);
    if (a->ndim < 1 || b->ndim != 2 || a->size[a->ndim - 1] != b->size[k]) {
        program_fail(p, "%s: %s is %s, w is %s; the last dim of %s must equal dim %d of w", op, xname, value_shape(a, xs),
                     value_shape(b, ws), xname, k);
        return false;
    }
    return true;
}

ls_value ls_linear(ls_program *p, ls_value x, ls_value w, ls_value b)
{
    if (!gemm_operands(p, "linear", "x", &x, &w, 1)) return LS_NONE;
    size_t n = program_value(p, w)->size[0];
    if (b.id) {
        if (!program_operand(p, "linear", "b", b, program_value(p, x)->dtype)) return LS_NONE;
        if (program_value(p, b)->ndim != 1 || program_value(p, b)->size[0] != n)
            return program_fail(p, "linear: b has %zu elements in %d dims, but w has %zu outputs", value_count(program_value(p, b)),
                                program_value(p, b)->ndim, n);
    }
    ls_value y = rows_by(p, "linear", x, n);
    return program_emit(p, OP_LINEAR, NULL, 3, (ls_value[]){ x, w, b }, 1, &y);
}

ls_value ls_linear_backward_input(ls_program *p, ls_value dy, ls_value w)
{
    if (!gemm_operands(p, "linear_backward_input", "dy", &dy, &w, 0)) return LS_NONE;
    ls_value dx = rows_by(p, "linear_dx", dy, program_value(p, w)->size[1]);
    return program_emit(p, OP_LINEAR_DX, NULL, 2, (ls_value[]){ dy, w }, 1, &dx);
}

ls_value ls_linear_backward_weight(ls_program *p, ls_value dy, ls_value x)
{
    const char *op = "linear_backward_weight";

    if (!program_operand(p, op, "dy", dy, LS_DTYPES) || !program_operand(p, op, "x", x, program_value(p, dy)->dtype)) return LS_NONE;
    dy = ls_contiguous(p, dy);
    x = ls_contiguous(p, x);
    const struct value *a = program_value(p, dy);
    const struct value *b = program_value(p, x);
    if (a->ndim < 1 || b->ndim < 1 || value_count(a) / MAX(a->size[a->ndim - 1], 1) != value_count(b) / MAX(b->size[b->ndim - 1], 1))
        return program_fail(p, "%s: dy and x must have the same number of rows: %zu and %zu", op,
                            value_count(a) / MAX(a->size[a->ndim - 1], 1), value_count(b) / MAX(b->size[b->ndim - 1], 1));
    ls_value dw = ls_constant(p, a->dtype == LS_F64 ? LS_F64 : LS_F32, 2, (size_t[]){ a->size[a->ndim - 1], b->size[b->ndim - 1] }, 0.0);
    return program_emit(p, OP_LINEAR_DW, NULL, 2, (ls_value[]){ dy, x }, 1, &dw);
}

ls_value ls_matmul(ls_program *p, ls_value a, ls_value b)
{
    size_t size[LS_DIMS];
    char as[96], bs[96];

    if (!program_operand(p, "matmul", "a", a, LS_DTYPES) || !program_operand(p, "matmul", "b", b, program_value(p, a)->dtype))
        return LS_NONE;
    const struct value *x = program_value(p, a);
    const struct value *y = program_value(p, b);
    bool fits = x->ndim >= 2 && x->ndim == y->ndim && x->size[x->ndim - 1] == y->size[y->ndim - 2];
    for (int d = 0; fits && d < x->ndim - 2; d++) fits = x->size[d] == y->size[d];
    if (!fits)
        return program_fail(p, "matmul: a is %s, b is %s; expected [..,M,K] and [..,K,N] with equal leading dims", value_shape(x, as),
                            value_shape(y, bs));
    memcpy(size, x->size, sizeof size);
    size[x->ndim - 1] = y->size[y->ndim - 1];
    ls_value c = program_new_value(p, "matmul", x->dtype, x->ndim, size);
    return program_emit(p, OP_MATMUL, NULL, 2, (ls_value[]){ a, b }, 1, &c);
}

ls_value ls_linear_xent(ls_program *p, ls_value x, ls_value w, ls_value targets, ls_value denominator)
{
    if (!gemm_operands(p, "linear_xent", "x", &x, &w, 1) || !targets.id)
        return program_ok(p) ? program_fail(p, "linear_xent: operand targets is missing") : LS_NONE;
    const struct value *a = program_value(p, x);
    const struct value *t = program_value(p, targets);
    size_t rows = value_count(a) / MAX(a->size[a->ndim - 1], 1);
    if (t->dtype != LS_I32 || value_count(t) != rows)
        return program_fail(p, "linear_xent: targets are %zu of type %s; expected %zu of type i32, one per row of x", value_count(t),
                            ls_dtype_name(t->dtype), rows);
    if (denominator.id &&
        (!program_operand(p, "linear_xent", "denominator", denominator, LS_DTYPES) || value_count(program_value(p, denominator)) != 1))
        return program_fail(p, "linear_xent: denominator must have one element");
    program_bound(p, targets, INT32_MIN, (int64_t)program_value(p, w)->size[0] - 1);
    ls_dtype exact = a->dtype == LS_F64 ? LS_F64 : LS_F32;
    ls_value loss = program_new_value(p, "loss", exact, 1, (size_t[]){ 1 });
    ls_value lse = program_new_value(p, "lse", exact, 1, &rows);
    return program_emit(p, OP_LINEAR_XENT, NULL, 4, (ls_value[]){ x, w, targets, denominator }, 2, (ls_value[]){ loss, lse });
}

ls_value ls_mse(ls_program *p, ls_value a, ls_value b)
{
    char as[96], bs[96];

    if (!program_operand(p, "mse", "a", a, LS_DTYPES) || !program_operand(p, "mse", "b", b, program_value(p, a)->dtype)) return LS_NONE;
    if (!program_same_shape(p, a, b))
        return program_fail(p, "mse: a is %s, b is %s; shapes must be equal", value_shape(program_value(p, a), as),
                            value_shape(program_value(p, b), bs));
    a = ls_contiguous(p, a);
    b = ls_contiguous(p, b);
    ls_value loss = program_new_value(p, "loss", ls_value_dtype(p, a) == LS_F64 ? LS_F64 : LS_F32, 1, (size_t[]){ 1 });
    return program_emit(p, OP_MSE, NULL, 2, (ls_value[]){ a, b }, 1, &loss);
}
