#include "helper_store_units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

const struct unit_shape unit_shapes[UNIT_PARAMETERS] = {
    { "h.0.a", 2, { 7, 5 }, 35, LS_INIT_NORMAL }, { "h.0.b", 1, { 3 }, 3, LS_INIT_UNIFORM },
    { "h.1.c", 3, { 2, 3, 4 }, 24, LS_INIT_NORMAL }, { "h.1.d", 1, { 1 }, 1, LS_INIT_ONES }, { "e", 1, { 11 }, 11, LS_INIT_NORMAL },
};

const int unit_members[UNIT_MEMBERS] = { 2, 0, 3, 1 };
