/* faults.h - injected faults (--debug.fault): mistakes of distributed training made on purpose, for tests of what detects them.
 *
 * fault_list.h has a row for each. No pass knows of them: most are edits of a program after a pass (struct edit of passes/passes.h)
 * that remove, repeat or rewire instructions; the others are applied by the functions below, each called in one place. A build with
 * -DFAULTS=OFF has faults_absent.c in the place of all of it, and refuses the option.
 */
#ifndef LS_TRAIN_FAULTS_FAULTS_H
#define LS_TRAIN_FAULTS_FAULTS_H

#include "lockstep/mesh.h"
#include "lockstep/nn.h"
#include "ir/program.h"
#include "train/faults/fault_list.h"

struct config;

/* What is injected into a step on this rank. */
struct injection {
    enum fault fault;
    const ls_mesh *mesh; /* borrowed; NULL: one rank, or data parallelism without a mesh */
    int stages;          /* of a pipeline, all chunks; 0: there is none */
    bool checked;        /* the checks of placements run on the edited program and may refuse it; else the wrong program runs */
};

bool faults_built(void);
const char *fault_name(enum fault f); /* "average" */
const char *fault_what(enum fault f); /* what it does */

/* LS_EINVAL where the fault of debug.fault changes nothing in this layout of the model, and in a build without faults. */
ls_status fault_check(const struct config *c, const ls_model *m);

/* The program's compile injects the fault; i must last until then. */
void fault_inject(ls_program *p, const struct injection *i);

/* What is no edit of a program under compilation: */
uint64_t fault_seed(const struct injection *i, int rank, uint64_t seed);  /* seed: the one that this rank initializes with */
int64_t fault_count(const struct injection *i, int64_t all, int64_t own); /* mean_of_means: own instead of all valid targets */
ls_status fault_restored(const struct injection *i, ls_store *store);     /* moments: a checkpoint has been loaded */
/* lost_layers: begin[stages + 1] is set and true returned; and what a forward loses that has just been appended. */
bool fault_stages(const struct injection *i, size_t layers, int *begin);
ls_status fault_appended(const struct injection *i, ls_program *p);

#endif
