/* load.c - a checkpoint's folder -> a store and a training state: everything is checked, then everything is copied.
 *
 * What each tensor of the store gets (rule 3 of checkpoint.h), with P the saved parameter and M the saved master copy:
 *   the truth of a parameter     M where there is one, else P
 *   parameter of the saved type  P, bit for bit
 *   parameter of another type    the truth, rounded to nearest even
 *   master                       the truth
 *   another state                the saved state of that name, only with LS_LOAD_OPTIMIZER
 * A tensor in slices is put together first, so that shards of any layout load into a store that holds any part of it.
 */
#include "lockstep/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "program/store.h"

struct loader {
    const char          *path;
    struct manifest     *manifest;
    struct safetensors **shard;  /* [nfiles]; NULL: no tensor of the manifest is in that file */
    ls_store            *store;
    int                  flags;
};

/* "[2,3]" */
static const char *shape_text(char out[LS_DIMS * 24], int ndim, const size_t *size)
{
    size_t at = 1;

    strcpy(out, "[");
    for (int d = 0; d < ndim; d++)
        at += (size_t)sprintf(out + at, "%s%zu", d ? "," : "", size[d]);
    strcpy(out + at, "]");
    return out;
}

/* ---- the manifest against the shards ---- */

static ls_status check_slice(const struct loader *l, const ls_checkpoint_entry *e)
{
    struct safetensors *shard = l->shard[e->file];
    char *key = manifest_key(e), want[LS_DIMS * 24], got[LS_DIMS * 24];
    const struct safetensor *t = key ? safetensors_find(shard, key) : NULL;
    ls_status st = LS_OK;

    if (!key)
        st = LS_ENOMEM;
    else if (!t)
        st = ls_fail(LS_EFORMAT, "%s: tensor '%s' is missing; the manifest lists it", safetensors_path(shard), key);
    else if (t->type != e->type || t->ndim != e->ndim || memcmp(t->size, e->extent, sizeof t->size) != 0)
        st = ls_fail(LS_EFORMAT, "%s: tensor '%s' is %s %s, the manifest says %s %s", safetensors_path(shard), key,
                     t->type_name, shape_text(got, t->ndim, t->size), ls_dtype_safetensors(e->type),
                     shape_text(want, e->ndim, e->extent));
    mem_free(key);
    return st;
}

static ls_status open_shard(struct loader *l, size_t file)
{
    char *path;
    ls_status st;

    if (l->shard[file])
        return LS_OK;
    path = file_path("%s/%s", l->path, l->manifest->info.files[file].name);
    if (!path)
        return LS_ENOMEM;
    st = safetensors_open(path, &l->shard[file]);
    mem_free(path);
    return st;
}

static ls_status check_shards(struct loader *l)
{
    const ls_checkpoint_info *info = &l->manifest->info;
    size_t found = 0;

    for (size_t i = 0; i < info->nentries; i++) {
        LS_TRY(open_shard(l, info->entries[i].file));
        LS_TRY(check_slice(l, &info->entries[i]));
    }
    for (size_t i = 0; i < info->nfiles; i++)
        found += l->shard[i] ? safetensors_count(l->shard[i]) : 0;
    if (found != info->nentries)
        return ls_fail(LS_EFORMAT, "%s: %zu tensors listed, %zu found", l->path, info->nentries, found);
    return LS_OK;
}

/* ---- the manifest against the store ---- */

static ls_status check_parameter(const struct loader *l, size_t i)
{
    const char *name = ls_store_name(l->store, i);
    char saved[LS_DIMS * 24], mine[LS_DIMS * 24];
    size_t n, size[LS_DIMS] = { 0 };
    const ls_checkpoint_entry *const *slice = manifest_find(l->manifest, KIND_PARAMETER, name, &n);

    if (n == 0)
        return ls_fail(LS_EINVAL, "%s: a checkpoint of another model: it has no parameter '%s'", l->path, name);
    for (int d = 0; d < ls_store_ndim(l->store, i); d++)
        size[d] = ls_store_size(l->store, i, d);
    if (slice[0]->ndim != ls_store_ndim(l->store, i) || memcmp(slice[0]->size, size, sizeof size) != 0)
        return ls_fail(LS_EINVAL, "%s: a checkpoint of another model: its '%s' is %s, this model's is %s", l->path,
                       name, shape_text(saved, slice[0]->ndim, slice[0]->size),
                       shape_text(mine, ls_store_ndim(l->store, i), size));
    return LS_OK;
}

static bool store_has_state(const ls_store *s, size_t i, const char *kind)
{
    for (int k = 0; k < ls_store_states(s, i); k++)
        if (strcmp(ls_store_state_name(s, i, k), kind) == 0)
            return true;
    return false;
}

/* The states of parameter i: what the store wants must have been saved. */
static ls_status check_states(const struct loader *l, size_t i)
{
    const ls_train_state *s = &l->manifest->info.state;
    size_t n;

    for (int k = 0; k < ls_store_states(l->store, i); k++) {
        const char *kind = ls_store_state_name(l->store, i, k);

        manifest_find(l->manifest, kind, ls_store_name(l->store, i), &n);
        if (n == 0 && strcmp(kind, KIND_MASTER) != 0)
            return ls_fail(LS_EINVAL, "%s: no optimizer state '%s' of '%s': it was saved with optimizer '%s'", l->path,
                           kind, ls_store_name(l->store, i), s->optimizer);
    }
    return LS_OK;
}

/* An entry of the manifest: a parameter of the store, or a state that the store has. */
static ls_status check_entry(const struct loader *l, const ls_checkpoint_entry *e)
{
    int i = ls_store_find(l->store, e->name);
    char saved[LS_DIMS * 24];

    if (i < 0)
        return ls_fail(LS_EINVAL, "%s: a checkpoint of another model: its %s '%s' %s is none of this model's", l->path,
                       e->kind, e->name, shape_text(saved, e->ndim, e->size));
    if (strcmp(e->kind, KIND_PARAMETER) == 0 || strcmp(e->kind, KIND_MASTER) == 0 || !(l->flags & LS_LOAD_OPTIMIZER))
        return LS_OK;
    if (!store_has_state(l->store, (size_t)i, e->kind))
        return ls_fail(LS_EINVAL, "%s: optimizer state '%s' of '%s' has no place: it was saved with optimizer '%s'",
                       l->path, e->kind, e->name, l->manifest->info.state.optimizer);
    return LS_OK;
}

/* A state has its parameter's shape. */
static ls_status check_state_shapes(const struct loader *l)
{
    const ls_checkpoint_info *info = &l->manifest->info;
    size_t n;

    for (size_t i = 0; i < info->nentries; i++) {
        const ls_checkpoint_entry *e = &info->entries[i];
        const ls_checkpoint_entry *const *p = manifest_find(l->manifest, KIND_PARAMETER, e->name, &n);

        if (n == 0 || p[0]->ndim != e->ndim || memcmp(p[0]->size, e->size, sizeof e->size) != 0)
            return ls_fail(LS_EFORMAT, "%s: %s '%s' has not its parameter's shape", l->path, e->kind, e->name);
    }
    return LS_OK;
}

static ls_status check_store(const struct loader *l)
{
    const ls_checkpoint_info *info = &l->manifest->info;

    for (size_t i = 0; i < ls_store_count(l->store); i++)
        LS_TRY(check_parameter(l, i));
    for (size_t i = 0; i < info->nentries; i++)
        LS_TRY(check_entry(l, &info->entries[i]));
    if (l->flags & LS_LOAD_OPTIMIZER)
        for (size_t i = 0; i < ls_store_count(l->store); i++)
            LS_TRY(check_states(l, i));
    return check_state_shapes(l);
}

/* ---- copying ---- */

static ls_status copy_slice(const struct loader *l, const ls_checkpoint_entry *e, ls_tensor *to)
{
    char *key = manifest_key(e);
    const struct safetensor *t = key ? safetensors_find(l->shard[e->file], key) : NULL;
    ptrdiff_t stride[LS_DIMS], first = 0;
    const void *data;
    void *copy = NULL;
    ls_tensor *view = NULL;
    ls_status st = LS_ENOMEM;

    mem_free(key);
    if (!t)
        return LS_ENOMEM;  /* check_slice() has seen it: only the key can be missing */
    for (int d = 0; d < e->ndim; d++) {
        stride[d] = ls_tensor_stride(to, d);
        first += stride[d] * (ptrdiff_t)e->offset[d];
    }
    data = safetensor_aligned(t, &copy);
    if (data)
        st = ls_tensor_view(to, e->ndim, e->extent, stride, first, &view);
    if (st == LS_OK)
        st = ls_tensor_write(view, data, e->type, t->count);
    ls_tensor_release(&view);
    mem_free(copy);
    return st;
}

/* A tensor that is one slice goes from the file into the store. */
static ls_status copy_whole(const struct loader *l, const ls_checkpoint_entry *e, size_t i, const char *to)
{
    char *key = manifest_key(e);
    const struct safetensor *t = key ? safetensors_find(l->shard[e->file], key) : NULL;
    const void *data = NULL;
    void *copy = NULL;
    ls_status st = LS_ENOMEM;

    mem_free(key);
    if (t)
        data = safetensor_aligned(t, &copy);
    if (data)
        st = ls_store_write(l->store, i, to, data, e->type, t->count);
    mem_free(copy);
    return st;
}

/* Several slices are put together first. */
static ls_status copy_slices(const struct loader *l, const ls_checkpoint_entry *const *slice, size_t n, size_t i, const char *to)
{
    ls_dtype type = store_type(l->store, strcmp(to, KIND_PARAMETER) == 0 ? STORE_VALUE : STORE_STATE);
    ls_tensor *whole;
    ls_status st = LS_OK;

    LS_TRY(ls_tensor_new("cpu", type, slice[0]->ndim, slice[0]->size, LS_OTHER, &whole));
    for (size_t k = 0; k < n && st == LS_OK; k++)
        st = copy_slice(l, slice[k], whole);
    if (st == LS_OK)
        st = ls_store_write(l->store, i, to, ls_tensor_data(whole), type, ls_tensor_count(whole));
    ls_tensor_release(&whole);
    return st;
}

/* The saved `kind` of parameter i into the store's `to`. */
static ls_status copy_tensor(const struct loader *l, const char *kind, size_t i, const char *to)
{
    size_t n;
    const ls_checkpoint_entry *const *slice = manifest_find(l->manifest, kind, ls_store_name(l->store, i), &n);

    return n == 1 ? copy_whole(l, slice[0], i, to) : copy_slices(l, slice, n, i, to);
}

static ls_status copy_parameter(const struct loader *l, size_t i)
{
    size_t masters;

    manifest_find(l->manifest, KIND_MASTER, ls_store_name(l->store, i), &masters);
    const char *truth = masters ? KIND_MASTER : KIND_PARAMETER;
    bool same = store_type(l->store, STORE_VALUE) == l->manifest->info.type;

    LS_TRY(copy_tensor(l, same ? KIND_PARAMETER : truth, i, KIND_PARAMETER));
    for (int k = 0; k < ls_store_states(l->store, i); k++) {
        const char *kind = ls_store_state_name(l->store, i, k);

        if (strcmp(kind, KIND_MASTER) == 0)
            LS_TRY(copy_tensor(l, truth, i, kind));
        else if (l->flags & LS_LOAD_OPTIMIZER)
            LS_TRY(copy_tensor(l, kind, i, kind));
    }
    return LS_OK;
}

static ls_status load(struct loader *l)
{
    LS_TRY(folder_check(l->path, l->flags & LS_LOAD_VERIFY, &l->manifest));
    l->shard = mem_array(MEM_OTHER, l->manifest->info.nfiles, sizeof *l->shard);
    if (!l->shard)
        return LS_ENOMEM;
    LS_TRY(check_store(l));
    LS_TRY(check_shards(l));
    LS_TRY(ls_store_allocate(l->store));
    for (size_t i = 0; i < ls_store_count(l->store); i++)
        LS_TRY(copy_parameter(l, i));
    return LS_OK;
}

ls_status ls_checkpoint_load(const char *path, ls_store *store, int flags, ls_train_state *state)
{
    struct loader l = { .path = path, .store = store, .flags = flags };
    ls_status st = load(&l);

    if (st == LS_OK && state)
        *state = l.manifest->info.state;
    for (size_t i = 0; l.shard && i < l.manifest->info.nfiles; i++)
        safetensors_close(&l.shard[i]);
    mem_free(l.shard);
    manifest_release(&l.manifest);
    return st;
}
