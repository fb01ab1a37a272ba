/* ops_image.c - images: convolution, pooling, batch norm, and the buffers that hold batch norm's statistics. */
#include "ir/program.h"

#include <string.h>
#include "runtime/store.h"

ls_value ls_buffer(ls_program *p, const char *name, ls_init init, int ndim, const size_t *size)
{
    int index;

    if (!program_ok(p)) return LS_NONE;
    ls_status st = store_declare_as(p->store, name, init, store_state_type(p->store), ndim, size,
                                    &index); /* half types are too coarse for running averages */
    if (st == LS_OK && !ls_store_is_frozen(p->store, (size_t)index)) st = ls_store_freeze(p->store, (size_t)index);
    return st < 0 ? program_fail_by(p, st) : program_param_value(p, index);
}

/* True when x is given, floating and [B,C,H,W]; contiguous on return. */
static bool is_image(ls_program *p, const char *op, ls_value *x)
{
    char shape[96];

    if (!program_operand(p, op, "x", *x, LS_DTYPES)) return false;
    if (program_value(p, *x)->ndim != 4) {
        program_fail(p, "%s: x is %s; [B,C,H,W] is expected", op, value_shape(program_value(p, *x), shape));
        return false;
    }
    *x = ls_contiguous(p, *x);
    return program_ok(p);
}

/* The number of output positions of a window along `size`; 0: failed. */
static size_t windows(ls_program *p, const char *op, char dim, size_t size, size_t window, size_t stride, size_t padding)
{
    if (stride == 0 || window == 0 || padding >= window) {
        program_fail(p, "%s: window %zu, stride %zu, padding %zu; window and stride must be at least 1, padding less than window", op,
                     window, stride, padding);
        return 0;
    }
    if (size + 2 * padding < window) {
        program_fail(p, "%s: %c is %zu with %zu of padding on both sides, too small for the window of %zu", op, dim, size, padding, window);
        return 0;
    }
    return (size + 2 * padding - window) / stride + 1;
}

ls_value ls_conv2d(ls_program *p, ls_value x, ls_value w, ls_value b, size_t stride, size_t padding)
{
    struct op_attr attr = { .conv = { stride, padding } };
    char as[96], ks[96];

    if (!is_image(p, "conv2d", &x) || !program_operand(p, "conv2d", "w", w, program_value(p, x)->dtype)) return LS_NONE;
    w = ls_contiguous(p, w);
    if (!program_ok(p)) return LS_NONE;
    struct value a = *program_value(p, x);
    struct value k = *program_value(p, w);
    if (k.ndim != 4 || k.size[1] != a.size[1])
        return program_fail(p, "conv2d: x is %s, w is %s; w must be [O,C,KH,KW] with x's C = %zu", value_shape(&a, as), value_shape(&k, ks),
                            a.size[1]);
    if (b.id) {
        if (!program_operand(p, "conv2d", "b", b, a.dtype)) return LS_NONE;
        if (program_value(p, b)->ndim != 1 || program_value(p, b)->size[0] != k.size[0])
            return program_fail(p, "conv2d: b is %s, but w has %zu output channels", value_shape(program_value(p, b), as), k.size[0]);
    }
    size_t oh = windows(p, "conv2d", 'H', a.size[2], k.size[2], stride, padding);
    size_t ow = oh ? windows(p, "conv2d", 'W', a.size[3], k.size[3], stride, padding) : 0;
    if (!ow) return LS_NONE;
    ls_value y = program_new_value(p, "conv2d", a.dtype, 4, (size_t[]){ a.size[0], k.size[0], oh, ow });
    return program_emit(p, OP_CONV2D, &attr, 3, (ls_value[]){ x, w, b }, 1, &y);
}

static ls_value pool(ls_program *p, const char *name, enum op op, ls_value x, struct op_attr attr)
{
    if (!is_image(p, name, &x)) return LS_NONE;
    struct value a = *program_value(p, x);
    if (2 * attr.pool.padding > MIN(attr.pool.height, attr.pool.width))
        return program_fail(p, "%s: padding %zu is more than half of the window of %zu x %zu", name, attr.pool.padding, attr.pool.height,
                            attr.pool.width);
    size_t oh = windows(p, name, 'H', a.size[2], attr.pool.height, attr.pool.stride, attr.pool.padding);
    size_t ow = oh ? windows(p, name, 'W', a.size[3], attr.pool.width, attr.pool.stride, attr.pool.padding) : 0;
    if (!ow) return LS_NONE;
    ls_value y = program_new_value(p, name, a.dtype, 4, (size_t[]){ a.size[0], a.size[1], oh, ow });
    return program_emit(p, op, &attr, 1, &x, 1, &y);
}

ls_value ls_max_pool2d(ls_program *p, ls_value x, size_t size, size_t stride, size_t padding)
{
    return pool(p, "max_pool2d", OP_MAX_POOL2D, x, (struct op_attr){ .pool = { size, size, stride, padding } });
}

ls_value ls_avg_pool2d(ls_program *p, ls_value x, size_t size, size_t stride, size_t padding)
{
    return pool(p, "avg_pool2d", OP_AVG_POOL2D, x, (struct op_attr){ .pool = { size, size, stride, padding } });
}

ls_value ls_global_avg_pool(ls_program *p, ls_value x)
{
    struct op_attr attr = { .pool = { .stride = 1 } };

    if (!is_image(p, "global_avg_pool", &x)) return LS_NONE;
    struct value v = *program_value(p, x);
    attr.pool.height = v.size[2];
    attr.pool.width = v.size[3];
    return ls_reshape(p, pool(p, "global_avg_pool", OP_AVG_POOL2D, x, attr), 2, v.size);
}

/* ---- batch norm ---- */

/* True if v has one floating-point element per channel of x. */
/* type: LS_DTYPES: any floating one. */
static bool per_channel(ls_program *p, const char *name, ls_value v, ls_value x, ls_dtype type)
{
    char shape[96];
    size_t C = program_value(p, x)->size[1];

    if (!program_operand(p, "batch_norm", name, v, type)) return false;
    if (program_value(p, v)->ndim == 1 && program_value(p, v)->size[0] == C) return true;
    program_fail(p, "batch_norm: %s is %s, but x has %zu channels", name, value_shape(program_value(p, v), shape), C);
    return false;
}

static bool batch_norm_operands(ls_program *p, ls_value x, ls_value w, ls_value b, ls_value mean, ls_value var, ls_value labels,
                                const ls_batch_norm_options *o)
{
    char shape[96];

    if (!program_operand(p, "batch_norm", "x", x, LS_DTYPES)) return false;
    const struct value *v = program_value(p, x);
    if (v->ndim < 2) return program_fail(p, "batch_norm: x is %s; [B,C] or [B,C,..] is expected", value_shape(v, shape)).id;
    if (!(o->eps > 0) || !(o->momentum >= 0 && o->momentum <= 1))
        return program_fail(p, "batch_norm: eps %g must be above 0, momentum %g from 0 to 1", o->eps, o->momentum).id;
    if (!mean.id != !var.id || (!mean.id && !o->training))
        return program_fail(p, "batch_norm: running mean %s, variance %s; both are expected%s", mean.id ? "given" : "missing",
                            var.id ? "given" : "missing", o->training ? ", or neither" : " outside of training")
            .id;
    if (labels.id && (program_value(p, labels)->dtype != LS_I32 || value_count(program_value(p, labels)) != v->size[0]))
        return program_fail(p, "batch_norm: labels are %zu of type %s; expected %zu of type i32, one per sample",
                            value_count(program_value(p, labels)), ls_dtype_name(program_value(p, labels)->dtype), v->size[0])
            .id;
    if (!per_channel(p, "w", w, x, v->dtype) || !per_channel(p, "b", b, x, v->dtype)) return false;
    return !mean.id || (per_channel(p, "mean", mean, x, LS_DTYPES) && per_channel(p, "var", var, x, LS_DTYPES));
}

static bool is_buffer(const ls_program *p, ls_value v)
{
    const struct value *x = &p->values[v.id];

    return x->role == LS_ROLE_PARAMETER && ls_store_is_frozen(p->store, (size_t)x->param);
}

/* Emits the batch's statistics, marked as partial over dp so that they can be summed over ranks, and the update of the running ones. */
static ls_value batch_stats(ls_program *p, ls_value x, ls_value mean, ls_value var, ls_value labels, const struct op_attr *attr)
{
    ls_value stats = program_new_value(p, "batch_stats", LS_F64, 1, (size_t[]){ 2 * program_value(p, x)->size[1] + 1 });

    program_emit(p, OP_BATCH_STATS, attr, 2, (ls_value[]){ x, labels }, 1, &stats);
    if (!program_ok(p)) return LS_NONE;
    program_value(p, stats)->place[LS_AXIS_DP].kind = LS_PARTIAL;
    if (!mean.id) return stats;
    if (!is_buffer(p, mean) || !is_buffer(p, var))
        return program_fail(p, "batch_norm: the running statistics '%s' and '%s' are updated in training; create them with ls_buffer",
                            program_value(p, mean)->name, program_value(p, var)->name);
    program_emit(p, OP_BATCH_UPDATE_STATS, attr, 1, &stats, 2, (ls_value[]){ mean, var });
    return stats;
}

ls_value ls_batch_norm(ls_program *p, ls_value x, ls_value w, ls_value b, ls_value mean, ls_value var, ls_value labels,
                       const ls_batch_norm_options *options)
{
    static const ls_batch_norm_options defaults = LS_BATCH_NORM_DEFAULTS;
    const ls_batch_norm_options *o = options ? options : &defaults;
    struct op_attr attr = { .batch = { o->eps, o->momentum, !o->training } };
    ls_value stats;

    if (!batch_norm_operands(p, x, w, b, mean, var, labels, o)) return LS_NONE;
    x = ls_contiguous(p, x);
    if (!program_ok(p)) return LS_NONE;
    struct value v = *program_value(p, x);
    if (o->training) {
        stats = batch_stats(p, x, mean, var, labels, &attr);
    } else {
        stats = program_new_value(p, "batch_use_stats", LS_F64, 1, (size_t[]){ 2 * v.size[1] + 1 });
        program_emit(p, OP_BATCH_USE_STATS, &attr, 2, (ls_value[]){ mean, var }, 1, &stats);
    }
    ls_value y = program_new_value(p, "batch_norm", v.dtype, v.ndim, v.size);
    return program_emit(p, OP_BATCH_NORM, &attr, 5, (ls_value[]){ x, stats, w, b, labels }, 1, &y);
}
