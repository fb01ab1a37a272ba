/* helper_store_units.h - a store of small parameters, most of them in one flat buffer. */
#ifndef LS_TESTS_HELPER_STORE_UNITS_H
#define LS_TESTS_HELPER_STORE_UNITS_H

#include "runtime/store.h"

enum { GROUP_PARAMETERS = 5, GROUP_ELEMENTS_MOST = 64, GROUP_MEMBERS = 4, GROUP_TOTAL = 63 };

struct group_shape { const char *name; int ndim; size_t size[3], count; ls_init_kind init; };

extern const struct group_shape unit_shapes[GROUP_PARAMETERS];
/* The unit is not in the order of declaration; e stays outside. */
extern const int unit_members[GROUP_MEMBERS];

enum { VALUE = 1 << STORE_VALUE, GRAD = 1 << STORE_GRAD, STATE = 1 << STORE_STATE };

#endif
