/* helper_faults.c */
#include "helper_faults.h"

static struct injection faults_now;

void faults_set(enum fault f, bool checked) { faults_now = (struct injection){ .fault = f, .checked = checked }; }

void faults_give(ls_program *p, const ls_mesh *mesh)
{
    faults_now.mesh = mesh;
    fault_inject(p, &faults_now);
}
