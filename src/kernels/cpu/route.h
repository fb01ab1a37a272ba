/* route.h - what an entry of a routing says.
 *
 *   index >= 0             the token goes to this expert
 *   index == ROUTE_PADDING the token is of no real sample
 *   index < 0 otherwise    ~index chose the token's expert, which has no room left: the token is dropped there
 */
#ifndef LS_KERNELS_CPU_ROUTE_H
#define LS_KERNELS_CPU_ROUTE_H

#include <stdint.h>

#define ROUTE_PADDING INT32_MIN

#endif
