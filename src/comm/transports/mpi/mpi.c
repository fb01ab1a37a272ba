/* mpi.c - messages over MPI: a module that is built once per implementation. See host.h, and world.h for its files.
 *
 * MPI-3.1 with MPI_THREAD_SERIALIZED: the engine's lock is held around every call. Ranks are those of MPI_COMM_WORLD; all
 * traffic runs over two duplicates of it, so that no communicator is made later (which would block without a deadline, and
 * of which MPICH has some two thousand):
 *
 *   data     a link has a range of tags that is free on all its members (agree()): range s, 0 .. TAG_RANGES - 1, is the tags
 *            s * TAGS + 2 * channel, of heads, and that + 1, of bodies. A message is a head { signature, bytes } followed by the payload if
 *            that is at most INLINE_BYTES, else a head and the payload in chunks of CHUNK bytes. A receiver posts the head and the first
 *            chunk at once; only the head determines what it receives.
 *   control  VERDICT ends the job's communication: status and line. ASK asks for the rank's latest call, ANSWER gives it.
 *            BYE: the process is leaving. An answer also carries the rank's board (comm/failure/board.h): its last sign of progress and the
 *            call it waits in. A rank of another machine that is stopped does not answer; one of this machine is seen to be stopped.
 *
 * Control messages are polled whenever the engine calls idle(), failed() or peek(), and now and then by a thread (serve.c) while a process
 * computes: so it answers even if it has nothing in flight.
 *
 * The end. MPI can be started once in a process, so it outlives its links and ends in an exit handler. There a rank that exits with a code
 * other than 0 notifies the others first, as fail() does; each sends BYE, and waits for the BYE of all: without a limit if nothing has
 * failed (MPI_Finalize also waits without a limit), for LINGER_SECONDS after a failure. By then each has printed its line. MPI_Abort cannot
 * be used: the first rank that calls it, or that exits with a code other than 0, gets the others killed. When all have sent BYE,
 * MPI_Finalize is called, after a failure under guard(), because it may not return then; if one has not, the process ends without it.
 * mpirun of both implementations returns the ranks' code, 3, Open MPI with some lines of its own.
 *
 * When a rank is killed, the others on its machine see it at once (watch.c) and notify all, but mpirun sees it, too, kills them (Open MPI
 * with SIGTERM, and a second later with SIGKILL; MPICH with SIGKILL), and returns 128 + the signal's number (Open MPI) or that number
 * (MPICH).
 */
#include "comm/transports/mpi/world.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

const struct mpi_host *host;
struct mpi mpi;

static bool all_left(void)
{
    for (int i = 0; i < mpi.n; i++)
        if (i != mpi.rank && !mpi.peers[i].left) return false;
    return true;
}

static bool all_sent(void)
{
    bool all = true;

    for (int i = 0; i < mpi.n; i++) {
        struct peer *p = &mpi.peers[i];
        all &= over(&p->verdict) && over(&p->ask) && over(&p->answer) && over(&p->bye);
    }
    return all;
}

/* ---- calls of MPI that may never return ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t over;
    pthread_t thread;
    bool done;
    struct timespec until;
    int code;
    const char *line;
} watchdog = { .lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER };

static void *guard(void *unused)
{
    int st = 0;

    pthread_mutex_lock(&watchdog.lock);
    while (!watchdog.done && st != ETIMEDOUT) st = pthread_cond_timedwait(&watchdog.over, &watchdog.lock, &watchdog.until);
    if (!watchdog.done) {
        if (watchdog.line) fprintf(stderr, "%s\n", watchdog.line);
        _exit(watchdog.code);
    }
    pthread_mutex_unlock(&watchdog.lock);
    return unused;
}

/* Ends the process with this code, and this line on standard error, unless guard_stop() comes within so many seconds. */
static bool guard_start(double seconds, int code, const char *line)
{
    fflush(NULL);
    clock_gettime(CLOCK_REALTIME, &watchdog.until);
    watchdog.until.tv_sec += (time_t)seconds;
    watchdog.done = false;
    watchdog.code = code;
    watchdog.line = line;
    return pthread_create(&watchdog.thread, NULL, guard, NULL) == 0;
}

static void guard_stop(void)
{
    pthread_mutex_lock(&watchdog.lock);
    watchdog.done = true;
    pthread_cond_signal(&watchdog.over);
    pthread_mutex_unlock(&watchdog.lock);
    pthread_join(watchdog.thread, NULL);
}

/* ---- the end ---- */

static void leave(int code, void *unused)
{
    double since = host->now();

    (void)unused;
    if (mpi.pid != getpid()) return;
    host->enter(); /* and never leaves: no other thread calls MPI any more */
    if (code != 0) end_job(LS_EPEER, "rank %d " EXITED_WITH, mpi.rank, code);
    mpi.leaving = true;
    for (int i = 0; i < mpi.n; i++)
        if (i != mpi.rank) MPI_Isend(NULL, 0, MPI_BYTE, i, BYE, mpi.control, &mpi.peers[i].bye);
    while (!(all_left() && all_sent()) && !(mpi.failed && host->now() - since > LINGER_SECONDS)) {
        look();
        nap(200e-6);
    }
    if (!mpi.ours || (mpi.failed && !(all_left() && guard_start(LINGER_SECONDS, code, NULL)))) return;
    MPI_Comm_free(&mpi.control);
    MPI_Comm_free(&mpi.data);
    MPI_Finalize();
    host->free(mpi.peers);
    host->free(mpi.watch);
    host->free(mpi.watched);
}

/* ---- the start ---- */

/* A rank that fails before this point leaves the others in MPI_Init: Open MPI's mpirun kills them, MPICH's does not. */
static ls_status init(double timeout)
{
    int had = 0, ended = 0, level = MPI_THREAD_SINGLE, code = MPI_SUCCESS;

    MPI_Initialized(&had);
    MPI_Finalized(&ended);
    if (ended) return host->fail(LS_EINVAL, "mpi: MPI_Finalize has been called in this process");
    if (had) {
        MPI_Query_thread(&level);
    } else {
        if (!guard_start(timeout, 3, "lockstep: mpi: not all ranks called MPI_Init within the deadline"))
            return host->fail(LS_ENOMEM, "mpi: cannot start a thread");
        /* With more ranks than cores Open MPI yields the processor in each poll, which beside a busy process costs a time slice; the engine
         * yields where that is quick. */
        setenv("OMPI_MCA_mpi_yield_when_idle", "0", false);
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
        guard_stop();
    }
    if (code != MPI_SUCCESS) return host->fail(LS_EPEER, "mpi: MPI_Init_thread failed");
    mpi.ours = !had;
    if (level < MPI_THREAD_SERIALIZED)
        return host->fail(LS_EUNSUPPORTED, "mpi: this MPI provides thread level %d; MPI_THREAD_SERIALIZED (%d) is required", level,
                          MPI_THREAD_SERIALIZED);
    return LS_OK;
}

/* Called once per process. */
static ls_status mpi_start(double timeout)
{
    if (mpi.started) return LS_OK;
    LS_TRY(init(timeout));
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi.n);
    if (!(mpi.peers = host->zalloc(MEM_OTHER, (size_t)mpi.n * sizeof *mpi.peers))) return LS_ENOMEM;
    for (int i = 0; i < mpi.n; i++) mpi.peers[i].verdict = mpi.peers[i].ask = mpi.peers[i].answer = mpi.peers[i].bye = MPI_REQUEST_NULL;
    if (MPI_Comm_dup(MPI_COMM_WORLD, &mpi.data) != MPI_SUCCESS || MPI_Comm_dup(MPI_COMM_WORLD, &mpi.control) != MPI_SUCCESS)
        return host->fail(LS_EPEER, "mpi: MPI_Comm_dup failed");
    MPI_Comm_set_errhandler(mpi.data, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(mpi.control, MPI_ERRORS_RETURN);
    LS_TRY(watch_open());
    mpi.pid = getpid();
    on_exit(leave, NULL);
    mpi.started = true;
    return LS_OK;
}

ls_status row_open(const char *rest, int rank, int n, double timeout, struct link **out)
{
    struct link *l = NULL;

    if (*rest) return host->fail(LS_EINVAL, "mpi:%s: 'mpi:' takes no name", rest);
    LS_TRY(mpi_start(timeout));
    if (mpi.failed) return verdict();
    if (mpi.links) return host->fail(LS_EINVAL, "mpi: the world is open already in this process");
    if (rank != mpi.rank || n != mpi.n)
        return host->fail(LS_EINVAL,
                          "rank %d of %d is what the launcher's variables say, but MPI says rank %d of %d: mpirun and the module are of "
                          "different MPI implementations, or a variable is wrong (see LOCKSTEP_MPI)",
                          rank, n, mpi.rank, mpi.n);
    LS_TRY(link_open(n, NULL, rank, 1, "world", timeout, &l));
    ls_status st = serve_open(l);
    if (st < 0)
        link_free(l);
    else
        *out = l;
    return st;
}

const struct transport row = {
    .name = "mpi",
    .yield_seconds = 1e-3,
    .open = row_open,
    .split = row_split,
    .close = row_close,
    .start = row_start,
    .poll = row_poll,
    .idle = row_idle,
    .peek = row_peek,
    .see = row_see,
    .doing = row_doing,
    .here = row_here,
    .board = row_board,
    .fail = row_fail,
    .failed = row_failed,
    .note = row_note,
    .wake = row_wake,
};

__attribute__((visibility("default"))) const struct transport *lockstep_mpi_row(const struct mpi_host *h);

const struct transport *lockstep_mpi_row(const struct mpi_host *h)
{
    if (h->shape != MPI_HOST_SHAPE) return NULL;
    host = h;
    return &row;
}
