/* tokenizer.c - making, opening and saving a tokenizer, and its accessors. */
#include "data/tokenizer.h"

#include <stdio.h>
#include "base/file.h"
#include "data/normalize.h"
#include "data/pattern.h"

/* Names of an end-of-text token, the most specific first. */
static const char *const end_names[] = { END_OF_TEXT, "<|end_of_text|>", "<|eot_id|>", "</s>", "<eos>" };

ls_status tokenizer_new(ls_tokenizer **out)
{
    ls_tokenizer *t = mem_zalloc(MEM_OTHER, sizeof *t);

    if (!t) return LS_ENOMEM;
    t->end = t->begin = -1;
    *out = t;
    return LS_OK;
}

ls_status tokenizer_add_stage(ls_tokenizer *t, const char *regex)
{
    struct stage *s = &t->stage[t->stages];

    if (t->stages == STAGES_MOST) return ls_fail(LS_EUNSUPPORTED, "too many pre_tokenizers: at most %d", STAGES_MOST);
    if (regex) {
        LS_TRY(split_compile(regex, &s->split));
        s->regex = mem_strdup(regex);
        if (!s->regex) {
            split_free(&s->split);
            return LS_ENOMEM;
        }
    }
    t->stages++;
    return LS_OK;
}

/* A token that is searched after form C is applied is itself converted to form C. */
static ls_status put_normalized(ls_tokenizer *t, int64_t id, const unsigned char *text, size_t bytes, bool special)
{
    struct normal normal = { 0 };
    ls_status st = normalize_nfc(&normal, text, bytes, &text, &bytes);

    if (st == LS_OK) st = added_put(&t->normalized, (int32_t)id, text, bytes, special);
    normal_free(&normal);
    return st;
}

ls_status tokenizer_add_token(ls_tokenizer *t, int64_t id, const char *text, bool special, bool normalized)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t count = strlen(text), held;
    int32_t known = vocab_find(&t->bpe.vocab, bytes, count);

    if (count == 0) return ls_fail(LS_EFORMAT, "added token %lld is empty", (long long)id);
    if (added_find(&t->raw, bytes, count) >= 0 || added_find(&t->normalized, bytes, count) >= 0)
        return ls_fail(LS_EFORMAT, "added token '%.40s' is given twice", text);
    if (known >= 0 && known != id)
        return ls_fail(LS_EFORMAT, "added token '%.40s' has id %lld, but %d in the vocabulary", text, (long long)id, known);
    const unsigned char *there = vocab_bytes(&t->bpe.vocab, id, &held);
    if (there && (held != count || memcmp(there, bytes, count) != 0))
        return ls_fail(LS_EFORMAT, "added token '%.40s' has id %lld, which is another token in the vocabulary", text, (long long)id);
    if (!there) LS_TRY(vocab_put(&t->bpe.vocab, id, text, count, false));
    if (normalized && t->nfc) return put_normalized(t, id, bytes, count, special);
    return added_put(&t->raw, (int32_t)id, bytes, count, special);
}

ls_status tokenizer_finish(ls_tokenizer *t, const char *source, size_t bytes, const char *source_name)
{
    ASSERT(strlen(source_name) < sizeof t->source_name);
    t->source = mem_alloc(MEM_OTHER, MAX(bytes, 1));
    if (!t->source) return LS_ENOMEM;
    if (bytes > 0) memcpy(t->source, source, bytes);
    t->source_bytes = bytes;
    strcpy(t->source_name, source_name);
    bpe_set_bytes(&t->bpe);
    for (size_t i = 0; i < COUNT_OF(end_names) && t->end < 0; i++) t->end = ls_tokenizer_find(t, end_names[i], strlen(end_names[i]));
    return LS_OK;
}

void ls_tokenizer_close(ls_tokenizer **at)
{
    ls_tokenizer *t = at ? *at : NULL;

    if (!t) return;
    for (int i = 0; i < t->stages; i++) {
        split_free(&t->stage[i].split);
        mem_free(t->stage[i].regex);
    }
    added_free(&t->raw);
    added_free(&t->normalized);
    bpe_free(&t->bpe);
    mem_free(t->source);
    mem_free(t);
    *at = NULL;
}

static ls_status open_bytes(ls_tokenizer **out)
{
    ls_tokenizer *t;
    ls_status st = LS_OK;

    LS_TRY(tokenizer_new(&t));
    for (int i = 0; i < 256 && st == LS_OK; i++) st = vocab_put(&t->bpe.vocab, i, &(unsigned char){ (unsigned char)i }, 1, true);
    if (st == LS_OK) st = tokenizer_add_token(t, 256, END_OF_TEXT, true, false);
    if (st == LS_OK) st = tokenizer_write_json(t, NULL, 0);
    if (st == LS_OK)
        *out = t;
    else
        ls_tokenizer_close(&t);
    return st;
}

static bool tokenizer_ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

/* The named pattern whose name occurs in the file's name: the longest if there are several. */
static const char *pattern_of_name(const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *best = NULL;

    for (int i = 0; pattern_at(i); i++) {
        const char *name = pattern_at(i)->name;
        if (strstr(base, name) && (!best || strlen(name) > strlen(best))) best = name;
    }
    return best;
}

/* Opens path, with the pattern's name after a colon or in the file's name. */
static ls_status open_tiktoken(const char *path, size_t path_bytes, ls_tokenizer **out)
{
    char *file = file_path("%.*s", (int)path_bytes, path), *text = NULL;
    const char *pattern = path[path_bytes] == ':' ? path + path_bytes + 1 : NULL;
    size_t bytes;
    ls_status st;

    if (!file) return LS_ENOMEM;
    if (!pattern) pattern = pattern_of_name(file);
    if (!pattern)
        st = ls_fail(LS_EINVAL, "%s: the name contains no pattern; write %s:PATTERN with gpt2, r50k, p50k, cl100k or o200k", file, file);
    else
        st = file_read(file, &text, &bytes);
    if (st == LS_OK) st = tokenizer_read_tiktoken(text, bytes, file, pattern, out);
    mem_free(text);
    mem_free(file);
    return st;
}

static ls_status open_json(const char *path, ls_tokenizer **out)
{
    char *text;
    size_t bytes;

    LS_TRY(file_read(path, &text, &bytes));
    ls_status st = tokenizer_read_json(text, bytes, path, out);
    mem_free(text);
    return st;
}

static ls_status open_folder(const char *folder, ls_tokenizer **out)
{
    ls_status st = LS_BUSY; /* none found yet */

    for (int i = -1; st == LS_BUSY && (i < 0 || pattern_at(i)); i++) {
        char *path = i < 0 ? file_path("%s/%s", folder, TOKENIZER_JSON) : file_path("%s/%s.tiktoken", folder, pattern_at(i)->name);

        if (!path) return LS_ENOMEM;
        if (file_exists(path)) st = i < 0 ? open_json(path, out) : open_tiktoken(path, strlen(path), out);
        mem_free(path);
    }
    if (st != LS_BUSY) return st;
    return ls_fail(LS_EIO, "%s: no %s and no PATTERN.tiktoken in this folder", folder, TOKENIZER_JSON);
}

ls_status ls_tokenizer_open(const char *spec, ls_tokenizer **out)
{
    const char *tiktoken = strstr(spec, ".tiktoken:");

    if (strcmp(spec, "bytes") == 0) return open_bytes(out);
    if (file_is_folder(spec)) return open_folder(spec, out);
    if (tokenizer_ends_in(spec, ".json")) return open_json(spec, out);
    if (tokenizer_ends_in(spec, ".tiktoken")) return open_tiktoken(spec, strlen(spec), out);
    if (tiktoken) return open_tiktoken(spec, (size_t)(tiktoken - spec) + strlen(".tiktoken"), out);
    return ls_fail(LS_EINVAL, "tokenizer '%s' not found: expected bytes, a .json or .tiktoken file, or an existing folder", spec);
}

ls_status ls_tokenizer_save(const ls_tokenizer *t, const char *folder)
{
    char *path = file_path("%s/%s", folder, t->source_name);

    if (!path) return LS_ENOMEM;
    ls_status st = file_write(path, t->source, t->source_bytes);
    mem_free(path);
    return st;
}

int32_t ls_tokenizer_vocab(const ls_tokenizer *t) { return (int32_t)t->bpe.vocab.count; }
int32_t ls_tokenizer_end(const ls_tokenizer *t) { return t->end; }
int32_t ls_tokenizer_begin(const ls_tokenizer *t) { return t->begin; }

int32_t ls_tokenizer_find(const ls_tokenizer *t, const char *token, size_t bytes)
{
    const unsigned char *text = (const unsigned char *)token;
    int32_t id = added_find(&t->raw, text, bytes);

    if (id < 0) id = added_find(&t->normalized, text, bytes);
    return id >= 0 ? id : vocab_find(&t->bpe.vocab, text, bytes);
}

const char *ls_tokenizer_token(const ls_tokenizer *t, int32_t id, size_t *bytes)
{
    return (const char *)vocab_bytes(&t->bpe.vocab, id, bytes);
}

ls_status ls_tokenizer_decode(const ls_tokenizer *t, const int32_t *ids, size_t count, char *text, size_t room, size_t *bytes)
{
    size_t total = 0, n = 0;

    for (size_t i = 0; i < count; i++) {
        const unsigned char *token = vocab_bytes(&t->bpe.vocab, ids[i], &n);

        if (!token) return ls_fail(LS_EINVAL, "token %d at position %zu is not in the vocabulary of %zu", ids[i], i, t->bpe.vocab.count);
        if (total < room) memcpy(text + total, token, MIN(n, room - total));
        total += n;
    }
    *bytes = total;
    return LS_OK;
}
