/* save.c - a store and a training state -> a checkpoint's folder.
 *
 * What is to be saved is first listed (struct contents: entries and the tensors behind them), then written from the
 * list alone; a copy of the tensors in between would let training go on while the writing lasts. All is written to
 * step_NNNNNNNN.tmp: shards, copied files, then the manifest, each synced; then the folder takes its name.
 */
#include "lockstep/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/train_state.h"
#include "device/device.h"

enum { SHARD_PARAMETERS, SHARD_OPTIMIZER, SHARDS };
static char shard_names[SHARDS][40] = { "parameters_0000_of_0001.safetensors", "optimizer_0000_of_0001.safetensors" };

/* Names inside info are borrowed: from the store, the table above, the caller's paths. */
struct contents {
    ls_checkpoint_info   info;
    ls_tensor          **tensor;         /* [info.nentries] */
    const struct device *device;         /* of the tensors */
    size_t               nshards;
    const char *const   *files;          /* paths of info.files[nshards ..] */
};

static void contents_free(struct contents *c)
{
    mem_free(c->info.files);
    mem_free(c->info.entries);
    mem_free(c->tensor);
}

static ls_status add_entry(struct contents *c, const char *name, const char *kind, size_t file, ls_tensor *t)
{
    ls_checkpoint_entry *e = &c->info.entries[c->info.nentries];

    if (!t)
        return ls_fail(LS_EINVAL, "checkpoint: %s of '%s' is not allocated", kind, name);
    e->name = (char *)name;
    e->kind = (char *)kind;
    e->type = ls_tensor_dtype(t);
    e->ndim = ls_tensor_ndim(t);
    for (int d = 0; d < e->ndim; d++)
        e->size[d] = e->extent[d] = ls_tensor_size(t, d);
    e->file = file;
    c->tensor[c->info.nentries++] = t;
    return LS_OK;
}

static ls_status list_tensors(struct contents *c, const ls_store *s)
{
    size_t n = ls_store_count(s), states = 0;

    for (size_t i = 0; i < n; i++)
        states += (size_t)ls_store_states(s, i);
    c->device = device_find(ls_store_settings(s).device);
    c->nshards = states ? SHARDS : SHARD_OPTIMIZER;
    c->info.entries = mem_array(MEM_OTHER, n + states, sizeof *c->info.entries);
    c->tensor = mem_array(MEM_OTHER, n + states, sizeof *c->tensor);
    if (!c->info.entries || !c->tensor)
        return LS_ENOMEM;
    for (size_t i = 0; i < n; i++)
        LS_TRY(add_entry(c, ls_store_name(s, i), KIND_PARAMETER, SHARD_PARAMETERS, ls_store_value(s, i)));
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < ls_store_states(s, i); k++) {
            const char *kind = ls_store_state_name(s, i, k);

            LS_TRY(add_entry(c, ls_store_name(s, i), kind, SHARD_OPTIMIZER, ls_store_state(s, i, kind)));
        }
    return LS_OK;
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

static ls_status put_tensor(struct safetensors_writer *w, const ls_tensor *t, const struct device *device)
{
    size_t count = ls_tensor_count(t), bytes = count * ls_dtype_bytes(ls_tensor_dtype(t));
    ls_status st;

    if (device->host_visible && ls_tensor_is_contiguous(t)) {
        device->sync();
        return safetensors_put(w, ls_tensor_data(t), bytes);
    }
    void *host = mem_alloc(MEM_OTHER, bytes);
    if (!host)
        return LS_ENOMEM;
    st = ls_tensor_read(t, host, ls_tensor_dtype(t), count);
    if (st == LS_OK)
        st = safetensors_put(w, host, bytes);
    mem_free(host);
    return st;
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
        st = put_tensor(w, c->tensor[which[i]], c->device);
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

ls_status ls_checkpoint_save(const char *root, const ls_store *store, const ls_model *model,
                             const ls_train_state *state, const char *const *files)
{
    struct contents c = { .info = { .has_model = model != NULL, .state = *state } };
    char *path = folder_of_step(root, state->step), *tmp = path ? file_path("%s.tmp", path) : NULL;
    ls_status st = tmp ? train_state_check(state) : LS_ENOMEM;

    if (st == LS_OK && model) {
        c.info.model = *model;
        st = ls_model_check(&c.info.model);
    }
    if (st == LS_OK)
        st = list_tensors(&c, store);
    if (st == LS_OK)
        st = list_files(&c, files);
    if (st == LS_OK)
        st = folder_sweep(root);
    if (st == LS_OK)
        st = write_folder(&c, tmp, path);
    contents_free(&c);
    mem_free(path);
    mem_free(tmp);
    return st;
}
