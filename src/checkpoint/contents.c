/* contents.c - turns claims into files of tensors, the shards in each, and the files that are copied along. */
#include "checkpoint/contents.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/hash_blocks.h"

static const char *const classes[CLASSES] = { "parameters", "optimizer" };

void contents_free(struct contents *c)
{
    mem_free(c->info.files);
    mem_free(c->info.entries);
    mem_free(c->claims.item);
    mem_free(c->file);
    mem_free(c->chunk);
    mem_free(c->digits);
}

static struct tensor_file *last_file(struct contents *c, const struct claim *of)
{
    struct tensor_file *s = c->tensor_files ? &c->file[c->tensor_files - 1] : NULL;
    uint64_t class = of->order > 0;

    return s && s->rank == of->rank && s->class == class ? s : NULL;
}

static void add_entry(struct contents *c, const struct claim *of, const struct box *box)
{
    ls_checkpoint_entry *e = &c->info.entries[c->info.nentries++];

    e->name = (char *)ls_store_name(c->store, of->param);
    e->kind = (char *)of->kind;
    e->type = (ls_dtype)of->type;
    e->ndim = ls_store_ndim(c->store, of->param);
    for (int d = 0; d < e->ndim; d++) {
        e->size[d] = ls_store_size(c->store, of->param, d);
        e->offset[d] = box->offset[d];
        e->extent[d] = box->extent[d];
    }
    e->file = c->tensor_files - 1;
}

static int boxes_of(const struct contents *c, const struct claim *of, struct box out[BOXES_OF_RANGE])
{
    int ndim = ls_store_ndim(c->store, of->param);

    out[0] = of->box;
    return of->from == of->to ? 1 : boxes_of_range(ndim, &of->box, of->from, of->to, out);
}

static void name_files(struct contents *c)
{
    size_t writers[CLASSES] = { 0 }, at[CLASSES] = { 0 };

    for (size_t i = 0; i < c->tensor_files; i++) writers[c->file[i].class]++;
    for (size_t i = 0; i < c->tensor_files; i++) {
        struct tensor_file *s = &c->file[i];

        snprintf(s->name, sizeof s->name, "%s_%04zu_of_%04zu.safetensors", classes[s->class], at[s->class]++, writers[s->class]);
    }
}

/* Makes files and entries from the claims; a store without parameters also has one file. */
static ls_status list_tensors(struct contents *c)
{
    struct box boxes[BOXES_OF_RANGE];
    size_t entries = 0;

    for (size_t i = 0; i < c->claims.n; i++) entries += (size_t)boxes_of(c, &c->claims.item[i], boxes);
    c->info.entries = mem_array(MEM_OTHER, entries, sizeof *c->info.entries);
    c->file = mem_array(MEM_OTHER, c->claims.n + 1, sizeof *c->file);
    if (!c->info.entries || !c->file) return LS_ENOMEM;
    for (size_t i = 0; i < c->claims.n; i++) {
        const struct claim *of = &c->claims.item[i];
        struct tensor_file *s = last_file(c, of);
        int n = boxes_of(c, of, boxes);

        if (!s) {
            s = &c->file[c->tensor_files++];
            *s = (struct tensor_file){ .rank = of->rank, .class = of->order > 0, .claim = i, .entry = c->info.nentries };
        }
        s->claims++;
        s->entries += (size_t)n;
        for (int k = 0; k < n; k++) add_entry(c, of, &boxes[k]);
    }
    c->tensor_files += c->tensor_files == 0;
    name_files(c);
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

    while (files && files[n]) n++;
    f = c->info.files = mem_array(MEM_OTHER, c->tensor_files + n, sizeof *f);
    if (!f) return LS_ENOMEM;
    c->files = files;
    c->info.nfiles = c->tensor_files + n;
    for (size_t i = 0; i < c->info.nfiles; i++) {
        f[i].name = i < c->tensor_files ? c->file[i].name : (char *)basename_of(files[i - c->tensor_files]);
        if (!file_is_basename(f[i].name) || strcmp(f[i].name, MANIFEST_NAME) == 0)
            return ls_fail(LS_EINVAL, "checkpoint: a file cannot be copied along as '%s'", f[i].name);
        for (size_t k = 0; k < i; k++)
            if (strcmp(f[k].name, f[i].name) == 0)
                return ls_fail(LS_EINVAL, "checkpoint: two files would be copied along as '%s'", f[i].name);
    }
    return LS_OK;
}

/* Checks that every parameter is there, and every element once. */
static ls_status check_cover(const struct contents *c)
{
    struct manifest m = { .info = c->info };
    ls_status st = manifest_check(&m, "checkpoint");
    char message[512];
    size_t n;

    if (st == LS_EFORMAT) {
        snprintf(message, sizeof message, "%s", ls_errmsg());
        st = ls_fail(LS_EINVAL, "%s", message);
    }
    for (size_t i = 0; i < ls_store_count(c->store) && st == LS_OK; i++) {
        manifest_find(&m, KIND_PARAMETER, ls_store_name(c->store, i), &n);
        if (n == 0) st = ls_fail(LS_EINVAL, "checkpoint: no rank owns parameter '%s'", ls_store_name(c->store, i));
    }
    mem_free(m.sorted);
    return st;
}

ls_status contents_list(struct contents *c, const char *const *files)
{
    LS_TRY(list_tensors(c));
    LS_TRY(list_files(c, files));
    LS_TRY(check_cover(c));
    return hash_blocks_make_room(c);
}
