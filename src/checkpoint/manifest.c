/* manifest.c - reading manifest.json, format 1.
 *
 * The text is one JSON object, written without white space, of which the last 44 bytes are `,"hash":"` + 32 hexadecimal
 * digits + `"}` + LF: the XXH3-128 hash of all the bytes before them. Its members:
 *
 *   "format": 1
 *   "model":  the object of model_json.h; absent if the tensors belong to no known model
 *   "state":  {"step", "samples", "tokens", "schedule_steps", "threads": integers >= 0; "seed": a text of decimal
 *              digits; "optimizer", "data", "compute", "library", "isa": texts that fit the fields of ls_train_state;
 *              "budget_steps": integer >= 0, with "budget_seconds": number >= 0; absent without a time budget;
 *              "grad_norm": number >= 0, of the last update; absent if it is not known}
 *   "piece_bytes": P, at least 4096; absent in checkpoints of earlier versions, which have no "header" and no "hashes" either
 *   "files":  [{"name": bare file name, "bytes": size, "hash": XXH3-128 of the content}, ...]: every file of the folder
 *             except the manifest; for one with tensors also "header": XXH3-128 of everything before their data (safetensors.h)
 *   "tensors": [{"name", "kind", "dtype": "f32", "shape": [..], "offset": [..], "extent": [..], "file": i,
 *              "hashes": 32 hexadecimal digits for each P bytes of the shard's data, and for the rest of it}, ...]
 *
 * An item of "tensors" is a shard: elements [offset, offset + extent) of the tensor `name` of shape `shape`, stored as
 * a tensor of shape `extent` in the safetensors file "files"[i], under the key NAME for kind "parameter" and KIND:NAME
 * for an optimizer's state; if the shard is not the whole tensor, its range follows: NAME[0:2,3:8] is [0, 2) of dim 0, [3, 8) of dim 1. The
 * shards of a tensor (equal kind and name) cover it without hole or overlap; so each of n ranks writes its own files
 * (parameters_RRRR_of_NNNN.safetensors, optimizer_RRRR_of_NNNN.safetensors): RRRR counts the ranks that have something to write, NNNN is
 * their number.
 */
#include "checkpoint/manifest.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "checkpoint/model_json.h"
#include "checkpoint/hash_blocks.h"
#include "checkpoint/safetensors.h"

enum { TRAILER = 44, TRAILER_HASH = 9, FILES_MOST = 1 << 20, HASH_BLOCK_LEAST = 4096 };
#define HEX "0123456789abcdef"

static ls_status get_number(const json_node *object, const char *key, const char *what, uint64_t *out)
{
    int64_t value = json_int(json_get(object, key), -1);

    if (value < 0) return ls_fail(LS_EFORMAT, "%s: \"%s\" is not an integer >= 0", what, key);
    *out = (uint64_t)value;
    return LS_OK;
}

static ls_status get_text(const json_node *object, const char *key, const char *what, size_t room, char *out)
{
    const char *text = json_string(json_get(object, key), NULL);

    if (!text) return ls_fail(LS_EFORMAT, "%s: \"%s\" is not a string", what, key);
    if (strlen(text) >= room) return ls_fail(LS_EFORMAT, "%s: \"%s\" has %zu bytes; at most %zu", what, key, strlen(text), room - 1);
    strcpy(out, text);
    return LS_OK;
}

/* Absent without a time budget. */
static ls_status read_budget(const json_node *n, const char *what, ls_train_state *s)
{
    if (!json_get(n, "budget_steps")) return LS_OK;
    LS_TRY(get_number(n, "budget_steps", what, &s->budget_steps));
    s->budget_seconds = json_real(json_get(n, "budget_seconds"), -1);
    if (!(s->budget_seconds >= 0)) return ls_fail(LS_EFORMAT, "%s: \"budget_seconds\" is not a number >= 0", what);
    return LS_OK;
}

static ls_status read_norm(const json_node *n, const char *what, ls_train_state *s)
{
    s->grad_norm = json_get(n, "grad_norm") ? json_real(json_get(n, "grad_norm"), -1) : 0;
    return s->grad_norm >= 0 ? LS_OK : ls_fail(LS_EFORMAT, "%s: \"grad_norm\" is not a number >= 0", what);
}

static ls_status read_state(const json_node *n, const char *what, ls_train_state *s)
{
    uint64_t threads = 0;

    if (json_kind_of(n) != JSON_OBJECT) return ls_fail(LS_EFORMAT, "%s: \"state\" is not an object", what);
    LS_TRY(get_number(n, "step", what, &s->step));
    LS_TRY(get_number(n, "samples", what, &s->samples));
    LS_TRY(get_number(n, "tokens", what, &s->tokens));
    LS_TRY(get_number(n, "schedule_steps", what, &s->schedule_steps));
    LS_TRY(read_budget(n, what, s));
    LS_TRY(read_norm(n, what, s));
    LS_TRY(json_get_u64(n, "seed", what, &s->seed));
    LS_TRY(get_number(n, "threads", what, &threads));
    if (threads > INT32_MAX) return ls_fail(LS_EFORMAT, "%s: \"threads\" is out of range: %llu", what, (unsigned long long)threads);
    s->threads = (int)threads;
    LS_TRY(get_text(n, "optimizer", what, sizeof s->optimizer, s->optimizer));
    LS_TRY(get_text(n, "data", what, sizeof s->data, s->data));
    LS_TRY(get_text(n, "compute", what, sizeof s->compute, s->compute));
    LS_TRY(get_text(n, "library", what, sizeof s->library, s->library));
    return get_text(n, "isa", what, sizeof s->isa, s->isa);
}

static ls_status read_file(const json_node *n, const char *what, ls_checkpoint_file *f)
{
    const char *name = json_string(json_get(n, "name"), NULL);

    if (!name || !file_is_basename(name) || strcmp(name, MANIFEST_NAME) == 0)
        return ls_fail(LS_EFORMAT, "%s: a \"name\" in \"files\" is not a bare file name", what);
    f->name = mem_strdup(name);
    if (!f->name) return LS_ENOMEM;
    LS_TRY(get_number(n, "bytes", what, &f->bytes));
    LS_TRY(get_text(n, "hash", what, sizeof f->hash, f->hash));
    if (strspn(f->hash, HEX) != sizeof f->hash - 1)
        return ls_fail(LS_EFORMAT, "%s: the \"hash\" of %s is not 32 hexadecimal digits", what, name);
    if (!json_get(n, "header")) return LS_OK;
    LS_TRY(get_text(n, "header", what, sizeof f->header, f->header));
    if (strspn(f->header, HEX) != sizeof f->header - 1)
        return ls_fail(LS_EFORMAT, "%s: the \"header\" of %s is not 32 hexadecimal digits", what, name);
    return LS_OK;
}

static ls_status read_files(const json_node *list, const char *what, ls_checkpoint_info *info)
{
    size_t n = json_size(list);

    if (json_kind_of(list) != JSON_ARRAY || n > FILES_MOST)
        return ls_fail(LS_EFORMAT, "%s: \"files\" is not an array of at most %d items", what, FILES_MOST);
    info->files = mem_array(MEM_OTHER, n, sizeof *info->files);
    if (!info->files) return LS_ENOMEM;
    info->nfiles = n;
    for (size_t i = 0; i < n; i++) {
        LS_TRY(read_file(json_at(list, i), what, &info->files[i]));
        if (__builtin_add_overflow(info->bytes, info->files[i].bytes, &info->bytes))
            return ls_fail(LS_EFORMAT, "%s: the sizes of its files overflow", what);
    }
    return LS_OK;
}

static ls_status read_dims(const json_node *list, const char *key, const char *what, const char *name, int ndim, size_t *out)
{
    if (json_kind_of(list) != JSON_ARRAY || json_size(list) != (size_t)ndim)
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': \"%s\" is not an array of %d items", what, name, key, ndim);
    for (int d = 0; d < ndim; d++) {
        int64_t size = json_int(json_at(list, (size_t)d), -1);

        if (size < 0) return ls_fail(LS_EFORMAT, "%s: tensor '%s': dim %d of \"%s\" is not an integer >= 0", what, name, d, key);
        out[d] = (size_t)size;
    }
    return LS_OK;
}

static ls_status read_shard(const json_node *n, const char *what, ls_checkpoint_entry *e)
{
    const json_node *shape = json_get(n, "shape");
    size_t count = sizeof(double); /* so that no product below overflows, even in bytes */

    if (json_kind_of(shape) != JSON_ARRAY || json_size(shape) > LS_DIMS)
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': \"shape\" is not an array of at most %d items", what, e->name, LS_DIMS);
    e->ndim = (int)json_size(shape);
    LS_TRY(read_dims(shape, "shape", what, e->name, e->ndim, e->size));
    LS_TRY(read_dims(json_get(n, "offset"), "offset", what, e->name, e->ndim, e->offset));
    LS_TRY(read_dims(json_get(n, "extent"), "extent", what, e->name, e->ndim, e->extent));
    for (int d = 0; d < e->ndim; d++) {
        if (!size_mul(count, e->size[d], &count))
            return ls_fail(LS_EFORMAT, "%s: tensor '%s': its shape overflows at dim %d", what, e->name, d);
        if (e->offset[d] > e->size[d] || e->extent[d] > e->size[d] - e->offset[d])
            return ls_fail(LS_EFORMAT, "%s: tensor '%s': dim %d has %zu elements, but the shard is [%zu, +%zu)", what, e->name, d,
                           e->size[d], e->offset[d], e->extent[d]);
    }
    return LS_OK;
}

/* Either all tensors of a checkpoint have hashes of their blocks, or none has. */
static ls_status read_hashes(const json_node *n, const char *what, const ls_checkpoint_info *info, ls_checkpoint_entry *e)
{
    const char *digits = json_string(json_get(n, "hashes"), NULL);

    if (!info->hash_block_bytes) return LS_OK;
    size_t expected = hash_block_count(e, info->hash_block_bytes) * HASH_DIGITS;
    if (!digits || strlen(digits) != expected || strspn(digits, HEX) != expected)
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': \"hashes\" is not %zu hexadecimal digits", what, e->name, expected);
    if (!info->files[e->file].header[0])
        return ls_fail(LS_EFORMAT, "%s: tensor '%s' is in %s, which has no \"header\" hash", what, e->name, info->files[e->file].name);
    e->hashes = mem_strdup(digits);
    return e->hashes ? LS_OK : LS_ENOMEM;
}

static ls_status read_entry(const json_node *n, const char *what, const ls_checkpoint_info *info, ls_checkpoint_entry *e)
{
    const char *name = json_string(json_get(n, "name"), NULL), *kind = json_string(json_get(n, "kind"), NULL);
    const char *type = json_string(json_get(n, "dtype"), "");
    uint64_t file = 0;

    if (!name || !kind || !safetensor_name_is_valid(name) || !safetensor_name_is_valid(kind))
        return ls_fail(LS_EFORMAT, "%s: an item of \"tensors\" has no valid \"name\" or \"kind\"", what);
    e->name = mem_strdup(name);
    e->kind = mem_strdup(kind);
    if (!e->name || !e->kind) return LS_ENOMEM;
    if (ls_dtype_parse(type, &e->type) != 0 || !ls_dtype_is_float(e->type))
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': \"dtype\" is not a floating type", what, name);
    LS_TRY(get_number(n, "file", what, &file));
    if (file >= info->nfiles)
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': \"file\" is %llu, but there are %zu files", what, name, (unsigned long long)file,
                       info->nfiles);
    e->file = (size_t)file;
    LS_TRY(read_shard(n, what, e));
    return read_hashes(n, what, info, e);
}

static ls_status read_entries(const json_node *list, const char *what, ls_checkpoint_info *info)
{
    size_t n = json_size(list);

    if (json_kind_of(list) != JSON_ARRAY) return ls_fail(LS_EFORMAT, "%s: \"tensors\" is not an array", what);
    info->entries = mem_array(MEM_OTHER, n, sizeof *info->entries);
    if (!info->entries) return LS_ENOMEM;
    info->nentries = n;
    for (size_t i = 0; i < n; i++) LS_TRY(read_entry(json_at(list, i), what, info, &info->entries[i]));
    return LS_OK;
}

static ls_status read_info(const json_node *root, const char *what, ls_checkpoint_info *info)
{
    const json_node *model = json_get(root, "model");
    int64_t format = json_int(json_get(root, "format"), -1);

    if (format != MANIFEST_FORMAT)
        return ls_fail(LS_EFORMAT, "%s: format %lld; this program reads format %d", what, (long long)format, MANIFEST_FORMAT);
    info->format = (int)format;
    info->has_model = model != NULL;
    if (info->has_model) LS_TRY(model_json_get(model, what, &info->model));
    LS_TRY(read_state(json_get(root, "state"), what, &info->state));
    if (json_get(root, "piece_bytes")) {
        LS_TRY(get_number(root, "piece_bytes", what, &info->hash_block_bytes));
        if (info->hash_block_bytes < HASH_BLOCK_LEAST)
            return ls_fail(LS_EFORMAT, "%s: \"piece_bytes\" is %llu; it must be at least %d", what,
                           (unsigned long long)info->hash_block_bytes, HASH_BLOCK_LEAST);
    }
    LS_TRY(read_files(json_get(root, "files"), what, info));
    return read_entries(json_get(root, "tensors"), what, info);
}

static ls_status check_trailer(const char *text, size_t bytes, const char *what)
{
    size_t body = bytes - MIN(bytes, TRAILER);
    char hash[HASH_ROOM];

    if (body == 0 || memcmp(text + body, ",\"hash\":\"", TRAILER_HASH) != 0 || memcmp(text + bytes - 3, "\"}\n", 3) != 0)
        return ls_fail(LS_EFORMAT, "%s: damaged: the manifest does not end in its hash", what);
    hash_of(text, body, hash);
    if (memcmp(text + body + TRAILER_HASH, hash, HASH_ROOM - 1) != 0)
        return ls_fail(LS_EFORMAT, "%s: damaged: the manifest has the hash %s, not the one that it ends in", what, hash);
    return LS_OK;
}

ls_status manifest_parse(const char *text, size_t bytes, const char *what, struct manifest **out)
{
    struct manifest *m = NULL;
    json_node *root = NULL;

    LS_TRY(check_trailer(text, bytes, what));
    LS_TRY(json_parse(text, bytes, what, &root));
    m = mem_zalloc(MEM_OTHER, sizeof *m);
    ls_status st = m ? read_info(root, what, &m->info) : LS_ENOMEM;
    if (st == LS_OK) st = manifest_check(m, what);
    json_close(&root);
    if (st == LS_OK)
        *out = m;
    else
        manifest_release(&m);
    return st;
}

ls_status manifest_read(const char *folder, struct manifest **out)
{
    char *path = file_path("%s/" MANIFEST_NAME, folder), *text = NULL;
    size_t bytes;

    if (!path) return LS_ENOMEM;
    ls_status st = file_read(path, &text, &bytes);
    if (st == LS_OK) st = manifest_parse(text, bytes, path, out);
    mem_free(text);
    mem_free(path);
    return st;
}

void manifest_release(struct manifest **mp)
{
    struct manifest *m = *mp;

    if (!m) return;
    for (size_t i = 0; i < m->info.nfiles; i++) mem_free(m->info.files[i].name);
    for (size_t i = 0; i < m->info.nentries; i++) {
        mem_free(m->info.entries[i].name);
        mem_free(m->info.entries[i].kind);
        mem_free(m->info.entries[i].hashes);
    }
    mem_free(m->info.files);
    mem_free(m->info.entries);
    mem_free(m->sorted);
    mem_free(m);
    *mp = NULL;
}

char *manifest_key(const ls_checkpoint_entry *e)
{
    bool state = strcmp(e->kind, KIND_PARAMETER) != 0;
    char part[LS_DIMS * 44] = "";
    size_t at = 0;

    if (memcmp(e->extent, e->size, sizeof e->size) != 0) {
        for (int d = 0; d < e->ndim; d++)
            at += (size_t)sprintf(part + at, "%s%zu:%zu", d ? "," : "[", e->offset[d], e->offset[d] + e->extent[d]);
        strcpy(part + at, "]");
    }
    return file_path("%s%s%s%s", state ? e->kind : "", state ? ":" : "", e->name, part);
}

ls_status ls_checkpoint_inspect(const char *path, ls_checkpoint_info **out)
{
    struct manifest *m;

    LS_TRY(manifest_read(path, &m));
    *out = &m->info;
    return LS_OK;
}

void ls_checkpoint_info_release(ls_checkpoint_info **info)
{
    struct manifest *m = (struct manifest *)*info;

    manifest_release(&m);
    *info = NULL;
}
