/* shards.c - turns claims into shards, their slices, and the files that are copied along. */
#include "checkpoint/shards.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/pieces.h"

static const char *const classes[CLASSES] = { "parameters", "optimizer" };

void contents_free(struct contents *c)
{
    mem_free(c->info.files);
    mem_free(c->info.entries);
    mem_free(c->claims.item);
    mem_free(c->shard);
    mem_free(c->chunk);
    mem_free(c->digits);
}

static struct shard *last_shard(struct contents *c, const struct claim *of)
{
    struct shard *s = c->nshards ? &c->shard[c->nshards - 1] : NULL;
    uint64_t class = of->order > 0;

    return s && s->rank == of->rank && s->class == class ? s : NULL;
}

static void add_entry(struct contents *c, const struct claim *of, const struct slice *slice)
{
    ls_checkpoint_entry *e = &c->info.entries[c->info.nentries++];

    e->name = (char *)ls_store_name(c->store, of->param);
    e->kind = (char *)of->kind;
    e->type = (ls_dtype)of->type;
    e->ndim = ls_store_ndim(c->store, of->param);
    for (int d = 0; d < e->ndim; d++) {
        e->size[d] = ls_store_size(c->store, of->param, d);
        e->offset[d] = slice->offset[d];
        e->extent[d] = slice->extent[d];
    }
    e->file = c->nshards - 1;
}

static int slices_of(const struct contents *c, const struct claim *of, struct slice out[SLICES_OF_RANGE])
{
    int ndim = ls_store_ndim(c->store, of->param);

    out[0] = of->box;
    return of->from == of->to ? 1 : slices_of_range(ndim, &of->box, of->from, of->to, out);
}

static void name_shards(struct contents *c)
{
    size_t writers[CLASSES] = { 0 }, at[CLASSES] = { 0 };

    for (size_t i = 0; i < c->nshards; i++) writers[c->shard[i].class]++;
    for (size_t i = 0; i < c->nshards; i++) {
        struct shard *s = &c->shard[i];

        snprintf(s->name, sizeof s->name, "%s_%04zu_of_%04zu.safetensors", classes[s->class], at[s->class]++, writers[s->class]);
    }
}

/* Makes shards and entries from the claims; a store without parameters also has one shard. */
static ls_status list_tensors(struct contents *c)
{
    struct slice slices[SLICES_OF_RANGE];
    size_t entries = 0;

    for (size_t i = 0; i < c->claims.n; i++) entries += (size_t)slices_of(c, &c->claims.item[i], slices);
    c->info.entries = mem_array(MEM_OTHER, entries, sizeof *c->info.entries);
    c->shard = mem_array(MEM_OTHER, c->claims.n + 1, sizeof *c->shard);
    if (!c->info.entries || !c->shard) return LS_ENOMEM;
    for (size_t i = 0; i < c->claims.n; i++) {
        const struct claim *of = &c->claims.item[i];
        struct shard *s = last_shard(c, of);
        int n = slices_of(c, of, slices);

        if (!s) {
            s = &c->shard[c->nshards++];
            *s = (struct shard){ .rank = of->rank, .class = of->order > 0, .claim = i, .entry = c->info.nentries };
        }
        s->claims++;
        s->entries += (size_t)n;
        for (int k = 0; k < n; k++) add_entry(c, of, &slices[k]);
    }
    c->nshards += c->nshards == 0;
    name_shards(c);
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
    f = c->info.files = mem_array(MEM_OTHER, c->nshards + n, sizeof *f);
    if (!f) return LS_ENOMEM;
    c->files = files;
    c->info.nfiles = c->nshards + n;
    for (size_t i = 0; i < c->info.nfiles; i++) {
        f[i].name = i < c->nshards ? c->shard[i].name : (char *)basename_of(files[i - c->nshards]);
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
    return pieces_make_room(c);
}
