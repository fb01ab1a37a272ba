/* parity_bounds.h - how far two layouts may differ in one step from equal weights.
 *
 * Rounding errors are taken as independent with mean zero (Higham & Mary, A new approach to probabilistic rounding error analysis, SIAM
 * J. Sci. Comput. 41(5), 2019), and squares of relative errors are averaged:
 *   one rounding     h u^2, u the unit roundoff: uniform in +-u of the power of two below the value, whose leading digits follow Benford's
 *                    law: h = 1/3 * 3/(8 ln 2) = 0.180
 *   a sum of n       of either sign grows as sqrt(k) on its way, and is rounded n times: h u^2 n / 2
 *   one after another    add up: what a sum reads is off already
 *   side by side     x + f(x) + g(x) ..: the parts' squares are averaged, weighted by their own. In a residual stream of K branches of like
 *                    size each reads what all before it wrote, so an error of F in each becomes F (1 + 1/2 + .. + 1/K): the logarithm of
 *                    the depth. Forward through the layers and back again.
 * Both sides err alike, so their difference has
 *     E^2 = 2 (h u^2 N / 2 + h w^2 R + h r^2 D)
 * N: the lengths of the sums from the tokens to the loss and back, and that of a weight's gradient over all tokens; R: tensors on that way
 * that are rounded to the compute type, of roundoff w; D: contributions rounded to precision.reduce, of roundoff r.
 *
 * Held against it: the root mean square of a gradient's error, to 2 E of the gradient's; its largest element, to 4 E of the
 * largest element; the loss, whose tokens' errors average. A gradient that is zero but for rounding has no scale of its own: where both
 * are smaller, a quarter of the root mean square of the whole gradient takes their place (as far below that as queries' and keys'
 * gradients commonly are; with a twentieth, such gradients begin to be the ones nearest to their bounds).
 *
 * Sums have a fixed order for given shapes and threads. So layouts that differ only in how they share micro-batches of equal size (dp,
 * zero, accumulation, pipelines; f32, no experts) compute the same bits up to the gradients of a micro-batch. Then N is only the lengths
 * of the sums over tokens and over micro-batches. Equal sizes matter: kernels choose the order of a sum by shapes, and micro-batches of 8
 * tokens against one of 24 differed by 3 times what the sums over tokens account for.
 *
 * How near other right layouts come (f32, 135,300 gradients of 1,000 random pairs, E 0.6e-6 to 1.4e-6): root mean squares to 0.72 E,
 * largest elements to 1.27 E. The latter was 1.0e-6 of the tensor's largest element: a bound of 1e-6 on single elements would take rounding
 * for a difference. E is reached at initialization only in part, because branches are then smaller than the stream that they are added to;
 * trained weights may come nearer. A contribution rounded to bf16 (precision.reduce) is off by up to 2^-8 = 3.9e-3 by itself.
 */
#ifndef LS_TRAIN_PARITY_PARITY_BOUNDS_H
#define LS_TRAIN_PARITY_PARITY_BOUNDS_H

#include "train/task/task.h"

enum { PARITY_FLOOR = 4 }; /* the root mean square of the whole gradient / this is the least scale of a gradient */

struct parity_bounds {
    double loss;           /* relative */
    double norm;           /* relative, of each side to its own gradients */
    double mean, most;     /* of a gradient: see above */
    double statistic;      /* of a running statistic's largest element */
    double weight_unit[2]; /* unit roundoff of the type that keeps the weights, of a and b */
    ls_optimizer optimizer;
    double lr;
};

/* The longest chain of a step's operations. */
struct parity_chain {
    double forward, backward; /* lengths of sums */
    double rounded;           /* tensors that are kept between operations, forward */
    double terms;             /* of a weight gradient's sum */
    double targets;           /* whose losses are averaged */
    double classes;           /* whose exponentials are added up for a target's loss */
    double uses;              /* of a weight, at most: a tied embedding has two */
};
/* 1 + 1/2 + .. + 1/k: errors through a residual stream of k branches. */
double parity_through(double k);

/* b NULL: a layout that is not known, of a's model. LS_EINVAL: a's and b's models are refused by config_model(). */
ls_status parity_bounds_of(const struct config *a, const struct config *b, struct parity_bounds *out);

#endif
