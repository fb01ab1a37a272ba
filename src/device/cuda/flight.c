/* flight.c - what the host does when a stream has come to a point, and the host's waits. See cuda.h. */
#include "device/cuda/cuda.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"
#include "base/pulse.h"
#include "base/yield.h"

/* A copy that ends in a block; an operation of the host between the copies out of and into one; or a call of a group, which is watched. */
struct flight {
    struct flight *next;
    struct device_stream *stream;
    cudaEvent_t reached, ended; /* ended: what an operation wrote was copied in, or the call is over */
    struct pinned *block;
    void *host; /* destination of a copy from the device */
    size_t bytes;
    struct device_operation operation; /* run NULL: none */
    bool begun, over;
    uint32_t number;
    char *args;
    struct device_watch watch; /* for a call of a group; its data is args */
    flight_broken_fn *broken;
    flight_spoiled_fn *spoiled;
    double spoiled_at; /* when it ended spoiled; 0: it has not */
    void *group;
    bool enqueued, passed; /* all of the call is on the stream, which is past it */
};

static struct {
    struct flight *first, *last, *spare;
    uint64_t pass;
    bool moving;
    bool spoiled;          /* a call has ended that a peer's failure spoiled */
    struct flight *waited; /* the host waits, and this one has begun and is not over */
    struct yields yields;
    long naps; /* naps of this wait since a flight has begun or ended */
} flights;

enum { QUERIES_BEFORE_SLEEP = 256 };
enum { NAP_NS = 20000, NAPS_DOUBLED = 32, LONGEST_NAP_NS = 100000 }; /* the first; twice as long after so many; at most */
static const double SPOILED_SECONDS = 2;

static void flight_waits(struct flight *f, bool on)
{
    if (f->watch.waits) f->watch.waits(f->args, on);
    if (f->operation.waits) f->operation.waits(f->args, on);
}

void flights_rested(void)
{
    if (flights.waited) flight_waits(flights.waited, false);
    flights.waited = NULL;
}

/* Shows what the host waits for: the oldest operation that has begun. */
static void show_wait(void)
{
    struct flight *f = flights.first;

    while (f && (!f->begun || f->over)) f = f->next;
    if (f == flights.waited) return;
    flights_rested();
    flights.waited = f;
    if (f) flight_waits(f, true);
}

void flights_rest(unsigned turns)
{
    if (turns == 0) {
        yield_begin(&flights.yields);
        flights.naps = 0;
    }
    if (turns < QUERIES_BEFORE_SLEEP && yield_try(&flights.yields)) return;
    show_wait();
    nanosleep(&(struct timespec){ .tv_nsec = MIN(NAP_NS + NAP_NS / NAPS_DOUBLED * flights.naps, LONGEST_NAP_NS) }, NULL);
    flights.naps++;
}

/* ---- moving ---- */

static bool event_is_over(cudaEvent_t e)
{
    cudaError_t answer = cudaEventQuery(e);

    if (answer != cudaSuccess && answer != cudaErrorNotReady) cuda_check(answer, "cudaEventQuery");
    return answer == cudaSuccess;
}

static void flight_begins(struct flight *f)
{
    if (f->begun) return;
    f->begun = true;
    flights.naps = 0;
    pulse();
}

/* The host's part of an operation; true: it has ended. */
static bool operation_move(struct flight *f)
{
    if (cuda.failed < 0 && !f->begun) return true;
    flight_begins(f);
    ls_status st = f->operation.run(f->args);
    if (st == LS_BUSY) return false;
    if (st < 0) cuda_fail(st);
    return true;
}

/* The call of f is over, or will not be. */
static void call_over(struct flight *f, bool ended)
{
    if (f->passed) return;
    f->passed = true;
    f->watch.over(f->args, ended);
}

void flights_fail(void)
{
    flights_rested();
    for (struct flight *f = flights.first; f; f = f->next)
        if (f->watch.run) call_over(f, false);
}

/* f has ended. True: a peer's failure has spoiled it. */
static bool call_spoiled(struct flight *f)
{
    if (!f->spoiled || !f->spoiled(f->group)) return false;
    flights.spoiled = true;
    if (f->spoiled_at == 0) f->spoiled_at = cuda_now();
    if (cuda_now() - f->spoiled_at < SPOILED_SECONDS) return true;
    ls_fail(LS_EPEER, "cuda: GPU %d (%s): another rank of a collective has failed", cuda.gpu, cuda.properties.name);
    cuda_fail(f->watch.broken(f->args, LS_EPEER));
    return true;
}

/* True: the call of the group is over. */
static bool call_move(struct flight *f)
{
    if (cuda.failed < 0) return true;
    if (!f->begun && !event_is_over(f->reached)) return cuda.failed < 0;
    flight_begins(f);
    ls_status st = f->watch.run(f->args);
    if (st < 0) cuda_fail(st);
    if (cuda.failed == LS_OK && f->enqueued && !f->passed && event_is_over(f->ended) && !call_spoiled(f)) {
        call_over(f, true);
        st = f->watch.run(f->args);
        if (st < 0) cuda_fail(st);
    }
    ls_status broken = cuda.failed == LS_OK && !f->passed && f->broken ? f->broken(f->group) : LS_OK;
    if (broken < 0) cuda_fail(f->watch.broken(f->args, broken));
    if (cuda.failed < 0) return true;
    f->over = st != LS_BUSY;
    if (f->over) pulse();
    return f->over;
}

/* True: the flight is over. */
static bool flight_move(struct flight *f)
{
    if (f->watch.run) return call_move(f);
    if (f->operation.run && !f->over) {
        if (!f->begun && cuda.failed == LS_OK && !event_is_over(f->reached)) return false;
        if (!operation_move(f)) return false;
        f->over = true;
        atomic_thread_fence(memory_order_seq_cst);
        *(volatile uint32_t *)f->stream->ended = f->number;
    }
    if (cuda.failed < 0) return true;
    if (!event_is_over(f->operation.run ? f->ended : f->reached)) return false;
    if (f->host) memcpy(f->host, f->block->data, f->bytes);
    pulse();
    return true;
}

static void flight_release(struct flight *f)
{
    if (f->block) pinned_give(f->block);
    if (flights.waited == f) flights_rested();
    mem_free(f->args);
    f->next = flights.spare;
    flights.spare = f;
}

/* A stream's later flights are not asked about before its first one is over, a call of a group aside that the stream is past: its flight
 * lasts until the comm has noticed. */
void flights_move(void)
{
    struct flight **at = &flights.first, *last = NULL;

    ASSERT(!cuda.capturing);
    if (flights.moving) return;
    flights.moving = true;
    flights.pass++;
    while (*at) {
        struct flight *f = *at;

        if ((f->stream->stuck == flights.pass && !f->passed) || !flight_move(f)) {
            if (!f->passed) f->stream->stuck = flights.pass;
            last = f;
            at = &f->next;
            continue;
        }
        *at = f->next;
        flights.naps = 0;
        flight_release(f);
    }
    flights.last = last;
    flights.moving = false;
}

/* ---- waiting ---- */

/* Until e is over or, where e is NULL, s is empty. */
static ls_status wait_until(const struct device_stream *s, cudaEvent_t e)
{
    cudaError_t answer;

    for (unsigned queries = 0;; queries++) {
        flights_move();
        LS_TRY(cuda_failed());
        answer = e ? cudaEventQuery(e) : cudaStreamQuery(s->handle);
        if (answer != cudaErrorNotReady && !flights.spoiled) break;
        flights_rest(queries);
    }
    flights_rested();
    LS_TRY(cuda_check(answer, e ? "cudaEventQuery" : "cudaStreamQuery"));
    flights_move();
    return cuda_failed();
}

ls_status flights_wait(cudaEvent_t e) { return wait_until(NULL, e); }
ls_status flights_wait_stream(const struct device_stream *s) { return wait_until(s, NULL); }

ls_status flights_finish(void)
{
    for (unsigned queries = 0; flights.first; queries++) {
        flights_move();
        LS_TRY(cuda_failed());
        if (flights.first) flights_rest(queries);
    }
    flights_rested();
    return cuda_failed();
}

static bool on_its_way(const void *p, size_t bytes)
{
    uintptr_t begin = (uintptr_t)p;

    for (const struct flight *f = flights.first; f; f = f->next)
        if (f->host && begin < (uintptr_t)f->host + f->bytes && (uintptr_t)f->host < begin + bytes) return true;
    return false;
}

ls_status flights_wait_host(const void *p, size_t bytes)
{
    for (unsigned queries = 0; on_its_way(p, bytes); queries++) {
        flights_move();
        LS_TRY(cuda_failed());
        flights_rest(queries);
    }
    flights_rested();
    return LS_OK;
}

static int large_copies(void)
{
    int n = 0;

    for (const struct flight *f = flights.first; f; f = f->next) n += !f->operation.run && f->bytes == PINNED_COPY;
    return n;
}

ls_status flights_wait_copies(void)
{
    for (unsigned queries = 0; large_copies() >= PINNED_COPIES; queries++) {
        flights_move();
        LS_TRY(cuda_failed());
        flights_rest(queries);
    }
    flights_rested();
    return LS_OK;
}

/* ---- new flights ---- */

static struct flight *flight_new(struct device_stream *s, struct pinned *block)
{
    struct flight *f = flights.spare;
    cudaEvent_t reached = f ? f->reached : NULL, ended = f ? f->ended : NULL;

    if (f)
        flights.spare = f->next;
    else if (!(f = mem_alloc(MEM_OTHER, sizeof *f)))
        return NULL;
    *f = (struct flight){ .stream = s, .block = block, .reached = reached, .ended = ended };
    return f;
}

static void flights_append(struct flight *f)
{
    f->next = NULL;
    if (flights.last)
        flights.last->next = f;
    else
        flights.first = f;
    flights.last = f;
}

ls_status flight_add(struct device_stream *s, struct pinned *block, void *host, size_t bytes)
{
    struct flight *f = flight_new(s, block);
    ls_status st = f ? flight_event(&f->reached) : LS_ENOMEM;

    if (st == LS_OK) st = cuda_check(cudaEventRecord(f->reached, s->handle), "cudaEventRecord");
    if (st < 0) {
        if (f) flight_release(f);
        return cuda_fail(st);
    }
    f->host = host;
    f->bytes = bytes;
    flights_append(f);
    return LS_OK;
}

/* ---- operations of the host ---- */

enum { SPAN_ALIGNMENT = 64 };

/* Bytes of the device that are staged at `at` of the block. */
struct span {
    char *device;
    size_t bytes, at;
};

/* Accesses that overlap share a span. */
static int spans_add(struct span *all, int n, const struct device_access *a)
{
    char *begin = (char *)(uintptr_t)a->data, *end = begin + a->bytes;

    for (int k = 0; k < n;)
        if (all[k].device < end && begin < all[k].device + all[k].bytes) {
            begin = MIN(begin, all[k].device);
            end = MAX(end, all[k].device + all[k].bytes);
            all[k] = all[--n];
            k = 0;
        } else {
            k++;
        }
    all[n] = (struct span){ .device = begin, .bytes = (size_t)(end - begin) };
    return n + 1;
}

static int spans_of(const struct device_operation *o, struct span all[DEVICE_POINTERS], size_t *bytes)
{
    int n = 0;

    *bytes = 0;
    for (int k = 0; k < o->accesses; k++) n = spans_add(all, n, &o->access[k]);
    for (int k = 0; k < n; k++) {
        all[k].at = *bytes;
        *bytes += (all[k].bytes + SPAN_ALIGNMENT - 1) / SPAN_ALIGNMENT * SPAN_ALIGNMENT;
    }
    return n;
}

static char *staged(const struct span *all, int n, const struct pinned *block, const void *p)
{
    const char *at = p;

    for (int k = 0; k < n; k++)
        if (at >= all[k].device && at < all[k].device + all[k].bytes) return block->data + all[k].at + (at - all[k].device);
    ASSERT(!"each pointer of an operation is within the bytes that it reads or writes");
    return NULL;
}

static ls_status stage(const struct flight *f, const struct span *all, int n, bool out)
{
    const struct device_operation *o = &f->operation;

    for (int k = 0; k < o->accesses; k++) {
        const struct device_access *a = &o->access[k];
        char *there = (char *)(uintptr_t)a->data, *here = staged(all, n, f->block, there);

        if (out ? a->write && a->overwrites : !a->write) continue;
        LS_TRY(cuda_check(cudaMemcpyAsync(out ? here : there, out ? there : here, a->bytes,
                                          out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, f->stream->handle),
                          "cudaMemcpyAsync"));
    }
    return LS_OK;
}

static ls_status copy_arguments(struct flight *f, const struct span *all, int n)
{
    const struct device_operation *o = &f->operation;

    f->args = mem_alloc(MEM_OTHER, o->bytes);
    if (!f->args) return LS_ENOMEM;
    if (o->bytes) memcpy(f->args, o->args, o->bytes);
    for (int k = 0; k < o->pointers; k++) {
        void **p = (void **)(void *)(f->args + o->pointer[k]);

        *p = staged(all, n, f->block, *p);
    }
    return LS_OK;
}

/* The bytes out, the wait for the host, the bytes in. */
static ls_status operation_queue(struct flight *f, const struct span *all, int n)
{
    struct device_stream *s = f->stream;

    LS_TRY(flight_event(&f->reached));
    LS_TRY(flight_event(&f->ended));
    LS_TRY(copy_arguments(f, all, n));
    LS_TRY(stage(f, all, n, true));
    LS_TRY(cuda_check(cudaEventRecord(f->reached, s->handle), "cudaEventRecord"));
    f->number = ++s->given;
    LS_TRY(cuda_check_driver(cuda.wait_value(s->handle, (uintptr_t)s->ended, f->number, 0), "cuStreamWaitValue32"));
    LS_TRY(stage(f, all, n, false));
    return cuda_check(cudaEventRecord(f->ended, s->handle), "cudaEventRecord");
}

ls_status cuda_enqueue(struct device_stream *stream, const struct device_operation *o)
{
    struct span all[DEVICE_POINTERS];
    struct device_stream *s;
    struct pinned *block;
    size_t bytes;
    int n = spans_of(o, all, &bytes);

    LS_TRY(cuda_stream(stream, &s));
    LS_TRY(flight_room_for(s, 2 * (unsigned)o->accesses + 3));
    LS_TRY(pinned_take(bytes, &block));
    struct flight *f = flight_new(s, block);
    if (!f) {
        pinned_give(block);
        return cuda_fail(LS_ENOMEM);
    }
    f->operation = *o;
    ls_status st = operation_queue(f, all, n);
    if (st == LS_OK) {
        flights_append(f);
        return LS_OK;
    }
    st = cuda_fail(st);
    flight_release(f);
    return st;
}

/* ---- calls of groups ---- */

static ls_status call_flight(struct device_stream *s, const struct device_watch *w, struct flight **out)
{
    struct flight *f = flight_new(s, NULL);

    if (!f) return LS_ENOMEM;
    f->args = mem_alloc(MEM_OTHER, w->bytes);
    if (f->args && flight_event(&f->reached) == LS_OK && flight_event(&f->ended) == LS_OK &&
        cuda_check(cudaEventRecord(f->reached, s->handle), "cudaEventRecord") == LS_OK) {
        memcpy(f->args, w->data, w->bytes);
        *out = f;
        return LS_OK;
    }
    flight_release(f);
    return cuda.failed < 0 ? cuda.failed : LS_ENOMEM;
}

ls_status flight_call_begin(struct device_stream *s, const struct device_watch *w, flight_broken_fn *broken, flight_spoiled_fn *spoiled,
                            void *group, struct flight **out)
{
    struct flight *f = NULL;
    ls_status st = flight_room(s);

    if (st == LS_OK) st = cuda_failed(); /* flights may have moved */
    if (st == LS_OK) st = call_flight(s, w, &f);
    if (st < 0) {
        st = cuda_fail(st);
        w->over(w->data, false);
        return st;
    }
    f->watch = *w;
    f->broken = broken;
    f->spoiled = spoiled;
    f->group = group;
    flights_append(f);
    *out = f;
    return LS_OK;
}

/* After a failure f may have been released: it is not read then. */
ls_status flight_call_end(struct flight *f)
{
    LS_TRY(cuda_failed());
    LS_TRY(cuda_check(cudaEventRecord(f->ended, f->stream->handle), "cudaEventRecord"));
    f->enqueued = true;
    return LS_OK;
}
