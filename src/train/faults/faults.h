/* faults.h - injected faults (the options debug.*): deliberate bugs, failures and delays, which test that the checks detect them.
 *
 * fault_list.h has a row for each fault. Passes, ops and the lower floors do not know about faults: a fault edits the program after a pass
 * (struct edit in passes/passes.h) by removing, repeating or rewiring instructions; it is called where a lower floor has a pointer for it
 * (fault_points.h, struct run_fault); or it is applied by a function below, which the step calls. A build with -DFAULTS=OFF
 * contains faults_absent.c instead of the other files of this folder and refuses the options.
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
const char *fault_what(enum fault f); /* its sentence in fault_list.h, which may have several lines */
/* The heading of the list that begins with f; NULL: it is listed with the fault before. */
const char *fault_heading(enum fault f);

/* LS_EINVAL if a fault of the command `verb` is malformed or has no effect in this run, or if one is given and this build has none. */
ls_status faults_check(const struct config *c, unsigned verb);
/* Checks that the rank of debug.non_finite has the parameter, by planning that rank's step. Call it after all other checks. */
ls_status faults_check_rank(const struct config *c);

/* When a fault is armed that is not of single steps: when the process starts, when a run is opened, or before its first step. */
enum fault_when { WHEN_STARTING, WHEN_OPENING, WHEN_TRAINING };
/* Arms those of this rank. */
void faults_arm(const struct config *c, enum fault_when when, int rank);
void faults_disarm(void); /* those of a run, when it is closed */

/* Registers the fault, which ls_program_compile() injects. *i must stay valid until then. */
void fault_inject(ls_program *p, const struct injection *i);

/* debug.non_finite: a value that is set to NaN on one rank, in micro-batch `micro` of update `step` (1, 2, ...). name NULL: no fault. */
struct value_fault {
    int64_t step, rank, micro;
    const char *name; /* of the config */
};
struct value_fault fault_value(const struct config *c);
struct step;
ls_status fault_step_opened(const struct step *s); /* LS_EINVAL if this rank's programs do not have the value */
/* Before each micro-batch of each program: arms the fault in the selected slot if it is in this one; else disarms it there. */
void fault_micro_batch(const struct value_fault *f, int rank, ls_program *p, uint64_t step, int micro);

void fault_gradients(void); /* slow compute: called before the gradients of a step are computed */

/* Faults of debug.fault that are not program edits: */
uint64_t fault_seed(const struct injection *i, int rank, uint64_t seed);  /* seed: returns the seed that this rank initializes from */
int64_t fault_count(const struct injection *i, int64_t all, int64_t own); /* mean_of_means: returns `own` targets instead of `all` */
ls_status fault_restored(const struct injection *i,
                         ls_store *store); /* moments: clears the moments; called after a checkpoint was loaded */
/* lost_layers: sets begin[stages + 1], the first layer of each stage, and returns true; removes the lost layers from a forward that has
 * just been appended. */
bool fault_stages(const struct injection *i, size_t layers, int *begin);
ls_status fault_appended(const struct injection *i, ls_program *p);

#endif
