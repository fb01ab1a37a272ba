/* ipc_calls.c - collectives and messages by CUDA IPC. See ipc.h.
 *
 * The rounds of a call are the same on all ranks, except for all_to_all, where each rank has as many as its own blocks need. The numbers
 * that ranks signal only grow: that of the call, and of the round in it; the end of a call is more than each of its rounds.
 */
#include "device/cuda/ipc.h"

#include <string.h>
#include "base/base.h"

enum { ROUND_BITS = 20, STRIDE_UNIT = 256, SHARE = 16, AT_ONCE = 64 << 10 };

/* A call in progress. */
struct ipc_call {
    struct device_group *g;
    const struct device_call *c;
    struct device_stream *s;
    size_t size, chunk;   /* bytes of an element; elements of a block, or of the operand, in a round */
    size_t stride;        /* bytes from one block's part of a buffer to the next one's */
    uint64_t rounds, now; /* now: the round */
};

/* ---- signalling and waiting ---- */

static uint64_t round_number(const struct ipc_call *k, uint64_t round) { return k->g->call << ROUND_BITS | (round + 1); }
static uint64_t end_number(uint64_t call) { return call << ROUND_BITS | ((1u << ROUND_BITS) - 1); }

static ls_status signal_to(const struct ipc_call *k, int to, enum ipc_word w, uint64_t number)
{
    const struct device_group *g = k->g;
    size_t at = (size_t)(ipc_word_of(g, to, g->rank, w) - g->shared->word) * sizeof(uint64_t);

    LS_TRY(flight_room(k->s));
    return cuda_check_driver(ipc.write(k->s->handle, g->words + at, number, 0), "cuStreamWriteValue64");
}

static ls_status wait_for(const struct ipc_call *k, int from, enum ipc_word w, uint64_t number)
{
    const struct device_group *g = k->g;
    size_t at = (size_t)(ipc_word_of(g, g->rank, from, w) - g->shared->word) * sizeof(uint64_t);

    LS_TRY(flight_room(k->s));
    return cuda_check_driver(ipc.wait(k->s->handle, g->words + at, number, 0), "cuStreamWaitValue64");
}

static ls_status signal_all(const struct ipc_call *k, enum ipc_word w, uint64_t number)
{
    for (int r = 0; r < k->g->n; r++)
        if (r != k->g->rank) LS_TRY(signal_to(k, r, w, number));
    return LS_OK;
}

static ls_status wait_all(const struct ipc_call *k, enum ipc_word w, uint64_t number)
{
    for (int r = 0; r < k->g->n; r++)
        if (r != k->g->rank) LS_TRY(wait_for(k, r, w, number));
    return LS_OK;
}

/* ---- bytes ---- */

/* Elements [begin, end) of a block in this round. */
struct span {
    size_t begin, end;
};

static struct span span_of(const struct ipc_call *k, size_t count)
{
    size_t begin = MIN((size_t)k->now * k->chunk, count);

    return (struct span){ begin, MIN(begin + k->chunk, count) };
}

static struct span block_span(const struct ipc_call *k, const size_t *at, int r)
{
    struct span s = span_of(k, at[r + 1] - at[r]);

    return (struct span){ at[r] + s.begin, at[r] + s.end };
}

static bool span_empty(struct span s) { return s.begin == s.end; }
static char *buffer_of(const struct ipc_call *k, int r) { return k->g->window[r] + (size_t)(k->now % IPC_BUFFERS) * k->g->buffer; }
static char *buffer_part(const struct ipc_call *k, int r, int block) { return buffer_of(k, r) + (size_t)block * k->stride; }
static char *element_of(const struct ipc_call *k, const void *p, size_t i) { return (char *)(uintptr_t)p + i * k->size; }

static ls_status copy(const struct ipc_call *k, void *to, const void *from, size_t elements)
{
    return to == from ? LS_OK : cuda_copy(k->s, to, from, elements * k->size);
}

static ls_status copy_in_span(const struct ipc_call *k, char *to, const void *from, struct span s)
{
    return copy(k, to, element_of(k, from, s.begin), s.end - s.begin);
}

static ls_status copy_out_span(const struct ipc_call *k, void *to, struct span s, const char *from)
{
    return copy(k, element_of(k, to, s.begin), from, s.end - s.begin);
}

/* out[count] = the reduction of the ranks' elements that begin skip bytes into their buffers. */
static ls_status sum(const struct ipc_call *k, void *out, size_t skip, size_t count)
{
    struct ipc_sum x = { .out = out, .n = k->g->n, .count = count, .type = k->c->type, .redop = k->c->redop };
    struct device_access touched[IPC_RANKS + 1];

    if (!count) return LS_OK;
    for (int r = 0; r < x.n; r++) {
        x.in[r] = buffer_of(k, r) + skip;
        touched[r] = (struct device_access){ .data = x.in[r], .bytes = count * k->size, .element = (uint8_t)k->size };
    }
    touched[x.n] = (struct device_access){ .data = out, .bytes = count * k->size, .write = true, .element = (uint8_t)k->size };
    if (cuda.kernel_begin) LS_TRY(cuda.kernel_begin(k->s, "cuda ipc sum", touched, x.n + 1));
    cuda.sum->launch(k->s, &x);
    return cuda_failed();
}

/* ---- what a round fills and takes ---- */

static ls_status fill_operand(const struct ipc_call *k)
{
    const void *from = k->c->op == DEVICE_BROADCAST ? k->c->recv : k->c->send;

    return copy_in_span(k, buffer_of(k, k->g->rank), from, span_of(k, k->c->count));
}

/* Each rank's block in its part of the buffer: also this rank's own where all are summed. */
static ls_status fill_blocks(const struct ipc_call *k)
{
    for (int r = 0; r < k->g->n; r++)
        if (r != k->g->rank || k->c->op == DEVICE_REDUCE_SCATTER)
            LS_TRY(copy_in_span(k, buffer_part(k, k->g->rank, r), k->c->send, block_span(k, k->c->at, r)));
    return LS_OK;
}

static ls_status fill_own(const struct ipc_call *k)
{
    const size_t *at = k->c->at;
    struct span s = span_of(k, at[k->g->rank + 1] - at[k->g->rank]);

    return copy_in_span(k, buffer_of(k, k->g->rank), k->c->send, s);
}

/* Borders of the ranks' shares of so many elements: each begins where the kernel may read 16 bytes at once. */
static size_t share_at(const struct ipc_call *k, size_t count, int r)
{
    size_t each = (count + (size_t)k->g->n - 1) / (size_t)k->g->n;

    return MIN((each + SHARE - 1) / SHARE * SHARE * (size_t)r, count);
}

/* A short operand is summed by each rank; of a long one each sums its share, in place in its buffer, and copies the others'. */
static ls_status take_sums(const struct ipc_call *k)
{
    struct span s = span_of(k, k->c->count);
    size_t count = s.end - s.begin, own = share_at(k, count, k->g->rank);

    if (k->g->n == 2 || count * k->size <= AT_ONCE) return sum(k, element_of(k, k->c->recv, s.begin), 0, count);
    LS_TRY(sum(k, buffer_of(k, k->g->rank) + own * k->size, own * k->size, share_at(k, count, k->g->rank + 1) - own));
    LS_TRY(signal_all(k, IPC_REDUCED, round_number(k, k->now)));
    LS_TRY(wait_all(k, IPC_REDUCED, round_number(k, k->now)));
    for (int r = 0; r < k->g->n; r++) {
        size_t begin = share_at(k, count, r), end = share_at(k, count, r + 1);

        LS_TRY(copy(k, element_of(k, k->c->recv, s.begin + begin), buffer_of(k, r) + begin * k->size, end - begin));
    }
    return LS_OK;
}

static ls_status take_scattered(const struct ipc_call *k)
{
    const size_t *at = k->c->at;
    int r = k->g->rank;
    struct span s = span_of(k, at[r + 1] - at[r]);

    return sum(k, element_of(k, k->c->recv, s.begin), (size_t)r * k->stride, s.end - s.begin);
}

static ls_status take_gathered(const struct ipc_call *k)
{
    for (int r = 0; r < k->g->n; r++)
        if (r != k->g->rank) LS_TRY(copy_out_span(k, k->c->recv, block_span(k, k->c->at, r), buffer_of(k, r)));
    return LS_OK;
}

static ls_status take_exchanged(const struct ipc_call *k)
{
    for (int r = 0; r < k->g->n; r++) {
        struct span s = block_span(k, k->c->recv_at, r);

        if (r == k->g->rank || span_empty(s)) continue;
        LS_TRY(wait_for(k, r, IPC_FILLED, round_number(k, k->now)));
        LS_TRY(copy_out_span(k, k->c->recv, s, buffer_part(k, r, k->g->rank)));
    }
    return LS_OK;
}

/* What the root, or the sender, has filled. */
static ls_status take_operand(const struct ipc_call *k)
{
    int from = k->c->op == DEVICE_BROADCAST ? k->c->root : 0;

    LS_TRY(wait_for(k, from, IPC_FILLED, round_number(k, k->now)));
    return copy_out_span(k, k->c->recv, span_of(k, k->c->count), buffer_of(k, from));
}

/* ---- calls ---- */

static bool is_message(const struct device_call *c) { return c->op == DEVICE_SEND || c->op == DEVICE_RECV; }

static bool rank_fills(const struct ipc_call *k, int r)
{
    return is_message(k->c) ? r == 0 : k->c->op != DEVICE_BROADCAST || r == k->c->root;
}

static ls_status round_fill(const struct ipc_call *k)
{
    switch (k->c->op) {
    case DEVICE_REDUCE_SCATTER:
    case DEVICE_ALL_TO_ALL: return fill_blocks(k);
    case DEVICE_ALL_GATHER: return fill_own(k);
    default: return fill_operand(k);
    }
}

static ls_status round_take(const struct ipc_call *k)
{
    switch (k->c->op) {
    case DEVICE_ALL_TO_ALL: return take_exchanged(k);
    case DEVICE_BROADCAST:
    case DEVICE_RECV: return rank_fills(k, k->g->rank) ? LS_OK : take_operand(k);
    case DEVICE_SEND: return LS_OK;
    default: break;
    }
    LS_TRY(wait_all(k, IPC_FILLED, round_number(k, k->now)));
    return k->c->op == DEVICE_ALL_REDUCE ? take_sums(k) : k->c->op == DEVICE_REDUCE_SCATTER ? take_scattered(k) : take_gathered(k);
}

/* The buffer of this round is free once all have read what was in it: two rounds ago, or in the last call that filled it. */
static ls_status wait_for_buffer(const struct ipc_call *k)
{
    if (k->now >= IPC_BUFFERS) return wait_all(k, IPC_READ, round_number(k, k->now - IPC_BUFFERS));
    return k->now == 0 && k->g->filled ? wait_all(k, IPC_READ, end_number(k->g->filled)) : LS_OK;
}

static ls_status signal_read(const struct ipc_call *k, uint64_t number)
{
    for (int r = 0; r < k->g->n; r++)
        if (r != k->g->rank && rank_fills(k, r)) LS_TRY(signal_to(k, r, IPC_READ, number));
    return LS_OK;
}

static ls_status round_give(const struct ipc_call *k)
{
    if (rank_fills(k, k->g->rank)) {
        LS_TRY(wait_for_buffer(k));
        LS_TRY(round_fill(k));
        LS_TRY(signal_all(k, IPC_FILLED, round_number(k, k->now)));
    }
    LS_TRY(round_take(k));
    return signal_read(k, k->now + 1 < k->rounds ? round_number(k, k->now) : end_number(k->g->call));
}

static size_t largest_block(const struct ipc_call *k, const size_t *at, bool own)
{
    size_t most = 0;

    for (int r = 0; at && r < k->g->n; r++)
        if (own || r != k->g->rank) most = MAX(most, at[r + 1] - at[r]);
    return most;
}

static void call_plan(struct ipc_call *k)
{
    const struct device_call *c = k->c;
    bool blocks = c->op == DEVICE_REDUCE_SCATTER || c->op == DEVICE_ALL_TO_ALL, exchanges = c->op == DEVICE_ALL_TO_ALL;
    size_t most = c->count;

    if (blocks || c->op == DEVICE_ALL_GATHER) most = MAX(largest_block(k, c->at, !exchanges), largest_block(k, c->recv_at, !exchanges));
    k->stride = blocks ? k->g->buffer / (size_t)k->g->n / STRIDE_UNIT * STRIDE_UNIT : k->g->buffer;
    k->chunk = k->stride / k->size;
    k->rounds = (most + k->chunk - 1) / k->chunk;
    ASSERT(k->rounds < 1u << ROUND_BITS);
}

/* A rank's own block of what is gathered or exchanged goes through no buffer. */
static ls_status copy_own(const struct ipc_call *k)
{
    const struct device_call *c = k->c;
    int r = k->g->rank;

    if (c->op == DEVICE_ALL_GATHER) return copy(k, element_of(k, c->recv, c->at[r]), c->send, c->at[r + 1] - c->at[r]);
    if (c->op != DEVICE_ALL_TO_ALL) return LS_OK;
    return copy(k, element_of(k, c->recv, c->recv_at[r]), element_of(k, c->send, c->at[r]), c->at[r + 1] - c->at[r]);
}

/* Calls that come on another stream than the last one use the same buffers. */
static ls_status follow_last(struct ipc_call *k)
{
    struct device_group *g = k->g;

    if (g->call && g->on != k->s) {
        LS_TRY(flight_room(k->s));
        LS_TRY(cuda_check(cudaStreamWaitEvent(k->s->handle, g->ended, cudaEventWaitDefault), "cudaStreamWaitEvent"));
    }
    g->on = k->s;
    g->call++;
    return LS_OK;
}

static ls_status call_give(struct ipc_call *k)
{
    LS_TRY(follow_last(k));
    LS_TRY(copy_own(k));
    for (k->now = 0; k->now < k->rounds; k->now++) LS_TRY(round_give(k));
    if (!k->rounds) LS_TRY(signal_read(k, end_number(k->g->call)));
    if (rank_fills(k, k->g->rank)) k->g->filled = k->g->call;
    LS_TRY(flight_room(k->s));
    return cuda_check(cudaEventRecord(k->g->ended, k->s->handle), "cudaEventRecord");
}

bool ipc_takes(const struct device_call *c)
{
    return (c->op != DEVICE_ALL_REDUCE && c->op != DEVICE_REDUCE_SCATTER) || cuda.sum->takes(c->type);
}

ls_status ipc_enqueue(struct device_group *g, struct device_stream *stream, const struct device_call *c, const struct device_watch *w)
{
    struct ipc_call k = { .g = g, .c = c, .size = ls_dtype_bytes(c->type) };
    struct flight *f;
    ls_status st = cuda_stream(stream, &k.s);

    if (st < 0) {
        w->over(w->data, false);
        return st;
    }
    LS_TRY(flight_call_begin(k.s, w, NULL, ipc_spoiled, g, &f));
    call_plan(&k);
    st = call_give(&k);
    return st < 0 ? cuda_fail(st) : flight_call_end(f);
}
