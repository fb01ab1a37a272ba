/* mpi_load.c - finds and loads the MPI module: lockstep_openmpi.so or lockstep_mpich.so, when "mpi:" is first used.
 *
 * One binary works with both implementations, and on machines without MPI. Which module: LOCKSTEP_MPI=openmpi or mpich, if set; that of the
 * launcher whose variables are set (OMPI_*, PMIX_*: Open MPI; PMI_*: MPICH); else the first that is found. Where: base/module.h.
 * The module's libraries are loaded with RTLD_GLOBAL, because Open MPI's own plugins look for them there, and stay.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/module.h"
#include "comm/engine/engine.h"
#include "comm/transports/mpi/host.h"
#include "comm/transports/shm/shm.h"

enum { PATH_ROOM = 4096 };

static const char *const mpi_load_names[] = { "openmpi", "mpich" };

static const struct mpi_host mpi_load_host = {
    .shape = MPI_HOST_SHAPE,
    .fail = ls_fail,
    .mismatch = comm_mismatch,
    .agrees = signature_agrees,
    .message = ls_errmsg,
    .now = base_now,
    .enter = engine_enter,
    .leave = engine_leave,
    .zalloc = mem_zalloc,
    .free = mem_free,
    .copy_board = board_copy,
    .state = process_state,
};

/* Index of the implementation in names[]; -1: any. */
static ls_status mpi_load_choose(int *out)
{
    const char *said = getenv("LOCKSTEP_MPI");

    *out = -1;
    if (said && *said) {
        for (size_t i = 0; i < COUNT_OF(mpi_load_names); i++)
            if (!strcmp(said, mpi_load_names[i])) *out = (int)i;
        return *out >= 0 ? LS_OK : ls_fail(LS_EINVAL, "LOCKSTEP_MPI=%s: unknown MPI implementation; use openmpi or mpich", said);
    }
    if (getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK"))
        *out = 0;
    else if (getenv("PMI_RANK") || getenv("PMI_SIZE") || getenv("PMI_FD"))
        *out = 1;
    return LS_OK;
}

static ls_status mpi_load_load(const char *path, const struct transport **out)
{
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    mpi_module_fn *entry;

    if (!module) return ls_fail(LS_EUNSUPPORTED, "mpi: %s", dlerror());
    *(void **)&entry = dlsym(module, MPI_MODULE_ENTRY);
    if (!entry) return ls_fail(LS_EUNSUPPORTED, "mpi: %s is not a module of lockstep", path);
    if (!(*out = entry(&mpi_load_host))) return ls_fail(LS_EUNSUPPORTED, "mpi: %s belongs to another version of lockstep", path);
    return LS_OK;
}

const char *mpi_module_name(size_t i) { return i < COUNT_OF(mpi_load_names) ? mpi_load_names[i] : NULL; }

bool mpi_module_find(size_t i, char *path, size_t room) { return module_find(mpi_load_names[i], path, room); }

static ls_status find(const struct transport **out)
{
    static char path[PATH_ROOM + 32], folders[3 * PATH_ROOM];
    int wanted;

    LS_TRY(mpi_load_choose(&wanted));
    for (size_t which = 0; which < COUNT_OF(mpi_load_names); which++)
        if ((wanted < 0 || (int)which == wanted) && mpi_module_find(which, path, sizeof path)) return mpi_load_load(path, out);
    return ls_fail(LS_EUNSUPPORTED, "mpi: lockstep_%s.so is neither in %s", wanted >= 0 ? mpi_load_names[wanted] : "*",
                   module_folders(folders, sizeof folders));
}

ls_status transport_mpi(const struct transport **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const struct transport *loaded;

    pthread_mutex_lock(&lock);
    ls_status st = loaded ? LS_OK : find(&loaded);
    if (st == LS_OK) *out = loaded;
    pthread_mutex_unlock(&lock);
    return st;
}
