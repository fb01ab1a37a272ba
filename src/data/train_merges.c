/* train_merges.c - chooses the pairs to merge.
 *
 * Every pair of neighboring symbols has its count over the text, and the list of words in which it occurs or occurred. A heap gives the
 * pair of highest count (ties: the smaller pair of ids). An entry of the heap may be too high, because merges destroy pairs: then it is
 * reinserted with its true count. Merging a pair walks its words only and corrects the counts of the pairs to its left and right. Two
 * merges may give the same bytes ("a" "aa" and "aa" "a"): they share one token.
 */
#include "data/array.h"
#include "base/pulse.h"
#include "data/train.h"

struct pair {      /* a cell of the table */
    uint64_t key;  /* left << 32 | right */
    int64_t count; /* occurrences in the text; < 0 never */
    uint32_t list; /* first node + 1; 0: none */
    bool used, merged, changed;
};

struct node {
    uint32_t word, next;
}; /* next: node + 1 */
struct entry {
    int64_t count;
    uint64_t key;
};

struct learner {
    struct words *w;
    struct pair *pair; /* open addressing */
    size_t cells, pairs;
    struct node *node;
    size_t nodes, node_room;
    struct entry *heap;
    size_t entries, entry_room;
    uint64_t *grown; /* pairs that gained in the current merge */
    size_t grows, grown_room;
    struct merge_pair *merge;
    size_t merges, merge_room;
};

static uint64_t train_merges_key_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static struct pair *cell_of(struct pair *pair, size_t cells, uint64_t key)
{
    size_t at = hash_mix(key) & (cells - 1);

    while (pair[at].used && pair[at].key != key) at = (at + 1) & (cells - 1);
    return &pair[at];
}

static ls_status grow_pairs(struct learner *l)
{
    size_t cells = MAX(2 * l->cells, 1 << 14);
    struct pair *pair = mem_array(MEM_OTHER, cells, sizeof *pair);

    if (!pair) return LS_ENOMEM;
    for (size_t i = 0; i < l->cells; i++)
        if (l->pair[i].used) *cell_of(pair, cells, l->pair[i].key) = l->pair[i];
    mem_free(l->pair);
    l->pair = pair;
    l->cells = cells;
    return LS_OK;
}

static bool above(struct entry a, struct entry b) { return a.count != b.count ? a.count > b.count : a.key < b.key; }

static ls_status heap_push(struct learner *l, struct entry e)
{
    void *p = l->heap;
    size_t i = l->entries;

    LS_TRY(array_grow(&p, &l->entry_room, l->entries + 1, sizeof e));
    l->heap = p;
    for (l->entries++; i > 0 && above(e, l->heap[(i - 1) / 2]); i = (i - 1) / 2) l->heap[i] = l->heap[(i - 1) / 2];
    l->heap[i] = e;
    return LS_OK;
}

static struct entry heap_pop(struct learner *l)
{
    struct entry top = l->heap[0], last = l->heap[--l->entries];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < l->entries; i = child) {
        if (child + 1 < l->entries && above(l->heap[child + 1], l->heap[child])) child++;
        if (!above(l->heap[child], last)) break;
        l->heap[i] = l->heap[child];
    }
    l->heap[i] = last;
    return top;
}

/* Adds `count` (may be negative) to a pair's count in a word; a pair that gains is recorded for the heap. */
static ls_status change(struct learner *l, int32_t left, int32_t right, int64_t count, uint32_t word)
{
    uint64_t key = train_merges_key_of(left, right);
    void *p = l->node, *grown = l->grown;

    if (2 * (l->pairs + 1) > l->cells) LS_TRY(grow_pairs(l));
    struct pair *pair = cell_of(l->pair, l->cells, key);
    if (!pair->used) {
        *pair = (struct pair){ .key = key, .used = true };
        l->pairs++;
    }
    pair->count += count;
    if (count < 0) return LS_OK;
    if (!pair->changed) {
        LS_TRY(array_grow(&grown, &l->grown_room, l->grows + 1, sizeof *l->grown));
        l->grown = grown;
        l->grown[l->grows++] = key;
        pair->changed = true;
    }
    if (pair->list && l->node[pair->list - 1].word == word) return LS_OK;
    if (l->nodes >= UINT32_MAX - 1) return ls_fail(LS_EINVAL, "the text is too large to learn from: train on a part of it");
    LS_TRY(array_grow(&p, &l->node_room, l->nodes + 1, sizeof *l->node));
    l->node = p;
    l->node[l->nodes++] = (struct node){ word, pair->list };
    pair->list = (uint32_t)l->nodes;
    return LS_OK;
}

static ls_status push_grown(struct learner *l)
{
    for (size_t i = 0; i < l->grows; i++) {
        struct pair *pair = cell_of(l->pair, l->cells, l->grown[i]);

        pair->changed = false;
        if (pair->count > 0) LS_TRY(heap_push(l, (struct entry){ pair->count, pair->key }));
    }
    l->grows = 0;
    return LS_OK;
}

static ls_status count_pairs(struct learner *l)
{
    for (size_t i = 0; i < l->w->count; i++) {
        const struct word *word = &l->w->word[i];
        const int32_t *symbol = l->w->symbol + word->at;

        pulse();
        for (uint32_t k = 0; k + 1 < word->length; k++) LS_TRY(change(l, symbol[k], symbol[k + 1], word->count, (uint32_t)i));
    }
    return push_grown(l);
}

static ls_status merge_in_word(struct learner *l, uint32_t index, int32_t left, int32_t right, int32_t id)
{
    struct word *word = &l->w->word[index];
    int32_t *symbol = l->w->symbol + word->at;
    uint32_t n = 0;
    int64_t count = word->count;

    /* symbol[0 .. n) is done, symbol[i ..) is unchanged */
    for (uint32_t i = 0; i < word->length; n++) {
        if (i + 1 == word->length || symbol[i] != left || symbol[i + 1] != right) {
            symbol[n] = symbol[i++];
            continue;
        }
        if (n > 0) {
            LS_TRY(change(l, symbol[n - 1], left, -count, index));
            LS_TRY(change(l, symbol[n - 1], id, count, index));
        }
        i += 2;
        symbol[n] = id;
        if (i < word->length) {
            LS_TRY(change(l, right, symbol[i], -count, index));
            LS_TRY(change(l, id, symbol[i], count, index));
        }
    }
    word->length = n;
    return LS_OK;
}

/* The id of left's and right's concatenated bytes, created if there is none. */
static ls_status token_of(ls_tokenizer *t, int32_t left, int32_t right, int32_t *id)
{
    struct vocab *v = &t->bpe.vocab;
    size_t a = 0, b = 0;
    const unsigned char *x = vocab_bytes(v, left, &a), *y = vocab_bytes(v, right, &b);
    unsigned char *both = mem_alloc(MEM_OTHER, a + b);
    ls_status st = LS_OK;

    if (!both) return LS_ENOMEM;
    memcpy(both, x, a);
    memcpy(both + a, y, b);
    *id = vocab_find(v, both, a + b);
    if (*id < 0) {
        *id = (int32_t)v->count;
        st = vocab_put(v, *id, both, a + b, true);
    }
    mem_free(both);
    return st;
}

static ls_status add_merge(struct learner *l, ls_tokenizer *t, struct merge_pair m, int32_t id)
{
    void *p = l->merge;

    LS_TRY(array_grow(&p, &l->merge_room, l->merges + 1, sizeof m));
    l->merge = p;
    l->merge[l->merges++] = m;
    return bpe_put_merge(&t->bpe, m.left, m.right, (uint32_t)(l->merges - 1), id);
}

static ls_status merge_pair(struct learner *l, ls_tokenizer *t, struct pair *pair)
{
    struct merge_pair m = { (int32_t)(pair->key >> 32), (int32_t)(uint32_t)pair->key };
    uint32_t list = pair->list;
    bool merged = pair->merged;
    int32_t id;

    pair->list = 0;
    pair->merged = true;
    LS_TRY(token_of(t, m.left, m.right, &id));
    if (!merged) LS_TRY(add_merge(l, t, m, id));
    for (; list; list = l->node[list - 1].next) LS_TRY(merge_in_word(l, l->node[list - 1].word, m.left, m.right, id));
    cell_of(l->pair, l->cells, train_merges_key_of(m.left, m.right))->count = 0;
    return push_grown(l);
}

static ls_status learn(struct learner *l, ls_tokenizer *t, size_t vocab)
{
    LS_TRY(count_pairs(l));
    while (t->bpe.vocab.count < vocab && l->entries > 0) {
        struct entry top = heap_pop(l);
        struct pair *pair = cell_of(l->pair, l->cells, top.key);

        pulse();
        if (pair->count <= 0) continue;
        if (pair->count != top.count)
            LS_TRY(heap_push(l, (struct entry){ pair->count, top.key }));
        else
            LS_TRY(merge_pair(l, t, pair));
    }
    return LS_OK;
}

ls_status merges_learn(struct words *w, ls_tokenizer *t, size_t vocab, struct merge_pair **out, size_t *count)
{
    struct learner l = { .w = w };
    ls_status st = learn(&l, t, vocab);

    mem_free(l.pair);
    mem_free(l.node);
    mem_free(l.heap);
    mem_free(l.grown);
    if (st != LS_OK) {
        mem_free(l.merge);
        return st;
    }
    *out = l.merge;
    *count = l.merges;
    return LS_OK;
}
