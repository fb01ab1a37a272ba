/* peak.c - measures the peak FLOP/s, or reads it from the cache.
 *
 * The cache's folder is locked from before it is read until after it is written. A run that finds it locked does not wait: it measures the
 * peak itself if it is not in the cache, and writes nothing.
 */
#include "train/run/peak.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "base/cores.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "base/threads.h"
#include "checkpoint/collective_status.h"
#include "train/run/machine.h"
#include "train/run/peak_cache.h"

/* ---- measuring ---- */

struct measuring {
    ls_dtype type;
    int threads;
    cpu_set_t processors;
    peak_measure_fn *measure;
    struct peak_entry entry;
    ls_status status;
    char message[512];
};

/* Seconds that the processors have been busy, for any process or for another guest of the host (steal); below 0: unknown. */
static double busy_seconds(const cpu_set_t *processors)
{
    FILE *f = fopen("/proc/stat", "re");
    char line[512];
    double ticks = 0;
    int seen = 0;

    if (!f) return -1;
    while (fgets(line, sizeof line, f)) {
        unsigned long long t[8] = { 0 }; /* user nice system idle iowait irq softirq steal */
        int cpu;

        if (sscanf(line, "cpu%d %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) <
                5 ||
            cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, processors))
            continue;
        ticks += (double)(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]);
        seen++;
    }
    fclose(f);
    return seen ? ticks / (double)sysconf(_SC_CLK_TCK) : -1;
}

static double own_seconds(void)
{
    struct timespec t;

    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec : 0;
}

/* Runs in a thread of its own: its team of threads inherits its processors. */
static void *measure_here(void *ctx)
{
    struct measuring *m = ctx;
    double wall = base_now(), own = own_seconds(), busy = busy_seconds(&m->processors), others = 0;

    pulse_delegate();
    threads_set(m->threads);
    m->status = m->measure(m->type, &m->entry.flops);
    snprintf(m->message, sizeof m->message, "%s", m->status < 0 ? ls_errmsg() : "");
    wall = base_now() - wall;
    if (busy >= 0) others = busy_seconds(&m->processors) - busy - (own_seconds() - own);
    m->entry.busy = wall > 0 ? fmin(1, fmax(0, others / (wall * CPU_COUNT(&m->processors)))) : 0;
    m->entry.type = m->type;
    m->entry.threads = m->threads;
    m->entry.when = (int64_t)time(NULL);
    return NULL;
}

/* Measures in another thread, and restores the calling thread's number of threads. */
static ls_status peak_measure(struct measuring *m)
{
    int before = threads_count();
    pthread_attr_t attributes;
    pthread_t thread;

    if (pthread_attr_init(&attributes) != 0) return ls_fail(LS_ENOMEM, "peak: no memory for a thread");
    pthread_attr_setaffinity_np(&attributes, sizeof m->processors, &m->processors);
    int failed = pthread_create(&thread, &attributes, measure_here, m);
    pthread_attr_destroy(&attributes);
    if (failed) return ls_fail(LS_EIO, "peak: cannot start a thread: %s", strerror(failed));
    pthread_join(thread, NULL);
    threads_set(before);
    return m->status < 0 ? ls_fail(m->status, "%s", m->message) : LS_OK;
}

/* ---- with the cache ---- */

struct search {
    struct measuring m;
    struct peak_entries known;
    enum peak_mode mode;
    struct peak *out;
};

static void peak_note(struct peak *p, const char *text) { snprintf(p->note, sizeof p->note, "%s", text); }

static const double BUSY_MOST = 0.1; /* largest share of the processors that other processes may use while a peak is measured */
enum { BUSY_SECONDS = 60 };          /* a peak measured on a busy machine is measured again by a run that starts this much later */

static bool is_good(const struct peak_entry *e) { return e->busy <= BUSY_MOST || (int64_t)time(NULL) - e->when < BUSY_SECONDS; }

/* A peak is the most that was ever reached, within peak_bound(): the larger of this measurement and an earlier one on a busy machine is
 * kept. */
static void keep_best(struct peak_entries *known, struct peak_entry e)
{
    const struct peak_entry *old = peak_entry_of(known, e.type, e.threads);

    if (old && old->flops > e.flops) {
        e.flops = old->flops;
        e.busy = fmin(e.busy, old->busy);
    }
    peak_entry_put(known, &e);
}

enum { TRIES = 3 };

/* Measures again where the result is more than the processor can reach, because a clock or the machine stood still. */
static ls_status measure_possible(struct search *s, bool *possible)
{
    *possible = false;
    for (int i = 0; i < TRIES && !*possible; i++) {
        LS_TRY(peak_measure(&s->m));
        *possible = s->m.entry.flops <= peak_bound(&s->out->machine, s->m.type, s->m.threads);
    }
    if (*possible) return LS_OK;
    snprintf(s->out->note, sizeof s->out->note, "%.0f GFLOP/s were measured, more than this processor can reach", s->m.entry.flops / 1e9);
    return LS_OK;
}

/* Measures with all processors first, because their clocks rise under load, and then with the ranks' threads. */
static ls_status measure_missing(struct search *s)
{
    int counts[2] = { s->out->machine.processors, s->m.threads }, threads = s->m.threads;
    bool possible;

    for (int i = counts[0] == counts[1]; i < 2; i++) {
        const struct peak_entry *e = peak_entry_of(&s->known, s->m.type, counts[i]);

        if (s->mode != PEAK_AGAIN && e && is_good(e)) continue;
        s->m.threads = counts[i];
        LS_TRY(measure_possible(s, &possible));
        if (!possible)
            continue;
        else if (s->mode == PEAK_AGAIN)
            peak_entry_put(&s->known, &s->m.entry);
        else
            keep_best(&s->known, s->m.entry);
        s->out->measured = true;
    }
    s->m.threads = threads;
    return LS_OK;
}

/* A number of threads has at least the peak that fewer threads reach. */
static void peak_take(const struct search *s)
{
    const struct peak_entry *e = peak_entry_of(&s->known, s->m.type, s->m.threads);

    double known = peak_known(&s->known, s->m.type, s->m.threads);

    s->out->machine.flops[s->m.type] = peak_known(&s->known, s->m.type, s->out->machine.processors);
    s->out->flops = known > 0 ? known : NAN;
    if (!e) return; /* nothing that the processor can reach was measured */
    s->out->busy = e->busy;
    s->out->when = e->when;
}

/* Returns a descriptor; closing it releases the lock. -1: the folder is locked by another process, or cannot be opened. */
static int lock_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return fd;
    close(fd);
    errno = EWOULDBLOCK;
    return -1;
}

static void write_known(struct search *s, const char *folder, const char *path, int lock)
{
    if (lock < 0)
        peak_note(s->out, "another process was measuring at the same time");
    else if (peak_cache_write(folder, path, &s->out->machine, &s->known) < 0)
        peak_note(s->out, ls_errmsg());
    else
        snprintf(s->out->path, sizeof s->out->path, "%s", path);
}

static ls_status find_in(struct search *s, const char *folder, const char *path)
{
    bool there = file_make_folders(folder) == LS_OK;

    if (!there) peak_note(s->out, ls_errmsg());
    int lock = there ? lock_folder(folder) : -1;
    if (peak_cache_read(path, &s->out->machine, &s->known) < 0) peak_note(s->out, ls_errmsg());
    ls_status st = measure_missing(s);
    if (st == LS_OK && !s->out->measured)
        snprintf(s->out->path, sizeof s->out->path, "%s", path);
    else if (st == LS_OK && there)
        write_known(s, folder, path, lock);
    if (lock >= 0) close(lock);
    return st;
}

ls_status peak_find(ls_dtype type, int threads, bool bound, enum peak_mode mode, peak_measure_fn *measure_fn, struct peak *out)
{
    struct peak p = { .flops = NAN };
    struct search s = { .m = { .type = type, .measure = measure_fn }, .mode = mode, .out = &p };

    machine_find(bound, &p.machine, &s.m.processors);
    p.threads = s.m.threads = MIN(threads, p.machine.processors);
    ls_status st = LS_OK;
    if (mode != PEAK_OFF) {
        char *folder = file_cache_folder(), *path = folder ? peak_cache_path(folder, &p.machine) : NULL;

        if (path)
            st = find_in(&s, folder, path);
        else
            peak_note(&p, ls_errmsg()), st = measure_missing(&s);
        mem_free(folder);
        mem_free(path);
        if (st == LS_OK) peak_take(&s);
    }
    if (st == LS_OK) *out = p;
    return st;
}

/* What is measured is the processor's peak, not a GPU's. */
static enum peak_mode peak_mode_of(const struct config *c)
{
    return c->run.device_facts.memory ? PEAK_OFF : (enum peak_mode)c->run.measure_peak;
}

ls_status peak_of_ranks(const struct config *c, const struct ranks *r, struct peak *out)
{
    struct world world = { .local_size = 1 };
    struct peak p = { .flops = NAN };
    ls_status st = world_find(&world);
    int local = MAX(world.local_size, 1);

    if (st == LS_OK && world.local_rank == 0)
        st = peak_find(config_type(c), threads_count() * local, local > 1, peak_mode_of(c), machine_peak_flops, &p);
    LS_TRY(agree(r->comm, st));
    double flops = world.local_rank == 0 ? p.flops : 0;
    LS_TRY(ranks_sum(r, &flops, 1));
    p.flops = flops;
    p.machines = local < r->size;
    *out = p;
    return LS_OK;
}
