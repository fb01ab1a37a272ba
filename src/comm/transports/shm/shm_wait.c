/* shm_wait.c - waiting for other processes, and detecting that one has ended.
 *
 * A rank sleeps on its bell. Before that it sets a flag, and its caller checks everything once more; a rank that stores a word that it may
 * wait for checks the flag after a fence: one of the two sees the other. The rank that rings clears the flag, so that no rank rings again
 * while the sleeper waits for a core. Sleeps are short anyway, because peers must be checked.
 *
 * The end of a process is detected by its pidfd (also as a zombie), or, without pidfds, by /proc/PID/stat. If a launcher created the
 * region, it knows how the process ended, so its report is awaited for a moment.
 */
#include "comm/transports/shm/shm.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_SECONDS  0.02 /* between two checks of the peers: the longest sleep */
#define LAUNCHER_WORD 0.25 /* time that the launcher has to report how a rank ended */

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, double seconds)
{
    struct timespec t = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };

    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0); }

bool wait_sleeps(const struct region *s, int rank) { return atomic_load_explicit(&s->cell[rank].asleep, memory_order_relaxed); }

void wait_ring(struct region *s, int rank)
{
    struct cell *c = &s->cell[rank];

    if (rank == s->rank) return;
    atomic_thread_fence(memory_order_seq_cst);
    if (!wait_sleeps(s, rank) || !atomic_exchange(&c->asleep, 0)) return;
    atomic_fetch_add(&c->bell, 1);
    futex_wake(&c->bell);
}

void wait_ring_self(struct region *s)
{
    atomic_fetch_add(&s->cell[s->rank].bell, 1);
    futex_wake(&s->cell[s->rank].bell);
}

void wait_moved(struct region *s)
{
    if (!s->armed) return;
    atomic_store(&s->cell[s->rank].asleep, 0);
    s->armed = false;
}

char process_state(int pid)
{
    char path[40], line[512];

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, line, sizeof line - 1);
    close(fd);
    line[got > 0 ? got : 0] = '\0';
    char *name_end = strrchr(line, ')');
    return name_end && name_end[1] ? name_end[2] : 0;
}

static bool ended_by_proc(int pid)
{
    char state = kill(pid, 0) == 0 ? process_state(pid) : 'X';

    return state == 'Z' || state == 'X';
}

enum process_doing rank_doing(const struct region *s, int rank) { return process_doing_of(process_state(atomic_load(&s->cell[rank].pid))); }

static bool in_job(const struct region *s, int rank)
{
    return rank != s->rank && atomic_load(&s->cell[rank].joined) >= s->round && !rank_left(s, rank);
}

/* The first rank whose process ended without leaving; -1: none. */
static int find_dead(struct region *s)
{
    for (int i = 0; i < s->control->n; i++) {
        if (!in_job(s, i)) continue;
        int pid = atomic_load(&s->cell[i].pid);
        if (s->watch[i] < 0) s->watch[i] = (int)syscall(SYS_pidfd_open, pid, 0);
        struct pollfd p = { .fd = s->watch[i], .events = POLLIN };
        bool ended = s->watch[i] < 0 ? ended_by_proc(pid) : poll(&p, 1, 0) == 1;
        if (ended && in_job(s, i)) return i; /* not one that left between the two checks */
    }
    return -1;
}

static ls_status look_at_peers(struct region *s, double now)
{
    int rank = find_dead(s);
    char line[80];

    s->looked = now;
    if (rank < 0) return LS_OK;
    if (!s->dead) s->dead = now;
    if (s->control->launcher && now - s->dead < LAUNCHER_WORD) return LS_OK;
    snprintf(line, sizeof line, "rank %d is gone: its process %d ended", rank, (int)atomic_load(&s->cell[rank].pid));
    region_end(s, LS_EPEER, line);
    return region_ended(s);
}

static void sleep_for(struct region *s, double seconds)
{
    struct cell *c = &s->cell[s->rank];

    if (!s->armed) {
        s->heard = atomic_load(&c->bell);
        atomic_store(&c->asleep, 1);
        atomic_thread_fence(memory_order_seq_cst);
        s->armed = true;
        return;
    }
    futex_wait(&c->bell, s->heard, MIN(seconds, LOOK_SECONDS));
    wait_moved(s);
}

ls_status wait_idle(struct region *s, double seconds)
{
    double now = base_now();

    LS_TRY(region_ended(s));
    if (now - s->looked >= LOOK_SECONDS) LS_TRY(look_at_peers(s, now));
    sleep_for(s, seconds);
    return LS_OK;
}

bool rank_left(const struct region *s, int rank) { return atomic_load_explicit(&s->cell[rank].left, memory_order_acquire) >= s->round; }

ls_status wait_left(struct region *s, int rank)
{
    char line[80];

    snprintf(line, sizeof line, "rank %d left: it closed its comm while other ranks still need it", rank);
    region_end(s, LS_EPEER, line);
    return region_ended(s);
}
