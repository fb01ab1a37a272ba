/* step_cache.c - a cache of step lists, so that the calls of a training step build none, and their scratch memory.
 *
 * A list depends on the operation, the algorithm, the block borders, the root, the chunk, and whether
 * all_to_all is in place. A comm keeps the last LISTS_KEPT used.
 */
#include "comm/engine/engine.h"

#include <string.h>
#include "base/mem.h"

static size_t borders_room(const ls_comm *c) { return 2 * ((size_t)c->n + 1); }

size_t request_bytes(const ls_work *w)
{
    const struct request *r = &w->request;
    int n = w->comm->n;
    size_t size = ls_dtype_bytes(r->type);

    if (w->op == LS_COLLECTIVE_BARRIER) return 0;
    if (w->op == LS_COLLECTIVE_ALL_TO_ALL) return r->count * (size_t)n * size; /* _v: 0 on all ranks */
    return r->at[n] * size;
}

static bool sums_halves(const ls_work *w)
{
    const struct request *r = &w->request;
    bool reduces = w->op == LS_COLLECTIVE_ALL_REDUCE || w->op == LS_COLLECTIVE_REDUCE_SCATTER;

    return reduces && r->redop != LS_MAX && (r->type == LS_BF16 || r->type == LS_F16);
}

bool transport_preferred(const ls_work *w)
{
    if (!w->comm->transport->begin) return false;
    return w->op == LS_COLLECTIVE_BARRIER || !algorithm_list_first(w->op, request_bytes(w), w->comm->n, sums_halves(w));
}

static bool in_place(const ls_work *w) { return w->op == LS_COLLECTIVE_ALL_TO_ALL && w->request.send == w->request.recv; }

/* Elements per step for algorithms that divide a buffer into chunks (the chain). Elsewhere lanes overlap sums and transfers. */
static size_t chunk_of(const ls_work *w) { return w->op == LS_COLLECTIVE_BROADCAST ? CHUNK_BYTES / ls_dtype_bytes(w->request.type) : 0; }

static bool same_call(const struct cached_list *l, const ls_work *w, const struct algorithm *a)
{
    const struct request *r = &w->request;

    return l->algorithm == a && l->root == r->root && l->in_place == in_place(w) && l->chunk == chunk_of(w) &&
           !memcmp(l->at, w->borders, borders_room(w->comm) * sizeof *l->at);
}

static ls_status list_make(ls_work *w, const struct algorithm *a, struct cached_list *l)
{
    ls_comm *c = w->comm;
    const struct request *r = &w->request;
    struct shape_of_call shape = {
        .rank = c->rank, .n = c->n, .root = r->root, .at = r->at, .recv_at = r->recv_at, .chunk = chunk_of(w), .in_place = in_place(w)
    };

    if (!l->at && !(l->at = mem_array(MEM_OTHER, borders_room(c), sizeof *l->at))) return LS_ENOMEM;
    l->algorithm = NULL; /* not in use until it is complete */
    l->list.n = 0;
    l->list.scratch = 0;
    l->list.wide = false;
    LS_TRY(a->make(&shape, &l->list));
    memcpy(l->at, w->borders, borders_room(c) * sizeof *l->at);
    l->root = r->root;
    l->in_place = shape.in_place;
    l->chunk = shape.chunk;
    l->algorithm = a;
    return LS_OK;
}

static ls_status scratch_grow(ls_comm *c, size_t bytes)
{
    if (!c->bounce && !(c->bounce = mem_alloc(MEM_OTHER, 2 * CHUNK_BYTES))) return LS_ENOMEM;
    if (bytes <= c->scratch_bytes) return LS_OK;
    mem_free(c->scratch);
    c->scratch_bytes = 0;
    if (!(c->scratch = mem_alloc(MEM_OTHER, bytes))) return LS_ENOMEM;
    c->scratch_bytes = bytes;
    return LS_OK;
}

/* All of it belongs to rank 0: rings and trees would pass through other ranks what is for one, or comes from one. */
static bool is_rooted(const ls_work *w)
{
    bool blocks = w->op == LS_COLLECTIVE_REDUCE_SCATTER || w->op == LS_COLLECTIVE_ALL_GATHER;

    return blocks && w->comm->n > 2 && w->borders[w->comm->n] > 1 && w->borders[1] == w->borders[w->comm->n];
}

ls_status list_for(ls_work *w, struct cached_list **out)
{
    ls_comm *c = w->comm;
    const struct request *r = &w->request;
    const struct algorithm *a =
        is_rooted(w) ? algorithm_named(w->op, "direct") : algorithm_choose(w->op, request_bytes(w), c->n, sums_halves(w));
    struct cached_list *oldest = &c->lists[0], *found = NULL;

    for (int i = 0; i < LISTS_KEPT && !found; i++) {
        if (same_call(&c->lists[i], w, a))
            found = &c->lists[i];
        else if (c->lists[i].used < oldest->used)
            oldest = &c->lists[i];
    }
    if (!found) LS_TRY(list_make(w, a, found = oldest));
    found->used = ++c->clock;
    LS_TRY(scratch_grow(c, found->list.scratch * MAX((size_t)4, ls_dtype_bytes(r->type))));
    *out = found;
    return LS_OK;
}

void lists_free(ls_comm *c)
{
    for (int i = 0; i < LISTS_KEPT; i++) {
        steps_free(&c->lists[i].list);
        mem_free(c->lists[i].at);
    }
    mem_free(c->scratch);
    mem_free(c->bounce);
}
