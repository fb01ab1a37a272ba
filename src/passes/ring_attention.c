/* ring_attention.c - attention over a sequence sharded over ranks: keys and values travel around a ring (Liu et al. 2023, Ring Attention).
 *
 * Rank r of n has t of the T tokens of q, k and v. In step s it uses the keys and values of rank j = r - s (mod n), while it sends them
 * on to rank r+1 and receives the next ones from r-1. The results of the steps are merged by their statistics (ATTENTION_MERGE) in f32.
 * Backward: keys and values travel around again; with the final o and lse each step's dq, dk, dv are exact terms. The sums of dk and dv
 * follow their keys one step later, and return with one more hop. On the wire: n-1 times 2 B t G D elements forward, and n-1 times that
 * and n times that in f32 backward.
 *
 * Causal: with contiguous shards the last rank would do almost all of the work. zigzag: with 2n chunks of the sequence, rank r has chunks
 * r and 2n-1-r, one after the other (Zhu 2024, Striped and zigzag ring attention; Llama 3, section 3.3.2). A step then is
 *     j = r   the local sequence, causal
 *     j < r   all queries, the first chunk of the keys         (chunk j is before both of r's, chunk 2n-1-j after both)
 *     j > r   the second chunk of queries, all keys            (both of j's are between r's)
 * which is half of a step's pairs for any r and j. Without zigzag: j < r all, j > r nothing.
 */
#include "ir/distributed_ops.h"

#include <math.h>
#include <string.h>

struct ring {
    ls_program *p;
    const struct instruction *i;
    ls_comm *comm; /* NULL: one rank */
    int n, rank;
    bool causal, zigzag;
    size_t full;
    size_t B, H, G, D, t;
    ls_dtype type, exact;   /* type of q k v; type of sums and statistics */
    ls_value q, k, v, step; /* step: of dropout, or LS_NONE */
    ls_value kv[2];         /* flat, sized for the longest shard of any rank: keys, then values */
    ls_value sums[2];       /* likewise for dk and dv, in the exact type */
};

/* What a step computes: queries [q0, t) and keys [0, s) of rank j. s = 0: nothing. */
struct block {
    int j;
    size_t q0, s;
    bool causal;
};

/* ---- sizes ---- */

static size_t ring_attention_chunk(const struct ring *z, int k)
{
    return shard_begin(z->full, 1, k + 1, 2 * z->n) - shard_begin(z->full, 1, k, 2 * z->n);
}

static size_t tokens(const struct ring *z, int j)
{
    return z->zigzag ? ring_attention_chunk(z, j) + ring_attention_chunk(z, 2 * z->n - 1 - j)
                     : shard_begin(z->full, 1, j + 1, z->n) - shard_begin(z->full, 1, j, z->n);
}

static size_t kv_count(const struct ring *z, int j) { return 2 * z->B * tokens(z, j) * z->G * z->D; }

static size_t longest(const struct ring *z)
{
    size_t most = 0;

    for (int j = 0; j < z->n; j++) most = MAX(most, kv_count(z, j));
    return most;
}

static struct block block_of(const struct ring *z, int s)
{
    int j = (z->rank - s + z->n) % z->n;
    struct block b = { .j = j, .s = tokens(z, j), .causal = z->causal && s == 0 };

    if (!z->causal || s == 0) return b;
    if (z->zigzag && j < z->rank)
        b.s = ring_attention_chunk(z, j);
    else if (z->zigzag)
        b.q0 = ring_attention_chunk(z, z->rank);
    else if (j > z->rank)
        b.s = 0;
    if (b.q0 == z->t) b.s = 0;
    return b;
}

static ls_value ring_step(const struct instruction *i)
{
    int at = i->nout == 2 ? 4 : 6; /* forward: o, lse */

    return at < i->nin ? i->in[at] : LS_NONE;
}

static bool open_ring(struct ring *z, ls_program *p, const struct instruction *i)
{
    const struct value *q = program_value(p, i->in[0]);
    const struct across *a = instruction_across(i);

    *z = (struct ring){ .p = p,
                        .i = i,
                        .comm = a->comm,
                        .n = 1,
                        .causal = i->attr.attention.causal,
                        .zigzag = a->zigzag,
                        .full = a->full,
                        .q = i->in[0],
                        .k = i->in[1],
                        .v = i->in[2],
                        .step = ring_step(i),
                        .type = q->dtype,
                        .exact = q->dtype == LS_F64 ? LS_F64 : LS_F32 };
    z->B = q->size[0];
    z->t = q->size[1];
    z->H = q->size[2];
    z->D = q->size[3];
    z->G = program_value(p, z->k)->size[2];
    if (z->comm) {
        z->n = ls_comm_size(z->comm);
        z->rank = ls_comm_rank(z->comm);
    }
    if (tokens(z, z->rank) != z->t || program_value(p, z->k)->size[1] != z->t)
        program_fail(p, "ring attention: rank %d of %d has %zu queries and %zu keys of %zu tokens; its shard is %zu", z->rank, z->n, z->t,
                     program_value(p, z->k)->size[1], z->full, tokens(z, z->rank));
    return program_ok(p);
}

/* ---- values ---- */

static ls_value new_heads(struct ring *z, const char *what, ls_dtype type, size_t rows, size_t heads)
{
    return program_new_value(z->p, what, type, 4, (size_t[]){ z->B, rows, heads, z->D });
}

static ls_value from_row(struct ring *z, ls_value x, int dim, size_t begin)
{
    const struct value *v = program_value(z->p, x);

    return begin ? ls_slice(z->p, x, dim, begin, v->size[dim]) : x;
}

/* The first s rows of rank j's keys (part 0) or values (1) in a flat buffer. */
static ls_value heads_in(struct ring *z, ls_value flat, int j, int part, size_t s)
{
    size_t t = tokens(z, j), count = kv_count(z, j) / 2;
    ls_value x = ls_slice(z->p, flat, 0, (size_t)part * count, ((size_t)part + 1) * count);

    x = ls_reshape(z->p, x, 4, (size_t[]){ z->B, t, z->G, z->D });
    return s < t ? ls_slice(z->p, x, 1, 0, s) : x;
}

static void emit_to(struct ring *z, int op, ls_value x, ls_value y) { program_emit(z->p, op, NULL, 1, &x, 1, &y); }

/* ---- the ring ---- */

struct hop {
    struct exchange send, recv;
    ls_value out, in;
};

static struct exchange hop_of(const struct ring *z, ls_collective op, int peer, size_t total)
{
    return (
        struct exchange){ .op = op, .comm = z->comm, .root = (peer + z->n) % z->n, .total = total, .axis = instruction_across(z->i)->axis };
}

/* Sends `from`, rank j's data, to the next rank, and receives rank j-1's into `to`. */
static struct hop hop_start(struct ring *z, ls_value from, int j, ls_value to)
{
    int before = (j + z->n - 1) % z->n;
    struct hop h = { .send = hop_of(z, LS_COLLECTIVE_SEND, z->rank + 1, kv_count(z, j)),
                     .recv = hop_of(z, LS_COLLECTIVE_RECV, z->rank - 1, kv_count(z, before)),
                     .out = ls_slice(z->p, from, 0, 0, kv_count(z, j)),
                     .in = ls_slice(z->p, to, 0, 0, kv_count(z, before)) };

    program_exchange_start(z->p, &h.recv, LS_NONE, h.in);
    program_exchange_start(z->p, &h.send, h.out, LS_NONE);
    return h;
}

static void hop_wait(struct ring *z, const struct hop *h)
{
    program_exchange_wait(z->p, &h->recv, LS_NONE, h->in);
    program_exchange_wait(z->p, &h->send, h->out, LS_NONE);
}

static void pack(struct ring *z)
{
    for (int b = 0; b < 2; b++) z->kv[b] = program_comm_value(z->p, b ? "ring.kv.1" : "ring.kv.0", z->type, longest(z));
    emit_to(z, OP_COPY, z->k, heads_in(z, z->kv[0], z->rank, 0, z->t));
    emit_to(z, OP_COPY, z->v, heads_in(z, z->kv[0], z->rank, 1, z->t));
}

static ls_value keys(struct ring *z, const struct block *b, int s) { return s ? heads_in(z, z->kv[s % 2], b->j, 0, b->s) : z->k; }

static ls_value values(struct ring *z, const struct block *b, int s) { return s ? heads_in(z, z->kv[s % 2], b->j, 1, b->s) : z->v; }

/* Which of the complete sequence's tokens rank j has, from row `from` of its shard on. */
static struct shard_rows rows_of_rank(const struct ring *z, int j, size_t from)
{
    int chunks = z->zigzag ? 2 * z->n : z->n;
    size_t first = z->zigzag ? ring_attention_chunk(z, j) : 0, begin = shard_begin(z->full, 1, j, chunks);
    size_t second = z->zigzag ? shard_begin(z->full, 1, chunks - 1 - j, chunks) : begin;

    return (struct shard_rows){ { begin + from, second + (from > first ? from - first : 0) }, first > from ? first - from : 0 };
}

static struct op_attr attr_of(const struct ring *z, const struct block *b)
{
    struct op_attr attr = z->i->attr;

    attr.attention.causal = b->causal;
    attr.attention.drop.queries = rows_of_rank(z, z->rank, b->q0);
    attr.attention.drop.keys = rows_of_rank(z, b->j, 0);
    return attr;
}

/* ---- forward ---- */

static void ring_attend(struct ring *z, const struct block *b, int s, ls_value o, ls_value lse)
{
    struct op_attr attr = attr_of(z, b);
    ls_value in[] = { from_row(z, z->q, 1, b->q0), keys(z, b, s), values(z, b, s), LS_NONE, z->step };

    program_emit(z->p, OP_ATTENTION, &attr, z->step.id ? 5 : 4, in, 2, (ls_value[]){ o, lse });
}

/* One step of the forward: merges into o and lse; the first step initializes them. */
static void forward_step(struct ring *z, int s, ls_value o, ls_value lse)
{
    struct block b = block_of(z, s);
    ls_value part[2];

    if (!b.s) return;
    part[0] = s || z->type != z->exact ? new_heads(z, "ring.o", z->type, z->t - b.q0, z->H) : o;
    part[1] = s ? program_new_value(z->p, "ring.lse", z->exact, 3, (size_t[]){ z->B, z->H, z->t - b.q0 }) : lse;
    ring_attend(z, &b, s, part[0], part[1]);
    if (s)
        program_emit(z->p, OP_ATTENTION_MERGE, NULL, 2, part, 2, (ls_value[]){ from_row(z, o, 1, b.q0), from_row(z, lse, 2, b.q0) });
    else if (z->type != z->exact)
        emit_to(z, OP_COPY, part[0], o);
}

void ring_lower(ls_program *p, const struct instruction *i)
{
    struct ring z;
    struct hop h;

    if (!open_ring(&z, p, i)) return;
    if (z.n == 1) {
        ring_attend(&z, &(struct block){ 0, 0, z.t, z.causal }, 0, i->out[0], i->out[1]);
        return;
    }
    ls_value o = z.type == z.exact ? i->out[0] : new_heads(&z, "ring.sum", z.exact, z.t, z.H);
    pack(&z);
    for (int s = 0; s < z.n && program_ok(p); s++) {
        bool goes_on = s < z.n - 1;

        if (goes_on) h = hop_start(&z, z.kv[s % 2], block_of(&z, s).j, z.kv[(s + 1) % 2]);
        forward_step(&z, s, o, i->out[1]);
        if (goes_on) hop_wait(&z, &h);
    }
    if (z.type != z.exact) emit_to(&z, OP_COPY, o, i->out[0]);
}

/* ---- backward ---- */

struct grads {
    ls_value dq, dk, dv;
};

/* This step's terms, in the operands' type. */
static struct grads differentiate(struct ring *z, const struct block *b, int s)
{
    const ls_value *in = z->i->in;
    struct op_attr attr = attr_of(z, b);
    struct grads g = { new_heads(z, "ring.dq", z->type, z->t - b->q0, z->H), new_heads(z, "ring.dk", z->type, b->s, z->G),
                       new_heads(z, "ring.dv", z->type, b->s, z->G) };
    ls_value lse = ls_contiguous(z->p, from_row(z, in[4], 2, b->q0));
    ls_value o = from_row(z, in[3], 1, b->q0), dout = from_row(z, in[5], 1, b->q0);

    program_emit(z->p, OP_ATTENTION_GRAD, &attr, z->step.id ? 7 : 6,
                 (ls_value[]){ from_row(z, z->q, 1, b->q0), keys(z, b, s), values(z, b, s), o, lse, dout, z->step }, 3,
                 (ls_value[]){ g.dq, g.dk, g.dv });
    return g;
}

/* Adds them to dq, and to the sums of rank b->j, which are in `sums` by now; the first step initializes them. */
static void ring_attention_collect(struct ring *z, const struct block *b, int s, const struct grads *g, ls_value dq, ls_value sums)
{
    emit_to(z, s ? OP_ACCUMULATE : OP_COPY, g->dq, from_row(z, dq, 1, b->q0));
    emit_to(z, s ? OP_ACCUMULATE : OP_COPY, g->dk, heads_in(z, sums, b->j, 0, b->s));
    emit_to(z, s ? OP_ACCUMULATE : OP_COPY, g->dv, heads_in(z, sums, b->j, 1, b->s));
}

/* Step s: passes keys on, passes the previous step's sums on, computes the block, and adds its terms. */
static void backward_step(struct ring *z, int s, ls_value dq)
{
    struct block b = block_of(z, s);
    struct hop keys_hop, sums_hop;
    struct grads g;

    if (s < z->n - 1) keys_hop = hop_start(z, z->kv[s % 2], b.j, z->kv[(s + 1) % 2]);
    if (s) sums_hop = hop_start(z, z->sums[(s - 1) % 2], (b.j + 1) % z->n, z->sums[s % 2]);
    if (b.s) g = differentiate(z, &b, s);
    if (s) hop_wait(z, &sums_hop);
    if (b.s) ring_attention_collect(z, &b, s, &g, dq, z->sums[s % 2]);
    if (s < z->n - 1) hop_wait(z, &keys_hop);
}

void ring_grad_lower(ls_program *p, const struct instruction *i)
{
    struct ring z;

    if (!open_ring(&z, p, i)) return;
    if (z.n == 1) {
        program_emit(p, OP_ATTENTION_GRAD, &i->attr, i->nin, i->in, 3, i->out);
        return;
    }
    ls_value dq = z.type == z.exact ? i->out[0] : new_heads(&z, "ring.dq.sum", z.exact, z.t, z.H);
    pack(&z);
    for (int b = 0; b < 2; b++) z.sums[b] = program_comm_value(p, b ? "ring.dkv.1" : "ring.dkv.0", z.exact, longest(&z));
    for (int s = 0; s < z.n && program_ok(p); s++) backward_step(&z, s, dq);
    int last = (z.n - 1) % 2;
    struct hop home = hop_start(&z, z.sums[last], block_of(&z, z.n - 1).j, z.sums[!last]);
    if (z.type != z.exact) emit_to(&z, OP_COPY, dq, i->out[0]);
    hop_wait(&z, &home);
    emit_to(&z, OP_COPY, heads_in(&z, z.sums[!last], z.rank, 0, z.t), i->out[1]);
    emit_to(&z, OP_COPY, heads_in(&z, z.sums[!last], z.rank, 1, z.t), i->out[2]);
}

/* ---- building ---- */

static bool is_heads(const ls_program *p, ls_value x, const struct value *q)
{
    const struct value *v = &p->values[x.id];

    return x.id && v->ndim == 4 && v->dtype == q->dtype && v->size[0] == q->size[0] && v->size[1] == q->size[1] &&
           v->size[3] == q->size[3] && v->size[2] && q->size[2] % v->size[2] == 0 && (v->stride[3] == 1 || v->size[3] == 1);
}

ls_value program_ring_attention(ls_program *p, ls_value q, ls_value k, ls_value v, int causal, const struct across *a)
{
    struct op_attr attr = { .attention = { .causal = causal } };
    size_t size[4];

    if (!program_operand(p, "ring_attention", "q", q, LS_DTYPES)) return LS_NONE;
    const struct value *x = program_value(p, q);
    if (x->ndim != 4 || !is_heads(p, q, x) || !is_heads(p, k, x) || !is_heads(p, v, x) || !program_same_shape(p, k, v))
        return program_fail(p, "ring_attention: q must be [B,t,H,D], k and v [B,t,G,D], H a multiple of G");
    memcpy(size, x->size, sizeof size);
    ls_dtype type = x->dtype;
    attr.attention.scale = 1.0 / sqrt((double)size[3]);
    ls_value o = program_new_value(p, "ring_attention", type, 4, size);
    ls_value lse = program_new_value(p, "lse", type == LS_F64 ? LS_F64 : LS_F32, 3, (size_t[]){ size[0], size[2], size[1] });
    struct instruction *i = program_append(p, OP_RING_ATTENTION, &attr, 4, (ls_value[]){ q, k, v, LS_NONE }, 2, (ls_value[]){ o, lse });
    if (!i) return LS_NONE;
    instruction_set_across(i, a);
    return o;
}
