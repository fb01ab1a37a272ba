/* shm_move.c - the loops of the native collectives over one chunk. */
#include "comm/transports/shm/shm_move.h"

#include <string.h>
#include "comm/reduce.h"
#include "comm/algorithms/steps.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
    SUM_BYTES = 4 << 10, /* bytes of a sum with several destinations: it and its terms stay in the L1 cache */
    SHARE_GRAIN = 32,    /* elements: shares of one buffer do not share a cache line */
};

const void *move_source(const struct request *r) { return r->send ? r->send : r->recv; }

/* Where rank i's share of a direct all-reduce starts. */
static size_t share_at(size_t count, int i, int n)
{
    size_t at = block_at(count, i, n);

    return i == n ? count : at - at % SHARE_GRAIN;
}

size_t move_longest_share(size_t count, int n)
{
    size_t most = 0;

    for (int i = 0; i < n; i++) most = MAX(most, share_at(count, i + 1, n) - share_at(count, i, n));
    return most;
}

void move_fence(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

/* memcpy with non-temporal stores, which do not read the line that they overwrite. */
static void copy_past_cache(unsigned char *to, const unsigned char *from, size_t bytes)
{
#if defined(__SSE2__)
    size_t head = MIN(bytes, (size_t)(-(uintptr_t)to % 64));

    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from), b = _mm_loadu_si128((const __m128i *)(const void *)from + 1);
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)from + 2), d = _mm_loadu_si128((const __m128i *)(const void *)from + 3);
        _mm_stream_si128((__m128i *)(void *)to, a);
        _mm_stream_si128((__m128i *)(void *)to + 1, b);
        _mm_stream_si128((__m128i *)(void *)to + 2, c);
        _mm_stream_si128((__m128i *)(void *)to + 3, d);
    }
#endif
    memcpy(to, from, bytes);
}

/* Stores bypass the cache if the call's data, so many bytes a rank, would not stay there anyway. */
static bool is_past_cache(const struct link *l, size_t bytes) { return bytes >= l->keeps; }

static void shm_move_copy(unsigned char *to, const unsigned char *from, size_t bytes, bool past_cache)
{
    if (to == from || bytes == 0) return;
    if (past_cache)
        copy_past_cache(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* Elements of a block of `count` that chunk k has. */
static size_t chunk_of(const struct shm_collective *w, size_t count, uint64_t k)
{
    size_t before = (size_t)k * w->chunk;

    return before >= count ? 0 : MIN(w->chunk, count - before);
}

/* Chunk k of block i of what rank j sends. Gathers and broadcasts have one block (0). */
static const unsigned char *sent(const struct link *l, const struct request *r, int j, int i, uint64_t k, uint64_t p)
{
    const struct shm_collective *w = &l->now;
    size_t e = ls_dtype_bytes(r->type), at = 0;

    if (w->way == WAY_STAGED) return area_stage(l, p, j) + (size_t)i * w->chunk * e;
    if (r->signature.op == LS_COLLECTIVE_ALL_TO_ALL) at = area_table(l, (uint64_t)(uintptr_t)r->state, j)[i];
    if (r->signature.op == LS_COLLECTIVE_REDUCE_SCATTER) at = move_border(r->at, r->count, i);
    return l->from[j] + (at + (size_t)k * w->chunk) * e;
}

/* The same place in our own buffer, which needs no transfer. */
static const unsigned char *own(const struct link *l, const struct request *r, int i, uint64_t k)
{
    size_t e = ls_dtype_bytes(r->type), at = 0;

    if (r->signature.op == LS_COLLECTIVE_ALL_TO_ALL || r->signature.op == LS_COLLECTIVE_REDUCE_SCATTER)
        at = move_border(r->at, r->count, i);
    return (const unsigned char *)move_source(r) + (at + (size_t)k * l->now.chunk) * e;
}

size_t move_fill(struct link *l, const struct request *r, uint64_t k, uint64_t p)
{
    const struct shm_collective *w = &l->now;
    unsigned char *stage = area_stage(l, p, l->base.rank);
    size_t e = ls_dtype_bytes(r->type), bytes = 0;
    int blocks = r->signature.op == LS_COLLECTIVE_ALL_TO_ALL || r->signature.op == LS_COLLECTIVE_REDUCE_SCATTER ? l->base.n : 1;

    if (r->signature.op == LS_COLLECTIVE_BROADCAST && l->base.rank != r->root) return 1;
    for (int i = 0; i < blocks; i++) {
        size_t all = r->count;
        if (r->signature.op == LS_COLLECTIVE_ALL_GATHER)
            all = move_border(r->at, r->count, l->base.rank + 1) - move_border(r->at, r->count, l->base.rank);
        else if (blocks > 1)
            all = move_border(r->at, r->count, i + 1) - move_border(r->at, r->count, i);
        size_t part = chunk_of(w, all, k) * e;
        shm_move_copy(stage + (size_t)i * w->chunk * e, own(l, r, i, k), part, false);
        bytes += part;
    }
    return bytes + 1;
}

static int divide_by(const struct link *l, const struct request *r) { return r->redop == LS_AVG ? l->base.n : 1; }

size_t move_sum_staged(struct link *l, const struct request *r, uint64_t k, uint64_t p)
{
    size_t e = ls_dtype_bytes(r->type), part = chunk_of(&l->now, r->count, k);
    size_t from = share_at(part, l->base.rank, l->base.n), len = share_at(part, l->base.rank + 1, l->base.n) - from;

    for (int j = 0; j < l->base.n; j++) l->term[j] = area_stage(l, p, j) + from * e;
    if (len) reduce_many(area_stage(l, p, l->base.rank) + from * e, l->term, l->base.n, len, r->type, r->redop, divide_by(l, r));
    return len * e * (size_t)l->base.n + 1;
}

/* Copies the summed parts of a chunk from the stages of the ranks that summed them. */
static size_t take_sums(struct link *l, const struct request *r, uint64_t k, uint64_t p)
{
    size_t e = ls_dtype_bytes(r->type), part = chunk_of(&l->now, r->count, k);
    unsigned char *to = (unsigned char *)r->recv + (size_t)k * l->now.chunk * e;
    bool past_cache = is_past_cache(l, 2 * r->count * e) && r->recv != r->send;

    for (int j = 0; j < l->base.n; j++) {
        size_t from = share_at(part, j, l->base.n), len = share_at(part, j + 1, l->base.n) - from;
        shm_move_copy(to + from * e, area_stage(l, p, j) + from * e, len * e, past_cache);
    }
    return part * e;
}

static size_t take_block(struct link *l, const struct request *r, uint64_t k, uint64_t p)
{
    int me = l->base.rank;
    size_t e = ls_dtype_bytes(r->type), len = chunk_of(&l->now, move_border(r->at, r->count, me + 1) - move_border(r->at, r->count, me), k);

    for (int j = 0; j < l->base.n; j++) l->term[j] = j == me ? own(l, r, me, k) : sent(l, r, j, me, k, p);
    if (len)
        reduce_many((unsigned char *)r->recv + (size_t)k * l->now.chunk * e, l->term, l->base.n, len, r->type, r->redop, divide_by(l, r));
    return len * e * (size_t)l->base.n;
}

/* Blocks of its two buffers that a rank reads and writes. */
static size_t blocks_touched(int op, int n)
{
    return op == LS_COLLECTIVE_BROADCAST ? 2 : op == LS_COLLECTIVE_ALL_GATHER ? (size_t)n + 1 : 2 * (size_t)n;
}

/* Copies every rank's block for us, or the root's. */
static size_t take_copies(struct link *l, const struct request *r, uint64_t k, uint64_t p)
{
    int n = l->base.n, me = l->base.rank, op = r->signature.op;
    const size_t *at = r->recv_at ? r->recv_at : r->at;
    size_t e = ls_dtype_bytes(r->type), moved = 0;
    size_t touched = (size_t)l->now.chunks * l->now.chunk * e * blocks_touched(op, n);
    bool past_cache = is_past_cache(l, touched) && r->send != r->recv; /* in place: the lines were just read */

    for (int i = 0; i < n; i++) {
        int j = (me + 1 + i) % n; /* not all from the same one at once */
        size_t start = op == LS_COLLECTIVE_BROADCAST ? 0 : move_border(at, r->count, j);
        size_t all = op == LS_COLLECTIVE_BROADCAST ? r->count : move_border(at, r->count, j + 1) - start;
        size_t bytes = chunk_of(&l->now, all, k) * e;
        int block = op == LS_COLLECTIVE_ALL_TO_ALL ? me : 0;
        if (op == LS_COLLECTIVE_BROADCAST && j != r->root) continue;
        shm_move_copy((unsigned char *)r->recv + (start + (size_t)k * l->now.chunk) * e,
                      j == me ? own(l, r, block, k) : sent(l, r, j, block, k, p), bytes, past_cache);
        moved += bytes;
    }
    return moved;
}

size_t move_take(struct link *l, const struct request *r, uint64_t k, uint64_t p)
{
    if (r->signature.op == LS_COLLECTIVE_ALL_REDUCE) return take_sums(l, r, k, p) + 1;
    if (r->signature.op == LS_COLLECTIVE_REDUCE_SCATTER) return take_block(l, r, k, p) + 1;
    return take_copies(l, r, k, p) + 1;
}

size_t move_sum_direct(struct link *l, const struct request *r, uint64_t k)
{
    int n = l->base.n;
    size_t e = ls_dtype_bytes(r->type), begin = share_at(r->count, l->base.rank, n), end = share_at(r->count, l->base.rank + 1, n);
    size_t at = begin + (size_t)k * l->now.chunk, len = chunk_of(&l->now, end - begin, k);
    bool past_cache = is_past_cache(l, (move_source(r) == r->recv ? 1 : 2) * r->count * e);
    _Alignas(64) unsigned char sum[SUM_BYTES];

    for (size_t done = 0, part; done < len; done += part) {
        part = MIN(len - done, SUM_BYTES / e);
        for (int j = 0; j < n; j++) l->term[j] = l->from[j] + (at + done) * e;
        reduce_many(sum, l->term, n, part, r->type, r->redop, divide_by(l, r));
        for (int j = 0; j < n; j++) {
            unsigned char *to = l->into[j] + (at + done) * e;
            shm_move_copy(to, sum, part * e, past_cache && to != l->term[j]); /* in place: the lines were just read */
        }
    }
    return len * e * (size_t)n;
}

/* Where the second half of a block of `count` elements starts. */
static size_t half_at(size_t count) { return count / 2 - count / 2 % SHARE_GRAIN; }

size_t move_longest_half(size_t count) { return count - half_at(count); }

static void shm_move_swap(unsigned char *a, unsigned char *b, size_t bytes)
{
    unsigned char held[SUM_BYTES];

    for (size_t done = 0, part; done < bytes; done += part) {
        part = MIN(bytes - done, sizeof held);
        memcpy(held, a + done, part);
        memcpy(a + done, b + done, part);
        memcpy(b + done, held, part);
    }
}

/* What rank i has for rank j is as long as what j has for i, and where the other one belongs. The lower rank swaps the first halves. */
size_t move_swap(struct link *l, const struct request *r, uint64_t k)
{
    int n = l->base.n, me = l->base.rank;
    size_t e = ls_dtype_bytes(r->type), moved = 0;

    for (int i = 1; i < n; i++) {
        int j = (me + i) % n; /* not all with the same one at once */
        size_t start = move_border(r->at, r->count, j), count = move_border(r->at, r->count, j + 1) - start;
        size_t begin = me < j ? 0 : half_at(count), end = me < j ? half_at(count) : count;
        size_t at = begin + (size_t)k * l->now.chunk, bytes = chunk_of(&l->now, end - begin, k) * e;
        size_t there = area_table(l, (uint64_t)(uintptr_t)r->state, j)[me];

        shm_move_swap((unsigned char *)r->recv + (start + at) * e, l->into[j] + (there + at) * e, bytes);
        moved += 2 * bytes;
    }
    return moved + 1;
}

size_t move_sum_inline(struct link *l, const struct request *r)
{
    for (int j = 0; j < l->base.n; j++) l->term[j] = l->from[j];
    reduce_many(r->recv, l->term, l->base.n, r->count, r->type, r->redop, divide_by(l, r));
    return r->count * ls_dtype_bytes(r->type);
}
