/* gradient.h - what gradient rules use; most rules are in gradient.c, the pass is in gradient_pass.c. */
#ifndef LS_PASSES_GRADIENT_H
#define LS_PASSES_GRADIENT_H

#include "ir/program.h"

struct gradient {
    ls_program *p;
    bool *needed;   /* by value id: a gradient is needed */
    ls_value *grad; /* by value id: the gradient accumulated so far */
    int n;          /* the number of values when the pass began; later ones need no gradient */
};

/* Computes the gradients of i's operands from dy, the gradient of out[0]. */
typedef void gradient_rule_fn(struct gradient *g, const struct instruction *i, ls_value dy);

bool gradient_needs(const struct gradient *g, ls_value x);
/* Adds dx to x's gradient; does nothing if x needs none. */
void gradient_give(struct gradient *g, ls_value x, ls_value dx);
/* Emits an op whose one output has the shape and type of `like`. */
ls_value gradient_emit(struct gradient *g, enum op op, const struct op_attr *attr, int nin, const ls_value *in, const char *what,
                       ls_value like);
/* Emits a "+=" kernel that adds to the gradients of up to two values, x[nout]: a weight gradient, unless one of them is not a parameter and
 * its gradient is propagated further. */
void gradient_accumulate(struct gradient *g, enum op op, const struct op_attr *attr, int nin, const ls_value *in, int nout,
                         const ls_value *x);

/* The rules; the table of ops refers to them. */
gradient_rule_fn gradient_linear, gradient_matmul, gradient_linear_xent, gradient_vocab_xent, gradient_mse, gradient_add, gradient_mul,
    gradient_scale, gradient_unary, gradient_relu_squared, gradient_swiglu, gradient_dropout, gradient_softmax, gradient_layer_norm,
    gradient_rms_norm, gradient_embedding, gradient_rope, gradient_attention, gradient_ring_attention, gradient_copy, gradient_concat,
    gradient_reduce_sum, gradient_view;
gradient_rule_fn gradient_conv2d, gradient_max_pool2d, gradient_avg_pool2d, gradient_batch_norm; /* gradient_image.c */
gradient_rule_fn gradient_route, gradient_router_loss, gradient_rows_permute, gradient_rows_unpermute,
    gradient_grouped_linear;       /* ops_experts.c */
gradient_rule_fn gradient_move;    /* redistribute.c */
gradient_rule_fn gradient_shuffle; /* shuffle.c */

#endif
