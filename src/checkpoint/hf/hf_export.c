/* hf_export.c - writes a store, or a checkpoint one parameter at a time, to a Hugging Face folder.
 *
 * The folder: config.json, generation_config.json, the tensors, and with a tokenizer its tokenizer.json and
 * tokenizer_config.json. The tensors go into model.safetensors, or, if they are larger than shard_bytes, into
 * model-00001-of-0000N.safetensors ... in their order, a new file whenever the next tensor would make one larger than that, with the index
 * of hf_index.h. Everything is written to FOLDER.tmp, which is renamed when it is complete.
 */
#include "checkpoint/hf/hf_export.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/hf_index.h"
#include "checkpoint/hf/hf_tensors.h"
#include "checkpoint/safetensors.h"
#include "runtime/store.h"

enum { SHARD_NAME_ROOM = 64 };

struct exporter {
    const char *folder; /* the temporary folder */
    const ls_model *model;
    const ls_store *store;
    const struct saved *saved; /* NULL: the store has the elements */
    ls_hf_options o;
    struct hf_tensor *tensor;
    struct safetensor_spec *spec; /* [n] */
    size_t *shard;                /* [n]: 0, 1, ...: the file of each tensor */
    size_t n, shards;
    void *stack; /* the stacked parameter whose tensors are being written, or NULL */
};

/* ---- small files ---- */

static ls_status write_text(const struct exporter *x, const char *name, const char *text, size_t bytes)
{
    char *path = file_path("%s/%s", x->folder, name);
    ls_status st = path ? file_write(path, text, bytes) : LS_ENOMEM;

    mem_free(path);
    return st;
}

static ls_status write_json(const struct exporter *x, const char *name, struct json_out *j)
{
    ls_status st = json_out_status(j);

    if (st == LS_OK) st = write_text(x, name, j->text, j->bytes);
    json_out_free(j);
    return st;
}

static ls_status hf_export_write_config(const struct exporter *x)
{
    char *text;
    size_t bytes;

    LS_TRY(model_write_hf_config(x->model, x->o.type, &text, &bytes));
    ls_status st = write_text(x, "config.json", text, bytes);
    mem_free(text);
    return st;
}

/* The end-of-text token among a tokenizer's added tokens; *text is NULL if there is none. */
static void find_end(const json_node *tokenizer, const char **text, int64_t *id)
{
    static const char *const ends[] = { "<|endoftext|>", "<|end_of_text|>", "</s>" };
    const json_node *added = json_get(tokenizer, "added_tokens");

    *text = NULL;
    for (size_t i = 0; i < json_size(added) && !*text; i++) {
        const char *content = json_string(json_get(json_at(added, i), "content"), "");

        for (size_t k = 0; k < COUNT_OF(ends); k++)
            if (strcmp(content, ends[k]) == 0) *text = ends[k];
        *id = json_int(json_get(json_at(added, i), "id"), -1);
    }
}

static ls_status write_generation(const struct exporter *x, const char *end, int64_t id)
{
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_bool(&j, "do_sample", 1);
    if (end && id >= 0) {
        json_put_int(&j, "bos_token_id", id);
        json_put_int(&j, "eos_token_id", id);
    }
    json_end_object(&j);
    return write_json(x, "generation_config.json", &j);
}

static ls_status write_tokenizer_config(const struct exporter *x, const char *end)
{
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_string(&j, "tokenizer_class", "PreTrainedTokenizerFast");
    json_put_int(&j, "model_max_length", (int64_t)x->model->max_positions);
    json_put_bool(&j, "clean_up_tokenization_spaces", 0);
    if (end) {
        json_put_string(&j, "bos_token", end);
        json_put_string(&j, "eos_token", end);
    }
    json_end_object(&j);
    return write_json(x, "tokenizer_config.json", &j);
}

static ls_status write_tokenizer(const struct exporter *x)
{
    json_node *root = NULL;
    const char *end = NULL;
    int64_t id = -1;
    char *text;
    size_t bytes;

    if (!x->o.tokenizer) return write_generation(x, NULL, -1);
    LS_TRY(file_read(x->o.tokenizer, &text, &bytes));
    ls_status st = json_parse(text, bytes, x->o.tokenizer, &root);
    if (st == LS_OK) st = write_text(x, "tokenizer.json", text, bytes);
    find_end(root, &end, &id);
    if (st == LS_OK) st = write_tokenizer_config(x, end);
    if (st == LS_OK) st = write_generation(x, end, id);
    json_close(&root);
    mem_free(text);
    return st;
}

/* ---- the tensors ---- */

static ls_status list_tensors(struct exporter *x)
{
    uint64_t in_file = 0, bytes;

    LS_TRY(hf_tensors_of(x->model, &x->tensor, &x->n));
    x->spec = mem_array(MEM_OTHER, x->n, sizeof *x->spec);
    x->shard = mem_array(MEM_OTHER, x->n, sizeof *x->shard);
    if (!x->spec || !x->shard) return LS_ENOMEM;
    for (size_t i = 0; i < x->n; i++) {
        const struct model_weight *w = &x->tensor[i].part[0];

        x->spec[i] = (struct safetensor_spec){ .name = w->hf, .type = x->o.type, .ndim = w->hf_ndim };
        for (int d = 0; d < w->hf_ndim; d++) x->spec[i].size[d] = w->hf_size[d];
        bytes = safetensor_spec_bytes(&x->spec[i]);
        if (x->o.shard_bytes && in_file && in_file + bytes > x->o.shard_bytes) {
            x->shards++;
            in_file = 0;
        }
        in_file += bytes;
        x->shard[i] = x->shards;
    }
    x->shards++;
    return LS_OK;
}

static void shard_name(const struct exporter *x, size_t shard, char out[SHARD_NAME_ROOM])
{
    if (x->shards == 1)
        strcpy(out, "model.safetensors");
    else
        snprintf(out, SHARD_NAME_ROOM, "model-%05zu-of-%05zu.safetensors", shard + 1, x->shards);
}

static bool is_in_parts(const ls_store *s, size_t i)
{
    for (int d = 0; d < ls_store_ndim(s, i); d++)
        if (store_local_size(s, i, d) != ls_store_size(s, i, d)) return true;
    return !store_is_here(s, i) || store_sharded(s, i, STORE_VALUE) || store_sharded(s, i, STORE_STATE);
}

static ls_status read_store(const struct exporter *x, size_t i, void *own, size_t count)
{
    const char *name = ls_store_name(x->store, i);

    if (is_in_parts(x->store, i))
        return ls_fail(LS_EINVAL, "parameter '%s' is sharded over several ranks; save a checkpoint and export that", name);
    if (!store_is_allocated(x->store, i, STORE_VALUE, NULL))
        return ls_fail(LS_EINVAL, "parameter '%s' cannot be exported before it is allocated", name);
    return ls_store_read(x->store, i, store_is_allocated(x->store, i, STORE_STATE, KIND_MASTER) ? KIND_MASTER : KIND_PARAMETER, own,
                         x->o.type, count);
}

static ls_status read_saved(const struct exporter *x, size_t i, void *own, size_t count)
{
    const char *name = ls_store_name(x->store, i);
    struct box all = { { 0 }, { 0 } };

    for (int d = 0; d < ls_store_ndim(x->store, i); d++) all.extent[d] = ls_store_size(x->store, i, d);
    return saved_read(x->saved, saved_truth(x->saved, name), name, &all, 0, count, own, x->o.type);
}

/* The parameter's source value (rule 3 of checkpoint.h) as the requested type; *own from mem_alloc. */
static ls_status read_truth(const struct exporter *x, const struct model_weight *w, void **own)
{
    size_t count = hf_part_count(w) * MAX(w->stacked, (size_t)1), index;

    LS_TRY(hf_find_parameter(x->store, w, &index));
    *own = mem_alloc(MEM_OTHER, count * ls_dtype_bytes(x->o.type));
    if (!*own) return LS_ENOMEM;
    ls_status st = x->saved ? read_saved(x, index, *own, count) : read_store(x, index, *own, count);
    if (st < 0) {
        mem_free(*own);
        *own = NULL;
    }
    return st;
}

/* Copies part k of the tensor into place. A stacked parameter is read with its first tensor and kept for the others. */
static ls_status assemble_part(struct exporter *x, const struct hf_tensor *t, int k, void *hf)
{
    const struct model_weight *w = &t->part[k];
    size_t esize = ls_dtype_bytes(x->o.type);
    void *own = NULL;

    if (!w->stacked) {
        LS_TRY(read_truth(x, w, &own));
        hf_place(hf, own, w, esize);
        mem_free(own);
        return LS_OK;
    }
    if (t->index == 0) {
        mem_free(x->stack);
        x->stack = NULL;
        LS_TRY(read_truth(x, w, &x->stack));
    }
    hf_place(hf, (char *)x->stack + t->index * hf_part_count(w) * esize, w, esize);
    return LS_OK;
}

static ls_status put_tensor(struct exporter *x, size_t i, struct safetensors_writer *w)
{
    size_t bytes = safetensor_spec_bytes(&x->spec[i]);
    void *hf = mem_alloc(MEM_OTHER, bytes);
    ls_status st = hf ? LS_OK : LS_ENOMEM;

    for (int k = 0; k < x->tensor[i].parts && st == LS_OK; k++) st = assemble_part(x, &x->tensor[i], k, hf);
    if (st == LS_OK) st = safetensors_put(w, hf, bytes);
    mem_free(hf);
    return st;
}

/* Writes tensors [first, end) to one file. */
static ls_status write_shard(struct exporter *x, size_t first, size_t end)
{
    char name[SHARD_NAME_ROOM], hash[HASH_ROOM];
    struct safetensors_writer *w = NULL;
    uint64_t bytes;
    ls_status st = LS_ENOMEM;

    shard_name(x, x->shard[first], name);
    char *path = file_path("%s/%s", x->folder, name);
    if (path) st = safetensors_create(path, end - first, x->spec + first, &w);
    for (size_t i = first; i < end && st == LS_OK; i++) st = put_tensor(x, i, w);
    if (st == LS_OK)
        st = safetensors_publish(&w, &bytes, hash);
    else
        safetensors_abandon(&w);
    mem_free(path);
    return st;
}

static ls_status write_index(const struct exporter *x)
{
    struct json_out j = { 0 };
    char name[SHARD_NAME_ROOM];
    uint64_t total = 0;

    for (size_t i = 0; i < x->n; i++) total += safetensor_spec_bytes(&x->spec[i]);
    json_begin_object(&j, NULL);
    json_begin_object(&j, "metadata");
    json_put_int(&j, "total_size", (int64_t)total);
    json_end_object(&j);
    json_begin_object(&j, "weight_map");
    for (size_t i = 0; i < x->n; i++) {
        shard_name(x, x->shard[i], name);
        json_put_string(&j, x->spec[i].name, name);
    }
    json_end_object(&j);
    json_end_object(&j);
    return write_json(x, HF_INDEX_NAME, &j);
}

static ls_status write_folder(struct exporter *x)
{
    LS_TRY(list_tensors(x));
    LS_TRY(file_make_folders(x->folder));
    for (size_t first = 0, end; first < x->n; first = end) {
        for (end = first + 1; end < x->n && x->shard[end] == x->shard[first];) end++;
        LS_TRY(write_shard(x, first, end));
    }
    if (x->shards > 1) LS_TRY(write_index(x));
    LS_TRY(write_tokenizer(x));
    return hf_export_write_config(x);
}

static ls_status check_export(const char *folder, const char *tmp, const ls_hf_options *o)
{
    if (o->type != LS_F32 && o->type != LS_BF16 && o->type != LS_F16)
        return ls_fail(LS_EINVAL, "%s: weights can be exported as f32, bf16 or f16 only", folder);
    if (file_exists(folder)) return ls_fail(LS_EINVAL, "%s: already exists; an export creates a new folder", folder);
    if (file_exists(tmp)) return ls_fail(LS_EINVAL, "%s: already exists, maybe left by an interrupted export; remove it", tmp);
    return LS_OK;
}

ls_status hf_export(const char *folder, const ls_model *m, const ls_store *store, const struct saved *saved, const ls_hf_options *options)
{
    static const ls_hf_options defaults = LS_HF_DEFAULTS;
    ls_model model = *m;
    struct exporter x = { .model = &model, .store = store, .saved = saved, .o = options ? *options : defaults };
    size_t length = strlen(folder);

    while (length > 1 && folder[length - 1] == '/') length--;
    char *tmp = file_path("%.*s.tmp", (int)length, folder);
    ls_status st = tmp ? check_export(folder, tmp, &x.o) : LS_ENOMEM;
    if (st == LS_OK) st = ls_model_check(&model);
    if (st != LS_OK) goto free_tmp;
    x.folder = tmp;
    st = write_folder(&x);
    if (st == LS_OK) st = file_publish_folder(tmp, folder);
    if (st != LS_OK) file_remove_tree(tmp);
    mem_free(x.tensor);
    mem_free(x.spec);
    mem_free(x.shard);
    mem_free(x.stack);
free_tmp:
    mem_free(tmp);
    return st;
}

ls_status ls_hf_export(const char *folder, const ls_model *m, const ls_store *store, const ls_hf_options *options)
{
    return hf_export(folder, m, store, NULL, options);
}
