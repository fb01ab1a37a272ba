/* doctor.c - reads the flight recorders of a run and finds which ranks are missing from which call. */
#include "train/doctor/doctor.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "train/launch/process.h"
#include "train/run/run_folder.h"

enum { RANKS_MOST = 1 << 16, CHILDREN_MOST = 4096 };
static const double HEALTHY_WAIT = 1; /* the longest time in seconds that one rank waits for another in a healthy run */
static const double CLOCK_SLACK = 30; /* clocks that differ by at most this many seconds are taken for the same machine's */

static double unix_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double doctor_time(const struct doctor *d, int rank, double monotonic) { return d->status[rank].calls->epoch + monotonic; }

bool doctor_ended(const struct doctor *d, int rank)
{
    const struct recorder_read *c = d->status[rank].calls;

    return c && c->status.ended > 0;
}

bool doctor_unreported(const struct doctor *d, int rank) { return d->status[rank].life == LIFE_DEAD && !doctor_ended(d, rank); }

bool doctor_lives(const struct doctor *d, int rank) { return d->status[rank].life == LIFE_RUNNING || d->status[rank].life == LIFE_STOPPED; }

/* ---- which ranks are alive ---- */

static enum life life_of_process(const struct process *p)
{
    if (!process_lives(p)) return LIFE_DEAD;
    return p->state == 'T' || p->state == 't' ? LIFE_STOPPED : LIFE_RUNNING;
}

static bool is_here(const struct recorder_read *c)
{
    char host[sizeof c->status.host] = "";

    if (gethostname(host, sizeof host - 1) == 0 && strcmp(host, c->status.host) != 0) return false;
    return fabs(c->epoch - (unix_now() - base_now())) <= CLOCK_SLACK;
}

/* State of the process that had the number pid at time `last`: a process that started later has only reused the number. */
static enum life life_at(int64_t pid, double last)
{
    struct process p;

    return process_find(pid, &p) && process_started(&p) <= last + 1 ? life_of_process(&p) : LIFE_DEAD;
}

static enum life life_of(const struct recorder_read *c)
{
    double last = c->n ? c->last[c->n - 1].queued : c->status.opened > 0 ? c->status.opened : INFINITY;

    return is_here(c) ? life_at(c->pid, last) : LIFE_UNKNOWN;
}

/* ---- reading ---- */

/* Returns the rank in a file name rank_NNNN; -1: the file has another name. */
static int rank_of(const char *name)
{
    char *end;

    if (strncmp(name, "rank_", 5) != 0 || !isdigit((unsigned char)name[5])) return -1;
    long rank = strtol(name + 5, &end, 10);
    return *end || rank >= RANKS_MOST ? -1 : (int)rank;
}

static ls_status add_rank_status(struct doctor *d, const char *folder, const char *name, int rank)
{
    char *path = file_path("%s/%s", folder, name);
    struct recorder_read *c = mem_alloc(MEM_OTHER, sizeof *c);
    ls_status st = path && c ? recorder_read(path, c) : LS_ENOMEM;

    if (st == LS_OK && c->rank != rank) st = ls_fail(LS_EFORMAT, "%s: this file was written by rank %d", path, c->rank);
    mem_free(path);
    if (st == LS_OK) {
        d->status[rank] = (struct rank_status){ .life = life_of(c), .pid = c->pid, .calls = c };
        return LS_OK;
    }
    mem_free(c);
    if (st == LS_ENOMEM) return st;
    snprintf(d->status[rank].why, sizeof d->status[rank].why, "%s", ls_errmsg());
    return LS_OK;
}

static ls_status make_room(struct doctor *d, int ranks)
{
    if (ranks <= d->ranks) return LS_OK;
    struct rank_status *p = mem_resize(d->status, (size_t)ranks * sizeof *p);
    if (!p) return LS_ENOMEM;
    memset(p + d->ranks, 0, (size_t)(ranks - d->ranks) * sizeof *p);
    d->status = p;
    d->ranks = ranks;
    return LS_OK;
}

/* Ranks without a file are counted, too: every flight recorder contains the number of ranks. */
static ls_status read_folder(DIR *dir, const char *folder, struct doctor *d)
{
    for (struct dirent *e; (e = readdir(dir));) {
        int rank = rank_of(e->d_name);

        if (rank < 0) continue;
        LS_TRY(make_room(d, rank + 1));
        LS_TRY(add_rank_status(d, folder, e->d_name, rank));
        const struct recorder_read *c = d->status[rank].calls;
        if (c) LS_TRY(make_room(d, MIN(c->ranks, RANKS_MOST)));
    }
    return LS_OK;
}

static ls_status read_run(const char *run, struct doctor *d)
{
    char *folder = file_path("%s/calls", run);

    if (!folder) return LS_ENOMEM;
    DIR *dir = opendir(folder);
    ls_status st = dir ? read_folder(dir, folder, d) : LS_OK;
    if (dir) closedir(dir);
    mem_free(folder);
    return st;
}

/* Reads how the launcher saw the ranks end; a damaged file counts as missing. */
static void read_end(const char *run, struct doctor *d)
{
    char *path = file_path("%s/calls/ended", run);
    json_node *root = NULL;

    if (path && file_exists(path) && json_read(path, &root) == LS_OK) {
        d->launched = true;
        d->code = (int)json_int(json_get(root, "exit"), 1);
        snprintf(d->line, sizeof d->line, "%s", json_string(json_get(root, "line"), ""));
        for (int i = 0; i < d->ranks; i++) {
            struct rank_status *p = &d->status[i];

            snprintf(p->end, LAUNCH_END, "%s", json_string(json_at(json_get(root, "ranks"), (size_t)i), ""));
            if (p->end[0] && !p->calls && p->life == LIFE_NONE) p->life = LIFE_DEAD; /* it ended before it opened a flight recorder */
        }
        json_close(&root);
    }
    mem_free(path);
}

/* ---- the launcher, and ranks that have no flight recorder yet ---- */

/* The flight recorders of an earlier start stay in the folder until the ranks of a new launcher open theirs. */
static void drop_records(struct doctor *d)
{
    for (int i = 0; i < d->ranks; i++) mem_free(d->status[i].calls);
    mem_free(d->status);
    d->status = NULL;
    d->ranks = 0;
}

static void find_launcher(const char *run, struct doctor *d)
{
    int64_t pid;
    bool lives = run_folder_launcher(run, &pid);

    for (int i = 0; i < d->ranks && !d->launcher; i++) {
        const struct recorder_read *c = d->status[i].calls;

        if (!c || !c->launcher) continue;
        d->launcher = c->launcher;
        d->launcher_life = is_here(c) ? life_at(c->launcher, c->status.opened) : LIFE_UNKNOWN;
    }
    if (lives && pid != d->launcher) drop_records(d); /* they were written under another launcher */
    if (pid && (lives || d->ranks == 0)) {
        d->launcher = pid;
        d->launcher_life = lives ? LIFE_RUNNING : LIFE_DEAD;
    }
}

/* A rank opens its flight recorder after its model and data. Before that, it is found by RANK in its environment. */
static ls_status find_starting(struct doctor *d)
{
    pid_t *pid = mem_array(MEM_OTHER, CHILDREN_MOST, sizeof *pid);
    int n = pid ? process_children((pid_t)d->launcher, pid, CHILDREN_MOST) : 0;
    ls_status st = pid ? LS_OK : LS_ENOMEM;

    for (int i = 0; i < n && st == LS_OK; i++) {
        int64_t rank = process_variable(pid[i], "RANK"), ranks = process_variable(pid[i], "WORLD_SIZE");
        struct process p;

        if (rank < 0 || rank >= ranks || ranks > RANKS_MOST || !process_find(pid[i], &p)) continue;
        st = make_room(d, (int)ranks);
        if (st == LS_OK && !d->status[rank].calls) d->status[rank] = (struct rank_status){ .life = life_of_process(&p), .pid = pid[i] };
    }
    mem_free(pid);
    return st;
}

static ls_status read_launch(const char *run, struct doctor *d)
{
    bool recorded = d->ranks > 0;

    find_launcher(run, d);
    if (d->launcher && d->launcher_life == LIFE_RUNNING) LS_TRY(find_starting(d));
    if (d->ranks > 0) return LS_OK;
    if (d->launcher && d->launcher_life == LIFE_RUNNING)
        return ls_fail(LS_EINVAL, "%s: no rank has started yet: the launcher, process %" PRId64 ", is running; try again later", run,
                       d->launcher);
    if (d->launcher && !recorded)
        return ls_fail(LS_EINVAL, "%s: the launcher, process %" PRId64 ", was killed before its ranks began to train; see %s/log", run,
                       d->launcher, run);
    char *log = file_path("%s/log", run);
    bool begun = log && file_is_folder(log);
    mem_free(log);
    if (begun) return ls_fail(LS_EINVAL, "%s: no calls/rank_NNNN: the ranks ended before they began to train; see %s/log", run, run);
    return ls_fail(LS_EINVAL, "%s: not a run folder: it has no calls/rank_NNNN", run);
}

/* ---- finding ---- */

static bool doctor_is_message(const struct signature *s) { return s->op == LS_COLLECTIVE_SEND || s->op == LS_COLLECTIVE_RECV; }
static bool is_open(const struct call_record *r) { return r->state != CALL_DONE; }
static bool is_in(const struct call_record *r) { return r->state == CALL_QUEUED || r->state == CALL_RUNNING; }

const struct call_record *doctor_record(const struct doctor *d, int rank, uint64_t group, uint64_t sequence)
{
    const struct rank_status *p = &d->status[rank];

    for (int i = 0; p->calls && i < p->calls->n; i++) {
        const struct call_record *r = &p->calls->last[i];

        if (!doctor_is_message(&r->signature) && r->signature.group == group && r->signature.sequence == sequence) return r;
    }
    return NULL;
}

/* The number of the newest collective call in a group; 0: none is recorded. */
static uint64_t newest(const struct rank_status *p, uint64_t group)
{
    uint64_t most = 0;

    for (int i = 0; p->calls && i < p->calls->n; i++) {
        const struct signature *s = &p->calls->last[i].signature;

        if (!doctor_is_message(s) && s->group == group) most = MAX(most, s->sequence);
    }
    return most;
}

/* All ranks are members of the world. The members of other groups are not recorded: a rank counts as one if it has made a call there. */
static bool is_member(const struct doctor *d, int rank, const struct call_record *r)
{
    return strcmp(r->name, "world") == 0 || newest(&d->status[rank], r->signature.group) > 0;
}

static ls_status finding_make(const struct doctor *d, struct finding *f)
{
    f->waits = mem_array(MEM_OTHER, 4 * (size_t)d->ranks, sizeof *f->waits);
    if (!f->waits) return LS_ENOMEM;
    f->missing = f->waits + d->ranks;
    f->differs = f->missing + d->ranks;
    f->held = f->differs + d->ranks;
    return LS_OK;
}

/* True if the rank was stopped or died inside the call. */
static bool is_held(const struct doctor *d, int rank, const struct call_record *r)
{
    return is_in(r) && (d->status[rank].life == LIFE_STOPPED || doctor_unreported(d, rank));
}

/* Sorts the ranks: they wait in call r, have not made it, were stopped or died in it, or made another call. r is open on rank `from`. */
static void doctor_compare(const struct doctor *d, const struct call_record *r, int from, struct finding *f)
{
    f->call = *r;
    f->since = doctor_time(d, from, r->queued);
    for (int i = 0; i < d->ranks; i++) {
        const struct call_record *its = doctor_record(d, i, r->signature.group, r->signature.sequence);

        f->differs[i] = its && !signature_agrees(&its->signature, &r->signature);
        f->held[i] = its && !f->differs[i] && is_held(d, i, its);
        f->waits[i] = its && !f->differs[i] && !f->held[i] && is_open(its);
        f->missing[i] = !its && is_member(d, i, r) && newest(&d->status[i], r->signature.group) < r->signature.sequence;
        if (f->waits[i] || f->held[i]) f->since = MIN(f->since, doctor_time(d, i, its->queued));
        if (its) f->until = MAX(f->until, doctor_time(d, i, fmax(its->seen, fmax(its->started, its->ended))));
    }
}

static bool any(const bool *is, int ranks) { return memchr(is, true, (size_t)ranks); }

/* True if no rank outlived the call: all were killed at the same time, usually together with the launcher. */
static bool are_all_killed(const struct doctor *d, const struct finding *f)
{
    for (int i = 0; i < d->ranks; i++)
        if ((f->missing[i] || f->held[i]) && !doctor_unreported(d, i) && d->status[i].life != LIFE_NONE) return false;
    return !any(f->waits, d->ranks) && !any(f->differs, d->ranks);
}

/* True if a rank is at fault. If all ranks were killed together, a rank is at fault only if others had waited for it longer than is
 * healthy. */
static bool judge(const struct doctor *d, const struct call_record *r, int from, struct finding *f)
{
    doctor_compare(d, r, from, f);
    f->killed_together = are_all_killed(d, f);
    if (!f->killed_together)
        return any(f->differs, d->ranks) || (any(f->waits, d->ranks) && (any(f->missing, d->ranks) || any(f->held, d->ranks)));
    memcpy(f->waits, f->held, (size_t)d->ranks * sizeof *f->waits);
    memset(f->held, 0, (size_t)d->ranks * sizeof *f->held);
    return any(f->missing, d->ranks) && f->until - f->since >= HEALTHY_WAIT;
}

/* Index of the finding in that group; n: there is none. */
static int finding_of(const struct doctor *d, uint64_t group)
{
    int i = 0;

    while (i < d->n && d->finding[i].call.signature.group != group) i++;
    return i;
}

static ls_status consider(struct doctor *d, const struct call_record *r, int from)
{
    int at = finding_of(d, r->signature.group);
    struct finding f = { 0 };

    if (at < d->n && d->finding[at].call.signature.sequence <= r->signature.sequence) return LS_OK;
    LS_TRY(finding_make(d, &f));
    if (!judge(d, r, from, &f)) {
        mem_free(f.waits);
        return LS_OK;
    }
    if (at == d->n) {
        struct finding *more = mem_resize(d->finding, ((size_t)d->n + 1) * sizeof *more);
        if (!more) {
            mem_free(f.waits);
            return LS_ENOMEM;
        }
        d->finding = more;
        d->n++;
    } else {
        mem_free(d->finding[at].waits);
    }
    d->finding[at] = f;
    return LS_OK;
}

static ls_status find(struct doctor *d)
{
    for (int i = 0; i < d->ranks; i++) {
        const struct recorder_read *c = d->status[i].calls;

        for (int k = 0; c && k < c->n; k++)
            if (is_open(&c->last[k]) && !doctor_is_message(&c->last[k].signature)) LS_TRY(consider(d, &c->last[k], i));
    }
    return LS_OK;
}

static bool waits_elsewhere(const struct doctor *d, const struct finding *f, int rank)
{
    for (int i = 0; i < d->n; i++)
        if (&d->finding[i] != f && d->finding[i].waits[rank]) return true;
    return false;
}

static int by_cause(const void *a, const void *b)
{
    const struct finding *x = a, *y = b;

    if (x->cause != y->cause) return y->cause - x->cause;
    return (x->since > y->since) - (x->since < y->since);
}

static void order(struct doctor *d)
{
    for (int i = 0; i < d->n; i++) {
        struct finding *f = &d->finding[i];

        f->cause = true;
        for (int r = 0; r < d->ranks; r++)
            if ((f->missing[r] || f->differs[r] || f->held[r]) && waits_elsewhere(d, f, r)) f->cause = false;
    }
    if (d->n > 1) qsort(d->finding, (size_t)d->n, sizeof *d->finding, by_cause);
}

ls_status doctor_open(const char *run, struct doctor *out)
{
    struct doctor d = { .now = unix_now() };
    ls_status st = read_run(run, &d);

    if (st == LS_OK) st = read_launch(run, &d);
    if (st == LS_OK && d.status[0].calls) read_end(run, &d);
    if (st == LS_OK) st = find(&d);
    if (st != LS_OK) {
        doctor_close(&d);
        return st;
    }
    order(&d);
    *out = d;
    return LS_OK;
}

void doctor_close(struct doctor *d)
{
    for (int i = 0; i < d->n; i++) mem_free(d->finding[i].waits);
    for (int i = 0; i < d->ranks; i++) mem_free(d->status[i].calls);
    mem_free(d->finding);
    mem_free(d->status);
    *d = (struct doctor){ 0 };
}
