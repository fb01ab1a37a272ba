/* gradient.c - one gradient rule per op, and the helpers of rules.
 *
 * For an instruction y = op(x, ...) the rule gets dy and computes the gradient of each operand that leads to a parameter:
 *   gradient_give()    adds a value to the operand's gradient (a residual stream has two readers)
 *   into()             gives a buffer to which the kernel itself adds: the parameter's gradient, or zeros for other operands
 * Input gradients (phase INPUT_GRADIENT) and weight gradients (phase WEIGHT_GRADIENT) are separate instructions if they are separate
 * matmuls. gradient_pass.c calls the rules in phase INPUT_GRADIENT.
 */
#include "passes/gradient.h"

/* ---- helpers ---- */

bool gradient_needs(const struct gradient *g, ls_value x) { return x.id && x.id < g->n && g->needed[x.id]; }

static bool is_param(const struct gradient *g, ls_value x) { return program_value(g->p, x)->role == LS_ROLE_PARAMETER; }

ls_value gradient_emit(struct gradient *g, enum op op, const struct op_attr *attr, int nin, const ls_value *in, const char *what,
                       ls_value like)
{
    struct value v = *program_value(g->p, like);

    return program_emit(g->p, op, attr, nin, in, 1, (ls_value[]){ program_new_value(g->p, what, v.dtype, v.ndim, v.size) });
}

void gradient_give(struct gradient *g, ls_value x, ls_value dx)
{
    if (!gradient_needs(g, x) || !dx.id) return;
    if (is_param(g, x)) {
        ls_value target = program_grad_value(g->p, program_value(g->p, x)->param);
        struct cursor before = program_cursor_phase(g->p, LS_PHASE_WEIGHT_GRADIENT);

        dx = ls_contiguous(g->p, dx);
        program_emit(g->p, OP_ACCUMULATE, NULL, 1, &dx, 1, &target);
        program_cursor_end(g->p, before);
    } else if (!g->grad[x.id].id) {
        g->grad[x.id] = dx;
    } else {
        ls_value both[2] = { ls_contiguous(g->p, g->grad[x.id]), ls_contiguous(g->p, dx) };

        g->grad[x.id] = gradient_emit(g, OP_ADD, NULL, 2, both, "grad_sum", x);
    }
}

/* The buffer to which a "+=" kernel adds x's gradient; call land() afterwards. LS_NONE if x needs none. */
static ls_value into(struct gradient *g, ls_value x)
{
    if (!gradient_needs(g, x)) return LS_NONE;
    if (is_param(g, x)) return program_grad_value(g->p, program_value(g->p, x)->param);
    struct value v = *program_value(g->p, x);
    return ls_constant(g->p, v.dtype == LS_F64 ? LS_F64 : LS_F32, v.ndim, v.size, 0.0);
}

static void land(struct gradient *g, ls_value x, ls_value target)
{
    if (target.id && !is_param(g, x)) gradient_give(g, x, ls_cast(g->p, target, program_value(g->p, x)->dtype));
}

void gradient_accumulate(struct gradient *g, enum op op, const struct op_attr *attr, int nin, const ls_value *in, int nout,
                         const ls_value *x)
{
    ls_value target[2] = { LS_NONE, LS_NONE };
    ls_phase phase = LS_PHASE_WEIGHT_GRADIENT;

    for (int k = 0; k < nout; k++)
        if (gradient_needs(g, x[k]) && !is_param(g, x[k])) phase = LS_PHASE_INPUT_GRADIENT;
    struct cursor before = program_cursor_phase(g->p, phase);
    for (int k = 0; k < nout; k++) target[k] = into(g, x[k]);
    if (target[0].id || target[1].id) {
        for (int k = 0; k < nout; k++)
            if (!target[k].id) { /* the kernel adds to both: the unneeded one goes to an unused buffer */
                struct value v = *program_value(g->p, x[k]);

                target[k] = ls_constant(g->p, v.dtype == LS_F64 ? LS_F64 : LS_F32, v.ndim, v.size, 0.0);
            }
        program_emit(g->p, op, attr, nin, in, nout, target);
    }
    program_cursor_end(g->p, before);
    for (int k = 0; k < nout; k++)
        if (gradient_needs(g, x[k])) land(g, x[k], target[k]);
}

static ls_value flat(struct gradient *g, ls_value x, size_t columns)
{
    size_t count = value_count(program_value(g->p, x));

    return ls_reshape(g->p, x, 2, (size_t[]){ columns ? count / columns : 0, columns });
}

/* ---- matmuls ---- */

void gradient_linear(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value x = i->in[0], w = i->in[1], b = i->in[2];

    if (gradient_needs(g, x)) gradient_give(g, x, gradient_emit(g, OP_LINEAR_DX, NULL, 2, (ls_value[]){ dy, w }, "linear_dx", x));
    gradient_accumulate(g, OP_LINEAR_DW, NULL, 2, (ls_value[]){ dy, x }, 1, &w);
    if (b.id) gradient_accumulate(g, OP_BIAS_GRAD, NULL, 1, &dy, 1, &b);
}

void gradient_matmul(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value a = i->in[0], b = i->in[1];
    int last = program_value(g->p, a)->ndim - 1;

    if (gradient_needs(g, a)) gradient_give(g, a, ls_matmul(g->p, dy, ls_transpose(g->p, b, last - 1, last)));
    if (gradient_needs(g, b)) gradient_give(g, b, ls_matmul(g->p, ls_transpose(g->p, a, last - 1, last), dy));
}

/* The gradient of a distributed op runs over the same ranks. */
static void go_over(struct instruction *gradient, const struct instruction *i)
{
    if (gradient && op_payload(i->op) == PAYLOAD_across) instruction_set_across(gradient, instruction_across(i));
}

static void xent_gradient(struct gradient *g, const struct instruction *i, ls_value dloss, int op)
{
    ls_value x = i->in[0], w = i->in[1], dx = LS_NONE;
    ls_value in[] = { x, w, i->in[2], i->in[3], i->out[1], dloss };
    bool fuse = g->p->arguments.options.fuse_loss;
    struct value v = *program_value(g->p, x);

    if (gradient_needs(g, x)) dx = program_new_value(g->p, "linear_xent_dx", v.dtype, v.ndim, v.size);
    ls_value dw = into(g, w);
    if (fuse) in[4] = LS_NONE; /* fused: the kernel computes statistics and loss itself */
    struct instruction *made = program_append(g->p, op, &i->attr, 6, in, 3, (ls_value[]){ dx, dw, fuse ? i->out[0] : LS_NONE });
    go_over(made, i);
    gradient_give(g, x, dx);
    land(g, w, dw);
}

void gradient_linear_xent(struct gradient *g, const struct instruction *i, ls_value dloss)
{
    xent_gradient(g, i, dloss, OP_LINEAR_XENT_GRAD);
}

void gradient_vocab_xent(struct gradient *g, const struct instruction *i, ls_value dloss)
{
    xent_gradient(g, i, dloss, OP_VOCAB_XENT_GRAD);
}

void gradient_mse(struct gradient *g, const struct instruction *i, ls_value dloss)
{
    ls_value in[3] = { i->in[0], i->in[1], dloss };
    ls_value da = gradient_emit(g, OP_MSE_GRAD, NULL, 3, in, "mse_grad", i->in[0]);

    gradient_give(g, i->in[0], da);
    if (gradient_needs(g, i->in[1])) gradient_give(g, i->in[1], ls_scale(g->p, da, -1.0));
}

/* ---- pointwise ---- */

void gradient_add(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value a = i->in[0], b = i->in[1];

    gradient_give(g, a, dy);
    if (!gradient_needs(g, b)) return;
    if (program_same_shape(g->p, a, b)) {
        gradient_give(g, b, dy);
    } else {
        ls_value rows = flat(g, dy, value_count(program_value(g->p, b)));

        gradient_accumulate(g, OP_BIAS_GRAD, NULL, 1, &rows, 1, &b);
    }
}

void gradient_mul(struct gradient *g, const struct instruction *i, ls_value dy)
{
    if (gradient_needs(g, i->in[0])) gradient_give(g, i->in[0], ls_mul(g->p, dy, i->in[1]));
    if (gradient_needs(g, i->in[1])) gradient_give(g, i->in[1], ls_mul(g->p, dy, i->in[0]));
}

void gradient_scale(struct gradient *g, const struct instruction *i, ls_value dy)
{
    gradient_give(g, i->in[0], ls_scale(g->p, dy, i->attr.scale.value));
}

void gradient_unary(struct gradient *g, const struct instruction *i, ls_value dy)
{
    gradient_give(g, i->in[0], gradient_emit(g, OP_UNARY_GRAD, &i->attr, 2, (ls_value[]){ i->in[0], dy }, "unary_grad", i->in[0]));
}

void gradient_relu_squared(struct gradient *g, const struct instruction *i, ls_value dy)
{
    gradient_give(g, i->in[0],
                  gradient_emit(g, OP_RELU_SQUARED_GRAD, NULL, 2, (ls_value[]){ i->in[0], dy }, "relu_squared_grad", i->in[0]));
}

void gradient_swiglu(struct gradient *g, const struct instruction *i, ls_value dy)
{
    struct value v = *program_value(g->p, i->in[0]);
    ls_value out[2] = { program_new_value(g->p, "swiglu_dgate", v.dtype, v.ndim, v.size),
                        program_new_value(g->p, "swiglu_dup", v.dtype, v.ndim, v.size) };

    program_emit(g->p, OP_SWIGLU_GRAD, NULL, 3, (ls_value[]){ i->in[0], i->in[1], dy }, 2, out);
    gradient_give(g, i->in[0], out[0]);
    gradient_give(g, i->in[1], out[1]);
}

void gradient_dropout(struct gradient *g, const struct instruction *i, ls_value dy)
{
    gradient_give(g, i->in[0], gradient_emit(g, OP_DROPOUT, &i->attr, 2, (ls_value[]){ dy, i->in[1] }, "dropout_grad", i->in[0]));
}

/* ---- rows ---- */

void gradient_softmax(struct gradient *g, const struct instruction *i, ls_value dy)
{
    gradient_give(g, i->in[0], gradient_emit(g, OP_SOFTMAX_GRAD, NULL, 2, (ls_value[]){ i->out[0], dy }, "softmax_grad", i->in[0]));
}

void gradient_layer_norm(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value x = i->in[0], mean = i->out[1], rstd = i->out[2];

    gradient_accumulate(g, OP_LAYER_NORM_DW, NULL, 4, (ls_value[]){ dy, x, mean, rstd }, 2, &i->in[1]);
    if (gradient_needs(g, x))
        gradient_give(g, x,
                      gradient_emit(g, OP_LAYER_NORM_DX, &i->attr, 5, (ls_value[]){ dy, x, i->in[1], mean, rstd }, "layer_norm_dx", x));
}

void gradient_rms_norm(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value x = i->in[0], rstd = i->out[1];

    gradient_accumulate(g, OP_RMS_NORM_DW, NULL, 3, (ls_value[]){ dy, x, rstd }, 1, &i->in[1]);
    if (gradient_needs(g, x))
        gradient_give(g, x, gradient_emit(g, OP_RMS_NORM_DX, &i->attr, 4, (ls_value[]){ dy, x, i->in[1], rstd }, "rms_norm_dx", x));
}

/* ---- tokens and attention ---- */

void gradient_embedding(struct gradient *g, const struct instruction *i, ls_value dy)
{
    gradient_accumulate(g, OP_EMBEDDING_DW, &i->attr, 2, (ls_value[]){ dy, i->in[0] }, 1, &i->in[1]);
}

void gradient_rope(struct gradient *g, const struct instruction *i, ls_value dy)
{
    struct op_attr attr = { .rotate = { !i->attr.rotate.inverse } };

    gradient_give(g, i->in[0], gradient_emit(g, OP_ROPE, &attr, 2, (ls_value[]){ dy, i->in[1] }, "rope_grad", i->in[0]));
}

static void attention_gradient(struct gradient *g, const struct instruction *i, ls_value dy, int op)
{
    ls_value step = i->nin > 4 ? i->in[4] : LS_NONE, in[] = { i->in[0], i->in[1], i->in[2], i->out[0], i->out[1], dy, step }, out[3];
    static const char *const names[] = { "attention_dq", "attention_dk", "attention_dv" };

    if (i->in[3].id) {
        program_fail(g->p, "attention with a length has no gradient: caches are for generation");
        return;
    }
    for (int k = 0; k < 3; k++) {
        struct value v = *program_value(g->p, in[k]);

        out[k] = program_new_value(g->p, names[k], v.dtype, v.ndim, v.size);
    }
    struct instruction *made = program_append(g->p, op, &i->attr, step.id ? 7 : 6, in, 3, out);
    go_over(made, i);
    for (int k = 0; k < 3; k++) gradient_give(g, in[k], out[k]);
}

void gradient_attention(struct gradient *g, const struct instruction *i, ls_value dy) { attention_gradient(g, i, dy, OP_ATTENTION_GRAD); }

void gradient_ring_attention(struct gradient *g, const struct instruction *i, ls_value dy)
{
    attention_gradient(g, i, dy, OP_RING_ATTENTION_GRAD);
}

/* ---- shapes ---- */

void gradient_copy(struct gradient *g, const struct instruction *i, ls_value dy)
{
    gradient_give(g, i->in[0], ls_cast(g->p, dy, program_value(g->p, i->in[0])->dtype));
}

void gradient_concat(struct gradient *g, const struct instruction *i, ls_value dy)
{
    size_t at = 0;
    int dim = i->attr.concat.dim;

    for (int k = 0; k < i->nin; k++) {
        size_t n = program_value(g->p, i->in[k])->size[dim];

        if (gradient_needs(g, i->in[k])) gradient_give(g, i->in[k], ls_slice(g->p, dy, dim, at, at + n));
        at += n;
    }
}

void gradient_reduce_sum(struct gradient *g, const struct instruction *i, ls_value dy)
{
    struct value v = *program_value(g->p, i->in[0]);

    gradient_give(g, i->in[0], program_expand(g->p, dy, i->attr.reduce.dim, v.ndim, v.size));
}

void gradient_view(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value x = i->in[0];
    struct value v = *program_value(g->p, x);
    const struct view_rule *view = instruction_view(i);
    struct op_attr attr = { .pad = { view->dim0, view->begin } };

    switch (view->kind) {
    case VIEW_RESHAPE: gradient_give(g, x, ls_reshape(g->p, dy, v.ndim, v.size)); break;
    case VIEW_TRANSPOSE: gradient_give(g, x, ls_transpose(g->p, dy, view->dim0, view->dim1)); break;
    case VIEW_SLICE:
        dy = ls_contiguous(g->p, dy);
        gradient_give(g, x, gradient_emit(g, OP_PAD, &attr, 1, &dy, "pad", x));
        break;
    case VIEW_EXPAND: program_fail(g->p, "expand: it has no gradient rule"); break;
    case VIEW_STOP: break;
    }
}
