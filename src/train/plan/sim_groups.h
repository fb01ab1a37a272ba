/* sim_groups.h - the ranks of a simulated step: their classes, and the groups in which the classes communicate. */
#ifndef LS_TRAIN_PLAN_SIM_GROUPS_H
#define LS_TRAIN_PLAN_SIM_GROUPS_H

#include <stdbool.h>
#include <stdint.h>
#include "plan/seconds.h"

/* The groups of one kind in one stage. */
struct sim_group {
    int count;
    int *of;             /* [classes of the stage] a class's group */
    int *before;         /* [classes of the stage] the class of the rank before it in the group */
    int *first;          /* [count] a group's first rank */
    int *begin, *member; /* member[begin[g]] .. member[begin[g + 1] - 1]: the classes of group g */
    double *slowed;      /* [count] as in struct seconds_group; NULL: all 1 */
    double most;         /* the largest of slowed; 1 without it */
};

struct sim_stage {
    int classes;
    int *rank;  /* [classes] one rank of each */
    int *ranks; /* [classes] number of ranks in the class */
    struct sim_group group[LS_GROUPS];
};

struct sim_ranks {
    int stages, ranks, per_stage, classes;
    int *class_of;   /* [ranks] within the rank's stage */
    double *seconds; /* [ranks] factor on the seconds of the rank's kernels, relative to the plan */
    struct sim_stage *stage;
};

/* used: bit g is set if the programs use group g. seconds: as above, [ranks], taken over. seed: draws the paths between pods, if collide.
 * unfolded: every rank is a class. */
struct sim_division {
    const struct cluster *cluster;
    ls_mesh_shape shape;
    unsigned used;
    uint64_t seed;
    bool collide, unfolded;
};
ls_status sim_ranks_divide(const struct sim_division *d, double *seconds, struct sim_ranks *out);
void sim_ranks_free(struct sim_ranks *r); /* a zeroed one is a no-op */

#endif
