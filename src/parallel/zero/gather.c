/* gather.c - zero 3 and offloaded parameters: a unit's parameters are loaded and all-gathered before their first reader and freed after
 * the last.
 *
 *     forward    gather(0) | wait(0), start gather(1 .. k) | unit 0 computes | wait(1), start gather(1 + k) | unit 1 computes | ...
 *     backward   the same, in the order in which backward reads them; without reshard_after_forward only units that forward did not gather
 *     weights    likewise, if weight gradients have a segment of their own
 *
 * k is `prefetch`, 1 by default, and 0 without overlap: a gather then starts when it is needed. So at most k + 1 units are gathered at once
 * (a tied weight lives from its first to its last reader). Readers use views of the gathered
 * buffer with the parameter's shape. The memory pass frees the buffer after its last reader.
 *
 * Offloaded parameters of which this rank holds all are loaded in place of being gathered, as far ahead. Of a shard the load starts one
 * unit before the gather, which reads it:
 *
 *     load(0) | wait, start gather(0), load(1) | wait(0), wait for load(1), start gather(1), load(2) | unit 0 computes | ...
 */
#include "parallel/zero/zero.h"

#include <string.h>
#include "base/mem.h"

static bool is_sharded(const struct pass *a, const struct unit *u) { return unit_stored(a, u)->sharded >> STORE_VALUE & 1; }

/* The unit to gather for v, a parameter of it or a view of one; NULL if v is not a parameter, or is always on this rank. */
static struct unit *gathered_unit(const struct pass *a, ls_value v)
{
    const struct value *root = &a->p->values[a->p->values[v.id].root];
    struct unit *u = v.id && root->role == LS_ROLE_PARAMETER ? unit_of(a, root) : NULL;

    return u && (is_sharded(a, u) || offload_has(a, u, STORE_VALUE)) ? u : NULL;
}

/* Lists the units that are not gathered yet, in the order in which l first reads them; returns how many. */
static int order_of_use(const struct pass *a, const struct list *l, int *order)
{
    int n = 0;

    for (int k = 0; k < l->n; k++)
        for (int o = 0; !instruction_is_view(&l->at[k]) && o < l->at[k].nin; o++) {
            const struct unit *u = gathered_unit(a, l->at[k].in[o]);
            int i = 0;

            while (u && i < n && order[i] != u->index) i++;
            if (u && i == n && !u->gathered.id) order[n++] = u->index;
        }
    return n;
}

static void start_load(struct pass *a, struct unit *u)
{
    const struct store_unit *g = unit_stored(a, u);
    bool part = is_sharded(a, u);

    if (!offload_has(a, u, STORE_VALUE) || u->shard.id) return;
    u->shard = unit_value(a, u, part ? "shard" : "parameters", g->type, part ? g->end - g->begin : g->total);
    value_set_place(a->p, u->shard, part ? LS_SHARD : LS_REPLICATE);
    program_load(a->p, u->index, STORE_VALUE, NULL, u->shard);
    u->loading = true;
}

static void wait_load(struct pass *a, struct unit *u)
{
    if (u->loading) program_load_wait(a->p, u->index, STORE_VALUE, NULL, u->shard);
    u->loading = false;
}

/* The elements that this rank holds, in memory. */
static ls_value own_elements(struct pass *a, struct unit *u)
{
    if (!offload_has(a, u, STORE_VALUE)) return program_unit_value(a->p, u->index, STORE_VALUE, NULL);
    start_load(a, u);
    if (is_sharded(a, u)) wait_load(a, u); /* else its readers wait */
    return u->shard;
}

static void start_gather(struct pass *a, struct unit *u)
{
    ls_program *p = a->p;
    const struct store_unit *g = unit_stored(a, u);
    struct exchange e = {
        .op = LS_COLLECTIVE_ALL_GATHER, .axis = LS_AXIS_DP, .comm = g->comm, .total = g->total, .counts = unit_counts_of_ranks(a, u)
    };
    ls_value shard = own_elements(a, u);

    if (!is_sharded(a, u)) u->gathered = shard;
    if (!shard.id || !is_sharded(a, u)) return;
    value_set_place(p, shard, LS_SHARD);
    u->gathered = g->begin == 0 && g->end == g->total ? emit_part(p, shard, 0, g->total, LS_REPLICATE) /* this rank holds all of it */
                                                      : unit_value(a, u, "parameters", program_value(p, shard)->dtype, g->total);
    if (u->gathered.id) emit_start(p, &u->gather, &e, LS_WHEN_ALWAYS, shard, u->gathered);
}

/* The view of the gathered buffer that corresponds to v: the same strides at the parameter's offset. */
static ls_value gathered_view(struct pass *a, struct unit *u, ls_value v)
{
    ls_program *p = a->p;
    const struct store_unit *g = unit_stored(a, u);
    struct value x = *program_value(p, v);
    int k = 0;

    ASSERT(v.id < a->nviews);
    if (a->view[v.id].id || !u->gathered.id) return a->view[v.id];
    while (g->params[k] != p->values[x.root].param) k++;
    return a->view[v.id] = program_view(p, u->gathered, (struct view_rule){ VIEW_SLICE, 0, 0, g->at[k] }, x.ndim, x.size, x.stride,
                                        (ptrdiff_t)g->at[k] + x.offset);
}

static int gather_place_of(const int *order, int n, int index)
{
    int k = 0;

    while (k < n && order[k] != index) k++;
    return k;
}

/* Gathers the parameters that instruction i reads, and starts the gathers of the next units. */
static void gather_operands(struct pass *a, const struct instruction *i, const int *order, int n, int *next)
{
    int ahead = a->d->o.overlap ? a->d->o.prefetch : 0, last;

    for (int o = 0; o < i->nin && program_ok(a->p); o++) {
        struct unit *u = gathered_unit(a, i->in[o]);

        if (!u || (u->gathered.id && !u->gather.open && !u->loading)) continue;
        if (!u->gathered.id) {
            ASSERT(*next < n && order[*next] == u->index);
            start_gather(a, &a->unit[order[(*next)++]]);
        }
        emit_wait(a->p, &u->gather);
        wait_load(a, u);
        last = gather_place_of(order, n, u->index) + ahead;
        while (*next < n && *next <= last) start_gather(a, &a->unit[order[(*next)++]]);
        for (int k = *next; ahead && k < n && k <= last + 1; k++)
            if (is_sharded(a, &a->unit[order[k]])) start_load(a, &a->unit[order[k]]);
    }
}

static void gather_segment(struct pass *a, enum segment s, int *order)
{
    ls_program *p = a->p;
    int n = order_of_use(a, &p->list[s], order), next = 0;
    struct rewrite w = rewrite_begin(p, s, LS_PHASE_COMMUNICATE);

    for (int k = 0; k < w.old.n && program_ok(p); k++) {
        struct instruction i = w.old.at[k];

        if (instruction_is_view(&i) && gathered_unit(a, i.in[0])) continue; /* readers get a view of the gathered buffer */
        struct cursor before = program_cursor_block(p, i.block);
        gather_operands(a, &i, order, n, &next);
        for (int o = 0; o < i.nin && program_ok(p); o++) {
            struct unit *u = gathered_unit(a, i.in[o]);

            if (u) i.in[o] = gathered_view(a, u, i.in[o]);
        }
        program_push(p, &i);
        program_cursor_end(p, before);
    }
    rewrite_end(p, &w);
}

ls_status gather_parameters(struct pass *a)
{
    int *order;

    if (!data_has_units(a)) return LS_OK;
    order = mem_array(MEM_OTHER, (size_t)a->nunits + 1, sizeof *order);
    a->nviews = a->p->nvalues;
    a->view = mem_array(MEM_OTHER, (size_t)a->nviews + 1, sizeof *a->view);
    for (int s = SEG_FORWARD; s <= SEG_WEIGHTS && order && a->view; s++) {
        if (s > SEG_FORWARD && a->d->o.reshard_after_forward) {
            memset(a->view, 0, (size_t)a->nviews * sizeof *a->view);
            for (int g = 0; g < a->nunits; g++) a->unit[g].gathered = a->unit[g].shard = LS_NONE;
        }
        gather_segment(a, (enum segment)s, order);
    }
    mem_free(order);
    if (!order || !a->view) return LS_ENOMEM;
    return ls_program_status(a->p);
}
