/* lower.c - the lower pass: expands composite instructions.
 *
 * A MOVE becomes a collective between copies: PACK_BLOCKS makes the data for each rank contiguous, UNPACK_BLOCKS puts the data from each
 * rank in its place. If no dim before the sharded one is larger than 1, the bytes already have that order and nothing is copied.
 *
 *     IDENTITY               y is x
 *     ALL_REDUCE             all_reduce, in x's bytes if nothing reads them later
 *     ALL_GATHER, UNSHARD    all_gather, UNPACK_BLOCKS
 *     REDUCE_SCATTER         PACK_BLOCKS, reduce_scatter
 *     SHARD, SHARD_PARTIAL   a copy of the shard, which is two chunks with zigzag
 *     ALL_TO_ALL             PACK_BLOCKS along the dim that will be sharded, all_to_all, UNPACK_BLOCKS along the other
 *
 * A linear layer followed by ALL_REDUCE may be split into several matmuls of some rows each: the reduction of one overlaps with the next.
 *
 * A value that lives in one segment and is sent by such a collective gets role COMMUNICATION: peers read it in place, without another
 * copy. Start and wait are emitted next to each other; overlap.c moves them apart.
 */
#include "ir/distributed_ops.h"

#include <string.h>
#include "base/mem.h"
#include "ir/op_info.h"

struct lower {
    ls_program *p;
    int n;             /* the number of values when the pass began */
    int *first, *last; /* by root: positions of the first and last old instruction that touches it; last < 0: none */
    int begin, end;    /* first position and end of this segment */
    int at;            /* position of this instruction */
};

/* ---- which instructions touch a value ---- */

static void lower_touch(struct lower *l, ls_value x, int at)
{
    int root = l->p->values[x.id].root;

    if (l->last[root] < 0) l->first[root] = at;
    l->last[root] = at;
}

static ls_status find_touched(struct lower *l)
{
    int at = 0;

    l->first = mem_array(MEM_OTHER, (size_t)l->n, sizeof *l->first);
    l->last = mem_array(MEM_OTHER, (size_t)l->n, sizeof *l->last);
    if (!l->first || !l->last) return LS_ENOMEM;
    for (int v = 0; v < l->n; v++) l->first[v] = l->last[v] = -1;
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < l->p->list[s].n; n++, at++) {
            const struct instruction *i = &l->p->list[s].at[n];

            for (int k = 0; !instruction_is_view(i) && k < i->nin; k++) lower_touch(l, i->in[k], at);
            for (int k = 0; !instruction_is_view(i) && k < i->nout; k++) lower_touch(l, i->out[k], at);
        }
    return LS_OK;
}

static bool lower_is_plain(const ls_program *p, ls_value x)
{
    const struct value *root = &p->values[p->values[x.id].root];

    return (root->role == LS_ROLE_ACTIVATION || root->role == LS_ROLE_COMMUNICATION) && !root->keep && !root->tensor;
}

/* True if all instructions that touch x's bytes are in this segment. */
static bool stays_here(const struct lower *l, ls_value x)
{
    int root = l->p->values[x.id].root;

    return root < l->n && l->first[root] >= l->begin && l->last[root] < l->end;
}

/* x will be communicated: places its bytes where the transport can reach them, if possible. */
static void wire(struct lower *l, ls_value x)
{
    struct value *v = program_value(l->p, x);

    if (v->root != x.id || v->role != LS_ROLE_ACTIVATION || !lower_is_plain(l->p, x) || !stays_here(l, x)) return;
    v->role = LS_ROLE_COMMUNICATION;
}

/* Makes y a view of x; both are contiguous. */
static void become_view(struct lower *l, ls_value y, ls_value x)
{
    struct value *to = program_value(l->p, x);

    if (to->root < l->n && y.id < l->n) {
        l->first[to->root] = MIN(l->first[to->root], l->first[y.id]);
        l->last[to->root] = MAX(l->last[to->root], l->last[y.id]);
    }
    for (int v = 1; v < l->p->nvalues; v++)
        if (l->p->values[v].root == y.id) {
            l->p->values[v].root = to->root;
            l->p->values[v].offset += to->offset;
        }
    program_value(l->p, y)->bytes = 0;
}

static void emit_view(ls_program *p, ls_value y, ls_value x)
{
    struct instruction *i = program_append(p, OP_VIEW, NULL, 1, &x, 1, &y);

    if (i) instruction_set_view(i, &(struct view_rule){ VIEW_RESHAPE, 0, 0, 0 });
}

/* Values in flight belong to one segment. */
static bool can_become_view(const struct lower *l, ls_value y, ls_value x)
{
    const struct value *v = &l->p->values[y.id], *from = &l->p->values[x.id];

    if (l->p->values[from->root].role == LS_ROLE_COMMUNICATION && !stays_here(l, y)) return false;
    return v->root == y.id && v->role == LS_ROLE_ACTIVATION && !v->keep && value_is_contiguous(v) && value_is_contiguous(from);
}

/* ---- copies ---- */

struct move_dim {
    int dim;
    size_t full, grain;
    int zigzag;
};

static void lower_copy(ls_program *p, ls_value x, ls_value y) { program_emit(p, OP_COPY, NULL, 1, &x, 1, &y); }

/* True if blocks along this dim are contiguous already. */
static bool leads(const ls_program *p, ls_value x, int dim)
{
    for (int d = 0; d < dim; d++)
        if (p->values[x.id].size[d] != 1) return false;
    return value_is_contiguous(&p->values[x.id]);
}

static ls_value on_the_wire(ls_program *p, const char *what, ls_value like)
{
    const struct value *v = program_value(p, like);

    return program_comm_value(p, what, v->dtype, value_count(v));
}

static struct op_attr lower_blocks_of(const struct move *m, const struct move_dim *c)
{
    return (struct op_attr){ .blocks = { c->dim, ls_comm_size(m->comm), c->grain } };
}

/* x packed by destination: rank 0's block, rank 1's block, .. */
static ls_value lower_pack(struct lower *l, const struct move *m, const struct move_dim *c, ls_value x)
{
    struct op_attr attr = lower_blocks_of(m, c);

    if (leads(l->p, x, c->dim)) {
        wire(l, x);
        return x;
    }
    ls_value y = on_the_wire(l->p, "blocks", x);
    return y.id ? program_emit(l->p, OP_PACK_BLOCKS, &attr, 1, &x, 1, &y) : LS_NONE;
}

/* The buffer that receives y's blocks from rank 0, rank 1, ..; lower_unpack() then copies them to their places. */
static ls_value received(ls_program *p, const struct move_dim *c, ls_value y)
{
    const struct value *v = program_value(p, y);
    size_t count = value_count(v);

    return leads(p, y, c->dim) && !c->zigzag ? y : program_new_value(p, "received", v->dtype, 1, &count);
}

static void lower_unpack(struct lower *l, const struct move *m, const struct move_dim *c, ls_value flat, ls_value y)
{
    struct op_attr attr = lower_blocks_of(m, c);

    if (flat.id && flat.id != y.id) program_emit(l->p, OP_UNPACK_BLOCKS, &attr, 1, &flat, 1, &y);
}

/* ---- exchanges ---- */

static void lower_exchange(ls_program *p, const struct move *m, ls_collective op, size_t *counts, ls_value in, ls_value out)
{
    struct exchange e = { .op = op, .comm = m->comm, .redop = m->redop, .counts = counts, .axis = m->axis, .floating = m->floating };

    if (op == LS_COLLECTIVE_ALL_REDUCE && in.id) e.total = value_count(program_value(p, in));
    if (op == LS_COLLECTIVE_ALL_TO_ALL && counts) e.recv_counts = counts + ls_comm_size(m->comm);
    program_exchange_start(p, &e, in, out);
    program_exchange_wait(p, &e, in, out);
}

static size_t chunk_size(const struct move_dim *c, int k, int n)
{
    return shard_begin(c->full, c->grain, k + 1, n) - shard_begin(c->full, c->grain, k, n);
}

static size_t part(const struct move_dim *c, int r, int n)
{
    return c->zigzag ? chunk_size(c, r, 2 * n) + chunk_size(c, 2 * n - 1 - r, 2 * n) : chunk_size(c, r, n);
}

/* The number of elements of each rank's shard of `full`, sharded as c says. */
static size_t *lower_parts(ls_program *p, const struct move *m, const struct move_dim *c, ls_value full)
{
    size_t *counts = program_counts(p, ls_comm_size(m->comm));

    for (int r = 0; counts && r < ls_comm_size(m->comm); r++)
        counts[r] = c->full ? value_count(program_value(p, full)) / c->full * part(c, r, ls_comm_size(m->comm)) : 0;
    return counts;
}

/* ---- one function per kind of move ---- */

static void lower_identity(struct lower *l, const struct instruction *i)
{
    ls_value x = i->in[0], y = i->out[0];

    if (!can_become_view(l, y, x)) {
        lower_copy(l->p, x, y);
        return;
    }
    become_view(l, y, x);
    emit_view(l->p, y, x);
}

/* Rows [begin, end) of x, a row being its last dim. */
static ls_value some_rows(ls_program *p, ls_value x, size_t begin, size_t end)
{
    const struct value *v = program_value(p, x);
    size_t size[2] = { end - begin, v->size[v->ndim - 1] };

    return program_view(p, x, (struct view_rule){ VIEW_SLICE, 0, 0, begin }, 2, size, (ptrdiff_t[]){ (ptrdiff_t)size[1], 1 },
                        (ptrdiff_t)(begin * size[1]));
}

/* Splits the matmul that makes x, just emitted, into row chunks, each with its own reduction; false: not possible. */
static bool reduce_by_rows(struct lower *l, const struct instruction *i, ls_value x)
{
    const struct move *m = instruction_move(i);
    struct list *list = &l->p->list[l->p->builder.cursor.segment];
    size_t n = m->floating ? (size_t)m->chunks : 1, rows = value_count(program_value(l->p, x));

    if (!program_ok(l->p) || n < 2 || !list->n) return false;
    struct instruction product = list->at[list->n - 1];
    rows /= MAX(program_value(l->p, x)->size[program_value(l->p, x)->ndim - 1], (size_t)1);
    if (!(op_info(product.op)->traits & TRAIT_ROW_CHUNKS) || product.out[0].id != x.id || product.in[2].id || rows < n ||
        !value_is_contiguous(program_value(l->p, product.in[0])))
        return false;
    list->n--;
    for (size_t k = 0; k < n && program_ok(l->p); k++) {
        ls_value in[] = { some_rows(l->p, product.in[0], rows * k / n, rows * (k + 1) / n), product.in[1], LS_NONE };
        ls_value y = some_rows(l->p, x, rows * k / n, rows * (k + 1) / n);
        struct cursor before = program_cursor_phase(l->p, product.phase);

        program_emit(l->p, product.op, &product.attr, 3, in, 1, &y);
        program_cursor_end(l->p, before);
        lower_exchange(l->p, m, LS_COLLECTIVE_ALL_REDUCE, NULL, y, y);
    }
    return true;
}

static void lower_reduce(struct lower *l, const struct instruction *i)
{
    const struct move *m = instruction_move(i);
    ls_value x = i->in[0], y = i->out[0];
    int root = l->p->values[x.id].root;
    bool mine = root < l->n && l->last[root] <= l->at && lower_is_plain(l->p, x);

    if (mine && can_become_view(l, y, x)) {
        become_view(l, y, x);
        wire(l, x);
        if (!reduce_by_rows(l, i, x)) lower_exchange(l->p, m, LS_COLLECTIVE_ALL_REDUCE, NULL, x, x);
        emit_view(l->p, y, x);
        return;
    }
    x = ls_contiguous(l->p, x);
    lower_exchange(l->p, m, LS_COLLECTIVE_ALL_REDUCE, NULL, x, y);
}

/* Copies the two chunks of each rank's shard from a buffer of all shards to their places in y. */
static void place_zigzag(ls_program *p, const struct move_dim *c, int n, ls_value flat, ls_value y)
{
    struct value v = *program_value(p, y);
    size_t rest = c->full ? value_count(&v) / c->full : 0, at = 0;

    for (int r = 0; r < n && program_ok(p); r++) {
        int chunk[2] = { r, 2 * n - 1 - r };
        size_t begin = 0;
        ptrdiff_t stride[LS_DIMS];

        v.size[c->dim] = part(c, r, n);
        stride[v.ndim - 1] = 1;
        for (int d = v.ndim - 1; d > 0; d--) stride[d - 1] = stride[d] * (ptrdiff_t)v.size[d];
        ls_value own = program_view(p, flat, (struct view_rule){ VIEW_SLICE, 0, 0, at }, v.ndim, v.size, stride, (ptrdiff_t)at);
        for (int k = 0; k < 2; k++) {
            size_t first = shard_begin(c->full, c->grain, chunk[k], 2 * n), size = chunk_size(c, chunk[k], 2 * n);

            if (size) lower_copy(p, ls_slice(p, own, c->dim, begin, begin + size), ls_slice(p, y, c->dim, first, first + size));
            begin += size;
        }
        at += rest * part(c, r, n);
    }
}

static void lower_gather(struct lower *l, const struct instruction *i)
{
    const struct move *m = instruction_move(i);
    struct move_dim c = { m->dim, m->full, m->grain, m->zigzag };
    ls_value x = ls_contiguous(l->p, i->in[0]), y = i->out[0], flat = received(l->p, &c, y);
    if (!x.id || !flat.id) return;
    wire(l, x);
    lower_exchange(l->p, m, LS_COLLECTIVE_ALL_GATHER, lower_parts(l->p, m, &c, y), x, flat);
    if (c.zigzag)
        place_zigzag(l->p, &c, ls_comm_size(m->comm), flat, y);
    else
        lower_unpack(l, m, &c, flat, y);
}

static void scatter(struct lower *l, const struct instruction *i)
{
    const struct move *m = instruction_move(i);
    struct move_dim c = { m->dim, m->full, m->grain, 0 };
    ls_value x = i->in[0], flat = lower_pack(l, m, &c, x);

    if (flat.id) lower_exchange(l->p, m, LS_COLLECTIVE_REDUCE_SCATTER, lower_parts(l->p, m, &c, x), flat, i->out[0]);
}

static ls_value lower_chunk(ls_program *p, const struct move *m, ls_value x, int k, int chunks)
{
    return ls_slice(p, x, m->dim, shard_begin(m->full, m->grain, k, chunks), shard_begin(m->full, m->grain, k + 1, chunks));
}

static void lower_shard(struct lower *l, const struct instruction *i)
{
    const struct move *m = instruction_move(i);
    struct op_attr attr = { .concat = { m->dim } };
    int r = ls_comm_rank(m->comm), n = ls_comm_size(m->comm);
    ls_value two[2];

    if (!m->zigzag) {
        lower_copy(l->p, lower_chunk(l->p, m, i->in[0], r, n), i->out[0]);
        return;
    }
    two[0] = lower_chunk(l->p, m, i->in[0], r, 2 * n);
    two[1] = lower_chunk(l->p, m, i->in[0], 2 * n - 1 - r, 2 * n);
    program_emit(l->p, OP_CONCAT, &attr, 2, two, 1, i->out);
}

static void lower_all_to_all(struct lower *l, const struct instruction *i)
{
    const struct move *m = instruction_move(i);
    struct move_dim first = { m->dim, m->full, m->grain, 0 }, second = { m->dim2, m->full2, m->grain2, 0 };
    int r = ls_comm_rank(m->comm), n = ls_comm_size(m->comm);
    size_t *counts = program_counts(l->p, 2 * n);

    if (!counts) return;
    ls_value to = lower_pack(l, m, &second, i->in[0]);
    ls_value from = received(l->p, &first, i->out[0]);
    size_t rest = m->full && part(&second, r, n) ? value_count(program_value(l->p, i->out[0])) / m->full / part(&second, r, n) : 0;
    if (!rest && part(&first, r, n) && m->full2) rest = value_count(program_value(l->p, i->in[0])) / m->full2 / part(&first, r, n);
    for (int s = 0; s < n; s++) {
        counts[s] = rest * part(&first, r, n) * part(&second, s, n);
        counts[n + s] = rest * part(&first, s, n) * part(&second, r, n);
    }
    lower_exchange(l->p, m, LS_COLLECTIVE_ALL_TO_ALL, counts, to, from);
    lower_unpack(l, m, &first, from, i->out[0]);
}

static void emit_move(struct lower *l, const struct instruction *i)
{
    switch (instruction_move(i)->kind) {
    case MOVE_IDENTITY: lower_identity(l, i); break;
    case MOVE_ALL_REDUCE: lower_reduce(l, i); break;
    case MOVE_ALL_GATHER:
    case MOVE_UNSHARD: lower_gather(l, i); break;
    case MOVE_REDUCE_SCATTER: scatter(l, i); break;
    case MOVE_SHARD:
    case MOVE_SHARD_PARTIAL: lower_shard(l, i); break;
    case MOVE_ALL_TO_ALL: lower_all_to_all(l, i); break;
    }
}

/* ---- the table ---- */

static void lower_move(struct lower *l, const struct instruction *i)
{
    struct cursor before = program_cursor_phase(l->p, LS_PHASE_COMMUNICATE);

    emit_move(l, i);
    program_cursor_end(l->p, before);
}

static void lower_ring(struct lower *l, const struct instruction *i) { ring_lower(l->p, i); }
static void lower_ring_grad(struct lower *l, const struct instruction *i) { ring_grad_lower(l->p, i); }
static void lower_vocab_xent(struct lower *l, const struct instruction *i) { vocab_xent_lower(l->p, i); }
static void lower_vocab_xent_grad(struct lower *l, const struct instruction *i) { vocab_xent_grad_lower(l->p, i); }

static void lower_shuffle(struct lower *l, const struct instruction *i)
{
    if (instruction_shuffle(i)->comm)
        program_shuffle_lower(l->p, i);
    else
        program_push(l->p, i);
}

typedef void lower_fn(struct lower *l, const struct instruction *i);

/* NULL for an op that is not lowered. */
static lower_fn *lowering_of(int op)
{
#define lower_none NULL
#define LOWER_ROW(id, name, shapes, inplace, gradient, to, flops, bytes, recompute, sharding, check, traits, time, stage, payload, run, \
                  lowering)                                                                                                             \
    [OP_##id] = lower_##lowering,
    static lower_fn *const lowerings[PROGRAM_OPS] = { OP_MAP(LOWER_ROW) };
#undef LOWER_ROW
#undef lower_none

    return lowerings[op];
}

/* ---- the pass ---- */

static void expand(struct lower *l, const struct instruction *i)
{
    struct cursor before = program_cursor_like(l->p, i);

    lowering_of(i->op)(l, i);
    program_cursor_end(l->p, before);
}

static void lower_segment(struct lower *l, enum segment s)
{
    struct list old = program_take(l->p, s);
    struct cursor before = program_cursor_segment(l->p, s, LS_PHASE_FORWARD);

    l->begin = l->at;
    l->end = l->at + old.n;
    for (int n = 0; n < old.n && program_ok(l->p); n++, l->at++)
        if (lowering_of(old.at[n].op))
            expand(l, &old.at[n]);
        else
            program_push(l->p, &old.at[n]);
    program_cursor_end(l->p, before);
    list_free(&old);
}

static bool is_low(const ls_program *p)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (lowering_of(p->list[s].at[n].op)) return false;
    return true;
}

ls_status lower_pass(ls_program *p)
{
    struct lower l = { .p = p, .n = p->nvalues };
    ls_status st = LS_OK;

    if (is_low(p)) return LS_OK;
    st = find_touched(&l);
    for (int s = 0; s < SEGMENTS && st == LS_OK; s++) lower_segment(&l, (enum segment)s);
    mem_free(l.first);
    mem_free(l.last);
    return st < 0 ? st : ls_program_status(p);
}
