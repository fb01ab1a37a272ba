/* store_box.c - the part of a parameter that this rank has: a box of it, all of it, or nothing.
 *
 * This rank has [begin, begin + size) of every dim of parameter i. Elements are counted row-major in the box; a run is a range of them that
 * is contiguous in the full tensor too.
 */
#include "runtime/store_parts.h"

#include <string.h>
#include "base/base.h"

void box_whole(struct entry *p)
{
    memset(p->begin, 0, sizeof p->begin);
    memcpy(p->local, p->size, sizeof p->local);
    p->held = p->count;
}

bool box_is_whole(const struct entry *p) { return !p->away && p->held == p->count; }

void store_set_shard(ls_store *s, size_t i, int dim, size_t begin, size_t size)
{
    struct entry *p = &s->entry[i];
    size_t held = 1;

    ASSERT(i < s->count && dim >= 0 && dim < p->ndim && !p->away);
    ASSERT(begin <= p->size[dim] && size <= p->size[dim] - begin);
    if (p->begin[dim] == begin && p->local[dim] == size) return;
    ASSERT(!p->value && p->unit < 0);
    p->begin[dim] = begin;
    p->local[dim] = size;
    for (int d = 0; d < p->ndim; d++) held *= p->local[d];
    p->held = held;
}

void store_leave_out(ls_store *s, size_t i)
{
    struct entry *p = &s->entry[i];

    ASSERT(i < s->count && !p->value && p->unit < 0);
    p->away = true;
    p->held = 0;
    p->needs_grad = 0;
    p->states = 0;
    memset(p->begin, 0, sizeof p->begin);
    memset(p->local, 0, sizeof p->local);
}

bool store_is_here(const ls_store *s, size_t i) { return !s->entry[i].away; }
size_t store_local_size(const ls_store *s, size_t i, int dim) { return s->entry[i].local[dim]; }
size_t store_local_begin(const ls_store *s, size_t i, int dim) { return s->entry[i].begin[dim]; }
size_t store_local_count(const ls_store *s, size_t i) { return s->entry[i].held; }

ls_placement *store_placement(const ls_store *s, size_t i) { return s->entry[i].place; }

void store_set_world(ls_store *s, ls_comm *world) { s->world = world; }
ls_comm *store_world(const ls_store *s) { return s->world; }

void store_set_owner(ls_store *s, size_t i, bool owner) { s->entry[i].not_owner = !owner; }
bool store_is_owner(const ls_store *s, size_t i) { return !s->entry[i].not_owner && !s->entry[i].away; }

bool store_box_lines(const ls_store *s, size_t i, size_t *begin, size_t *run, size_t *stride)
{
    const struct entry *p = &s->entry[i];
    int last = p->ndim - 1; /* the last dim of which this rank has a part */
    size_t unit = 1;

    while (last > 0 && p->local[last] == p->size[last]) last--;
    *begin = 0;
    *run = *stride = 1;
    for (int d = p->ndim - 1; d >= 0; d--) {
        *begin += p->begin[d] * unit;
        unit *= p->size[d];
        if (d >= last) *run *= p->local[d];
        if (d >= last) *stride = unit;
        if (d > 0 && d < last && p->local[d] != p->size[d]) return false;
    }
    return true;
}

size_t store_box_run(int ndim, const size_t *global_size, const size_t *begin, const size_t *local, size_t from, size_t end, size_t *global)
{
    size_t unit = 1, at = 0, stride = 1, rest = from;
    bool joined = true; /* all later dims are complete */

    for (int d = ndim - 1; d >= 0; d--) {
        if (joined) unit *= local[d];
        joined = joined && local[d] == global_size[d];
        at += (begin[d] + rest % local[d]) * stride;
        rest /= local[d];
        stride *= global_size[d];
    }
    *global = at;
    return MIN(end, (from / unit + 1) * unit) - from;
}

size_t entry_run(const struct entry *p, size_t from, size_t end, size_t *global)
{
    return store_box_run(p->ndim, p->size, p->begin, p->local, from, end, global);
}
