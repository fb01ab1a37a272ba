/* nccl_end.c - the end of communicators, on threads of their own.
 *
 * ncclCommDestroy() and ncclCommAbort() block, also where the communicator is nonblocking. Destroying waits until all ranks of the node
 * have finalized theirs. Aborting waits until the streams have passed the calls that were enqueued, which may wait for calls of other
 * communicators; it may also wait for connections that a stopped rank keeps open. So each communicator has a thread: all abort at the same
 * time, and nothing waits for one that does not end. At the process's exit those that still run are given a moment; if one remains, the
 * process ends with its exit code even if something waits for it.
 */
#include "device/cuda/nccl_library.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "base/mem.h"

static const double MOMENT = 0.5;
enum { EXIT_SECONDS = 10 };

/* left: its group is closed. */
struct nccl_end {
    struct nccl_end *next;
    ncclComm_t comm;
    bool aborts, left;
    atomic_bool over;
};

static struct nccl_end *ends;

/* Without a GPU of its own the thread would make a context on the first one. */
static void *end_run(void *end)
{
    struct nccl_end *e = end;

    cudaSetDevice(cuda.gpu);
    if (e->aborts)
        nccl.CommAbort(e->comm);
    else
        nccl.CommDestroy(e->comm);
    atomic_store(&e->over, true);
    return NULL;
}

static bool ends_are_over(void)
{
    const struct nccl_end *e = ends;

    while (e && atomic_load(&e->over)) e = e->next;
    return !e;
}

/* Until e is over or, where e is NULL, all are; no longer than so many seconds. */
static void ends_wait(const struct nccl_end *e, double seconds)
{
    static const struct timespec nap = { .tv_nsec = 100000 };
    double began = cuda_now();

    while (!(e ? atomic_load(&e->over) : ends_are_over()) && cuda_now() - began < seconds) nanosleep(&nap, NULL);
}

/* ---- the process's exit ---- */

static void *exit_guard(void *code)
{
    sleep(EXIT_SECONDS);
    _exit((int)(intptr_t)code);
}

static void ends_at_exit(int code, void *unused)
{
    pthread_t thread;

    (void)unused;
    ends_wait(NULL, MOMENT);
    if (ends_are_over()) return;
    fflush(NULL);
    if (pthread_create(&thread, NULL, exit_guard, (void *)(intptr_t)code) == 0) pthread_detach(thread);
}

/* ---- the threads ---- */

/* Frees those that are over and whose groups are closed. */
static void ends_free(void)
{
    struct nccl_end **at = &ends;

    while (*at) {
        struct nccl_end *e = *at;

        if (!e->left || !atomic_load(&e->over)) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        mem_free(e);
    }
}

ls_status nccl_end_new(struct device_group *g)
{
    g->end = mem_zalloc(MEM_OTHER, sizeof *g->end);
    if (!g->end) return LS_ENOMEM;
    atomic_store(&g->end->over, true);
    g->end->next = ends;
    ends = g->end;
    return LS_OK;
}

void nccl_end_begin(struct device_group *g, bool aborts)
{
    struct nccl_end *e = g->end;
    static bool watched;
    pthread_t thread;

    e->comm = g->comm;
    e->aborts = aborts;
    if (!watched) on_exit(ends_at_exit, NULL);
    watched = true;
    atomic_store(&e->over, false);
    if (pthread_create(&thread, NULL, end_run, e) == 0)
        pthread_detach(thread);
    else
        atomic_store(&e->over, true);
}

bool nccl_end_is_over(const struct device_group *g) { return atomic_load(&g->end->over); }
void nccl_end_wait(const struct device_group *g, double seconds) { ends_wait(g->end, seconds); }

void nccl_end_leave(struct device_group *g)
{
    g->end->left = true;
    g->end = NULL;
    ends_free();
}
