/* faults_absent.c - replaces faults.c and fault_*.c in a build with -DFAULTS=OFF: the option is refused, and no fault is injected. */
#include "train/faults/faults.h"

#include "train/config/config.h"

bool faults_built(void) { return false; }
const char *fault_name(enum fault f)
{
    (void)f;
    return "";
}
const char *fault_what(enum fault f)
{
    (void)f;
    return "";
}

ls_status fault_check(const struct config *c, const ls_model *m)
{
    (void)c;
    (void)m;
    return ls_fail(LS_EINVAL, "debug.fault: this lockstep was built without injected faults; build it with -DFAULTS=ON");
}

void fault_inject(ls_program *p, const struct injection *i)
{
    (void)p;
    (void)i;
}
uint64_t fault_seed(const struct injection *i, int rank, uint64_t seed)
{
    (void)i;
    (void)rank;
    return seed;
}
int64_t fault_count(const struct injection *i, int64_t all, int64_t own)
{
    (void)i;
    (void)own;
    return all;
}
ls_status fault_restored(const struct injection *i, ls_store *store)
{
    (void)i;
    (void)store;
    return LS_OK;
}
bool fault_stages(const struct injection *i, size_t layers, int *begin)
{
    (void)i;
    (void)layers;
    (void)begin;
    return false;
}
ls_status fault_appended(const struct injection *i, ls_program *p)
{
    (void)i;
    (void)p;
    return LS_OK;
}
