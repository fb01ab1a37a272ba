/* engine.c - which thread advances the operations in flight, and how a process waits.
 *
 * One thread drives at a time. It polls all comms of the process in turn, so that all operations in flight advance, whichever of them the
 * caller waits for: a send after a receive, a collective after a send. The driver is
 *   the caller that waits   in a blocking call or ls_work_wait(): no other thread needs to wake up
 *   the progress thread     while something is in flight and no caller waits. It exists from the first non-blocking call to the close of
 *                           the last comm. It sleeps while nothing is in flight, or only receives of messages so small that their senders
 *                           do not wait for them (link_base.eager): waking the thread would take longer than the receive
 * If nothing moves, a caller spins for SPIN_SECONDS (not where this machine has more ranks than cores), and then yields the processor
 * (yield.h) for the transport's yield_seconds; the progress thread does neither, because the computation needs the core. Then the driver
 * sleeps in the transport's idle(), longer each time; a caller that needs to drive ends that sleep with the transport's wake().
 */
#include "comm/engine/engine.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/pulse.h"
#include "base/yield.h"

#define SPIN_SECONDS  50e-6
#define SLEEP_FIRST   50e-6
#define SLEEP_MOST    2e-3
#define TIME_SLICE_NS 100000 /* the shortest time slice that Linux grants */
#define ABSENT        1.0    /* a gap of this many seconds between two polls means that this process was stopped, or had no core */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when driving, callers, flying or an ended flag changes */
    bool driving, stop, has_thread;
    atomic_int waiting;   /* callers in engine_wait that don't drive */
    atomic_int wanting;   /* callers in engine_enter */
    atomic_int flying;    /* operations of all comms that were posted and have not ended, except lazy ones */
    struct link *asleep;  /* where the driver sleeps */
    struct yields yields; /* yields of the caller that drives */
    pthread_t thread;
    ls_comm *comms; /* owned by the driver */
} engine = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* The state of a driver since it last made progress. */
struct pace {
    bool still, slept; /* slept: it has slept or yielded */
    unsigned rounds;
    double since, yielding, sleep, looked; /* yielding: since when */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* With the lock held: waits until there is no driver. */
static void wait_for_change(void)
{
    struct link *l = engine.asleep;

    if (l && link_base(l)->transport->wake) link_base(l)->transport->wake(l);
    pthread_cond_wait(&engine.changed, &engine.lock);
}

void engine_enter(void)
{
    pthread_mutex_lock(&engine.lock);
    atomic_fetch_add(&engine.wanting, 1);
    while (engine.driving) wait_for_change();
    atomic_fetch_sub(&engine.wanting, 1);
    engine.driving = true;
    pthread_mutex_unlock(&engine.lock);
}

/* With the lock held, while no thread drives: wakes the threads that may need to. */
static void offer_to_drive(void)
{
    if ((engine.has_thread && atomic_load(&engine.flying)) || atomic_load(&engine.waiting) || atomic_load(&engine.wanting))
        pthread_cond_broadcast(&engine.changed);
}

static void leave_locked(void)
{
    engine.driving = false;
    offer_to_drive();
}

void engine_leave(void)
{
    pthread_mutex_lock(&engine.lock);
    leave_locked();
    pthread_mutex_unlock(&engine.lock);
}

/* ---- one round ---- */

static void take_posted(ls_comm *c)
{
    pthread_mutex_lock(&engine.lock);
    struct queue posted = queue_move(&c->posted);

    atomic_store(&c->news, false);
    pthread_mutex_unlock(&engine.lock);
    run_take(c, &posted, 0);
}

static bool busy(const ls_comm *c) { return c->collectives.head || c->messages; }

static bool look_round(void)
{
    bool moved = false;

    for (ls_comm *c = engine.comms; c; c = c->next) {
        if (atomic_load(&c->news)) take_posted(c);
        if (busy(c) && run_comm(c)) moved = true;
    }
    return moved;
}

void engine_ended(ls_work *w)
{
    if (!w->lazy) atomic_fetch_sub(&engine.flying, 1);
    atomic_store(&w->ended, true);
    if (!atomic_load(&engine.waiting)) return;
    pthread_mutex_lock(&engine.lock);
    pthread_cond_broadcast(&engine.changed);
    pthread_mutex_unlock(&engine.lock);
}

/* ---- when nothing moves ---- */

/* The comm at index `turn`, modulo their number, of those with something in flight. */
static ls_comm *one_in_flight(unsigned turn)
{
    unsigned n = 0;

    for (ls_comm *c = engine.comms; c; c = c->next) n += busy(c);
    if (!n) return NULL;
    turn %= n;
    for (ls_comm *c = engine.comms;; c = c->next)
        if (busy(c) && turn-- == 0) return c;
}

static void sleep_on(ls_comm *c, double seconds, bool progress)
{
    pthread_mutex_lock(&engine.lock);
    bool stay = atomic_load(&c->news) || atomic_load(&engine.wanting) || (progress && atomic_load(&engine.waiting));
    if (!stay) engine.asleep = c->link;
    pthread_mutex_unlock(&engine.lock);
    if (stay) return;

    ls_status st = c->transport->idle(c->link, seconds);

    pthread_mutex_lock(&engine.lock);
    engine.asleep = NULL;
    pthread_mutex_unlock(&engine.lock);
    if (st < 0) run_fail(c, st);
}

double engine_spin_seconds(const ls_comm *c)
{
    static long cores;

    if (!cores) cores = sysconf(_SC_NPROCESSORS_ONLN);
    return c->job->here > cores ? 0 : SPIN_SECONDS;
}

static bool yields_on(struct pace *p, double now, double seconds)
{
    if (p->yielding == 0) {
        p->yielding = now;
        yield_begin(&engine.yields);
    }
    return now - p->yielding < seconds && yield_try(&engine.yields);
}

/* Reads the clock only every few rounds: most waits end before that. */
static bool spins_on(struct pace *p, double seconds)
{
    if (seconds == 0) return false;
    if (p->rounds % 16) return true;
    if (p->since == 0) p->since = base_now();
    return base_now() - p->since < seconds;
}

static void forgive_queue(struct queue *q, double now)
{
    if (q->head) q->head->moved = now;
}

/* Restarts every timeout: a rank that was stopped itself must not blame others for that time. */
static void forgive(double now)
{
    for (ls_comm *c = engine.comms; c; c = c->next) {
        forgive_queue(&c->collectives, now);
        for (int i = 0; c->messages && i < 2 * c->n; i++) forgive_queue(&c->pairs[i], now);
    }
}

static void pause_driver(struct pace *p, bool progress)
{
    if (!p->still) *p = (struct pace){ .still = true, .slept = progress, .sleep = SLEEP_FIRST };
    p->rounds++;
    ls_comm *c = one_in_flight(p->slept ? p->rounds : 0);
    if (!c) return;
    if (!p->slept && spins_on(p, engine_spin_seconds(c))) {
        relax();
        return;
    }
    p->slept = true;
    double now = base_now();
    if (p->looked > 0 && now - p->looked > ABSENT) forgive(now);
    p->looked = now;
    if (!progress && yields_on(p, now, c->transport->yield_seconds)) return;
    for (ls_comm *each = engine.comms; each; each = each->next)
        if (busy(each)) run_look(each, now);
    sleep_on(c, p->sleep, progress);
    p->sleep = MIN(p->sleep * 1.5, SLEEP_MOST);
}

/* ---- drivers ---- */

void engine_show_wait(const ls_comm *c, const ls_work *w)
{
    if (!c->job->board) return;
    if (!w) {
        board_wait(c->job->board, NULL, -1);
        return;
    }
    bool message = w->op == LS_COLLECTIVE_SEND || w->op == LS_COLLECTIVE_RECV;
    struct call_record r = { .signature = w->request.signature, .queued = base_now(), .started = w->started, .state = CALL_RUNNING };

    memcpy(r.name, c->name, sizeof r.name);
    board_wait(c->job->board, &r, message && c->link ? link_base(c->link)->member[w->request.root] : -1);
}

/* Index of the first work that has ended, without NULLs; -1: none has. */
static int ended_first(ls_work *const *works, int n)
{
    int first = -1;

    for (int i = 0; i < n; i++)
        if (works[i] && atomic_load(&works[i]->ended) && (first < 0 || works[i]->finished < works[first]->finished)) first = i;
    return first;
}

/* Drives until one of the works has ended or another thread needs the engine. w: the call that the board shows this rank waiting for. */
static void drive(ls_work *const *works, int n, const ls_work *w)
{
    struct pace p = { 0 };
    bool shown = false;

    while (ended_first(works, n) < 0 && !atomic_load(&engine.wanting)) {
        if (look_round())
            p.still = false;
        else
            pause_driver(&p, false);
        if (p.slept && !shown) {
            engine_show_wait(w->comm, w);
            shown = true;
        }
    }
    if (shown) engine_show_wait(w->comm, NULL);
}

/* The progress thread runs for microseconds at a time on a core that computes. Because it requests short time slices, the kernel runs it
 * as soon as it wakes instead of at the end of the computation's time slice (3 ms). Linux 6.12 and newer; older kernels ignore it. */
static void request_short_time_slices(void)
{
    struct {
        uint32_t bytes, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = { .bytes = sizeof a, .runtime = TIME_SLICE_NS };

    syscall(SYS_sched_setattr, 0, &a, 0);
}

static void *progress(void *unused)
{
    request_short_time_slices();
    pthread_mutex_lock(&engine.lock);
    while (!engine.stop) {
        if (engine.driving || atomic_load(&engine.waiting) || atomic_load(&engine.wanting) || !atomic_load(&engine.flying)) {
            pthread_cond_wait(&engine.changed, &engine.lock);
            continue;
        }
        engine.driving = true;
        pthread_mutex_unlock(&engine.lock);

        struct pace p = { 0 };

        while (atomic_load(&engine.flying) && !atomic_load(&engine.waiting) && !atomic_load(&engine.wanting)) {
            if (look_round())
                p.still = false;
            else
                pause_driver(&p, true);
        }
        pthread_mutex_lock(&engine.lock);
        leave_locked();
    }
    pthread_mutex_unlock(&engine.lock);
    return unused;
}

/* Called with the lock held. */
static ls_status start_thread(void)
{
    sigset_t all, old;

    if (engine.has_thread) return LS_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int failed = pthread_create(&engine.thread, NULL, progress, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) return ls_fail(LS_ENOMEM, "comm: the progress thread did not start (error %d)", failed);
    engine.has_thread = true;
    return LS_OK;
}

int engine_wait_any(ls_work *const *works, int n)
{
    int shown = 0;

    pulse();
    if (ended_first(works, n) >= 0) return ended_first(works, n);
    while (!works[shown]) shown++;
    pthread_mutex_lock(&engine.lock);
    atomic_fetch_add(&engine.waiting, 1);
    while (ended_first(works, n) < 0) {
        if (engine.driving || atomic_load(&engine.wanting)) {
            wait_for_change();
            continue;
        }
        engine.driving = true;
        atomic_fetch_sub(&engine.waiting, 1);
        pthread_mutex_unlock(&engine.lock);
        drive(works, n, works[shown]);
        pthread_mutex_lock(&engine.lock);
        leave_locked();
        atomic_fetch_add(&engine.waiting, 1);
    }
    atomic_fetch_sub(&engine.waiting, 1);
    if (!engine.driving) offer_to_drive();
    pthread_mutex_unlock(&engine.lock);
    pulse();
    return ended_first(works, n);
}

void engine_wait(ls_work *w) { engine_wait_any(&w, 1); }

/* Called with the lock held; releases it. Drives one round unless another thread drives: that one takes up what is posted, or wakes another
 * thread when it leaves. */
static void drive_once(void)
{
    bool mine = !engine.driving;

    if (mine) engine.driving = true;
    pthread_mutex_unlock(&engine.lock);
    if (!mine) return;
    look_round();
    engine_leave();
}

bool engine_test(ls_work *w)
{
    if (!atomic_load(&w->ended) && pthread_mutex_trylock(&engine.lock) == 0) drive_once();
    return atomic_load(&w->ended);
}

/* Called with the lock held. */
static void post_locked(ls_work *w)
{
    queue_push(&w->comm->posted, w);
    atomic_store(&w->comm->news, true);
    if (!w->lazy) atomic_fetch_add(&engine.flying, 1);
}

static bool is_lazy(const ls_work *w)
{
    const struct request *r = &w->request;
    size_t eager = link_base(w->comm->link)->eager;

    return w->op == LS_COLLECTIVE_RECV && !w->native && eager && r->count * ls_dtype_bytes(r->type) <= eager;
}

ls_status engine_post(ls_work *w)
{
    w->lazy = is_lazy(w);
    pthread_mutex_lock(&engine.lock);
    ls_status st = w->lazy ? LS_OK : start_thread();
    if (st < 0) {
        pthread_mutex_unlock(&engine.lock);
        return st;
    }
    post_locked(w);
    struct link *l = engine.asleep;
    if (l && link_base(l)->transport->wake) link_base(l)->transport->wake(l);
    if (w->lazy)
        pthread_mutex_unlock(&engine.lock);
    else
        drive_once(); /* makes the first step at once */
    pulse();
    return LS_OK;
}

void engine_passed(ls_work *w, bool done)
{
    atomic_store(&w->passed, done ? 1 : -1);
    pthread_mutex_lock(&engine.lock);
    struct link *l = engine.asleep;
    if (l && link_base(l)->transport->wake) link_base(l)->transport->wake(l);
    pthread_mutex_unlock(&engine.lock);
}

ls_status engine_ask(ls_work **w)
{
    if (*w) atomic_store(&(*w)->asked, base_now());
    return ls_work_test(w);
}

ls_status engine_broken(ls_comm *c, ls_status st)
{
    char line[LINE_ROOM];

    memcpy(line, ls_errmsg(), strnlen(ls_errmsg(), sizeof line - 1) + 1);
    line[sizeof line - 1] = 0;
    engine_enter();
    ls_status peer = c->transport->failed(c->link);
    if (peer == LS_OK) peer = c->transport->idle(c->link, 0);
    if (peer < 0)
        st = peer;
    else if (st == LS_EPEER || st == LS_ETIMEOUT) /* otherwise run_fail() names this rank */
        ls_fail(st, "rank %d: %s", link_base(c->link)->member[c->rank], line);
    else
        ls_fail(st, "%s", line);
    run_fail(c, st);
    engine_leave();
    return ls_fail((ls_status)atomic_load(&c->job->status), "%s", c->job->line);
}

/* Called with the lock held; releases it meanwhile. The caller of w, which has been posted, begins to drive. Operations that are taken up
 * now count as begun when w was queued, which saves reading the clock. */
static void drive_at_once(ls_work *w)
{
    struct queue posted = queue_move(&w->comm->posted);

    atomic_store(&w->comm->news, false);
    engine.driving = true;
    pthread_mutex_unlock(&engine.lock);
    run_take(w->comm, &posted, w->queued);
    drive((ls_work *const[]){ w }, 1, w);
    pthread_mutex_lock(&engine.lock);
    leave_locked();
}

void engine_run(ls_work *w)
{
    pulse();
    pthread_mutex_lock(&engine.lock);
    post_locked(w);
    if (!engine.driving && !atomic_load(&engine.wanting)) drive_at_once(w);
    pthread_mutex_unlock(&engine.lock);
    engine_wait(w);
}

void engine_drain(ls_comm *c)
{
    struct pace p = { 0 };

    engine_enter();
    while (busy(c) || atomic_load(&c->news)) {
        if (look_round())
            p.still = false;
        else
            pause_driver(&p, false);
    }
    engine_leave();
}

void engine_add(ls_comm *c)
{
    c->next = engine.comms;
    engine.comms = c;
}

void engine_set_timeout(const struct job *j, double seconds)
{
    for (ls_comm *c = engine.comms; c; c = c->next)
        if (c->job == j) c->timeout = seconds;
}

void engine_remove(ls_comm *c)
{
    ls_comm **at = &engine.comms;

    while (*at != c) at = &(*at)->next;
    *at = c->next;
    if (engine.comms || !engine.has_thread) return;
    pthread_mutex_lock(&engine.lock);
    engine.stop = true;
    pthread_cond_broadcast(&engine.changed);
    pthread_mutex_unlock(&engine.lock);
    pthread_join(engine.thread, NULL);
    engine.stop = engine.has_thread = false;
}
