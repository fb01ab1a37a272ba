/* tokens_file.c - token files: finding the format, opening, writing. */
#include "data/tokens.h"

#include <stdio.h>

static const struct {
    const char *name;
    const struct token_format *format;
} formats[] = {
#define FORMAT_ROW(id, name) { name, &token_format_##id },
    LS_TOKEN_FORMAT_MAP(FORMAT_ROW)
#undef FORMAT_ROW
};

#define FORMAT_IN_LIST(id, name) ", " name
static const char format_names[] = LS_TOKEN_FORMAT_MAP(FORMAT_IN_LIST); /* each after ", " */

const char *token_format_name(const struct token_format *format)
{
    size_t i = 0;

    while (formats[i].format != format) i++;
    return formats[i].name;
}

static const struct token_format *find_format(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].format;
    ls_fail(LS_EINVAL, "unknown token format '%.40s'; use one of %s", name, format_names + 2);
    return NULL;
}

static bool tokens_file_ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

char *megatron_path(const char *path, const char *extension)
{
    size_t n = strlen(path);

    if (tokens_file_ends_in(path, ".bin") || tokens_file_ends_in(path, ".idx")) n -= 4;
    return file_path("%.*s%s", (int)n, path, extension);
}

static bool has_index(const char *path)
{
    char *idx = megatron_path(path, ".idx");
    bool has = idx && file_exists(idx);

    mem_free(idx);
    return has;
}

/* By content, then by the name. */
static const struct token_format *detect(const char *path, struct file_map map)
{
    int32_t magic = 0;

    if (token_format_has_llmc_magic(map.data, map.bytes)) {
        memcpy(&magic, map.data, sizeof magic);
        return magic == 20240801 ? &token_format_llmc_llama3 : &token_format_llmc;
    }
    if (tokens_file_ends_in(path, ".bin")) return &token_format_nanogpt;
    ls_fail(LS_EFORMAT,
            "%s: not a token file: it has no llm.c header, no .idx beside it, and is not named .bin; 'lockstep data prepare' makes one "
            "from a text",
            path);
    return NULL;
}

static ls_status tokens_new(const char *name, ls_tokens **out)
{
    ls_tokens *t = mem_zalloc(MEM_OTHER, sizeof *t);

    if (!t) return LS_ENOMEM;
    t->name = mem_strdup(name);
    if (!t->name) {
        mem_free(t);
        return LS_ENOMEM;
    }
    *out = t;
    return LS_OK;
}

static ls_status read_mapped(ls_tokens *t, const struct token_format *format)
{
    t->format = token_format_name(format);
    ls_status st = format->read(t);
    return st == LS_OK ? st : ls_fail_at(st, "%s", t->name);
}

static ls_status open_megatron(ls_tokens *t, const char *path)
{
    char *bin = megatron_path(path, ".bin"), *idx = megatron_path(path, ".idx");
    ls_status st = bin && idx ? file_map_open(bin, &t->map) : LS_ENOMEM;

    if (st == LS_OK) st = file_map_open(idx, &t->index);
    mem_free(bin);
    mem_free(idx);
    if (st == LS_OK) st = read_mapped(t, &token_format_megatron);
    file_map_close(&t->index);
    return st;
}

static ls_status open_single(ls_tokens *t, const char *path, const struct token_format *format)
{
    LS_TRY(file_map_open(path, &t->map));
    if (!format) format = detect(path, t->map);
    return format ? read_mapped(t, format) : LS_EFORMAT;
}

ls_status ls_tokens_open(const char *path, const char *format, ls_tokens **out)
{
    const struct token_format *f = format ? find_format(format) : NULL;
    ls_tokens *t;

    if (format && !f) return LS_EINVAL;
    LS_TRY(tokens_new(path, &t));
    ls_status st = f == &token_format_megatron || (!f && has_index(path)) ? open_megatron(t, path) : open_single(t, path, f);
    if (st == LS_OK)
        *out = t;
    else
        ls_tokens_close(&t);
    return st;
}

ls_status tokens_from_memory(const struct token_format *format, struct file_map bin, struct file_map idx, const char *name, ls_tokens **out)
{
    ls_tokens *t;

    LS_TRY(tokens_new(name, &t));
    t->map = bin;
    t->index = idx;
    ls_status st = read_mapped(t, format);
    t->map = t->index = (struct file_map){ 0 };
    if (st == LS_OK)
        *out = t;
    else
        ls_tokens_close(&t);
    return st;
}

ls_status tokens_fit(const char *path, const struct token_format *format, enum token_type type, int32_t vocab)
{
    int64_t most = (int64_t)1 << (token_type_bytes(type) == 2 ? 16 : 31);

    if (vocab >= 1 && vocab <= most) return LS_OK;
    return ls_fail(LS_EINVAL, "%s: a vocabulary of %d does not fit the %s of format %s (at most %lld)", path, vocab, token_type_name(type),
                   token_format_name(format), (long long)most);
}

ls_status tokens_put(const ls_tokens *t, enum token_type type, int32_t vocab, file_writer *w)
{
    enum { STEP = 4096 };
    int32_t ids[STEP];
    uint16_t small[STEP];

    for (size_t at = 0; at < t->count; at += STEP) {
        size_t n = MIN((size_t)STEP, t->count - at);

        LS_TRY(ls_tokens_read(t, at, n, vocab, ids));
        for (size_t i = 0; i < n; i++) small[i] = (uint16_t)ids[i];
        if (token_type_bytes(type) == 2)
            LS_TRY(file_writer_put(w, small, n * sizeof *small));
        else
            LS_TRY(file_writer_put(w, ids, n * sizeof *ids));
    }
    return LS_OK;
}

ls_status ls_tokens_save(const ls_tokens *t, const char *path, const char *format, int32_t vocab)
{
    const struct token_format *f = find_format(format);

    return f ? f->write(t, path, vocab) : LS_EINVAL;
}
