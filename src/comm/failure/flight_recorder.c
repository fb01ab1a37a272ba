/* flight_recorder.c - the ring buffer of recent calls, in memory or in a mapped file that outlives the process; comparison and text of
 * signatures. */
#include "comm/failure/flight_recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"

struct recorder_head {
    char magic[8];
    int32_t rank, ranks;
    int64_t pid;
    double epoch;
    uint64_t calls;
    int64_t launcher;
    char pad[16];
};
struct recording {
    struct recorder_head head;
    struct recorder_status status;
    struct call_record record[RECORDER_CALLS];
};
_Static_assert(sizeof(struct recorder_head) == 64 && sizeof(struct recorder_status) == 768 && sizeof(struct call_record) == 128,
               "sizes of the records in the file");

struct recorder {
    struct recording *recording;
    bool mapped;
};

static const char magic[8] = { 'L', 'S', 'C', 'A', 'L', 'L', 'S', '2' };
/* Guards `used` and its recording: threads that make calls begin records, and the thread that drives the engine updates them. */
static pthread_mutex_t flight_recorder_lock = PTHREAD_MUTEX_INITIALIZER;
static struct recorder *used;

static double unix_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ls_status map_file(const char *path, struct recording **out)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    void *p = MAP_FAILED;

    if (fd < 0) return ls_fail(LS_EIO, "%s: %s", path, strerror(errno));
    if (ftruncate(fd, sizeof **out) == 0) p = mmap(NULL, sizeof **out, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ls_status st = p == MAP_FAILED ? ls_fail(LS_EIO, "%s: %s", path, strerror(errno)) : LS_OK;
    close(fd);
    if (st == LS_OK) *out = p;
    return st;
}

ls_status recorder_open(const char *path, int rank, int n, struct recorder **out)
{
    struct recorder *c = mem_zalloc(MEM_OTHER, sizeof *c);
    ls_status st = LS_OK;

    if (!c) return LS_ENOMEM;
    c->mapped = path;
    if (path)
        st = map_file(path, &c->recording);
    else if (!(c->recording = mem_zalloc(MEM_OTHER, sizeof *c->recording)))
        st = LS_ENOMEM;
    if (st < 0) {
        mem_free(c);
        return st;
    }
    c->recording->head = (struct recorder_head){ .rank = rank, .ranks = n, .pid = getpid(), .epoch = unix_now() - base_now() };
    c->recording->status = (struct recorder_status){ .opened = base_now() };
    if (gethostname(c->recording->status.host, sizeof c->recording->status.host - 1) != 0) strcpy(c->recording->status.host, "localhost");
    memcpy(c->recording->head.magic, magic, sizeof magic);
    *out = c;
    return LS_OK;
}

void recorder_close(struct recorder **c)
{
    if (!*c) return;
    if (recorder_used() == *c) recorder_use(NULL);
    if ((*c)->mapped)
        munmap((*c)->recording, sizeof *(*c)->recording);
    else
        mem_free((*c)->recording);
    mem_free(*c);
    *c = NULL;
}

void recorder_launched_by(struct recorder *c, int64_t pid) { c->recording->head.launcher = pid; }

void recorder_use(struct recorder *c)
{
    pthread_mutex_lock(&flight_recorder_lock);
    used = c;
    pthread_mutex_unlock(&flight_recorder_lock);
}

struct recorder *recorder_used(void)
{
    pthread_mutex_lock(&flight_recorder_lock);
    struct recorder *c = used;
    pthread_mutex_unlock(&flight_recorder_lock);
    return c;
}

uint64_t recorder_begin(const struct signature *s, const char *name, double at)
{
    uint64_t call = 0;

    pthread_mutex_lock(&flight_recorder_lock);
    if (used) {
        struct recording *r = used->recording;
        struct call_record *x = &r->record[r->head.calls % RECORDER_CALLS];

        *x = (struct call_record){ .signature = *s, .queued = at, .state = CALL_QUEUED };
        memcpy(x->name, name, strnlen(name, sizeof x->name - 1));
        call = ++r->head.calls;
    }
    pthread_mutex_unlock(&flight_recorder_lock);
    return call;
}

/* Returns NULL if the call has been overwritten. The caller holds the lock. */
static struct call_record *record_of(uint64_t call)
{
    bool kept = used && call && call <= used->recording->head.calls && used->recording->head.calls - call < RECORDER_CALLS;

    return kept ? &used->recording->record[(call - 1) % RECORDER_CALLS] : NULL;
}

void recorder_update(uint64_t call, enum call_state state, uint32_t step, double at)
{
    pthread_mutex_lock(&flight_recorder_lock);
    struct call_record *x = record_of(call);
    if (x) {
        if (state == CALL_RUNNING) x->started = at;
        if (state == CALL_DONE || state == CALL_FAILED) x->ended = at;
        x->state = (int32_t)state;
        x->step = step;
    }
    pthread_mutex_unlock(&flight_recorder_lock);
}

void recorder_seen(uint64_t call)
{
    pthread_mutex_lock(&flight_recorder_lock);
    struct call_record *at = record_of(call);
    if (at) at->seen = base_now();
    pthread_mutex_unlock(&flight_recorder_lock);
}

/* ---- status ---- */

void recorder_doing(const char *what)
{
    pthread_mutex_lock(&flight_recorder_lock);
    if (used) {
        snprintf(used->recording->status.doing, sizeof used->recording->status.doing, "%s", what);
        used->recording->status.since = base_now();
    }
    pthread_mutex_unlock(&flight_recorder_lock);
}

void recorder_stepped(uint64_t step, uint64_t steps, double rate, const char *unit)
{
    pthread_mutex_lock(&flight_recorder_lock);
    if (used) {
        struct recorder_status *s = &used->recording->status;

        s->step = step;
        s->steps = steps;
        s->rate = rate;
        s->stepped = base_now();
        snprintf(s->unit, sizeof s->unit, "%s", unit);
    }
    pthread_mutex_unlock(&flight_recorder_lock);
}

void recorder_skipped(uint64_t steps)
{
    pthread_mutex_lock(&flight_recorder_lock);
    if (used) used->recording->status.skipped = steps;
    pthread_mutex_unlock(&flight_recorder_lock);
}

void recorder_ended(int code, const char *why)
{
    pthread_mutex_lock(&flight_recorder_lock);
    if (used) {
        used->recording->status.code = code;
        snprintf(used->recording->status.why, sizeof used->recording->status.why, "%s", why);
        used->recording->status.ended = base_now();
    }
    pthread_mutex_unlock(&flight_recorder_lock);
}

/* ---- reading ---- */

static void read_status(const unsigned char *from, struct recorder_status *out)
{
    memcpy(out, from, sizeof *out);
    out->host[sizeof out->host - 1] = out->doing[sizeof out->doing - 1] = out->unit[sizeof out->unit - 1] = out->why[RECORDER_WHY - 1] =
        '\0';
}

static bool sane(const struct call_record *r)
{
    return memchr(r->name, 0, sizeof r->name) && r->state > CALL_NONE && r->state <= CALL_FAILED && r->signature.op >= 0 &&
           r->signature.op < LS_COLLECTIVES;
}

static ls_status parse(const char *path, const struct file_map *m, struct recorder_read *out)
{
    struct recorder_head h;

    if (m->bytes != sizeof(struct recording))
        return ls_fail(LS_EFORMAT, "%s: not a flight recorder file: it has %zu bytes, expected %zu", path, m->bytes,
                       sizeof(struct recording));
    memcpy(&h, m->data, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic))
        return ls_fail(LS_EFORMAT, "%s: not a flight recorder file: it does not begin with LSCALLS2", path);
    if (h.ranks < 1 || h.rank < 0 || h.rank >= h.ranks)
        return ls_fail(LS_EFORMAT, "%s: malformed flight recorder file: it names rank %d of %d", path, h.rank, h.ranks);

    struct recorder_read r = { .rank = h.rank, .ranks = h.ranks, .pid = h.pid, .epoch = h.epoch, .calls = h.calls, .launcher = h.launcher };
    uint64_t kept = MIN(h.calls, (uint64_t)RECORDER_CALLS);

    read_status((const unsigned char *)m->data + sizeof h, &r.status);
    for (uint64_t k = h.calls - kept; k < h.calls; k++) {
        struct call_record *at = &r.last[r.n];

        memcpy(at, m->data + offsetof(struct recording, record) + k % RECORDER_CALLS * sizeof *at, sizeof *at);
        if (sane(at)) r.n++; /* skips a record whose process died while writing it */
    }
    *out = r;
    return LS_OK;
}

ls_status recorder_read(const char *path, struct recorder_read *out)
{
    struct file_map m;

    LS_TRY(file_map_open(path, &m));
    ls_status st = parse(path, &m, out);
    file_map_close(&m);
    return st;
}

/* ---- signatures ---- */

bool signature_agrees(const struct signature *a, const struct signature *b)
{
    bool message = a->op == LS_COLLECTIVE_SEND || a->op == LS_COLLECTIVE_RECV;
    bool other = b->op == LS_COLLECTIVE_SEND || b->op == LS_COLLECTIVE_RECV;

    if (a->sequence != b->sequence || a->count != b->count || a->group != b->group || a->type != b->type) return false;
    if (message || other) return message && other && a->op != b->op;
    return a->counts == b->counts && a->op == b->op && a->redop == b->redop && a->root == b->root;
}

static const char *redop_name(int op)
{
    static const char *const names[LS_REDOPS] = { [LS_SUM] = "sum", [LS_AVG] = "avg", [LS_MAX] = "max" };

    return op >= 0 && op < LS_REDOPS ? names[op] : "?";
}

static const char *recorder_type_name(int type) { return type >= 0 && type < LS_DTYPES ? ls_dtype_name((ls_dtype)type) : "?"; }

/* Writes the text after the name of the operation, such as " (f32, 1024, sum)", into out[room]. */
static void arguments(const struct signature *s, char *out, size_t room)
{
    bool own = s->op == LS_COLLECTIVE_ALL_TO_ALL && s->counts;
    char count[32] = "own counts", tail[48] = "";

    if (!own) snprintf(count, sizeof count, "%llu%s", (unsigned long long)s->count, s->counts ? " in all" : "");
    if (s->redop >= 0)
        snprintf(tail, sizeof tail, ", %s", redop_name(s->redop));
    else if (s->op == LS_COLLECTIVE_SEND)
        snprintf(tail, sizeof tail, ", to rank %d", s->root);
    else if (s->op == LS_COLLECTIVE_RECV)
        snprintf(tail, sizeof tail, ", from rank %d", s->root);
    else if (s->root >= 0)
        snprintf(tail, sizeof tail, ", root %d", s->root);
    if (s->op == LS_COLLECTIVE_BARRIER)
        snprintf(out, room, "%s", "");
    else
        snprintf(out, room, " (%s, %s%s)", recorder_type_name(s->type), count, tail);
}

char *signature_text(const struct signature *s, const char *name, char *out, size_t bytes)
{
    char in[96];

    arguments(s, in, sizeof in);
    snprintf(out, bytes, "%s #%llu of %s%s", ls_collective_name((ls_collective)s->op), (unsigned long long)s->sequence, name, in);
    return out;
}

char *signature_call(const struct signature *s, char *out, size_t bytes)
{
    char in[96];

    arguments(s, in, sizeof in);
    snprintf(out, bytes, "%s%s", ls_collective_name((ls_collective)s->op), in);
    return out;
}
