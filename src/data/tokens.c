/* tokens.c - a sequence of ids: reading any type, checking, documents, the split. */
#include "data/tokens.h"

#include <math.h>
#include "base/pulse.h"

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
#define TOKEN_TYPE_ROW(id, name, bytes) [TOKEN_##id] = { name, bytes },
    TOKEN_TYPE_MAP(TOKEN_TYPE_ROW)
#undef TOKEN_TYPE_ROW
};

const char *token_type_name(enum token_type type) { return types[type].name; }
size_t token_type_bytes(enum token_type type) { return types[type].bytes; }

size_t ls_tokens_count(const ls_tokens *t) { return t->count; }
const char *ls_tokens_type(const ls_tokens *t) { return types[t->type].name; }
const char *ls_tokens_format(const ls_tokens *t) { return t->format; }
size_t ls_tokens_documents(const ls_tokens *t) { return t->document ? t->documents : 1; }

ls_range ls_tokens_document(const ls_tokens *t, size_t i)
{
    ASSERT(i < ls_tokens_documents(t));
    return t->document ? (ls_range){ t->document[i], t->document[i + 1] } : (ls_range){ 0, t->count };
}

void ls_tokens_close(ls_tokens **at)
{
    ls_tokens *t = at ? *at : NULL;

    if (!t) return;
    file_map_close(&t->map);
    file_map_close(&t->index);
    mem_pages_resize(MEM_OTHER, t->owned, t->owned_bytes, 0);
    mem_free(t->document);
    mem_free(t->name);
    mem_free(t);
    *at = NULL;
}

static ls_status fail_token(const ls_tokens *t, int64_t token, size_t at, int32_t vocab)
{
    return ls_fail(LS_EFORMAT, "%s: token %lld at position %zu is not in the vocabulary of %d", t->name, (long long)token, at, vocab);
}

/* One loop per type: out[i] = token; returns the first that is not in [0, vocab). out may be NULL: only check. */
#define READ_LOOP(type_t)                                                                   \
    do {                                                                                    \
        const type_t *from = (const type_t *)(const void *)t->data + first;                 \
        for (size_t i = 0; i < count; i++) {                                                \
            int64_t token = (int64_t)from[i];                                               \
            if (token < 0 || token >= vocab) return fail_token(t, token, first + i, vocab); \
            if (out) out[i] = (int32_t)token;                                               \
        }                                                                                   \
        return LS_OK;                                                                       \
    } while (0)

static ls_status read_range(const ls_tokens *t, size_t first, size_t count, int32_t vocab, int32_t *out)
{
    switch (t->type) {
    case TOKEN_U8: READ_LOOP(uint8_t);
    case TOKEN_I8: READ_LOOP(int8_t);
    case TOKEN_U16: READ_LOOP(uint16_t);
    case TOKEN_I16: READ_LOOP(int16_t);
    case TOKEN_I32: READ_LOOP(int32_t);
    case TOKEN_U32: READ_LOOP(uint32_t);
    case TOKEN_I64: READ_LOOP(int64_t);
    default: ASSERT(!"a token type"); return LS_EINVAL;
    }
}

ls_status ls_tokens_read(const ls_tokens *t, size_t first, size_t count, int32_t vocab, int32_t *out)
{
    if (first > t->count || count > t->count - first)
        return ls_fail(LS_EINVAL, "%s: tokens %zu .. %zu are requested, but there are only %zu", t->name, first, first + count, t->count);
    return read_range(t, first, count, vocab, out);
}

ls_status ls_tokens_check(const ls_tokens *t, int32_t vocab)
{
    enum { BLOCK = 1 << 20 };

    for (size_t first = 0; first < t->count; first += BLOCK) {
        pulse();
        LS_TRY(read_range(t, first, MIN((size_t)BLOCK, t->count - first), vocab, NULL));
    }
    return LS_OK;
}

/* ---- tokens appended one after another ---- */

enum { GROW_LEAST = 64 << 10 }; /* bytes */

void token_buffer_open(struct token_buffer *b, int32_t vocab)
{
    *b = (struct token_buffer){ .type = vocab > UINT16_MAX + 1 ? TOKEN_I32 : TOKEN_U16 };
}

static ls_status resize_buffer(struct token_buffer *b, size_t bytes)
{
    void *at = mem_pages_resize(MEM_OTHER, b->at, b->bytes, bytes);

    if (!at && bytes) return LS_ENOMEM;
    b->at = at;
    b->bytes = bytes;
    return LS_OK;
}

ls_status token_buffer_add(struct token_buffer *b, const int32_t *ids, size_t count)
{
    size_t need, size = token_type_bytes(b->type);

    if (!size_add(b->count, count, &need) || !size_mul(need, size, &need))
        return ls_fail(LS_ENOMEM, "out of memory: %zu more tokens", count);
    if (need > b->bytes) LS_TRY(resize_buffer(b, MAX(need, b->bytes + b->bytes / 8 + GROW_LEAST)));
    if (b->type == TOKEN_I32 && count > 0) memcpy((int32_t *)b->at + b->count, ids, count * sizeof *ids);
    for (size_t i = 0; b->type == TOKEN_U16 && i < count; i++) ((uint16_t *)b->at)[b->count + i] = (uint16_t)ids[i];
    b->count += count;
    return LS_OK;
}

ls_status token_buffer_take(struct token_buffer *b, ls_tokens **out)
{
    ls_tokens *t = mem_zalloc(MEM_OTHER, sizeof *t);

    if (!t) return LS_ENOMEM;
    t->name = mem_strdup("text");
    if (!t->name || resize_buffer(b, MAX(b->count, (size_t)1) * token_type_bytes(b->type)) < 0) {
        ls_tokens_close(&t);
        return LS_ENOMEM;
    }
    t->format = "text";
    t->type = b->type;
    t->count = b->count;
    t->data = t->owned = b->at;
    t->owned_bytes = b->bytes;
    *b = (struct token_buffer){ .type = b->type };
    *out = t;
    return LS_OK;
}

void token_buffer_close(struct token_buffer *b)
{
    mem_pages_resize(MEM_OTHER, b->at, b->bytes, 0);
    *b = (struct token_buffer){ .type = b->type };
}

ls_status tokens_from_ids(struct ids *ids, int32_t vocab, ls_tokens **out)
{
    struct token_buffer b;

    token_buffer_open(&b, vocab);
    ls_status st = token_buffer_add(&b, ids->at, ids->count);
    if (st == LS_OK) st = token_buffer_take(&b, out);
    if (st == LS_OK) {
        mem_free(ids->at);
        *ids = (struct ids){ 0 };
    }
    token_buffer_close(&b);
    return st;
}

/* ---- documents ---- */

static ls_status push_document(size_t **document, size_t *room, size_t *count, size_t first)
{
    void *p = *document;

    LS_TRY(array_grow(&p, room, *count + 1, sizeof first));
    *document = p;
    (*document)[(*count)++] = first;
    return LS_OK;
}

static ls_status find_documents(const ls_tokens *t, int32_t end, size_t **document, size_t *room, size_t *count)
{
    enum { STEP = 4096 };
    int32_t ids[STEP];

    LS_TRY(push_document(document, room, count, 0));
    for (size_t at = 0; at < t->count; at += STEP) {
        size_t n = MIN((size_t)STEP, t->count - at);

        LS_TRY(read_range(t, at, n, INT32_MAX, ids));
        for (size_t i = 0; i < n; i++)
            if (ids[i] == end && at + i + 1 < t->count) LS_TRY(push_document(document, room, count, at + i + 1));
    }
    return push_document(document, room, count, t->count);
}

ls_status ls_tokens_mark(ls_tokens *t, int32_t end)
{
    size_t *document = NULL, room = 0, count = 0;

    if (t->document) return ls_fail(LS_EINVAL, "%s: its %zu documents are already known", t->name, t->documents);
    ls_status st = find_documents(t, end, &document, &room, &count);
    if (st != LS_OK) {
        mem_free(document);
        return st;
    }
    t->document = document;
    t->documents = count - 1;
    return LS_OK;
}

/* The document boundary nearest to `place`, 0 if there is none inside. */
static size_t nearest_border(const ls_tokens *t, size_t place)
{
    size_t low = 0, high = ls_tokens_documents(t);

    if (!t->document) return 0;
    while (high - low > 1) { /* document[low] <= place < document[high], where high may be the end */
        size_t middle = low + (high - low) / 2;

        if (t->document[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    size_t under = t->document[low], over = t->document[high];
    return over < t->count && over - place < place - under ? over : under;
}

ls_status ls_tokens_split(const ls_tokens *t, double fraction, size_t seq_len, ls_range *train, ls_range *validation)
{
    size_t sample, wanted = 0, cut = t->count;

    if (!(fraction >= 0 && fraction < 1))
        return ls_fail(LS_EINVAL, "the validation fraction is %g; must be at least 0 and below 1", fraction);
    if (seq_len == 0 || !size_add(seq_len, 1, &sample))
        return ls_fail(LS_EINVAL, "the sequence length is %zu; must be at least 1 and fit memory", seq_len);
    if (t->count == 0) return ls_fail(LS_EINVAL, "%s: empty: there is nothing to train on", t->name);
    if (t->count < sample) return ls_fail(LS_EINVAL, "%s: %zu tokens are fewer than one sample of %zu + 1", t->name, t->count, seq_len);
    if (fraction > 0) {
        wanted = MAX((size_t)llround(fraction * (double)t->count), sample);
        if (t->count - wanted < sample || wanted > t->count)
            return ls_fail(LS_EINVAL, "%s: %zu tokens do not hold one sample of %zu + 1 to train on and %zu to validate with", t->name,
                           t->count, seq_len, wanted);
        size_t place = t->count - wanted, border = nearest_border(t, place);
        size_t moved = border > place ? border - place : place - border;

        cut = place / seq_len * seq_len;
        if (cut < sample) cut = place;
        if (moved <= wanted / 2 && border >= sample && t->count - border >= sample) cut = border;
    }
    *train = (ls_range){ 0, cut };
    *validation = (ls_range){ cut, t->count };
    return LS_OK;
}
