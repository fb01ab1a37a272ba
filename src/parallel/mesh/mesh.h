/* mesh.h - a group of a mesh as a digit of the rank number. */
#ifndef LS_PARALLEL_MESH_MESH_H
#define LS_PARALLEL_MESH_MESH_H

#include "lockstep/mesh.h"

/* The group of a rank: the ranks first + k * stride for k < size; the rank itself is at k = index. The caller has checked shape. */
struct mesh_position {
    int first, stride, size, index;
};
struct mesh_position mesh_position_of(const ls_mesh_shape *shape, ls_group g, int rank);

#endif
