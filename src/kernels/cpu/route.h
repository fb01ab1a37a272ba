/* route.h - the encoding of a routing's index.
 *
 *   index >= 0             the token goes to this expert
 *   index == ROUTE_PADDING the token belongs to a padding sample
 *   index < 0 otherwise    expert ~index was chosen but is full: the token is dropped there
 *
 * A token has K different experts, whatever its scores are: a score that is NaN counts as -infinity where scores are compared.
 */
#ifndef LS_KERNELS_CPU_ROUTE_H
#define LS_KERNELS_CPU_ROUTE_H

#include <math.h>
#include <stdint.h>

#define ROUTE_PADDING    INT32_MIN
#define ROUTE_ORDER(s)   ((s) == (s) ? (s) : -INFINITY)
#define ROUTE_CHOSEN     NAN /* in the place of a score that is not compared any more */
#define ROUTE_IS_OPEN(s) ((s) == (s))

#endif
