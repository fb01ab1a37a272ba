/* safetensors_out.c - writing: header first, then the data as it is passed in, hashed as it is written. */
#include "checkpoint/safetensors.h"

#include <string.h>
#include "base/base.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"

enum { ALIGN = 8, TEAM_BYTES = 1 << 20 };

struct safetensors_writer {
    file_writer *file;
    hash_state *hash;
    uint64_t bytes;   /* written so far */
    uint64_t want;    /* bytes when it is complete */
    uint64_t *tensor; /* [tensors] bytes of each that remain to be written */
    size_t tensors;
    /* Set by safetensors_hash_blocks(); else NULL and 0. */
    hash_state *block;
    size_t hash_block_bytes, in_block, at; /* in_block: bytes of the block so far; at: the current tensor */
    struct text digits;
};

size_t safetensor_spec_bytes(const struct safetensor_spec *s)
{
    size_t n = ls_dtype_bytes(s->type);

    for (int d = 0; d < s->ndim; d++) n *= s->size[d];
    return n;
}

static void put_spec(struct json_out *j, const struct safetensor_spec *s, uint64_t begin)
{
    json_begin_object(j, s->name);
    json_put_string(j, "dtype", ls_dtype_safetensors(s->type));
    json_begin_array(j, "shape");
    for (int d = 0; d < s->ndim; d++) json_put_int(j, NULL, (int64_t)s->size[d]);
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

    for (int i = 0; i < SAFETENSORS_PREFIX; i++) prefix[i] = (unsigned char)((uint64_t)n >> 8 * i);
    w->want += SAFETENSORS_PREFIX + n;
    LS_TRY(safetensors_put(w, prefix, SAFETENSORS_PREFIX));
    LS_TRY(safetensors_put(w, j->text, j->bytes));
    return safetensors_put(w, "        ", padding);
}

static ls_status count_tensors(struct safetensors_writer *w, size_t n, const struct safetensor_spec *spec)
{
    w->tensor = mem_array(MEM_OTHER, n, sizeof *w->tensor);
    if (!w->tensor) return LS_ENOMEM;
    w->tensors = n;
    for (size_t i = 0; i < n; i++) w->tensor[i] = safetensor_spec_bytes(&spec[i]);
    return LS_OK;
}

ls_status safetensors_create(const char *path, size_t n, const struct safetensor_spec *spec, struct safetensors_writer **out)
{
    struct safetensors_writer *w;
    struct json_out header = { 0 };
    ls_status st = LS_ENOMEM;

    for (size_t i = 0; i < n; i++)
        if (!safetensor_name_is_valid(spec[i].name))
            return ls_fail(LS_EINVAL, "%s: tensor %zu: its name is __metadata__ or contains control characters", path, i);
    w = mem_zalloc(MEM_OTHER, sizeof *w);
    if (!w) return st;
    put_header(&header, n, spec, &w->want);
    st = json_out_status(&header);
    if (st == LS_OK && header.bytes > SAFETENSORS_HEADER_MOST - ALIGN)
        st = ls_fail(LS_EINVAL, "%s: %zu tensors need a header of %zu bytes; at most %d", path, n, header.bytes, SAFETENSORS_HEADER_MOST);
    if (st == LS_OK) st = count_tensors(w, n, spec);
    if (st == LS_OK) st = hash_begin(&w->hash);
    if (st == LS_OK) st = file_writer_open(path, &w->file);
    if (st == LS_OK) st = write_header(w, &header);
    json_out_free(&header);
    if (st == LS_OK)
        *out = w;
    else
        safetensors_abandon(&w);
    return st;
}

ls_status safetensors_hash_blocks(struct safetensors_writer *w, size_t hash_block_bytes)
{
    char digits[HASH_ROOM];

    LS_TRY(hash_begin(&w->block));
    w->hash_block_bytes = hash_block_bytes;
    hash_so_far(w->hash, digits);
    text_put(&w->digits, "%s", digits);
    return text_status(&w->digits);
}

static void end_block(struct safetensors_writer *w)
{
    char digits[HASH_ROOM];

    hash_next(w->block, digits);
    text_put(&w->digits, "%s", digits);
    w->in_block = 0;
}

/* A block ends when it is full, or with its tensor. */
static void hash_block(struct safetensors_writer *w, const unsigned char *data, size_t bytes)
{
    while (bytes > 0) {
        while (w->tensor[w->at] == 0) w->at++;
        size_t n = MIN(bytes, MIN(w->hash_block_bytes - w->in_block, w->tensor[w->at]));

        hash_add(w->block, data, n);
        w->in_block += n;
        w->tensor[w->at] -= n;
        data += n;
        bytes -= n;
        if (w->in_block == w->hash_block_bytes || w->tensor[w->at] == 0) end_block(w);
    }
}

ls_status safetensors_hashes(const struct safetensors_writer *w, const char **digits)
{
    LS_TRY(text_status(&w->digits));
    *digits = w->digits.data;
    return LS_OK;
}

/* What one put does with its bytes: independent parts, so that a thread writes while another hashes. */
enum put_part { PUT_WRITE, PUT_HASH, PUT_PARTS };

struct putting {
    struct safetensors_writer *w;
    const void *data;
    size_t bytes;
    ls_status written;
};

/* The caller does the first part, whose message is then its own (threads_for). */
static void put_parts(void *ctx, size_t begin, size_t end, int thread)
{
    struct putting *p = ctx;

    (void)thread;
    for (size_t part = begin; part < end; part++)
        if (part == PUT_WRITE) {
            p->written = file_writer_put(p->w->file, p->data, p->bytes);
        } else {
            hash_add(p->w->hash, p->data, p->bytes);
            if (p->w->block) hash_block(p->w, p->data, p->bytes);
        }
}

ls_status safetensors_put(struct safetensors_writer *w, const void *data, size_t bytes)
{
    struct putting p = { w, data, bytes, LS_OK };

    ASSERT(bytes <= w->want - w->bytes);
    if (bytes >= TEAM_BYTES)
        threads_for(PUT_PARTS, 1, put_parts, &p);
    else
        put_parts(&p, 0, PUT_PARTS, 0);
    LS_TRY(p.written);
    w->bytes += bytes;
    return LS_OK;
}

ls_status safetensors_publish(struct safetensors_writer **wp, uint64_t *bytes, char hash[HASH_ROOM])
{
    struct safetensors_writer *w = *wp;

    ASSERT(w->bytes == w->want);
    ls_status st = file_writer_publish(&w->file);
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

    if (!w) return;
    file_writer_abandon(&w->file);
    hash_end(&w->hash, NULL);
    hash_end(&w->block, NULL);
    text_free(&w->digits);
    mem_free(w->tensor);
    mem_free(w);
    *wp = NULL;
}
