/* mesh.h - a group of a mesh as a digit of the rank number. */
#ifndef LS_PARALLEL_MESH_MESH_H
#define LS_PARALLEL_MESH_MESH_H

#include <stdbool.h>
#include "lockstep/mesh.h"

struct device;
struct device_collectives;

/* The group of a rank: the ranks first + k * stride for k < size; the rank itself is at k = index. The caller has checked shape. */
struct mesh_position {
    int first, stride, size, index;
};
struct mesh_position mesh_position_of(const ls_mesh_shape *shape, ls_group g, int rank);

/* Opens groups of the table for all comms of the mesh, the world among them: comm_open_native(). Every rank calls it.
 * cp_exchanges: heads are exchanged over cp instead of passing keys and values around a ring. */
ls_status mesh_open_native(ls_mesh *m, const struct device *d, const struct device_collectives *by, bool cp_exchanges);

#endif
