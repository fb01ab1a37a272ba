/* helper_store_units.h - a store of small parameters, most of them in one flat buffer. */
#ifndef LS_TESTS_HELPER_STORE_UNITS_H
#define LS_TESTS_HELPER_STORE_UNITS_H

#include "runtime/store.h"

enum { UNIT_PARAMETERS = 5, UNIT_ELEMENTS_MOST = 64, UNIT_MEMBERS = 4, UNIT_TOTAL = 63 };

struct unit_shape { const char *name; int ndim; size_t size[3], count; ls_init_kind init; };

extern const struct unit_shape unit_shapes[UNIT_PARAMETERS];
/* The unit is not in the order of declaration; e stays outside. */
extern const int unit_members[UNIT_MEMBERS];

enum { VALUE = 1 << STORE_VALUE, GRAD = 1 << STORE_GRAD, STATE = 1 << STORE_STATE };

#endif
