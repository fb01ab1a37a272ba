/* image.c - a residual network for small images (He et al. 2016), with torchvision's basic blocks and names.
 *
 *   stem            x = relu(bn1(conv1(x))), 3 x 3, stride 1, no pooling: images are small
 *   layerS.I        x = relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)); the first of stage S > 1 has stride 2
 *   shortcut        x itself, or downsample.1(downsample.0(x)), 1 x 1, where the shape changes
 *   logits          fc(mean of x over the pixels)
 *
 * Convolutions have no bias. They are initialized normal with deviation sqrt(2 / (O KH KW)), norms with 1 and 0, fc uniform within 1 /
 * sqrt(inputs). The loss appends fc's bias to its weight as one more column, for a feature that is always 1.
 */
#include "lockstep/nn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "ir/builder.h"

enum { PREFIX_BYTES = 64, NAME_BYTES = 2 * PREFIX_BYTES };

static const struct {
    const char *name;
    ls_image_model model;
} image_presets[] = {
    { "resnet-tiny",
      { .channels = 3, .height = 16, .width = 16, .filters = 8, .stages = 3, .blocks = 1, .classes = 10, .momentum = 0.1, .eps = 1e-5 } },
    { "resnet-small",
      { .channels = 3, .height = 16, .width = 16, .filters = 16, .stages = 2, .blocks = 2, .classes = 10, .momentum = 0.1, .eps = 1e-5 } },
};

ls_status ls_image_preset(const char *name, ls_image_model *out)
{
    for (size_t i = 0; i < COUNT_OF(image_presets); i++)
        if (strcmp(image_presets[i].name, name) == 0) {
            *out = image_presets[i].model;
            return LS_OK;
        }
    return ls_fail(LS_EINVAL, "unknown image model '%s'; use %s or %s", name, image_presets[0].name, image_presets[1].name);
}

const char *ls_image_preset_name(int i) { return i >= 0 && i < (int)COUNT_OF(image_presets) ? image_presets[i].name : NULL; }

ls_status ls_image_check(const ls_image_model *m)
{
    static const size_t most = 65536;
    const struct {
        const char *name;
        size_t value;
    } sizes[] = {
        { "channels", m->channels }, { "height", m->height }, { "width", m->width },     { "filters", m->filters },
        { "stages", m->stages },     { "blocks", m->blocks }, { "classes", m->classes },
    };

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        if (sizes[i].value == 0 || sizes[i].value > most)
            return ls_fail(LS_EINVAL, "image model: %s is %zu; must be 1 to %zu", sizes[i].name, sizes[i].value, most);
    if (m->stages > 8 || MIN(m->height, m->width) >> (m->stages - 1) == 0)
        return ls_fail(LS_EINVAL,
                       "image model: %zu stages halve images of %zu x %zu %zu times; use at most 8, so that at least one pixel is left",
                       m->stages, m->height, m->width, m->stages - 1);
    if (!(m->eps > 0) || !(m->momentum >= 0 && m->momentum <= 1))
        return ls_fail(LS_EINVAL, "image model: eps %g must be above 0, momentum %g from 0 to 1", m->eps, m->momentum);
    return LS_OK;
}

static size_t filters_of(const ls_image_model *m, size_t stage) { return m->filters << stage; }

size_t ls_image_parameters(const ls_image_model *m)
{
    size_t in = m->filters, n = 9 * m->channels * in + 2 * in;

    for (size_t s = 0; s < m->stages; s++)
        for (size_t i = 0; i < m->blocks; i++) {
            size_t out = filters_of(m, s);

            n += 9 * in * out + 9 * out * out + 4 * out + (in == out ? 0 : in * out + 2 * out);
            in = out;
        }
    return n + m->classes * (in + 1);
}

/* State shared by the parts of a forward pass. */
struct network {
    ls_program *p;
    const ls_image_model *m;
    ls_value labels;
    int training;
};

static ls_value parameter(const struct network *f, const char *prefix, const char *name, ls_init init, int ndim, const size_t *size)
{
    char text[NAME_BYTES];

    snprintf(text, sizeof text, "%s%s", prefix, name);
    return ls_param(f->p, text, init, ndim, size);
}

static ls_value running(const struct network *f, const char *prefix, const char *name, ls_init_kind kind, size_t n)
{
    char text[NAME_BYTES];

    snprintf(text, sizeof text, "%s%s", prefix, name);
    return ls_buffer(f->p, text, (ls_init){ kind, 0 }, 1, &n);
}

/* PREFIXconv.weight [out,C,window,window] and PREFIXbn.*, in this order. */
static ls_value conv_norm(const struct network *f, const char *prefix, const char *conv, const char *bn, ls_value x, size_t out,
                          size_t window, size_t stride)
{
    ls_batch_norm_options o = { f->m->eps, f->m->momentum, f->training };
    ls_init normal = { LS_INIT_NORMAL, sqrt(2.0 / (double)(out * window * window)) };
    size_t shape[4] = { out, ls_value_size(f->p, x, 1), window, window };
    char name[PREFIX_BYTES];

    snprintf(name, sizeof name, "%s.weight", conv);
    x = ls_conv2d(f->p, x, parameter(f, prefix, name, normal, 4, shape), LS_NONE, stride, window / 2);
    snprintf(name, sizeof name, "%s%s.", prefix, bn);
    ls_value w = parameter(f, name, "weight", (ls_init){ LS_INIT_ONES, 0 }, 1, &out);
    ls_value b = parameter(f, name, "bias", (ls_init){ LS_INIT_ZEROS, 0 }, 1, &out);
    ls_value mean = running(f, name, "running_mean", LS_INIT_ZEROS, out);
    ls_value var = running(f, name, "running_var", LS_INIT_ONES, out);
    return ls_batch_norm(f->p, x, w, b, mean, var, f->labels, &o);
}

static ls_value block_forward(const struct network *f, const char *prefix, ls_value x, size_t out, size_t stride)
{
    ls_value y = ls_relu(f->p, conv_norm(f, prefix, "conv1", "bn1", x, out, 3, stride));

    y = conv_norm(f, prefix, "conv2", "bn2", y, out, 3, 1);
    if (stride != 1 || ls_value_size(f->p, x, 1) != out) x = conv_norm(f, prefix, "downsample.0", "downsample.1", x, out, 1, stride);
    return ls_relu(f->p, ls_add(f->p, y, x));
}

static ls_value stage_forward(const struct network *f, size_t stage, ls_value x)
{
    for (size_t i = 0; i < f->m->blocks; i++) {
        char name[PREFIX_BYTES - 1], prefix[PREFIX_BYTES];

        snprintf(name, sizeof name, "layer%zu.%zu", stage + 1, i);
        snprintf(prefix, sizeof prefix, "%s.", name);
        ls_block_begin(f->p, name);
        x = block_forward(f, prefix, x, filters_of(f->m, stage), stage > 0 && i == 0 ? 2 : 1);
        ls_block_end(f->p);
    }
    return x;
}

/* images [B,C,H,W] -> features [B,F] */
static ls_value features(const struct network *f, ls_value x)
{
    ls_status st = ls_image_check(f->m);

    if (st < 0) return program_fail_by(f->p, st);
    if (!x.id) return program_ok(f->p) ? program_fail(f->p, "image model: images is the null value") : LS_NONE;
    if (ls_value_ndim(f->p, x) != 4 || ls_value_size(f->p, x, 1) != f->m->channels || ls_value_size(f->p, x, 2) != f->m->height ||
        ls_value_size(f->p, x, 3) != f->m->width) {
        char shape[96];

        return program_fail(f->p, "image model: images are %s; expected [B,%zu,%zu,%zu]", value_shape(program_value(f->p, x), shape),
                            f->m->channels, f->m->height, f->m->width);
    }
    x = ls_relu(f->p, conv_norm(f, "", "conv1", "bn1", x, f->m->filters, 3, 1));
    for (size_t s = 0; s < f->m->stages; s++) x = stage_forward(f, s, x);
    return ls_global_avg_pool(f->p, x);
}

static void head(const struct network *f, ls_value *w, ls_value *b)
{
    size_t size[2] = { f->m->classes, filters_of(f->m, f->m->stages - 1) };
    ls_init init = { LS_INIT_UNIFORM, 1.0 / sqrt((double)size[1]) };

    *w = ls_param(f->p, "fc.weight", init, 2, size);
    *b = ls_param(f->p, "fc.bias", init, 1, size);
}

ls_value ls_image_loss(ls_program *p, const ls_image_model *m, ls_value images, ls_value labels, ls_value denominator, int training)
{
    struct network f = { p, m, training ? labels : LS_NONE, training };
    ls_value x = features(&f, images), w, b;

    if (!x.id) return LS_NONE;
    head(&f, &w, &b);
    ls_value one = ls_constant(p, ls_value_dtype(p, x), 2, (size_t[]){ ls_value_size(p, x, 0), 1 }, 1.0);
    b = ls_reshape(p, b, 2, (size_t[]){ m->classes, 1 });
    return ls_linear_xent(p, ls_concat(p, 2, (ls_value[]){ x, one }, 1), ls_concat(p, 2, (ls_value[]){ w, b }, 1), labels, denominator);
}

ls_value ls_image_logits(ls_program *p, const ls_image_model *m, ls_value images)
{
    struct network f = { p, m, LS_NONE, 0 };
    ls_value x = features(&f, images), w, b;

    if (!x.id) return LS_NONE;
    head(&f, &w, &b);
    return ls_linear(p, x, w, b);
}
