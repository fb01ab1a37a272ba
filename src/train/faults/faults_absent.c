/* faults_absent.c - replaces faults.c and fault_*.c in a build with -DFAULTS=OFF: the options are refused, and no fault is injected. */
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

const char *fault_heading(enum fault f)
{
    (void)f;
    return NULL;
}

ls_status faults_check(const struct config *c, unsigned verb)
{
    (void)verb;
#define REFUSE(kind, of_kind, given, option, heading) \
    if (given) return ls_fail(LS_EINVAL, option ": this lockstep was built without injected faults; build it with -DFAULTS=ON");
    FAULT_KIND_MAP(REFUSE)
#undef REFUSE
    return LS_OK;
}
ls_status faults_check_rank(const struct config *c)
{
    (void)c;
    return LS_OK;
}
void faults_arm(const struct config *c, enum fault_when when, int rank)
{
    (void)c;
    (void)when;
    (void)rank;
}
void faults_disarm(void) {}

struct value_fault fault_value(const struct config *c)
{
    (void)c;
    return (struct value_fault){ 0 };
}
ls_status fault_step_opened(const struct step *s)
{
    (void)s;
    return LS_OK;
}
void fault_micro_batch(const struct value_fault *f, int rank, ls_program *p, uint64_t step, int micro)
{
    (void)f;
    (void)rank;
    (void)p;
    (void)step;
    (void)micro;
}
void fault_gradients(void) {}

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
