#include "helper_image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "helper_check.h"

ls_image_model image_tiny(void)
{
    ls_image_model m;

    OK(ls_image_preset("resnet-tiny", &m));
    return m;
}

ls_value image_input(ls_program *p, const ls_image_model *m, size_t batch)
{
    return ls_input(p, "images", LS_F32, 4, (size_t[]){ batch, m->channels, m->height, m->width });
}

void image_run_open(struct image_run *r, const ls_image_model *m, size_t batch, int denominator, const ls_optimizer *optimizer,
                     const ls_compile_options *options)
{
    ls_store_options so = LS_STORE_DEFAULTS;
    ls_value d = LS_NONE;

    *r = (struct image_run){ .m = *m, .batch = batch, .pixels = m->channels * m->height * m->width };
    so.seed = 7;
    OK(ls_store_new(&so, &r->s));
    OK(ls_program_new(r->s, &r->p));
    ls_value images = image_input(r->p, m, batch);
    ls_value labels = ls_input(r->p, "labels", LS_I32, 1, &batch);
    if (denominator)
        d = ls_input(r->p, "denominator", LS_F32, 1, (size_t[]){ 1 });
    ls_value loss = ls_output(r->p, "loss", ls_image_loss(r->p, m, images, labels, d, 1));
    ls_backward(r->p, loss);
    if (optimizer)
        OK(ls_optimizer_append(r->p, optimizer));
    OK(ls_program_compile(r->p, options));
}

void image_run_close(struct image_run *r)
{
    ls_program_release(&r->p);
    ls_store_release(&r->s);
}

void image_run_write(struct image_run *r, const float *images, const int32_t *labels)
{
    OK(ls_program_write(r->p, "images", images, LS_F32, r->batch * r->pixels));
    OK(ls_program_write(r->p, "labels", labels, LS_I32, r->batch));
}

double image_run_loss(const struct image_run *r)
{
    double loss;

    OK(ls_program_read(r->p, "loss", &loss, LS_F64, 1));
    return loss;
}

ls_images image_data(const ls_image_model *m)
{
    ls_images d = LS_IMAGES_DEFAULTS;

    d.channels = m->channels, d.height = m->height, d.width = m->width, d.classes = m->classes;
    OK(ls_images_check(&d));
    return d;
}

void image_draw(const ls_images *d, uint64_t first, size_t n, float *images, int32_t *labels)
{
    for (size_t i = 0; i < n; i++)
        ls_images_get(d, first + i, images + i * d->channels * d->height * d->width, labels + i);
}
