/* threads.c - loops on libgomp's team, through its exported entry points.
 *
 * The entry points are declared here by hand, so that no file needs -fopenmp and gcc and clang builds share
 * one runtime with oneDNN. omp_set_num_threads() applies to the thread that calls it: oneDNN follows threads_set() in that thread.
 *
 * A child of fork() inherits libgomp's record of a team but none of its threads, and would wait for them forever. So a child whose parent
 * had used a team stays on one thread, and threads_set() logs this.
 */
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include "base/base.h"
#include "base/pulse.h"
#include "base/log.h"

void GOMP_parallel(void (*fn)(void *), void *data, unsigned num_threads, unsigned flags);
void omp_set_num_threads(int n);
int omp_get_num_threads(void);
int omp_get_thread_num(void);
int omp_in_parallel(void);

#if defined(__SANITIZE_THREAD__)
#define THREADS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREADS_TSAN 1
#endif
#endif

/* libgomp is not instrumented: tell ThreadSanitizer where its fork and join order memory. */
#ifdef THREADS_TSAN
void __tsan_acquire(void *at);
void __tsan_release(void *at);
#define ORDER_ACQUIRE(at) __tsan_acquire(at)
#define ORDER_RELEASE(at) __tsan_release(at)
#else
#define ORDER_ACQUIRE(at) ((void)(at))
#define ORDER_RELEASE(at) ((void)(at))
#endif

static atomic_int team;          /* 0: not yet chosen */
static atomic_bool team_started; /* libgomp has threads in this process */
static atomic_bool team_lost;    /* libgomp had threads in the parent */
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;

static int affinity_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return MAX(1, CPU_COUNT(&set));
}

static void after_fork_in_child(void)
{
    if (!atomic_load(&team_started)) return;
    atomic_store(&team_lost, true);
    atomic_store(&team, 1);
    omp_set_num_threads(1);
}

static void install_fork_handler(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

void threads_set(int n)
{
    ASSERT(n >= 0);
    if (n == 0) n = affinity_cores();
    if (n > 1 && atomic_load(&team_lost)) {
        log_line(LOG_WARN, "threads: 1 of %d: this process was forked from one whose team was at work", n);
        n = 1;
    }
    atomic_store(&team, n);
    omp_set_num_threads(n);
}

int threads_count(void)
{
    if (atomic_load(&team) == 0) threads_set(0);
    return atomic_load(&team);
}

struct loop {
    threads_range_fn *fn;
    void *ctx;
    size_t n, grain, blocks; /* blocks of `grain`, the last may be short */
    size_t parts;            /* threads_for: ranges, one a thread */
    atomic_size_t next;      /* threads_each: first block not handed out */
};

static void call_blocks(struct loop *l, size_t first, size_t end, int thread)
{
    pulse();
    l->fn(l->ctx, first * l->grain, end == l->blocks ? l->n : end * l->grain, thread);
}

/* The runtime may start fewer threads than requested: then a thread takes several parts. */
static void run_parts(void *data)
{
    struct loop *l = data;

    ORDER_ACQUIRE(l);
    size_t each = l->blocks / l->parts, more = l->blocks % l->parts;
    for (size_t i = (size_t)omp_get_thread_num(); i < l->parts; i += (size_t)omp_get_num_threads())
        call_blocks(l, i * each + MIN(i, more), (i + 1) * each + MIN(i + 1, more), (int)i);
    ORDER_RELEASE(l);
}

static void run_each(void *data)
{
    struct loop *l = data;
    int thread = omp_get_thread_num();

    ORDER_ACQUIRE(l);
    for (size_t i; (i = atomic_fetch_add(&l->next, 1)) < l->blocks;) call_blocks(l, i, i + 1, thread);
    ORDER_RELEASE(l);
}

static void run_loop(size_t n, size_t grain, threads_range_fn *fn, void *ctx, void (*body)(void *))
{
    struct loop l = { .fn = fn, .ctx = ctx, .n = n, .grain = MAX(grain, 1) };
    size_t count = (size_t)threads_count();

    if (n == 0) return;
    l.blocks = n / l.grain + (n % l.grain != 0);
    l.parts = MIN(count, l.blocks);
    if (l.parts == 1 || omp_in_parallel()) {
        fn(ctx, 0, n, 0);
        return;
    }
    pthread_once(&watch_forks, install_fork_handler);
    atomic_store(&team_started, true);
    ORDER_RELEASE(&l);
    GOMP_parallel(body, &l, (unsigned)l.parts, 0);
    ORDER_ACQUIRE(&l);
}

void threads_for(size_t n, size_t grain, threads_range_fn *fn, void *ctx) { run_loop(n, grain, fn, ctx, run_parts); }

void threads_each(size_t n, size_t grain, threads_range_fn *fn, void *ctx) { run_loop(n, grain, fn, ctx, run_each); }
