/* images.c - synthetic pictures: classes of shapes at random positions, in random colors, with noise.
 *
 * Picture n of seed s is a pure function of (s, n): its class is n mod classes, everything else comes from the random
 * streams "images.shape" (index 32 n + k) and "images.noise" (index n * elements + i).
 *
 *   center and size   the shape is completely inside; its radius is 0.25 to 0.42 of the smaller side
 *   colors           background uniform in [-1, 1] per channel; the shape differs from it by 0.5 to 1.5 in each channel,
 *                     up or down at random per picture, so that no single pixel depends on the class
 *   edges             each pixel is the mean of 2 x 2 samples
 *   noise             normal, with the given standard deviation, on every element
 */
#include "lockstep/data.h"

#include <math.h>
#include "base/base.h"
#include "base/pulse.h"
#include "base/rng.h"

/* Coordinates in which the shape fills [-1, 1] x [-1, 1]; v points down. */
typedef int shape_fn(double u, double v);

static double larger(double u, double v) { return fmax(fabs(u), fabs(v)); }
static int disc(double u, double v) { return hypot(u, v) <= 1; }
static int ring(double u, double v) { return hypot(u, v) <= 1 && hypot(u, v) > 0.55; }
static int square(double u, double v) { return larger(u, v) <= 0.9; }
static int frame(double u, double v) { return larger(u, v) <= 0.95 && larger(u, v) > 0.5; }
static int triangle(double u, double v) { return fabs(v) <= 0.95 && fabs(u) <= (v + 0.95) / 1.9; }
static int plus(double u, double v) { return larger(u, v) <= 1 && fmin(fabs(u), fabs(v)) <= 0.3; }
static int cross(double u, double v) { return larger(u, v) <= 1 && fabs(fabs(u) - fabs(v)) <= 0.4; }
static int level_bars(double u, double v) { return fabs(u) <= 1 && fabs(v) <= 1 && fabs(v) > 0.4; }
static int upright_bars(double u, double v) { return level_bars(v, u); }
static int stroke(double u, double v) { return larger(u, v) <= 1 && fabs(u - v) <= 0.45; }

static shape_fn *const image_shapes[LS_IMAGE_CLASSES] = {
    disc, ring, square, frame, triangle, plus, cross, level_bars, upright_bars, stroke,
};

static const char *const images_names[LS_IMAGE_CLASSES] = {
    "disc", "ring", "square", "frame", "triangle", "plus", "cross", "level bars", "upright bars", "stroke",
};

const char *ls_images_class(int32_t label) { return label >= 0 && label < LS_IMAGE_CLASSES ? images_names[label] : NULL; }

ls_status ls_images_check(const ls_images *s)
{
    size_t side = MIN(s->height, s->width);

    if (s->classes < 2 || s->classes > LS_IMAGE_CLASSES)
        return ls_fail(LS_EINVAL, "images: classes is %zu; must be 2 to %d", s->classes, LS_IMAGE_CLASSES);
    if (s->channels < 1 || s->channels > 4) return ls_fail(LS_EINVAL, "images: channels is %zu; must be 1 to 4", s->channels);
    if (side < 8 || MAX(s->height, s->width) > 1024)
        return ls_fail(LS_EINVAL, "images: %zu x %zu pixels; each side must be 8 to 1024", s->height, s->width);
    if (s->samples == 0) return ls_fail(LS_EINVAL, "images: an epoch must have at least one sample");
    if (!(s->noise >= 0 && s->noise <= 10)) return ls_fail(LS_EINVAL, "images: noise is %g; must be 0 to 10", s->noise);
    return LS_OK;
}

uint64_t ls_images_picture(const ls_images *s, uint64_t index)
{
    uint64_t epoch = index / s->samples, i = index % s->samples;

    if (s->shuffle) i = rng_permute(s->seed, rng_stream("data.order") + epoch, i, s->samples);
    return s->first + i;
}

/* The random properties of one picture, except its noise. */
struct picture {
    shape_fn *shape;
    double radius, x, y, ground[4], change[4];
};

static void compose(const ls_images *s, uint64_t n, struct picture *out)
{
    uint64_t stream = rng_stream("images.shape"), at = 32 * n;
    double side = (double)MIN(s->height, s->width), sign = rng_uniform(s->seed, stream, at) < 0.5 ? -1 : 1;

    out->shape = image_shapes[n % s->classes];
    out->radius = side * (0.25 + 0.17 * rng_uniform(s->seed, stream, at + 1));
    out->x = out->radius + ((double)s->width - 2 * out->radius) * rng_uniform(s->seed, stream, at + 2);
    out->y = out->radius + ((double)s->height - 2 * out->radius) * rng_uniform(s->seed, stream, at + 3);
    for (size_t c = 0; c < s->channels; c++) {
        out->ground[c] = 2 * rng_uniform(s->seed, stream, at + 4 + 2 * c) - 1;
        out->change[c] = sign * (0.5 + rng_uniform(s->seed, stream, at + 5 + 2 * c));
    }
}

/* The fraction of pixel (i,j) that the shape covers: 0, 1/4, .. 1. */
static double cover(const struct picture *p, size_t i, size_t j)
{
    int hits = 0;

    for (int k = 0; k < 4; k++) {
        double x = (double)j + 0.25 + 0.5 * (k % 2), y = (double)i + 0.25 + 0.5 * (k / 2);

        hits += p->shape((x - p->x) / p->radius, (y - p->y) / p->radius);
    }
    return hits / 4.0;
}

static void add_noise(const ls_images *s, uint64_t n, float *image)
{
    enum { CHUNK = 256 };
    double noise[CHUNK];
    size_t count = s->channels * s->height * s->width;

    for (size_t at = 0; at < count; at += CHUNK) {
        size_t part = MIN((size_t)CHUNK, count - at);

        rng_normals(s->seed, rng_stream("images.noise"), n * count + at, part, noise);
        for (size_t i = 0; i < part; i++) image[at + i] += (float)(s->noise * noise[i]);
    }
}

void ls_images_get(const ls_images *s, uint64_t index, float *image, int32_t *label)
{
    uint64_t n = ls_images_picture(s, index);
    size_t places = s->height * s->width;
    struct picture p;

    pulse();
    compose(s, n, &p);
    for (size_t i = 0; i < places; i++) {
        double covered = cover(&p, i / s->width, i % s->width);

        for (size_t c = 0; c < s->channels; c++) image[c * places + i] = (float)(p.ground[c] + covered * p.change[c]);
    }
    if (s->noise > 0) add_noise(s, n, image);
    *label = (int32_t)(n % s->classes);
}
