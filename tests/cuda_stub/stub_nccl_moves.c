/* stub_nccl_moves.c - what a call of NCCL does when its stream reaches it. See stub_nccl.h. */
#include "stub_nccl.h"

#include <math.h>
#include <string.h>
#include "base/base.h"
#include "comm/reduce.h"

static ls_dtype dtype_of(int type)
{
    switch (type) {
    case ncclFloat32: return LS_F32;
    case ncclBfloat16: return LS_BF16;
    case ncclFloat16: return LS_F16;
    case ncclFloat64: return LS_F64;
    case ncclInt64: return LS_I64;
    case ncclInt32: return LS_I32;
    case ncclUint8: return LS_U8;
    default: stub_die("nccl: type %d is not one that lockstep sends", type);
    }
    return LS_DTYPES;
}

size_t nccl_bytes(ncclDataType_t t) { return ls_dtype_bytes(dtype_of((int)t)); }

static size_t move_bytes(const struct nccl_words *w) { return w->count * nccl_bytes((ncclDataType_t)w->type); }

size_t nccl_part_reads(const struct ncclComm *c, const struct nccl_part *p)
{
    switch (p->words.op) {
    case NCCL_REDUCE_SCATTER: return move_bytes(&p->words) * (size_t)c->n;
    case NCCL_BROADCAST: return p->words.root == c->rank ? move_bytes(&p->words) : 0;
    case NCCL_RECV: return 0;
    default: return move_bytes(&p->words);
    }
}

size_t nccl_part_writes(const struct ncclComm *c, const struct nccl_part *p)
{
    switch (p->words.op) {
    case NCCL_ALL_GATHER: return move_bytes(&p->words) * (size_t)c->n;
    case NCCL_REDUCE: return p->words.root == c->rank ? move_bytes(&p->words) : 0;
    case NCCL_SEND: return 0;
    default: return move_bytes(&p->words);
    }
}

static char *rank_block(const struct ncclComm *c, int rank) { return (char *)c->shared + NCCL_HEAD + (size_t)rank * NCCL_BLOCK; }

static char *pair_block(const struct ncclComm *c, int from, int to)
{
    return rank_block(c, c->n) + (size_t)(from * c->n + to) * NCCL_BLOCK;
}

static void block_fill(char *block, const struct nccl_part *p, size_t bytes)
{
    if (bytes > NCCL_BLOCK) stub_die("nccl: %zu bytes in one call; the stub has room for %d", bytes, NCCL_BLOCK);
    if (bytes) memcpy(block, p->send, bytes);
}

/* ---- collectives ---- */

static bool all_at_least(const struct ncclComm *c, uint64_t number, bool done)
{
    for (int r = 0; r < c->n; r++)
        if (atomic_load(done ? &c->shared->rank[r].done : &c->shared->rank[r].posted) < number) return false;
    return true;
}

static void compare_registered(const char *what, bool same, unsigned a, unsigned b, int from, int to)
{
    if (!same) stub_die("nccl: %s (rank %d: %x, rank %d: %x)", what, from, a, to, b);
}

static void compare_words(const struct ncclComm *c, const struct nccl_part *p)
{
    const struct nccl_words *a = &p->words;

    for (int r = 0; r < c->n; r++) {
        const struct nccl_words *b = &c->shared->rank[r].words;

        compare_registered("the operands of a call are registered on some ranks and not on others",
                           a->op == NCCL_REDUCE || a->registered == b->registered, a->registered, b->registered, c->rank, r);
        if (a->op != b->op || a->type != b->type || a->redop != b->redop || a->root != b->root || a->count != b->count)
            stub_die("nccl: collective %llu: rank %d called %d (type %d, operator %d, root %d, %llu elements), rank %d called %d (type %d, "
                     "operator %d, root %d, %llu elements)",
                     (unsigned long long)p->number, c->rank, a->op, a->type, a->redop, a->root, (unsigned long long)a->count, r, b->op,
                     b->type, b->redop, b->root, (unsigned long long)b->count);
    }
}

/* NCCL's arithmetic in each type: see stub_nccl.h. */
static double read_element(const void *p, size_t i, ls_dtype t)
{
    switch (t) {
    case LS_F32: return ((const float *)p)[i];
    case LS_F64: return ((const double *)p)[i];
    case LS_BF16:
    case LS_F16: {
        float x;

        reduce_widen(&x, (const char *)p + 2 * i, 1, t);
        return x;
    }
    default: stub_die("nccl: type %d is not a floating one", (int)t);
    }
    return 0;
}

static void write_element(void *p, size_t i, ls_dtype t, double x)
{
    float narrow = (float)x;

    if (t == LS_F64)
        ((double *)p)[i] = x;
    else if (t == LS_F32)
        ((float *)p)[i] = narrow;
    else
        reduce_narrow((char *)p + 2 * i, &narrow, 1, t, 1);
}

static double stub_nccl_moves_rounded(double x, ls_dtype t)
{
    double place[1];

    write_element(place, 0, t, x);
    return read_element(place, 0, t);
}

static double apply(ncclRedOp_t op, double a, double b, ls_dtype t)
{
    switch ((int)op) {
    case ncclSum:
    case ncclAvg: return stub_nccl_moves_rounded(a + b, t);
    case ncclMax: return fmax(a, b);
    default: stub_die("nccl: operator %d is not one that lockstep gives", (int)op);
    }
    return 0;
}

static void sum_floats(void *to, const void *const *from, int n, size_t count, ls_dtype t, ncclRedOp_t op)
{
    double factor = op == ncclAvg ? stub_nccl_moves_rounded(1.0 / n, t) : 1;

    for (size_t i = 0; i < count; i++) {
        double sum = stub_nccl_moves_rounded(factor * read_element(from[0], i, t), t);

        for (int r = 1; r < n; r++) sum = apply(op, sum, stub_nccl_moves_rounded(factor * read_element(from[r], i, t), t), t);
        write_element(to, i, t, sum);
    }
}

static ls_redop integer_redop(int op)
{
    if (op != ncclSum && op != ncclMax) stub_die("nccl: operator %d is not one that lockstep gives, for integers", op);
    return op == ncclMax ? LS_MAX : LS_SUM;
}

static void sum_blocks(const struct ncclComm *c, const struct nccl_part *p)
{
    const void *from[NCCL_RANKS];
    size_t skip = p->words.op == NCCL_REDUCE_SCATTER ? move_bytes(&p->words) * (size_t)c->rank : 0;
    ls_dtype t = dtype_of(p->words.type);

    for (int r = 0; r < c->n; r++) from[r] = rank_block(c, r) + skip;
    if (!p->words.count) return;
    if (ls_dtype_is_float(t))
        sum_floats(p->recv, from, c->n, p->words.count, t, (ncclRedOp_t)p->words.redop);
    else
        reduce_many(p->recv, from, c->n, p->words.count, t, integer_redop(p->words.redop), 1);
}

static void collective_compute(const struct ncclComm *c, const struct nccl_part *p)
{
    size_t bytes = move_bytes(&p->words);

    switch (p->words.op) {
    case NCCL_ALL_GATHER:
        for (int r = 0; r < c->n; r++) memcpy((char *)p->recv + (size_t)r * bytes, rank_block(c, r), bytes);
        break;
    case NCCL_BROADCAST: memcpy(p->recv, rank_block(c, p->words.root), bytes); break;
    case NCCL_REDUCE:
        if (p->words.root == c->rank) sum_blocks(c, p);
        break;
    default: sum_blocks(c, p);
    }
}

static bool collective_move(struct ncclComm *c, struct nccl_part *p)
{
    if (!p->posted) {
        if (!all_at_least(c, p->number - 1, true)) return false;
        block_fill(rank_block(c, c->rank), p, nccl_part_reads(c, p));
        c->shared->rank[c->rank].words = p->words;
        atomic_store(&c->shared->rank[c->rank].posted, p->number);
        p->posted = true;
    }
    if (!all_at_least(c, p->number, false)) return false;
    compare_words(c, p);
    collective_compute(c, p);
    atomic_store(&c->shared->rank[c->rank].done, p->number);
    return true;
}

/* ---- messages ---- */

static bool message_move(struct ncclComm *c, struct nccl_part *p)
{
    bool sends = p->words.op == NCCL_SEND;
    int from = sends ? c->rank : p->words.root, to = sends ? p->words.root : c->rank;
    struct nccl_words *words = &c->shared->pair[from][to].words;
    _Atomic uint64_t *sent = &c->shared->pair[from][to].sent, *received = &c->shared->pair[from][to].received;

    if (sends && p->posted) return atomic_load(received) == p->number;
    if ((atomic_load(sent) == atomic_load(received)) != sends) return false;
    if (sends) {
        block_fill(pair_block(c, from, to), p, move_bytes(&p->words));
        *words = p->words;
        p->number = atomic_fetch_add(sent, 1) + 1;
        p->posted = true;
        return false;
    }
    if (words->type != p->words.type || words->count != p->words.count)
        stub_die("nccl: rank %d sends %llu elements of type %d, rank %d receives %llu of type %d", from, (unsigned long long)words->count,
                 words->type, to, (unsigned long long)p->words.count, p->words.type);
    compare_registered("a message is sent from registered memory and received elsewhere, or the other way round",
                       (words->registered == NCCL_SENDS_REGISTERED) == (p->words.registered == NCCL_RECEIVES_REGISTERED) ||
                           !words->count || from == to,
                       words->registered, p->words.registered, from, to);
    memcpy(p->recv, pair_block(c, from, to), move_bytes(&p->words));
    atomic_fetch_add(received, 1);
    return true;
}

/* ---- a launch ---- */

static bool is_message(const struct nccl_part *p) { return p->words.op == NCCL_SEND || p->words.op == NCCL_RECV; }

/* Messages of a group move together, collectives one after another. */
static bool parts_move(struct nccl_launch *l)
{
    bool over = true;

    for (int k = 0; k < l->n; k++) {
        struct nccl_part *p = &l->part[k];

        if (!p->over) p->over = (is_message(p) ? message_move : collective_move)(l->comm, p);
        if (!p->over && !is_message(p)) return false;
        over &= p->over;
    }
    return over;
}

ls_status nccl_launch_run(void *launch)
{
    struct nccl_launch *l = launch;

    if (l->comm->aborted) return LS_OK;
    if (l->comm->run != l->number || !parts_move(l)) return LS_BUSY;
    l->comm->run++;
    return LS_OK;
}
