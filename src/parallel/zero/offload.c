/* offload.c - kinds of a unit that are offloaded: in a communication value between a load and the end of a save. gather.c loads parameters
 * for forward and backward, reduce.c gradients, update.c everything that an update needs.
 */
#include "parallel/zero/zero.h"

#include <string.h>

bool offload_has(const struct pass *a, const struct unit *u, enum store_kind kind)
{
    return unit_stored(a, u)->backing[kind] != BACKING_MEMORY;
}

static struct loaded *find_loaded(const struct unit *u, enum store_kind kind, const char *state)
{
    for (int k = 0; k < u->nloaded; k++)
        if (u->loaded[k].kind == kind && (kind != STORE_STATE || strcmp(u->loaded[k].state, state) == 0))
            return (struct loaded *)&u->loaded[k];
    return NULL;
}

ls_value offload_value(const struct unit *u, enum store_kind kind, const char *state)
{
    const struct loaded *x = find_loaded(u, kind, state);

    return x ? x->at : LS_NONE;
}

/* A buffer of another name than those that hold all parameters or gradients of the unit. */
static const char *loaded_name(const struct store_unit *g, enum store_kind kind, const char *state)
{
    bool part = g->sharded >> kind & 1;

    return kind == STORE_STATE ? state : kind == STORE_GRAD ? (part ? "shard of gradients" : "gradient") : part ? "shard" : "parameters";
}

ls_value offload_load(struct pass *a, struct unit *u, enum store_kind kind, const char *state, bool read)
{
    ls_program *p = a->p;
    const struct store_unit *g = unit_stored(a, u);
    struct loaded *x = find_loaded(u, kind, state);
    bool part = g->sharded >> kind & 1;

    if (x) return x->at;
    ASSERT(u->nloaded < LOADED);
    x = &u->loaded[u->nloaded++];
    *x = (struct loaded){ .kind = kind, .state = state };
    x->at = unit_value(a, u, loaded_name(g, kind, state), store_unit_type(p->store, u->index, kind), part ? g->end - g->begin : g->total);
    if (!x->at.id) return LS_NONE;
    if (kind == STORE_STATE) program_value(p, x->at)->state = state;
    value_set_place(p, x->at, unit_zero(a, u) ? LS_SHARD : LS_REPLICATE);
    if (!read) return x->at;
    struct cursor before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    program_load(p, u->index, kind, state, x->at);
    program_cursor_end(p, before);
    x->loading = true;
    return x->at;
}

void offload_wait(struct pass *a, struct unit *u)
{
    struct cursor before = program_cursor_phase(a->p, LS_PHASE_COMMUNICATE);

    for (int k = 0; k < u->nloaded; k++) {
        struct loaded *x = &u->loaded[k];

        if (x->loading) program_load_wait(a->p, u->index, x->kind, x->state, x->at);
        x->loading = false;
    }
    program_cursor_end(a->p, before);
}

void offload_save(struct pass *a, struct unit *u, enum store_kind kind, const char *state)
{
    struct loaded *x = find_loaded(u, kind, state);
    struct cursor before = program_cursor_phase(a->p, LS_PHASE_COMMUNICATE);

    ASSERT(x && !x->loading && !x->saving);
    program_save(a->p, u->index, kind, state, x->at);
    x->saving = true;
    program_cursor_end(a->p, before);
}

void offload_end(struct pass *a, struct unit *u)
{
    struct cursor before = program_cursor_phase(a->p, LS_PHASE_COMMUNICATE);

    offload_wait(a, u);
    for (int k = 0; k < u->nloaded; k++) {
        struct loaded *x = &u->loaded[k];

        if (x->saving) program_save_wait(a->p, u->index, x->kind, x->state, x->at);
    }
    u->nloaded = 0;
    program_cursor_end(a->p, before);
}
