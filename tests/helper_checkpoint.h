/* helper_checkpoint.h - small stores with known content, temporary folders, and bitwise comparisons. */
#ifndef HELPER_CHECKPOINT_H
#define HELPER_CHECKPOINT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "base/base.h"
#include "helper_check.h"
#include "lockstep/checkpoint.h"

/* cmocka fixtures: a fresh folder for each test, and no fault left armed after it. */
int         scratch_set_up(void **state);
int         scratch_tear_down(void **state);
const char *scratch(const char *name);  /* a path in it; the last 8 stay valid */

/* A store of a made-up model: a.weight [7,5], b.bias [5], c [2,3,4], d [1]; states NULL or "m" or "m v". */
ls_store *small_store(ls_dtype type, int master, const char *states);
/* Every tensor of the store gets values that depend on its name, its kind and salt. */
void      small_fill(ls_store *s, uint64_t salt);
/* True if every parameter and state of a has the same bits in b. */
bool      small_same(const ls_store *a, const ls_store *b);
ls_train_state small_state(uint64_t step);

/* Compares field by field, because padding is undefined. */
void check_same_model(const ls_model *a, const ls_model *b);

#endif
