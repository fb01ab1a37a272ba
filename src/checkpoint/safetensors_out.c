/* safetensors_out.c - writing: header first, then the data as it comes, hashed on the way. */
#include "checkpoint/safetensors.h"

#include <string.h>
#include "base/base.h"
#include "base/json.h"
#include "base/mem.h"

enum { ALIGN = 8 };

struct safetensors_writer {
    file_writer *file;
    hash_state  *hash;
    uint64_t     bytes;  /* written so far */
    uint64_t     want;   /* at the end */
};

size_t safetensor_spec_bytes(const struct safetensor_spec *s)
{
    size_t n = ls_dtype_bytes(s->type);

    for (int d = 0; d < s->ndim; d++)
        n *= s->size[d];
    return n;
}

static void put_spec(struct json_out *j, const struct safetensor_spec *s, uint64_t begin)
{
    json_begin_object(j, s->name);
    json_put_string(j, "dtype", ls_dtype_safetensors(s->type));
    json_begin_array(j, "shape");
    for (int d = 0; d < s->ndim; d++)
        json_put_int(j, NULL, (int64_t)s->size[d]);
    json_end_array(j);
    json_begin_array(j, "data_offsets");
    json_put_int(j, NULL, (int64_t)begin);
    json_put_int(j, NULL, (int64_t)(begin + safetensor_spec_bytes(s)));
    json_end_array(j);
    json_end_object(j);
}

/* *data = bytes of all tensors. */
static void put_header(struct json_out *j, size_t n, const struct safetensor_spec *spec, uint64_t *data)
{
    *data = 0;
    json_begin_object(j, NULL);
    json_begin_object(j, "__metadata__");
    json_put_string(j, "format", "pt");
    json_end_object(j);
    for (size_t i = 0; i < n; i++) {
        put_spec(j, &spec[i], *data);
        *data += safetensor_spec_bytes(&spec[i]);
    }
    json_end_object(j);
}

static ls_status write_header(struct safetensors_writer *w, const struct json_out *j)
{
    size_t padding = (ALIGN - j->bytes % ALIGN) % ALIGN, n = j->bytes + padding;
    unsigned char prefix[SAFETENSORS_PREFIX];

    for (int i = 0; i < SAFETENSORS_PREFIX; i++)
        prefix[i] = (unsigned char)((uint64_t)n >> 8 * i);
    w->want += SAFETENSORS_PREFIX + n;
    LS_TRY(safetensors_put(w, prefix, SAFETENSORS_PREFIX));
    LS_TRY(safetensors_put(w, j->text, j->bytes));
    return safetensors_put(w, "        ", padding);
}

ls_status safetensors_create(const char *path, size_t n, const struct safetensor_spec *spec,
                             struct safetensors_writer **out)
{
    struct safetensors_writer *w;
    struct json_out header = { 0 };
    ls_status st = LS_ENOMEM;

    for (size_t i = 0; i < n; i++)
        if (!safetensor_name_is_valid(spec[i].name))
            return ls_fail(LS_EINVAL, "%s: tensor %zu: its name is __metadata__ or holds control characters", path, i);
    w = mem_zalloc(MEM_OTHER, sizeof *w);
    if (!w)
        return st;
    put_header(&header, n, spec, &w->want);
    st = json_out_status(&header);
    if (st == LS_OK && header.bytes > SAFETENSORS_HEADER_MOST - ALIGN)
        st = ls_fail(LS_EINVAL, "%s: %zu tensors need a header of %zu bytes; %d are possible", path, n, header.bytes,
                     SAFETENSORS_HEADER_MOST);
    if (st == LS_OK)
        st = hash_begin(&w->hash);
    if (st == LS_OK)
        st = file_writer_open(path, &w->file);
    if (st == LS_OK)
        st = write_header(w, &header);
    json_out_free(&header);
    if (st == LS_OK)
        *out = w;
    else
        safetensors_abandon(&w);
    return st;
}

ls_status safetensors_put(struct safetensors_writer *w, const void *data, size_t bytes)
{
    LS_TRY(file_writer_put(w->file, data, bytes));
    hash_add(w->hash, data, bytes);
    w->bytes += bytes;
    return LS_OK;
}

ls_status safetensors_publish(struct safetensors_writer **wp, uint64_t *bytes, char hash[HASH_ROOM])
{
    struct safetensors_writer *w = *wp;
    ls_status st;

    ASSERT(w->bytes == w->want);
    st = file_writer_publish(&w->file);
    if (st == LS_OK) {
        *bytes = w->bytes;
        hash_end(&w->hash, hash);
    }
    safetensors_abandon(wp);
    return st;
}

void safetensors_abandon(struct safetensors_writer **wp)
{
    struct safetensors_writer *w = *wp;

    if (!w)
        return;
    file_writer_abandon(&w->file);
    hash_end(&w->hash, NULL);
    mem_free(w);
    *wp = NULL;
}
