/* vocab.c - see the header. */
#include "data/vocab.h"

#include "data/array.h"

static bool is_at(const struct vocab *v, uint32_t id, const unsigned char *bytes, size_t count)
{
    const struct vocab_token *t = &v->token[id];

    return t->bytes == count && memcmp(v->text + t->at, bytes, count) == 0;
}

/* The cell that holds these bytes, or the free cell for them. cells > filled. */
static size_t find_cell(const struct vocab *v, const unsigned char *bytes, size_t count)
{
    size_t at = hash_bytes(bytes, count) & (v->cells - 1);

    while (v->cell[at] && !is_at(v, v->cell[at] - 1, bytes, count)) at = (at + 1) & (v->cells - 1);
    return at;
}

static ls_status grow_cells(struct vocab *v)
{
    uint32_t *old = v->cell;
    size_t olds = v->cells, cells = MAX(olds * 2, 1024);
    uint32_t *cell = mem_array(MEM_OTHER, cells, sizeof *cell);

    if (!cell) return LS_ENOMEM;
    v->cell = cell;
    v->cells = cells;
    for (size_t i = 0; i < olds; i++) {
        if (!old[i]) continue;
        const struct vocab_token *t = &v->token[old[i] - 1];
        v->cell[find_cell(v, v->text + t->at, t->bytes)] = old[i];
    }
    mem_free(old);
    return LS_OK;
}

static ls_status grow_tokens(struct vocab *v, size_t count)
{
    void *p = v->token;

    LS_TRY(array_grow(&p, &v->token_room, count, sizeof *v->token));
    v->token = p;
    for (; v->count < count; v->count++) v->token[v->count] = (struct vocab_token){ 0 };
    return LS_OK;
}

static ls_status append_text(struct vocab *v, const void *bytes, size_t count)
{
    void *p = v->text;
    size_t need;

    if (count > UINT32_MAX || !size_add(v->text_bytes, count, &need)) return ls_fail(LS_EFORMAT, "a token is too long: %zu bytes", count);
    LS_TRY(array_grow(&p, &v->text_room, need, 1));
    v->text = p;
    if (count > 0) memcpy(v->text + v->text_bytes, bytes, count);
    v->text_bytes = need;
    return LS_OK;
}

ls_status vocab_put(struct vocab *v, int64_t id, const void *bytes, size_t count, bool findable)
{
    size_t cell = 0;

    if (id < 0 || id >= VOCAB_MOST) return ls_fail(LS_EFORMAT, "token id %lld: ids are 0 .. %d", (long long)id, VOCAB_MOST - 1);
    if ((size_t)id < v->count && v->token[id].used) return ls_fail(LS_EFORMAT, "token id %lld is given twice", (long long)id);
    if (2 * (v->filled + 1) > v->cells) LS_TRY(grow_cells(v));
    if (findable) {
        cell = find_cell(v, bytes, count);
        if (v->cell[cell])
            return ls_fail(LS_EFORMAT, "tokens %u and %lld have the same %zu bytes", v->cell[cell] - 1, (long long)id, count);
    }
    if ((size_t)id >= v->count) LS_TRY(grow_tokens(v, (size_t)id + 1));
    LS_TRY(append_text(v, bytes, count));
    v->token[id] = (struct vocab_token){ v->text_bytes - count, (uint32_t)count, true };
    if (findable) {
        v->cell[cell] = (uint32_t)id + 1;
        v->filled++;
    }
    return LS_OK;
}

int32_t vocab_find(const struct vocab *v, const unsigned char *bytes, size_t count)
{
    return v->cells ? (int32_t)v->cell[find_cell(v, bytes, count)] - 1 : -1;
}

const unsigned char *vocab_bytes(const struct vocab *v, int64_t id, size_t *count)
{
    if (id < 0 || (uint64_t)id >= v->count || !v->token[id].used) return NULL;
    *count = v->token[id].bytes;
    return v->text + v->token[id].at;
}

void vocab_free(struct vocab *v)
{
    mem_free(v->token);
    mem_free(v->text);
    mem_free(v->cell);
    *v = (struct vocab){ 0 };
}
