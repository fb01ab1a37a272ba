/* train_words.c - the distinct pieces of a text and how often each occurs. */
#include "data/array.h"
#include "base/pulse.h"
#include "data/train.h"

struct table {
    uint32_t *slot;
    size_t slots;
}; /* open addressing over the pieces' bytes: word + 1, 0 is free */

/* While counting, the symbols of a word are its bytes' ids, so two words are equal if their symbols are. */
static bool is_word(const struct words *w, size_t i, const int32_t *symbol, size_t length)
{
    return w->word[i].length == length && memcmp(w->symbol + w->word[i].at, symbol, length * sizeof *symbol) == 0;
}

static size_t find_slot(const struct words *w, const struct table *t, const int32_t *symbol, size_t length)
{
    size_t at = hash_bytes((const unsigned char *)symbol, length * sizeof *symbol) & (t->slots - 1);

    while (t->slot[at] && !is_word(w, t->slot[at] - 1, symbol, length)) at = (at + 1) & (t->slots - 1);
    return at;
}

static ls_status grow_table(const struct words *w, struct table *t)
{
    size_t slots = MAX(t->slots * 2, 4096);
    uint32_t *slot = mem_array(MEM_OTHER, slots, sizeof *slot);

    if (!slot) return LS_ENOMEM;
    mem_free(t->slot);
    *t = (struct table){ slot, slots };
    for (size_t i = 0; i < w->count; i++) t->slot[find_slot(w, t, w->symbol + w->word[i].at, w->word[i].length)] = (uint32_t)i + 1;
    return LS_OK;
}

/* Counts the piece. Its symbols are written after all others, and stay there if it is new. */
static ls_status count_piece(struct words *w, struct table *t, const struct bpe *b, const unsigned char *piece, size_t bytes)
{
    void *symbols = w->symbol, *words = w->word;

    if (bytes >= UINT32_MAX || w->count >= UINT32_MAX - 1)
        return ls_fail(LS_EINVAL, "the text has a piece of %zu bytes, or too many different ones", bytes);
    LS_TRY(array_grow(&symbols, &w->symbol_room, w->symbols + bytes, sizeof *w->symbol));
    w->symbol = symbols;
    LS_TRY(array_grow(&words, &w->room, w->count + 1, sizeof *w->word));
    w->word = words;
    if (2 * (w->count + 1) > t->slots) LS_TRY(grow_table(w, t));

    int32_t *symbol = w->symbol + w->symbols;
    for (size_t i = 0; i < bytes; i++) symbol[i] = b->byte_id[piece[i]];
    size_t at = find_slot(w, t, symbol, bytes);
    if (t->slot[at]) {
        w->word[t->slot[at] - 1].count++;
        return LS_OK;
    }
    w->word[w->count] = (struct word){ w->symbols, (uint32_t)bytes, 1 };
    t->slot[at] = (uint32_t)++w->count;
    w->symbols += bytes;
    return LS_OK;
}

static ls_status count_pieces(struct words *w, struct table *table, struct split_work *work, const ls_tokenizer *t,
                              const unsigned char *text, size_t bytes)
{
    size_t begin, end;

    for (size_t at = 0; at < bytes; at = end) {
        pulse();
        LS_TRY(split_next(t->stage[0].split, work, text, bytes, at, &begin, &end));
        if (begin > at) LS_TRY(count_piece(w, table, &t->bpe, text + at, begin - at));
        if (end > begin) LS_TRY(count_piece(w, table, &t->bpe, text + begin, end - begin));
    }
    return LS_OK;
}

ls_status words_count(struct words *w, const ls_tokenizer *t, const unsigned char *text, size_t bytes)
{
    struct table table = { 0 };
    struct split_work *work;

    LS_TRY(split_work_new(&work));
    ls_status st = count_pieces(w, &table, work, t, text, bytes);
    mem_free(table.slot);
    split_work_free(&work);
    return st;
}

void words_free(struct words *w)
{
    mem_free(w->word);
    mem_free(w->symbol);
    *w = (struct words){ 0 };
}
