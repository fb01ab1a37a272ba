/* added.c - see the header. There are few of them, so each is compared wherever its first byte occurs. */
#include "data/added.h"

#include "data/array.h"

ls_status added_put(struct added *a, int32_t id, const unsigned char *text, size_t bytes, bool special)
{
    void *p = a->token;

    LS_TRY(array_grow(&p, &a->room, a->count + 1, sizeof *a->token));
    a->token = p;
    unsigned char *copy = mem_alloc(MEM_OTHER, bytes);
    if (!copy) return LS_ENOMEM;
    memcpy(copy, text, bytes);
    a->token[a->count++] = (struct added_token){ copy, bytes, id, special };
    a->starts[text[0]] = true;
    return LS_OK;
}

static const struct added_token *longest_here(const struct added *a, const unsigned char *text, size_t bytes, bool specials)
{
    const struct added_token *best = NULL;

    for (size_t i = 0; i < a->count; i++) {
        const struct added_token *t = &a->token[i];

        if ((t->special && !specials) || t->bytes > bytes || (best && t->bytes <= best->bytes)) continue;
        if (memcmp(t->text, text, t->bytes) == 0) best = t;
    }
    return best;
}

const struct added_token *added_next(const struct added *a, const unsigned char *text, size_t bytes, size_t from, bool specials, size_t *at)
{
    if (a->count == 0) return NULL;
    for (size_t i = from; i < bytes; i++) {
        if (!a->starts[text[i]]) continue;

        const struct added_token *t = longest_here(a, text + i, bytes - i, specials);
        if (!t) continue;
        *at = i;
        return t;
    }
    return NULL;
}

int32_t added_find(const struct added *a, const unsigned char *text, size_t bytes)
{
    for (size_t i = 0; i < a->count; i++)
        if (a->token[i].bytes == bytes && memcmp(a->token[i].text, text, bytes) == 0) return a->token[i].id;
    return -1;
}

void added_free(struct added *a)
{
    for (size_t i = 0; i < a->count; i++) mem_free(a->token[i].text);
    mem_free(a->token);
    *a = (struct added){ 0 };
}
