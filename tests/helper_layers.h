/* helper_layers.h - three blocks of linear and GELU with a residual, and a mean-square loss. */
#ifndef LS_TESTS_HELPER_LAYERS_H
#define LS_TESTS_HELPER_LAYERS_H

#include "ir/program.h"

enum { LAYERS_BATCH = 8, LAYERS_IN = 3, LAYERS_HIDDEN = 16, LAYERS_OUT = 2 };

ls_store *layers_store(ls_dtype type);
ls_value layers_layer(ls_program *p, const char *name, ls_value x, size_t in, size_t out);

/* Three blocks of linear and GELU with a residual, a mean-square loss. */
void layers_build(ls_program *p, ls_dtype type);

#endif
