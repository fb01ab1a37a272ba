/* mesh.h - groups as runs of digits of the rank's number. */
#ifndef LS_PARALLEL_MESH_MESH_H
#define LS_PARALLEL_MESH_MESH_H

#include "lockstep/mesh.h"

/* A rank's group: ranks first + k * stride, k < size; it is the one with k = index. shape has been checked. */
struct mesh_position {
    int first, stride, size, index;
};
struct mesh_position mesh_position_of(const ls_mesh_shape *shape, ls_group g, int rank);

#endif
