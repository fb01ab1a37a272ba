/* vocab_xent.c - the last linear layer and its cross-entropy with a sharded vocabulary, without ever holding all logits.
 *
 * Rank r has w[v,C], rows [first, first + v) of the V; x is replicated. x is processed in row chunks, so that the logits [R,v] are never
 * in memory all at once (the vocabulary-parallel loss of Shoeybi et al. 2019):
 *
 *     logits[n,v] = x w^T;  part[n,3] = largest, sum of exponentials, logit of the target;  all_gather -> stats[ranks,n,3]
 *     loss += and lse[n] from stats, the same on all ranks;  dlogits;  dx[n,C] = dlogits w, a partial sum over the ranks;  dw += dlogits^T
 * x
 *
 * If lse is given, as in the backward, nothing is communicated. Otherwise a chunk's statistics are exchanged while the next chunk's logits
 * are computed, so two chunks of logits are in memory.
 */
#include "ir/distributed_ops.h"

#include <string.h>

/* Limits on one chunk: bytes of its logits in f32, and the rows that make a matmul efficient. */
enum { LOGIT_BYTES = 104 << 20, MOST_CHUNKS = 8, LEAST_ROWS = 128 };

struct xent {
    ls_program *p;
    const struct instruction *i;
    ls_value x, w, y;           /* x[R,C], y[R] */
    ls_value denom, dloss;      /* [1] */
    ls_value lse, dx, dw, loss; /* [R], [R,C], [v,C], [1]; LS_NONE: not given or not needed */
    bool known;                 /* lse is an input */
    bool again;                 /* logits are recomputed */
    size_t R, C, v, chunk;
    ls_dtype type, exact, dtype; /* type of x; of logits and statistics; of dlogits */
    int n, rank;
};

/* One chunk in progress. */
struct chunk {
    size_t begin, end;
    ls_value logits, own, all; /* own: this rank's block of `all` */
    struct exchange e;
};

static ls_value vocab_xent_rows(struct xent *z, ls_value x, const struct chunk *c)
{
    return x.id ? ls_slice(z->p, x, 0, c->begin, c->end) : LS_NONE;
}

/* The number of rows per chunk: the same on all ranks, although their shards of the vocabulary differ. */
static size_t chunk_rows(const struct xent *z)
{
    size_t most = instruction_across(z->i)->full / (size_t)z->n + 1, fit = LOGIT_BYTES / (most * sizeof(float));
    size_t chunks = z->R / MAX(fit, (size_t)1) + 1;

    chunks = MAX(chunks, MIN(z->R / LEAST_ROWS, (size_t)MOST_CHUNKS));
    return (z->R + chunks - 1) / chunks;
}

static bool open_xent(struct xent *z, ls_program *p, const struct instruction *i)
{
    const struct value *x = program_value(p, i->in[0]);
    const struct across *a = instruction_across(i);

    *z = (struct xent){ .p = p, .i = i, .w = i->in[1], .y = i->in[2], .denom = i->in[3], .type = x->dtype };
    z->C = x->size[x->ndim - 1];
    z->R = value_count(x) / MAX(z->C, (size_t)1);
    z->v = program_value(p, z->w)->size[0];
    z->n = a->comm ? ls_comm_size(a->comm) : 1;
    z->rank = a->comm ? ls_comm_rank(a->comm) : 0;
    z->exact = z->type == LS_F64 ? LS_F64 : LS_F32;
    z->dtype = z->type == LS_F16 ? LS_F32 : z->type; /* f16 cannot represent gradients that small */
    z->chunk = chunk_rows(z);
    z->x = ls_reshape(p, i->in[0], 2, (size_t[]){ z->R, z->C });
    z->y = ls_reshape(p, z->y, 1, &z->R);
    if (!z->denom.id) {
        z->denom = program_new_value(p, "xent_count", z->exact, 1, (size_t[]){ 1 });
        program_emit(p, OP_XENT_COUNT, NULL, 1, &z->y, 1, &z->denom);
    } else if (program_ok(p) && program_value(p, z->denom)->dtype != z->exact) {
        z->denom = ls_cast(p, z->denom, z->exact);
    }
    return program_ok(p);
}

/* Allocates the buffer for this chunk's statistics of all ranks. */
static void room_for_stats(struct xent *z, struct chunk *c)
{
    size_t n = c->end - c->begin, count = (size_t)z->n * n * 3;
    ls_value flat = z->n == 1 ? program_new_value(z->p, "stats", z->exact, 1, &count) : program_comm_value(z->p, "stats", z->exact, count);

    c->own = ls_reshape(z->p, ls_slice(z->p, flat, 0, (size_t)z->rank * n * 3, ((size_t)z->rank + 1) * n * 3), 2, (size_t[]){ n, 3 });
    c->all = ls_reshape(z->p, flat, 3, (size_t[]){ (size_t)z->n, n, 3 });
}

static void begin_chunk(struct xent *z, struct chunk *c)
{
    ls_program *p = z->p;
    size_t n = c->end - c->begin;

    c->logits = program_new_value(p, "logits", z->exact, 2, (size_t[]){ n, z->v });
    struct cursor before = program_cursor_phase(p, z->again ? LS_PHASE_RECOMPUTE : p->builder.cursor.phase);
    program_emit(p, OP_LINEAR, NULL, 3, (ls_value[]){ vocab_xent_rows(z, z->x, c), z->w, LS_NONE }, 1, &c->logits);
    program_cursor_end(p, before);
    if (z->known) return;
    room_for_stats(z, c);
    program_emit(p, OP_XENT_PART, &z->i->attr, 2, (ls_value[]){ c->logits, vocab_xent_rows(z, z->y, c) }, 1, &c->own);
    if (z->n == 1) return;
    c->e = (struct exchange){ .op = LS_COLLECTIVE_ALL_GATHER,
                              .comm = instruction_across(z->i)->comm,
                              .total = (size_t)z->n * n * 3,
                              .axis = instruction_across(z->i)->axis };
    program_exchange_start(p, &c->e, c->own, c->all);
}

static void gradients(struct xent *z, struct chunk *c, ls_value lse)
{
    ls_program *p = z->p;
    ls_value in[] = { c->logits, vocab_xent_rows(z, z->y, c), lse, z->denom, z->dloss }, x = vocab_xent_rows(z, z->x, c),
             dx = vocab_xent_rows(z, z->dx, c);
    ls_value dl = program_new_value(p, "dlogits", z->dtype, 2, (size_t[]){ c->end - c->begin, z->v });

    program_emit(p, OP_XENT_DLOGITS, &z->i->attr, 5, in, 1, &dl);
    if (dx.id) program_emit(p, OP_LINEAR_DX, NULL, 2, (ls_value[]){ dl, z->w }, 1, &dx);
    if (z->dw.id) program_emit(p, OP_LINEAR_DW, NULL, 2, (ls_value[]){ dl, x }, 1, &z->dw);
}

static void end_chunk(struct xent *z, struct chunk *c)
{
    ls_program *p = z->p;
    ls_value lse = vocab_xent_rows(z, z->lse, c);

    if (!z->known) {
        if (z->n > 1) program_exchange_wait(p, &c->e, c->own, c->all);
        program_emit(p, OP_XENT_COMBINE, NULL, 3, (ls_value[]){ c->all, vocab_xent_rows(z, z->y, c), z->denom }, 2,
                     (ls_value[]){ z->loss, lse });
    }
    if (z->dx.id || z->dw.id) gradients(z, c, lse);
}

static void all_chunks(struct xent *z)
{
    struct op_attr zero = { .scale = { 0 } };
    struct chunk before = { .end = 0 }, c;

    if (z->loss.id) program_emit(z->p, OP_FILL, &zero, 0, NULL, 1, &z->loss);
    for (size_t begin = 0; begin < z->R && program_ok(z->p); begin = c.end) {
        c = (struct chunk){ .begin = begin, .end = MIN(z->R, begin + z->chunk) };
        begin_chunk(z, &c);
        if (before.end && !z->known) end_chunk(z, &before);
        if (z->known) end_chunk(z, &c);
        before = c;
    }
    if (before.end && !z->known) end_chunk(z, &before);
}

void vocab_xent_lower(ls_program *p, const struct instruction *i)
{
    struct xent z;

    if (!open_xent(&z, p, i)) return;
    z.loss = i->out[0];
    z.lse = ls_reshape(p, i->out[1], 1, &z.R);
    all_chunks(&z);
}

void vocab_xent_grad_lower(ls_program *p, const struct instruction *i)
{
    struct xent z;

    if (!open_xent(&z, p, i)) return;
    z.dloss = i->in[5];
    z.known = i->in[4].id != 0;
    z.again = z.known;
    z.lse = z.known ? ls_reshape(p, i->in[4], 1, &z.R) : program_new_value(p, "lse", z.exact, 1, &z.R);
    z.loss = i->out[2];
    if (!z.known && !z.loss.id) z.loss = program_new_value(p, "loss", z.exact, 1, (size_t[]){ 1 });
    z.dx = i->out[0].id ? ls_reshape(p, i->out[0], 2, (size_t[]){ z.R, z.C }) : LS_NONE;
    z.dw = i->out[1];
    all_chunks(&z);
}

ls_value program_vocab_xent(ls_program *p, ls_value x, ls_value w, ls_value targets, ls_value denominator, size_t first,
                            const struct across *a)
{
    struct op_attr attr = { .embedding = { first } };

    if (!program_operand(p, "vocab_xent", "x", x, LS_DTYPES) || !program_operand(p, "vocab_xent", "w", w, program_value(p, x)->dtype))
        return LS_NONE;
    x = ls_contiguous(p, x);
    w = ls_contiguous(p, w);
    const struct value *v = program_value(p, x);
    size_t count = value_count(v) / MAX(v->size[v->ndim - 1], (size_t)1);
    if (program_value(p, w)->ndim != 2 || program_value(p, w)->size[1] != v->size[v->ndim - 1] ||
        first + program_value(p, w)->size[0] > a->full || !targets.id || value_count(program_value(p, targets)) != count)
        return program_fail(p,
                            "vocab_xent: rows [%zu, +%zu) of a vocabulary of %zu, %zu rows of x: the shapes of w and targets do not match",
                            first, program_value(p, w)->size[0], a->full, count);
    ls_dtype exact = v->dtype == LS_F64 ? LS_F64 : LS_F32;
    program_bound(p, targets, INT32_MIN, (int64_t)a->full - 1);
    ls_value loss = program_new_value(p, "loss", exact, 1, (size_t[]){ 1 });
    ls_value lse = program_new_value(p, "lse", exact, 1, &count);
    struct instruction *i =
        program_append(p, OP_VOCAB_XENT, &attr, 4, (ls_value[]){ x, w, targets, denominator }, 2, (ls_value[]){ loss, lse });
    if (!i) return LS_NONE;
    instruction_set_across(i, a);
    return loss;
}
