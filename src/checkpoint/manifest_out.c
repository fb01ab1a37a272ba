/* manifest_out.c - writes manifest.json; manifest.c specifies the format. */
#include "checkpoint/manifest.h"

#include <string.h>
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/model_json.h"

static void put_state(struct json_out *j, const ls_train_state *s)
{
    json_begin_object(j, "state");
    json_put_int(j, "step", (int64_t)s->step);
    json_put_int(j, "samples", (int64_t)s->samples);
    json_put_int(j, "tokens", (int64_t)s->tokens);
    json_put_int(j, "schedule_steps", (int64_t)s->schedule_steps);
    if (s->budget_steps) {
        json_put_int(j, "budget_steps", (int64_t)s->budget_steps);
        json_put_real(j, "budget_seconds", s->budget_seconds);
    }
    if (s->grad_norm > 0) json_put_real(j, "grad_norm", s->grad_norm);
    json_put_u64(j, "seed", s->seed);
    json_put_int(j, "threads", s->threads);
    json_put_string(j, "optimizer", s->optimizer);
    json_put_string(j, "data", s->data);
    json_put_string(j, "compute", s->compute);
    json_put_string(j, "library", s->library);
    json_put_string(j, "isa", s->isa);
    json_end_object(j);
}

static void put_dims(struct json_out *j, const char *key, int ndim, const size_t *size)
{
    json_begin_array(j, key);
    for (int d = 0; d < ndim; d++) json_put_int(j, NULL, (int64_t)size[d]);
    json_end_array(j);
}

static void put_file(struct json_out *j, const ls_checkpoint_file *f)
{
    json_begin_object(j, NULL);
    json_put_string(j, "name", f->name);
    json_put_int(j, "bytes", (int64_t)f->bytes);
    json_put_string(j, "hash", f->hash);
    if (f->header[0]) json_put_string(j, "header", f->header);
    json_end_object(j);
}

static void put_entry(struct json_out *j, const ls_checkpoint_entry *e)
{
    json_begin_object(j, NULL);
    json_put_string(j, "name", e->name);
    json_put_string(j, "kind", e->kind);
    json_put_string(j, "dtype", ls_dtype_name(e->type));
    put_dims(j, "shape", e->ndim, e->size);
    put_dims(j, "offset", e->ndim, e->offset);
    put_dims(j, "extent", e->ndim, e->extent);
    json_put_int(j, "file", (int64_t)e->file);
    if (e->hashes) json_put_string(j, "hashes", e->hashes);
    json_end_object(j);
}

static void put_info(struct json_out *j, const ls_checkpoint_info *info)
{
    json_begin_object(j, NULL);
    json_put_int(j, "format", MANIFEST_FORMAT);
    if (info->has_model) model_json_put(j, "model", &info->model);
    put_state(j, &info->state);
    if (info->hash_block_bytes) json_put_int(j, "piece_bytes", (int64_t)info->hash_block_bytes);
    json_begin_array(j, "files");
    for (size_t i = 0; i < info->nfiles; i++) put_file(j, &info->files[i]);
    json_end_array(j);
    json_begin_array(j, "tensors");
    for (size_t i = 0; i < info->nentries; i++) put_entry(j, &info->entries[i]);
    json_end_array(j);
    json_end_object(j);
}

ls_status manifest_format(const ls_checkpoint_info *info, char **text, size_t *bytes)
{
    struct json_out j = { 0 };
    struct text whole = { 0 };
    char hash[HASH_ROOM];

    put_info(&j, info);
    ls_status st = json_out_status(&j);
    if (st == LS_OK) {
        size_t body = j.bytes - 1; /* without the last '}', which is in the trailer */

        hash_of(j.text, body, hash);
        text_add(&whole, j.text, body);
        text_put(&whole, ",\"hash\":\"%s\"}\n", hash);
        st = text_status(&whole);
    }
    json_out_free(&j);
    if (st != LS_OK) {
        text_free(&whole);
        return st;
    }
    *text = whole.data;
    *bytes = whole.bytes;
    return LS_OK;
}
