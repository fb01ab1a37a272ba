/* hf_import.c - imports a Hugging Face folder into a store.
 *
 * The folder has model.safetensors, or shards and their index (hf_index.h). Each tensor of the model must be found
 * once, in its shape and in a floating type; a tensor that is neither one of the model's nor known to carry no weights is an error: the
 * folder would be of another model. The store is written only after that.
 */
#include "lockstep/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "checkpoint/hf/hf_index.h"
#include "checkpoint/hf/hf_tensors.h"
#include "checkpoint/safetensors.h"
#include "runtime/store.h"

enum { AHEAD = 8 }; /* tensors that the disk reads ahead */

struct importer {
    const char *folder;
    const ls_model *model;
    ls_store *store;
    struct hf_index index; /* the index of a sharded folder */
    struct safetensors **file;
    size_t nfiles;
    struct hf_tensor *want;
    struct hf_tensor **sorted;       /* [nwant] by name */
    const struct safetensor **found; /* [nwant] */
    size_t nwant;
};

/* ---- the files ---- */

static ls_status open_file(struct importer *in, const char *name)
{
    char *path = file_path("%s/%s", in->folder, name);

    if (!path) return LS_ENOMEM;
    ls_status st = safetensors_open(path, &in->file[in->nfiles]);
    in->nfiles += st == LS_OK;
    mem_free(path);
    return st;
}

static ls_status read_index(struct importer *in, const char *path)
{
    char *text;
    size_t bytes;

    LS_TRY(file_read(path, &text, &bytes));
    ls_status st = hf_index_parse(text, bytes, path, &in->index);
    mem_free(text);
    return st;
}

/* Each tensor must be in the file that the index names, and in no other. */
static ls_status check_index(const struct importer *in)
{
    size_t found = 0;

    for (size_t k = 0; k < in->nfiles; k++)
        for (size_t i = 0; i < safetensors_count(in->file[k]); i++, found++) {
            const char *name = safetensors_at(in->file[k], i)->name;
            const char *file = json_string(json_get(in->index.map, name), NULL);

            if (!file || strcmp(file, in->index.file[k]) != 0)
                return ls_fail(LS_EFORMAT, "%s: tensor '%s': the index says %s", safetensors_path(in->file[k]), name,
                               file ? file : "nothing of it");
        }
    if (found != json_size(in->index.map))
        return ls_fail(LS_EFORMAT, "%s: the index lists %zu tensors, but its files hold %zu", in->folder, json_size(in->index.map), found);
    return LS_OK;
}

static ls_status open_sharded(struct importer *in, const char *index)
{
    LS_TRY(read_index(in, index));
    in->file = mem_array(MEM_OTHER, in->index.nfiles, sizeof(struct safetensors *));
    if (!in->file) return LS_ENOMEM;
    for (size_t i = 0; i < in->index.nfiles; i++) LS_TRY(open_file(in, in->index.file[i]));
    return check_index(in);
}

static ls_status open_files(struct importer *in)
{
    char *single = file_path("%s/model.safetensors", in->folder), *index = file_path("%s/" HF_INDEX_NAME, in->folder);
    ls_status st = LS_ENOMEM;

    if (single && index && !file_exists(single) && file_exists(index)) {
        st = open_sharded(in, index);
    } else if (single && index) {
        in->file = mem_array(MEM_OTHER, 1, sizeof(struct safetensors *));
        st = in->file ? open_file(in, "model.safetensors") : LS_ENOMEM;
    }
    mem_free(single);
    mem_free(index);
    return st;
}

/* ---- the tensors ---- */

static ls_status check_found(const char *path, const struct safetensor *t, const struct model_weight *w)
{
    bool same = t->ndim == w->hf_ndim;

    for (int d = 0; same && d < t->ndim; d++) same = t->size[d] == w->hf_size[d];
    if (!same)
        return ls_fail(LS_EINVAL, "%s: tensor '%s' has %d dims (first %zu), but the model's has %d (first %zu)", path, t->name, t->ndim,
                       t->ndim ? t->size[0] : 1, w->hf_ndim, w->hf_size[0]);
    if (t->type == LS_DTYPES || !ls_dtype_is_float(t->type))
        return ls_fail(LS_EUNSUPPORTED, "%s: tensor '%s' is %s; expected F32, BF16, F16 or F64", path, t->name, t->type_name);
    return LS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(hf_name_key((*(struct hf_tensor *const *)a)->part[0].hf), hf_name_key((*(struct hf_tensor *const *)b)->part[0].hf));
}

static int to_name(const void *name, const void *tensor)
{
    return strcmp(hf_name_key(name), hf_name_key((*(struct hf_tensor *const *)tensor)->part[0].hf));
}

static ls_status match(struct importer *in, const char *path, const struct safetensor *t)
{
    if (hf_name_is_ignored(in->model, t->name)) return LS_OK;
    struct hf_tensor **hit = bsearch(t->name, in->sorted, in->nwant, sizeof(struct hf_tensor *), to_name);
    if (!hit) return ls_fail(LS_EINVAL, "%s: tensor '%s' does not belong to this model", path, t->name);
    size_t i = (size_t)(*hit - in->want);
    if (in->found[i])
        return ls_fail(LS_EINVAL, "%s: tensors '%s' and '%s' are both '%s'", path, in->found[i]->name, t->name, (*hit)->part[0].hf);
    LS_TRY(check_found(path, t, &(*hit)->part[0]));
    in->found[i] = t;
    return LS_OK;
}

static ls_status match_all(struct importer *in)
{
    LS_TRY(hf_tensors_of(in->model, &in->want, &in->nwant));
    in->found = mem_array(MEM_OTHER, in->nwant, sizeof(struct safetensor *));
    in->sorted = mem_array(MEM_OTHER, in->nwant, sizeof(struct hf_tensor *));
    if (!in->found || !in->sorted) return LS_ENOMEM;
    for (size_t i = 0; i < in->nwant; i++) in->sorted[i] = &in->want[i];
    qsort(in->sorted, in->nwant, sizeof(struct hf_tensor *), by_name);
    for (size_t k = 0; k < in->nfiles; k++)
        for (size_t i = 0; i < safetensors_count(in->file[k]); i++)
            LS_TRY(match(in, safetensors_path(in->file[k]), safetensors_at(in->file[k], i)));
    for (size_t i = 0; i < in->nwant; i++)
        if (!in->found[i])
            return ls_fail(LS_EINVAL, "%s: tensor '%s' of the model is missing from its files", in->folder, in->want[i].part[0].hf);
    return LS_OK;
}

/* ---- the store ---- */

static ls_status check_store(const struct importer *in)
{
    size_t index, n = 0;

    for (size_t i = 0; i < in->nwant; i++)
        for (int k = 0; k < in->want[i].parts && !in->want[i].index; k++, n++)
            LS_TRY(hf_find_parameter(in->store, &in->want[i].part[k], &index));
    if (n != ls_store_count(in->store))
        return ls_fail(LS_EINVAL, "%s: the store has %zu parameters, but the model has %zu", in->folder, ls_store_count(in->store), n);
    return LS_OK;
}

/* All tensors of a stacked parameter must have one type. */
static ls_status pick_stacked(const struct importer *in, size_t i, const struct model_weight *w, char *own, size_t esize)
{
    size_t tensors = MAX(w->stacked, (size_t)1);

    for (size_t e = 0; e < tensors; e++) {
        const struct safetensor *t = in->found[i + e];

        if (t->type != in->found[i]->type)
            return ls_fail(LS_EUNSUPPORTED, "%s: tensor '%s' is %s but '%s' is %s; all experts must have one type", in->folder,
                           in->found[i]->name, in->found[i]->type_name, t->name, t->type_name);
        pulse();
        hf_pick(own + e * hf_part_count(w) * esize, t->data, w, esize);
    }
    return LS_OK;
}

/* Fills parameter w, of which tensor i has a part, or is the first. */
static ls_status copy_part(const struct importer *in, size_t i, const struct model_weight *w)
{
    size_t count = hf_part_count(w) * MAX(w->stacked, (size_t)1), index;
    ls_dtype type = in->found[i]->type;
    const void *there = hf_pick_in_place(in->found[i]->data, w, ls_dtype_bytes(type));

    LS_TRY(hf_find_parameter(in->store, w, &index));
    pulse();
    if (there) return ls_store_set(in->store, index, there, type, count);
    void *own = mem_alloc(MEM_OTHER, count * ls_dtype_bytes(type));
    if (!own) return LS_ENOMEM;
    ls_status st = pick_stacked(in, i, w, own, ls_dtype_bytes(type));
    if (st == LS_OK) st = ls_store_set(in->store, index, own, type, count);
    mem_free(own);
    return st;
}

static ls_status import(struct importer *in)
{
    LS_TRY(open_files(in));
    LS_TRY(match_all(in));
    LS_TRY(check_store(in));
    LS_TRY(store_allocate_to_load(in->store));
    for (size_t i = 0; i < in->nwant; i++) {
        const struct safetensor *ahead = in->found[MIN(i + AHEAD, in->nwant - 1)];

        file_map_expect(ahead->data, ahead->bytes);
        for (int k = 0; k < in->want[i].parts && !in->want[i].index; k++) LS_TRY(copy_part(in, i, &in->want[i].part[k]));
    }
    return LS_OK;
}

ls_status ls_hf_import(const char *folder, const ls_model *m, ls_store *store)
{
    ls_model checked = *m;
    struct importer in = { .folder = folder, .model = &checked, .store = store };
    ls_status st = ls_model_check(&checked);

    if (st == LS_OK) st = import(&in);
    for (size_t i = 0; i < in.nfiles; i++) safetensors_close(&in.file[i]);
    mem_free(in.file);
    mem_free(in.want);
    mem_free(in.found);
    mem_free(in.sorted);
    hf_index_free(&in.index);
    return st;
}
