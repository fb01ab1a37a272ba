/* faults.h - injected faults (--debug.fault): deliberate bugs of distributed training, which test that the checks detect them.
 *
 * fault_list.h has a row for each fault. The passes do not know about faults: most faults edit the program after a pass (struct edit in
 * passes/passes.h) by removing, repeating or rewiring instructions; the others are applied by the functions below, each of which is called
 * in one place. A build with -DFAULTS=OFF contains faults_absent.c instead and refuses the option.
 */
#ifndef LS_TRAIN_FAULTS_FAULTS_H
#define LS_TRAIN_FAULTS_FAULTS_H

#include "lockstep/mesh.h"
#include "lockstep/nn.h"
#include "ir/program.h"
#include "train/faults/fault_list.h"

struct config;

/* The fault that is injected into a step on this rank. */
struct injection {
    enum fault fault;
    const ls_mesh *mesh; /* borrowed; NULL: one rank, or data parallelism without a mesh */
    int stages;          /* number of pipeline stages, counting every chunk; 0: no pipeline */
    bool checked;        /* the placement checks run on the edited program and may refuse it; else the faulty program runs */
};

bool faults_built(void);
const char *fault_name(enum fault f); /* "average" */
const char *fault_what(enum fault f); /* its description in fault_list.h */

/* LS_EINVAL if debug.fault has no effect in this layout of the model, or if this build has no faults. */
ls_status fault_check(const struct config *c, const ls_model *m);

/* Registers the fault, which ls_program_compile() injects. *i must stay valid until then. */
void fault_inject(ls_program *p, const struct injection *i);

/* Faults that are not program edits: */
uint64_t fault_seed(const struct injection *i, int rank, uint64_t seed);  /* seed: returns the seed that this rank initializes from */
int64_t fault_count(const struct injection *i, int64_t all, int64_t own); /* mean_of_means: returns `own` targets instead of `all` */
ls_status fault_restored(const struct injection *i,
                         ls_store *store); /* moments: clears the moments; called after a checkpoint was loaded */
/* lost_layers: sets begin[stages + 1], the first layer of each stage, and returns true; removes the lost layers from a forward that has
 * just been appended. */
bool fault_stages(const struct injection *i, size_t layers, int *begin);
ls_status fault_appended(const struct injection *i, ls_program *p);

#endif
