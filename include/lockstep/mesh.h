/* mesh.h - ranks in a grid of named axes, and the groups that communicate.
 *
 *     rank = ((pp * DP + dp) * CP + cp) * TP + tp          PP * DP * CP * TP ranks, all of them
 *
 * tp is innermost: its ranks are neighbors, usually on one machine; pp is outermost: it sends few messages. dp = replicate x shard:
 * consecutive ranks (and those along cp) share one copy. ep is within dp x cp: experts are distributed over EP consecutive ranks of (dp,
 * cp) within one replica.
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
/* The most ranks of a mesh. An int could number many more, but a rank that opens a mesh looks at all ranks once for each of its groups:
 * 5 to 10 ms for this many. A plan opens a mesh for every rank that it looks at. */
enum { LS_MESH_RANKS_MOST = 131072 };
/* Ranks along each axis, at most LS_MESH_RANKS_MOST in all; replicate divides dp, ep divides dp / replicate * cp. -1 for dp: the rest. */
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
    LS_GROUP_PP_BACK,      /* the same ranks: gradients go back, in their own order */
    LS_GROUP_DP,           /* ranks that differ only in dp: other samples */
    LS_GROUP_CP,           /* the same samples, other tokens */
    LS_GROUP_TP,           /* the same tokens, other parts of each layer */
    LS_GROUP_EP,           /* other experts */
    LS_GROUP_DATA,         /* dp x cp: gradients of parameters outside of experts are sums over it */
    LS_GROUP_SHARD,        /* of DATA, the ranks that share one copy: dp / replicate x cp */
    LS_GROUP_REPLICAS,     /* of DATA, those with the same shard */
    LS_GROUP_EXPERT_DATA,  /* of DATA, those with the same experts */
    LS_GROUP_EXPERT_SHARD, /* of SHARD, those with the same experts */
    LS_GROUP_ENDS,         /* the first and the last stage of one pipeline; the other stages: alone */
    LS_GROUPS
} ls_group;

/* Replaces -1 by the remaining ranks. LS_EINVAL if a size is out of range or does not divide, or the product is not `ranks`: the message
 * has the whole equation and, as those of ls_layout_check(), names sizes by their options. */
ls_status ls_mesh_check(ls_mesh_shape *shape, int ranks);
/* Collective over world, which is borrowed; NULL: one rank. Groups of one rank have no comm. A "plan:" comm can be used. */
ls_status ls_mesh_open(ls_comm *world, const ls_mesh_shape *shape, ls_mesh **out);
void ls_mesh_close(ls_mesh **m);
ls_mesh_shape ls_mesh_get_shape(const ls_mesh *m);   /* m NULL here and below: one rank */
ls_comm *ls_mesh_comm(const ls_mesh *m, ls_group g); /* borrowed; NULL: this rank is alone in its group */
int ls_mesh_size(const ls_mesh *m, ls_group g);      /* 1 .. */
int ls_mesh_index(const ls_mesh *m, ls_group g);     /* this rank's index in its group: 0 .. size-1 */
const char *ls_group_name(ls_group g);               /* "tp" */
/* Coordinates of a rank: [pp, dp, cp, tp, ep]. */
void ls_mesh_place(const ls_mesh_shape *shape, int rank, int place[5]);
/* The mesh as text: axes with their strides, the ranks of every group, which axes stay within `local` neighboring ranks (a machine; 0:
 * unknown). Free with ls_free. */
ls_status ls_mesh_text(const ls_mesh_shape *shape, int local, char **text);

#ifdef __cplusplus
}
#endif
#endif
