/* shm_ring.c - messages between two ranks: one ring of bytes for each ordered pair and channel of a link.
 *
 * One writer, one reader. `written` and `read` count bytes since the link was opened, both multiples of a line. A message is
 *     struct message      one line
 *     its bytes           rounded up to whole lines, from any position of the ring; at once if there is room, else streamed
 * or the line alone with `at`: then the bytes are in the sender's heap, the reader copies them from there, and then advances `read` past
 * the line. Messages leave a lane in the order in which they were started.
 */
#include "comm/transports/shm/shm_link.h"

#include <string.h>

struct ring {
    _Alignas(SHM_LINE) _Atomic uint64_t written;
    _Alignas(SHM_LINE) _Atomic uint64_t read;
    _Alignas(SHM_LINE) unsigned char data[];
};

struct message {
    struct signature signature;
    uint64_t bytes, at;
};
_Static_assert(sizeof(struct message) == SHM_LINE, "a message's head is one line");

enum { TAKE_FROM = 64 << 10, TAKE_BYTES = 128 << 10 };                    /* messages that are copied from the heap; bytes in one poll */
enum { TRANSFER_WAITS, TRANSFER_MOVES, TRANSFER_OFFERED, TRANSFER_OVER }; /* transfer.state; OFFERED: done has the place to reach */

static size_t lines(size_t bytes) { return (bytes + SHM_LINE - 1) / SHM_LINE * SHM_LINE; }

static size_t room_of(int n) { return n <= 8 ? 256 << 10 : n <= 32 ? 64 << 10 : n <= 64 ? 16 << 10 : 4 << 10; }

size_t ring_bytes(int n) { return sizeof(struct ring) + room_of(n); }

/* Smaller than what is copied from the heap, and several fit into a ring. */
size_t ring_eager(int n) { return MIN(room_of(n) / 4, (size_t)TAKE_FROM - 1); }

void ring_open(struct link *l)
{
    for (int i = 0; i < l->base.n; i++)
        for (int c = 0; c < CHANNELS; c++) {
            l->out[i * CHANNELS + c].ring = area_ring(l, l->base.rank, i, c);
            l->in[i * CHANNELS + c].ring = area_ring(l, i, l->base.rank, c);
        }
}

/* Room for more bytes after `written`; the reader's position is looked at if what is known of it leaves fewer than `wanted`. */
static size_t shm_ring_space(struct lane *lane, size_t room, uint64_t written, size_t wanted)
{
    if (room - (size_t)(written - lane->seen) < wanted) lane->seen = atomic_load_explicit(&lane->ring->read, memory_order_acquire);
    return room - (size_t)(written - lane->seen);
}

/* Bytes available after `read`; likewise. */
static size_t shm_ring_there(struct lane *lane, uint64_t read, size_t wanted)
{
    if ((size_t)(lane->seen - read) < wanted) lane->seen = atomic_load_explicit(&lane->ring->written, memory_order_acquire);
    return (size_t)(lane->seen - read);
}

static const struct message *shm_ring_head(const struct ring *r, size_t room, uint64_t read)
{
    return (const void *)(r->data + read % room);
}

static void copy_in(struct ring *r, size_t room, uint64_t to, const unsigned char *from, size_t bytes)
{
    size_t at = to % room, first = MIN(bytes, room - at);

    memcpy(r->data + at, from, first);
    memcpy(r->data, from + first, bytes - first);
}

static void copy_out(const struct ring *r, size_t room, uint64_t from, unsigned char *to, size_t bytes)
{
    size_t at = from % room, first = MIN(bytes, room - at);

    memcpy(to, r->data + at, first);
    memcpy(to + first, r->data, bytes - first);
}

/* Copies up to `bytes` of a stream into the ring at its end, as far as there is room; returns how many. */
static size_t shm_ring_put(struct lane *lane, size_t room, const unsigned char *from, size_t bytes)
{
    struct ring *r = lane->ring;
    uint64_t written = atomic_load_explicit(&r->written, memory_order_relaxed);
    size_t space = shm_ring_space(lane, room, written, bytes), part = MIN(bytes, space);

    copy_in(r, room, written, from, part);
    if (part) atomic_store_explicit(&r->written, written + lines(part), memory_order_release);
    return part;
}

static size_t shm_ring_get(struct lane *lane, size_t room, unsigned char *to, size_t bytes)
{
    struct ring *r = lane->ring;
    uint64_t read = atomic_load_explicit(&r->read, memory_order_relaxed);
    size_t there = shm_ring_there(lane, read, bytes), part = MIN(bytes, there);

    copy_out(r, room, read, to, part);
    if (part) atomic_store_explicit(&r->read, read + lines(part), memory_order_release);
    return part;
}

/* Copies the head and the bytes of a message at once; false: there is no room for all of it. */
static bool put_whole(struct lane *lane, size_t room, const struct message *m, const void *data)
{
    struct ring *r = lane->ring;
    uint64_t written = atomic_load_explicit(&r->written, memory_order_relaxed);
    size_t bytes = sizeof *m + lines(m->bytes);

    if (shm_ring_space(lane, room, written, bytes) < bytes) return false;
    copy_in(r, room, written, (const unsigned char *)m, sizeof *m);
    copy_in(r, room, written + sizeof *m, data, m->bytes);
    atomic_store_explicit(&r->written, written + bytes, memory_order_release);
    return true;
}

/* Advances a send; true if something changed. */
static bool push(struct link *l, struct lane *lane, struct transfer *t)
{
    struct ring *r = lane->ring;
    size_t room = room_of(l->base.n);

    if (t->state == TRANSFER_OFFERED) {
        if (atomic_load_explicit(&r->read, memory_order_acquire) < t->done) return false;
        t->state = TRANSFER_OVER;
        return true;
    }
    if (t->state == TRANSFER_WAITS) {
        bool offer = t->bytes >= TAKE_FROM && heap_holds(l->region, t->data, t->bytes);
        struct message m = { *t->signature, t->bytes, offer ? region_offset(l->region, t->data) : 0 };
        if (!offer && t->bytes && put_whole(lane, room, &m, t->data)) {
            t->done = t->bytes;
            t->state = TRANSFER_OVER;
            return true;
        }
        if (shm_ring_put(lane, room, (const unsigned char *)&m, sizeof m) == 0) return false;
        t->state = offer ? TRANSFER_OFFERED : t->bytes ? TRANSFER_MOVES : TRANSFER_OVER;
        t->done = offer ? (size_t)atomic_load_explicit(&r->written, memory_order_relaxed) : 0;
        if (t->state != TRANSFER_MOVES) return true;
    }
    size_t part = shm_ring_put(lane, room, (const unsigned char *)t->data + t->done, t->bytes - t->done);
    t->done += part;
    if (t->done == t->bytes) t->state = TRANSFER_OVER;
    return part > 0;
}

static ls_status shm_ring_refuse(struct link *l, const struct transfer *t, const struct message *m)
{
    ls_status st;

    if (!signature_agrees(t->signature, &m->signature))
        st = comm_mismatch(&l->base, l->base.rank, t->signature, t->peer, &m->signature);
    else
        st = ls_fail(LS_EPEER, "%s: rank %d sent %llu bytes where rank %d expects %zu", l->base.name, t->peer, (unsigned long long)m->bytes,
                     l->base.rank, t->bytes);
    region_end(l->region, st, ls_errmsg());
    return region_ended(l->region);
}

/* Copies a part of an offered message; the reader's position passes it with the last part. */
static void shm_ring_take(struct link *l, struct ring *r, struct transfer *t, const struct message *m)
{
    size_t part = MIN(t->bytes - t->done, TAKE_BYTES);

    memcpy((unsigned char *)t->data + t->done, (const unsigned char *)region_at(l->region, m->at) + t->done, part);
    t->done += part;
    if (t->done < t->bytes) return;
    atomic_fetch_add_explicit(&r->read, SHM_LINE, memory_order_release);
    t->state = TRANSFER_OVER;
}

/* After `read` has passed `before`: rings for the sender if it may wait for that, for room where the ring was full until then. The writer's
 * position is read only if the sender sleeps: its line is in the writer's cache. */
static void shm_ring_passed(const struct link *l, const struct ring *r, int sender, uint64_t before, bool taken)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (!wait_sleeps(l->region, sender)) return;
    if (taken || atomic_load_explicit(&r->written, memory_order_relaxed) - before >= room_of(l->base.n)) wait_ring(l->region, sender);
}

/* The head of a message is there; its data is there, too, or follows. */
static void shm_ring_receive(struct link *l, struct lane *lane, struct transfer *t, uint64_t read)
{
    struct ring *r = lane->ring;
    size_t room = room_of(l->base.n), bytes = SHM_LINE + lines(t->bytes);

    if (shm_ring_there(lane, read, bytes) < bytes) { /* it is streamed */
        atomic_store_explicit(&r->read, read + SHM_LINE, memory_order_release);
        t->state = TRANSFER_MOVES;
        return;
    }
    if (t->bytes) copy_out(r, room, read + SHM_LINE, t->data, t->bytes);
    atomic_store_explicit(&r->read, read + bytes, memory_order_release);
    t->done = t->bytes;
    t->state = TRANSFER_OVER;
}

/* Advances a receive. LS_BUSY: nothing has arrived. */
static ls_status pull(struct link *l, struct lane *lane, struct transfer *t)
{
    struct ring *r = lane->ring;
    size_t room = room_of(l->base.n);
    uint64_t read = atomic_load_explicit(&r->read, memory_order_relaxed);
    bool taken = false; /* all of a message in the sender's heap */

    if (t->state == TRANSFER_WAITS) {
        if (shm_ring_there(lane, read, 1) == 0) return LS_BUSY;
        const struct message *m = shm_ring_head(r, room, read);
        if (!signature_agrees(t->signature, &m->signature) || m->bytes != t->bytes) return shm_ring_refuse(l, t, m);
        if (m->at) {
            shm_ring_take(l, r, t, m);
            taken = t->state == TRANSFER_OVER;
        } else {
            shm_ring_receive(l, lane, t, read);
        }
    } else {
        size_t part = shm_ring_get(lane, room, (unsigned char *)t->data + t->done, t->bytes - t->done);
        if (part == 0) return LS_BUSY;
        t->done += part;
        if (t->done == t->bytes) t->state = TRANSFER_OVER;
    }
    shm_ring_passed(l, r, l->member[t->peer], read, taken);
    return LS_OK;
}

/* The peer closed its side: data it sent before may still be there; more will never come. */
static ls_status stuck(struct link *l, const struct lane *lane, const struct transfer *t)
{
    int rank = l->member[t->peer];

    if (!rank_left(l->region, rank)) return LS_BUSY;
    if (!t->sending && atomic_load(&lane->ring->written) != atomic_load(&lane->ring->read)) return LS_BUSY;
    if (t->state == TRANSFER_OFFERED && atomic_load(&lane->ring->read) >= t->done) return LS_BUSY;
    return wait_left(l->region, rank);
}

/* Advances the first transfer of a lane, and those after it as long as they make progress. LS_BUSY if one is blocked, LS_OK if the lane is
 * empty. */
static ls_status shm_ring_run(struct link *l, struct lane *lane)
{
    while (lane->first) {
        struct transfer *t = lane->first;
        ls_status st = t->sending ? (push(l, lane, t) ? LS_OK : LS_BUSY) : pull(l, lane, t);
        if (st == LS_BUSY) return stuck(l, lane, t);
        if (st < 0) return st;
        wait_moved(l->region);
        if (t->sending) wait_ring(l->region, l->member[t->peer]);
        if (t->state == TRANSFER_OVER)
            lane->first = t->request;
        else if (t->done >= TAKE_BYTES && !t->sending)
            return LS_BUSY; /* other lanes need a turn, too */
    }
    return LS_OK;
}

static struct lane *lane_of(struct link *l, const struct transfer *t)
{
    return &(t->sending ? l->out : l->in)[t->peer * CHANNELS + t->channel];
}

/* The lane's next message is there, in its sender's heap. */
static bool shm_ring_is_offered(struct lane *lane, size_t room)
{
    uint64_t read = atomic_load_explicit(&lane->ring->read, memory_order_relaxed);

    return shm_ring_there(lane, read, 1) > 0 && shm_ring_head(lane->ring, room, read)->at;
}

/* A receive leaves an offered message to the next poll. Its caller may be about to post a send for which the peer waits; once that is
 * posted, both ranks copy at the same time instead of one after the other. */
ls_status ring_start(struct link *l, struct transfer *t)
{
    struct lane *lane = lane_of(l, t);

    ASSERT(t->peer >= 0 && t->peer < l->base.n && t->channel >= 0 && t->channel < CHANNELS);
    LS_TRY(region_ended(l->region));
    t->done = 0;
    t->state = TRANSFER_WAITS;
    t->request = NULL;
    if (lane->first)
        lane->last->request = t;
    else
        lane->first = t;
    lane->last = t;
    if (!t->sending && lane->first == t && shm_ring_is_offered(lane, room_of(l->base.n))) return LS_OK;

    ls_status st = shm_ring_run(l, lane);
    return st < 0 ? st : LS_OK;
}

ls_status ring_poll(struct link *l, struct transfer *t)
{
    if (t->state == TRANSFER_OVER) return LS_OK;
    LS_TRY(region_ended(l->region));
    ls_status st = shm_ring_run(l, lane_of(l, t));
    if (st < 0) return st;
    return t->state == TRANSFER_OVER ? LS_OK : LS_BUSY;
}
