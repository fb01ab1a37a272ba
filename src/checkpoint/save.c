/* save.c - saves a store and a training state to a checkpoint's folder.
 *
 * First all ranks make the same list of what to save (contents.h) from their claims (save_plan.h): each file of tensors belongs to one
 * rank, and has its shards of the tensors one after another. Nothing is gathered, and memory besides the store is one chunk. While it is
 * written, the folder is step_NNNNNNNN.tmp: rank 0 creates it, each rank writes its files, and rank 0 writes the files that are copied
 * along and, with the hashes from the other ranks, the manifest; everything is synced. Then the folder is renamed. After each of these
 * steps all ranks agree on the status; a failure on one fails on all, and rank 0 cleans up.
 */
#include "lockstep/checkpoint.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "checkpoint/collective_status.h"
#include "checkpoint/contents.h"
#include "checkpoint/folder.h"
#include "checkpoint/hash_blocks.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/train_state.h"
#include "runtime/store.h"

enum { CHUNK_BYTES = 4 << 20 };

static int rank_of(const struct contents *c) { return c->comm ? ls_comm_rank(c->comm) : 0; }

/* ---- files of tensors ---- */

static ls_status put_claim(const struct contents *c, const struct claim *of, struct safetensors_writer *w)
{
    enum store_kind kind = of->order ? STORE_STATE : STORE_VALUE;
    size_t esize = ls_dtype_bytes((ls_dtype)of->type), n;

    for (size_t from = of->from; from < of->to; from += n) {
        n = MIN(CHUNK_BYTES / esize, of->to - from);
        const char *here = store_part_data(c->store, of->param, kind, of->kind, from);

        pulse();
        if (!here) LS_TRY(store_read_part(c->store, of->param, kind, of->kind, from, n, c->chunk, (ls_dtype)of->type));
        LS_TRY(safetensors_put(w, here ? here : c->chunk, n * esize));
    }
    return LS_OK;
}

static ls_status write_tensors(struct contents *c, size_t i, const char *path, const struct safetensor_spec *spec)
{
    const struct tensor_file *s = &c->file[i];
    struct safetensors_writer *w;
    const char *digits;

    LS_TRY(safetensors_create(path, s->entries, spec, &w));
    ls_status st = safetensors_hash_blocks(w, HASH_BLOCK_BYTES);
    for (size_t k = 0; k < s->claims && st == LS_OK; k++) st = put_claim(c, &c->claims.item[s->claim + k], w);
    if (st == LS_OK) st = safetensors_hashes(w, &digits);
    if (st == LS_OK) {
        hash_blocks_put(c, i, digits);
        return safetensors_publish(&w, &c->info.files[i].bytes, c->info.files[i].hash);
    }
    safetensors_abandon(&w);
    return st;
}

static ls_status write_tensor_file(struct contents *c, size_t i, const char *path)
{
    const struct tensor_file *s = &c->file[i];
    struct safetensor_spec *spec = mem_array(MEM_OTHER, s->entries, sizeof *spec);
    ls_status st = spec ? LS_OK : LS_ENOMEM;

    for (size_t k = 0; k < s->entries && st == LS_OK; k++) {
        const ls_checkpoint_entry *e = &c->info.entries[s->entry + k];

        spec[k] = (struct safetensor_spec){ .name = manifest_key(e), .type = e->type, .ndim = e->ndim };
        memcpy(spec[k].size, e->extent, sizeof e->extent);
        st = spec[k].name ? LS_OK : LS_ENOMEM;
    }
    if (st == LS_OK) st = write_tensors(c, i, path, spec);
    for (size_t k = 0; spec && k < s->entries; k++) mem_free((char *)spec[k].name);
    mem_free(spec);
    return st;
}

/* ---- the folder ---- */

static ls_status copy_file(ls_checkpoint_file *f, const char *from, const char *to)
{
    struct file_map map;

    LS_TRY(file_map_open(from, &map));
    f->bytes = map.bytes;
    hash_of(map.data, map.bytes, f->hash);
    ls_status st = file_write(to, map.data, map.bytes);
    file_map_close(&map);
    return st;
}

static ls_status write_manifest(const struct contents *c, const char *path)
{
    char *text;
    size_t bytes;

    LS_TRY(manifest_format(&c->info, &text, &bytes));
    ls_status st = file_write(path, text, bytes);
    mem_free(text);
    return st;
}

/* File i of the list; the one after the last is the manifest. */
static ls_status write_one(struct contents *c, size_t i, const char *folder)
{
    char *path = file_path("%s/%s", folder, i < c->info.nfiles ? c->info.files[i].name : MANIFEST_NAME);
    ls_status st;

    if (!path) return LS_ENOMEM;
    if (i < c->tensor_files)
        st = write_tensor_file(c, i, path);
    else if (i < c->info.nfiles)
        st = copy_file(&c->info.files[i], c->files[i - c->tensor_files], path);
    else
        st = write_manifest(c, path);
    mem_free(path);
    return st;
}

static ls_status write_files(struct contents *c, const char *tmp)
{
    for (size_t i = 0; i < c->tensor_files; i++)
        if (c->file[i].rank == (uint64_t)rank_of(c)) LS_TRY(write_one(c, i, tmp));
    return LS_OK;
}

static ls_status write_rest(struct contents *c, const char *tmp, const char *path)
{
    for (size_t i = c->tensor_files; i <= c->info.nfiles; i++) LS_TRY(write_one(c, i, tmp));
    return folder_publish(tmp, path);
}

static ls_status write_folder(struct contents *c, const char *tmp, const char *path)
{
    bool first = rank_of(c) == 0;
    ls_status st = agree(c->comm, first ? file_make_folders(tmp) : LS_OK);

    if (st == LS_OK) st = agree(c->comm, write_files(c, tmp));
    if (st == LS_OK) st = hash_blocks_gather(c);
    if (st == LS_OK) st = agree(c->comm, first ? write_rest(c, tmp, path) : LS_OK);
    if (st != LS_OK && first) file_remove_tree(tmp);
    return st;
}

/* ---- the save ---- */

/* All ranks use rank 0's step. */
static ls_status share_step(struct contents *c)
{
    uint64_t step = c->info.state.step;

    if (c->comm && ls_comm_size(c->comm) > 1) LS_TRY(ls_broadcast(c->comm, &step, 1, LS_I64, 0, NULL));
    c->info.state.step = step;
    return LS_OK;
}

static ls_status check_ask(struct contents *c, const ls_model *model)
{
    LS_TRY(train_state_check(&c->info.state));
    if (!model) return LS_OK;
    c->info.model = *model;
    return ls_model_check(&c->info.model);
}

static ls_status list_all(struct contents *c, const char *const *files)
{
    size_t most = 1;

    LS_TRY(contents_list(c, files));
    for (size_t k = 0; k < c->claims.n; k++)
        most = MAX(most, (c->claims.item[k].to - c->claims.item[k].from) * ls_dtype_bytes((ls_dtype)c->claims.item[k].type));
    c->chunk = mem_alloc(MEM_OTHER, MIN((size_t)CHUNK_BYTES, most));
    return c->chunk ? LS_OK : LS_ENOMEM;
}

static ls_status prepare(struct contents *c, const char *root, const ls_model *model, const char *const *files)
{
    LS_TRY(agree(c->comm, check_ask(c, model)));
    LS_TRY(share_step(c));
    LS_TRY(claims_of(c->comm, c->store, &c->claims));
    LS_TRY(agree(c->comm, list_all(c, files)));
    return agree(c->comm, rank_of(c) == 0 ? folder_sweep(root) : LS_OK);
}

ls_status ls_checkpoint_save_ranks(ls_comm *comm, const char *root, const ls_store *store, const ls_model *model,
                                   const ls_train_state *state, const char *const *files)
{
    struct contents c = { .info = { .has_model = model != NULL, .state = *state }, .store = store, .comm = comm };
    char *path = NULL, *tmp = NULL;
    ls_status st = prepare(&c, root, model, files);

    if (st == LS_OK) {
        path = folder_of_step(root, c.info.state.step);
        tmp = path ? file_path("%s.tmp", path) : NULL;
        st = agree(comm, tmp ? LS_OK : LS_ENOMEM);
    }
    if (st == LS_OK) st = write_folder(&c, tmp, path);
    contents_free(&c);
    mem_free(path);
    mem_free(tmp);
    return st;
}

static bool is_whole_here(const ls_store *s, size_t i)
{
    for (int d = 0; d < ls_store_ndim(s, i); d++)
        if (store_local_size(s, i, d) != ls_store_size(s, i, d)) return false;
    return store_is_here(s, i) && !store_sharded(s, i, STORE_VALUE) && !store_sharded(s, i, STORE_STATE);
}

ls_status ls_checkpoint_save(const char *root, const ls_store *store, const ls_model *model, const ls_train_state *state,
                             const char *const *files)
{
    for (size_t i = 0; i < ls_store_count(store); i++)
        if (!is_whole_here(store, i))
            return ls_fail(LS_EINVAL, "checkpoint: '%s' is sharded over several ranks; save it with ls_checkpoint_save_ranks",
                           ls_store_name(store, i));
    return ls_checkpoint_save_ranks(NULL, root, store, model, state, files);
}
