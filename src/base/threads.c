/* threads.c - the team: workers that are started when they are first needed, and one loop at a time.
 *
 * A loop's tasks are divided into shares, one a thread. What is left of a share is one word, so that a task is taken by one
 * compare-and-swap: the owner takes from the front, others from the back. The word also has the loop's number: a thread that looked at an
 * earlier loop's word cannot take from this one by mistake. Whoever has taken a task may use the loop's fields until it has reported the
 * task: the caller returns, and the next loop begins, only when all are reported. Nothing waits for a worker that has no task.
 *
 * A child of fork() has none of its parent's workers; it starts its own.
 */
#include "base/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "base/log.h"
#include "base/pulse.h"

enum {
    TASKS = 8,         /* least number of tasks per share in threads_for, */
    TASK_BLOCKS = 16,  /* or more, so that a task has at most this many blocks */
    TASKS_MOST = 4096, /* tasks of a loop; fits into 16 bits */
    MOVE_NS = 100000,  /* shortest time between two moves of a thread to another processor */
    SPIN_NS = 50000,   /* how long a thread without work spins before it sleeps */
};

struct share {
    _Alignas(64) _Atomic uint64_t left; /* number of the loop << 32 | first task << 16 | end */
    atomic_int cpu;                     /* processor that its owner last ran on */
};

static struct {
    atomic_int size;    /* threads in the team; 0: not yet chosen */
    atomic_int started; /* workers that exist, besides the caller */
    atomic_flag at_work;

    threads_range_fn *fn; /* the loop */
    void *ctx;
    size_t n, grain, blocks; /* blocks of `grain`, the last may be short */
    uint32_t tasks, number;
    atomic_int width; /* the team's size when it began */
    struct share shares[THREADS_MOST];
    atomic_int processor[THREADS_MOST]; /* processor that each thread last ran on; rarely written, so it stays in all caches */

    _Alignas(64) _Atomic uint32_t begun; /* loops so far; idle workers sleep on it */
    atomic_int asleep;
    _Alignas(64) _Atomic uint32_t done; /* tasks of this loop; its caller sleeps on it */
    atomic_bool awaited;
    _Alignas(64) _Atomic uint32_t resized; /* how often threads_set() was called: workers beyond the team's size sleep on it */
} team = { .at_work = ATOMIC_FLAG_INIT };

static _Thread_local bool in_loop;
static _Thread_local int assumed_threads; /* threads_assume() */
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;

static void futex_wait(_Atomic uint32_t *at, uint32_t value) { syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); }

static void futex_wake(_Atomic uint32_t *at) { syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0); }

static int64_t threads_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spins until (*at == value) == is: true; false after SPIN_NS. */
static bool spin_until(_Atomic uint32_t *at, uint32_t value, bool is)
{
    int64_t end = 0;

    for (int i = 1;; i++) {
        if ((atomic_load_explicit(at, memory_order_acquire) == value) == is) return true;
        __builtin_ia32_pause();
        if (i % 16) continue;
        if (end == 0)
            end = threads_clock() + SPIN_NS;
        else if (threads_clock() > end)
            return false;
    }
}

static uint64_t share_of(uint32_t number, uint64_t first, uint64_t end) { return (uint64_t)number << 32 | first << 16 | end; }

/* Takes a task of a share, the first or the last; false: nothing is left of it, or the loop has no place for this thread. */
static bool take(struct share *s, bool first, int thread, size_t *task)
{
    uint64_t left = atomic_load_explicit(&s->left, memory_order_acquire), rest;

    for (;;) {
        uint64_t begin = left >> 16 & 0xffff, end = left & 0xffff;

        if (begin == end || thread >= atomic_load_explicit(&team.width, memory_order_relaxed)) return false;
        *task = first ? begin : end - 1;
        rest = share_of((uint32_t)(left >> 32), first ? begin + 1 : begin, first ? end : end - 1);
        if (atomic_compare_exchange_weak_explicit(&s->left, &left, rest, memory_order_acq_rel, memory_order_acquire)) return true;
    }
}

static bool take_any(int thread, size_t *task)
{
    int width = atomic_load_explicit(&team.width, memory_order_relaxed);

    if (take(&team.shares[thread], true, thread, task)) return true;
    for (int i = 1; i < width; i++)
        if (take(&team.shares[(thread + i) % width], false, thread, task)) return true;
    return false;
}

/* The loop's fields hold until the task is reported. */
static void loop_run_task(size_t task, int thread)
{
    uint32_t tasks = team.tasks;
    size_t each = team.blocks / tasks, more = team.blocks % tasks;
    size_t first = task * each + MIN(task, more), end = first + each + (task < more);

    pulse();
    team.fn(team.ctx, first * team.grain, end == team.blocks ? team.n : end * team.grain, thread);
    if (atomic_fetch_add(&team.done, 1) + 1 == tasks && atomic_load(&team.awaited)) futex_wake(&team.done);
}

static bool is_taken(int processor, int thread, int width)
{
    for (int i = 0; i < width; i++)
        if (i != thread && atomic_load_explicit(&team.processor[i], memory_order_relaxed) == processor) return true;
    return false;
}

/* A worker that shares its processor with another thread of the team moves to one without, because the scheduler likes to put threads that
 * wait for each other on one processor, and leaves the other to a program that never waits. */
static void keep_apart(int thread)
{
    static _Thread_local int64_t moved;
    int processor = sched_getcpu(), width = atomic_load_explicit(&team.width, memory_order_relaxed);
    cpu_set_t all;

    if (atomic_load_explicit(&team.processor[thread], memory_order_relaxed) != processor)
        atomic_store_explicit(&team.processor[thread], processor, memory_order_relaxed);
    if (thread == 0 || !is_taken(processor, thread, width) || threads_clock() - moved < MOVE_NS) return;
    moved = threads_clock();
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    cpu_set_t apart = all;
    for (int i = 0; i < width; i++)
        if (i != thread) CPU_CLR(atomic_load_explicit(&team.processor[i], memory_order_relaxed), &apart);
    if (CPU_COUNT(&apart) > 0 && sched_setaffinity(0, sizeof apart, &apart) == 0) sched_setaffinity(0, sizeof all, &all);
}

/* Takes tasks until none is left. */
static void loop_take_tasks(int thread)
{
    for (size_t task; take_any(thread, &task);) {
        keep_apart(thread);
        loop_run_task(task, thread);
    }
}

static void wait_for_a_loop(uint32_t seen)
{
    if (spin_until(&team.begun, seen, false)) return;
    atomic_fetch_add(&team.asleep, 1);
    if (atomic_load(&team.begun) == seen) futex_wait(&team.begun, seen);
    atomic_fetch_sub(&team.asleep, 1);
}

static void *worker(void *arg)
{
    int thread = (int)(intptr_t)arg;

    in_loop = true;
    for (uint32_t seen;;) {
        uint32_t resized = atomic_load(&team.resized);

        if (thread >= atomic_load(&team.size)) {
            futex_wait(&team.resized, resized);
            continue;
        }
        seen = atomic_load(&team.begun);
        loop_take_tasks(thread);
        wait_for_a_loop(seen);
    }
    return NULL;
}

/* Signals go to the program's own threads, except those that an instruction of the worker raises. */
static void block_signals(sigset_t *before)
{
    static const int raised[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
    sigset_t all;

    sigfillset(&all);
    for (size_t i = 0; i < COUNT_OF(raised); i++) sigdelset(&all, raised[i]);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

/* Fewer workers than wanted are no error: the others take their tasks. */
static void start_workers(int wanted)
{
    pthread_attr_t attr;
    sigset_t before;
    pthread_t id;

    if (pthread_attr_init(&attr) != 0) return;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    block_signals(&before);
    for (int i = atomic_load(&team.started), error = 0; i < wanted && !error; i++)
        if ((error = pthread_create(&id, &attr, worker, (void *)(intptr_t)(i + 1))))
            log_line(LOG_WARN, "threads: %d of %d: %s", i + 1, wanted + 1, strerror(error));
    atomic_store(&team.started, wanted);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
}

static void forget_workers(void)
{
    atomic_store(&team.started, 0);
    atomic_store(&team.asleep, 0);
    atomic_store(&team.awaited, false);
    for (int i = 0; i < THREADS_MOST; i++) atomic_store(&team.shares[i].left, 0); /* shares of a loop that another thread had begun */
    atomic_flag_clear(&team.at_work);
}

static void install_fork_handler(void) { pthread_atfork(NULL, NULL, forget_workers); }

static int affinity_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return MAX(1, CPU_COUNT(&set));
}

void threads_set(int n)
{
    ASSERT(n >= 0);
    if (n == 0) n = affinity_cores();
    if (n > THREADS_MOST) log_line(LOG_WARN, "threads: a team has at most %d, not %d; using %d", THREADS_MOST, n, THREADS_MOST);
    n = MIN(n, THREADS_MOST);
    if (atomic_exchange(&team.size, n) == n) return;
    atomic_fetch_add(&team.resized, 1);
    futex_wake(&team.resized);
}

int threads_assume(int n)
{
    int before = assumed_threads;

    ASSERT(n >= 0 && n <= THREADS_MOST);
    assumed_threads = n;
    return before;
}

int threads_count(void)
{
    if (assumed_threads) return assumed_threads;
    if (atomic_load(&team.size) == 0) threads_set(0);
    return atomic_load(&team.size);
}

bool threads_inside(void) { return in_loop; }

/* Shares are published last: from then on, tasks are taken. The others' shares are empty, as the loop before left them. */
static void loop_begin(uint64_t size)
{
    uint32_t number = ++team.number;

    atomic_store(&team.done, 0);
    atomic_store(&team.width, (int)size);
    for (uint64_t i = 0; i < size; i++)
        atomic_store_explicit(&team.shares[i].left, share_of(number, team.tasks * i / size, team.tasks * (i + 1) / size),
                              memory_order_release);
    atomic_fetch_add(&team.begun, 1);
    if (atomic_load(&team.asleep) > 0) futex_wake(&team.begun);
}

static void loop_end(void)
{
    uint32_t done;

    if (spin_until(&team.done, team.tasks, true)) return;
    atomic_store(&team.awaited, true);
    while ((done = atomic_load(&team.done)) != team.tasks) futex_wait(&team.done, done);
    atomic_store(&team.awaited, false);
}

static void loop_run(size_t n, size_t grain, size_t most, threads_range_fn *fn, void *ctx)
{
    int size = threads_count();

    if (n == 0) return;
    grain = MAX(grain, 1);
    size_t blocks = n / grain + (n % grain != 0);
    size_t tasks = MIN(blocks, MIN(most, (size_t)TASKS_MOST));
    if (tasks == 1 || size == 1 || in_loop || assumed_threads || atomic_flag_test_and_set(&team.at_work)) {
        fn(ctx, 0, n, 0);
        return;
    }
    pthread_once(&watch_forks, install_fork_handler);
    if (atomic_load(&team.started) < size - 1) start_workers(size - 1);
    team.fn = fn;
    team.ctx = ctx;
    team.n = n;
    team.grain = grain;
    team.blocks = blocks;
    team.tasks = (uint32_t)tasks;
    in_loop = true;
    loop_begin((uint64_t)size);
    loop_take_tasks(0);
    loop_end();
    in_loop = false;
    atomic_flag_clear(&team.at_work);
}

void threads_for(size_t n, size_t grain, threads_range_fn *fn, void *ctx) { loop_run(n, grain, (size_t)threads_count() * TASKS, fn, ctx); }

void threads_each(size_t n, size_t grain, threads_range_fn *fn, void *ctx) { loop_run(n, grain, TASKS_MOST, fn, ctx); }
