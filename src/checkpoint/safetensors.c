/* safetensors.c - reading: the header is parsed by json.h and used only after the checks below. */
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/json.h"
#include "base/mem.h"

struct safetensors {
    char *path;
    struct file_map map;         /* the file that safetensors_open() mapped */
    json_node *header;           /* owns the names */
    const unsigned char *start;  /* first byte of the file */
    size_t bytes, before, count; /* before: bytes before the data */
    struct safetensor *tensor;
};

static const char metadata[] = "__metadata__";

/* Types of the format that lockstep does not use; files may contain such tensors. */
static const struct {
    const char *name;
    size_t bytes;
} foreign[] = {
    { "BOOL", 1 },    { "I8", 1 },      { "I16", 2 }, { "U32", 4 },         { "U64", 8 },         { "F8_E4M3", 1 },
    { "F8_E5M2", 1 }, { "F8_E8M0", 1 }, { "C64", 8 }, { "F8_E4M3FNUZ", 1 }, { "F8_E5M2FNUZ", 1 },
};

/* Element size, 0 if there is no such type. */
static size_t safetensors_type_of(const char *name, ls_dtype *type)
{
    for (int t = 0; t < LS_DTYPES; t++)
        if (strcmp(ls_dtype_safetensors((ls_dtype)t), name) == 0) {
            *type = (ls_dtype)t;
            return ls_dtype_bytes(*type);
        }
    *type = LS_DTYPES;
    for (size_t i = 0; i < COUNT_OF(foreign); i++)
        if (strcmp(foreign[i].name, name) == 0) return foreign[i].bytes;
    return 0;
}

static ls_status read_shape(const struct safetensors *f, const json_node *shape, struct safetensor *t)
{
    if (json_kind_of(shape) != JSON_ARRAY) return ls_fail(LS_EFORMAT, "%s: tensor '%s': no \"shape\" array", f->path, t->name);
    if (json_size(shape) > LS_DIMS)
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': %zu dims; at most %d", f->path, t->name, json_size(shape), LS_DIMS);
    t->ndim = (int)json_size(shape);
    t->count = 1;
    for (int d = 0; d < t->ndim; d++) {
        int64_t size = json_int(json_at(shape, (size_t)d), -1);

        if (size < 0) return ls_fail(LS_EFORMAT, "%s: tensor '%s': dim %d of its shape is not a size", f->path, t->name, d);
        t->size[d] = (size_t)size;
        if (!size_mul(t->count, t->size[d], &t->count))
            return ls_fail(LS_EFORMAT, "%s: tensor '%s': its shape overflows at dim %d of %zu", f->path, t->name, d, t->size[d]);
    }
    return LS_OK;
}

/* room: bytes of data in the file, from `data` on. */
static ls_status read_range(const struct safetensors *f, const json_node *range, const unsigned char *data, size_t room,
                            struct safetensor *t)
{
    int64_t begin = json_int(json_at(range, 0), -1), end = json_int(json_at(range, 1), -1);

    if (json_kind_of(range) != JSON_ARRAY || json_size(range) != 2 || begin < 0 || end < begin)
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': \"data_offsets\" are not [begin, end]", f->path, t->name);
    if ((uint64_t)end > room)
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': data_offsets end at %lld, but the file has %zu bytes of data", f->path, t->name,
                       (long long)end, room);
    if ((uint64_t)(end - begin) != t->bytes)
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': %lld bytes of data, but its shape and type %s need %zu", f->path, t->name,
                       (long long)(end - begin), t->type_name, t->bytes);
    t->data = data + begin;
    return LS_OK;
}

bool safetensor_name_is_valid(const char *name)
{
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) return false;
    return strcmp(name, metadata) != 0;
}

static ls_status read_tensor(const struct safetensors *f, const json_node *node, const unsigned char *data, size_t room,
                             struct safetensor *t)
{
    if (!safetensor_name_is_valid(t->name)) return ls_fail(LS_EFORMAT, "%s: a tensor's name contains control characters", f->path);
    t->type_name = json_string(json_get(node, "dtype"), NULL);
    if (!t->type_name) return ls_fail(LS_EFORMAT, "%s: tensor '%s': no \"dtype\"", f->path, t->name);
    size_t esize = safetensors_type_of(t->type_name, &t->type);
    if (!esize)
        return ls_fail(LS_EFORMAT, "%s: tensor '%s': unknown dtype of %zu letters; expected F32, BF16, F16, ...", f->path, t->name,
                       strlen(t->type_name));
    LS_TRY(read_shape(f, json_get(node, "shape"), t));
    if (!size_mul(t->count, esize, &t->bytes)) return ls_fail(LS_EFORMAT, "%s: tensor '%s': its size in bytes overflows", f->path, t->name);
    return read_range(f, json_get(node, "data_offsets"), data, room, t);
}

static int by_data(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;

    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static ls_status check_cover(const struct safetensors *f, const unsigned char *data, size_t room)
{
    const unsigned char *at = data;

    for (size_t i = 0; i < f->count; i++) {
        const struct safetensor *t = &f->tensor[i];

        if (t->data != at)
            return ls_fail(LS_EFORMAT, "%s: tensor '%s': its data begins at %zu, but the tensor before it ends at %zu", f->path, t->name,
                           (size_t)(t->data - data), (size_t)(at - data));
        at += t->bytes;
    }
    if (at != data + room)
        return ls_fail(LS_EFORMAT, "%s: the tensors end at byte %zu of %zu bytes of data", f->path, (size_t)(at - data), room);
    return LS_OK;
}

/* A map of strings to strings, or null, which the reference implementation treats as absent. */
static ls_status check_metadata(const struct safetensors *f, const json_node *node)
{
    const char *key;

    if (json_kind_of(node) == JSON_NULL) return LS_OK;
    if (json_kind_of(node) != JSON_OBJECT) return ls_fail(LS_EFORMAT, "%s: __metadata__ is not an object", f->path);
    for (size_t i = 0; i < json_size(node); i++)
        if (json_kind_of(json_member(node, i, &key)) != JSON_STRING)
            return ls_fail(LS_EFORMAT, "%s: __metadata__: '%.60s' is not a string; the format allows only strings", f->path, key);
    return LS_OK;
}

static ls_status read_tensors(struct safetensors *f, const unsigned char *data, size_t room)
{
    f->tensor = mem_array(MEM_OTHER, json_size(f->header), sizeof *f->tensor);
    if (!f->tensor) return LS_ENOMEM;
    for (size_t i = 0; i < json_size(f->header); i++) {
        struct safetensor *t = &f->tensor[f->count];
        const json_node *node = json_member(f->header, i, &t->name);

        if (strcmp(t->name, metadata) == 0) {
            LS_TRY(check_metadata(f, node));
            continue;
        }
        LS_TRY(read_tensor(f, node, data, room, t));
        f->count++;
    }
    if (f->count) qsort(f->tensor, f->count, sizeof *f->tensor, by_data);
    return check_cover(f, data, room);
}

static ls_status read_header(struct safetensors *f, const unsigned char *data, size_t bytes)
{
    uint64_t n = 0;

    f->start = data;
    f->bytes = bytes;
    if (bytes < SAFETENSORS_PREFIX) return ls_fail(LS_EFORMAT, "%s: %zu bytes; a safetensors file has at least 10", f->path, bytes);
    for (int i = SAFETENSORS_PREFIX - 1; i >= 0; i--) n = n << 8 | data[i];
    if (n > SAFETENSORS_HEADER_MOST || n > bytes - SAFETENSORS_PREFIX)
        return ls_fail(LS_EFORMAT, "%s: the header has %llu bytes, but the file has %zu, and a header at most %d", f->path,
                       (unsigned long long)n, bytes, SAFETENSORS_HEADER_MOST);
    if (n == 0 || data[SAFETENSORS_PREFIX] != '{') return ls_fail(LS_EFORMAT, "%s: the header does not begin with '{'", f->path);
    f->before = SAFETENSORS_PREFIX + (size_t)n;
    ls_status st = json_parse((const char *)data + SAFETENSORS_PREFIX, (size_t)n, "header", &f->header);
    if (st < 0) return ls_fail_at(st, st == LS_EFORMAT ? "%s: damaged; copy or save it again" : "%s", f->path);
    return read_tensors(f, data + f->before, bytes - f->before);
}

ls_status safetensors_parse(const unsigned char *data, size_t bytes, const char *what, struct safetensors **out)
{
    struct safetensors *f = mem_zalloc(MEM_OTHER, sizeof *f);
    ls_status st = LS_ENOMEM;

    if (!f) return st;
    f->path = mem_strdup(what);
    if (f->path) st = read_header(f, data, bytes);
    if (st == LS_OK)
        *out = f;
    else
        safetensors_close(&f);
    return st;
}

ls_status safetensors_open(const char *path, struct safetensors **out)
{
    struct file_map map;

    LS_TRY(file_map_open(path, &map));
    ls_status st = safetensors_parse(map.data, map.bytes, path, out);
    if (st == LS_OK)
        (*out)->map = map;
    else
        file_map_close(&map);
    return st;
}

void safetensors_close(struct safetensors **fp)
{
    struct safetensors *f = *fp;

    if (!f) return;
    mem_free(f->tensor);
    json_close(&f->header);
    file_map_close(&f->map);
    mem_free(f->path);
    mem_free(f);
    *fp = NULL;
}

const char *safetensors_path(const struct safetensors *f) { return f->path; }
size_t safetensors_bytes(const struct safetensors *f) { return f->bytes; }
const unsigned char *safetensors_start(const struct safetensors *f, size_t *bytes)
{
    *bytes = f->before;
    return f->start;
}

size_t safetensors_count(const struct safetensors *f) { return f->count; }

const struct safetensor *safetensors_at(const struct safetensors *f, size_t i) { return i < f->count ? &f->tensor[i] : NULL; }

const struct safetensor *safetensors_find(const struct safetensors *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->tensor[i].name, name) == 0) return &f->tensor[i];
    return NULL;
}

const void *safetensor_aligned(const struct safetensor *t, void **copy)
{
    *copy = NULL;
    if ((uintptr_t)t->data % ls_dtype_bytes(t->type) == 0) return t->data;
    *copy = mem_alloc(MEM_OTHER, t->bytes);
    return *copy ? memcpy(*copy, t->data, t->bytes) : NULL;
}
