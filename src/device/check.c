/* check.c - the checking device's streams: queues, and the scheduler that drains them. See check.h. */
#include "device/check.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "base/pulse.h"

enum kind { QUEUED_RUN, QUEUED_FILL, QUEUED_COPY_IN, QUEUED_COPY_OUT, QUEUED_COPY, QUEUED_RECORD, QUEUED_WAIT };

struct queued {
    struct queued *next;
    enum kind kind;
    bool begun;
    struct device_operation run; /* QUEUED_RUN; its args and those of the queue are the bytes below */
    void *to;                    /* destination of copies and fills */
    const void *from;
    size_t bytes;
    int byte;
    struct device_event *event;
    uint64_t count; /* of a record or wait: how many records the event had when it was enqueued */
    _Alignas(16) char args[];
};

struct device_stream {
    int id;
    char name[CHECK_NAME];
    bool open;
    double rank; /* for CHECK_RANKED: the stream with the highest runs first */
    struct queued *head, *tail;
    uint32_t number; /* number of the last operation enqueued */
    struct check_clock clock;
};

struct device_event {
    uint64_t recorded, done;      /* records enqueued; records that the streams have reached */
    struct device_stream *stream; /* stream of the last record */
    struct check_clock clock;
};

static struct {
    struct device_stream stream[CHECK_STREAMS]; /* [0]: the default one */
    const char *names[CHECK_STREAMS];
    uint64_t random;
    enum check_order order;
    check_action_fn *on_action;
    void *on_action_ctx;
    struct check_clock host; /* what the host has waited for */
    ls_status failed;
    char message[512];
    bool ready;
} checking;

static uint64_t check_draw(void) /* splitmix64 */
{
    uint64_t z = checking.random += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void stream_reset(int id, const char *name)
{
    struct device_stream *s = &checking.stream[id];
    uint32_t number = s->number;

    *s = (struct device_stream){ .id = id, .open = true, .number = number, .rank = (double)(check_draw() >> 11) };
    snprintf(s->name, sizeof s->name, "%s", name);
    checking.names[id] = s->name;
}

static void get_ready(void)
{
    if (checking.ready) return;
    checking.ready = true;
    check_streams_named(checking.names);
    stream_reset(0, "default");
}

void check_set_seed(uint64_t seed)
{
    checking.random = seed;
    checking.order = (enum check_order)(check_draw() % CHECK_ORDERS);
    for (int s = 0; s < CHECK_STREAMS; s++) checking.stream[s].rank = (double)(check_draw() >> 11);
}

void check_set_order(enum check_order order) { checking.order = order; }

void check_on_action(check_action_fn *fn, void *ctx)
{
    checking.on_action = fn;
    checking.on_action_ctx = ctx;
}

static bool report(struct check_action a) { return !checking.on_action || checking.on_action(checking.on_action_ctx, &a); }

static struct device_stream *stream_or_default(struct device_stream *s)
{
    get_ready();
    return s ? s : &checking.stream[0];
}

/* ---- running ---- */

static void *shadow(const struct queued *q, const void *p, size_t bytes)
{
    const struct check_block *b = check_block_of(p, bytes);

    if (!b) check_die("%s got address %p: its %zu bytes are not, or not all, in device memory", q->run.name, p, bytes);
    return b->shadow + ((const char *)p - b->visible);
}

/* The host memory of a copy. */
static void *plain(const struct queued *q, const void *p, size_t bytes)
{
    if (bytes && check_block_of(p, 1)) check_die("%s got device memory; expected host memory", q->run.name);
    return (void *)(uintptr_t)p;
}

static void fail(ls_status st)
{
    if (checking.failed < 0) return;
    checking.failed = st;
    snprintf(checking.message, sizeof checking.message, "%s", ls_errmsg());
}

static ls_status run_operation(struct queued *q)
{
    if (checking.failed < 0 && !q->begun) return LS_OK;
    for (int k = 0; k < q->run.pointers && !q->begun; k++) {
        void **p = (void **)(void *)(q->args + q->run.pointer[k]);

        *p = shadow(q, *p, 0);
    }
    if (!q->begun) pulse();
    q->begun = true;
    ls_status st = q->run.run(q->args);
    if (st < 0) fail(st);
    return st == LS_BUSY ? LS_BUSY : LS_OK;
}

static void run_bytes(const struct queued *q)
{
    void *to = q->kind == QUEUED_COPY_OUT ? plain(q, q->to, q->bytes) : shadow(q, q->to, q->bytes);

    if (q->kind == QUEUED_FILL)
        memset(to, q->byte, q->bytes);
    else
        memcpy(to, q->kind == QUEUED_COPY_IN ? plain(q, q->from, q->bytes) : shadow(q, q->from, q->bytes), q->bytes);
}

static bool can_run(const struct queued *q) { return q && (q->kind != QUEUED_WAIT || q->event->done >= q->count); }

/* Runs the head of s, which can run; true if it has ended. */
static bool run_head(struct device_stream *s)
{
    struct queued *q = s->head;

    if (q->kind == QUEUED_RUN && run_operation(q) == LS_BUSY) return false;
    if (q->kind == QUEUED_RECORD)
        q->event->done = q->count;
    else if (q->kind != QUEUED_RUN && q->kind != QUEUED_WAIT && checking.failed == LS_OK)
        run_bytes(q);
    s->head = q->next;
    if (!s->head) s->tail = NULL;
    mem_free(q);
    return true;
}

/* ---- the scheduler ---- */

/* One of the streams whose head can run, all but `without`; NULL: none. */
static struct device_stream *choose(uint64_t without)
{
    struct device_stream *best = NULL;
    uint64_t seen = 0;

    for (int k = 0; k < CHECK_STREAMS; k++) {
        struct device_stream *s = &checking.stream[k];

        if ((without >> k & 1) || !can_run(s->head)) continue;
        seen++;
        if (!best || (checking.order == CHECK_RANKED ? s->rank > best->rank : check_draw() % seen == 0)) best = s;
    }
    return best;
}

/* Runs one operation, trying further streams if an operation has only begun; false: none ended. */
static bool run_any(void)
{
    uint64_t tried = 0;

    for (struct device_stream *s; (s = choose(tried)); tried |= (uint64_t)1 << s->id)
        if (run_head(s)) return true;
    return false;
}

/* The stream whose next operation s waits for, or s. Not found if an event that is waited for was recorded again, on another stream. */
static struct device_stream *needed(struct device_stream *s)
{
    for (int k = 0; k < CHECK_STREAMS && s->head && !can_run(s->head); k++) s = s->head->event->stream;
    return s;
}

static void idle(void)
{
    static const struct timespec moment = { .tv_nsec = 50000 };

    nanosleep(&moment, NULL);
}

/* True if the streams have reached record `count` of e or, if e is NULL, s is empty. */
static bool is_drained(const struct device_stream *s, const struct device_event *e, uint64_t count)
{
    return e ? e->done >= count : !s->head;
}

/* Runs an operation; false: none could. */
static bool run_for(struct device_stream *s)
{
    struct device_stream *first = checking.order == CHECK_DEMAND ? needed(s) : NULL;

    return (first && can_run(first->head) && run_head(first)) || run_any();
}

static ls_status drain(struct device_stream *s, const struct device_event *e)
{
    uint64_t count = e ? e->recorded : 0;

    while (!is_drained(s, e, count))
        if (!run_for(s)) idle();
    return checking.failed < 0 ? ls_fail(checking.failed, "%s", checking.message) : LS_OK;
}

bool check_poll(struct device_stream *stream, const struct device_event *e)
{
    struct device_stream *s = e && e->recorded ? e->stream : stream_or_default(stream);

    if (!is_drained(s, e, e ? e->recorded : 0)) run_for(s);
    if (!is_drained(s, e, e ? e->recorded : 0)) return false;
    if (!e || e->recorded) check_clock_merge(&checking.host, e ? &e->clock : &s->clock);
    return true;
}

static bool anything_queued(void)
{
    for (int k = 0; k < CHECK_STREAMS; k++)
        if (checking.stream[k].head) return true;
    return false;
}

bool check_run_all(void)
{
    while (run_any()) {
    }
    return !anything_queued();
}

static void run_some(void)
{
    while (checking.order == CHECK_PROGRAM && anything_queued())
        if (!run_any()) idle();
    while ((checking.order == CHECK_EAGER || (checking.order == CHECK_RANDOM && check_draw() % 2)) && run_any()) {
    }
}

/* ---- enqueueing ---- */

static void append(struct device_stream *s, struct queued *q)
{
    q->next = NULL;
    if (s->tail)
        s->tail->next = q;
    else
        s->head = q;
    s->tail = q;
}

static ls_status check_give(struct device_stream *s, enum kind kind, const struct device_operation *o, struct queued **out)
{
    struct queued *q = mem_alloc(MEM_OTHER, sizeof *q + o->bytes);

    if (!q) return LS_ENOMEM;
    *q = (struct queued){ .kind = kind, .run = *o };
    if (o->bytes) memcpy(q->args, o->args, o->bytes);
    if (o->accesses) report((struct check_action){ .kind = CHECK_OPERATION, .stream = s, .operation = o });
    check_clock_merge(&s->clock, &checking.host);
    if (o->accesses) s->clock.at[s->id] = ++s->number; /* what it writes in place it reads itself */
    for (int k = 0; k < o->accesses; k++)
        if (check_touch(o->name, s->id, s->number, &s->clock, &checking.host, &o->access[k]) < 0) {
            mem_free(q);
            return LS_ENOMEM;
        }
    append(s, q);
    *out = q;
    return LS_OK;
}

static ls_status check_enqueue(struct device_stream *stream, const struct device_operation *o)
{
    struct queued *q;

    LS_TRY(check_give(stream_or_default(stream), QUEUED_RUN, o, &q));
    run_some();
    return LS_OK;
}

static ls_status enqueue_bytes(struct device_stream *stream, enum kind kind, void *to, const void *from, int byte, size_t bytes)
{
    static const char *const names[] = {
        [QUEUED_FILL] = "fill", [QUEUED_COPY_IN] = "copy_in", [QUEUED_COPY_OUT] = "copy_out", [QUEUED_COPY] = "copy"
    };
    struct device_operation o = { .name = names[kind],
                                  .access = { { .data = to, .bytes = bytes, .write = true }, { .data = from, .bytes = bytes } },
                                  .accesses = kind == QUEUED_FILL ? 1 : 2 };
    struct queued *q;

    if (!bytes) return LS_OK;
    LS_TRY(check_give(stream_or_default(stream), kind, &o, &q));
    q->to = to;
    q->from = from;
    q->byte = byte;
    q->bytes = bytes;
    run_some();
    return LS_OK;
}

static ls_status check_fill(struct device_stream *s, void *dst, int byte, size_t bytes)
{
    return enqueue_bytes(s, QUEUED_FILL, dst, NULL, byte, bytes);
}

static ls_status check_copy_in(struct device_stream *s, void *dst, const void *host, size_t bytes)
{
    return enqueue_bytes(s, QUEUED_COPY_IN, dst, host, 0, bytes);
}

static ls_status check_copy_out(struct device_stream *s, void *host, const void *src, size_t bytes)
{
    return enqueue_bytes(s, QUEUED_COPY_OUT, host, src, 0, bytes);
}

static ls_status check_copy(struct device_stream *s, void *dst, const void *src, size_t bytes)
{
    return enqueue_bytes(s, QUEUED_COPY, dst, src, 0, bytes);
}

/* ---- streams and events ---- */

static ls_status check_stream_new(const char *name, struct device_stream **out)
{
    get_ready();
    for (int k = 1; k < CHECK_STREAMS; k++)
        if (!checking.stream[k].open) {
            stream_reset(k, name);
            *out = &checking.stream[k];
            return LS_OK;
        }
    return ls_fail(LS_EUNSUPPORTED, "device check: no stream is left: %d are open", CHECK_STREAMS);
}

static ls_status check_stream_sync(struct device_stream *stream)
{
    struct device_stream *s = stream_or_default(stream);

    LS_TRY(drain(s, NULL));
    report((struct check_action){ .kind = CHECK_HOST_WAIT, .stream = s });
    check_clock_merge(&checking.host, &s->clock);
    return LS_OK;
}

static void check_stream_free(struct device_stream *s)
{
    if (!s) return;
    drain(s, NULL);
    s->open = false;
}

static ls_status check_sync(void)
{
    ls_status st = LS_OK;

    if (!checking.ready) return LS_OK; /* nothing was enqueued in this process; every blocking collective comes here */
    for (int k = 0; k < CHECK_STREAMS && st == LS_OK; k++) st = drain(&checking.stream[k], NULL);
    if (st < 0) return st;
    report((struct check_action){ .kind = CHECK_HOST_WAIT });
    for (int k = 0; k < CHECK_STREAMS; k++) check_clock_merge(&checking.host, &checking.stream[k].clock);
    check_forget_all();
    return LS_OK;
}

static ls_status check_event_new(struct device_event **out)
{
    *out = mem_zalloc(MEM_OTHER, sizeof **out);
    return *out ? LS_OK : LS_ENOMEM;
}

static void check_event_free(struct device_event *e)
{
    if (e) check_sync(); /* queues may name it */
    mem_free(e);
}

static ls_status check_event_record(struct device_event *e, struct device_stream *stream)
{
    static const struct device_operation record = { .name = "event" };
    struct device_stream *s = stream_or_default(stream);
    struct queued *q;

    LS_TRY(check_give(s, QUEUED_RECORD, &record, &q));
    q->event = e;
    q->count = ++e->recorded;
    e->stream = s;
    e->clock = s->clock;
    report((struct check_action){ .kind = CHECK_RECORD, .stream = s, .event = e });
    run_some();
    return LS_OK;
}

static ls_status check_event_wait(struct device_event *e, struct device_stream *stream)
{
    static const struct device_operation wait = { .name = "wait" };
    struct device_stream *s = stream_or_default(stream);
    struct queued *q;

    if (!e->recorded) return LS_OK;
    LS_TRY(check_give(s, QUEUED_WAIT, &wait, &q));
    q->event = e;
    q->count = e->recorded;
    if (report((struct check_action){ CHECK_WAIT, s, e, NULL, check_clock_covers(&s->clock, &e->clock) }))
        check_clock_merge(&s->clock, &e->clock);
    run_some();
    return LS_OK;
}

static ls_status check_event_sync(struct device_event *e)
{
    if (!e->recorded) return LS_OK;
    LS_TRY(drain(e->stream, e));
    report((struct check_action){ .kind = CHECK_HOST_WAIT, .event = e });
    check_clock_merge(&checking.host, &e->clock);
    return LS_OK;
}

static void check_free(void *p)
{
    if (!p) return;
    check_sync();
    check_release(p);
}

const struct device device_check = {
    .name = "check",
    .kernels = "cpu",
    .random_order = true,
    .comparison = "onednn",
    .alloc = check_alloc,
    .free = check_free,
    .stream_new = check_stream_new,
    .stream_free = check_stream_free,
    .stream_sync = check_stream_sync,
    .sync = check_sync,
    .event_new = check_event_new,
    .event_free = check_event_free,
    .event_record = check_event_record,
    .event_wait = check_event_wait,
    .event_sync = check_event_sync,
    .fill = check_fill,
    .copy_in = check_copy_in,
    .copy_out = check_copy_out,
    .copy = check_copy,
    .enqueue = check_enqueue,
};
