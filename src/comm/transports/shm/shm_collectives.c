/* shm_collectives.c - native collectives: the ranks work on each other's memory, without messages.
 *
 * A call begins with a post: the call and where its buffers are. Once all posts are there and agree, all ranks use the same one of four
 * methods:
 *     inline   the data came with the posts and is read there; there is nothing more to wait for
 *     direct   every buffer that must be read (all-reduce: written as well) is in a heap: read from it, then wait for all
 *     swap     an all-to-all in place, all buffers in a heap: each rank exchanges half of every pair of blocks, then waits for all
 *     staged   chunks are copied through stages in the region, which stay in the cache
 * They work in chunks: [chunk*k, chunk*(k+1)) of each block. Sums add ranks 0 .. n-1 in that order for every element, so the method
 * does not affect the bits.
 *
 * A stage's chunk p is filled when seat.in >= p; it may be filled again (by chunk p + STAGES) when all have seat.out >= p. In
 * a staged all-reduce a rank first sums its part of the chunk from all stages into its own (seat.sums), then copies all parts. In a direct
 * all-reduce a rank sums its block of the complete buffer and writes it to all; no other rank reads that block, so it works in place.
 */
#include "comm/transports/shm/shm_link.h"

#include <string.h>
#include "comm/transports/shm/shm_move.h"

enum {
    TINY_BYTES = 1 << 10,     /* sent inline although they could be read from the heap */
    DIRECT_BYTES = 256 << 10, /* bytes of a direct chunk */
    TURN_BYTES = 1 << 20,     /* bytes that one call of advance moves before it returns */
};

/* request.phase. While chunks move it counts up from PHASE_MOVES, so that the engine sees progress. */
enum { PHASE_WAITS, PHASE_MEETS, PHASE_ENDS, PHASE_MOVES };

/* Every member waits for a word of every member. The member that writes the last one rings; the words before it wake nobody. If two write
 * at once, at least one of them sees all words. They are read only if a member sleeps: their cache lines are in use. */
static bool somebody_sleeps(const struct link *l)
{
    atomic_thread_fence(memory_order_seq_cst);
    for (int i = 0; i < l->base.n; i++)
        if (i != l->base.rank && wait_sleeps(l->region, l->member[i])) return true;
    return false;
}

static void ring_members(const struct link *l)
{
    for (int i = 0; i < l->base.n; i++) wait_ring(l->region, l->member[i]);
}

static uint64_t number_of(const struct request *r) { return (uint64_t)(uintptr_t)r->state; }

ls_status shm_collective_begin(struct link *l, struct request *r)
{
    r->state = (void *)(uintptr_t)++l->begun;
    r->phase = PHASE_WAITS;
    return LS_OK;
}

/* ---- the chunks of a call ---- */

/* Bytes of the buffer that others read, starting at r->send. */
static size_t bytes_sent(const struct link *l, const struct request *r)
{
    size_t e = ls_dtype_bytes(r->type), n = (size_t)l->base.n;

    switch (r->signature.op) {
    case LS_COLLECTIVE_ALL_GATHER: return e * (move_border(r->at, r->count, l->base.rank + 1) - move_border(r->at, r->count, l->base.rank));
    case LS_COLLECTIVE_REDUCE_SCATTER:
    case LS_COLLECTIVE_ALL_TO_ALL: return e * move_border(r->at, r->count, (int)n);
    case LS_COLLECTIVE_BROADCAST: return l->base.rank == r->root ? e * r->count : 0;
    case LS_COLLECTIVE_ALL_REDUCE: return e * r->count;
    default: return 0;
    }
}

static bool all_posted(const struct link *l, uint64_t call)
{
    for (int i = 0; i < l->base.n; i++)
        if (atomic_load_explicit(&area_post(l, call, i)->call, memory_order_relaxed) != call) return false;
    return true;
}

/* Posts the call and its buffers; others see it once post.call has this number. */
static void shm_collectives_post(struct link *l, struct request *r)
{
    struct post *p = area_post(l, number_of(r), l->base.rank);
    size_t bytes = bytes_sent(l, r);
    const void *send = move_source(r);
    bool reduces_all = r->signature.op == LS_COLLECTIVE_ALL_REDUCE, to_all = r->signature.op == LS_COLLECTIVE_ALL_TO_ALL;
    bool swaps = to_all && r->send == r->recv && bytes > 0, held = bytes == 0 || heap_holds(l->region, send, bytes);

    p->signature = r->signature;
    p->offers = 0;
    if (held && !swaps) p->offers |= OFFER_SEND;
    if (held && to_all && (swaps || bytes == 0)) p->offers |= OFFER_SWAP;
    if (!reduces_all || heap_holds(l->region, r->recv, bytes)) p->offers |= OFFER_RECV;
    if (bytes <= (p->offers == (OFFER_SEND | OFFER_RECV) ? TINY_BYTES : SMALL_MOST)) {
        p->offers |= OFFER_INLINE;
        if (bytes) memcpy(p->data, send, bytes);
    }
    p->send = p->offers & OFFER_SEND && bytes ? region_offset(l->region, send) : 0;
    p->recv = (p->offers & OFFER_RECV && reduces_all) || (p->offers & OFFER_SWAP && bytes) ? region_offset(l->region, r->recv) : 0;
    if (to_all) {
        uint64_t *table = area_table(l, number_of(r), l->base.rank);
        for (int i = 0; i <= l->base.n; i++) table[i] = move_border(r->at, r->count, i);
    }
    atomic_store_explicit(&p->call, number_of(r), memory_order_release);
    if (somebody_sleeps(l) && all_posted(l, number_of(r))) ring_members(l);
}

/* For all-to-all only: checks that each rank sends us what we expect from it. */
static ls_status check_table(struct link *l, const struct request *r, int member)
{
    const uint64_t *table = area_table(l, number_of(r), member);
    const size_t *at = r->recv_at ? r->recv_at : r->at;
    size_t sent = table[l->base.rank + 1] - table[l->base.rank];
    size_t expected = move_border(at, r->count, member + 1) - move_border(at, r->count, member);

    if (sent == expected) return LS_OK;
    return ls_fail(LS_EPEER, "%s: all_to_all #%llu: rank %d sends %zu elements to rank %d, which expects %zu", l->base.name,
                   (unsigned long long)r->signature.sequence, member, sent, l->base.rank, expected);
}

/* The first failure found becomes that of all ranks. */
static ls_status end_all(struct link *l, ls_status st)
{
    region_end(l->region, st, ls_errmsg());
    return region_ended(l->region);
}

/* Checks the posts as they arrive. LS_OK when all are there and agree. */
static ls_status match_posts(struct link *l, struct request *r)
{
    struct shm_collective *w = &l->now;

    for (; w->met < l->base.n; w->met++) {
        const struct post *p = area_post(l, number_of(r), w->met);
        if (atomic_load_explicit(&p->call, memory_order_acquire) != number_of(r)) {
            if (!rank_left(l->region, l->member[w->met])) return LS_BUSY;
            if (atomic_load_explicit(&p->call, memory_order_acquire) != number_of(r)) return wait_left(l->region, l->member[w->met]);
        }
        if (!signature_agrees(&r->signature, &p->signature))
            return end_all(l, comm_mismatch(&l->base, l->base.rank, &r->signature, w->met, &p->signature));
        if (r->signature.op == LS_COLLECTIVE_ALL_TO_ALL) {
            ls_status st = check_table(l, r, w->met);
            if (st < 0) return end_all(l, st);
        }
        w->offers &= p->offers;
        wait_moved(l->region);
    }
    return LS_OK;
}

/* The longest block of any rank. */
static size_t longest(const struct link *l, const struct request *r)
{
    size_t most = 0;

    switch (r->signature.op) {
    case LS_COLLECTIVE_ALL_TO_ALL:
        for (int j = 0; j < l->base.n; j++) {
            const uint64_t *table = area_table(l, number_of(r), j);
            for (int i = 0; i < l->base.n; i++) most = MAX(most, table[i + 1] - table[i]);
        }
        return most;
    case LS_COLLECTIVE_ALL_GATHER:
    case LS_COLLECTIVE_REDUCE_SCATTER:
        for (int i = 0; i < l->base.n; i++) most = MAX(most, move_border(r->at, r->count, i + 1) - move_border(r->at, r->count, i));
        return most;
    case LS_COLLECTIVE_BARRIER: return 0;
    default: return r->count;
    }
}

/* How many blocks of one rank's buffer a chunk touches at the same time. */
static size_t blocks_at_once(const struct link *l, const struct request *r, enum way way)
{
    switch (r->signature.op) {
    case LS_COLLECTIVE_ALL_TO_ALL: return (size_t)l->base.n;
    case LS_COLLECTIVE_REDUCE_SCATTER: return way == WAY_STAGED ? (size_t)l->base.n : 1;
    case LS_COLLECTIVE_ALL_GATHER: return way == WAY_DIRECT ? (size_t)l->base.n : 1;
    default: return 1;
    }
}

/* All posts are there: chooses the method and the chunks. */
static void shm_collectives_choose(struct link *l, struct request *r)
{
    struct shm_collective *w = &l->now;
    size_t e = ls_dtype_bytes(r->type), most = longest(l, r);

    w->way = w->offers & OFFER_INLINE                               ? WAY_INLINE
             : w->offers & OFFER_SWAP                               ? WAY_SWAP
             : (w->offers & OFFER_SEND) && (w->offers & OFFER_RECV) ? WAY_DIRECT
                                                                    : WAY_STAGED;
    for (int i = 0; i < l->base.n; i++) {
        const struct post *p = area_post(l, number_of(r), i);
        l->from[i] = w->way == WAY_INLINE ? p->data : region_at(l->region, p->send);
        l->into[i] = region_at(l->region, p->recv);
    }
    if (w->way == WAY_INLINE) {
        w->chunk = most;
        w->chunks = 0;
        return;
    }
    if (w->way == WAY_DIRECT && r->signature.op == LS_COLLECTIVE_ALL_REDUCE) most = move_longest_share(r->count, l->base.n);
    if (w->way == WAY_SWAP) most = move_longest_half(most);
    size_t elements = (w->way == WAY_STAGED ? STAGE_BYTES : DIRECT_BYTES) / e / blocks_at_once(l, r, w->way);
    w->chunk = elements - elements % (SHM_LINE / e);
    w->chunks = (most + w->chunk - 1) / w->chunk;
}

/* ---- moving the chunks ---- */

/* The word at `word` bytes from the start of a member's seat. */
static _Atomic uint64_t *seat_word(const struct link *l, int member, size_t word)
{
    return (void *)((unsigned char *)&l->seat[member] + word);
}

/* LS_OK when that word of every seat has reached `want`. */
static ls_status all_reached(struct link *l, size_t word, uint64_t want)
{
    for (int i = 0; i < l->base.n; i++) {
        const _Atomic uint64_t *w = seat_word(l, i, word);
        if (atomic_load_explicit(w, memory_order_acquire) >= want) continue;
        if (!rank_left(l->region, l->member[i])) return LS_BUSY;
        if (atomic_load_explicit(w, memory_order_acquire) < want) return wait_left(l->region, l->member[i]);
    }
    return LS_OK;
}
#define ALL_REACHED(l, word, want) all_reached(l, offsetof(struct seat, word), want)

static bool all_are_there(const struct link *l, size_t word, uint64_t value)
{
    for (int i = 0; i < l->base.n; i++)
        if (atomic_load_explicit(seat_word(l, i, word), memory_order_relaxed) < value) return false;
    return true;
}

/* Our word reaches `value`. The others wait for this value of all members, or for an earlier one, which its last member has rung for. */
static void shm_collectives_reach(struct link *l, size_t word, uint64_t value)
{
    move_fence();
    atomic_store_explicit(seat_word(l, l->base.rank, word), value, memory_order_release);
    if (somebody_sleeps(l) && all_are_there(l, word, value)) ring_members(l);
    wait_moved(l->region);
}
#define REACH(l, word, value) shm_collectives_reach(l, offsetof(struct seat, word), value)

/* Advances each of the three phases by one chunk if possible. *moved: bytes. */
static ls_status fill_next(struct link *l, struct request *r, size_t *moved)
{
    struct shm_collective *w = &l->now;
    uint64_t p = l->chunks + w->in + 1;

    if (w->in == w->chunks) return LS_OK;
    if (p > STAGES) {
        ls_status st = ALL_REACHED(l, out, p - STAGES);
        if (st != LS_OK) return st;
    }
    *moved += move_fill(l, r, w->in, p);
    REACH(l, in, p);
    w->in++;
    return LS_OK;
}

static ls_status sum_next(struct link *l, struct request *r, size_t *moved)
{
    struct shm_collective *w = &l->now;
    uint64_t p = l->chunks + w->sums + 1;

    if (w->sums == w->in) return LS_OK;
    ls_status st = ALL_REACHED(l, in, p);
    if (st != LS_OK) return st;
    *moved += move_sum_staged(l, r, w->sums, p);
    REACH(l, sums, p);
    w->sums++;
    return LS_OK;
}

static ls_status take_next(struct link *l, struct request *r, size_t *moved)
{
    struct shm_collective *w = &l->now;
    uint64_t p = l->chunks + w->out + 1;
    bool sums = r->signature.op == LS_COLLECTIVE_ALL_REDUCE;

    if (w->out == (sums ? w->sums : w->in)) return LS_OK;
    ls_status st = sums ? ALL_REACHED(l, sums, p) : ALL_REACHED(l, in, p);
    if (st != LS_OK) return st;
    *moved += move_take(l, r, w->out, p);
    REACH(l, out, p);
    w->out++;
    return LS_OK;
}

static ls_status move_staged(struct link *l, struct request *r)
{
    struct shm_collective *w = &l->now;
    size_t moved = 0, before;

    do {
        before = moved;
        LS_TRY(fill_next(l, r, &moved));
        if (r->signature.op == LS_COLLECTIVE_ALL_REDUCE) LS_TRY(sum_next(l, r, &moved));
        LS_TRY(take_next(l, r, &moved));
    } while (moved != before && moved < TURN_BYTES);
    return w->out == w->chunks ? LS_OK : LS_BUSY;
}

static ls_status move_direct(struct link *l, struct request *r)
{
    struct shm_collective *w = &l->now;
    size_t moved = 0;

    while (w->out < w->chunks) {
        if (moved >= TURN_BYTES) {
            wait_moved(l->region);
            return LS_BUSY;
        }
        moved += w->way == WAY_SWAP                            ? move_swap(l, r, w->out)
                 : r->signature.op == LS_COLLECTIVE_ALL_REDUCE ? move_sum_direct(l, r, w->out)
                                                               : move_take(l, r, w->out, 0);
        w->out++;
    }
    return LS_OK;
}

/* The ranks read and write each other's buffers, so all wait for the last one. */
static bool is_direct(enum way way) { return way == WAY_DIRECT || way == WAY_SWAP; }

static ls_status move_some(struct link *l, struct request *r)
{
    struct shm_collective *w = &l->now;

    if (w->way == WAY_STAGED) return move_staged(l, r);
    if (is_direct(w->way)) return move_direct(l, r);
    if (w->chunk == 0) return LS_OK;
    if (r->signature.op == LS_COLLECTIVE_ALL_REDUCE)
        move_sum_inline(l, r);
    else
        move_take(l, r, 0, 0);
    return LS_OK;
}

/* Marks the call as finished for us in our seat, whether it succeeded or not. */
static void shm_collectives_finish(struct link *l)
{
    struct seat *seat = &l->seat[l->base.rank];

    if (l->now.chunks == 0) return;
    l->chunks += l->now.chunks;
    atomic_store_explicit(&seat->in, l->chunks, memory_order_relaxed);
    atomic_store_explicit(&seat->sums, l->chunks, memory_order_relaxed);
    REACH(l, out, l->chunks);
}

ls_status shm_collective_advance(struct link *l, struct request *r)
{
    ls_status st;

    LS_TRY(region_ended(l->region));
    if (r->phase == PHASE_WAITS) {
        if (number_of(r) != l->ended + 1) return LS_BUSY;
        l->now = (struct shm_collective){ .offers = ~0u };
        shm_collectives_post(l, r);
        r->phase = PHASE_MEETS;
    }
    if (r->phase == PHASE_MEETS) {
        if ((st = match_posts(l, r)) != LS_OK) return st;
        shm_collectives_choose(l, r);
        r->phase = PHASE_MOVES;
    }
    if (r->phase >= PHASE_MOVES) {
        if ((st = move_some(l, r)) != LS_OK) {
            r->phase = PHASE_MOVES + (int)((l->now.in + l->now.sums + l->now.out) & 0xffff);
            return st;
        }
        shm_collectives_finish(l);
        r->phase = PHASE_ENDS;
    }
    if (is_direct(l->now.way) && (st = ALL_REACHED(l, out, l->chunks)) != LS_OK) return st;
    l->ended++;
    wait_moved(l->region);
    return LS_OK;
}
