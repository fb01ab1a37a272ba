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

/* The rules that the rows of op_list.h and ir.h name: most are in gradient.c, those of images in gradient_image.c, of experts in
 * ops_experts.c, of moves in redistribute.c and shuffle.c. gradient_none is no function: op_info.c makes NULL of it. */
#define GRADIENT_RULE(id, name, shapes, inplace, rule, ...) gradient_rule_fn gradient_##rule;
OP_MAP(GRADIENT_RULE)
#undef GRADIENT_RULE

#endif
