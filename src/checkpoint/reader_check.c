/* reader_check.c - compares a checkpoint with a store: names, shapes and optimizer state, before anything is copied. */
#include "checkpoint/reader.h"

#include <string.h>
#include "base/base.h"
#include "runtime/store.h"

static ls_status check_parameter(const struct saved *s, const ls_store *store, size_t i)
{
    const char *name = ls_store_name(store, i);
    char saved[SHAPE_ROOM], mine[SHAPE_ROOM];
    size_t n, size[LS_DIMS] = { 0 };
    const ls_checkpoint_entry *const *shard = manifest_find(s->manifest, KIND_PARAMETER, name, &n);

    if (n == 0) return ls_fail(LS_EINVAL, "%s: a checkpoint of another model: it has no parameter '%s'", s->path, name);
    for (int d = 0; d < ls_store_ndim(store, i); d++) size[d] = ls_store_size(store, i, d);
    if (shard[0]->ndim != ls_store_ndim(store, i) || memcmp(shard[0]->size, size, sizeof size) != 0)
        return ls_fail(LS_EINVAL, "%s: a checkpoint of another model: its '%s' is %s, but this model's is %s", s->path, name,
                       shape_text(saved, shard[0]->ndim, shard[0]->size), shape_text(mine, ls_store_ndim(store, i), size));
    return LS_OK;
}

static bool store_has_state(const ls_store *s, size_t i, const char *kind)
{
    for (int k = 0; k < ls_store_states(s, i); k++)
        if (strcmp(ls_store_state_name(s, i, k), kind) == 0) return true;
    return false;
}

/* Checks the states of parameter i: those that the store needs must have been saved. */
static ls_status check_states(const struct saved *s, const ls_store *store, size_t i)
{
    for (int k = 0; k < ls_store_states(store, i); k++) {
        const char *kind = ls_store_state_name(store, i, k);

        if (strcmp(kind, KIND_MASTER) != 0 && !saved_has(s, kind, ls_store_name(store, i)))
            return ls_fail(LS_EINVAL, "%s: no optimizer state '%s' of '%s': it was saved with optimizer '%s'", s->path, kind,
                           ls_store_name(store, i), s->manifest->info.state.optimizer);
    }
    return LS_OK;
}

/* Checks an entry of the manifest: it must be a parameter of the store, or a state that the store has. */
static ls_status check_entry(const struct saved *s, const ls_store *store, const ls_checkpoint_entry *e, bool optimizer)
{
    int i = ls_store_find(store, e->name);
    char saved[SHAPE_ROOM];

    if (i < 0)
        return ls_fail(LS_EINVAL, "%s: a checkpoint of another model: its %s '%s' %s does not belong to this model", s->path, e->kind,
                       e->name, shape_text(saved, e->ndim, e->size));
    if (strcmp(e->kind, KIND_PARAMETER) == 0 || strcmp(e->kind, KIND_MASTER) == 0 || !optimizer) return LS_OK;
    if (store_is_here(store, (size_t)i) && !store_has_state(store, (size_t)i, e->kind))
        return ls_fail(LS_EINVAL, "%s: optimizer state '%s' of '%s' is not used here: it was saved with optimizer '%s'", s->path, e->kind,
                       e->name, s->manifest->info.state.optimizer);
    return LS_OK;
}

/* A state has its parameter's shape. */
static ls_status check_state_shapes(const struct saved *s)
{
    const ls_checkpoint_info *info = &s->manifest->info;
    size_t n;

    for (size_t i = 0; i < info->nentries; i++) {
        const ls_checkpoint_entry *e = &info->entries[i];
        const ls_checkpoint_entry *const *p = manifest_find(s->manifest, KIND_PARAMETER, e->name, &n);

        if (n == 0 || p[0]->ndim != e->ndim || memcmp(p[0]->size, e->size, sizeof e->size) != 0)
            return ls_fail(LS_EFORMAT, "%s: %s '%s' does not have its parameter's shape", s->path, e->kind, e->name);
    }
    return LS_OK;
}

ls_status saved_check_store(const struct saved *s, const ls_store *store, bool optimizer)
{
    const ls_checkpoint_info *info = &s->manifest->info;

    for (size_t i = 0; i < ls_store_count(store); i++) LS_TRY(check_parameter(s, store, i));
    for (size_t i = 0; i < info->nentries; i++) LS_TRY(check_entry(s, store, &info->entries[i], optimizer));
    for (size_t i = 0; optimizer && i < ls_store_count(store); i++) LS_TRY(check_states(s, store, i));
    return check_state_shapes(s);
}
