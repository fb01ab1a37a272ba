#include "helper_partition_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "helper_check.h"

struct partition_case partition_case_of(ls_model m, int tp, int cp, int sp, ls_cp_method method)
{
    return (struct partition_case){ .model = m, .shape = { 1, -1, 1, cp, tp, 1 }, .options = { sp, method, 0, 1, { 0, 1, 0, 0 }, 0 },
                                    .batch = 2, .time = 16 };
}

struct partition_plan partition_plan_mesh(const ls_mesh_shape *shape, int rank)
{
    struct partition_plan m = { NULL, NULL };

    OK(ls_comm_open("plan:", rank, shape->pp * shape->cp * shape->tp * (shape->dp > 0 ? shape->dp : 1), &m.world));
    OK(ls_mesh_open(m.world, shape, &m.mesh));
    return m;
}

void partition_plan_close(struct partition_plan *m)
{
    ls_mesh_close(&m->mesh);
    ls_comm_close(&m->world);
}

void partition_plan_open(const struct partition_case *c, int rank, struct partition_plan *m, struct partitioned *s)
{
    *m = partition_plan_mesh(&c->shape, rank);
    OK(partition_open(c, m->mesh, true, s));
}

void partition_refused(struct partition_case c, const char *says)
{
    struct partition_plan m = partition_plan_mesh(&c.shape, 0);
    struct partitioned s;

    if (partition_open(&c, m.mesh, true, &s) == LS_OK)
        fail_msg("'%s' was let through", says);
    if (!strstr(ls_errmsg(), says))
        fail_msg("'%s' lacks '%s'", ls_errmsg(), says);
    partition_plan_close(&m);
}
