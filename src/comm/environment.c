/* environment.c - this process's rank and the number of ranks, from the variables that launchers set.
 *
 * In this order; each set must be complete (an empty variable counts as unset):
 *     LOCKSTEP_COMM with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE          our own launcher; ranks use the comm that it names
 *     OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}                          mpirun of Open MPI
 *     PMIX_RANK with srun's sizes                                                srun --mpi=pmix
 *     PMI_RANK, PMI_SIZE with MPI_LOCALRANKID, MPI_LOCALNRANKS or srun's         mpirun of MPICH, srun --mpi=pmi2
 *     RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT   torchrun; one machine, by shared memory
 *     SLURM_PROCID with SLURM_STEP_ID                                            srun without a PMI: one node, by shared memory
 *     none of them                                                               one process
 * A batch script or an interactive shell of Slurm has SLURM_PROCID too, without a step or with a reserved step number: it is
 * one process. It is an error if RANK or WORLD_SIZE contradict the variables of MPI or of srun (so the order of MPI and torchrun does not
 * matter: if both are set they agree, and MPI also reaches other machines), or if only part of torchrun's set is present. Inside a step of
 * Slurm, torchrun's complete set takes precedence: srun starts one torchrun per node.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/rng.h"
#include "base/text.h"

enum { MOST_RANKS = 1 << 24 };
static const int64_t RESERVED_STEPS = 4294967280; /* Slurm's own steps (batch, interactive, extern) are above */

struct set {
    const char *rank, *size, *local_rank, *local_size;
};

static const struct set torch = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE" };
static const struct set open_mpi = { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE" };

static const char *variable(const char *name) /* NULL: unset or empty */
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

static const char *first_set(const char *a, const char *b) { return variable(a) ? a : b; }

static ls_status read_number(const char *name, int64_t least, int64_t most, int *out)
{
    const char *text = variable(name);
    int64_t value;

    if (!text) return ls_fail(LS_EINVAL, "%s is not set, but other variables of its launcher are", name);
    if (!text_read_int(text, &value)) return ls_fail(LS_EINVAL, "%s=%s is not a number", name, text);
    if (value < least || value > most)
        return ls_fail(LS_EINVAL, "%s=%s is not in %lld .. %lld", name, text, (long long)least, (long long)most);
    *out = (int)value;
    return LS_OK;
}

/* `name` must be below `limit`, the value of limit_name. */
static ls_status read_below(const char *name, const char *limit_name, int limit, int *out)
{
    int value;

    LS_TRY(read_number(name, 0, MOST_RANKS, &value));
    if (value >= limit) return ls_fail(LS_EINVAL, "%s=%d is not below %s=%d", name, value, limit_name, limit);
    *out = value;
    return LS_OK;
}

static ls_status read_set(const struct set *s, struct world *w)
{
    LS_TRY(read_number(s->size, 1, MOST_RANKS, &w->size));
    LS_TRY(read_below(s->rank, s->size, w->size, &w->rank));
    LS_TRY(read_number(s->local_size, 1, MOST_RANKS, &w->local_size));
    if (w->local_size > w->size) return ls_fail(LS_EINVAL, "%s=%d is more than %s=%d", s->local_size, w->local_size, s->size, w->size);
    return read_below(s->local_rank, s->local_size, w->local_size, &w->local_rank);
}

/* RANK and WORLD_SIZE, if set, must agree with the launcher's own variables. */
static ls_status agree(const char *name, const char *other, int value)
{
    const char *text = variable(name);
    int64_t said;

    if (!text || (text_read_int(text, &said) && said == value)) return LS_OK;
    return ls_fail(LS_EINVAL, "%s=%s, but %s=%d; unset %s, or start without the other launcher", name, text, other, value, name);
}

static ls_status agree_set(const char *rank_name, const char *size_name, const struct world *w)
{
    LS_TRY(agree("RANK", rank_name, w->rank));
    return agree("WORLD_SIZE", size_name, w->size);
}

static ls_status find_own(struct world *w)
{
    const char *where = variable("LOCKSTEP_COMM");

    LS_TRY(read_set(&torch, w));
    if (strlen(where) >= sizeof w->where)
        return ls_fail(LS_EINVAL, "LOCKSTEP_COMM is too long: %zu bytes; at most %zu", strlen(where), sizeof w->where - 1);
    strcpy(w->where, where);
    return LS_OK;
}

/* ---- torchrun ---- */

static const char *torch_missing(void) /* NULL: the set is complete */
{
    static const char *const names[] = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT" };

    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!variable(names[i])) return names[i];
    return NULL;
}

/* A run's id as part of a name: the id itself, or its hash if it is long or has other characters. */
static void put_id(const char *id, char out[40])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

    if (strlen(id) < 40 && strspn(id, plain) == strlen(id))
        strcpy(out, id);
    else
        snprintf(out, 40, "%016llx", (unsigned long long)rng_stream(id));
}

static ls_status find_torchrun(struct world *w)
{
    const char *id = variable("TORCHELASTIC_RUN_ID"), *restarts = variable("TORCHELASTIC_RESTART_COUNT");
    char name[40], generation[40];
    int port;

    if (torch_missing())
        return ls_fail(LS_EINVAL, "%s is set but %s is not: a rank needs all variables of the set, a single process none of them",
                       first_set("RANK", "WORLD_SIZE"), torch_missing());
    LS_TRY(read_set(&torch, w));
    LS_TRY(read_number("MASTER_PORT", 1, 65535, &port));
    if (w->local_size != w->size)
        return ls_fail(
            LS_EUNSUPPORTED,
            "torchrun started %d ranks, %d of them on this machine (LOCAL_WORLD_SIZE): ranks on several machines communicate over MPI; "
            "start them with mpirun",
            w->size, w->local_size);
    put_id(id ? id : "none", name);
    put_id(restarts ? restarts : "0", generation);
    snprintf(w->where, sizeof w->where, "shm:torchrun-%d-%.39s-%.20s", port, name, generation);
    return LS_OK;
}

/* ---- Slurm ---- */

/* The tasks of node `node` in "2(x3),1": 2, 2, 2, 1. */
static ls_status tasks_of_node(const char *name, int node, int *out)
{
    const char *text = variable(name), *at = text;
    int first = 0;

    while (text && *at) {
        int used = 0, tasks = 0, times = 1;
        if (sscanf(at, "%d%n", &tasks, &used) != 1 || tasks < 1) break;
        at += used;
        used = 0;
        if (*at == '(' && (sscanf(at, "(x%d)%n", &times, &used) != 1 || !used || times < 1 || times > MOST_RANKS)) break;
        at += used;
        if (node < first + times) {
            *out = tasks;
            return LS_OK;
        }
        first += times;
        if (*at && *at++ != ',') break;
    }
    return ls_fail(LS_EINVAL, "%s=%s does not say how many tasks node %d has", name, text ? text : "", node);
}

/* Number of tasks and rank on the node, from srun's variables. */
static ls_status read_step(struct world *w)
{
    const char *size = first_set("SLURM_STEP_NUM_TASKS", first_set("SLURM_NTASKS", "SLURM_NPROCS"));
    const char *nodes = first_set("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
    int node;

    LS_TRY(read_number(size, 1, MOST_RANKS, &w->size));
    LS_TRY(read_number("SLURM_NODEID", 0, MOST_RANKS, &node));
    LS_TRY(tasks_of_node(nodes, node, &w->local_size));
    return read_below("SLURM_LOCALID", nodes, w->local_size, &w->local_rank);
}

static bool in_step(void)
{
    const char *step = variable("SLURM_STEP_ID");
    int64_t number;

    return variable("SLURM_PROCID") && step && !(text_read_int(step, &number) && number >= RESERVED_STEPS);
}

static ls_status find_slurm(struct world *w)
{
    int job, step;

    LS_TRY(read_step(w));
    LS_TRY(read_below("SLURM_PROCID", "the number of tasks", w->size, &w->rank));
    LS_TRY(read_number("SLURM_JOB_ID", 0, INT32_MAX, &job));
    LS_TRY(read_number("SLURM_STEP_ID", 0, INT32_MAX, &step));
    LS_TRY(agree_set("SLURM_PROCID", first_set("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), w));
    if (w->local_size != w->size)
        return ls_fail(
            LS_EUNSUPPORTED,
            "srun started %d tasks, %d of them on this node, without MPI's variables; use srun --mpi=pmix, srun --mpi=pmi2 or mpirun",
            w->size, w->local_size);
    snprintf(w->where, sizeof w->where, "shm:slurm-%d-%d", job, step);
    return LS_OK;
}

/* ---- MPI ---- */

static ls_status find_open_mpi(struct world *w)
{
    LS_TRY(read_set(&open_mpi, w));
    return agree_set(open_mpi.rank, open_mpi.size, w);
}

static ls_status find_pmix(struct world *w)
{
    if (!in_step())
        return ls_fail(LS_EINVAL,
                       "PMIX_RANK=%s is set, but neither OMPI_COMM_WORLD_SIZE nor SLURM_STEP_NUM_TASKS says how many ranks there are",
                       variable("PMIX_RANK"));
    LS_TRY(read_step(w));
    LS_TRY(read_below("PMIX_RANK", "the number of tasks", w->size, &w->rank));
    return agree_set("PMIX_RANK", "SLURM_STEP_NUM_TASKS", w);
}

static ls_status find_pmi(struct world *w)
{
    static const struct set mpich = { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS" };

    if (in_step() && !variable(mpich.local_rank)) {
        LS_TRY(read_step(w));
        LS_TRY(read_number("PMI_SIZE", 1, MOST_RANKS, &w->size));
        LS_TRY(read_below("PMI_RANK", "PMI_SIZE", w->size, &w->rank));
    } else {
        LS_TRY(read_set(&mpich, w));
    }
    return agree_set(mpich.rank, mpich.size, w);
}

typedef ls_status find_fn(struct world *w);

static bool torch_started(void) { return !torch_missing() || (!in_step() && (variable("RANK") || variable("WORLD_SIZE"))); }

ls_status world_find(struct world *out)
{
    struct world w = { LAUNCHER_NONE, 0, 1, 0, 1, "mpi:" };
    find_fn *find = NULL;

    if (variable("LOCKSTEP_COMM"))
        w.launcher = LAUNCHER_OWN, find = find_own;
    else if (variable(open_mpi.rank) || variable(open_mpi.size))
        w.launcher = LAUNCHER_OPEN_MPI, find = find_open_mpi;
    else if (variable("PMIX_RANK"))
        w.launcher = LAUNCHER_PMIX, find = find_pmix;
    else if (variable("PMI_RANK") || variable("PMI_SIZE"))
        w.launcher = LAUNCHER_PMI, find = find_pmi;
    else if (torch_started())
        w.launcher = LAUNCHER_TORCHRUN, find = find_torchrun;
    else if (in_step())
        w.launcher = LAUNCHER_SLURM, find = find_slurm;
    else
        strcpy(w.where, "self:");
    if (find) LS_TRY(find(&w));
    *out = w;
    return LS_OK;
}

ls_status world_threads(const struct world *w, int *out)
{
    *out = 0;
    if (w->launcher != LAUNCHER_OWN || !variable("LOCKSTEP_THREADS")) return LS_OK;
    return read_number("LOCKSTEP_THREADS", 1, INT32_MAX, out);
}

const char *launcher_name(enum launcher l)
{
    switch (l) {
    case LAUNCHER_NONE: return "no launcher";
    case LAUNCHER_OWN: return "lockstep -n";
    case LAUNCHER_TORCHRUN: return "torchrun";
    case LAUNCHER_OPEN_MPI: return "mpirun (Open MPI)";
    case LAUNCHER_PMI: return "mpirun (PMI)";
    case LAUNCHER_PMIX: return "srun (PMIx)";
    case LAUNCHER_SLURM: return "srun";
    }
    return "unknown launcher";
}
