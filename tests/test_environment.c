/* test_environment.c - rank and size of a process from each launcher's variables: a table of environments and expected answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"
#include "comm/comm.h"

static const char *const known[] = {
    "LOCKSTEP_COMM", "LOCKSTEP_THREADS",
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_PROCID",
    "SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID",
    "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
};

#define TORCH(rank, size, local, local_size) "RANK=" #rank " WORLD_SIZE=" #size " LOCAL_RANK=" #local " LOCAL_WORLD_SIZE=" #local_size
#define MASTER " MASTER_ADDR=localhost MASTER_PORT=29500"
#define OMPI(rank, size, local, local_size)                                                                      \
    "OMPI_COMM_WORLD_RANK=" #rank " OMPI_COMM_WORLD_SIZE=" #size " OMPI_COMM_WORLD_LOCAL_RANK=" #local           \
    " OMPI_COMM_WORLD_LOCAL_SIZE=" #local_size
#define PMI(rank, size, local, local_size) "PMI_RANK=" #rank " PMI_SIZE=" #size " MPI_LOCALRANKID=" #local " MPI_LOCALNRANKS=" #local_size
#define STEP(proc, tasks, local, node, per) "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=" #proc " SLURM_STEP_NUM_TASKS=" #tasks \
    " SLURM_LOCALID=" #local " SLURM_NODEID=" #node " SLURM_STEP_TASKS_PER_NODE=" per
#define MANY_40 "0123456789012345678901234567890123456789"

static const struct {
    const char *environment;
    struct world world;            /* where it is found */
    ls_status status;
    const char *says, *says_too;   /* what the message holds, where it is refused */
} environment_cases[] = {
    { "", { LAUNCHER_NONE, 0, 1, 0, 1, "self:" }, LS_OK, 0, 0 },
    { "RANK= WORLD_SIZE=", { LAUNCHER_NONE, 0, 1, 0, 1, "self:" }, LS_OK, 0, 0 },

    /* our own launcher: before everything else, which its children have inherited */
    { "LOCKSTEP_COMM=shm:fd:7 " TORCH(2, 4, 2, 4), { LAUNCHER_OWN, 2, 4, 2, 4, "shm:fd:7" }, LS_OK, 0, 0 },
    { "LOCKSTEP_COMM=shm:fd:7 " TORCH(2, 4, 2, 4) " " OMPI(0, 1, 0, 1), { LAUNCHER_OWN, 2, 4, 2, 4, "shm:fd:7" }, LS_OK, 0, 0 },
    { "LOCKSTEP_COMM=shm:fd:7 RANK=2 WORLD_SIZE=4", { 0 }, LS_EINVAL, "LOCAL_WORLD_SIZE is not set", 0 },
    { "LOCKSTEP_COMM=shm:fd:7", { 0 }, LS_EINVAL, "WORLD_SIZE is not set", 0 },
    { "LOCKSTEP_COMM=shm:" MANY_40 MANY_40 MANY_40 " " TORCH(2, 4, 2, 4), { 0 }, LS_EINVAL, "LOCKSTEP_COMM is too long: 124 bytes", 0 },

    /* torchrun */
    { TORCH(1, 2, 1, 2) MASTER " TORCHELASTIC_RUN_ID=job", { LAUNCHER_TORCHRUN, 1, 2, 1, 2, "shm:torchrun-29500-job-0" }, LS_OK, 0, 0 },
    { TORCH(1, 2, 1, 2) MASTER " TORCHELASTIC_RUN_ID=job TORCHELASTIC_RESTART_COUNT=3",
      { LAUNCHER_TORCHRUN, 1, 2, 1, 2, "shm:torchrun-29500-job-3" }, LS_OK, 0, 0 },
    { TORCH(0, 1, 0, 1) MASTER, { LAUNCHER_TORCHRUN, 0, 1, 0, 1, "shm:torchrun-29500-none-0" }, LS_OK, 0, 0 },
    { TORCH(0, 2, 0, 2) MASTER " TORCHELASTIC_RUN_ID=a/b", { LAUNCHER_TORCHRUN, 0, 2, 0, 2, "shm:torchrun-29500-e620c3190468cf61-0" },
      LS_OK, 0, 0 },
    { TORCH(5, 8, 1, 4) MASTER, { 0 }, LS_EUNSUPPORTED, "8 ranks, 4 of them on this machine", "mpirun" },
    { TORCH(2, 2, 0, 2) MASTER, { 0 }, LS_EINVAL, "RANK=2 is not below WORLD_SIZE=2", 0 },
    { TORCH(0, 2, 2, 2) MASTER, { 0 }, LS_EINVAL, "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2", 0 },
    { TORCH(0, 2, 0, 3) MASTER, { 0 }, LS_EINVAL, "LOCAL_WORLD_SIZE=3 is more than WORLD_SIZE=2", 0 },
    { TORCH(-1, 2, 0, 2) MASTER, { 0 }, LS_EINVAL, "RANK=-1 is not in 0 ..", 0 },
    { TORCH(one, 2, 0, 2) MASTER, { 0 }, LS_EINVAL, "RANK=one is not a number", 0 },
    { TORCH(0, 0, 0, 2) MASTER, { 0 }, LS_EINVAL, "WORLD_SIZE=0 is not in 1 ..", 0 },
    { TORCH(0, 99999999999999999999, 0, 2) MASTER, { 0 }, LS_EINVAL, "WORLD_SIZE=99999999999999999999 is not a number", 0 },
    { TORCH(0, 2, 0, 2) " MASTER_ADDR=localhost MASTER_PORT=99999", { 0 }, LS_EINVAL, "MASTER_PORT=99999", 0 },
    { "RANK=1", { 0 }, LS_EINVAL, "RANK is set but WORLD_SIZE is not", 0 },
    { "WORLD_SIZE=8", { 0 }, LS_EINVAL, "WORLD_SIZE is set but RANK is not", 0 },
    { TORCH(0, 2, 0, 2) " MASTER_ADDR=localhost", { 0 }, LS_EINVAL, "RANK is set but MASTER_PORT is not", 0 },

    /* Open MPI */
    { OMPI(3, 4, 1, 2), { LAUNCHER_OPEN_MPI, 3, 4, 1, 2, "mpi:" }, LS_OK, 0, 0 },
    { OMPI(3, 4, 1, 2) " PMIX_RANK=3", { LAUNCHER_OPEN_MPI, 3, 4, 1, 2, "mpi:" }, LS_OK, 0, 0 },
    { OMPI(3, 4, 1, 2) " RANK=3 WORLD_SIZE=4", { LAUNCHER_OPEN_MPI, 3, 4, 1, 2, "mpi:" }, LS_OK, 0, 0 },
    { OMPI(3, 4, 1, 2) " " TORCH(3, 4, 1, 2) MASTER, { LAUNCHER_OPEN_MPI, 3, 4, 1, 2, "mpi:" }, LS_OK, 0, 0 },
    { OMPI(0, 4, 0, 2) " " STEP(1, 2, 0, 1, "1(x2)"), { LAUNCHER_OPEN_MPI, 0, 4, 0, 2, "mpi:" }, LS_OK, 0, 0 },
    { OMPI(0, 2, 0, 2) " RANK=1", { 0 }, LS_EINVAL, "RANK=1", "OMPI_COMM_WORLD_RANK=0" },
    { OMPI(0, 2, 0, 2) " RANK=0 WORLD_SIZE=4", { 0 }, LS_EINVAL, "WORLD_SIZE=4", "OMPI_COMM_WORLD_SIZE=2" },
    { OMPI(0, 2, 0, 2) " RANK=x", { 0 }, LS_EINVAL, "RANK=x", "OMPI_COMM_WORLD_RANK=0" },
    { OMPI(2, 2, 0, 2), { 0 }, LS_EINVAL, "OMPI_COMM_WORLD_RANK=2 is not below OMPI_COMM_WORLD_SIZE=2", 0 },
    { "OMPI_COMM_WORLD_SIZE=2", { 0 }, LS_EINVAL, "OMPI_COMM_WORLD_RANK is not set", 0 },
    { "OMPI_COMM_WORLD_RANK=0", { 0 }, LS_EINVAL, "OMPI_COMM_WORLD_SIZE is not set", 0 },

    /* PMI: MPICH's hydra, srun */
    { PMI(1, 3, 1, 3), { LAUNCHER_PMI, 1, 3, 1, 3, "mpi:" }, LS_OK, 0, 0 },
    { "PMI_RANK=3 PMI_SIZE=4 " STEP(3, 4, 1, 1, "2(x2)"), { LAUNCHER_PMI, 3, 4, 1, 2, "mpi:" }, LS_OK, 0, 0 },
    { PMI(1, 3, 1, 3) " RANK=2", { 0 }, LS_EINVAL, "RANK=2", "PMI_RANK=1" },
    { PMI(1, 3, 1, 3) " WORLD_SIZE=2", { 0 }, LS_EINVAL, "WORLD_SIZE=2", "PMI_SIZE=3" },
    { "PMI_RANK=1", { 0 }, LS_EINVAL, "PMI_SIZE is not set", 0 },
    { "PMI_RANK=1 PMI_SIZE=2", { 0 }, LS_EINVAL, "MPI_LOCALNRANKS is not set", 0 },
    { PMI(3, 3, 1, 3), { 0 }, LS_EINVAL, "PMI_RANK=3 is not below PMI_SIZE=3", 0 },
    { "PMIX_RANK=3 " STEP(3, 4, 1, 1, "2(x2)"), { LAUNCHER_PMIX, 3, 4, 1, 2, "mpi:" }, LS_OK, 0, 0 },
    { "PMIX_RANK=3 RANK=2 " STEP(3, 4, 1, 1, "2(x2)"), { 0 }, LS_EINVAL, "RANK=2", "PMIX_RANK=3" },
    { "PMIX_RANK=4 " STEP(3, 4, 1, 1, "2(x2)"), { 0 }, LS_EINVAL, "PMIX_RANK=4", 0 },
    { "PMIX_RANK=0", { 0 }, LS_EINVAL, "PMIX_RANK=0", "how many" },

    /* srun without a PMI */
    { STEP(1, 2, 1, 0, "2"), { LAUNCHER_SLURM, 1, 2, 1, 2, "shm:slurm-77-0" }, LS_OK, 0, 0 },
    { STEP(1, 2, 1, 0, "2") " " TORCH(3, 4, 3, 4) MASTER, { LAUNCHER_TORCHRUN, 3, 4, 3, 4, "shm:torchrun-29500-none-0" }, LS_OK, 0, 0 },
    { STEP(1, 2, 1, 0, "2") " RANK=0", { 0 }, LS_EINVAL, "RANK=0", "SLURM_PROCID=1" },
    { STEP(1, 2, 1, 0, "2") " WORLD_SIZE=4", { 0 }, LS_EINVAL, "WORLD_SIZE=4", "SLURM_STEP_NUM_TASKS=2" },
    { STEP(4, 7, 0, 2, "2(x3),1"), { 0 }, LS_EUNSUPPORTED, "7 tasks, 2 of them on this node", "--mpi=pmix" },
    { STEP(6, 7, 0, 3, "2(x3),1"), { 0 }, LS_EUNSUPPORTED, "7 tasks, 1 of them on this node", 0 },
    { STEP(6, 7, 0, 4, "2(x3),1"), { 0 }, LS_EINVAL, "how many tasks node 4 has", 0 },
    { STEP(0, 2, 0, 0, "2(x"), { 0 }, LS_EINVAL, "SLURM_STEP_TASKS_PER_NODE=2(x", 0 },
    { STEP(0, 2, 0, 0, "many"), { 0 }, LS_EINVAL, "SLURM_STEP_TASKS_PER_NODE=many", 0 },
    { STEP(2, 2, 0, 0, "2"), { 0 }, LS_EINVAL, "SLURM_PROCID=2 is not below", 0 },
    /* older names */
    { "SLURM_JOB_ID=5 SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_TASKS_PER_NODE=3",
      { LAUNCHER_SLURM, 0, 3, 0, 3, "shm:slurm-5-1" }, LS_OK, 0, 0 },
    /* a batch script, an interactive shell */
    { "SLURM_JOB_ID=5 SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_LOCALID=0 SLURM_NODEID=0", { LAUNCHER_NONE, 0, 1, 0, 1, "self:" }, LS_OK, 0, 0 },
    { "SLURM_JOB_ID=5 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_LOCALID=0 SLURM_NODEID=0",
      { LAUNCHER_NONE, 0, 1, 0, 1, "self:" }, LS_OK, 0, 0 },
};

static void set_environment(const char *text)
{
    char copy[1024], *save = NULL;

    for (size_t i = 0; i < COUNT_OF(known); i++) unsetenv(known[i]);
    assert_true(strlen(text) < sizeof copy);
    strcpy(copy, text);
    for (char *pair = strtok_r(copy, " ", &save); pair; pair = strtok_r(NULL, " ", &save)) {
        char *value = strchr(pair, '=');
        assert_non_null(value);
        *value++ = 0;
        bool listed = false;
        for (size_t i = 0; i < COUNT_OF(known); i++) listed |= !strcmp(known[i], pair);
        if (!listed) fail_msg("the table knows no %s", pair);
        setenv(pair, value, 1);
    }
}

/* The launcher's share of the cores counts only for its own ranks. */
static void threads_are_those_of_our_launcher(void **state)
{
    struct world w;
    int threads = -1;

    (void)state;
    set_environment("LOCKSTEP_THREADS=3 LOCKSTEP_COMM=shm:fd:7 " TORCH(2, 4, 2, 4));
    assert_int_equal(world_find(&w), LS_OK);
    assert_int_equal(world_threads(&w, &threads), LS_OK);
    assert_int_equal(threads, 3);
    set_environment("LOCKSTEP_COMM=shm:fd:7 " TORCH(2, 4, 2, 4));
    assert_int_equal(world_threads(&w, &threads), LS_OK);
    assert_int_equal(threads, 0);
    set_environment("LOCKSTEP_THREADS=0 LOCKSTEP_COMM=shm:fd:7 " TORCH(2, 4, 2, 4));
    assert_int_equal(world_threads(&w, &threads), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "LOCKSTEP_THREADS=0"));
    set_environment("LOCKSTEP_THREADS=3");
    assert_int_equal(world_find(&w), LS_OK);
    assert_int_equal(world_threads(&w, &threads), LS_OK);
    assert_int_equal(threads, 0);
}

static void ranks_are_found_or_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(environment_cases); i++) {
        struct world got;

        memset(&got, 0x5a, sizeof got);
        struct world untouched = got;
        set_environment(environment_cases[i].environment);
        ls_status st = world_find(&got);
        if (st != environment_cases[i].status)
            fail_msg("'%s': status %d (%s), not %d", environment_cases[i].environment, st, st ? ls_errmsg() : "",
                     environment_cases[i].status);
        if (st == LS_OK) {
            const struct world *want = &environment_cases[i].world;
            if (got.launcher != want->launcher || got.rank != want->rank || got.size != want->size || got.local_rank != want->local_rank
                || got.local_size != want->local_size || strcmp(got.where, want->where))
                fail_msg("'%s': %s rank %d of %d, %d of %d here, by %s", environment_cases[i].environment, launcher_name(got.launcher),
                         got.rank, got.size, got.local_rank, got.local_size, got.where);
        } else {
            if (!strstr(ls_errmsg(), environment_cases[i].says) ||
                (environment_cases[i].says_too && !strstr(ls_errmsg(), environment_cases[i].says_too)))
                fail_msg("'%s': says '%s'", environment_cases[i].environment, ls_errmsg());
            assert_memory_equal(&got, &untouched, sizeof got);
        }
    }
}

static void job_names_differ(void **state)
{
    (void)state;
    for (int a = LAUNCHER_NONE; a <= LAUNCHER_SLURM; a++)
        for (int b = a + 1; b <= LAUNCHER_SLURM; b++) assert_string_not_equal(launcher_name(a), launcher_name(b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_found_or_refused),
        cmocka_unit_test(threads_are_those_of_our_launcher),
        cmocka_unit_test(job_names_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
