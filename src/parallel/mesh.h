/* mesh.h - groups as runs of digits of the rank's number. */
#ifndef LS_PARALLEL_MESH_H
#define LS_PARALLEL_MESH_H

#include "lockstep/mesh.h"

/* A rank's group: ranks first + k * stride, k < size; it is the one with k = index. shape has been checked. */
struct mesh_seat { int first, stride, size, index; };
struct mesh_seat mesh_seat_of(const ls_mesh_shape *shape, ls_group g, int rank);

#endif
