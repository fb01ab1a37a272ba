/* recompute.c - the recompute pass: repeats part of a unit's forward before its backward.
 *
 * A unit is one block, or k consecutive blocks. A value that a backward instruction reads is recomputed if an instruction of the unit
 * computed it, unless it must be kept anyway, because the next unit reads it or it is an output. Recomputing it may need other values of
 * the unit, which are recomputed in turn. Clones are placed before the first backward instruction that reads one of them, in forward
 * order, and every backward reader uses the clone; the original's lifetime then ends in the forward. Random masks are functions of their
 * key, so a clone has the same bits.
 *
 * Within a budget of bytes the first n blocks are recomputed, the smallest n with which the arena fits: found by bisection, since each
 * further block leaves less to keep. Only at the last blocks the arena can grow again: the backward begins with them, so recomputing them
 * frees nothing.
 *
 * Selective recomputation repeats only ops whose inputs are kept anyway and whose work is a pass over memory (norms, activations): most of
 * the saving for little work (Korthikanti et al. 2022).
 */
#include "ir/op_info.h"

#include <string.h>
#include "base/fewest.h"
#include "base/mem.h"
#include "base/text.h"

struct again {
    ls_program *p;
    const int *unit_of; /* unit by block; 0: not recomputed */
    int unit;
    bool selective;
    int n;           /* the number of values when the pass began */
    int *maker;      /* by value id: forward instruction that writes it, + 1; 0: none */
    bool *leaves;    /* by root id: read by another unit's forward, or kept */
    ls_value *clone; /* by value id: the recomputed value */
    bool *made;      /* by value id: must be recomputed, possibly although it also leaves the unit */
};

/* Shards over tp are gathered again, as in sequence parallelism: only the shard is kept. Over cp a rank may need the gathered value, or a
 * concatenation of it, for its gradients, and all ranks must gather alike. */
static bool is_cheap(const struct instruction *i)
{
    enum recompute_class class = op_info(i->op)->recompute;

    return class == RECOMPUTE_CHEAP || (instruction_is_move(i, MOVE_ALL_GATHER) && instruction_move(i)->axis == LS_AXIS_TP);
}

/* True for ops whose output is the input's bytes or a part of them. */
static bool moves_nothing(const struct instruction *i)
{
    return op_info(i->op)->recompute == RECOMPUTE_SAME || instruction_is_move(i, MOVE_IDENTITY) || instruction_is_move(i, MOVE_SHARD) ||
           instruction_is_move(i, MOVE_SHARD_PARTIAL);
}

static bool is_once(int op) { return op_info(op)->recompute == RECOMPUTE_ONCE; }

/* A value that must be computed only once is also reduced only once. */
static bool never_again(const struct again *a, const struct instruction *i)
{
    int maker = instruction_is_move(i, MOVE_ALL_REDUCE) && i->in[0].id < a->n ? a->maker[i->in[0].id] : 0;

    return is_once(i->op) || (maker && is_once(a->p->list[SEG_FORWARD].at[maker - 1].op));
}

static bool in_unit(const struct again *a, int block) { return block && a->unit_of[block] == a->unit; }

/* Marks v and the values needed to recompute it. */
static bool want(struct again *a, ls_value v)
{
    if (!v.id || v.id >= a->n || !a->maker[v.id]) return false;
    const struct instruction *i = &a->p->list[SEG_FORWARD].at[a->maker[v.id] - 1];
    if (never_again(a, i)) return false;
    if (!in_unit(a, i->block) || a->leaves[a->p->values[v.id].root]) return false;
    if (a->made[v.id]) return true;
    if (moves_nothing(i)) return a->made[v.id] = want(a, i->in[0]);
    if (a->selective && !is_cheap(i)) return false;
    for (int k = 0; k < i->nout; k++)
        if (i->out[k].id) a->made[i->out[k].id] = true;
    for (int k = 0; k < i->nin; k++) want(a, i->in[k]);
    return true;
}

/* The position of the first backward reader of a value of this unit; -1 if nothing is recomputed. */
static int recompute_choose(struct again *a)
{
    const struct list *back = &a->p->list[SEG_BACKWARD];
    int first = -1;

    for (int n = 0; n < back->n; n++)
        for (int k = 0; k < back->at[n].nin; k++)
            if (want(a, back->at[n].in[k]) && first < 0) first = n;
    return first;
}

static void find_leaving(struct again *a)
{
    const struct list *l = &a->p->list[SEG_FORWARD];

    memset(a->leaves, 0, (size_t)a->n * sizeof *a->leaves);
    for (int v = 1; v < a->n; v++) a->leaves[v] = a->p->values[v].keep;
    for (int n = 0; n < l->n; n++)
        for (int k = 0; k < l->at[n].nin; k++)
            if (l->at[n].in[k].id && !in_unit(a, l->at[n].block)) a->leaves[a->p->values[l->at[n].in[k].id].root] = true;
}

static ls_value clone_value(struct again *a, ls_value v)
{
    struct value x = *program_value(a->p, v);

    if (!v.id || a->clone[v.id].id) return a->clone[v.id]; /* a "+=" value has several writers */
    ls_value c = program_new_value(a->p, "again", x.dtype, x.ndim, x.size);
    if (c.id) {
        struct value *y = program_value(a->p, c);

        memcpy(y->stride, x.stride, sizeof x.stride);
        y->offset = x.offset;
        if (x.root != v.id) {
            y->root = a->clone[x.root].id ? a->clone[x.root].id : x.root;
            y->bytes = 0;
        }
    }
    return a->clone[v.id] = c;
}

static ls_value mapped(const struct again *a, ls_value v)
{
    bool again = v.id && v.id < a->n && a->made[v.id] && !a->leaves[a->p->values[v.id].root];

    return again ? a->clone[v.id] : v;
}

/* Appends the clones to `out`, in forward order. */
static ls_status clone_all(struct again *a, struct list *out)
{
    const struct list *l = &a->p->list[SEG_FORWARD];

    for (int n = 0; n < l->n && program_ok(a->p); n++) {
        struct instruction i = l->at[n];

        if (!i.out[0].id || !in_unit(a, i.block) || !a->made[i.out[0].id]) continue;
        struct cursor before = program_cursor_block(a->p, i.block);
        i.phase = LS_PHASE_RECOMPUTE;
        for (int k = 0; k < i.nin; k++) i.in[k] = mapped(a, i.in[k]);
        for (int k = 0; k < i.nout; k++) i.out[k] = i.out[k].id ? clone_value(a, i.out[k]) : LS_NONE;
        program_cursor_end(a->p, before);
        LS_TRY(list_push(out, &i));
    }
    return ls_program_status(a->p);
}

/* Builds backward[0, at) + clones + backward[at, n), whose later readers use the clones. */
static ls_status splice(struct again *a, int at, const struct list *clones)
{
    struct list *back = &a->p->list[SEG_BACKWARD], joined = { 0 };
    ls_status st = list_reserve(&joined, back->n + clones->n);

    for (int n = 0; n < back->n && st == LS_OK; n++) {
        struct instruction i = back->at[n];

        for (int c = 0; n == at && c < clones->n && st == LS_OK; c++) st = list_push(&joined, &clones->at[c]);
        for (int k = 0; k < i.nin; k++) i.in[k] = mapped(a, i.in[k]);
        if (st == LS_OK) st = list_push(&joined, &i);
    }
    if (st < 0) {
        list_free(&joined);
        return st;
    }
    list_free(back);
    *back = joined;
    return LS_OK;
}

static ls_status one_unit(struct again *a)
{
    struct list clones = { 0 };
    ls_status st = LS_OK;

    memset(a->made, 0, (size_t)a->n * sizeof *a->made);
    find_leaving(a);
    int at = recompute_choose(a);
    if (at < 0) return LS_OK;
    st = clone_all(a, &clones);
    if (st == LS_OK) st = splice(a, at, &clones);
    list_free(&clones);
    return st;
}

/* Recomputes units 1 .. units; unit_of[block] says which block belongs to which. */
static ls_status recompute_units(ls_program *p, const int *unit_of, int units, bool selective)
{
    struct again a = { .p = p, .unit_of = unit_of, .selective = selective, .n = p->nvalues };
    const struct list *l = &p->list[SEG_FORWARD];
    ls_status st = LS_OK;

    a.maker = mem_array(MEM_OTHER, (size_t)a.n, sizeof *a.maker);
    a.leaves = mem_array(MEM_OTHER, (size_t)a.n, sizeof *a.leaves);
    a.clone = mem_array(MEM_OTHER, (size_t)a.n, sizeof *a.clone);
    a.made = mem_array(MEM_OTHER, (size_t)a.n, sizeof *a.made);
    if (!a.maker || !a.leaves || !a.clone || !a.made) st = LS_ENOMEM;
    for (int n = 0; st == LS_OK && n < l->n; n++)
        for (int k = 0; k < l->at[n].nout; k++)
            if (l->at[n].out[k].id) a.maker[l->at[n].out[k].id] = n + 1;
    for (a.unit = 1; st == LS_OK && a.unit <= units; a.unit++) st = one_unit(&a);
    mem_free(a.maker);
    mem_free(a.leaves);
    mem_free(a.clone);
    mem_free(a.made);
    return st;
}

static ls_status first_blocks(ls_program *p, int *unit_of, int n)
{
    for (int b = 1; b < p->nblocks; b++) unit_of[b] = b <= n ? b : 0;
    return recompute_units(p, unit_of, n, false);
}

struct trying {
    ls_program *p;
    int *unit_of;
};

/* Sets *bytes to the size of the arena with the first n blocks recomputed; the program is not changed. */
static ls_status try_blocks(void *ctx, int n, size_t *bytes)
{
    const struct trying *t = ctx;
    ls_program *p = t->p;
    struct list *back = &p->list[SEG_BACKWARD], plain = { 0 };
    int nvalues = p->nvalues;
    struct names names = p->names;
    ls_status st = list_reserve(&plain, back->n);

    for (int k = 0; k < back->n && st == LS_OK; k++) st = list_push(&plain, &back->at[k]);
    if (st == LS_OK) st = first_blocks(p, t->unit_of, n);
    if (st == LS_OK && p->arguments.options.split_backward) st = split_pass(p);
    if (st == LS_OK) st = kernels_pass(p);
    if (st == LS_OK) st = memory_pass(p);
    if (st < 0) {
        list_free(&plain);
        return st;
    }
    *bytes = program_activation_bytes(p);
    p->nvalues = nvalues;
    names_rewind(&p->names, names);
    p->list[SEG_WEIGHTS].n = 0;
    list_free(back);
    *back = plain;
    return LS_OK;
}

static ls_status within_budget(ls_program *p, int *unit_of)
{
    struct trying t = { p, unit_of };
    char needed[16];
    size_t least;
    int n;

    LS_TRY(fewest_within(try_blocks, &t, MAX(p->nblocks - 1, 0), p->arguments.options.bytes, &n, &least));
    if (n >= 0) return first_blocks(p, unit_of, n);
    return ls_fail(LS_EINVAL,
                   "recompute: the budget of %zu bytes cannot be met: the program needs at least %zu bytes (%s); use a "
                   "larger budget",
                   p->arguments.options.bytes, least, text_bytes(needed, least));
}

ls_status recompute_pass(ls_program *p)
{
    int *unit_of, every = p->arguments.options.recompute == LS_RECOMPUTE_EVERY ? p->arguments.options.every : 1;
    ls_status st;

    if (p->arguments.options.recompute == LS_RECOMPUTE_NONE) return LS_OK;
    if (p->arguments.options.recompute == LS_RECOMPUTE_FIRST && p->arguments.options.every < 0)
        return ls_fail(LS_EINVAL, "recompute: the first %d blocks; 0 or more is expected", p->arguments.options.every);
    if (every < 1) return ls_fail(LS_EINVAL, "recompute: every %d blocks; 1 or more is expected", every);
    unit_of = mem_array(MEM_OTHER, (size_t)p->nblocks, sizeof *unit_of);
    if (!unit_of) return LS_ENOMEM;
    for (int b = 1; b < p->nblocks; b++) unit_of[b] = (b - 1) / every + 1;
    if (p->arguments.options.recompute == LS_RECOMPUTE_BUDGET)
        st = within_budget(p, unit_of);
    else if (p->arguments.options.recompute == LS_RECOMPUTE_FIRST)
        st = first_blocks(p, unit_of, MIN(p->arguments.options.every, MAX(p->nblocks - 1, 0)));
    else
        st = recompute_units(p, unit_of, p->nblocks > 1 ? unit_of[p->nblocks - 1] : 0,
                             p->arguments.options.recompute == LS_RECOMPUTE_SELECTIVE);
    mem_free(unit_of);
    return st;
}
