/* helper_partition_plan.h - a partitioned program of any rank, planned without its peers. */
#ifndef LS_TESTS_HELPER_PARTITION_PLAN_H
#define LS_TESTS_HELPER_PARTITION_PLAN_H

#include "helper_partition.h"

struct partition_case partition_case_of(ls_model m, int tp, int cp, int sp, ls_cp_method method);

/* A mesh of ranks that are only planned. */
struct partition_plan { ls_comm *world; ls_mesh *mesh; };

struct partition_plan partition_plan_mesh(const ls_mesh_shape *shape, int rank);

void partition_plan_close(struct partition_plan *m);
void partition_plan_open(const struct partition_case *c, int rank, struct partition_plan *m, struct partitioned *s);
void partition_refused(struct partition_case c, const char *says);

#endif
