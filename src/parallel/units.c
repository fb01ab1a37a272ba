/* units.c - which parameters lie and travel together.
 *
 * Zero 0 to 2: buckets. Parameters in the order in which their gradients become final in the backward segment (the last
 * instruction that adds to them), cut where the next would make a bucket too large; the first bucket is smaller, so
 * that communication begins early. A gradient that nothing adds to comes first.
 *
 * Zero 3: one unit a block of the model. What stands outside of blocks: a matrix is a unit of its own, what has one dim joins
 * the unit that was used just before it (or, when there is none, just after). A parameter belongs to the place of its first
 * use; where it is used again (tied weights), the same unit serves.
 *
 * Frozen parameters and buffers stay whole on every rank. Groups that the store has already, made for another program, are used
 * as they are.
 */
#include "parallel/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

/* ---- what a unit is ---- */

const struct store_group *unit_group(const struct pass *a, const struct unit *u)
{
    return store_group_at(a->p->store, u->group);
}

struct unit *unit_of(const struct pass *a, const struct value *root)
{
    int g = root->param < 0 ? -1 : store_group_of(a->p->store, (size_t)root->param);

    return g < 0 || g >= a->nunits ? NULL : &a->unit[g];
}

bool data_is_spread(const struct pass *a) { return a->d->world && ls_comm_size(a->d->world) > 1; }

bool data_shards(const struct pass *a, enum store_kind kind)
{
    const ls_data_options *o = &a->d->o;

    return kind == STORE_STATE ? o->zero >= 1 : kind == STORE_GRAD ? o->zero >= 2 && !o->accumulate_whole : o->zero == 3;
}

size_t unit_begin(const struct pass *a, const struct unit *u) { return a->d->o.zero ? unit_group(a, u)->begin : 0; }

size_t unit_end(const struct pass *a, const struct unit *u)
{
    return a->d->o.zero ? unit_group(a, u)->end : unit_group(a, u)->total;
}

ls_value unit_value(struct pass *a, const struct unit *u, const char *what, ls_dtype type, size_t count)
{
    char name[200];

    if (a->d->o.zero < 3)
        snprintf(name, sizeof name, "bucket.%d/%s", u->group, what);
    else if (u->block)
        snprintf(name, sizeof name, "%.100s/%s", a->p->blocks[u->block], what);
    else
        snprintf(name, sizeof name, "%.100s/%s", ls_store_name(a->p->store, (size_t)unit_group(a, u)->params[0]), what);
    return program_comm_value(a->p, name, type, count);
}

/* ---- forming them ---- */

struct candidate { int param, key; };      /* key: when it is final, or the number of its unit */

static int by_key(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;

    return a->key != b->key ? (a->key > b->key) - (a->key < b->key) : (a->param > b->param) - (a->param < b->param);
}

static ls_status make_group(struct pass *a, const struct candidate *c, int n)
{
    static const enum store_backing backings[] = { BACKING_MEMORY, BACKING_CPU, BACKING_FILE };
    struct store_group_options o = { .backing = backings[a->d->o.offload], .path = a->d->o.offload_path };
    int *params = mem_array(MEM_OTHER, (size_t)n, sizeof *params), group;
    ls_status st;

    if (!params)
        return LS_ENOMEM;
    for (int i = 0; i < n; i++)
        params[i] = c[i].param;
    for (int k = 0; k < STORE_KINDS; k++)
        o.sharded |= data_shards(a, (enum store_kind)k) ? 1u << k : 0;
    if (a->d->o.zero && !data_shards(a, STORE_GRAD))
        o.scattered = 1u << STORE_GRAD;
    st = store_group(a->p->store, n, params, a->d->shard, &o, &group);
    mem_free(params);
    return st;
}

static size_t bytes_of(const ls_store *s, int param)
{
    size_t count = 1;

    for (int d = 0; d < ls_store_ndim(s, (size_t)param); d++)
        count *= ls_store_size(s, (size_t)param, d);
    return count * 4;
}

/* Is i to be in a unit, and in none yet? */
static bool is_free(const struct pass *a, size_t i)
{
    return !ls_store_is_frozen(a->p->store, i) && store_group_of(a->p->store, i) < 0;
}

static ls_status form_buckets(struct pass *a, struct candidate *c, int n)
{
    const struct list *back = &a->p->list[SEG_BACKWARD];
    size_t most = a->d->o.first_bucket_bytes, bytes = 0;
    int first = 0;

    for (int i = 0; i < n; i++)
        c[i].key = -1;
    for (int k = 0; k < back->n; k++)
        for (int o = 0; o < back->at[k].nout; o++) {
            const struct value *root = &a->p->values[a->p->values[back->at[k].out[o].id].root];

            for (int i = 0; i < n && root->role == LS_ROLE_GRADIENT; i++)
                if (c[i].param == root->param)
                    c[i].key = k;
        }
    qsort(c, (size_t)n, sizeof *c, by_key);
    for (int i = 0; i < n; i++) {
        size_t more = bytes_of(a->p->store, c[i].param);

        if (i > first && bytes + more > most) {
            LS_TRY(make_group(a, c + first, i - first));
            first = i;
            bytes = 0;
            most = a->d->o.bucket_bytes;
        }
        bytes += more;
    }
    return n > first ? make_group(a, c + first, n - first) : LS_OK;
}

/* Numbers units in the order of first use: of one walk over forward and backward. */
struct walk {
    struct pass *a;
    struct candidate *c;
    int  n, units, now;      /* now: the unit begun last; -1: none */
    int *of_block;           /* by block of the program; -1: none */
    bool vectors;            /* it has parameters of one dim alone, from outside of blocks: the next matrix joins */
};

static void visit(struct walk *w, int param, int block)
{
    bool matrix = ls_store_ndim(w->a->p->store, (size_t)param) >= 2;
    int i = 0;

    while (i < w->n && w->c[i].param != param)
        i++;
    if (i == w->n || w->c[i].key >= 0)
        return;
    if (block) {
        if (w->of_block[block] < 0)
            w->of_block[block] = w->units++;
        w->now = w->of_block[block];
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

    for (int s = SEG_FORWARD; s <= SEG_BACKWARD; s++)
        for (int k = 0; k < p->list[s].n; k++) {
            const struct instruction *i = &p->list[s].at[k];

            for (int o = 0; i->op != OP_VIEW && o < i->nin; o++) {
                const struct value *root = &p->values[p->values[i->in[o].id].root];

                if (i->in[o].id && root->role == LS_ROLE_PARAMETER)
                    visit(w, root->param, i->block);
            }
        }
}

static ls_status form_blocks(struct pass *a, struct candidate *c, int n)
{
    struct walk w = { .a = a, .c = c, .n = n, .now = -1 };
    int first = 0;

    w.of_block = mem_array(MEM_OTHER, (size_t)a->p->nblocks, sizeof *w.of_block);
    if (!w.of_block)
        return LS_ENOMEM;
    memset(w.of_block, 0xff, (size_t)a->p->nblocks * sizeof *w.of_block);
    for (int i = 0; i < n; i++)
        c[i].key = -1;
    walk_uses(&w);
    mem_free(w.of_block);
    for (int i = 0; i < n; i++)  /* what nothing reads */
        c[i].key = c[i].key < 0 ? w.units : c[i].key;
    qsort(c, (size_t)n, sizeof *c, by_key);
    for (int i = 1; i <= n; i++)
        if (i == n || c[i].key != c[first].key) {
            LS_TRY(make_group(a, c + first, i - first));
            first = i;
        }
    return LS_OK;
}

static ls_status form_groups(struct pass *a)
{
    ls_store *s = a->p->store;
    struct candidate *c = mem_array(MEM_OTHER, ls_store_count(s) + 1, sizeof *c);
    ls_status st = LS_OK;
    int n = 0;

    if (!c)
        return LS_ENOMEM;
    for (size_t i = 0; i < ls_store_count(s); i++)
        if (is_free(a, i))
            c[n++].param = (int)i;
    if (n && a->d->o.zero == 3)
        st = form_blocks(a, c, n);
    else if (n && a->p->list[SEG_OPTIMIZER].n + a->p->list[SEG_BACKWARD].n > 0)
        st = form_buckets(a, c, n);
    mem_free(c);
    return st;
}

/* The block in which a unit's parameters are used first. */
static void find_blocks(struct pass *a)
{
    const ls_program *p = a->p;

    for (int s = SEG_BACKWARD; s >= SEG_FORWARD; s--)
        for (int k = p->list[s].n - 1; k >= 0; k--)
            for (int o = 0; o < p->list[s].at[k].nin; o++) {
                const struct value *root = &p->values[p->values[p->list[s].at[k].in[o].id].root];
                struct unit *u = root->role == LS_ROLE_PARAMETER ? unit_of(a, root) : NULL;

                if (u)
                    u->block = p->list[s].at[k].block;
            }
}

ls_status units_form(struct pass *a)
{
    LS_TRY(form_groups(a));
    a->nunits = store_groups(a->p->store);
    a->unit = mem_array(MEM_OTHER, (size_t)a->nunits + 1, sizeof *a->unit);
    a->order = mem_array(MEM_OTHER, (size_t)a->nunits + 1, sizeof *a->order);
    if (!a->unit || !a->order)
        return LS_ENOMEM;
    for (int g = 0; g < a->nunits; g++)
        a->unit[g] = (struct unit){ .group = g, .first = -1, .last = -1 };
    find_blocks(a);
    return LS_OK;
}
