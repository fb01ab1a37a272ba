/* helper_clock.c - see helper_clock.h. */
#include "helper_clock.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/base.h"
#include "helper_ranks.h"

enum { BEGIN = 1000 }; /* seconds; 0 has a meaning of its own in places */

struct test_clock {
    _Atomic double now;
    int n;
    struct {
        _Atomic uint64_t reads;
        _Atomic pid_t pid; /* 0: it does not use the clock yet */
        _Atomic bool stopped, left;
    } rank[RANKS_MOST];
};

static struct test_clock *used;
static int self = -1;

static double test_clock_now(void)
{
    atomic_fetch_add(&used->rank[self].reads, 1);
    return atomic_load(&used->now);
}

static struct test_clock *clock_map(int fd, int flags)
{
    void *p = mmap(NULL, sizeof(struct test_clock), PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);

    ASSERT(p != MAP_FAILED);
    return p;
}

static struct test_clock *clock_begin(struct test_clock *c, int n)
{
    ASSERT(n <= RANKS_MOST);
    c->n = n;
    if (atomic_load(&c->now) == 0) atomic_store(&c->now, BEGIN);
    return c;
}

struct test_clock *test_clock_open(int n) { return clock_begin(clock_map(-1, MAP_ANONYMOUS), n); }

struct test_clock *test_clock_open_file(const char *path, int n)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    ASSERT(fd >= 0 && ftruncate(fd, sizeof(struct test_clock)) == 0);
    struct test_clock *c = clock_map(fd, 0);
    close(fd);
    return clock_begin(c, n);
}

void test_clock_close(struct test_clock **c)
{
    if (*c) munmap(*c, sizeof **c);
    *c = NULL;
}

void test_clock_use(struct test_clock *c, int rank)
{
    used = c;
    self = rank;
    atomic_store(&c->rank[rank].pid, getpid());
    base_test_clock = test_clock_now;
}

static double clock_by_reads(void)
{
    static atomic_uint_fast64_t reads;

    return BEGIN + 1e-6 * (double)atomic_fetch_add(&reads, 1);
}

void test_clock_by_reads(void) { base_test_clock = clock_by_reads; }

void test_clock_stop(void) { atomic_store(&used->rank[self].stopped, true); }

bool test_clock_stopped(const struct test_clock *c, int rank) { return atomic_load(&c->rank[rank].stopped); }

void test_clock_leave(void) { atomic_store(&used->rank[self].left, true); }

void test_clock_move(double seconds) { atomic_store(&used->now, atomic_load(&used->now) + seconds); }

/* Some rank has left, or has ended: a test that fails on one rank ends on the others too. */
static bool has_left(const struct test_clock *c)
{
    for (int r = 0; r < c->n; r++) {
        pid_t pid = atomic_load(&c->rank[r].pid);

        if (atomic_load(&c->rank[r].left) || (pid && kill(pid, 0) != 0)) return true;
    }
    return false;
}

static bool clock_step(struct test_clock *c, int by, double seconds)
{
    uint64_t before[RANKS_MOST];

    for (int r = 0; r < c->n; r++) before[r] = atomic_load(&c->rank[r].reads);
    atomic_store(&c->now, atomic_load(&c->now) + seconds);
    for (int r = 0; r < c->n; r++) {
        while (r != by && !test_clock_stopped(c, r) && atomic_load(&c->rank[r].reads) - before[r] < TEST_CLOCK_READS) {
            if (has_left(c)) return false;
            ranks_poll_pause();
        }
    }
    return !has_left(c);
}

bool test_clock_step(double seconds) { return clock_step(used, self, seconds); }

bool test_clock_step_all(struct test_clock *c, double seconds) { return clock_step(c, -1, seconds); }
