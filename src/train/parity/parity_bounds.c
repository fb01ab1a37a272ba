/* parity_bounds.c - computes the bounds of parity_bounds.h from the lengths of a model's sums. */
#include "train/parity/parity_bounds.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "device/device.h"

static const double SINGLE = 0x1p-24, HALF = 0x1p-8, TF32 = 0x1p-11; /* unit roundoffs of f32, bf16 and TF32 */
static const double H = 0.180;                                       /* mean square of one rounding, in units of u^2 */
static const double MEAN = 2, MOST = 4;                              /* factors of E: parity_bounds.h */

/* The loss over a sharded vocabulary adds up at most MOST_CHUNKS chunks of at least CHUNK_ROWS rows in f32. */
enum { CHUNK_ROWS = 128, MOST_CHUNKS = 8 };

/* The output projection adds to its weight gradient in at most this many chunks of rows. */
enum { GRADIENT_CHUNKS = 16 };

double parity_through(double k)
{
    double sum = 0;

    for (double i = 1; i <= k; i++) sum += 1 / i;
    return sum;
}

static ls_status chain_of(const struct config *c, struct parity_chain *out)
{
    struct task_model m;

    LS_TRY(task_model_of(c, 0, &m));
    *out = m.task->chain(&m, (double)task_length(m.task, c), (double)c->train.global_batch);
    return LS_OK;
}

/* The share of one side in E^2. */
static double error_of(const struct config *c, double sums, double rounded, double added)
{
    double half = config_type(c) != LS_F32 ? HALF : 0, r = c->precision.reduce || c->precision.grads ? HALF : half;
    double w = c->precision.tf32 ? TF32 : half; /* matmuls round their operands */

    return H * (SINGLE * SINGLE * sums / 2 + w * w * rounded + r * r * added);
}

/* The length of the loss's sums. A target's loss consists of its logits, a sum of exponentials (of one sign, so 2/3 of the length counts)
 * and four roundings; its errors are averaged over the targets. Targets are summed in double, with one rounding to f32 per chunk and one at
 * the end. */
static double loss_sums(const struct parity_chain *n)
{
    double chunks = fmin(fmax(n->targets / CHUNK_ROWS, 1), MOST_CHUNKS);

    return (n->forward + n->classes / 1.5 + 8) / n->targets + chunks / 1.5 + 2;
}

/* True if a rank computes with the same number of threads on both sides, as far as the options show. */
static bool has_same_threads(const struct config *a, const struct config *b)
{
    return a->launch.threads == b->launch.threads && (a->launch.threads > 0 || a->launch.ranks == b->launch.ranks);
}

static bool has_full_samples(const struct config *c)
{
    struct task_model m;

    return c->parallel.tp == 1 && c->parallel.cp == 1 && c->parallel.ep == 1 && config_type(c) == LS_F32 &&
           task_model_of(c, 0, &m) == LS_OK && !m.task->batch_norm && m.transformer.experts == 0;
}

static bool has_full_micro_batches(const struct config *c)
{
    return c->parallel.dp * c->train.accumulate * c->train.micro_batch == c->train.global_batch;
}

/* True if both sides' devices run the same rows of the kernel table. */
static bool has_same_kernels(const struct config *a, const struct config *b)
{
    if (a->run.isa != b->run.isa || a->run.tune_matmuls != b->run.tune_matmuls || a->run.cudnn != b->run.cudnn) return false;
    if (strcmp(config_device(a), config_device(b)) == 0) return true;
    const struct device *of_a = device_find(config_device(a));
    const struct device *of_b = device_find(config_device(b));
    return of_a && of_b && strcmp(of_a->kernels, of_b->kernels) == 0;
}

/* True if both sides compute the gradients of the same micro-batches by the same kernels on the same shapes. */
static bool has_same_micro_batches(const struct config *a, const struct config *b)
{
    return has_full_samples(a) && has_full_samples(b) && has_full_micro_batches(a) && has_full_micro_batches(b) &&
           a->train.micro_batch == b->train.micro_batch && a->data.seq_len == b->data.seq_len && has_same_kernels(a, b) &&
           has_same_threads(a, b) && strcmp(a->recompute.mode, b->recompute.mode) == 0;
}

static double gradient_sums(const struct config *c, const struct parity_chain *n, bool same_micro_batches)
{
    if (!same_micro_batches) return n->forward + n->backward + n->terms;
    return n->uses * (n->terms + ceil((double)c->train.global_batch / (double)c->train.micro_batch));
}

/* How far an updated weight may be off: a half type by half a unit in its last place if it is rounded to nearest, else by a whole one. */
static double weight_unit(const struct config *c)
{
    if (config_type(c) == LS_F32 || c->precision.master) return SINGLE;
    return c->precision.stochastic_rounding ? 2 * HALF : HALF;
}

static ls_status add_side(const struct config *c, int which, bool same_micro_batches, double *loss, double *gradient,
                          struct parity_bounds *out)
{
    struct parity_chain n;

    LS_TRY(chain_of(c, &n));
    double added = c->precision.reduce || c->precision.grads ? (double)c->launch.ranks : 0;

    if (c->precision.grads) added += (n.uses + GRADIENT_CHUNKS) * (double)c->train.accumulate;

    *gradient += error_of(c, gradient_sums(c, &n, same_micro_batches), 2 * n.rounded, added);
    *loss += error_of(c, loss_sums(&n), n.rounded / n.targets, 0);
    out->weight_unit[which] = weight_unit(c);
    return LS_OK;
}

ls_status parity_bounds_of(const struct config *a, const struct config *b, struct parity_bounds *out)
{
    struct parity_bounds bounds = { .norm = 8 * SINGLE, .optimizer = config_optimizer(a), .lr = a->optim.lr };
    double loss = 0, gradient = 0;
    bool same = b && has_same_micro_batches(a, b);
    struct task_model model;

    LS_TRY(task_model_of(a, 0, &model));
    bounds.has_model = model.task->transformer;
    bounds.model = model.transformer;
    LS_TRY(add_side(a, 0, same, &loss, &gradient, &bounds));
    LS_TRY(add_side(b ? b : a, 1, same, &loss, &gradient, &bounds));
    bounds.loss = MOST * sqrt(loss);
    bounds.mean = MEAN * sqrt(gradient);
    bounds.most = MOST * sqrt(gradient);
    bounds.statistic = bounds.most;
    *out = bounds;
    return LS_OK;
}
