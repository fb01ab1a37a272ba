/* task_image.c - small images that are drawn by number, classified by a residual network. */
#include "train/task/task.h"

#include <stdio.h>
#include "base/base.h"
#include "train/run/evaluate_saved.h"
#include "train/parity/parity_bounds.h"

enum { TRAIN_IMAGES = 10000, VALIDATION_IMAGES = 1000 };

static const struct task_idle idle[] = {
    { "model.activation", "image models use ReLU" },
    { "model.dropout", "image models have no dropout" },
    { "model.attention_dropout", "image models have no attention" },
    { "model.vocab", "an image model has classes" },
    { "model.*", "the image presets have their own shape" },
    { "data.seq_len", "an image model has no sequences" },
    { "data.tokenizer", "an image model has no tokens" },
    { "data.val_fraction", "image models have separate pictures for validation" },
    { NULL, NULL },
};

/* ---- the model ---- */

static void image_list_presets(struct text *out)
{
    text_put(out, "%-14s %8s %9s %7s %15s\n", "image model", "pictures", "channels", "classes", "parameters");
    for (int i = 0; ls_image_preset_name(i); i++) {
        char count[32], size[48];
        ls_image_model m;

        if (ls_image_preset(ls_image_preset_name(i), &m) != LS_OK) continue;
        snprintf(size, sizeof size, "%zux%zu", m.height, m.width);
        text_put(out, "%-14s %8s %9zu %7zu %15s\n", ls_image_preset_name(i), size, m.channels, m.classes,
                 text_count(count, (int64_t)ls_image_parameters(&m)));
    }
}

static ls_status image_model(const struct config *c, size_t vocab, struct task_model *out)
{
    struct task_model m = { .task = &task_image, .drawn = LS_IMAGES_DEFAULTS };

    (void)vocab;
    LS_TRY(ls_image_preset(c->model.preset, &m.image));
    m.drawn.channels = m.image.channels;
    m.drawn.height = m.image.height;
    m.drawn.width = m.image.width;
    m.drawn.classes = m.image.classes;
    m.drawn.seed = (uint64_t)c->train.seed;
    m.drawn.samples = TRAIN_IMAGES;
    m.drawn.shuffle = c->data.shuffle;
    *out = m;
    return LS_OK;
}

static ls_status image_saved_model(const struct config *c, const char *path, const ls_model *described, struct task_model *out)
{
    if (!described) return image_model(c, 0, out);
    return ls_fail(LS_EFORMAT, "%s holds a language model, but model.preset=%s names an image model", path, c->model.preset);
}

static size_t image_parameters(const struct task_model *m) { return ls_image_parameters(&m->image); }

static void image_describe(const struct task_model *m, bool brief, char out[TASK_TEXT])
{
    const ls_image_model *i = &m->image;
    int n = snprintf(out, TASK_TEXT, "residual network, %zu stages of %zu blocks", i->stages, i->blocks);

    if (!brief) snprintf(out + n, (size_t)(TASK_TEXT - n), ", %zu filters, %zu classes", i->filters, i->classes);
}

/* Weight gradients are sums over positions and samples, one image after another; batch norms sum in double. */
static struct parity_chain image_chain(const struct task_model *model, double seq_len, double samples)
{
    const ls_image_model *m = &model->image;
    double filters = (double)m->filters, in = filters, blocks = (double)(m->stages * m->blocks), depth = parity_through(blocks);
    struct parity_chain c = { .rounded = 6 * depth + 3,
                              .terms = (double)(m->height * m->width) + samples,
                              .targets = samples,
                              .classes = (double)m->classes,
                              .uses = 1 };

    (void)seq_len;
    for (size_t s = 0; s < m->stages; s++, filters *= 2)
        for (size_t b = 0; b < m->blocks; b++, in = filters) {
            c.forward += 9 * (in + filters) * depth / blocks;
            c.backward += 18 * filters * depth / blocks;
        }
    c.forward += 9 * (double)m->channels + in;
    c.backward += (double)m->classes + (double)(m->height * m->width); /* the features are means over positions */
    return c;
}

/* ---- the step ---- */

static ls_value image_loss(ls_program *p, const struct task_model *m, const struct task_inputs *in, bool training)
{
    size_t size[4] = { in->batch, m->image.channels, m->image.height, m->image.width };
    ls_value images = ls_cast(p, ls_input(p, "images", LS_F32, 4, size), ls_store_settings(ls_program_store(p)).type);

    return ls_image_loss(p, &m->image, images, ls_reshape(p, in->targets, 1, &in->batch), in->denominator, training);
}

static ls_status image_feed(const struct feed *f, ls_program *p, const struct micro_batch *m)
{
    return feed_put(p, "images", m->input, LS_F32, f->batch * f->values);
}

static size_t image_values(const struct task_model *m, size_t seq_len)
{
    (void)seq_len;
    return m->image.channels * m->image.height * m->image.width;
}

/* As the program counts them, per sample. */
static double image_flops(const struct step *s) { return ls_program_cost(s->program).model_flops / (double)s->batch * (double)s->global; }

static void image_draw(struct step *s, uint64_t first)
{
    size_t values = image_values(&s->model, 1);
    float *pixels = s->inputs;

    for (size_t row = 0; row < s->accumulate * s->batch; row++)
        ls_images_get(&s->model.drawn, first + s->begin + row, pixels + row * values, &s->targets[row]);
}

/* ---- data ---- */

static ls_status image_open_data(const struct config *c, const char *saved_tokenizer, struct dataset *out)
{
    struct task_model m;

    (void)saved_tokenizer;
    LS_TRY(image_model(c, 0, &m));
    const ls_images *i = &m.drawn;
    *out = (struct dataset){ 0 };
    snprintf(out->what, sizeof out->what, "%llu drawn pictures %zux%zux%zu of %zu classes, seed %llu%s", (unsigned long long)i->samples,
             i->channels, i->height, i->width, i->classes, (unsigned long long)i->seed, i->shuffle ? ", shuffled" : "");
    return LS_OK;
}

static struct task_samples image_validation(const struct task_model *m)
{
    struct task_samples s = { VALIDATION_IMAGES, .drawn = m->drawn };

    s.drawn.first = TRAIN_IMAGES;
    s.drawn.samples = VALIDATION_IMAGES;
    s.drawn.shuffle = false;
    return s;
}

static ls_status image_open_samples(const struct config *c, const struct dataset *d, const struct task_model *m, bool validation,
                                    struct task_samples *out)
{
    struct task_samples train = { m->drawn.samples, .drawn = m->drawn }, none = { 0 };

    (void)d;
    if (validation)
        *out = c->data.val_fraction > 0 ? image_validation(m) : none;
    else
        *out = train;
    return LS_OK;
}

static ls_status image_get_sample(const struct task_samples *s, uint64_t index, void *input, int32_t *targets)
{
    ls_images_get(&s->drawn, index, input, targets);
    return LS_OK;
}

static ls_status image_open_saved(const struct config *c, const char *path, const struct task_model *m, struct task_saved *out)
{
    (void)c;
    (void)path;
    out->samples = image_validation(m);
    return LS_OK;
}

static ls_status image_evaluated(const struct task_saved *s, const struct evaluation *e, struct evaluated *out)
{
    (void)s;
    snprintf(out->data, sizeof out->data, "%zu drawn pictures", e->samples);
    return LS_OK;
}

const struct task task_image = {
    .name = "image",
    .unit = "picture",
    .units = "pictures",
    .unit_short = "pic",
    .values = "values",
    .drawn = true,
    .batch_norm = true,
    .relu = true,
    .idle = idle,
    .preset = ls_image_preset_name,
    .list_presets = image_list_presets,
    .model = image_model,
    .saved_model = image_saved_model,
    .parameters = image_parameters,
    .describe = image_describe,
    .chain = image_chain,
    .loss = image_loss,
    .feed = image_feed,
    .sample_values = image_values,
    .flops = image_flops,
    .draw = image_draw,
    .open_data = image_open_data,
    .open_samples = image_open_samples,
    .get_sample = image_get_sample,
    .open_saved = image_open_saved,
    .evaluated = image_evaluated,
};
