/* helper_golden.h - models and numbers of tests/golden, and distances between tensors.
 *
 * LOCKSTEP_TESTS=FOLDER: the folder that contains golden/, if not that of the sources. LOCKSTEP_DEVICE=cuda: stores are on that device.
 */
#ifndef HELPER_GOLDEN_H
#define HELPER_GOLDEN_H

#include "checkpoint/safetensors.h"
#include "lockstep/nn.h"
#include "models/hf.h"

/* One folder, open: config.json, model.safetensors, golden.safetensors. Failures fail the running test. */
struct golden { ls_model model; struct safetensors *weights, *numbers; };

/* A file of the folder tests/golden in path[room]. */
void golden_path(char *path, size_t room, const char *name, const char *file);
const char *golden_device(void);
ls_status golden_store_new(ls_dtype type, ls_store **out);  /* on that device */
/* Takes the device's first processor; fails with a reason if it has no processor. */
ls_status golden_device_choose(char *name, size_t room);

void golden_open(const char *name, struct golden *out);
void golden_close(struct golden *g);

/* The tensor `prefix` + w->hf of an open file as f32 in our shape and part; free() it. NULL if it does not exist. */
float *golden_weight(const struct safetensors *f, const char *prefix, const struct model_weight *w);
/* A tensor of golden.safetensors as f32; free() it. */
float *golden_numbers(const struct safetensors *f, const char *name, size_t *count);
/* Sets every parameter of an allocated store. */
void   golden_fill(const struct golden *g, ls_store *s);

double norm_of(const float *x, size_t n);
double distance(const float *x, const float *y, size_t n);  /* |x - y| */

#endif
