/* helper_faults.c */
#include "helper_faults.h"

static struct injection now;

void faults_set(enum fault f, bool checked) { now = (struct injection){ .fault = f, .checked = checked }; }

void faults_give(ls_program *p, const ls_mesh *mesh)
{
    now.mesh = mesh;
    fault_inject(p, &now);
}
