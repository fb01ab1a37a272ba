/* parity_bounds.h - how far the results of two layouts may differ after one step from equal weights.
 *
 * Rounding errors are modeled as independent with mean zero (Higham & Mary, A new approach to probabilistic rounding error analysis, SIAM
 * J. Sci. Comput. 41(5), 2019), and squares of relative errors are averaged:
 *   one rounding     h u^2 with unit roundoff u: uniform in +-u of the power of two below the value, whose leading digits follow
 *                    Benford's law: h = 1/3 * 3/(8 ln 2) = 0.180
 *   a sum of n       its terms have either sign, so it grows as sqrt(k), and it is rounded n times: h u^2 n / 2
 *   in sequence      the squares of the errors add up, because each operation reads values that already have an error
 *   in parallel      x + f(x) + g(x) ..: the squares are averaged, weighted by the squares of the parts. In a residual stream of K branches
 *                    of similar size each branch reads what all previous ones wrote, so an error of F in each becomes
 *                    F (1 + 1/2 + .. + 1/K), the logarithm of the depth. This holds forward and again backward.
 * Both sides have errors of this size, so their difference has
 *     E^2 = 2 (h u^2 N / 2 + h w^2 R + h r^2 D)
 * N: the lengths of the sums from the tokens to the loss and back, plus the length of a weight gradient's sum over all tokens. R: the
 * number of tensors on that path that are rounded to the compute type, with roundoff w (TF32's with precision.tf32). D: the number of
 * contributions that are rounded to precision.reduce, or to precision.grads as they are added to a gradient, with roundoff r.
 *
 * Three errors are compared with E: the root mean square of a gradient's error must be at most 2 E times the gradient's root mean square;
 * its largest error at most 4 E times the largest element; the loss's error at most 4 E of the loss, whose E is that of an average over
 * tokens. A gradient that is only rounding has no scale of its own: if the scale is smaller than a quarter of the root mean square of all
 * parameters' gradients, that quarter is used instead (gradients of queries and keys are commonly that small; with a twentieth, such
 * gradients become the ones nearest to their bounds). For a weight whose product is normalized (Qwen3's queries and keys) that least scale
 * is larger, because the norm's gradient is divided by the root mean square of its inputs, which for inputs of size 1 is that of the weight
 * times the square root of their number. Without that division 2 of 252 gradients of queries and keys of small random Qwen3 models had
 * errors of 2.5 and 4.2 E; with it 2.0 E at most, a median of 0.54 E.
 *
 * Sums have a fixed order for given shapes and threads. So layouts that differ only in how they distribute micro-batches of equal size
 * (dp, zero, accumulation, pipelines; f32, no experts, the same kernels) compute bitwise equal gradients of each micro-batch. Then N
 * contains only the lengths of the sums over tokens and over micro-batches. The sizes must be equal because kernels choose the order of a
 * sum by shapes: gradients from micro-batches of 8 tokens and from one of 24 differed by 3 times what the sums over tokens explain.
 *
 * Errors between correct layouts (f32, 135,300 gradients of 1,000 random pairs, E from 0.6e-6 to 1.4e-6): root mean squares up to 0.72 E,
 * largest elements up to 1.27 E, which was 1.0e-6 of the tensor's largest element: a bound of 1e-6 on single elements would report rounding
 * as a difference. At initialization errors stay below E, because branches are smaller than the stream that they are added to; with trained
 * weights they may be larger. A single contribution rounded to bf16 (precision.reduce) has an error of up to 2^-8 = 3.9e-3.
 */
#ifndef LS_TRAIN_PARITY_PARITY_BOUNDS_H
#define LS_TRAIN_PARITY_PARITY_BOUNDS_H

#include "train/task/task.h"

enum { PARITY_FLOOR = 4 }; /* the least scale of a gradient is the root mean square of all parameters' gradients / PARITY_FLOOR */

struct parity_bounds {
    double loss;           /* relative */
    double norm;           /* relative, between a side's norm and the norm of its own gradients */
    double mean, most;     /* bounds of a gradient's root mean square error and largest error: see above */
    double statistic;      /* bound of the largest error of a running statistic */
    double weight_unit[2]; /* unit roundoff of the type of the weights, for a and b */
    bool has_model;        /* a language model: */
    ls_model model;        /* the model of both sides */
    ls_optimizer optimizer;
    double lr;
};

/* The longest chain of operations in a step. */
struct parity_chain {
    double forward, backward; /* total length of the sums */
    double rounded;           /* tensors between the operations of forward, which are rounded to the compute type */
    double terms;             /* length of a weight gradient's sum */
    double targets;           /* number of targets, whose losses are averaged */
    double classes;           /* number of classes, over which a target's loss sums exponentials */
    double uses;              /* the largest number of uses of a weight: 2 for a tied embedding */
};
/* 1 + 1/2 + .. + 1/k: how errors grow in a residual stream of k branches. */
double parity_through(double k);

/* b NULL: a layout that is not known, with a's model. LS_EINVAL if a's or b's model is refused. */
ls_status parity_bounds_of(const struct config *a, const struct config *b, struct parity_bounds *out);

#endif
