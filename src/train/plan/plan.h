/* plan.h - the bytes that ranks of a step will hold, found by compiling the step without allocating it.
 *
 * A rank's plan is a function of the layout, the model, what trains it (struct plan_job), the number of threads and the instruction
 * set, so any rank can make the plan of any other. Ranks differ in their place in the mesh: stages of a pipeline by what they hold and keep
 * in flight, the others by the shares of what does not divide evenly. Shares are cut at whole * r / n, so the last rank's is never smaller
 * than another's; with ring attention, which gives a rank two slices of the sequence, the longest may be any. The ranks at these places, at
 * the first, which owns what is replicated, at the first eight of cp, and with the largest shares of ZeRO for such a place are compared; of
 * up to 32 ranks all are. Tests compare that with all ranks of many meshes. It is not proved for more ranks: where they hold the same but
 * for the rounding of arenas, or of a program's own tables, the largest may be missed by that rounding.
 */
#ifndef LS_TRAIN_PLAN_PLAN_H
#define LS_TRAIN_PLAN_PLAN_H

#include "train/run/dataset.h"
#include "train/run/evaluate.h"

/* cost: with the evaluation's activations and communication; total: all of it. other: what samples on their way, tables, the programs
 * themselves, saving and starting take beside it, at most. The data (struct dataset) come on top: train accepts a limit where total + other
 * is at most plan_room(). */
struct plan_bytes {
    int rank;
    size_t total, other;
    ls_cost cost;
};

/* What is planned: a model and what trains it, under any layout. A plan also depends on the number of threads and the instruction set of
 * this process. */
struct plan_job {
    const struct task_model *model; /* borrowed */
    struct step_options step;
    bool evaluates; /* beside the step, the run holds an evaluation */
    bool traces;    /* it writes a trace */
};
/* Job and layout of a run; after config_check(). The texts of both are the config's. */
ls_status plan_of_config(const struct config *c, const struct task_model *model, struct plan_job *job, ls_layout *layout);

ls_status plan_of_rank(const struct plan_job *j, const ls_layout *layout, int rank, struct plan_bytes *out);
/* The rank with the largest total, the lowest of several that were looked at; total + other is the most of any of them. compiled: how many
 * ranks were looked at; may be NULL. */
ls_status plan_of_largest(const struct plan_job *j, const ls_layout *layout, struct plan_bytes *out, int *compiled);
/* The same by the places that may hold the most, for any number of ranks. */
ls_status plan_of_places(const struct plan_job *j, const ls_layout *layout, struct plan_bytes *out, int *compiled);

/* Options, communicators, the run's folder and its files. */
enum { PLAN_START = 64 << 10 };
#define PLAN_SMALLER_DATA "raise run.memory_limit, or encode the text once with 'lockstep data prepare' and give --data.tokens=FILE"

/* Bytes of a limit that are left to the step beside the data; 0: opening them takes more already. */
size_t plan_room(size_t limit, const struct dataset *data);
/* What to do where there are no remedies. */
const char *plan_nothing_fits(size_t limit, const struct dataset *data);

/* Layouts near this one whose largest rank fits into `limit` bytes (plan_room()), each plan compiled; those that cost the least time come
 * first. */
enum { REMEDIES = 4, REMEDY_ROOM = 200 };
struct remedy {
    char options[REMEDY_ROOM]; /* the changes as options of the command: "--parallel.zero=1" */
    ls_layout layout;          /* of more ranks than there are: more machines */
    size_t global;             /* samples of a step */
    size_t total;
};
ls_status plan_remedies(const struct plan_job *j, const ls_layout *layout, size_t limit, struct remedy out[REMEDIES], int *count);

/* Fails with LS_ENOMEM on all ranks, and one rank's message, when a rank's plan and the data are more than its limit.
 * Collective; call it after dataset_open() and before step_open(). data: zeroed where there are none. */
ls_status plan_check_memory(const struct config *c, const struct task_model *model, const struct dataset *data, const struct ranks *ranks);

#endif
