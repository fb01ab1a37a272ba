/* memory.c - the memory pass: the lifetime of each value and its offset in an arena: one for activations, one for communication.
 *
 * Positions number the instructions of all segments in order. A value lives from its first writer to its last reader, where accesses to
 * views count for their root; inputs and outputs live throughout. A result reuses the bytes of an operand that dies at the same
 * instruction if the kernel allows it. A kernel's scratch lives at its position, or while the instructions run that may be one launch with
 * it (runtime/multi_launch.h). The buffers of a collective live from its start to
 * its wait, which name the same values. Offsets: the largest buffer first, each at the lowest offset that is free for its whole lifetime
 * (greedy by size: Pisarchyk and Lee 2020); ties are tried in order of beginning and in reverse, and the smaller result is used.
 * arena_bytes is what will be allocated; live_peak is its lower bound. Where a program loads from files or saves to them, the buffers of
 * the communication arena begin at pages, so that the disk can access them directly (runtime/backing.c).
 *
 * With slots, micro-batches run their segments alternately: inputs, outputs and values that outlive a segment are in an arena of their own,
 * one per slot; values within one segment are in the arena that all slots share. The bytes of a value that is in flight between segments
 * are not shared with any other.
 */
#include "ir/op_info.h"

#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "runtime/multi_launch.h"
#include "runtime/store.h"

#define ALIGN 64

struct buffer {
    size_t bytes, at;
    int first, last, value;
    struct instruction *scratch_of;
    size_t before; /* where the first order placed it */
};
/* What a placed buffer occupies. */
struct box {
    size_t at, end;
    int first, last;
};
struct layout {
    struct buffer *buffer;
    int n;
    struct box *placed; /* [nplaced], by offset */
    int nplaced;
};

/* True for bytes that belong to the program, not to the store or the caller. */
static bool is_ours(const struct value *v)
{
    return v->role == LS_ROLE_ACTIVATION || v->role == LS_ROLE_INPUT || v->role == LS_ROLE_OUTPUT || v->role == LS_ROLE_COMMUNICATION;
}

static bool in_arena(const struct value *v, int id, enum arena a) { return v->root == id && v->first >= 0 && is_ours(v) && v->arena == a; }

int program_slots(const ls_program *p) { return MAX(p->arguments.options.slots, 1); }

size_t program_activation_bytes(const ls_program *p)
{
    return p->results.arena_bytes[ARENA_ACTIVATIONS] + (size_t)program_slots(p) * p->results.arena_bytes[ARENA_SLOT];
}

static void memory_touch(ls_program *p, ls_value v, int at)
{
    if (!v.id) return;
    struct value *root = &p->values[p->values[v.id].root];
    if (root->first < 0) root->first = at;
    root->last = MAX(root->last, at);
    root->used = true;
}

static bool crosses(const ls_program *p, const struct value *v)
{
    int end = 0;

    for (int s = 0; s < SEGMENTS; s++) {
        end += p->list[s].n;
        if (v->first < end) return v->last >= end;
    }
    return false;
}

/* Chooses each value's arena; at: the end of all positions. */
static void choose_arenas(ls_program *p, int at)
{
    bool slots = p->arguments.options.slots > 0;

    for (int v = 1; v < p->nvalues; v++) {
        struct value *x = &p->values[v];
        bool lasts = slots && is_ours(x) && x->first >= 0 && (x->keep || x->role == LS_ROLE_INPUT || crosses(p, x));

        x->arena = x->role == LS_ROLE_COMMUNICATION ? ARENA_COMMUNICATION : lasts ? ARENA_SLOT : ARENA_ACTIVATIONS;
        if (x->role == LS_ROLE_COMMUNICATION && lasts) {
            x->first = 0;
            x->last = at;
        }
    }
}

/* With retain, what the backward reads of the forward lives until all gradients are made, so that it can run again. */
static void retain(ls_program *p)
{
    int forward = p->list[SEG_FORWARD].n, end = forward + p->list[SEG_BACKWARD].n + p->list[SEG_WEIGHTS].n;

    for (int v = 1; v < p->nvalues; v++) {
        struct value *x = &p->values[v];

        if (x->first >= 0 && x->first < forward && x->last >= forward) x->last = MAX(x->last, end);
    }
}

/* Fills first and last of every root; returns the number of positions. */
static int lifetimes(ls_program *p)
{
    int at = 0;

    for (int v = 1; v < p->nvalues; v++) {
        p->values[v].first = p->values[v].last = -1;
        p->values[v].shares = 0;
        p->values[v].used = false;
    }
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, at++) {
            const struct instruction *i = &p->list[s].at[n];

            for (int k = 0; !instruction_is_view(i) && k < i->nin; k++) memory_touch(p, i->in[k], at);
            for (int k = 0; !instruction_is_view(i) && k < i->nout; k++) memory_touch(p, i->out[k], at);
        }
    for (int v = 1; v < p->nvalues; v++) {
        struct value *x = &p->values[v];

        if (x->role == LS_ROLE_INPUT || (x->keep && x->first >= 0)) {
            x->first = 0;
            x->last = at;
        }
    }
    if (p->arguments.options.retain) retain(p);
    choose_arenas(p, at);
    return at;
}

/* True if out[0] of i may reuse the bytes of in[k], which all die here. */
static bool can_take(const ls_program *p, const struct instruction *i, int k, int at)
{
    const struct value *in = &p->values[i->in[k].id], *out = &p->values[i->out[0].id];
    const struct value *root = &p->values[in->root];

    if (!i->in[k].id || !i->out[0].id || out->root != i->out[0].id || out->first != at ||
        (out->role != LS_ROLE_ACTIVATION && out->role != LS_ROLE_OUTPUT))
        return false;
    if (root->role != LS_ROLE_ACTIVATION || root->tensor || root->keep || root->last != at || root->bytes != out->bytes ||
        (root->arena != out->arena && root->arena != ARENA_SLOT) || in->dtype != out->dtype || in->offset || !value_is_contiguous(in) ||
        value_count(in) * ls_dtype_bytes(in->dtype) != root->bytes)
        return false;
    for (int j = 0; j < i->nin; j++)
        if (j != k && i->in[j].id && p->values[i->in[j].id].root == in->root) return false;
    return true;
}

static void share_in_place(ls_program *p)
{
    int at = 0;

    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, at++) {
            const struct instruction *i = &p->list[s].at[n];
            unsigned mask = op_info(i->op)->inplace;

            for (int k = 0; k < i->nin && mask >> k; k++)
                if ((mask >> k & 1) && can_take(p, i, k, at)) {
                    p->values[i->out[0].id].shares = p->values[i->in[k].id].root;
                    p->values[i->out[0].id].arena = p->values[p->values[i->in[k].id].root].arena;
                    break;
                }
        }
}

/* The value whose buffer v lives in. */
static int owner(const ls_program *p, int v)
{
    while (p->values[v].shares) v = p->values[v].shares;
    return v;
}

static size_t rounded_to(size_t bytes, size_t align) { return (bytes + align - 1) / align * align; }
static size_t memory_rounded(size_t bytes) { return rounded_to(bytes, ALIGN); }

/* True if the program transfers bytes of a file. */
static bool uses_files(const ls_program *p)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            const struct instruction *i = &p->list[s].at[n];

            if ((instruction_is_load(i) || instruction_is_save(i)) &&
                store_unit_at(p->store, instruction_state(i)->unit)->backing[instruction_state(i)->kind] == BACKING_FILE)
                return true;
        }
    return false;
}

/* first: the position of the segment's first instruction. */
static void collect_scratch(ls_program *p, struct layout *l, enum segment s, int first)
{
    for (int n = 0, end; n < p->list[s].n; n = end) {
        end = multi_reach(p, s, n);
        for (int k = n; k < end; k++) {
            struct instruction *i = &p->list[s].at[k];

            if (i->scratch_bytes)
                l->buffer[l->n++] = (struct buffer){ memory_rounded(i->scratch_bytes), 0, first + n, first + end - 1, 0, i, 0 };
        }
    }
}

static ls_status memory_collect(ls_program *p, struct layout *l, enum arena a)
{
    int at = 0, most = p->nvalues;

    for (int s = 0; s < SEGMENTS; s++) most += p->list[s].n;
    l->buffer = mem_array(MEM_OTHER, (size_t)most, sizeof *l->buffer);
    l->placed = mem_array(MEM_OTHER, (size_t)most, sizeof *l->placed);
    if (!l->buffer || !l->placed) return LS_ENOMEM;
    for (int v = 1; v < p->nvalues; v++) {
        const struct value *x = &p->values[v];

        if (in_arena(x, v, a) && !x->shares)
            l->buffer[l->n++] = (struct buffer){
                rounded_to(x->bytes, a == ARENA_COMMUNICATION ? p->results.comm_align : ALIGN), 0, x->first, x->last, v, NULL, 0
            };
    }
    for (int b = 0; b < l->n; b++) /* a shared buffer lives until its last holder dies */
        p->values[l->buffer[b].value].at = (size_t)b;
    for (int v = 1; v < p->nvalues; v++)
        if (p->values[v].shares && p->values[v].arena == a) {
            struct buffer *b = &l->buffer[p->values[owner(p, v)].at];

            b->last = MAX(b->last, p->values[v].last);
        }
    for (int s = 0; s < SEGMENTS && a == ARENA_ACTIVATIONS; s++) {
        collect_scratch(p, l, (enum segment)s, at);
        at += p->list[s].n;
    }
    return LS_OK;
}

static int by_size(const void *a, const void *b)
{
    const struct buffer *x = a, *y = b;

    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->first != y->first ? (x->first > y->first) - (x->first < y->first) : (x->value > y->value) - (x->value < y->value);
}

/* The lowest gap among placed buffers (sorted by offset) that is free during b's lifetime. */
static void place(struct layout *l, struct buffer *b)
{
    size_t at = 0;
    int k;

    for (k = 0; k < l->nplaced; k++) {
        const struct box *q = &l->placed[k];

        if (q->last < b->first || b->last < q->first) continue;
        if (at + b->bytes <= q->at) break;
        at = MAX(at, q->end);
    }
    b->at = at;
    for (k = l->nplaced++; k > 0 && l->placed[k - 1].at > at; k--) continue;
    memmove(&l->placed[k + 1], &l->placed[k], (size_t)(l->nplaced - 1 - k) * sizeof *l->placed);
    l->placed[k] = (struct box){ at, at + b->bytes, b->first, b->last };
}

/* Adds the bytes in use at each position, and `times` the largest of them. */
static ls_status live_peak(ls_program *p, const struct layout *l, int positions, int times)
{
    ptrdiff_t *change = mem_array(MEM_OTHER, (size_t)positions + 2, sizeof *change), live = 0, most = 0;

    if (!change) return LS_ENOMEM;
    for (int b = 0; b < l->n; b++) {
        change[l->buffer[b].first] += (ptrdiff_t)l->buffer[b].bytes;
        change[l->buffer[b].last + 1] -= (ptrdiff_t)l->buffer[b].bytes;
    }
    for (int s = 0, at = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, at++) {
            live += change[at];
            p->list[s].at[n].live += (size_t)live;
            most = MAX(most, live);
        }
    p->results.live_peak += (size_t)times * (size_t)most;
    mem_free(change);
    return LS_OK;
}

/* Ties: the last to begin comes first. */
static int by_size_late(const void *a, const void *b)
{
    const struct buffer *x = a, *y = b;

    return x->bytes != y->bytes ? by_size(a, b) : by_size(b, a);
}

static size_t place_all(struct layout *l, int (*order)(const void *, const void *))
{
    size_t bytes = 0;

    qsort(l->buffer, (size_t)l->n, sizeof *l->buffer, order);
    l->nplaced = 0;
    for (int b = 0; b < l->n; b++) {
        place(l, &l->buffer[b]);
        bytes = MAX(bytes, l->buffer[b].at + l->buffer[b].bytes);
    }
    return bytes;
}

/* Assigns offsets to everything in one arena. */
static ls_status lay_out(ls_program *p, enum arena a, int positions)
{
    struct layout l = { 0 };
    ls_status st = memory_collect(p, &l, a);

    if (st == LS_OK) {
        size_t early = place_all(&l, by_size);

        for (int b = 0; b < l.n; b++) l.buffer[b].before = l.buffer[b].at;
        size_t late = place_all(&l, by_size_late);
        for (int b = 0; b < l.n && early <= late; b++) l.buffer[b].at = l.buffer[b].before;
        p->results.arena_bytes[a] = MIN(early, late);
        if (a == ARENA_COMMUNICATION && p->results.arena_bytes[a])
            p->results.arena_bytes[a] += p->results.comm_align - ALIGN; /* its beginning is aligned, too */
        for (int b = 0; b < l.n; b++)
            if (l.buffer[b].scratch_of)
                l.buffer[b].scratch_of->scratch_at = l.buffer[b].at;
            else
                p->values[l.buffer[b].value].at = l.buffer[b].at;
        if (a != ARENA_COMMUNICATION) st = live_peak(p, &l, positions, a == ARENA_SLOT ? program_slots(p) : 1);
    }
    mem_free(l.buffer);
    mem_free(l.placed);
    return st;
}

ls_status memory_pass(ls_program *p)
{
    int positions = lifetimes(p);

    share_in_place(p);
    p->results.comm_align = uses_files(p) ? LS_PAGE : ALIGN;
    p->results.live_peak = 0;
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) p->list[s].at[n].live = 0;
    for (int a = 0; a < ARENAS; a++) LS_TRY(lay_out(p, (enum arena)a, positions));
    for (int v = 1; v < p->nvalues; v++)
        if (p->values[v].shares) p->values[v].at = p->values[owner(p, v)].at;
    return LS_OK;
}
