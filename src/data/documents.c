/* documents.c - see documents.h. */
#include "data/documents.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "data/archive.h"
#include "data/array.h"

typedef ls_status expand_fn(const void *from, size_t bytes, bytes_fn *fn, void *ctx);

static ls_status expand_none(const void *from, size_t bytes, bytes_fn *fn, void *ctx)
{
    for (size_t at = 0, n; at < bytes; at += n) {
        n = MIN((size_t)ARCHIVE_BUFFER, bytes - at);
        LS_TRY(fn(ctx, (const char *)from + at, n));
    }
    return LS_OK;
}

static const struct archive {
    const char *suffix;
    expand_fn *expand;
} archives[] = { { ".gz", gzip_expand }, { ".zst", zstd_expand } };
static const char *const line_suffixes[] = { ".jsonl", ".ndjson" };

static bool documents_ends_in(const char *s, size_t n, const char *end)
{
    size_t m = strlen(end);

    return n >= m && memcmp(s + n - m, end, m) == 0;
}

static const struct archive *archive_of(const char *path)
{
    for (size_t i = 0; i < COUNT_OF(archives); i++)
        if (documents_ends_in(path, strlen(path), archives[i].suffix)) return &archives[i];
    return NULL;
}

bool documents_are_lines(const char *path)
{
    const struct archive *a = archive_of(path);
    size_t n = strlen(path) - (a ? strlen(a->suffix) : 0);

    for (size_t i = 0; i < COUNT_OF(line_suffixes); i++)
        if (documents_ends_in(path, n, line_suffixes[i])) return true;
    return false;
}

/* ---- from bytes to documents ---- */

struct reader {
    const char *path, *field;
    document_fn *fn;
    void *ctx;
    char *kept; /* data so far: of the line, or of the whole text */
    size_t bytes, room;
    size_t line; /* number of the next line */
    struct documents *out;
};

static ls_status keep(struct reader *r, const char *data, size_t bytes)
{
    void *p = r->kept;

    pulse();
    LS_TRY(array_grow(&p, &r->room, r->bytes + bytes + 1, 1));
    r->kept = p;
    memcpy(r->kept + r->bytes, data, bytes);
    r->bytes += bytes;
    return LS_OK;
}

static ls_status documents_give(struct reader *r, const char *text, size_t bytes)
{
    r->out->count++;
    r->out->bytes += bytes;
    return r->fn(r->ctx, text, bytes);
}

static ls_status give_field(struct reader *r, const json_node *object, const char *where)
{
    const json_node *n = json_get(object, r->field);
    const char *text = json_string(n, NULL);

    if (json_kind_of(object) != JSON_OBJECT) return ls_fail(LS_EFORMAT, "%s: not a JSON object; expected one per line", where);
    if (!n) return ls_fail(LS_EFORMAT, "%s: no field '%.60s': name the field that holds the text with --data.field", where, r->field);
    if (!text) return ls_fail(LS_EFORMAT, "%s: field '%.60s' is not a string", where, r->field);
    ls_status st = documents_give(r, text, strlen(text));
    return st == LS_OK ? st : ls_fail_at(st, "%s", where);
}

static ls_status end_line(struct reader *r)
{
    char where[1200];
    json_node *root;

    snprintf(where, sizeof where, "%s: line %zu", r->path, r->line++);
    size_t bytes = r->bytes;
    r->bytes = 0;
    if (bytes == 0 || strspn(r->kept, " \t\r") == bytes) return LS_OK;
    LS_TRY(json_parse(r->kept, bytes, where, &root));
    ls_status st = give_field(r, root, where);
    json_close(&root);
    return st;
}

static ls_status take_lines(void *ctx, const char *data, size_t bytes)
{
    struct reader *r = ctx;

    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        size_t n = end ? (size_t)(end - data) : bytes;

        LS_TRY(keep(r, data, n));
        r->kept[r->bytes] = '\0';
        if (end) LS_TRY(end_line(r));
        n += end != NULL;
        data += n;
        bytes -= n;
    }
    return LS_OK;
}

static ls_status take_text(void *ctx, const char *data, size_t bytes) { return keep(ctx, data, bytes); }

static ls_status read_all(struct reader *r, const struct file_map *map)
{
    const struct archive *a = archive_of(r->path);
    expand_fn *expand = a ? a->expand : expand_none;

    if (documents_are_lines(r->path)) {
        LS_TRY(expand(map->data, map->bytes, take_lines, r));
        return r->bytes ? end_line(r) : LS_OK;
    }
    if (!a) return documents_give(r, (const char *)map->data, map->bytes);
    LS_TRY(expand(map->data, map->bytes, take_text, r));
    return documents_give(r, r->kept ? r->kept : "", r->bytes);
}

ls_status documents_each(const char *path, const char *field, document_fn *fn, void *ctx, struct documents *out)
{
    struct documents found = { 0 };
    struct reader r = { .path = path, .field = field, .fn = fn, .ctx = ctx, .line = 1, .out = &found };
    struct file_map map;

    LS_TRY(file_map_open(path, &map));
    ls_status st = read_all(&r, &map);
    hash_of(map.data, map.bytes, found.hash);
    file_map_close(&map);
    mem_free(r.kept);
    if (st != LS_OK) return strncmp(ls_errmsg(), path, strlen(path)) == 0 ? st : ls_fail_at(st, "%s", path);
    if (found.bytes == 0) return ls_fail(LS_EFORMAT, "%s: the text is empty", path);
    *out = found;
    return LS_OK;
}
