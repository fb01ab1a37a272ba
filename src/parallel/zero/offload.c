/* offload.c - optimizer states that are offloaded between updates: a unit's states are loaded before the first instruction of a stage
 * that reads them, and the changed ones are saved after the last.
 */
#include "parallel/zero/zero.h"

#include <string.h>

ls_value offload_state(struct pass *a, struct unit *u, const char *state)
{
    ls_program *p = a->p;
    ls_dtype type = ls_store_settings(p->store).type == LS_F64 ? LS_F64 : LS_F32;
    struct cursor before;
    int k = 0;

    while (k < 4 && u->state[k].id && strcmp(program_value(p, u->state[k])->state, state) != 0) k++;
    ASSERT(k < 4);
    if (u->state[k].id) return u->state[k];
    u->state[k] = unit_value(a, u, state, type, unit_end(a, u) - unit_begin(a, u));
    if (!u->state[k].id) return LS_NONE;
    program_value(p, u->state[k])->state = state;
    value_set_place(p, u->state[k], unit_zero(a, u) ? LS_SHARD : LS_REPLICATE);
    before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    program_load(p, u->group, state, u->state[k]);
    program_cursor_end(p, before);
    return u->state[k];
}

void offload_save(struct pass *a, struct unit *u, bool (*written)(const void *ctx, const char *state), const void *ctx)
{
    struct cursor before = program_cursor_phase(a->p, LS_PHASE_COMMUNICATE);

    for (int k = 0; k < 4; k++) {
        const char *state = u->state[k].id ? program_value(a->p, u->state[k])->state : NULL;

        if (state && written(ctx, state)) program_save(a->p, u->group, state, u->state[k]);
        u->state[k] = LS_NONE;
    }
    program_cursor_end(a->p, before);
}
