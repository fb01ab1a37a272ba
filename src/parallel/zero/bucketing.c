/* bucketing.c - groups parameters into the units that are communicated together.
 *
 * Zero 0 to 2: buckets. Parameters are taken in the order in which their gradients become final in the backward segment (the last
 * instruction that adds to them); a new bucket begins when the next parameter would make the current one too large. The first bucket is
 * smaller, so that communication begins early. Gradients that nothing writes come first. If weight gradients have a segment of their own,
 * those that are final before it are in other buckets than those that are final in it.
 *
 * Zero 3, and offloaded parameters: one unit per block of the model, or for fsdp_unit consecutive blocks, in the order of first use.
 * Outside blocks, a matrix is a unit of its own; a parameter of one dim joins the unit used just before it (or, if there is none, just
 * after). A parameter belongs to the block that first uses it; later uses (tied weights) share that unit. With fsdp_unit 0 all parameters
 * are one unit.
 *
 * Frozen parameters and buffers stay replicated. Units that another program has already created in the store are used as they are; this
 * program adds units for the parameters it uses and, if it has the optimizer, for all remaining ones.
 *
 * On a mesh all parameters of a unit are of one class: units that are summed over tp, or between the end stages, are identical on all
 * ranks of that sum, whatever else these ranks hold. Parameters shared by the end stages are in the store's order, because the two stages
 * compute their gradients in different orders.
 */
#include "parallel/zero/zero.h"

#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

struct candidate {
    int param, key;
    unsigned class;
}; /* key: the position at which its gradient is final, or the number of its unit */

static int by_key(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;

    if (a->class != b->class) return a->class < b->class ? -1 : 1;
    return a->key != b->key ? (a->key > b->key) - (a->key < b->key) : (a->param > b->param) - (a->param < b->param);
}

/* Gradients that are summed over more than data, to which several programs or two segments add, or which are unsharded until the last
 * micro-batch are read and written at more than one place, and stay in memory. */
static bool offloads_gradients(const struct pass *a, unsigned class)
{
    const struct zero_groups *groups = unit_groups(a, class);

    if (!a->d->o.offload_parameters || (class & (CLASS_TP | CLASS_ENDS | CLASS_JOINT))) return false;
    return groups->all ? data_parallel_shards(a, groups, STORE_GRAD) : !a->p->arguments.options.split_backward;
}

static ls_status make_unit(struct pass *a, const struct candidate *c, int n)
{
    static const enum store_backing backings[] = { BACKING_MEMORY, BACKING_CPU, BACKING_FILE };
    const struct zero_groups *groups = unit_groups(a, c->class);
    struct store_unit_options o = { .path = a->d->o.offload_path, .rooted = a->d->method->rooted };
    int *params = mem_array(MEM_OTHER, (size_t)n, sizeof *params), index;

    if (!params) return LS_ENOMEM;
    o.backing[STORE_VALUE] = backings[a->d->o.offload_parameters];
    o.backing[STORE_GRAD] = offloads_gradients(a, c->class) ? backings[a->d->o.offload_parameters] : BACKING_MEMORY;
    o.backing[STORE_STATE] = backings[a->d->o.offload];
    for (int i = 0; i < n; i++) params[i] = c[i].param;
    for (int k = 0; k < STORE_KINDS; k++) o.sharded |= data_parallel_shards(a, groups, (enum store_kind)k) ? 1u << k : 0;
    if (a->d->o.zero && groups->shard && !data_parallel_shards(a, groups, STORE_GRAD)) o.scattered = 1u << STORE_GRAD;
    ls_status st = store_unit(a->p->store, n, params, groups->shard ? groups->shard : groups->all, &o, &index);
    mem_free(params);
    return st;
}

static size_t gradient_bytes(const ls_store *s, int param)
{
    return store_local_count(s, (size_t)param) * ls_dtype_bytes(store_kind_type(s, (size_t)param, STORE_GRAD));
}

/* Marks the parameters that instructions read, or whose gradients they write. */
static void find_used(const struct pass *a, bool *used)
{
    const ls_program *p = a->p;

    for (int s = SEG_FORWARD; s <= SEG_WEIGHTS; s++)
        for (int k = 0; k < p->list[s].n; k++) {
            const struct instruction *i = &p->list[s].at[k];

            for (int o = 0; !instruction_is_view(i) && o < i->nin + i->nout; o++) {
                ls_value v = o < i->nin ? i->in[o] : i->out[o - i->nin];
                const struct value *root = &p->values[p->values[v.id].root];

                if (v.id && root->param >= 0) used[root->param] = true;
            }
        }
}

/* True if parameter i has to be in a unit but is in none yet. */
static bool is_free(const struct pass *a, size_t i, const bool *used)
{
    const ls_store *s = a->p->store;

    return !ls_store_is_frozen(s, i) && store_unit_of(s, i) < 0 && store_is_here(s, i) && store_local_count(s, i) &&
           (used[i] || a->p->list[SEG_OPTIMIZER].n);
}

/* Sets the position at which each gradient becomes final; parameters shared by the end stages keep the store's order. */
static void find_final(const struct pass *a, struct candidate *c, int n)
{
    int at = 0;

    for (int i = 0; i < n; i++) c[i].key = -1;
    for (int s = SEG_BACKWARD; s <= SEG_WEIGHTS; s++)
        for (int k = 0; k < a->p->list[s].n; k++, at++)
            for (int o = 0; o < a->p->list[s].at[k].nout; o++) {
                const struct value *root = &a->p->values[a->p->values[a->p->list[s].at[k].out[o].id].root];

                for (int i = 0; i < n && root->role == LS_ROLE_GRADIENT; i++)
                    if (c[i].param == root->param && !(c[i].class & CLASS_ENDS)) c[i].key = at;
            }
}

/* True if the gradient is final in the segment of weight gradients. */
static bool is_late(const struct pass *a, const struct candidate *c) { return c->key >= a->p->list[SEG_BACKWARD].n; }

static ls_status form_buckets(struct pass *a, struct candidate *c, int n)
{
    size_t most = a->d->o.first_bucket_bytes, bytes = 0;
    int first = 0;

    find_final(a, c, n);
    qsort(c, (size_t)n, sizeof *c, by_key);
    for (int i = 0; i < n; i++) {
        size_t more = gradient_bytes(a->p->store, c[i].param);
        bool other = c[i].class != c[first].class || is_late(a, &c[i]) != is_late(a, &c[first]);

        if (other || (i > first && bytes + more > most)) {
            LS_TRY(make_unit(a, c + first, i - first));
            first = i;
            bytes = 0;
            most = other ? a->d->o.first_bucket_bytes : a->d->o.bucket_bytes;
        }
        bytes += more;
    }
    return n > first ? make_unit(a, c + first, n - first) : LS_OK;
}

/* State of a walk over forward and backward that numbers units in the order of first use. */
struct walk {
    struct pass *a;
    struct candidate *c;
    int n, units, now; /* now: the current unit; -1: none */
    int *of_block;     /* by block of the program; -1: none */
    int blocks, last;  /* how many blocks have a unit; the unit of the last one */
    bool vectors;      /* the unit has only one-dim parameters from outside blocks, so the next matrix joins it */
};

/* The unit of a block: fsdp_unit blocks in a row share one. */
static int unit_of_block(struct walk *w, int block)
{
    if (w->of_block[block] >= 0) return w->of_block[block];
    if (w->blocks++ % w->a->d->o.fsdp_unit == 0) w->last = w->units++;
    return w->of_block[block] = w->last;
}

static void visit(struct walk *w, int param, int block)
{
    bool matrix = ls_store_ndim(w->a->p->store, (size_t)param) >= 2;
    int i = 0;

    while (i < w->n && w->c[i].param != param) i++;
    if (i == w->n || w->c[i].key >= 0) return;
    if (w->a->d->o.fsdp_unit == 0) {
        w->now = 0;
        w->units = 1;
    } else if (block) {
        w->now = unit_of_block(w, block);
        w->vectors = false;
    } else if (w->now < 0 || (matrix && !w->vectors)) {
        w->now = w->units++;
        w->vectors = !matrix;
    } else if (matrix) {
        w->vectors = false;
    }
    w->c[i].key = w->now;
}

static void walk_uses(struct walk *w)
{
    const ls_program *p = w->a->p;

    for (int s = SEG_FORWARD; s <= SEG_WEIGHTS; s++)
        for (int k = 0; k < p->list[s].n; k++) {
            const struct instruction *i = &p->list[s].at[k];

            for (int o = 0; !instruction_is_view(i) && o < i->nin; o++) {
                const struct value *root = &p->values[p->values[i->in[o].id].root];

                if (i->in[o].id && root->role == LS_ROLE_PARAMETER) visit(w, root->param, i->block);
            }
        }
}

static ls_status form_blocks(struct pass *a, struct candidate *c, int n)
{
    struct walk w = { .a = a, .c = c, .n = n, .now = -1 };
    int first = 0;

    w.of_block = mem_array(MEM_OTHER, (size_t)a->p->nblocks, sizeof *w.of_block);
    if (!w.of_block) return LS_ENOMEM;
    memset(w.of_block, 0xff, (size_t)a->p->nblocks * sizeof *w.of_block);
    for (int i = 0; i < n; i++) c[i].key = -1;
    walk_uses(&w);
    mem_free(w.of_block);
    if (a->d->o.fsdp_unit == 0) w.units = 0; /* unread parameters too */
    for (int i = 0; i < n; i++)              /* unread parameters come last; each parameter shared by the end stages is a unit of its own */
        c[i].key = c[i].class & CLASS_ENDS ? c[i].param : c[i].key < 0 ? w.units : c[i].key;
    qsort(c, (size_t)n, sizeof *c, by_key);
    for (int i = 1; i <= n; i++)
        if (i == n || c[i].key != c[first].key || c[i].class != c[first].class) {
            LS_TRY(make_unit(a, c + first, i - first));
            first = i;
        }
    return LS_OK;
}

static ls_status form_units(struct pass *a)
{
    ls_store *s = a->p->store;
    struct candidate *c = mem_array(MEM_OTHER, ls_store_count(s) + 1, sizeof *c);
    bool *used = mem_array(MEM_OTHER, ls_store_count(s) + 1, sizeof *used);
    ls_status st = c && used ? LS_OK : LS_ENOMEM;
    int n = 0;

    if (st == LS_OK) find_used(a, used);
    for (size_t i = 0; i < ls_store_count(s) && st == LS_OK; i++)
        if (is_free(a, i, used)) c[n++] = (struct candidate){ .param = (int)i, .class = unit_class(a, i) };
    if (n && data_has_units(a))
        st = form_blocks(a, c, n);
    else if (n && a->p->list[SEG_OPTIMIZER].n + a->p->list[SEG_BACKWARD].n > 0)
        st = form_buckets(a, c, n);
    mem_free(c);
    mem_free(used);
    return st;
}

/* Finds the blocks that first and last use each unit's parameters. */
static void find_blocks(struct pass *a)
{
    const ls_program *p = a->p;

    for (int s = SEG_WEIGHTS; s >= SEG_FORWARD; s--)
        for (int k = p->list[s].n - 1; k >= 0; k--)
            for (int o = 0; o < p->list[s].at[k].nin; o++) {
                const struct value *root = &p->values[p->values[p->list[s].at[k].in[o].id].root];
                struct unit *u = root->role == LS_ROLE_PARAMETER ? unit_of(a, root) : NULL;

                if (u) u->block = p->list[s].at[k].block;
                if (u && s == SEG_FORWARD) u->last_block = MAX(u->last_block, u->block);
            }
}

ls_status units_form(struct pass *a)
{
    LS_TRY(form_units(a));
    a->nunits = store_units(a->p->store);
    a->unit = mem_array(MEM_OTHER, (size_t)a->nunits + 1, sizeof *a->unit);
    a->order = mem_array(MEM_OTHER, (size_t)a->nunits + 1, sizeof *a->order);
    if (!a->unit || !a->order) return LS_ENOMEM;
    for (int g = 0; g < a->nunits; g++) {
        unsigned class = unit_class(a, (size_t)store_unit_at(a->p->store, g)->params[0]);

        a->unit[g] = (struct unit){ .index = g, .class = class, .groups = unit_groups(a, class), .first = -1, .last = -1 };
    }
    find_blocks(a);
    return LS_OK;
}
