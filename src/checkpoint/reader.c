/* reader.c - see reader.h. A range of a box is a few boxes (boxes.h); each is assembled from the saved shards that overlap it. */
#include "checkpoint/reader.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/folder.h"

const char *shape_text(char out[SHAPE_ROOM], int ndim, const size_t *size)
{
    size_t at = 1;

    strcpy(out, "[");
    for (int d = 0; d < ndim; d++) at += (size_t)sprintf(out + at, "%s%zu", d ? "," : "", size[d]);
    strcpy(out + at, "]");
    return out;
}

/* ---- the manifest against the files ---- */

/* The shards in a file are usually in the order of the manifest: `next` is where to look first. */
static ls_status find_shard(struct saved *s, size_t entry, size_t *next)
{
    const ls_checkpoint_entry *e = &s->manifest->info.entries[entry];
    struct safetensors *file = s->file[e->file];
    char *key = manifest_key(e), want[SHAPE_ROOM], got[SHAPE_ROOM];
    const struct safetensor *t = key ? safetensors_at(file, *next) : NULL;
    ls_status st = LS_OK;

    ++*next;
    if (key && (!t || strcmp(t->name, key) != 0)) t = safetensors_find(file, key);
    if (!key)
        st = LS_ENOMEM;
    else if (!t)
        st = ls_fail(LS_EFORMAT, "%s: tensor '%s' is in the manifest, but not in the file", safetensors_path(file), key);
    else if (t->type != e->type || t->ndim != e->ndim || memcmp(t->size, e->extent, sizeof t->size) != 0)
        st = ls_fail(LS_EFORMAT, "%s: tensor '%s' is %s %s, but the manifest says %s %s", safetensors_path(file), key, t->type_name,
                     shape_text(got, t->ndim, t->size), ls_dtype_safetensors(e->type), shape_text(want, e->ndim, e->extent));
    mem_free(key);
    s->tensor[entry] = t;
    return st;
}

static ls_status saved_open_file(struct saved *s, size_t file)
{
    if (s->file[file]) return LS_OK;
    char *path = file_path("%s/%s", s->path, s->manifest->info.files[file].name);
    if (!path) return LS_ENOMEM;
    ls_status st = safetensors_open(path, &s->file[file]);
    mem_free(path);
    return st == LS_OK ? saved_check_header(s, file) : st;
}

ls_status saved_check_files(struct saved *s)
{
    const ls_checkpoint_info *info = &s->manifest->info;
    size_t found = 0, next = 0;

    for (size_t i = 0; i < info->nentries; i++) {
        if (i && info->entries[i].file != info->entries[i - 1].file) next = 0;
        LS_TRY(saved_open_file(s, info->entries[i].file));
        LS_TRY(find_shard(s, i, &next));
    }
    for (size_t i = 0; i < info->nfiles; i++) found += s->file[i] ? safetensors_count(s->file[i]) : 0;
    if (found != info->nentries)
        return ls_fail(LS_EFORMAT, "%s: the manifest lists %zu tensors, but the file has %zu", s->path, info->nentries, found);
    return LS_OK;
}

ls_status saved_open(const char *path, struct saved *s)
{
    LS_TRY(folder_check(path, &s->manifest));
    s->path = mem_strdup(path);
    s->file = mem_array(MEM_OTHER, s->manifest->info.nfiles, sizeof *s->file);
    s->tensor = mem_array(MEM_OTHER, s->manifest->info.nentries, sizeof *s->tensor);
    s->verified = mem_array(MEM_OTHER, s->manifest->info.nentries, sizeof *s->verified);
    s->believed = mem_zalloc(MEM_OTHER, s->manifest->info.nfiles);
    return s->path && s->file && s->tensor && s->verified && s->believed ? LS_OK : LS_ENOMEM;
}

void saved_close(struct saved *s)
{
    for (size_t i = 0; s->file && i < s->manifest->info.nfiles; i++) safetensors_close(&s->file[i]);
    for (size_t i = 0; s->verified && i < s->manifest->info.nentries; i++) mem_free(s->verified[i]);
    mem_free(s->file);
    mem_free(s->verified);
    mem_free(s->believed);
    mem_free(s->tensor);
    mem_free(s->path);
    manifest_release(&s->manifest);
}

bool saved_has(const struct saved *s, const char *kind, const char *name)
{
    size_t n;

    manifest_find(s->manifest, kind, name, &n);
    return n > 0;
}

const char *saved_truth(const struct saved *s, const char *name) { return saved_has(s, KIND_MASTER, name) ? KIND_MASTER : KIND_PARAMETER; }

/* ---- reading ---- */

/* Elements at, at + 1 .. of the file's tensor; its data may be of any alignment. */
static void convert_run(const struct safetensor *t, size_t at, size_t n, char *to, ls_dtype type)
{
    enum { ROOM = 512 };
    double aligned[ROOM];
    size_t esize = ls_dtype_bytes(t->type), step;
    const unsigned char *from = t->data + at * esize;

    if (t->type == type) {
        memcpy(to, from, n * esize);
    } else if ((uintptr_t)from % esize == 0) {
        ls_convert(to, type, from, t->type, n);
    } else {
        for (size_t i = 0; i < n; i += step) {
            step = MIN((size_t)ROOM, n - i);
            memcpy(aligned, from + i * esize, step * esize);
            ls_convert(to + i * ls_dtype_bytes(type), type, aligned, t->type, step);
        }
    }
}

/* Index of element e of `in`, row-major, among the elements of a box that contains it. */
static size_t place_in(int ndim, const struct box *in, size_t e, const struct box *of)
{
    size_t at = 0, stride = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        at += (in->offset[d] + e % in->extent[d] - of->offset[d]) * stride;
        e /= in->extent[d];
        stride *= of->extent[d];
    }
    return at;
}

/* Copies the elements that `from`, a saved entry, and `to` share into host, which holds `to`. */
static ls_status copy_shared(const struct saved *s, size_t entry, const struct box *from, const struct box *to, char *host, ls_dtype type)
{
    const struct safetensor *t = s->tensor[entry];
    size_t esize = ls_dtype_bytes(t->type);
    int ndim = s->manifest->info.entries[entry].ndim;
    struct box both;
    size_t run = 1;

    if (!boxes_overlap(ndim, from, to, &both)) return LS_OK;
    size_t all = box_count(ndim, &both);
    for (int d = ndim - 1; d >= 0; d--) { /* as many as are contiguous in both */
        run *= both.extent[d];
        if (both.extent[d] != from->extent[d] || both.extent[d] != to->extent[d]) break;
    }
    for (size_t e = 0; e < all; e += run) {
        size_t at = place_in(ndim, &both, e, from);

        LS_TRY(saved_check_bytes(s, entry, at * esize, (at + run) * esize));
        if (host) convert_run(t, at, run, host + place_in(ndim, &both, e, to) * ls_dtype_bytes(type), type);
    }
    return LS_OK;
}

ls_status saved_read(const struct saved *s, const char *kind, const char *name, const struct box *box, size_t from, size_t n, void *host,
                     ls_dtype type)
{
    const ls_checkpoint_entry *entries = s->manifest->info.entries;
    struct box part[BOXES_OF_RANGE], there;
    char *to = host;
    size_t count;
    const ls_checkpoint_entry *const *shard = manifest_find(s->manifest, kind, name, &count);
    int ndim = count ? shard[0]->ndim : 0, parts = boxes_of_range(ndim, box, from, from + n, part);

    ASSERT(count);
    for (int k = 0; k < parts; k++) {
        for (size_t i = 0; i < count; i++) {
            memcpy(there.offset, shard[i]->offset, sizeof there.offset);
            memcpy(there.extent, shard[i]->extent, sizeof there.extent);
            LS_TRY(copy_shared(s, (size_t)(shard[i] - entries), &there, &part[k], to, type));
        }
        if (to) to += box_count(ndim, &part[k]) * ls_dtype_bytes(type);
    }
    return LS_OK;
}
