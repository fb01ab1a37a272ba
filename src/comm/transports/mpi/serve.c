/* serve.c - handles control messages while the process computes and has nothing in flight.
 *
 * MPI makes no progress by itself, so a thread polls if nothing else has for SERVE_SECONDS. It enters the engine like any caller, so
 * MPI_THREAD_SERIALIZED is enough; it runs from the opening of the world until after its closing.
 */
#include "comm/transports/mpi/world.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

static pthread_mutex_t serve_lock = PTHREAD_MUTEX_INITIALIZER; /* guards serving, and mpi.links while the engine is not held */
static bool serving;

static bool serve_once(void) /* false: the world is closed */
{
    host->enter();
    pthread_mutex_lock(&serve_lock);
    bool open = serving = mpi.links != NULL;
    pthread_mutex_unlock(&serve_lock);
    if (open) look();
    host->leave();
    return open;
}

static void *serve(void *unused)
{
    const struct timespec pause = { 0, (long)(SERVE_SECONDS * 1e9) };

    do nanosleep(&pause, NULL);
    while (host->now() - mpi.looked < SERVE_SECONDS || serve_once());
    return unused;
}

static int start_thread(void)
{
    pthread_t thread;
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&thread, NULL, serve, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!failed) pthread_detach(thread);
    return failed;
}

ls_status serve_open(struct link *l)
{
    int failed = 0;

    pthread_mutex_lock(&serve_lock);
    if (!serving) failed = start_thread();
    if (!failed) {
        serving = true;
        mpi.links = l;
    }
    pthread_mutex_unlock(&serve_lock);
    return failed ? host->fail(LS_ENOMEM, "mpi: cannot start a thread (error %d)", failed) : LS_OK;
}
