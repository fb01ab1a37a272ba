/* mesh.h - ranks in a grid of named axes, and the groups that talk to each other.
 *
 *     rank = ((pp * DP + dp) * CP + cp) * TP + tp          PP * DP * CP * TP ranks, all of them
 *
 * tp innermost: its ranks are neighbours, which one machine holds; pp outermost: its messages are few. dp = replicate x shard:
 * consecutive ranks hold one copy between them, and cp takes part in that. ep lies inside dp x cp: experts are spread over EP
 * consecutive ranks of (dp, cp), of one replica.
 *
 *   ls_mesh_shape shape = LS_MESH_DEFAULTS;
 *   shape.tp = shape.pp = 2;
 *   LS_TRY(ls_mesh_open(world, &shape, &mesh));              // dp -1: the rest
 *   ls_comm *tp = ls_mesh_comm(mesh, LS_GROUP_TP);           // NULL: this rank alone
 */
#ifndef LS_MESH_H
#define LS_MESH_H

#include "lockstep/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_mesh ls_mesh;
/* Ranks along each axis; replicate divides dp, ep divides dp / replicate * cp. -1 for dp: the rest. */
typedef struct ls_mesh_shape {
    int pp, dp, replicate, cp, tp, ep;
} ls_mesh_shape;
#define LS_MESH_DEFAULTS  \
    {                     \
        1, -1, 1, 1, 1, 1 \
    }

typedef enum ls_group {
    LS_GROUP_WORLD,
    LS_GROUP_PP,           /* the stages of one pipeline: activations go forward */
    LS_GROUP_PP_BACK,      /* the same ranks: gradients go back, in an order of their own */
    LS_GROUP_DP,           /* ranks that differ in dp alone: other samples */
    LS_GROUP_CP,           /* the same samples, other tokens */
    LS_GROUP_TP,           /* the same tokens, other parts of each layer */
    LS_GROUP_EP,           /* other experts */
    LS_GROUP_DATA,         /* dp x cp: gradients of parameters outside of experts are sums over it */
    LS_GROUP_SHARD,        /* of DATA, the ranks that one copy is laid out over: dp / replicate x cp */
    LS_GROUP_REPLICAS,     /* of DATA, those with the same shard */
    LS_GROUP_EXPERT_DATA,  /* of DATA, those with the same experts */
    LS_GROUP_EXPERT_SHARD, /* of SHARD, those with the same experts */
    LS_GROUP_ENDS,         /* the first and the last stage of one pipeline; the other stages: alone */
    LS_GROUPS
} ls_group;

/* Puts the rest in the place of -1. LS_EINVAL with the whole equation where the product is not `ranks`, or a divisor is none. */
ls_status ls_mesh_check(ls_mesh_shape *shape, int ranks);
/* Collective over world, which is borrowed; NULL: one rank. Groups of one rank have no comm. Works on a comm of "plan:". */
ls_status ls_mesh_open(ls_comm *world, const ls_mesh_shape *shape, ls_mesh **out);
void ls_mesh_close(ls_mesh **m);
ls_mesh_shape ls_mesh_get_shape(const ls_mesh *m);   /* m NULL here and below: one rank */
ls_comm *ls_mesh_comm(const ls_mesh *m, ls_group g); /* borrowed; NULL: this rank is alone in its group */
int ls_mesh_size(const ls_mesh *m, ls_group g);      /* 1 .. */
int ls_mesh_index(const ls_mesh *m, ls_group g);     /* of this rank in its group: 0 .. size-1 */
const char *ls_group_name(ls_group g);               /* "tp" */
/* Coordinates of a rank: [pp, dp, cp, tp, ep]. */
void ls_mesh_place(const ls_mesh_shape *shape, int rank, int place[5]);
/* The mesh as people read it: axes with their strides, the ranks of every group, which axes stay within `local` neighbouring
 * ranks (a machine; 0: not told). Free with ls_free. */
ls_status ls_mesh_text(const ls_mesh_shape *shape, int local, char **text);

#ifdef __cplusplus
}
#endif
#endif
