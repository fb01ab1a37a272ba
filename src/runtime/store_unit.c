/* store_unit.c - units of adjacent parameters in flat buffers: creating units, blocks, memory, tensors.
 *
 * If a kind is sharded, rank r of n holds [total*r/n, total*(r+1)/n) of the flat buffer; in a rooted unit rank 0 holds all of it. A kind
 * is allocated for the entire unit as soon as one of its parameters has it.
 */
#include "runtime/store_parts.h"

#include <string.h>
#include <unistd.h>
#include "base/base.h"
#include "base/worker.h"
#include "comm/algorithms/steps.h"
#include "device/device.h"
#include "tensor/tensor_over.h"

/* ---- creating ---- */

static ls_status check_members(const ls_store *s, int n, const int *params)
{
    if (n < 1) return ls_fail(LS_EINVAL, "store: a unit of %d parameters; it needs at least 1", n);
    for (int k = 0; k < n; k++) {
        if (params[k] < 0 || (size_t)params[k] >= s->count)
            return ls_fail(LS_EINVAL, "store: a unit contains parameter %d, but there are only %zu", params[k], s->count);
        const struct entry *p = &s->entry[params[k]];
        if (p->value || p->ready) return ls_fail(LS_EINVAL, "parameter '%s' is grouped too late: it is already allocated", p->name);
        if (p->away) return ls_fail(LS_EINVAL, "parameter '%s' cannot be grouped on a rank that has nothing of it", p->name);
        if (p->unit >= 0) return ls_fail(LS_EINVAL, "parameter '%s' is already in unit %d", p->name, p->unit);
        if (p->type != s->entry[params[0]].type)
            return ls_fail(LS_EINVAL, "parameter '%s' is %s, but '%s' of the same unit is %s; a unit has one type", p->name,
                           ls_dtype_name(p->type), s->entry[params[0]].name, ls_dtype_name(s->entry[params[0]].type));
        for (int j = 0; j < k; j++)
            if (params[j] == params[k]) return ls_fail(LS_EINVAL, "parameter '%s' appears twice in one unit", p->name);
    }
    return LS_OK;
}

void flat_unit_free(struct flat_unit *g)
{
    for (int k = 0; k < g->flats; k++) {
        ls_tensor_release(&g->flat[k].tensor);
        bytes_free(&g->flat[k].home, g->flat[k].data, g->flat[k].bytes);
    }
    if (g->fd >= 0) close(g->fd);
    if (g->direct >= 0) close(g->direct);
    mem_free(g->params);
    mem_free(g->at);
    mem_free(g->path);
    mem_free(g);
}

void store_unit_block(bool rooted, size_t total, int rank, int n, size_t *begin, size_t *end)
{
    *begin = rooted ? (rank > 0) * total : block_at(total, rank, n);
    *end = rooted ? total : block_at(total, rank + 1, n);
}

static ls_status fill_unit(const ls_store *s, struct flat_unit *g, int n, const int *params, ls_comm *comm,
                           const struct store_unit_options *o)
{
    size_t total = 0;
    int ranks = comm ? ls_comm_size(comm) : 1, rank = comm ? ls_comm_rank(comm) : 0;

    g->fd = g->direct = -1;
    g->params = mem_array(MEM_OTHER, (size_t)n, sizeof *g->params);
    g->at = mem_array(MEM_OTHER, (size_t)n + 1, sizeof *g->at);
    if (o->path) g->path = mem_strdup(o->path);
    if (!g->params || !g->at || (o->path && !g->path)) return LS_ENOMEM;
    for (int k = 0; k < n; k++) {
        g->params[k] = params[k];
        g->at[k] = total;
        total += s->entry[params[k]].held;
    }
    g->at[n] = total;
    g->face = (struct store_unit){
        .n = n,
        .params = g->params,
        .at = g->at,
        .total = total,
        .sharded = o->sharded,
        .scattered = o->scattered,
        .comm = comm,
        .type = s->entry[params[0]].type,
        .rooted = o->rooted,
    };
    memcpy(g->face.backing, o->backing, sizeof g->face.backing);
    store_unit_block(o->rooted, total, rank, ranks, &g->face.begin, &g->face.end);
    return LS_OK;
}

ls_status store_unit(ls_store *s, int n, const int *params, ls_comm *comm, const struct store_unit_options *o, int *unit)
{
    struct flat_unit **grown, *g;

    LS_TRY(check_members(s, n, params));
    for (int k = 0; k < STORE_KINDS; k++)
        if (o->backing[k] == BACKING_FILE && !o->path)
            return ls_fail(LS_EINVAL, "store: a unit that is offloaded to a file needs a folder");
    grown = mem_resize(s->unit, ((size_t)s->units + 1) * sizeof *grown);
    if (!grown) return LS_ENOMEM;
    s->unit = grown;
    g = mem_zalloc(MEM_OTHER, sizeof *g);
    if (!g) return LS_ENOMEM;
    ls_status st = fill_unit(s, g, n, params, comm, o);
    if (st < 0) {
        flat_unit_free(g);
        return st;
    }
    for (int k = 0; k < n; k++) {
        s->entry[params[k]].unit = s->units;
        s->entry[params[k]].member = k;
    }
    s->unit[s->units] = g;
    *unit = s->units++;
    return LS_OK;
}

/* ---- what this rank holds ---- */

int store_units(const ls_store *s) { return s->units; }
int store_unit_of(const ls_store *s, size_t param) { return s->entry[param].unit; }

const struct store_unit *store_unit_at(const ls_store *s, int unit)
{
    ASSERT(unit >= 0 && unit < s->units);
    return &s->unit[unit]->face;
}

size_t flat_unit_held(const struct flat_unit *g, enum store_kind kind, size_t *begin)
{
    bool part = g->face.sharded >> kind & 1;

    *begin = part ? g->face.begin : 0;
    return part ? g->face.end - g->face.begin : g->face.total;
}

void store_held(const ls_store *s, size_t i, enum store_kind kind, size_t *begin, size_t *end)
{
    const struct entry *p = &s->entry[i];
    size_t first;

    *begin = 0;
    *end = p->held;
    if (p->unit < 0) return;
    size_t at = s->unit[p->unit]->at[p->member];
    size_t last = flat_unit_held(s->unit[p->unit], kind, &first) + first;
    *begin = first > at ? MIN(first - at, p->held) : 0;
    *end = last > at ? MIN(last - at, p->held) : 0;
    *end = MAX(*end, *begin);
}

ls_comm *store_sharded(const ls_store *s, size_t i, enum store_kind kind)
{
    int g = s->entry[i].unit;
    ls_comm *comm = g >= 0 && (s->unit[g]->face.sharded >> kind & 1) ? s->unit[g]->face.comm : NULL;

    return comm && ls_comm_size(comm) > 1 ? comm : NULL;
}

struct flat *flat_unit_find(const struct flat_unit *g, enum store_kind kind, const char *state)
{
    for (int k = 0; k < g->flats; k++)
        if (g->flat[k].kind == kind && (kind != STORE_STATE || strcmp(g->flat[k].state, state) == 0)) return (struct flat *)&g->flat[k];
    return NULL;
}

void *store_unit_data(const ls_store *s, int unit, enum store_kind kind, const char *state)
{
    const struct flat *f = flat_unit_find(s->unit[unit], kind, state);

    return f && s->unit[unit]->face.backing[kind] == BACKING_MEMORY ? f->data : NULL;
}

/* ---- memory ---- */

/* Lists the kinds that the unit's parameters have declared so far; returns how many. */
static int kinds_wanted(const ls_store *s, const struct flat_unit *g, struct flat out[FLATS])
{
    int n = 0;
    bool grad = false;

    out[n++] = (struct flat){ .kind = STORE_VALUE };
    for (int k = 0; k < g->face.n; k++) grad = grad || (s->entry[g->params[k]].needs_grad && !s->entry[g->params[k]].frozen);
    if (grad) out[n++] = (struct flat){ .kind = STORE_GRAD };
    for (int k = 0; k < g->face.n; k++)
        for (int j = 0; j < s->entry[g->params[k]].states; j++) {
            const char *name = s->entry[g->params[k]].state[j].name;
            int seen = 0;

            while (seen < n && (out[seen].kind != STORE_STATE || strcmp(out[seen].state, name) != 0)) seen++;
            ASSERT(seen < FLATS);
            if (seen == n) out[n++] = (struct flat){ .kind = STORE_STATE, .state = name };
        }
    return n;
}

static struct bytes_home home_of(const ls_store *s, const struct flat_unit *g, enum store_kind kind)
{
    static const enum mem_category category[STORE_KINDS] = { MEM_PARAMETERS, MEM_GRADIENTS, MEM_OPTIMIZER };

    if (g->face.backing[kind] == BACKING_CPU) return (struct bytes_home){ &device_cpu, NULL, MEM_OFFLOAD };
    return (struct bytes_home){ s->where, kind == STORE_STATE ? NULL : g->face.comm, category[kind] };
}

bool flat_unit_uses_file(const struct flat_unit *g)
{
    for (int k = 0; k < STORE_KINDS; k++)
        if (g->face.backing[k] == BACKING_FILE) return true;
    return false;
}

void flat_unit_bytes(const ls_store *s, const struct flat_unit *g, size_t bytes[STORE_KINDS], size_t *offload, size_t *file)
{
    struct flat want[FLATS];
    int n = kinds_wanted(s, g, want);
    size_t begin;

    for (int k = 0; k < n; k++) {
        size_t held = flat_unit_held(g, want[k].kind, &begin) * ls_dtype_bytes(kind_type(s, g->face.type, want[k].kind));

        switch (g->face.backing[want[k].kind]) {
        case BACKING_MEMORY: bytes[want[k].kind] += held; break;
        case BACKING_CPU: *offload += held; break;
        case BACKING_FILE: *file += held; break;
        }
    }
}

static ls_status allocate_flat(const ls_store *s, struct flat_unit *g, struct flat f)
{
    ls_dtype type = kind_type(s, g->face.type, f.kind);
    size_t begin, held = flat_unit_held(g, f.kind, &begin);

    f.bytes = held * ls_dtype_bytes(type);
    f.home = home_of(s, g, f.kind);
    if (g->face.backing[f.kind] == BACKING_FILE) {
        LS_TRY(backing_grow(g, f.bytes, &f.at));
    } else {
        f.data = bytes_alloc(&f.home, f.bytes);
        if (!f.data) return device_no_memory(f.home.device);
        if (tensor_over(f.home.device, f.data, type, 1, &held, &f.tensor) < 0) {
            bytes_free(&f.home, f.data, f.bytes);
            return LS_ENOMEM;
        }
    }
    g->flat[g->flats++] = f;
    return LS_OK;
}

/* Parameter i's tensor of that kind as a view of the unit's, with the box's shape if all of it is held. */
static ls_status view_member(const ls_store *s, size_t i, enum store_kind kind, const char *state, ls_tensor **out)
{
    const struct entry *p = &s->entry[i];
    const struct flat_unit *g = s->unit[p->unit];
    struct flat *f = flat_unit_find(g, kind, state);
    bool part = g->face.sharded >> kind & 1;
    size_t begin, end, first;
    ptrdiff_t stride[LS_DIMS] = { 0 }, step = 1;

    if (*out || !f || !f->tensor) return LS_OK;
    store_held(s, i, kind, &begin, &end);
    end -= begin; /* now the number of elements */
    flat_unit_held(g, kind, &first);
    ptrdiff_t shift = end ? (ptrdiff_t)(g->at[p->member] + begin) - (ptrdiff_t)first : 0;
    for (int d = p->ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= (ptrdiff_t)MAX(p->local[d], 1);
    }
    if (!part) return ls_tensor_view(f->tensor, p->ndim, p->local, stride, shift, out);
    step = 1;
    return ls_tensor_view(f->tensor, 1, &end, &step, shift, out);
}

/* What is offloaded has no tensor. */
static ls_status allocate_member(const ls_store *s, size_t i)
{
    struct entry *p = &s->entry[i];
    const enum store_backing *backing = s->unit[p->unit]->face.backing;

    if (backing[STORE_VALUE] == BACKING_MEMORY) LS_TRY(view_member(s, i, STORE_VALUE, NULL, &p->value));
    if (p->needs_grad && !p->frozen && backing[STORE_GRAD] == BACKING_MEMORY) LS_TRY(view_member(s, i, STORE_GRAD, NULL, &p->grad));
    for (int k = 0; k < p->states && backing[STORE_STATE] == BACKING_MEMORY; k++)
        LS_TRY(view_member(s, i, STORE_STATE, p->state[k].name, &p->state[k].tensor));
    return LS_OK;
}

ls_status flat_unit_allocate(ls_store *s, struct flat_unit *g)
{
    struct flat want[FLATS];
    int n = kinds_wanted(s, g, want);

    if (flat_unit_uses_file(g) && !s->worker) LS_TRY(worker_open(&s->worker));
    for (int k = 0; k < n; k++)
        if (!flat_unit_find(g, want[k].kind, want[k].state)) LS_TRY(allocate_flat(s, g, want[k]));
    for (int k = 0; k < g->face.n; k++) LS_TRY(allocate_member(s, (size_t)g->params[k]));
    return LS_OK;
}
