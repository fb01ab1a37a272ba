/* lab.h - what every lab needs: each prints what is claimed beside what it measures, and exits 0 when the claim
 * holds. */
#ifndef LAB_H
#define LAB_H

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "lockstep/comm.h"
#include "lockstep/status.h"

#define SIZES(...) (int)(sizeof((size_t[]){ __VA_ARGS__ }) / sizeof(size_t)), (size_t[]){ __VA_ARGS__ }

/* Ends the program when a call of the library fails. */
#define TRY(call)                                                              \
    do {                                                                       \
        if ((call) < 0) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, ls_errmsg());   \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static int lab_broken;

static inline void lab_open(const char *id, const char *claim)
{
    printf("%s: %s\n\n%-62s %14s %14s\n", id, claim, "", "claimed", "measured");
}

static inline void lab_mark(int holds)
{
    printf("%s\n", holds ? "" : "   does not hold");
    lab_broken += !holds;
}

/* measured is claimed, to within `most` of it (of 1 when 0 is claimed). */
static inline void lab_equal(const char *what, double claimed, double measured, double most)
{
    printf("%-62s %14.6g %14.6g", what, claimed, measured);
    lab_mark(fabs(measured - claimed) <= most * (claimed != 0 ? fabs(claimed) : 1));
}

static inline void lab_below(const char *what, double claimed, double measured)
{
    printf("%-62s %5s %8.6g %14.6g", what, "below", claimed, measured);
    lab_mark(measured < claimed);
}

static inline void lab_above(const char *what, double claimed, double measured)
{
    printf("%-62s %5s %8.6g %14.6g", what, "above", claimed, measured);
    lab_mark(measured > claimed);
}

/* Ranks that share a machine share its cores: this one keeps to one of those that it may use, and so does its team. */
static inline void lab_one_core(int rank)
{
    cpu_set_t may, one;
    int turn;

    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof may, &may) != 0) return;
    turn = rank % CPU_COUNT(&may);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &may) && turn-- == 0) CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* What a rank does. shared: of lab_shared(), the same memory in all of them. */
typedef void lab_rank(ls_comm *comm, int rank, int n, void *shared);

static inline void lab_child(const char *where, int rank, int n, lab_rank *run, void *shared)
{
    ls_comm *comm;

    lab_one_core(rank);
    TRY(ls_comm_open(where, rank, n, &comm));
    run(comm, rank, n, shared);
    ls_comm_close(&comm);
    fflush(stdout);
    _exit(0);
}

/* Runs n ranks as processes over shared memory. They leave in shared what they found. Before the lab itself compiles a program:
 * they inherit how many threads it computes on. */
static inline void lab_ranks(int n, lab_rank *run, void *shared)
{
    static int worlds;
    char where[64];
    int failed = 0, status;

    snprintf(where, sizeof where, "shm:lab-%d-%d", (int)getpid(), worlds++);
    fflush(stdout);
    for (int r = 0; r < n; r++) {
        pid_t child = fork();

        if (child == 0) lab_child(where, r, n, run, shared);
        if (child < 0) exit(1);
    }
    for (int r = 0; r < n; r++) failed += wait(&status) < 0 || status != 0;
    if (failed) exit(1);
}

/* Zeroed memory that lab_ranks()'s ranks share. */
static inline void *lab_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) exit(1);
    return p;
}

static inline int lab_close(void)
{
    printf("\n%s\n", lab_broken ? "The claim does not hold." : "The claim holds.");
    return lab_broken != 0;
}

#endif
