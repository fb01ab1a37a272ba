/* helper_image.h - a small image model with its training program, and batches of drawn pictures. */
#ifndef LS_TESTS_HELPER_IMAGE_H
#define LS_TESTS_HELPER_IMAGE_H

#include "helper_golden.h"
#include "lockstep/data.h"
#include "lockstep/optim.h"
#include "ir/program.h"

ls_image_model image_tiny(void);

struct image_run {
    ls_image_model m;
    ls_store      *s;
    ls_program    *p;
    size_t         batch, pixels;  /* pixels: elements of an image */
};

ls_value image_input(ls_program *p, const ls_image_model *m, size_t batch);

/* denominator 0: the count of the batch. optimizer NULL: none. */
void image_run_open(struct image_run *r, const ls_image_model *m, size_t batch, int denominator, const ls_optimizer *optimizer,
                    const ls_compile_options *options);
void image_run_close(struct image_run *r);
void image_run_write(struct image_run *r, const float *images, const int32_t *labels);
double image_run_loss(const struct image_run *r);
ls_images image_data(const ls_image_model *m);
void image_draw(const ls_images *d, uint64_t first, size_t n, float *images, int32_t *labels);

#endif
