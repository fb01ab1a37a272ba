/* shared_clock.c - a library for LD_PRELOAD: the clocks of `lockstep train -n N` in a test, monotonic and time of day. They pass only while
 * all ranks run.
 *
 * A rank that gets no core for seconds, or is stopped, or has not started yet, stops the clock of all ranks and of the launcher, so no
 * timeout passes meanwhile, and no rank is late because the machine is busy. Only a rank that the test has excluded can be late: the others
 * then see time pass, at most as fast as real time.
 *
 * The file LOCKSTEP_SHARED_CLOCK, which is new for each run, holds the clock. Its byte r is written by the test (late() in script.sh) or by
 * the injected fault in rank r (shared_clock_exclude()):
 *
 *     0   rank r is waited for
 *     T   it is excluded while it is stopped
 *     R   it is excluded while it is not: the fault is not a stop, and stopping it must not look like one
 *
 * The rank LOCKSTEP_STOPPED_RANK stops itself before anything else.
 *
 * A rank is the process in which RANK is set. It runs when its first thread reads the clock, since that is the thread that the others wait
 * for. Each of these reads lets the rank's own time pass, by MOST at most, and the clock is the least of these times. The launcher only
 * reads it. When no rank is left to wait for, the clock passes like the system's again. If it stands still, each read moves it by a tick,
 * so that a thread that spins for microseconds still ends. What a rank measures of itself (its peak, which instructions are fast) means
 * nothing on this clock.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MOST = 64 };

static const double MOST = 0.1, TICK = 1e-6; /* seconds; after a second or more between two reads a comm assumes that it was stopped */

struct shared_clock {
    _Atomic char excluded[RANKS_MOST];
    _Atomic int n; /* 0: no rank has started */
    _Atomic double now, read; /* read: the system's time of the last read */
    _Atomic double epoch;     /* the time of day when the monotonic clock was 0 */
    struct {
        _Atomic int pid; /* 0: it has not started */
        _Atomic double time; /* 0: its first thread has not read the clock */
    } rank[RANKS_MOST];
};

static struct shared_clock *clock_shared;
static int self = -1;
static double read_before; /* of this rank's first thread */

void shared_clock_exclude(bool while_stopped);

static double system_time(clockid_t clock)
{
    struct timespec t;

    syscall(SYS_clock_gettime, clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* x = max(x, least) */
static void raise_to(_Atomic double *x, double least)
{
    double old = atomic_load(x);

    while (old < least && !atomic_compare_exchange_weak(x, &old, least)) continue;
}

static int number_in(const char *name)
{
    const char *text = getenv(name);

    return text ? atoi(text) : -1;
}

__attribute__((constructor)) static void shared_clock_open(void)
{
    const char *path = getenv("LOCKSTEP_SHARED_CLOCK");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1, n = number_in("WORLD_SIZE"), rank = number_in("RANK");
    double start = system_time(CLOCK_MONOTONIC), none = 0, unset = 0;

    if (fd < 0) return;
    if (ftruncate(fd, sizeof *clock_shared) != 0) abort();
    void *at = mmap(NULL, sizeof *clock_shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED || rank >= RANKS_MOST || n > RANKS_MOST) abort();
    close(fd);
    clock_shared = at;
    atomic_compare_exchange_strong(&clock_shared->epoch, &unset, system_time(CLOCK_REALTIME) - start);
    if (atomic_compare_exchange_strong(&clock_shared->now, &none, start)) atomic_store(&clock_shared->read, start);
    if (rank < 0) return;
    self = rank;
    read_before = start;
    atomic_store(&clock_shared->rank[rank].pid, (int)getpid());
    atomic_store(&clock_shared->n, n);
    if (rank == number_in("LOCKSTEP_STOPPED_RANK")) raise(SIGSTOP);
}

static bool is_stopped(int pid)
{
    char path[40], line[512];

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, line, sizeof line - 1);
    close(fd);
    line[got > 0 ? got : 0] = '\0';
    char *end = strrchr(line, ')');
    return end && end[1] && (end[2] == 'T' || end[2] == 't');
}

static bool is_waited_for(int rank)
{
    int pid = atomic_load(&clock_shared->rank[rank].pid);
    char how = atomic_load(&clock_shared->excluded[rank]);

    if (pid && kill(pid, 0) != 0 && errno == ESRCH) return false;
    return !how || is_stopped(pid) != (how == 'T');
}

/* The least time of the ranks that are waited for; INFINITY: no rank is waited for. */
static double least_time(void)
{
    double least = INFINITY;

    for (int r = 0; r < atomic_load(&clock_shared->n); r++) {
        double time = atomic_load(&clock_shared->rank[r].time);

        if (time < least && is_waited_for(r)) least = time;
    }
    return least;
}

/* This rank's first thread runs. */
static void pass_own(double now, double real)
{
    _Atomic double *own = &clock_shared->rank[self].time;
    double time = atomic_load(own) > now ? atomic_load(own) : now, passed = real - read_before;

    read_before = real;
    time += passed < MOST ? passed : MOST;
    atomic_store(own, time < now + MOST ? time : now + MOST);
}

static double shared_time(double real)
{
    double now = atomic_load(&clock_shared->now), read = atomic_exchange(&clock_shared->read, real);

    if (atomic_load(&clock_shared->n) == 0) {
        raise_to(&clock_shared->now, now + TICK);
        return now;
    }
    if (self >= 0 && gettid() == getpid()) pass_own(now, real);
    double least = least_time();
    raise_to(&clock_shared->now, isfinite(least) ? least : now + (real > read ? real - read : 0));
    raise_to(&clock_shared->now, now + TICK);
    return atomic_load(&clock_shared->now);
}

void shared_clock_exclude(bool while_stopped)
{
    if (clock_shared && self >= 0) atomic_store(&clock_shared->excluded[self], while_stopped ? 'T' : 'R');
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int saved = errno;

    if (!clock_shared || (clock != CLOCK_MONOTONIC && clock != CLOCK_MONOTONIC_COARSE && clock != CLOCK_REALTIME))
        return (int)syscall(SYS_clock_gettime, clock, out);
    double now = shared_time(system_time(CLOCK_MONOTONIC)) + (clock == CLOCK_REALTIME ? atomic_load(&clock_shared->epoch) : 0);
    out->tv_sec = (time_t)now;
    out->tv_nsec = (long)((now - (double)out->tv_sec) * 1e9);
    errno = saved;
    return 0;
}
