/* gradient_image.c - gradient rules of convolution, pooling and batch norm. */
#include "passes/gradient.h"

#include "base/base.h"

/* db += the sum of dy over samples and positions: first along the positions, then over the rows. */
static void bias(struct gradient *g, ls_value b, ls_value dy)
{
    if (!gradient_needs(g, b)) return;
    struct value v = *program_value(g->p, dy);
    ls_value rows = ls_sum(g->p, ls_reshape(g->p, dy, 3, (size_t[]){ v.size[0], v.size[1], v.size[2] * v.size[3] }), 2);
    gradient_accumulate(g, OP_BIAS_GRAD, NULL, 1, &rows, 1, &b);
}

void gradient_conv2d(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value x = i->in[0], w = i->in[1];

    if (gradient_needs(g, x)) gradient_give(g, x, gradient_emit(g, OP_CONV2D_DX, &i->attr, 2, (ls_value[]){ dy, w }, "conv2d_dx", x));
    gradient_accumulate(g, OP_CONV2D_DW, &i->attr, 2, (ls_value[]){ dy, x }, 1, &w);
    bias(g, i->in[2], dy);
}

void gradient_max_pool2d(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value x = i->in[0];

    gradient_give(g, x, gradient_emit(g, OP_MAX_POOL2D_GRAD, &i->attr, 2, (ls_value[]){ x, dy }, "max_pool2d_grad", x));
}

void gradient_avg_pool2d(struct gradient *g, const struct instruction *i, ls_value dy)
{
    gradient_give(g, i->in[0], gradient_emit(g, OP_AVG_POOL2D_GRAD, &i->attr, 1, &dy, "avg_pool2d_grad", i->in[0]));
}

/* y depends on x directly and through the statistics of all ranks' samples: dx needs the sums of all ranks. dw and db use this rank's sums
 * only, because every parameter's gradient is this rank's contribution. */
void gradient_batch_norm(struct gradient *g, const struct instruction *i, ls_value dy)
{
    ls_value x = i->in[0], stats = i->in[1], w = i->in[2], labels = i->in[4], sums[2];
    size_t n = 2 * program_value(g->p, x)->size[1];

    sums[0] = program_new_value(g->p, "batch_grad_stats", LS_F64, 1, &n);
    sums[1] = program_new_value(g->p, "batch_grad_stats_own", LS_F64, 1, &n);
    program_emit(g->p, OP_BATCH_GRAD_STATS, &i->attr, 3, (ls_value[]){ dy, x, stats }, 2, sums);
    if (!program_ok(g->p)) return;
    if (i->attr.batch.fixed)
        sums[0] = LS_NONE;
    else
        program_value(g->p, sums[0])->place[LS_AXIS_DP].kind = LS_PARTIAL;
    gradient_accumulate(g, OP_BATCH_NORM_DW, NULL, 1, &sums[1], 2, &i->in[2]);
    if (gradient_needs(g, x))
        gradient_give(
            g, x, gradient_emit(g, OP_BATCH_NORM_DX, &i->attr, 6, (ls_value[]){ dy, x, w, stats, sums[0], labels }, "batch_norm_dx", x));
}
