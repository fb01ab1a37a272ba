/* vocab.c - see the header. */
#include "data/vocab.h"

#include "data/array.h"

static bool is_at(const struct vocab *v, uint32_t id, const unsigned char *bytes, size_t count)
{
    const struct vocab_token *t = &v->token[id];

    return t->bytes == count && memcmp(v->text + t->at, bytes, count) == 0;
}

/* The slot that holds these bytes, or the free slot for them. slots > filled. */
static size_t find_slot(const struct vocab *v, const unsigned char *bytes, size_t count)
{
    size_t at = hash_bytes(bytes, count) & (v->slots - 1);

    while (v->slot[at] && !is_at(v, v->slot[at] - 1, bytes, count)) at = (at + 1) & (v->slots - 1);
    return at;
}

static ls_status grow_slots(struct vocab *v)
{
    uint32_t *old = v->slot;
    size_t olds = v->slots, slots = MAX(olds * 2, 1024);
    uint32_t *slot = mem_array(MEM_OTHER, slots, sizeof *slot);

    if (!slot) return LS_ENOMEM;
    v->slot = slot;
    v->slots = slots;
    for (size_t i = 0; i < olds; i++) {
        if (!old[i]) continue;
        const struct vocab_token *t = &v->token[old[i] - 1];
        v->slot[find_slot(v, v->text + t->at, t->bytes)] = old[i];
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
    size_t slot = 0;

    if (id < 0 || id >= VOCAB_MOST) return ls_fail(LS_EFORMAT, "token id %lld: ids are 0 .. %d", (long long)id, VOCAB_MOST - 1);
    if ((size_t)id < v->count && v->token[id].used) return ls_fail(LS_EFORMAT, "token id %lld is given twice", (long long)id);
    if (2 * (v->filled + 1) > v->slots) LS_TRY(grow_slots(v));
    if (findable) {
        slot = find_slot(v, bytes, count);
        if (v->slot[slot])
            return ls_fail(LS_EFORMAT, "tokens %u and %lld have the same %zu bytes", v->slot[slot] - 1, (long long)id, count);
    }
    if ((size_t)id >= v->count) LS_TRY(grow_tokens(v, (size_t)id + 1));
    LS_TRY(append_text(v, bytes, count));
    v->token[id] = (struct vocab_token){ v->text_bytes - count, (uint32_t)count, true };
    if (findable) {
        v->slot[slot] = (uint32_t)id + 1;
        v->filled++;
    }
    return LS_OK;
}

int32_t vocab_find(const struct vocab *v, const unsigned char *bytes, size_t count)
{
    return v->slots ? (int32_t)v->slot[find_slot(v, bytes, count)] - 1 : -1;
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
    mem_free(v->slot);
    *v = (struct vocab){ 0 };
}
