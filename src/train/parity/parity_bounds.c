/* parity_bounds.c - the lengths of a model's sums. */
#include "train/parity/parity_bounds.h"

#include <math.h>
#include <string.h>
#include "base/base.h"

static const double SINGLE = 0x1p-24, HALF = 0x1p-8; /* unit roundoffs of f32 and bf16 */
static const double H = 0.180;                       /* mean square of one rounding, in units of u^2 */
static const double MEAN = 2, MOST = 4;              /* of E: parity_bounds.h */

/* Along the longest chain of a step. */
struct chain {
    double forward, backward; /* lengths of sums */
    double rounded;           /* tensors that are kept between operations, forward */
    double terms;             /* of a weight gradient's sum */
    double targets;           /* whose losses are averaged */
    double classes;           /* whose exponentials are added up for a target's loss */
    double uses;              /* of a weight, at most: a tied embedding has two */
};

/* Of the loss over a sharded vocabulary, which adds up chunks of at least so many rows in f32. */
enum { CHUNK_ROWS = 128, MOST_CHUNKS = 8 };

/* 1 + 1/2 + .. + 1/k: errors through a residual stream of k branches. */
static double through(double k)
{
    double sum = 0;

    for (double i = 1; i <= k; i++) sum += 1 / i;
    return sum;
}

/* What norms of heads add to the tensors that a branch keeps, on average over the two branches of a layer. The normed q or k is one more.
 * What was rounded before it (the block's norm, q itself) counts relative to a head's root mean square, which gradients are divided by once
 * more: of heads of D normal elements the mean of 1 / rms^4 is D / (D - 4) times that of 1 / rms^2. Below D = 6 there is no such mean. */
static double head_norm_rounded(const ls_model *m)
{
    double head = fmax((double)m->head_size, 6);

    return ls_architecture_family(m->architecture)->head_norms ? (1 + 2 * (head / (head - 4) - 1)) / 2 : 0;
}

static struct chain language_chain(const ls_model *m, double seq_len, double samples)
{
    double width = (double)m->width, heads = (double)(m->heads * m->head_size), kv = (double)(m->kv_heads * m->head_size);
    double ffn = (double)(m->experts ? m->expert_ffn : m->ffn), head = (double)m->head_size, vocab = (double)m->vocab;
    double router = m->experts ? width + (double)m->experts : 0, depth = through(2 * (double)m->layers);
    /* norm, q, scores, softmax, values, projection; norm, up, down */
    double attention = 2 * width + head + 2 * seq_len + heads, mlp = 2 * width + ffn + router;
    /* projection, values and softmax, q and k, the three projections, norm; down, up, norm */
    double attention_back = width + 2 * head + 2 * seq_len + heads + 2 * kv + width, mlp_back = 2 * width + ffn + router;

    return (struct chain){ .forward = depth * (attention + mlp) / 2 + 2 * width,
                           .backward = depth * (attention_back + mlp_back) / 2 + vocab + width,
                           .rounded = depth * (6 + head_norm_rounded(m)) + 2,
                           .terms = samples * seq_len,
                           .targets = samples * seq_len,
                           .classes = vocab,
                           .uses = m->tied ? 2 : 1 };
}

/* Sums over places and samples are those of the weights' gradients, an image after another; batch norms sum in double. */
static struct chain image_chain(const ls_image_model *m, double samples)
{
    double filters = (double)m->filters, in = filters, blocks = (double)(m->stages * m->blocks), depth = through(blocks);
    struct chain c = { .rounded = 6 * depth + 3,
                       .terms = (double)(m->height * m->width) + samples,
                       .targets = samples,
                       .classes = (double)m->classes,
                       .uses = 1 };

    for (size_t s = 0; s < m->stages; s++, filters *= 2)
        for (size_t b = 0; b < m->blocks; b++, in = filters) {
            c.forward += 9 * (in + filters) * depth / blocks;
            c.backward += 18 * filters * depth / blocks;
        }
    c.forward += 9 * (double)m->channels + in;
    c.backward += (double)m->classes + (double)(m->height * m->width); /* the features are means of places */
    return c;
}

static ls_status chain_of(const struct config *c, struct chain *out)
{
    ls_image_model image;
    ls_model model;

    if (config_image(c, &image)) {
        *out = image_chain(&image, (double)c->train.global_batch);
        return LS_OK;
    }
    LS_TRY(config_model(c, 0, &model));
    *out = language_chain(&model, (double)c->data.seq_len, (double)c->train.global_batch);
    return LS_OK;
}

/* E^2 of one side. */
static double error_of(const struct config *c, double sums, double rounded, double added)
{
    double w = config_type(c) != LS_F32 ? HALF : 0, r = c->precision.reduce ? HALF : w;

    return H * (SINGLE * SINGLE * sums / 2 + w * w * rounded + r * r * added);
}

/* The loss's length of sums. A target's: logits, a sum of exponentials (of one sign: 2/3 of the length counts) and four roundings; these
 * errors are averaged over the targets. Targets are added up in double: a rounding to f32 for each chunk and one at the end remain. */
static double loss_sums(const struct chain *n)
{
    double chunks = fmin(fmax(n->targets / CHUNK_ROWS, 1), MOST_CHUNKS);

    return (n->forward + n->classes / 1.5 + 8) / n->targets + chunks / 1.5 + 2;
}

/* How many threads a rank computes with, as far as it is the same on both sides. */
static bool has_same_threads(const struct config *a, const struct config *b)
{
    return a->launch.threads == b->launch.threads && (a->launch.threads > 0 || a->launch.ranks == b->launch.ranks);
}

static bool has_whole_samples(const struct config *c)
{
    ls_image_model image;
    ls_model model;

    return c->parallel.tp == 1 && c->parallel.cp == 1 && c->parallel.ep == 1 && config_type(c) == LS_F32 && !config_image(c, &image) &&
           config_model(c, 0, &model) == LS_OK && model.experts == 0;
}

static bool has_full_micro_batches(const struct config *c)
{
    return c->parallel.dp * c->train.accumulate * c->train.micro_batch == c->train.global_batch;
}

/* Both compute the gradients of the same micro-batches by the same kernels on the same shapes. */
static bool has_same_micro_batches(const struct config *a, const struct config *b)
{
    return has_whole_samples(a) && has_whole_samples(b) && has_full_micro_batches(a) && has_full_micro_batches(b) &&
           a->train.micro_batch == b->train.micro_batch && a->data.seq_len == b->data.seq_len && a->run.isa == b->run.isa &&
           has_same_threads(a, b) && strcmp(a->recompute.mode, b->recompute.mode) == 0;
}

static double gradient_sums(const struct config *c, const struct chain *n, bool same_micro_batches)
{
    if (!same_micro_batches) return n->forward + n->backward + n->terms;
    return n->uses * (n->terms + ceil((double)c->train.global_batch / (double)c->train.micro_batch));
}

static ls_status add_side(const struct config *c, int which, bool same_micro_batches, double *loss, double *gradient,
                          struct parity_bounds *out)
{
    struct chain n;

    LS_TRY(chain_of(c, &n));
    double added = c->precision.reduce ? (double)c->launch.ranks : 0;

    *gradient += error_of(c, gradient_sums(c, &n, same_micro_batches), 2 * n.rounded, added);
    *loss += error_of(c, loss_sums(&n), n.rounded / n.targets, 0);
    out->weight_unit[which] = config_type(c) != LS_F32 && !c->precision.master ? HALF : SINGLE;
    return LS_OK;
}

ls_status parity_bounds_of(const struct config *a, const struct config *b, struct parity_bounds *out)
{
    struct parity_bounds bounds = { .norm = 8 * SINGLE, .optimizer = config_optimizer(a), .lr = a->optim.lr };
    double loss = 0, gradient = 0;
    bool same = b && has_same_micro_batches(a, b);

    LS_TRY(add_side(a, 0, same, &loss, &gradient, &bounds));
    LS_TRY(add_side(b ? b : a, 1, same, &loss, &gradient, &bounds));
    bounds.loss = MOST * sqrt(loss);
    bounds.mean = MEAN * sqrt(gradient);
    bounds.most = MOST * sqrt(gradient);
    bounds.statistic = bounds.most;
    *out = bounds;
    return LS_OK;
}
