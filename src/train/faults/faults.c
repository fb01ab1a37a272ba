/* faults.c - the table of injected faults, when they are armed, and the hooks of a step. */
#include "train/faults/faults.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "checkpoint/manifest.h"
#include "runtime/store.h"
#include "train/faults/fault_edit.h"
#include "train/faults/fault_kinds.h"
#include "train/faults/fault_points.h"

/* ---- the table ---- */

static const struct {
    const char *name, *what;
} faults_rows[FAULTS] = {
#define FAULT_ROW(id, name, what, ...)      [FAULT_##id] = { #name, what },
#define FAULT_KIND_ROWS(kind, of_kind, ...) of_kind(FAULT_ROW)
    [FAULT_NONE] = { "none", "" }, FAULT_KIND_MAP(FAULT_KIND_ROWS)
#undef FAULT_KIND_ROWS
#undef FAULT_ROW
};

static const struct {
    enum fault end; /* the first fault of the next kind */
    const char *heading;
} faults_kinds[] = {
#define FAULT_KIND(kind, of_kind, given, option, heading) { (enum fault)FAULT_END_##kind, heading },
    FAULT_KIND_MAP(FAULT_KIND)
#undef FAULT_KIND
};

bool faults_built(void) { return true; }
const char *fault_name(enum fault f) { return faults_rows[f].name; }
const char *fault_what(enum fault f) { return faults_rows[f].what; }

const char *fault_heading(enum fault f)
{
    enum fault first = (enum fault)(FAULT_NONE + 1);

    for (size_t k = 0; k < COUNT_OF(faults_kinds); first = faults_kinds[k++].end)
        if (f == first) return faults_kinds[k].heading[0] ? faults_kinds[k].heading : NULL;
    return NULL;
}

/* ---- faults of a process and of a run ---- */

void faults_arm(const struct config *c, enum fault_when when, int rank)
{
#define FAULT_ARM(id, name, what, when_, arm) \
    if (when == WHEN_##when_) arm(c->debug.name);
    FAULT_ALLOCATION_MAP(FAULT_ARM)
    FAULT_WRITE_MAP(FAULT_ARM)
#undef FAULT_ARM
    fault_slow_arm(c, when, rank);
}

void faults_disarm(void)
{
#define FAULT_DISARM(id, name, what, when, arm) \
    if (WHEN_##when != WHEN_STARTING) arm(0);
    FAULT_ALLOCATION_MAP(FAULT_DISARM)
    FAULT_WRITE_MAP(FAULT_DISARM)
#undef FAULT_DISARM
    fault_slow_disarm();
}

/* ---- edits of a program ---- */

enum { AFTER_HOOK = -1 };

static const struct {
    int after;
    fault_edit_fn *edit;
} edits[] = {
#define FAULT_EDIT_ROW(id, name, what, after, arm, ...) [FAULT_##id] = { AFTER_##after, FAULT_EDIT_OF_##after(arm) },
    [FAULT_NONE] = { AFTER_HOOK, NULL }, FAULT_STEP_MAP(FAULT_EDIT_ROW)
#undef FAULT_EDIT_ROW
};

static ls_status edit(ls_program *p, enum edit_after after, const void *ctx)
{
    const struct injection *i = ctx;

    return edits[i->fault].after == (int)after ? edits[i->fault].edit(p, i) : LS_OK;
}

void fault_inject(ls_program *p, const struct injection *i)
{
    if (i->fault != FAULT_NONE) p->arguments.edit = (struct edit){ edit, i, !i->checked };
}

/* ---- hooks of a step ---- */

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
