/* doctor.c - reading rings, and finding who is missing where. */
#include "train/doctor.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
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

enum { RANKS_MOST = 1 << 16 };
static const double CLOCK_SLACK = 30;  /* seconds that a clock may have been set by without looking like another machine's */

static double unix_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double doctor_time(const struct doctor *d, int rank, double monotonic) { return d->patient[rank].calls->epoch + monotonic; }

const char *doctor_life(enum life l)
{
    static const char *const names[] = { "no calls", "alive", "stopped", "dead", "unknown" };

    return names[l];
}

bool doctor_lives(const struct doctor *d, int rank)
{
    return d->patient[rank].life == LIFE_ALIVE || d->patient[rank].life == LIFE_STOPPED;
}

/* ---- who lives ---- */

/* Monotonic seconds at which process pid started, state in *state; negative: there is none. */
static double started(int64_t pid, char *state)
{
    char path[64], line[1024];
    unsigned long long ticks;
    struct timespec up, mono;

    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "re");
    if (!f) return -1;
    size_t got = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[got] = '\0';
    const char *end = strrchr(line, ')');
    if (!end || sscanf(end + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", state, &ticks) != 2)
        return -1;
    clock_gettime(CLOCK_BOOTTIME, &up);
    clock_gettime(CLOCK_MONOTONIC, &mono);
    double asleep = (double)(up.tv_sec - mono.tv_sec) + 1e-9 * (double)(up.tv_nsec - mono.tv_nsec);
    return (double)ticks / (double)sysconf(_SC_CLK_TCK) - asleep;
}

/* A process of that number that started behind the rank's last call is another one. */
static enum life life_of(const struct calls_read *c)
{
    char state = 'Z';
    double last = c->n ? c->last[c->n - 1].queued : c->status.opened > 0 ? c->status.opened : INFINITY;
    char host[sizeof c->status.host] = "";

    if (gethostname(host, sizeof host - 1) == 0 && strcmp(host, c->status.host) != 0) return LIFE_UNKNOWN;
    if (fabs(c->epoch - (unix_now() - base_now())) > CLOCK_SLACK) return LIFE_UNKNOWN;
    double since = started(c->pid, &state);
    if (since < 0 || strchr("ZX", state) || since > last + 1) return LIFE_DEAD;
    return state == 'T' ? LIFE_STOPPED : LIFE_ALIVE;
}

/* ---- reading ---- */

/* Rank of a file name rank_NNNN; -1: another file. */
static int rank_of(const char *name)
{
    char *end;

    if (strncmp(name, "rank_", 5) != 0 || !isdigit((unsigned char)name[5])) return -1;
    long rank = strtol(name + 5, &end, 10);
    return *end || rank >= RANKS_MOST ? -1 : (int)rank;
}

static ls_status add_patient(struct doctor *d, const char *folder, const char *name, int rank)
{
    char *path = file_path("%s/%s", folder, name);
    struct calls_read *c = mem_alloc(MEM_OTHER, sizeof *c);
    ls_status st = path && c ? calls_read(path, c) : LS_ENOMEM;

    if (st == LS_OK && c->rank != rank) st = ls_fail(LS_EFORMAT, "%s: says that it is of rank %d", path, c->rank);
    mem_free(path);
    if (st == LS_OK) {
        d->patient[rank] = (struct patient){ .life = life_of(c), .calls = c };
        return LS_OK;
    }
    mem_free(c);
    if (st == LS_ENOMEM) return st;
    snprintf(d->patient[rank].why, sizeof d->patient[rank].why, "%s", ls_errmsg());
    return LS_OK;
}

static ls_status make_room(struct doctor *d, int ranks)
{
    if (ranks <= d->ranks) return LS_OK;
    struct patient *p = mem_resize(d->patient, (size_t)ranks * sizeof *p);
    if (!p) return LS_ENOMEM;
    memset(p + d->ranks, 0, (size_t)(ranks - d->ranks) * sizeof *p);
    d->patient = p;
    d->ranks = ranks;
    return LS_OK;
}

/* Ranks without a file count too: a ring says how many there are. */
static ls_status read_folder(DIR *dir, const char *folder, struct doctor *d)
{
    for (struct dirent *e; (e = readdir(dir)); ) {
        int rank = rank_of(e->d_name);

        if (rank < 0) continue;
        LS_TRY(make_room(d, rank + 1));
        LS_TRY(add_patient(d, folder, e->d_name, rank));
        const struct calls_read *c = d->patient[rank].calls;
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
    if (st == LS_OK && d->ranks == 0)
        st = ls_fail(LS_EINVAL, "%s: no calls/rank_NNNN in it: not the folder of a run", run);
    mem_free(folder);
    return st;
}

/* What the launcher left; a damaged file is none. */
static void read_end(const char *run, struct doctor *d)
{
    char *path = file_path("%s/calls/ended", run);
    json_node *root = NULL;

    if (path && file_exists(path) && json_read(path, &root) == LS_OK) {
        d->launched = true;
        d->code = (int)json_int(json_get(root, "exit"), 1);
        snprintf(d->line, sizeof d->line, "%s", json_string(json_get(root, "line"), ""));
        json_close(&root);
    }
    mem_free(path);
}

/* ---- finding ---- */

static bool is_message(const struct signature *s) { return s->op == LS_COLLECTIVE_SEND || s->op == LS_COLLECTIVE_RECV; }
static bool is_open(const struct call_record *r) { return r->state != CALL_DONE; }

const struct call_record *doctor_record(const struct doctor *d, int rank, uint64_t group, uint64_t sequence)
{
    const struct patient *p = &d->patient[rank];

    for (int i = 0; p->calls && i < p->calls->n; i++) {
        const struct call_record *r = &p->calls->last[i];

        if (!is_message(&r->signature) && r->signature.group == group && r->signature.sequence == sequence) return r;
    }
    return NULL;
}

/* The newest collective call of a group; 0: none is kept. */
static uint64_t newest(const struct patient *p, uint64_t group)
{
    uint64_t most = 0;

    for (int i = 0; p->calls && i < p->calls->n; i++) {
        const struct signature *s = &p->calls->last[i].signature;

        if (!is_message(s) && s->group == group) most = MAX(most, s->sequence);
    }
    return most;
}

/* All ranks are in the world; of another group we know those that have called in it. */
static bool is_member(const struct doctor *d, int rank, const struct call_record *r)
{
    return strcmp(r->name, "world") == 0 || newest(&d->patient[rank], r->signature.group) > 0;
}

static ls_status finding_make(const struct doctor *d, struct finding *f)
{
    f->waits = mem_array(MEM_OTHER, 3 * (size_t)d->ranks, sizeof *f->waits);
    if (!f->waits) return LS_ENOMEM;
    f->missing = f->waits + d->ranks;
    f->differs = f->missing + d->ranks;
    return LS_OK;
}

/* Who waits in, is missing from, and differs from r, which rank `from` has open. True when somebody is to blame. */
static bool judge(const struct doctor *d, const struct call_record *r, int from, struct finding *f)
{
    bool blame = false;

    f->call = *r;
    f->since = doctor_time(d, from, r->queued);
    for (int i = 0; i < d->ranks; i++) {
        const struct patient *p = &d->patient[i];
        const struct call_record *its = doctor_record(d, i, r->signature.group, r->signature.sequence);

        f->differs[i] = its && !signature_agrees(&its->signature, &r->signature);
        f->waits[i] = its && !f->differs[i] && is_open(its);
        f->missing[i] = !its && is_member(d, i, r) && newest(p, r->signature.group) < r->signature.sequence;
        if (f->waits[i]) f->since = MIN(f->since, doctor_time(d, i, its->queued));
        blame |= f->missing[i] || f->differs[i];
    }
    return blame;
}

/* Index of the finding of that group, or n. */
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
        const struct calls_read *c = d->patient[i].calls;

        for (int k = 0; c && k < c->n; k++)
            if (is_open(&c->last[k]) && !is_message(&c->last[k].signature)) LS_TRY(consider(d, &c->last[k], i));
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
            if ((f->missing[r] || f->differs[r]) && waits_elsewhere(d, f, r)) f->cause = false;
    }
    if (d->n > 1) qsort(d->finding, (size_t)d->n, sizeof *d->finding, by_cause);
}

ls_status doctor_open(const char *run, struct doctor *out)
{
    struct doctor d = { .now = unix_now() };
    ls_status st = read_run(run, &d);

    if (st == LS_OK) read_end(run, &d);
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
    for (int i = 0; i < d->ranks; i++) mem_free(d->patient[i].calls);
    mem_free(d->finding);
    mem_free(d->patient);
    *d = (struct doctor){ 0 };
}
