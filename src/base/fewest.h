/* fewest.h - the smallest number of things with which bytes fit into a limit. */
#ifndef LS_BASE_FEWEST_H
#define LS_BASE_FEWEST_H

#include <stddef.h>
#include "lockstep/status.h"

/* *bytes: those needed with n things. */
typedef ls_status fewest_fn(void *ctx, int n, size_t *bytes);

/* *n = the smallest number in 0 .. most with which at most `limit` bytes are needed, by bisection; -1: there is none. *least: the fewest
 * bytes with any number. The bytes shrink with each further thing, except that they may grow again or stay the same towards `most`: the
 * number with the fewest bytes is looked for from there. */
ls_status fewest_within(fewest_fn *fn, void *ctx, int most, size_t limit, int *n, size_t *least);

#endif
