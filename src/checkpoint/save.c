/* save.c - a store and a training state -> a checkpoint's folder.
 *
 * What is to be saved is first listed (struct contents), then written in the order of the list to step_NNNNNNNN.tmp: shards,
 * copied files, then the manifest, each synced; then the folder takes its name.
 *
 * On several ranks rank 0 writes alone. What lies in parts is gathered one tensor at a time into one buffer of the largest, so
 * all ranks walk the list in its order; when writing fails, rank 0 takes part in the gathers that are left, and all ranks get
 * the outcome.
 */
#include "lockstep/checkpoint.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "checkpoint/agree.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/train_state.h"
#include "device/device.h"
#include "program/store.h"

enum { SHARD_PARAMETERS, SHARD_OPTIMIZER, SHARDS };
static char shard_names[SHARDS][40] = { "parameters_0000_of_0001.safetensors", "optimizer_0000_of_0001.safetensors" };

/* Names inside info are borrowed: from the store, the table above, the caller's paths. */
struct contents {
    ls_checkpoint_info   info;
    const ls_store      *store;
    size_t              *param;          /* [info.nentries]: number in the store */
    size_t               gathered;       /* entries [0, gathered) have been through their gather */
    void                *buffer;         /* of the largest entry that is not a whole tensor here; NULL: there is none */
    size_t               buffer_bytes;
    size_t               nshards;
    const char *const   *files;          /* paths of info.files[nshards ..] */
};

static void contents_free(struct contents *c)
{
    mem_free(c->info.files);
    mem_free(c->info.entries);
    mem_free(c->param);
    mem_free(c->buffer);
}

/* The tensor of the entry when it is whole, contiguous and within the processor's reach; else NULL. */
static const ls_tensor *whole_tensor(const struct contents *c, size_t entry)
{
    const ls_checkpoint_entry *e = &c->info.entries[entry];
    bool value = strcmp(e->kind, KIND_PARAMETER) == 0;
    const ls_tensor *t = value ? ls_store_value(c->store, c->param[entry]) : ls_store_state(c->store, c->param[entry], e->kind);
    const struct device *device = device_find(ls_store_settings(c->store).device);

    if (!t || !device->host_visible || store_sharded(c->store, c->param[entry], value ? STORE_VALUE : STORE_STATE))
        return NULL;
    return ls_tensor_is_contiguous(t) ? t : NULL;
}

static size_t entry_count(const ls_checkpoint_entry *e)
{
    size_t n = 1;

    for (int d = 0; d < e->ndim; d++)
        n *= e->size[d];
    return n;
}

static ls_status add_entry(struct contents *c, size_t i, const char *kind, size_t file, enum store_kind k)
{
    ls_checkpoint_entry *e = &c->info.entries[c->info.nentries];

    if (!ls_store_value(c->store, i) || !store_is_allocated(c->store, i, k, kind))
        return ls_fail(LS_EINVAL, "checkpoint: %s of '%s' is not allocated", kind, ls_store_name(c->store, i));
    e->name = (char *)ls_store_name(c->store, i);
    e->kind = (char *)kind;
    e->type = store_type(c->store, k);
    e->ndim = ls_store_ndim(c->store, i);
    for (int d = 0; d < e->ndim; d++)
        e->size[d] = e->extent[d] = ls_store_size(c->store, i, d);
    e->file = file;
    c->param[c->info.nentries] = i;
    if (!whole_tensor(c, c->info.nentries))
        c->buffer_bytes = MAX(c->buffer_bytes, entry_count(e) * ls_dtype_bytes(e->type));
    c->info.nentries++;
    return LS_OK;
}

static ls_status list_tensors(struct contents *c)
{
    const ls_store *s = c->store;
    size_t n = ls_store_count(s), states = 0;

    for (size_t i = 0; i < n; i++)
        states += (size_t)ls_store_states(s, i);
    c->nshards = states ? SHARDS : SHARD_OPTIMIZER;
    c->info.entries = mem_array(MEM_OTHER, n + states, sizeof *c->info.entries);
    c->param = mem_array(MEM_OTHER, n + states, sizeof *c->param);
    if (!c->info.entries || !c->param)
        return LS_ENOMEM;
    for (size_t i = 0; i < n; i++)
        LS_TRY(add_entry(c, i, KIND_PARAMETER, SHARD_PARAMETERS, STORE_VALUE));
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < ls_store_states(s, i); k++)
            LS_TRY(add_entry(c, i, ls_store_state_name(s, i, k), SHARD_OPTIMIZER, STORE_STATE));
    if (!c->buffer_bytes)
        return LS_OK;
    c->buffer = mem_alloc(MEM_OTHER, c->buffer_bytes);
    return c->buffer ? LS_OK : LS_ENOMEM;
}

static const char *basename_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static ls_status list_files(struct contents *c, const char *const *files)
{
    ls_checkpoint_file *f;
    size_t n = 0;

    while (files && files[n])
        n++;
    f = c->info.files = mem_array(MEM_OTHER, c->nshards + n, sizeof *f);
    if (!f)
        return LS_ENOMEM;
    c->files = files;
    c->info.nfiles = c->nshards + n;
    for (size_t i = 0; i < c->info.nfiles; i++) {
        f[i].name = i < c->nshards ? shard_names[i] : (char *)basename_of(files[i - c->nshards]);
        if (!file_is_basename(f[i].name) || strcmp(f[i].name, MANIFEST_NAME) == 0)
            return ls_fail(LS_EINVAL, "checkpoint: a file cannot be copied along as '%s'", f[i].name);
        for (size_t k = 0; k < i; k++)
            if (strcmp(f[k].name, f[i].name) == 0)
                return ls_fail(LS_EINVAL, "checkpoint: two files would be copied along as '%s'", f[i].name);
    }
    return LS_OK;
}

/* ---- writing ---- */

/* The next entry in the order of the list; *data is its elements. Collective where it lies in parts. */
static ls_status next_entry(struct contents *c, const void **data)
{
    size_t entry = c->gathered++;
    const ls_checkpoint_entry *e = &c->info.entries[entry];
    const ls_tensor *t = whole_tensor(c, entry);

    *data = t ? ls_tensor_data(t) : c->buffer;
    if (!t)
        return ls_store_read(c->store, c->param[entry], e->kind, c->buffer, e->type, entry_count(e));
    device_find(ls_store_settings(c->store).device)->sync();
    return LS_OK;
}

static ls_status put_tensor(struct contents *c, struct safetensors_writer *w, size_t entry)
{
    const ls_checkpoint_entry *e = &c->info.entries[entry];
    const void *data;

    ASSERT(entry == c->gathered);
    LS_TRY(next_entry(c, &data));
    return safetensors_put(w, data, entry_count(e) * ls_dtype_bytes(e->type));
}

/* The part of those who don't write, and of one who no longer can. */
static ls_status gather_rest(struct contents *c)
{
    const void *data;

    while (c->gathered < c->info.nentries)
        LS_TRY(next_entry(c, &data));
    return LS_OK;
}

/* spec[n] and the entries' numbers in which[n], of those that go into this file. */
static ls_status specs_of(const struct contents *c, size_t file, struct safetensor_spec *spec, size_t *which, size_t *n)
{
    *n = 0;
    for (size_t i = 0; i < c->info.nentries; i++) {
        const ls_checkpoint_entry *e = &c->info.entries[i];

        if (e->file != file)
            continue;
        spec[*n].name = manifest_key(e);
        if (!spec[*n].name)
            return LS_ENOMEM;
        spec[*n].type = e->type;
        spec[*n].ndim = e->ndim;
        memcpy(spec[*n].size, e->extent, sizeof e->extent);
        which[(*n)++] = i;
    }
    return LS_OK;
}

static ls_status write_tensors(struct contents *c, size_t file, const char *path, size_t n,
                               const struct safetensor_spec *spec, const size_t *which)
{
    ls_checkpoint_file *f = &c->info.files[file];
    struct safetensors_writer *w;
    ls_status st = LS_OK;

    LS_TRY(safetensors_create(path, n, spec, &w));
    for (size_t i = 0; i < n && st == LS_OK; i++)
        st = put_tensor(c, w, which[i]);
    if (st == LS_OK)
        return safetensors_publish(&w, &f->bytes, f->hash);
    safetensors_abandon(&w);
    return st;
}

static ls_status write_shard(struct contents *c, size_t file, const char *path)
{
    struct safetensor_spec *spec = mem_array(MEM_OTHER, c->info.nentries, sizeof *spec);
    size_t *which = mem_array(MEM_OTHER, c->info.nentries, sizeof *which), n = 0;
    ls_status st = spec && which ? specs_of(c, file, spec, which, &n) : LS_ENOMEM;

    if (st == LS_OK)
        st = write_tensors(c, file, path, n, spec, which);
    for (size_t i = 0; i < n; i++)
        mem_free((char *)spec[i].name);
    mem_free(spec);
    mem_free(which);
    return st;
}

static ls_status copy_file(ls_checkpoint_file *f, const char *from, const char *to)
{
    struct file_map map;
    ls_status st;

    LS_TRY(file_map_open(from, &map));
    f->bytes = map.bytes;
    hash_of(map.data, map.bytes, f->hash);
    st = file_write(to, map.data, map.bytes);
    file_map_close(&map);
    return st;
}

static ls_status write_manifest(const struct contents *c, const char *path)
{
    char *text;
    size_t bytes;
    ls_status st;

    LS_TRY(manifest_format(&c->info, &text, &bytes));
    st = file_write(path, text, bytes);
    mem_free(text);
    return st;
}

/* File i of the list; the one after the last is the manifest. */
static ls_status write_one(struct contents *c, size_t i, const char *folder)
{
    char *path = file_path("%s/%s", folder, i < c->info.nfiles ? c->info.files[i].name : MANIFEST_NAME);
    ls_status st;

    if (!path)
        return LS_ENOMEM;
    if (i < c->nshards)
        st = write_shard(c, i, path);
    else if (i < c->info.nfiles)
        st = copy_file(&c->info.files[i], c->files[i - c->nshards], path);
    else
        st = write_manifest(c, path);
    mem_free(path);
    return st;
}

static ls_status write_folder(struct contents *c, const char *tmp, const char *path)
{
    ls_status st = file_make_folders(tmp);

    for (size_t i = 0; i <= c->info.nfiles && st == LS_OK; i++)
        st = write_one(c, i, tmp);
    if (st == LS_OK)
        st = folder_publish(tmp, path);
    if (st != LS_OK)
        file_remove_tree(tmp);
    return st;
}

static ls_status prepare(struct contents *c, const char *root, const ls_model *model, const char *const *files, bool writes)
{
    LS_TRY(train_state_check(&c->info.state));
    if (model) {
        c->info.model = *model;
        LS_TRY(ls_model_check(&c->info.model));
    }
    LS_TRY(list_tensors(c));
    LS_TRY(list_files(c, files));
    return writes ? folder_sweep(root) : LS_OK;
}

/* Rank 0's side once all are ready: a failure to write keeps its message while the others are not left waiting. */
static ls_status write_for_all(struct contents *c, const char *tmp, const char *path)
{
    ls_status st = write_folder(c, tmp, path);
    char message[512];

    if (st == LS_OK)
        return LS_OK;
    snprintf(message, sizeof message, "%s", ls_errmsg());
    gather_rest(c);
    return ls_fail(st, "%s", message);
}

ls_status ls_checkpoint_save_ranks(ls_comm *comm, const char *root, const ls_store *store, const ls_model *model,
                                   const ls_train_state *state, const char *const *files)
{
    struct contents c = { .info = { .has_model = model != NULL, .state = *state }, .store = store };
    char *path = folder_of_step(root, state->step), *tmp = path ? file_path("%s.tmp", path) : NULL;
    bool writes = !comm || ls_comm_rank(comm) == 0;
    ls_status st = tmp ? prepare(&c, root, model, files, writes) : LS_ENOMEM;

    st = agree(comm, st);
    if (st == LS_OK) {
        st = writes ? write_for_all(&c, tmp, path) : gather_rest(&c);
        st = agree(comm, st);
    }
    contents_free(&c);
    mem_free(path);
    mem_free(tmp);
    return st;
}

ls_status ls_checkpoint_save(const char *root, const ls_store *store, const ls_model *model,
                             const ls_train_state *state, const char *const *files)
{
    for (size_t i = 0; i < ls_store_count(store); i++)
        if (store_sharded(store, i, STORE_VALUE) || store_sharded(store, i, STORE_STATE))
            return ls_fail(LS_EINVAL, "checkpoint: '%s' lies in parts on several ranks, which save it together "
                           "(ls_checkpoint_save_ranks)", ls_store_name(store, i));
    return ls_checkpoint_save_ranks(NULL, root, store, model, state, files);
}
