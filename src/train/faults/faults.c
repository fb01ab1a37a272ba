/* faults.c - the table of injected faults, and the faults that are not program edits. */
#include "train/faults/faults.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "checkpoint/manifest.h"
#include "runtime/store.h"
#include "train/faults/fault_edit.h"

enum { AFTER_NONE = -1 };

static const struct {
    const char *name, *what;
    int after;
    fault_edit_fn *edit;
} rows[FAULTS] = {
#define FAULT_ROW(id, name, what, after, edit, ...) [FAULT_##id] = { #name, what, AFTER_##after, edit_##edit },
    [FAULT_NONE] = { "none", "", AFTER_NONE, NULL }, FAULT_MAP(FAULT_ROW)
#undef FAULT_ROW
};

bool faults_built(void) { return true; }
const char *fault_name(enum fault f) { return rows[f].name; }
const char *fault_what(enum fault f) { return rows[f].what; }

static ls_status edit(ls_program *p, enum edit_after after, const void *ctx)
{
    const struct injection *i = ctx;

    return rows[i->fault].after == (int)after ? rows[i->fault].edit(p, i) : LS_OK;
}

void fault_inject(ls_program *p, const struct injection *i)
{
    if (i->fault != FAULT_NONE) p->edit = (struct edit){ edit, i, !i->checked };
}

/* ---- faults that are not program edits ---- */

uint64_t fault_seed(const struct injection *i, int rank, uint64_t seed) { return i->fault == FAULT_SEED ? seed + (uint64_t)rank : seed; }

int64_t fault_count(const struct injection *i, int64_t all, int64_t own) { return i->fault == FAULT_MEAN_OF_MEANS ? own : all; }

/* Sets a state to zeros, as it was before the checkpoint was loaded. */
static ls_status clear_state(ls_store *s, size_t i, const char *state)
{
    static const float zeros[4096];
    size_t begin, end, n;

    store_held(s, i, STORE_STATE, &begin, &end);
    for (size_t from = begin; from < end; from += n) {
        n = MIN(COUNT_OF(zeros), end - from);
        LS_TRY(store_write_part(s, i, STORE_STATE, state, from, n, zeros, LS_F32));
    }
    return LS_OK;
}

ls_status fault_restored(const struct injection *i, ls_store *store)
{
    for (size_t k = 0; k < ls_store_count(store) && i->fault == FAULT_MOMENTS; k++)
        for (int state = 0; store_is_here(store, k) && state < ls_store_states(store, k); state++)
            if (strcmp(ls_store_state_name(store, k, state), KIND_MASTER) != 0)
                LS_TRY(clear_state(store, k, ls_store_state_name(store, k, state)));
    return LS_OK;
}
