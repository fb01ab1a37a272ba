/* bpe.c - the merge table, and the cache before merging.
 *
 * Words repeat, so a cache answers most pre-tokens: up to KEY_MOST bytes and IDS_MOST tokens per entry, one entry per hash; a new one
 * replaces the old one. An entry is one cache line. bpe_merge.c does the merging.
 */
#include "data/bpe.h"

#include "data/bpe_merge.h"

enum { CACHE_LEAST = 1 << 4, CACHE_MOST = 1 << 15, TEXT_PER_ENTRY = 16, KEY_MOST = 30, IDS_MOST = 8 };

struct cached {
    unsigned char bytes, count, key[KEY_MOST];
    int32_t id[IDS_MOST];
};

struct bpe_work {
    struct merge_work merging;
    struct cached *cache; /* [entries]; bytes 0: empty */
    size_t entries;       /* a power of two */
};

static size_t merge_cell(const struct bpe *b, uint64_t pair)
{
    size_t at = hash_mix(pair) & (b->cells - 1);

    while (b->merge[at].id >= 0 && b->merge[at].pair != pair) at = (at + 1) & (b->cells - 1);
    return at;
}

static ls_status grow_merges(struct bpe *b)
{
    struct merge *old = b->merge;
    size_t olds = b->cells, cells = MAX(olds * 2, 1024);
    struct merge *merge = mem_array(MEM_OTHER, cells, sizeof *merge);

    if (!merge) return LS_ENOMEM;
    for (size_t i = 0; i < cells; i++) merge[i].id = -1;
    b->merge = merge;
    b->cells = cells;
    for (size_t i = 0; i < olds; i++)
        if (old[i].id >= 0) b->merge[merge_cell(b, old[i].pair)] = old[i];
    mem_free(old);
    return LS_OK;
}

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

ls_status bpe_put_merge(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t pair = pair_of(left, right);

    if (2 * (b->merges + 1) > b->cells) LS_TRY(grow_merges(b));
    struct merge *m = &b->merge[merge_cell(b, pair)];
    if (m->id >= 0) return LS_OK;
    *m = (struct merge){ pair, rank, id };
    b->merges++;
    return LS_OK;
}

const struct merge *bpe_find_merge(const struct bpe *b, int32_t left, int32_t right)
{
    if (!b->merges) return NULL;

    const struct merge *m = &b->merge[merge_cell(b, pair_of(left, right))];
    return m->id >= 0 ? m : NULL;
}

void bpe_set_bytes(struct bpe *b)
{
    for (int i = 0; i < 256; i++) b->byte_id[i] = vocab_find(&b->vocab, &(unsigned char){ (unsigned char)i }, 1);
}

void bpe_free(struct bpe *b)
{
    vocab_free(&b->vocab);
    mem_free(b->merge);
    *b = (struct bpe){ 0 };
}

ls_status bpe_work_new(size_t text_bytes, struct bpe_work **out)
{
    struct bpe_work *w = mem_zalloc(MEM_OTHER, sizeof *w);

    if (!w) return LS_ENOMEM;
    w->entries = CACHE_LEAST;
    while (w->entries < CACHE_MOST && w->entries * TEXT_PER_ENTRY < text_bytes) w->entries *= 2;
    w->cache = mem_array(MEM_OTHER, w->entries, sizeof *w->cache);
    if (!w->cache) {
        mem_free(w);
        return LS_ENOMEM;
    }
    *out = w;
    return LS_OK;
}

void bpe_work_free(struct bpe_work **at)
{
    struct bpe_work *w = *at;

    if (!w) return;
    merge_work_free(&w->merging);
    mem_free(w->cache);
    mem_free(w);
    *at = NULL;
}

static ls_status encode_bytes(const struct bpe *b, const unsigned char *pretoken, size_t bytes, struct ids *out)
{
    LS_TRY(ids_reserve(out, bytes));
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = b->byte_id[pretoken[i]];

        if (id < 0) return ls_fail(LS_EFORMAT, "byte 0x%02x has no token in this vocabulary", pretoken[i]);
        out->at[out->count++] = id;
    }
    return LS_OK;
}

static ls_status encode_anew(const struct bpe *b, struct bpe_work *w, const unsigned char *pretoken, size_t bytes, struct ids *out)
{
    int32_t whole = b->ignore_merges ? vocab_find(&b->vocab, pretoken, bytes) : -1;
    size_t first = out->count;

    if (whole >= 0) return ids_push(out, whole);
    LS_TRY(encode_bytes(b, pretoken, bytes, out));
    if (!b->merges) return LS_OK;
    LS_TRY(merge_tokens(b, &w->merging, out->at + first, &bytes));
    out->count = first + bytes;
    return LS_OK;
}

ls_status bpe_encode(const struct bpe *b, struct bpe_work *w, const unsigned char *pretoken, size_t bytes, struct ids *out)
{
    size_t first = out->count;

    if (bytes == 0) return LS_OK;
    if (bytes > KEY_MOST) return encode_anew(b, w, pretoken, bytes, out);
    struct cached *c = &w->cache[hash_bytes(pretoken, bytes) & (w->entries - 1)];
    if (c->bytes == bytes && memcmp(c->key, pretoken, bytes) == 0) return ids_append(out, c->id, c->count);

    LS_TRY(encode_anew(b, w, pretoken, bytes, out));
    if (out->count - first > IDS_MOST) return LS_OK;
    c->bytes = (unsigned char)bytes;
    c->count = (unsigned char)(out->count - first);
    memcpy(c->key, pretoken, bytes);
    memcpy(c->id, out->at + first, c->count * sizeof *c->id);
    return LS_OK;
}
