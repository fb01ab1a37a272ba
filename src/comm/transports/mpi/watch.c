/* watch.c - sleeps, and detects that a process on this machine has ended.
 *
 * MPI signals neither that a message has arrived nor that a rank has died. The bell (row_wake) ends a sleep, and so does the end of any
 * rank's process on this machine: its pidfd becomes readable. A rank that has not sent BYE by then is lost, and the first rank that sees
 * this notifies all. Ranks on other machines are watched by their neighbors there, and by mpirun.
 */
#include "comm/transports/mpi/world.h"

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Processes with the same boot id and pid namespace see one another by pid. */
struct place {
    uint64_t boot, numbers;
    int64_t pid;
};

static uint64_t read_boot(void) /* of this machine since it started; 0: unknown */
{
    char text[64] = "";
    uint64_t hash = 1469598103934665603u;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");

    if (!f) return 0;
    if (!fgets(text, sizeof text, f)) hash = 0;
    fclose(f);
    for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return hash;
}

static int pidfd(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

static bool may_be_here(const struct place *mine, const struct place *its) { return !mine->boot || !its->boot || its->boot == mine->boot; }

static void watch_rank(int rank, const struct place *mine, const struct place *its)
{
    int fd;

    if (rank == mpi.rank || !mine->boot || its->boot != mine->boot || its->numbers != mine->numbers) return;
    mpi.peers[rank].pid = (int)its->pid;
    if ((fd = pidfd((pid_t)its->pid)) < 0) return; /* an old kernel, or the process has ended and mpirun reports it */
    mpi.watch[mpi.watches] = (struct pollfd){ fd, POLLIN, 0 };
    mpi.watched[mpi.watches++] = rank;
}

ls_status watch_open(void)
{
    struct stat numbers = { 0 };
    struct place mine = { read_boot(), stat("/proc/self/ns/pid", &numbers) ? 0 : numbers.st_ino, getpid() };
    struct place *all = host->zalloc(MEM_OTHER, (size_t)mpi.n * sizeof *all);

    if (!all) return LS_ENOMEM;
    mpi.here = 0;
    int code = MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, mpi.control);
    mpi.watch = host->zalloc(MEM_OTHER, (size_t)mpi.n * sizeof *mpi.watch);
    mpi.watched = host->zalloc(MEM_OTHER, (size_t)mpi.n * sizeof *mpi.watched);
    int bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (code == MPI_SUCCESS && mpi.watch && mpi.watched && bell >= 0) {
        mpi.watch[mpi.watches++] = (struct pollfd){ bell, POLLIN, 0 };
        for (int i = 0; i < mpi.n; i++) {
            watch_rank(i, &mine, &all[i]);
            mpi.here += may_be_here(&mine, &all[i]);
        }
    }
    host->free(all);
    if (code != MPI_SUCCESS) return mpi_refused(code, "exchanging addresses with the other ranks");
    if (bell < 0) return host->fail(LS_EIO, "mpi: no eventfd");
    return mpi.watches ? LS_OK : LS_ENOMEM;
}

/* The process of watch[i] has ended. */
static void gone(int i)
{
    close(mpi.watch[i].fd);
    mpi.watch[i].fd = -1;
    look(); /* it may have sent the reason, or BYE */
    if (!mpi.peers[mpi.watched[i]].left) end_job(LS_EPEER, "rank %d is lost: its process has ended", mpi.watched[i]);
}

int row_here(struct link *l)
{
    (void)l;
    return mpi.here;
}

enum process_doing row_doing(struct link *l, int rank)
{
    (void)l;
    return process_doing_of(mpi.peers[rank].pid ? host->state(mpi.peers[rank].pid) : 0);
}

void nap(double seconds)
{
    struct timespec t = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    uint64_t rung;

    if (ppoll(mpi.watch, (nfds_t)mpi.watches, &t, NULL) <= 0) return;
    if (mpi.watch[0].revents && read(mpi.watch[0].fd, &rung, sizeof rung) < 0) mpi.watch[0].revents = 0; /* it has stopped ringing */
    for (int i = 1; i < mpi.watches; i++)
        if (mpi.watch[i].fd >= 0 && mpi.watch[i].revents) gone(i);
}

void row_wake(struct link *l)
{
    uint64_t one = 1;

    (void)l;
    if (write(mpi.watch[0].fd, &one, sizeof one) < 0) return; /* it rings already */
}
