/* route.h - the encoding of a routing's index.
 *
 *   index >= 0             the token goes to this expert
 *   index == ROUTE_PADDING the token belongs to a padding sample
 *   index < 0 otherwise    expert ~index was chosen but is full: the token is dropped there
 */
#ifndef LS_KERNELS_CPU_ROUTE_H
#define LS_KERNELS_CPU_ROUTE_H

#include <stdint.h>

#define ROUTE_PADDING INT32_MIN

#endif
