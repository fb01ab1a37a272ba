/* plan.h - computes the bytes that the ranks of a step will hold, by compiling the step without allocating it.
 *
 * A rank's plan is a function of the layout, the model, what trains it (struct plan_job), the number of threads and the instruction set, so
 * any process can compute the plan of any rank. Up to 32 ranks are all planned. Of more ranks, only those are planned that may hold the
 * most:
 *   - every stage of a pipeline, because stages hold different layers and numbers of micro-batches in flight;
 *   - along the other axes the first rank, which owns what is replicated, and the last: shard r of n begins at size * r / n, so the last
 *     shard is never smaller than another;
 *   - along cp with ring attention also the first eight, each of which sends and receives in another order, and the one with the most
 *     tokens, because a rank has two chunks of the sequence;
 *   - for each of these, the rank with the largest ZeRO shard among those that differ from it only in their samples.
 * Where the ranks of stage 0 that are not the first along one axis hold what the first holds, sizes are divisible: then ranks that are not
 * the first along several axes are left out, and where nothing is sharded by ZeRO those along one, too, in all other stages.
 * Tests compare the result with all ranks of many meshes. It is not exact for every mesh: among ranks that differ only by the rounding of
 * arenas or by a program's own tables, the largest may be missed by that difference.
 */
#ifndef LS_TRAIN_PLAN_PLAN_H
#define LS_TRAIN_PLAN_PLAN_H

#include "base/tasks.h"
#include "plan/cluster.h"
#include "train/run/dataset.h"
#include "train/run/evaluate.h"

/* cost: bytes by category, including the evaluation's activations and communication; total: their sum. other: the most that samples,
 * tables, the programs themselves, saving and start-up take in addition. The data (struct dataset) are not included: train accepts a limit
 * if total + other is at most plan_room(). host: bytes offloaded to a host memory that is separate from the processor's; otherwise they are
 * part of the cost. On a GPU of a machine like this one, other and host are together in the host's memory. */
struct plan_bytes {
    int rank;
    size_t total, other, host;
    ls_cost cost;
};

/* What is planned: a model and what trains it, under any layout. A plan also depends on the number of threads of this process and on its
 * instruction set (run.isa). */
struct plan_job {
    const struct task_model *model; /* borrowed */
    struct step_options step;
    bool evaluates;                /* the run holds an evaluation in addition to the step */
    bool traces;                   /* the run writes a trace */
    const struct cluster *cluster; /* the machine to plan for; NULL: this machine. Borrowed */
    size_t host; /* for this machine with GPUs: bytes of host memory left for the step; 0: host and processor share one memory */
};
/* The job and layout of a config, after config_check(). The strings of both belong to the config. */
ls_status plan_of_config(const struct config *c, const struct task_model *model, struct plan_job *job, ls_layout *layout);
/* After config_apply(): sets the number of threads that a rank will have, with `local` ranks on a machine like this one; 1 if the plan is
 * for another machine, where it is unknown. launch.threads takes precedence. */
void plan_set_threads(const struct config *c, int local, bool elsewhere);

/* The team and the instruction set of the processes that this thread plans for; plan_tasks() passes them on to its threads. threads: 0:
 * this process's. isa: most instruction set, as isa_assume(). Returns what was assumed before. */
struct plan_assumed {
    int threads, isa;
};
struct plan_assumed plan_assume(struct plan_assumed x);

/* tasks_run() for tasks that compile programs of the job: one after another on the caller if only one thread at a time may use their
 * device. */
ls_status plan_tasks(const struct plan_job *j, int n, tasks_fn *fn, void *ctx);

/* LS_EINVAL if seconds cannot be planned for the layout's method, or the machine file lacks what its offloading needs. */
ls_status plan_check_seconds(const ls_layout *l, const struct cluster *c);
/* Bytes that a rank may offload to its host, if that has memory of its own. */
double plan_host_room(const struct plan_job *j);
/* room: bytes of a processor for the step, plan_step_room(). */
bool plan_fits(const struct plan_job *j, const struct plan_bytes *b, double room);
/* *better: a rank that may hold more and should be planned too. begin[pp * vpp + 1]: first blocks of the stages, where pp > 1. Both may be
 * NULL. */
ls_status plan_rank(const struct plan_job *j, const ls_layout *layout, int rank, struct plan_bytes *out, int *better, int *begin);
/* The same for this rank alone. */
ls_status plan_of_rank(const struct plan_job *j, const ls_layout *layout, int rank, struct plan_bytes *out);
/* The plan of the rank with the largest total, the lowest of several; total + other is the largest of any rank that was planned.
 * *compiled: number of ranks that were planned; may be NULL. */
ls_status plan_of_largest(const struct plan_job *j, const ls_layout *layout, struct plan_bytes *out, int *compiled);
/* The same, but always by the selection of ranks that is described above. */
ls_status plan_of_places(const struct plan_job *j, const ls_layout *layout, struct plan_bytes *out, int *compiled);

/* A lower bound of the bytes of parameters and optimizer state on the rank that holds the most of them, without compiling: an even share of
 * the model's parameters, their master copies and their moments, without what is offloaded. 0 for models other than transformers. */
double plan_least_state(const struct plan_job *j, const ls_layout *layout);

/* Bytes that start-up takes: options, communicators, the run's folder and its files. */
enum { PLAN_START = 64 << 10 };
#define PLAN_SMALLER_DATA "raise run.memory_limit, or encode the text once with 'lockstep data prepare' and give --data.tokens=FILE"

/* Bytes of a limit that are left for the step after the data are opened; 0: opening the data already exceeds the limit. */
size_t plan_room(size_t limit, const struct dataset *data);
/* The same for a processor's limit: the data are in the host's memory, which may be separate. */
size_t plan_step_room(const struct plan_job *j, size_t limit, const struct dataset *data);
/* The advice at the end of a message when there are no remedies. */
const char *plan_nothing_fits(const struct plan_job *j, size_t limit, const struct dataset *data);

/* Finds similar layouts whose largest rank fits into `limit` bytes (plan_room()). Each has been compiled; those that cost the least time
 * come first. */
enum { REMEDIES = 4, REMEDY_ROOM = 1024 };
struct remedy {
    char options[REMEDY_ROOM]; /* the changes as options of the command: "--parallel.zero=1" */
    ls_layout layout;          /* more ranks than now mean more machines */
    size_t global;             /* samples of a step, over all ranks */
    size_t total;
};
ls_status plan_remedies(const struct plan_job *j, const ls_layout *layout, size_t limit, struct remedy out[REMEDIES], int *count);

/* Fails with LS_ENOMEM on all ranks, with the message of one of them, if a rank's plan and the data exceed its limit. Collective; call it
 * after dataset_open() and before step_open(). data: zeroed if there are none. */
ls_status plan_check_memory(const struct config *c, const struct task_model *model, const struct dataset *data, const struct ranks *ranks);

#endif
